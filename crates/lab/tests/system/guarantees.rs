//! Tests guarantees on a link: they are kept against all other traffic, other programs use an
//! unused share, and a request that does not fit is refused with the reason. The experiment
//! `guarantees` judges exact rates.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use netnice_lab::experiment::bench::{pause, wait_until};
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::stats;
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, ParentProcess, RunOptions, Running, Tcp, Udp, real_programs};
use netnice_lab::wire::{self, Record, WireFlow};
use netnice_lab::world::{Cable, Family, Pair, World};
use serde_json::Value;

/// Rate in bit/s of the link of these tests, slow enough for an emulated machine. A has a minimum
/// of 6 Mbit/s, B of 2 Mbit/s, and C none.
const LINK: f64 = 10e6;
const PORTS: [u16; 3] = [5001, 5002, 5003];
const MS: u64 = 1_000_000;

/// Fails unless a program got its minimum, relative to what the link carried in the same seconds. A
/// busy or emulated machine may carry less than the link's rate; the minimum is then the same share
/// of less. 5 % less than the minimum passes, because the machine is shared with other tests; the
/// experiment `guarantees` judges 1 %.
fn assert_reserved(name: &str, got: f64, min: f64, carried: f64, link: f64) {
    assert!(
        is_reserved(got, min, carried, link),
        "{name}: {got:.0} of {carried:.0} bit/s with a minimum of {min} on a link of {link}"
    );
}

fn is_reserved(got: f64, min: f64, carried: f64, link: f64) -> bool {
    got >= 0.95 * min / link * carried
}

/// A record, and the begin and end of a window of it in which the link was used and each of these
/// programs had its minimum (program, bit/s). A program that is starved for a while does not use
/// its minimum, so windows are repeated. If none fits for [`EVENT_TIMEOUT`], the last one is
/// returned, and the callers' checks fail.
fn window(bed: &TestBed, minimums: &[(usize, f64)]) -> (Record, u64, u64) {
    let had = bed.record_until(1.0, 1.5, |record, from, until| {
        let total = record.rate(wire::inbound, from, until);
        let is_reserved = |(program, min): &(usize, f64)| {
            is_reserved(record.rate(of(*program), from, until), *min, total, LINK)
        };
        total >= 0.5 * LINK && minimums.iter().all(is_reserved)
    });
    had.expect("a record")
}

/// Fails unless the link carried at most 3 % over its rate, and at least half of it, below which
/// nothing can be said about minimums. The experiment `guarantees` judges that 98 % of the link are
/// used.
fn assert_carried(total: f64, link: f64) {
    assert!(
        (0.5..=1.03).contains(&(total / link)),
        "{total:.0} bit/s on a link of {link}"
    );
}

fn of(program: usize) -> impl Fn(&WireFlow) -> bool + Copy {
    move |flow| wire::inbound(flow) && flow.target.1 == PORTS[program]
}

/// A with one flow, B with four, and C with a UDP flood and eight flows.
struct Programs {
    bed: TestBed,
    a: Running,
    b: Running,
    _c: ParentProcess,
}

fn programs() -> Programs {
    let bed = TestBed::new().expect("a test bed");
    let to = PORTS.map(|port| bed.sink(port).expect("a sink"));
    let client = bed.world.client();
    bed.run_ok("link eth0 --rate 10mbit");
    let a = traffic::start_now(client, &Tcp::connect(to[0], 1).source()).expect("A");
    let b = traffic::start_now(client, &Tcp::connect(to[1], 4).source()).expect("B");
    let mut c = ParentProcess::start(client).expect("C");
    let options = RunOptions::at_once();
    let flood = Udp::source(bed.client(6003), to[2]).rate(30_000_000);
    c.traffic(&Tcp::connect(to[2], 8).source(), options)
        .expect("C's flows");
    c.traffic(&flood, options).expect("C's flood");
    bed.run_ok(&format!("set pid:{} --min 6mbit", a.pid()));
    bed.run_ok(&format!("set pid:{} --min 2mbit", b.pid()));
    Programs { bed, a, b, _c: c }
}

#[test]
fn minimums_hold_against_a_flood_and_others_use_an_idle_one() {
    let programs = programs();
    let (record, from, until) = window(&programs.bed, &[(0, 6e6), (1, 2e6)]);
    let before = record.rate(wire::inbound, from, until);
    assert_carried(before, LINK);
    for (program, name, min) in [(0, "A", 6e6), (1, "B", 2e6)] {
        assert_reserved(
            name,
            record.rate(of(program), from, until),
            min,
            before,
            LINK,
        );
    }
    // The stopped A is alive and holds its minimum, but sends nothing more. The kernel still sends
    // the data in its socket.
    sys::kill(programs.a.pid() as i32, libc::SIGSTOP).expect("a signal");
    let silent = || {
        let (record, from, until) = programs.bed.record(0.0, 0.3).expect("a record");
        record.bytes(of(0), from, until) == 0
    };
    assert!(becomes_true(silent), "A does not fall silent");
    // Others must use A's share of six tenths. The experiment `guarantees` judges 98 % of the link
    // from 200 ms on.
    let (record, from, until) = programs
        .bed
        .record_with_rate(0.5 * LINK, 0.3, 1.0)
        .expect("a record");
    let total = record.rate(wire::inbound, from, until);
    assert_carried(total, LINK);
    assert!(
        total >= 0.8 * before,
        "{total:.0} bit/s while A is silent, {before:.0} before: its share lies idle"
    );
    assert_eq!(record.bytes(of(0), from, until), 0, "A was not silent");
    sys::kill(programs.a.pid() as i32, libc::SIGCONT).expect("a signal");
    let shown = programs.bed.target(&format!("pid:{}", programs.b.pid()));
    assert_eq!(shown["degraded"], serde_json::json!([]), "{shown}");
    assert_eq!(shown["effective"]["min"], 2_000_000, "{shown}");
}

#[test]
fn the_left_over_is_shared_by_weight_for_any_number_of_flows() {
    let bed = TestBed::new().expect("a test bed");
    let client = bed.world.client();
    bed.run_ok("link eth0 --rate 10mbit");
    let mut programs = Vec::new();
    for (port, flows, weight) in [(5001, 1, 300), (5002, 16, 100)] {
        let to = bed.sink(port).expect("a sink");
        let flows = Tcp::connect(to, flows).source();
        let program = traffic::start_now(client, &flows).expect("a program");
        bed.run_ok(&format!("set pid:{} --weight {weight}", program.pid()));
        programs.push(program);
    }
    let (record, from, until) = bed.record(1.0, 2.0).expect("a record");
    let [a, b] = [of(0), of(1)].map(|of| record.rate(of, from, until));
    let share = a / (a + b);
    // If shared by flows it would be a seventeenth, without weights a half. The experiment
    // `weights` judges 5 %.
    assert!(
        (0.65..=0.85).contains(&share),
        "{:.0} % for a weight of three quarters",
        share * 100.0
    );
}

/// What three programs get of a link that each of them alone would fill: `first` with the priority
/// 0, `last` with 7, and `kept` with 7 and a minimum of 2 Mbit/s.
struct Order {
    bed: TestBed,
    first: Vec<Running>,
    _others: Vec<Running>,
}

fn order() -> Order {
    let bed = TestBed::new().expect("a test bed");
    let client = bed.world.client();
    let to = PORTS.map(|port| bed.sink(port).expect("a sink"));
    bed.run_ok("link eth0 --rate 10mbit");
    // The first sends without regard to losses, and has flows of TCP too. The others have more
    // flows than it.
    let flood = Udp::source(bed.client(6001), to[0]).rate(8_000_000);
    let tcp = Tcp::connect(to[0], 4).source();
    let first = vec![
        traffic::start_now(client, &flood).expect("a flood"),
        traffic::start_now(client, &tcp).expect("flows"),
    ];
    let mut others = Vec::new();
    for to in &to[1..] {
        let tcp = Tcp::connect(*to, 8).source();
        others.push(traffic::start_now(client, &tcp).expect("flows"));
    }
    for program in &first {
        bed.run_ok(&format!("set pid:{} --priority 0", program.pid()));
    }
    bed.run_ok(&format!("set pid:{} --priority 7", others[0].pid()));
    bed.run_ok(&format!(
        "set pid:{} --priority 7 --min 2mbit",
        others[1].pid()
    ));
    Order {
        bed,
        first,
        _others: others,
    }
}

#[test]
fn the_left_over_goes_to_the_first_priority_and_minimums_are_kept() {
    let order = order();
    // The first has all but the minimum, the minimum is kept, and the last has next to nothing:
    // 3 % of the link, which includes packets sent again and what the kernel assures every class.
    let had = order.bed.record_until(1.0, 1.5, |record, from, until| {
        let rate = |program| record.rate(of(program), from, until);
        rate(1) <= 0.03 * LINK && rate(2) >= 0.95 * 2e6 && rate(0) >= 0.95 * 8e6
    });
    let (record, from, until) = had.expect("a record");
    let [first, last, kept] = [0, 1, 2].map(|program| record.rate(of(program), from, until));
    assert_carried(first + last + kept, LINK);
    assert!(
        last <= 0.03 * LINK && kept >= 0.95 * 2e6 && first >= 0.95 * 8e6,
        "first {first:.0}, minimum {kept:.0}, last {last:.0} bit/s"
    );
    // Without the first, the last is not starved.
    drop(order.first);
    let served = || {
        let (record, from, until) = order.bed.record(0.5, 1.0).expect("a record");
        record.rate(of(1), from, until) >= 0.2 * LINK
    };
    assert!(
        becomes_true(served),
        "nothing for the last priority of an idle link"
    );
}

/// The median round trip in ms of `count` pings on a link of 4 Mbit/s that its own bulk flows fill,
/// beside a busy larger link.
fn ping_on_a_small_link(count: u32) -> f64 {
    let bed = TestBed::with(Pair {
        cables: 2,
        ..Pair::default()
    })
    .expect("a test bed");
    let (client, server) = (bed.world.client(), bed.world.server());
    bed.run_ok("link eth0 --rate 20mbit");
    bed.run_ok("link eth1 --rate 4mbit");
    let mut busy = Vec::new();
    for port in [0, 1] {
        let to = SocketAddr::new(server.ports[port].v4.into(), 5001);
        busy.push(traffic::start_now(server, &Tcp::listen(to).sink()).expect("a sink"));
        busy.push(traffic::start_now(client, &Tcp::connect(to, 8).source()).expect("a program"));
    }
    pause(1.0);
    let to = server.ports[1].v4.into();
    let mut ping =
        real_programs::ping(client, to, Duration::from_millis(20), count).expect("a ping");
    // The lines end with the ping.
    let lines = ping.remaining_lines(EVENT_TIMEOUT);
    let times = real_programs::Pings::parse(lines.iter().map(String::as_str)).times();
    let answers = times.len();
    assert!(
        answers * 10 >= count as usize * 9,
        "{answers} answers to {count}"
    );
    stats::median(&times)
}

#[test]
fn a_ping_on_a_small_link_does_not_wait_for_a_busy_large_link() {
    // Behind all bulk packets in one queue a ping takes a second. On a busy or emulated machine the
    // round trip alone takes some time.
    let median = ping_on_a_small_link(50);
    assert!(median <= 300.0, "median {median:.2} ms");
}

#[test]
#[ignore = "judges milliseconds, which needs a quiet machine; part of make test-long"]
fn a_ping_on_a_small_link_takes_at_most_5_ms() {
    let median = ping_on_a_small_link(150);
    assert!(median <= 5.0, "median {median:.2} ms");
}

#[test]
fn a_ceiling_and_a_minimum_of_one_program_hold_together() {
    let programs = programs();
    let pid = programs.a.pid();
    programs
        .bed
        .run_ok(&format!("set pid:{pid} --min 4mbit --up 5mbit"));
    let (record, from, until) = window(&programs.bed, &[(0, 4e6)]);
    let got = record.rate(of(0), from, until);
    let total = record.rate(wire::inbound, from, until);
    assert_carried(total, LINK);
    assert_reserved("A", got, 4e6, total, LINK);
    assert!(got <= 5e6 * 1.03, "{got:.0} bit/s in a limit of 5 Mbit/s");
}

#[test]
fn a_receive_minimum_holds_on_a_full_cable() {
    netnice_lab::world::begin().expect("a clean start");
    // The cable must carry its rate, or the queue is on its side. Timers of an emulated machine are
    // several milliseconds late.
    let cable = Cable {
        burst_us: 20_000,
        ..Cable::rated("client", LINK as u64, 20)
    };
    let world = World::switched(&[cable, Cable::free("server")]).expect("a world");
    let netnice = world.netnice("client").expect("a daemon");
    let (client, server) = (world.client(), world.server());
    netnice
        .run_line("link eth0 --rate 10mbit --down-rate 10mbit")
        .expect("a link");
    let mut sources = Vec::new();
    let mut sinks = Vec::new();
    for (port, flows) in [(5001, 1), (5002, 8)] {
        let to = SocketAddr::new(server.address(Family::V4), port);
        sources.push(traffic::start_now(server, &Tcp::listen(to).source()).expect("a source"));
        sinks.push(traffic::start_now(client, &Tcp::connect(to, flows).sink()).expect("a sink"));
    }
    let line = format!("set pid:{} --min-down 6mbit", sinks[0].pid());
    netnice.run_line(&line).expect("it fits");
    // A flow that had a ninth of the rate needs time to grow, longer on an emulated machine. The
    // windows of two seconds begin when `show` first reports a rate near the minimum.
    let first = format!("pid:{}", sinks[0].pid());
    let most = Cell::new(0);
    let grown = becomes_true(|| {
        // On an emulated machine `netnice show` takes much of the processor from the flows.
        pause(1.0);
        let shown = netnice.show().expect("a show");
        let targets = shown["targets"].as_array().into_iter().flatten();
        let mut first = targets.filter(|target| target["target"] == *first);
        let rate = first.find_map(|target| target["counters"]["down_rate"].as_u64());
        most.set(most.get().max(rate.unwrap_or_default()));
        most.get() >= 5_000_000
    });
    assert!(
        grown,
        "the first never comes near its minimum: at most {} bit/s; {}",
        most.get(),
        netnice.show().expect("a show")
    );
    let from = sys::now_ns();
    wait_until(from + 4100 * MS);
    let reports: Vec<_> = sinks
        .into_iter()
        .map(|sink| sink.stop().expect("it reports"))
        .collect();
    let windows = (0..=8).map(|step| {
        let from = from + step * 250 * MS;
        let rates = reports
            .iter()
            .map(|report| report.received_rate(from, from + 2000 * MS));
        rates.map(|rate| rate.expect("samples span it")).collect()
    });
    // The window in which the cable carried most, because the machine may starve the senders.
    let rates: Vec<f64> = windows
        .max_by(|a: &Vec<f64>, b| a.iter().sum::<f64>().total_cmp(&b.iter().sum()))
        .expect("windows");
    let total: f64 = rates.iter().sum();
    // A managed link's receive stage is limited to 97 % of the link, so that the queue is on this
    // side.
    assert_carried(total, LINK * 0.97);
    assert_reserved("the first", rates[0], 6e6, total, LINK * 0.97);
}

/// The output of tc and ip on the client, without counters.
fn kernel_state(bed: &TestBed) -> Vec<String> {
    let ns = &bed.world.client().ns;
    let mut lines = Vec::new();
    let mut ask = |program: &str, words: &str| {
        let text = ns.run(program, words).expect("it answers");
        // fq_codel lists the flows with waiting packets as its classes.
        let lasting = text.lines().filter(|line| !line.contains("class fq_codel"));
        lines.extend(lasting.map(str::to_owned));
    };
    ask("tc", "qdisc show");
    ask("ip", "-o link");
    for device in ["eth0", "nn0"] {
        ask("tc", &format!("class show dev {device}"));
        for hook in ["ingress", "egress"] {
            ask("tc", &format!("filter show dev {device} {hook}"));
        }
    }
    lines
}

#[test]
fn a_refusal_changes_nothing_in_show_nor_in_the_kernel() {
    let bed = TestBed::new().expect("a test bed");
    let (a, b) = (bed.sleeper(), bed.sleeper());
    bed.run_ok("link eth0 --rate 100mbit --down-rate 100mbit");
    let holder = format!("pid:{}", a.pid());
    bed.run_ok(&format!("set {holder} --min 60mbit --up 80mbit"));
    // A target without traffic gives up its share of the left-over; the test waits until this has
    // happened.
    let state = || {
        let shown = bed.netnice.show_without_counters().expect("a show");
        (shown, kernel_state(&bed))
    };
    let unchanged_for_a_second = || {
        let before = state();
        pause(1.0);
        before == state()
    };
    assert!(
        becomes_true(unchanged_for_a_second),
        "the state does not settle"
    );
    let before = state();
    let said = bed.run_with_status(&format!("set pid:{} --min 50mbit --up 90mbit", b.pid()), 3);
    assert_eq!(before, state());
    for word in [
        "eth0",
        "100 Mbit/s",
        "operator",
        &holder,
        "60 Mbit/s",
        "40 Mbit/s",
    ] {
        assert!(
            said.stderr.contains(word),
            "nothing of {word}: {}",
            said.stderr
        );
    }
    // The largest minimum that the refusal offers is granted.
    bed.run_ok(&format!("set pid:{} --min 40mbit --up 90mbit", b.pid()));
}

#[test]
fn a_refusal_says_that_the_capacity_comes_from_the_driver() {
    let bed = TestBed::new().expect("a test bed");
    let a = bed.sleeper();
    bed.run_ok("link eth0");
    let shown = bed.netnice.show().expect("a show");
    let up = &shown["links"][0]["up"];
    assert_eq!(up["source"], "driver", "{shown}");
    let rate = up["rate"].as_u64().expect("a rate in bit/s");
    let line = format!("set pid:{} --min {}bit", a.pid(), rate + 1_000_000);
    let said = bed.run_with_status(&line, 3).stderr;
    assert!(said.contains("driver"), "{said}");
    let nothing: Value = serde_json::json!([]);
    assert_eq!(
        bed.netnice.show().expect("a show")["targets"],
        nothing,
        "something is held after a refusal"
    );
}
