//! Tests what a deadline of a direct flow changes on its link, on real packets: the filter above
//! the kernel's classes.

use std::time::{Duration, Instant};

use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{self, Direct, RunOptions, Udp};
use netnice_lab::world::Family;

const LINK: f64 = 100_000_000.0;

fn test_bed() -> TestBed {
    let bed = TestBed::new().expect("a test bed");
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    bed
}

/// The qdiscs of the client's port: `tbf` first if a filter stands above the classes.
fn qdiscs(bed: &TestBed) -> String {
    let client = bed.world.client();
    let device = &client.port().device;
    client.ns.tc(&format!("qdisc show dev {device}")).expect("tc")
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
    found.contains("qdisc tbf 4e42: root") && found.contains("qdisc htb 4e10: parent 4e42:1")
}

fn is_plain(found: &str) -> bool {
    found.contains("qdisc htb 4e10: root") && !found.contains("4e42")
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
    let (begin, end) = (sent.started_ns + 1_000_000_000, sent.started_ns + 2_900_000_000);
    got.received_rate(begin, end).expect("a rate")
}

/// A flow without a deadline leaves the classes as they are. A cell puts the filter above them; the
/// kernel path keeps its rate, also under a daemon that was started anew; and with the cell the
/// filter goes.
#[test]
fn a_deadline_puts_a_filter_above_the_classes() {
    let mut bed = test_bed();
    let flow = |bed: &TestBed, port: u16, contract: &str| {
        let from = at(bed.world.client(), Family::V4, port);
        let to = at(bed.world.server(), Family::V4, port);
        let source = Direct::source(from, to).by(bed.netnice.runtime());
        traffic::start_now(bed.world.client(), &source.contract(contract)).expect("a flow")
    };
    let plain = flow(&bed, 7100, "min 1mbit");
    wait_for_qdiscs(&bed, "a minimum alone", is_plain);
    let cell = flow(&bed, 7101, "cell pcr=2mbit,cdvt=5ms");
    wait_for_qdiscs(&bed, "with a cell", is_paced);
    let rate = flood(&bed, 7102);
    assert!(rate >= 0.3 * LINK && rate <= LINK, "{rate:.0} bit/s below the filter");
    bed.netnice.kill_daemon();
    bed.netnice.start_daemon().expect("a daemon");
    wait_for_qdiscs(&bed, "after a restart", is_paced);
    drop(cell);
    wait_for_qdiscs(&bed, "without a cell", is_plain);
    drop(plain);
    let rate = flood(&bed, 7103);
    assert!(rate >= 0.5 * LINK && rate <= LINK, "{rate:.0} bit/s without a filter");
}
