//! Tests budgets with real packets: a user divides the minimums that root gave, among own programs
//! and nothing else.

use std::path::PathBuf;

use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{self, Running, Tcp, Udp};
use netnice_lab::wire::{self, Record, WireFlow};
use serde_json::json;

use crate::users::{ANN, BOB, process_of, run_as, traffic_as};

/// Rate of the link in bit/s.
const LINK: f64 = 20e6;

/// Programs of ann and floods of others, and the test bed that they run in.
struct Programs {
    bed: TestBed,
    /// Ann's programs, on ports 5001, 5002, …
    ann: Vec<Running>,
    _others: Vec<Running>,
}

/// Starts programs of ann with these numbers of TCP flows, and beside them a UDP flood of bob and
/// eight TCP flows of root, on port 5009.
fn programs(flows: &[u32]) -> Programs {
    let bed = TestBed::new().expect("a test bed");
    bed.run_ok("link eth0 --rate 20mbit");
    let lab: PathBuf = bed.copy_for_all("netnice-lab").expect("a copy");
    let to_others = bed.sink(5009).expect("a sink");
    let ann = (5001..).zip(flows).map(|(port, flows)| {
        let to = bed.sink(port).expect("a sink");
        traffic_as(&bed, ANN, &lab, &Tcp::connect(to, *flows).source()).expect("ann's program")
    });
    let ann: Vec<Running> = ann.collect();
    let flood = Udp::source(bed.client(6003), to_others).rate(40_000_000);
    let flows = Tcp::connect(to_others, 8).source();
    let others = vec![
        traffic_as(&bed, BOB, &lab, &flood).expect("bob's flood"),
        traffic::start_now(bed.world.client(), &flows).expect("root's flows"),
    ];
    Programs {
        bed,
        ann,
        _others: others,
    }
}

/// The packets to a port.
fn to(port: u16) -> impl Fn(&WireFlow) -> bool + Copy {
    move |flow| wire::inbound(flow) && flow.target.1 == port
}

/// A record, with the begin and the end of a window of it in which the link was used and `holds` is
/// true. A busy machine may starve a program, so windows are repeated.
fn window(bed: &TestBed, holds: impl Fn(&Record, u64, u64) -> bool) -> (Record, u64, u64) {
    let had = bed.record_until(1.5, 2.0, |record, from, until| {
        record.rate(wire::inbound, from, until) >= 0.5 * LINK && holds(record, from, until)
    });
    had.expect("a record")
}

fn names(programs: &Programs) -> Vec<String> {
    let pids = programs.ann.iter().map(Running::pid);
    pids.map(|pid| format!("pid:{pid}")).collect()
}

/// 5 % less than a minimum passes: the machine is shared with other tests.
#[test]
fn minimums_in_a_budget_hold_beside_floods_inside_and_outside() {
    // The third of ann's programs has no minimum.
    let programs = programs(&[1, 4, 8]);
    let bed = &programs.bed;
    bed.run_ok(&format!(
        "set user:{ANN} --min 10mbit --up 12mbit --delegate {ANN}"
    ));
    let [a, b, rest] = &names(&programs)[..] else {
        panic!("three programs");
    };
    let set = run_as(bed, ANN, &format!("set {a} --min 6mbit"));
    assert_eq!(set.status, 0, "{set:?}");
    let set = run_as(bed, ANN, &format!("set {b} --min 4mbit"));
    assert_eq!(set.status, 0, "{set:?}");
    let minimums = [(5001, 6e6), (5002, 4e6)];
    let part = |record: &Record, port, from, until| {
        let carried = record.rate(wire::inbound, from, until).min(LINK);
        record.rate(to(port), from, until) / (carried / LINK)
    };
    let (record, from, until) = window(bed, |record, from, until| {
        let got = |(port, min): &(u16, f64)| part(record, *port, from, until) >= 0.95 * min;
        minimums.iter().all(got)
    });
    for (port, min) in minimums {
        let got = part(&record, port, from, until);
        assert!(got >= 0.95 * min, "port {port}: {got:.0} of {min} bit/s");
    }
    let all: f64 = (5001..=5003)
        .map(|port| record.rate(to(port), from, until))
        .sum();
    assert!(
        all <= 1.05 * 12e6,
        "{all:.0} bit/s above the ceiling of 12 Mbit/s"
    );
    let others = record.rate(to(5009), from, until);
    assert!(
        others >= 0.3 * LINK,
        "{others:.0} bit/s of others beside a ceiling of 12 of 20"
    );

    let refused = run_as(bed, ANN, &format!("set {rest} --min 1mbit"));
    assert_eq!(refused.status, 3, "{refused:?}");
    let names = [a.as_str(), b, &format!("user:{ANN}"), "10 Mbit/s"];
    for name in names {
        assert!(refused.stderr.contains(name), "{name}: {refused:?}");
    }
    let budget = &bed.target(&format!("user:{ANN}"))["budget"];
    assert_eq!(
        budget["up"],
        json!({"min": 10_000_000, "used": 10_000_000, "left": 0}),
        "{budget}"
    );
    let users = run_as(bed, ANN, "show --users");
    assert!(users.stdout.contains("BUDGET"), "{users:?}");
    let users = run_as(bed, BOB, "show --users");
    assert!(
        !users.stdout.contains("BUDGET"),
        "it is not bob's: {users:?}"
    );
}

#[test]
fn a_priority_in_a_budget_takes_nothing_from_others() {
    let programs = programs(&[4, 4]);
    let bed = &programs.bed;
    bed.run_ok(&format!("set user:{ANN} --min 8mbit --delegate {ANN}"));
    let [first, second] = &names(&programs)[..] else {
        panic!("two programs");
    };
    for program in [first, second] {
        let set = run_as(bed, ANN, &format!("set {program} --min 1mbit"));
        assert_eq!(set.status, 0, "{set:?}");
    }
    let (record, from, until) = window(bed, |_, _, _| true);
    let share = |record: &Record, port, from, until| {
        record.rate(to(port), from, until) / record.rate(wire::inbound, from, until)
    };
    let before = share(&record, 5009, from, until);
    let set = run_as(bed, ANN, &format!("set {first} --priority 0 --weight 1000"));
    assert_eq!(set.status, 0, "{set:?}");
    let holds = |record: &Record, from, until| {
        let [own, other, others] = [5001, 5002, 5009].map(|port| share(record, port, from, until));
        own >= 1.5 * other && others >= 0.75 * before
    };
    let (record, from, until) = window(bed, holds);
    let shares = [5001, 5002, 5009].map(|port| share(&record, port, from, until));
    assert!(
        holds(&record, from, until),
        "shares of first, second and others: {shares:?}; others before: {before}"
    );
}

#[test]
fn nobody_gets_more_than_was_given() {
    let bed = TestBed::new().expect("a test bed");
    bed.run_ok("link eth0 --rate 20mbit");
    let (own, others) = (process_of(&bed, ANN), process_of(&bed, BOB));
    let (own, others) = (own.pid(), others.pid());
    let budget = format!("user:{ANN}");
    let refused = |uid: u32, line: &str, status: i32, part: &str| {
        let done = run_as(&bed, uid, line);
        assert_eq!(done.status, status, "{done:?}");
        assert!(done.stderr.contains(part), "{part}: {done:?}");
    };
    refused(ANN, &format!("set {own} --min 1mbit"), 3, "no budget");
    let above = bed.run_with_status(&format!("set {budget} --min 30mbit --delegate {ANN}"), 3);
    assert!(above.stderr.contains("20 Mbit/s"), "{above:?}");
    let foreign = bed.run_with_status(&format!("set {budget} --min 3mbit --delegate {BOB}"), 2);
    assert!(foreign.stderr.contains("nothing to divide"), "{foreign:?}");
    let nobody = format!("set {budget} --min 3mbit --delegate no-such-user");
    let nobody = bed.run_with_status(&nobody, 1);
    assert!(nobody.stderr.contains("no-such-user"), "{nobody:?}");
    let empty = bed.run_with_status(&format!("set {budget} --up 3mbit --delegate {ANN}"), 2);
    assert!(empty.stderr.contains("needs a minimum"), "{empty:?}");
    assert_eq!(bed.shown()["targets"], json!([]), "nothing has changed");

    bed.run_ok(&format!("set {budget} --min 5mbit --delegate {ANN}"));
    refused(BOB, &format!("set {others} --min 1mbit"), 3, "no budget");
    refused(ANN, &format!("set {others} --min 1mbit"), 3, "not to you");
    refused(ANN, &format!("set {own} --min 6mbit"), 3, "5 Mbit/s");
    refused(ANN, &format!("set {own} --slice 1ms/10ms"), 3, "slice");
    refused(ANN, &format!("set {budget} --min 9mbit"), 3, "root");
    refused(
        ANN,
        &format!("set {own} --min 1mbit --delegate {ANN}"),
        3,
        "delegate",
    );
    let set = run_as(&bed, ANN, &format!("set {own} --min 5mbit"));
    assert_eq!(set.status, 0, "{set:?}");

    // What root takes away is told, and given back it is in force again.
    let less = bed.run_ok(&format!("set {budget} --min 2mbit"));
    assert!(less.stdout.contains(&format!("pid:{own}")), "{less:?}");
    let shown = bed.target(&format!("pid:{own}"));
    assert_eq!(shown["effective"]["min"], json!(null), "{shown}");
    assert!(!shown["degraded"].as_array().expect("a list").is_empty());
    bed.run_ok(&format!("set {budget} --min 5mbit"));
    let shown = bed.target(&format!("pid:{own}"));
    assert_eq!(shown["effective"]["min"], 5_000_000, "{shown}");
    let explained = run_as(&bed, ANN, &format!("explain {own}"));
    assert!(
        explained.stdout.contains(&format!("inside {budget}")),
        "{explained:?}"
    );
}

#[test]
fn a_budget_of_the_policy_outlives_the_daemon() {
    let mut bed = TestBed::new().expect("a test bed");
    let rule = format!(
        "[[link]]\nname = \"eth0\"\nrate = \"20mbit\"\n\n[[rule]]\nname = \"ann\"\n\
         match = \"user:{ANN}\"\nmin = \"5mbit\"\nup = \"9mbit\"\ndelegate = \"{ANN}\"\n"
    );
    std::fs::write(bed.netnice.policy(), rule).expect("a policy");
    bed.run_ok("reload");
    let own = process_of(&bed, ANN);
    let pid = own.pid();
    let set = run_as(&bed, ANN, &format!("set {pid} --min 4mbit --weight 9"));
    assert_eq!(set.status, 0, "{set:?}");
    let before = bed.netnice.show_without_counters().expect("a state");
    bed.netnice.kill_daemon();
    bed.netnice.start_daemon().expect("a daemon");
    let after = bed.netnice.show_without_counters().expect("a state");
    assert_eq!(before, after);
    let cleared = run_as(&bed, ANN, &format!("clear pid:{pid}"));
    assert_eq!(cleared.status, 0, "{cleared:?}");
}
