//! Tests what belongs to deadlines of direct flows, on real packets: the filter above the kernel's
//! classes, the horizon of a link, stops in the policy, and the code points that drivers write.

use std::time::{Duration, Instant};

use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Direct, RunOptions, Udp};
use netnice_lab::world::Family;

use crate::dscp::marks;

const LINK: f64 = 100_000_000.0;
/// Payload bytes of the longest datagram, which is a message.
const PAYLOAD: u64 = 1_472;

fn test_bed() -> TestBed {
    let bed = TestBed::new().expect("a test bed");
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    bed
}

/// The qdiscs of the client's port.
fn qdiscs(bed: &TestBed) -> String {
    let client = bed.world.client();
    let device = &client.port().device;
    client
        .ns
        .tc(&format!("qdisc show dev {device}"))
        .expect("tc")
}

fn wait_for_qdiscs(bed: &TestBed, what: &str, holds: impl Fn(&str) -> bool) {
    let until = Instant::now() + EVENT_TIMEOUT;
    loop {
        let found = qdiscs(bed);
        if holds(&found) {
            return;
        }
        assert!(Instant::now() < until, "{what}: {found}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_paced(found: &str) -> bool {
    filter(found).is_some_and(|filter| !filter.contains("rate 1Tbit"))
}

fn is_open(found: &str) -> bool {
    filter(found).is_some_and(|filter| filter.contains("rate 1Tbit"))
}

/// The line of the filter above the classes; `None` without classes below it.
fn filter(found: &str) -> Option<&str> {
    let has_classes = found.contains("qdisc htb 4e10: parent 4e42:1");
    let mut lines = found.lines().filter(|_| has_classes);
    lines.find(|line| line.contains("qdisc tbf 4e42: root"))
}

/// The rate that a kernel flood has at the server, in bit/s.
fn flood(bed: &TestBed, port: u16) -> f64 {
    let from = at(bed.world.client(), Family::V4, port);
    let to = at(bed.world.server(), Family::V4, port);
    let sink = traffic::start_now(bed.world.server(), &Udp::sink(to)).expect("a sink");
    let lasting = RunOptions {
        at_once: true,
        lasts: Some(Duration::from_secs(3)),
        ..RunOptions::default()
    };
    let source = Udp::source(from, to);
    let source = traffic::start(bed.world.client(), &source, lasting).expect("a flood");
    let sent = source.report(EVENT_TIMEOUT).expect("a report");
    let got = sink.stop().expect("a report");
    let (begin, end) = (
        sent.started_ns + 1_000_000_000,
        sent.started_ns + 2_900_000_000,
    );
    got.received_rate(begin, end).expect("a rate")
}

/// A flow without a deadline leaves the filter above the classes open. A cell gives it a rate; the
/// kernel path keeps its own, also under a daemon that was started anew; and with the cell the
/// filter is open again.
#[test]
fn a_deadline_closes_the_filter_above_the_classes() {
    let mut bed = test_bed();
    let flow = |bed: &TestBed, port: u16, contract: &str| {
        let from = at(bed.world.client(), Family::V4, port);
        let to = at(bed.world.server(), Family::V4, port);
        let source = Direct::source(from, to).by(bed.netnice.runtime());
        traffic::start_now(bed.world.client(), &source.contract(contract)).expect("a flow")
    };
    let plain = flow(&bed, 7100, "min 1mbit");
    wait_for_qdiscs(&bed, "a minimum alone", is_open);
    let cell = flow(&bed, 7101, "cell pcr=2mbit,cdvt=5ms");
    wait_for_qdiscs(&bed, "with a cell", is_paced);
    let rate = flood(&bed, 7102);
    assert!(
        (0.3 * LINK..=1.03 * LINK).contains(&rate),
        "{rate:.0} bit/s below the filter"
    );
    bed.netnice.kill_daemon();
    bed.netnice.start_daemon().expect("a daemon");
    wait_for_qdiscs(&bed, "after a restart", is_paced);
    drop(cell);
    wait_for_qdiscs(&bed, "without a cell", is_open);
    drop(plain);
    let rate = flood(&bed, 7103);
    assert!(
        (0.5 * LINK..=1.03 * LINK).contains(&rate),
        "{rate:.0} bit/s below an open filter"
    );
}

/// The packets of a flow carry the code point of its contract, whatever it was before, with right
/// checksums and in both families; those of a flow of another kind carry theirs. A new policy holds
/// from the next packet on.
#[test]
fn drivers_write_the_code_point_of_the_contract() {
    let bed = test_bed();
    let policy = |text: &str| {
        std::fs::write(bed.netnice.policy(), text).expect("a policy");
        bed.run_ok("reload");
    };
    let flow = |family: Family, port: u16, contract: &str| {
        let from = at(bed.world.client(), family, port);
        let to = at(bed.world.server(), family, port);
        let source = Direct::source(from, to)
            .by(bed.netnice.runtime())
            .rate(4_000_000);
        traffic::start_now(bed.world.client(), &source.contract(contract)).expect("a flow")
    };
    let assert_marked = |port: u16, dscp: u8| {
        let reached = becomes_true(|| {
            let marks = marks(&bed, move |flow| flow.target.1 == port);
            assert!(marks.iter().all(|mark| mark.valid_checksum), "{marks:?}");
            !marks.is_empty() && marks.iter().all(|mark| mark.dscp == dscp)
        });
        assert!(reached, "port {port} does not carry {dscp} alone");
    };
    policy("[dscp]\ncell = \"EF\"\nmin = \"AF21\"\n");
    let _cell = flow(Family::V4, 7110, "cell pcr=2mbit,cdvt=5ms");
    let _min = flow(Family::V6, 7111, "min 1mbit");
    let _plain = flow(Family::V4, 7112, "weight 100");
    assert_marked(7110, 46);
    assert_marked(7111, 18);
    assert_marked(7112, 0);
    policy("[dscp]\ncell = \"CS5\"\nbest-effort = \"LE\"\n");
    assert_marked(7110, 40);
    assert_marked(7111, 0);
    assert_marked(7112, 1);
}

/// With a horizon, the messages of a channel leave so much earlier than their rate allows, and no
/// more: in the same time, as many more as belong to the horizon.
#[test]
fn a_horizon_lets_messages_leave_early() {
    let bed = test_bed();
    let device = bed.world.client().port().device.clone();
    let sent = |port: u16| {
        let from = at(bed.world.client(), Family::V4, port);
        let to = at(bed.world.server(), Family::V4, port);
        let sink = traffic::start_now(bed.world.server(), &Udp::sink(to)).expect("a sink");
        let contract = "channel mmax=1514,rmax=10/s,bmax=4,deadline=50ms";
        let source = Direct::source(from, to).by(bed.netnice.runtime());
        let lasting = RunOptions {
            at_once: true,
            lasts: Some(Duration::from_secs(3)),
            ..RunOptions::default()
        };
        let source = traffic::start(bed.world.client(), &source.contract(contract), lasting);
        source
            .expect("a flow")
            .report(EVENT_TIMEOUT)
            .expect("a report");
        sink.stop().expect("a report").received / PAYLOAD
    };
    let in_time = sent(7120);
    bed.run_ok(&format!("link {device} --horizon 1s"));
    let shown = bed.run_ok("show").stdout;
    assert!(
        shown.contains("packets of channels leave up to 1s early"),
        "{shown}"
    );
    let early = sent(7121);
    // 10 messages belong to 1 s; the programs' own time differs by some.
    assert!((28..=34).contains(&in_time), "{in_time} messages in 3 s");
    assert!(
        (in_time + 7..=in_time + 13).contains(&early),
        "{early}, after {in_time}"
    );
    bed.run_with_status(&format!("link {device} --horizon 2s"), 2);
}

/// Stops in the policy enter admission: a deadline shorter than a stop is refused, with the stops
/// and what would fit.
#[test]
fn stops_of_the_policy_enter_admission() {
    let bed = test_bed();
    let open = |port: u16, contract: &str| {
        let from = at(bed.world.client(), Family::V4, port);
        let to = at(bed.world.server(), Family::V4, port);
        let source = Direct::source(from, to).by(bed.netnice.runtime());
        let lasting = RunOptions {
            at_once: true,
            lasts: Some(Duration::from_millis(200)),
            ..RunOptions::default()
        };
        let running = traffic::start(bed.world.client(), &source.contract(contract), lasting);
        running.and_then(|running| running.report(EVENT_TIMEOUT))
    };
    let contract = "channel mmax=1514,rmax=10/s,bmax=1,deadline=3ms";
    open(7130, contract).expect("it fits without stops");
    std::fs::write(bed.netnice.policy(), "stops = \"5ms/100ms\"\n").expect("a policy");
    bed.run_ok("reload");
    let error = format!(
        "{:#}",
        open(7131, contract).expect_err("shorter than a stop")
    );
    assert!(error.contains("5ms/100ms, of the policy"), "{error}");
    assert!(error.contains("a deadline of at least"), "{error}");
    open(7132, "channel mmax=1514,rmax=10/s,bmax=1,deadline=9ms").expect("longer than a stop");
    std::fs::write(bed.netnice.policy(), "stops = \"100ms/5ms\"\n").expect("a policy");
    let log = bed.netnice.run(&["reload"]).expect("it runs");
    assert_ne!(log.status, 0);
    assert!(
        log.stderr
            .contains("stops of 100ms in every 5ms leave no time"),
        "{}",
        log.stderr
    );
}
