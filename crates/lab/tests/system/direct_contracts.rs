//! Tests the contracts of direct flows as programs ask for them through the daemon, judged by the
//! packets that arrive at the other end of the cable: cells with both buckets, limits with a burst,
//! weights, minimums, and the classes of a link's overbooked server. (`direct_lending` tests slices
//! with and without `extra`, and `direct_programs` a slice.)
//!
//! Flows are compared in the same seconds, so that a busy machine changes what each of them sends
//! and not their ratio. Where a bound is near the promise, the share of the time that is stolen
//! from the processors (`stolen`) is allowed for.

use std::path::PathBuf;

use netnice_lab::alibi::StolenTime;
use netnice_lab::experiment::bench::{at, pause};
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Direct, Running, Udp};
use netnice_lab::wire::Tap;
use netnice_lab::world::Family;
use serde_json::Value;

/// A test bed with a link of this rate.
fn test_bed(rate: &str) -> TestBed {
    let bed = TestBed::new().expect("a test bed");
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate {rate}"));
    bed
}

/// The managed link of the test bed.
fn device(bed: &TestBed) -> String {
    bed.world.client().port().device.clone()
}

/// A flow that always has something to send, and its receiver.
struct Flow {
    source: Running,
    sink: Running,
}

/// Opens a flow for each contract; they send when [`go`] is called.
fn open(bed: &TestBed, port: u16, contracts: &[&str]) -> Vec<Flow> {
    let ports = port..;
    let open = |(port, contract): (u16, &&str)| {
        let from = at(bed.world.client(), Family::V4, port);
        let to = at(bed.world.server(), Family::V4, port);
        let sink = traffic::start_now(bed.world.server(), &Udp::sink(to)).expect("a sink");
        let source = Direct::source(from, to)
            .by(bed.netnice.runtime())
            .size(1200);
        let source = source.contract(contract);
        let source = traffic::start_waiting(bed.world.client(), &source).expect("a flow");
        Flow { source, sink }
    };
    ports.zip(contracts).map(open).collect()
}

fn go(flows: &mut [Flow]) {
    for flow in flows {
        flow.source.go().expect("it sends");
    }
}

/// Ends the flows. The result is the rate of each in Mbit/s, in each of the spans (begin and end as
/// wall-clock ns).
fn rates(flows: Vec<Flow>, spans: &[(u64, u64)]) -> Vec<Vec<f64>> {
    let ended = flows.into_iter().map(|flow| {
        drop(flow.source.stop().expect("a report"));
        let got = flow.sink.stop().expect("a report");
        let rate = |(begin, end): &(u64, u64)| got.received_rate(*begin, *end);
        let rates = spans.iter().map(|span| rate(span).expect("a rate") / 1e6);
        rates.collect()
    });
    ended.collect()
}

/// The rate of each flow in Mbit/s, from 1 s to 4 s after their start.
fn measured(bed: &TestBed, port: u16, contracts: &[&str]) -> Vec<f64> {
    let mut flows = open(bed, port, contracts);
    go(&mut flows);
    let span = span(1.0, 3.0);
    rates(flows, &[span]).into_iter().map(|of| of[0]).collect()
}

/// Waits for `settle` s, and then for `length` s. Returns begin and end of the latter.
fn span(settle: f64, length: f64) -> (u64, u64) {
    pause(settle);
    let begin = now_ns();
    pause(length);
    let end = now_ns();
    // A report has samples of every 10 ms; the last one is behind the span.
    pause(0.1);
    (begin, end)
}

fn now_ns() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_nanos() as u64
}

fn close(a: f64, b: f64, percent: f64) -> bool {
    (a - b).abs() <= b * percent / 100.0
}

/// Captures a flow with this contract for 3 s at the receiver. Returns the capture and the times of
/// its packets in ns.
fn captured(bed: &TestBed, port: u16, contract: &str) -> (PathBuf, Vec<u64>) {
    let server = bed.world.server();
    let file = bed.world.folder().join(format!("{port}.pcap"));
    let only = move |flow: &netnice_lab::wire::WireFlow| flow.inbound && flow.target.1 == port;
    let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, only);
    let tap = tap.expect("a tap");
    let mut flows = open(bed, port, &[contract]);
    go(&mut flows);
    pause(3.0);
    let record = tap.stop(&server.ns).expect("a record");
    record.validate().expect("a valid record");
    rates(flows, &[]);
    let times = record.times(|flow| flow.target.1 == port);
    (file, times)
}

/// With the single bucket a cell goes on at the sustained rate when its burst is spent; with the
/// dual one it is silent until the bucket is full. The policer finds no violation in either.
#[test]
fn a_cell_keeps_its_sustained_rate_with_both_buckets() {
    let bed = test_bed("100mbit");
    let silences = |port: u16, bucket: &str| {
        let cell = format!("pcr=20mbit,cdvt=5ms,scr=10mbit,mbs=30kB,bucket={bucket}");
        let (file, times) = captured(&bed, port, &format!("cell {cell}"));
        // The time stamps of the receiver are late by what its interrupts take.
        let check = format!("check {} --cell {cell} --tolerance 1ms", file.display());
        bed.run_ok(&check);
        let (first, last) = (times[times.len() / 5], times[times.len() - 1]);
        let sent = (times.len() - times.len() / 5 - 1) as f64 * 1242.0 * 8.0;
        let rate = sent / ((last - first) as f64 / 1e9) / 1e6;
        assert!((7.0..=10.3).contains(&rate), "{bucket}: {rate:.2} Mbit/s");
        let gaps = times.windows(2).map(|two| two[1] - two[0]);
        gaps.filter(|gap| *gap > 6_000_000).count()
    };
    let (single, dual) = (silences(7101, "single"), silences(7102, "dual"));
    // A cycle of burst and silence takes 24 ms.
    assert!(dual >= 60, "{dual} silences with the dual bucket");
    assert!(
        single <= dual / 2,
        "{single} silences with the single bucket, {dual} with the dual"
    );
}

/// A limit lets its burst pass at once, and then its rate.
#[test]
fn a_limit_of_a_flow_has_its_burst() {
    let bed = test_bed("100mbit");
    let (file, times) = captured(&bed, 7110, "up 10mbit burst 20ms");
    bed.run_ok(&format!(
        "check {} --up 10mbit --burst 20ms --tolerance 1ms",
        file.display()
    ));
    // 20 ms at 10 Mbit/s are 20 frames; at the rate alone they take 20 ms.
    let together = times.iter().filter(|time| **time < times[0] + 10_000_000);
    let together = together.count();
    assert!(together >= 15, "{together} frames in the first 10 ms");
}

/// Floods share what is left in the ratio of their weights, and a minimum is kept beside them.
#[test]
fn weights_and_minimums_of_flows_hold() {
    let bed = test_bed("40mbit");
    let stolen = StolenTime::watch();
    let shares = measured(&bed, 7120, &["weight 100", "weight 300"]);
    assert!(close(shares[1], 3.0 * shares[0], 10.0), "{shares:?}");
    let shares = measured(&bed, 7130, &["min 15mbit weight 1", "weight 1000"]);
    let stolen = stolen.share();
    let values = format!("{shares:?}, stolen: {stolen}");
    assert!(shares[0] >= 15.0 * (0.95 - stolen), "{values}");
    assert!(shares[1] >= 10.0 * (1.0 - stolen), "{values}");
}

fn link(bed: &TestBed) -> Value {
    bed.shown()["links"][0].clone()
}

/// Equal members of an overbooked class have equal parts, unequal ones keep their ratio, the lowest
/// class keeps its minimum, and a flow outside is not affected. A minimum changes while they send.
#[test]
fn an_overbooked_class_shares_in_proportion() {
    let bed = test_bed("40mbit");
    let device = device(&bed);
    bed.run_ok(&format!(
        "link {device} --class 0 --overbook --server 25ms/50ms"
    ));
    bed.run_ok(&format!("link {device} --class 1 --min 4mbit --overbook"));
    let contracts = [
        "cell pcr=10mbit,cdvt=5ms,class=0",
        "cell pcr=10mbit,cdvt=5ms,class=0",
        "cell pcr=20mbit,cdvt=5ms,class=0",
        "cell pcr=20mbit,cdvt=5ms,class=1",
        "cell pcr=8mbit,cdvt=5ms",
    ];
    let mut flows = open(&bed, 7140, &contracts);
    let server = &link(&bed)["server"];
    assert_eq!(server["slice"], "25ms/50ms", "{server}");
    let first = &server["classes"][0];
    assert_eq!(
        (&first["members"], &first["contracted"]),
        (&3.into(), &40_000_000.into())
    );
    let shown = bed.run_ok("show").stdout;
    assert!(
        shown.contains("class 0 overbooked: 3 flows, contracts 40 Mbit/s"),
        "{shown}"
    );
    assert!(
        shown.contains("class 1 min 4 Mbit/s overbooked: 1 flow"),
        "{shown}"
    );
    go(&mut flows);
    let stolen = StolenTime::watch();
    let before = span(1.0, 3.0);
    bed.run_ok(&format!("link {device} --class 1 --min 8mbit"));
    let after = span(1.0, 3.0);
    // Without the flows of the first class the second has what its contract allows.
    let rest = flows.split_off(3);
    let first = rates(flows, &[before, after]);
    let alone = span(0.5, 2.0);
    let stolen = stolen.share();
    let last = rates(rest, &[before, after, alone]);
    for (n, low) in [(0, 4.0), (1, 8.0)] {
        let of = [first[0][n], first[1][n], first[2][n]];
        let (least, outside) = (last[0][n], last[1][n]);
        let all = format!("{of:.2?}, {least:.2}, outside {outside:.2}, stolen: {stolen}");
        let apart = 4.0 + 100.0 * stolen;
        assert!(close(of[0], of[1], apart), "equal members: {all}");
        assert!(
            close(of[2], of[0] + of[1], apart),
            "twice the contract: {all}"
        );
        assert!(
            least >= low * (0.95 - stolen),
            "the minimum of the lowest class: {all}"
        );
        assert!(outside >= 8.0 * (0.97 - stolen), "a flow outside: {all}");
        let sum = of.iter().sum::<f64>() + least;
        assert!(
            (20.0 * (0.75 - stolen)..=20.6).contains(&sum),
            "the server has 20 Mbit/s: {all}"
        );
    }
    assert!(
        last[0][2] >= 20.0 * (0.75 - stolen),
        "alone in the server: {last:?}"
    );
    bed.run_ok(&format!("link {device} --class 1 --min none"));
    bed.run_ok(&format!("link {device} --class 0 --min none"));
    assert!(link(&bed)["server"].is_null());
}

/// The classes outlive the daemon, with their members; a link that becomes too slow suspends the
/// server, and its members go on as best effort.
#[test]
fn classes_outlive_the_daemon_and_are_suspended_on_a_slow_link() {
    let mut bed = test_bed("40mbit");
    let device = device(&bed);
    bed.run_ok(&format!("link {device} --class 2 --min 20mbit --overbook"));
    let contract = "cell pcr=15mbit,cdvt=5ms,class=2";
    let mut flows = open(&bed, 7150, &[contract, contract]);
    go(&mut flows);
    let before = link(&bed)["server"].clone();
    bed.netnice.kill_daemon();
    bed.netnice.start_daemon().expect("it starts again");
    let same = || link(&bed)["server"] == before;
    assert!(
        becomes_true(same),
        "{} after {before}",
        link(&bed)["server"]
    );
    // Half of the server's 20 Mbit/s each, also after the restart.
    let kept = span(1.0, 2.0);
    bed.run_ok(&format!("link {device} --rate 12mbit"));
    let suspended = || link(&bed)["server"]["suspended"].is_string();
    assert!(becomes_true(suspended), "{}", link(&bed)["server"]);
    assert!(bed.run_ok("show").stdout.contains("suspended: "));
    let slow = span(1.0, 2.0);
    bed.run_ok(&format!("link {device} --rate 40mbit"));
    let in_force = || link(&bed)["server"]["suspended"].is_null();
    assert!(becomes_true(in_force), "{}", link(&bed)["server"]);
    let again = span(1.0, 2.0);
    let rates = rates(flows, &[kept, slow, again]);
    for n in [0, 1, 2] {
        assert!(close(rates[0][n], rates[1][n], 5.0), "{rates:.2?}");
    }
    let sums = [0, 1, 2].map(|n| rates[0][n] + rates[1][n]);
    assert!((15.0..=20.6).contains(&sums[0]), "{sums:.2?}");
    // The link is full, so its rate has the tolerance of the others: 3 %.
    assert!((4.0..=12.36).contains(&sums[1]), "{sums:.4?}");
    assert!((15.0..=20.6).contains(&sums[2]), "{sums:.2?}");
}

/// What does not fit is refused with one clear error, and leaves nothing.
#[test]
fn invalid_classes_are_refused() {
    let bed = test_bed("40mbit");
    let device = device(&bed);
    let refused = |line: &str, status: i32, why: &str| {
        let said = bed.run_with_status(line, status).stderr;
        assert!(said.contains(why), "{line}: {said}");
        assert_eq!(said.matches("netnice: ").count(), 1, "{line}: {said}");
    };
    let on = |options: &str| format!("link {device} {options}");
    refused(&on("--overbook"), 2, "--overbook needs a class");
    refused(
        &on("--class 8 --min 1mbit"),
        2,
        "the classes 0 (first) to 7, not 8",
    );
    refused(&on("--class x"), 2, "a number from 0 (first) to 7");
    refused(&on("--class 0"), 3, "the classes have nothing to divide");
    refused(&on("--server 10ms/50ms"), 2, "a server needs a class");
    refused(&on("--class 1 --min none"), 2, "class 1 does not exist");
    refused(&on("--class 0 --min 41mbit"), 3, "above the 40 Mbit/s");
    refused(
        &on("--class 0 --min 9mbit --server 10ms/50ms"),
        3,
        "above the 8 Mbit/s (1 MB/s) of the server (10ms/50ms)",
    );
    assert!(link(&bed)["server"].is_null());
    bed.run_ok(&on("--class 0 --min 10mbit"));
    let open_flow = |port: u16, contract: &str| {
        let from = at(bed.world.client(), Family::V4, port);
        let to = at(bed.world.server(), Family::V4, port);
        let source = Direct::source(from, to).by(bed.netnice.runtime());
        traffic::start_waiting(bed.world.client(), &source.contract(contract))
    };
    let error = |port: u16, contract: &str| match open_flow(port, contract) {
        Ok(_) => panic!("{contract} was granted"),
        Err(error) => format!("{error:#}"),
    };
    let said = error(7160, "cell pcr=1mbit,cdvt=5ms,class=3");
    assert!(
        said.contains("class 3 does not exist: the link has class 0"),
        "{said}"
    );
    let said = error(7161, "cell pcr=11mbit,cdvt=5ms,class=0");
    assert!(
        said.contains("11 Mbit/s (1.375 MB/s) together, above the 10 Mbit/s"),
        "{said}"
    );
    let said = error(7162, "up 5mbit cell pcr=1mbit,cdvt=5ms,class=0");
    assert!(said.contains("the peak rate (pcr) is its limit"), "{said}");
    // A server that does not fit beside a flow is refused, and a target that does not beside it.
    let member = open_flow(7163, "cell pcr=10mbit,cdvt=5ms,class=0").expect("a member");
    let other = open_flow(7164, "min 15mbit").expect("a flow");
    refused(&on("--class 0 --min 30mbit"), 3, "would fit");
    refused(&on("--class 0 --min 9mbit"), 3, "above the 9 Mbit/s");
    refused(&on("--class 0 --min none"), 3, "class 0 has 1 flow");
    bed.run_with_status(&format!("set user:nobody --min 20mbit --on {device}"), 3);
    let server = &link(&bed)["server"];
    assert_eq!(server["classes"][0]["min"], 10_000_000, "{server}");
    assert_eq!(server["classes"][0]["members"], 1, "{server}");
    drop((member, other));
    let empty = || link(&bed)["server"]["classes"][0]["members"] == 0;
    assert!(becomes_true(empty), "{}", link(&bed)["server"]);
    // The server keeps its part without members.
    bed.run_with_status(&format!("set user:nobody --min 35mbit --on {device}"), 3);
    bed.run_ok(&on("--class 0 --min none"));
    bed.run_ok(&format!("set user:nobody --min 35mbit --on {device}"));
}
