//! Tests limits while interfaces come and go, and while other programs delete netnice's objects:
//! the limits must be restored soon. If another program keeps deleting the objects, the daemon must
//! report it and stop the repair.

use std::process::Command;
use std::time::Instant;

use netnice_lab::experiment::bench::{R4M, pause};
use netnice_lab::process::{self, EVENT_TIMEOUT};
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, ParentProcess, RunOptions, Running, Tcp};
use netnice_lab::wire;

/// The rate in bit/s that a program offers, five times its limit of 4 Mbit/s. (A higher rate would
/// take processor time that the repair needs.)
const WANTED: u64 = 20_000_000;

/// Starts a program that offers more than its limit.
fn start_limited(bed: &TestBed) -> Running {
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 2).source().rate(WANTED);
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    bed.await_limited(|| bed.sent_rate(0.5, 1.0).expect("a rate"), R4M, "at first");
    program
}

/// Waits until the rate is limited to 4 Mbit/s again. Consecutive windows are measured until one
/// has that rate; traffic without a limit never has it, and neither has a stopped flow.
fn await_limited_again(bed: &TestBed, what: &str) {
    let until = Instant::now() + EVENT_TIMEOUT;
    let mut rate = bed.sent_rate(0.2, 1.0).expect("a rate");
    while !(2e6..=4.12e6).contains(&rate) && Instant::now() < until {
        rate = bed.sent_rate(0.0, 1.0).expect("a rate");
    }
    bed.assert_limited(rate, R4M, what);
}

/// Detaches netnice's programs from eth0, as another program's cleanup does: with clsact or, with
/// tcx, link by link.
fn detach_programs(bed: &TestBed) {
    let ns = &bed.world.client().ns;
    if ns.tc("qdisc del dev eth0 clsact").is_ok() {
        return;
    }
    let links = ns.ip("-o link show eth0").expect("ip");
    let index = links.split(':').next().expect("it begins with a number");
    let pins = bed.netnice.runtime().join("bpf");
    for hook in ["egress", "ingress"] {
        let pin = pins.join(format!("link_if{}_{hook}", index.trim()));
        let mut detach = Command::new("bpftool");
        detach.args(["link", "detach", "pinned"]).arg(&pin);
        process::run(&mut detach).expect("the link is ours and attached");
    }
}

#[test]
fn detached_bpf_programs_are_attached_again() {
    let bed = TestBed::new().expect("a test bed");
    let _program = start_limited(&bed);
    detach_programs(&bed);
    let log = || bed.run_ok("log").stdout;
    let again = || log().contains("restoring it");
    assert!(becomes_true(again), "nothing was put back: {}", log());
    assert!(log().contains("eth0"), "nothing of eth0: {}", log());
    await_limited_again(&bed, "after the programs were taken off");
}

#[test]
fn a_deleted_veth_pair_is_made_again() {
    let bed = TestBed::new().expect("a test bed");
    let _program = start_limited(&bed);
    let ns = &bed.world.client().ns;
    ns.ip("link del nn0").expect("our own pair was there");
    let log = || bed.run_ok("log").stdout;
    assert!(becomes_true(|| log().contains("restoring it")), "{}", log());
    await_limited_again(&bed, "after our pair was deleted");
}

#[test]
fn a_managed_link_that_lost_its_queue_gets_it_again() {
    let bed = TestBed::new().expect("a test bed");
    bed.run_ok("link eth0 --rate 4mbit");
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 2).source().rate(WANTED);
    let _program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    bed.await_limited(|| bed.sent_rate(0.5, 1.0).expect("a rate"), R4M, "at first");
    let ns = &bed.world.client().ns;
    ns.tc("qdisc del dev eth0 root")
        .expect("our queue was there");
    await_limited_again(&bed, "after the link's queue was deleted");
}

#[test]
fn an_interface_that_goes_down_and_up_is_limited_as_before() {
    let bed = TestBed::new().expect("a test bed");
    let _program = start_limited(&bed);
    let ns = &bed.world.client().ns;
    ns.ip("link set eth0 down").expect("down");
    pause(0.3);
    ns.ip("link set eth0 up").expect("up");
    await_limited_again(&bed, "after the interface was down");
}

#[test]
fn a_recreated_managed_interface_is_managed_again() {
    let bed = TestBed::new().expect("a test bed");
    let (client, server) = (&bed.world.client().ns, &bed.world.server().ns);
    let lay = || {
        let line = format!(
            "link add name wan0 type veth peer name wan0 netns {}",
            server.name()
        );
        client.ip(&line).expect("a cable");
        for (ns, last) in [(client, 1), (server, 2)] {
            ns.run("ethtool", "-K wan0 tso off gso off gro off")
                .expect("ethtool");
            ns.ip(&format!("addr add 10.78.0.{last}/24 dev wan0"))
                .expect("an address");
            ns.ip("link set wan0 up").expect("up");
        }
    };
    lay();
    let sleeper = bed.sleeper();
    let target = format!("pid:{}", sleeper.pid());
    bed.run_ok("link wan0 --rate 4mbit");
    bed.run_ok(&format!("set {target} --min 1mbit"));
    client.ip("link del wan0").expect("it was there");
    let says_gone = || {
        let shown = bed.netnice.show().expect("a show");
        shown["links"][0]["degraded"].to_string().contains("wan0")
            && bed.target(&target)["degraded"] != serde_json::json!([])
    };
    assert!(
        becomes_true(says_gone),
        "{}",
        bed.netnice.show().expect("a show")
    );
    lay();
    let all_well = || bed.target(&target)["degraded"] == serde_json::json!([]);
    assert!(
        becomes_true(all_well),
        "{}",
        bed.netnice.show().expect("a show")
    );
    let far = "10.78.0.2:5001".parse().expect("an address");
    let _sink = traffic::start_now(bed.world.server(), &Tcp::listen(far).sink()).expect("a sink");
    let flows = Tcp::connect(far, 4).source();
    let _program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    let (records, from, to) = bed.records(&["wan0"], 0.5, 1.5).expect("a record");
    let rate = records[0].rate(wire::inbound, from, to);
    bed.assert_limited(rate, R4M, "the link made anew");
}

#[test]
fn a_later_interface_is_limited_too() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let mut parent = ParentProcess::start(bed.world.client()).expect("a parent");
    bed.run_ok(&format!("set pid:{} --up 4mbit", parent.pid()));
    let (client, server) = (&bed.world.client().ns, &bed.world.server().ns);
    let line = format!(
        "link add name late0 type veth peer name late0 netns {}",
        server.name()
    );
    client.ip(&line).expect("a cable");
    for (ns, last) in [(client, 1), (server, 2)] {
        ns.run("ethtool", "-K late0 tso off gso off gro off")
            .expect("ethtool");
        ns.ip(&format!("addr add 10.78.0.{last}/24 dev late0"))
            .expect("an address");
        ns.ip("link set late0 up").expect("up");
    }
    let late = "10.78.0.2:5002".parse().expect("an address");
    let _sink = traffic::start_now(bed.world.server(), &Tcp::listen(late).sink()).expect("a sink");
    let life = RunOptions::at_once();
    for to in [to, late] {
        parent
            .traffic(&Tcp::connect(to, 2).source(), life)
            .expect("a child");
    }
    // The daemon may notice the late interface after its first packet, so windows are measured
    // until one is within the limit.
    let both = |settle| {
        let (records, from, to) = bed
            .records(&["eth0", "late0"], settle, 1.5)
            .expect("records");
        [0, 1].map(|i| records[i].rate(wire::inbound, from, to))
    };
    let until = Instant::now() + EVENT_TIMEOUT;
    let [mut old, mut new] = both(0.5);
    while (old + new > 4.12e6 || new == 0.0) && Instant::now() < until {
        [old, new] = both(0.0);
    }
    assert!(new > 0.0, "nothing passed the late one");
    bed.assert_limited(old + new, R4M, "both interfaces");
}

#[test]
fn repeated_deletion_is_reported_and_the_next_change_repairs_again() {
    let bed = TestBed::new().expect("a test bed");
    let program = start_limited(&bed);
    let ns = &bed.world.client().ns;
    let there = || ns.ip("link show nn0").is_ok();
    for time in 1..=3 {
        ns.ip("link del nn0").expect("our own pair is there");
        // An answer of the daemon after the pair is there shows that the repair is complete: a pair
        // that is deleted during a repair does not count as another time.
        let log = || bed.run_ok("log").stdout;
        let again = || there() && log().matches("restoring it").count() >= time;
        let is_back = becomes_true(again);
        let state = if there() { "back" } else { "gone" };
        assert!(is_back, "time {time}: it is {state}: {}", log());
    }
    ns.ip("link del nn0").expect("our own pair is there");
    let says = || bed.run_ok("log").stdout.contains("keeps removing");
    assert!(becomes_true(says), "{}", bed.run_ok("log").stdout);
    assert!(!there(), "it is fought over");
    let shown = bed.target(&format!("pid:{}", program.pid()));
    assert_ne!(shown["degraded"], serde_json::json!([]), "{shown}");
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    // TCP retries slowly after it lost everything for seconds; a new connection sends at once.
    drop(program);
    let to = bed.server(5001);
    let flows = Tcp::connect(to, 2).source().rate(WANTED);
    let another = traffic::start_now(bed.world.client(), &flows).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 4mbit", another.pid()));
    await_limited_again(&bed, "after another change");
    let shown = bed.target(&format!("pid:{}", another.pid()));
    assert_eq!(shown["degraded"], serde_json::json!([]), "{shown}");
}
