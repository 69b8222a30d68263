//! Tests traffic quotas (`--quota`) on real packets: exact to one packet over a killed daemon and a
//! new claim, a rate after the quota, the quotas of root and of a user, and bad input.

use std::time::Duration;

use netnice_lab::experiment::bench::R4M;
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Running, Tcp, Udp};
use serde_json::Value;

use crate::users::{ANN, run_as, traffic_as};

/// Payload of a datagram, and the frame: with headers of UDP, IPv4 and Ethernet.
const PAYLOAD: u32 = 1_000;
const FRAME: u64 = PAYLOAD as u64 + 8 + 20 + 14;

/// A program that will send 8 Mbit/s of datagrams to the server, and the receiver there.
fn sender(bed: &TestBed, port: u16) -> (Running, Running) {
    let to = bed.server(port);
    let sink = traffic::start_now(bed.world.server(), &Udp::sink(to)).expect("a receiver");
    let source = Udp::source(bed.client(port), to);
    let source = source.rate(8_000_000).size(PAYLOAD);
    let program = traffic::start_waiting(bed.world.client(), &source).expect("a program");
    (program, sink)
}

fn quota(bed: &TestBed, target: &str) -> Value {
    bed.target(target)["quotas"][0].clone()
}

/// Waits until the quota of a target is spent.
fn await_spent(bed: &TestBed, target: &str) {
    let spent = || quota(bed, target)["spent"] == true;
    let waited = (0..4).any(|_| becomes_true(spent));
    assert!(waited, "{}", bed.target(target));
}

#[test]
fn a_quota_is_exact_to_one_packet_over_a_killed_daemon_and_a_new_claim() {
    let mut bed = TestBed::new().expect("a test bed");
    let (mut program, sink) = sender(&bed, 5001);
    let target = format!("pid:{}", program.pid());
    let set = format!("set {target} --quota 5MB/month,zone=UTC");
    bed.run_ok(&set);
    program.go().expect("it sends");
    std::thread::sleep(Duration::from_secs(1));
    bed.netnice.kill_daemon();
    std::thread::sleep(Duration::from_secs(1));
    bed.netnice.start_daemon().expect("it starts again");
    // Between the two commands no quota holds, so nothing is sent there.
    let stopped = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid()));
        status.is_ok_and(|status| status.contains("State:\tT"))
    };
    sys::kill(program.pid() as i32, libc::SIGSTOP).expect("a signal");
    assert!(becomes_true(stopped), "it is stopped");
    bed.run_ok(&format!("clear {target}"));
    bed.run_ok(&set);
    sys::kill(program.pid() as i32, libc::SIGCONT).expect("a signal");
    let used = quota(&bed, &target)["used"].as_u64().expect("a number");
    assert!(used > 500_000, "{used}: the packets before the kill count");
    await_spent(&bed, &target);
    // Without a daemon nothing more passes either.
    bed.netnice.kill_daemon();
    std::thread::sleep(Duration::from_secs(1));
    bed.netnice.start_daemon().expect("it starts again");
    let shown = quota(&bed, &target);
    let page = bed.run_ok(&format!("explain {target}")).stdout;
    let table = bed.run_ok(&format!("show {target}")).stdout;
    drop(program);
    let received = sink.stop().expect("a report").received;
    let used = shown["used"].as_u64().expect("a number");
    assert_eq!(used, 5_000_000 / FRAME * FRAME, "{shown}");
    assert_eq!(received / u64::from(PAYLOAD), used / FRAME, "{shown}");
    assert!(page.contains("used up, nothing passes until"), "{page}");
    assert!(table.contains("nothing passes until"), "{table}");
}

#[test]
fn no_packet_beyond_the_quota_arrives() {
    let mut bed = TestBed::new().expect("a test bed");
    let (mut program, sink) = sender(&bed, 5001);
    let target = format!("pid:{}", program.pid());
    bed.run_ok(&format!(
        "set {target} --quota 3MB/month,count=up,zone=UTC --up 20mbit"
    ));
    program.go().expect("it sends");
    std::thread::sleep(Duration::from_secs(1));
    bed.netnice.kill_daemon();
    std::thread::sleep(Duration::from_secs(3));
    bed.netnice.start_daemon().expect("it starts again");
    await_spent(&bed, &target);
    let shown = quota(&bed, &target);
    drop(program);
    let received = sink.stop().expect("a report").received;
    let packets = 3_000_000 / FRAME;
    assert_eq!(received, packets * u64::from(PAYLOAD), "{shown}");
    assert_eq!(shown["used"], packets * FRAME, "{shown}");
    let log = bed.run_ok("log").stdout;
    assert!(log.contains("has passed: nothing more passes"), "{log}");
}

#[test]
fn after_a_quota_with_a_rate_the_rate_holds() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let source = Tcp::connect(to, 2).source();
    let program = traffic::start_now(bed.world.client(), &source).expect("a program");
    let target = format!("pid:{}", program.pid());
    bed.run_ok(&format!("set {target} --quota 2MB/day,then=4mbit,zone=UTC"));
    await_spent(&bed, &target);
    // The daemon looks at quotas each second.
    let up = || bed.target(&target)["effective"]["up"].clone();
    assert!(becomes_true(|| up() == 4_000_000), "{}", up());
    bed.await_limited(
        || bed.sent_rate(0.5, 1.0).expect("a rate"),
        R4M,
        "after the quota",
    );
    assert_eq!(up(), 4_000_000);
    bed.run_ok(&format!("set {target} --quota none"));
    bed.await_unlimited((0.3, 0.5), R4M, "without the quota");
}

#[test]
fn a_user_loosens_no_quota_of_root() {
    let bed = TestBed::new().expect("a test bed");
    let lab = bed.copy_for_all("netnice-lab").expect("a copy");
    let to = bed.server(5001);
    let sink = traffic::start_now(bed.world.server(), &Udp::sink(to)).expect("a receiver");
    let source = Udp::source(bed.client(5001), to);
    let source = source.rate(8_000_000).size(PAYLOAD);
    bed.run_ok(&format!("set user:{ANN} --quota 2MB/month,zone=UTC"));
    let program = traffic_as(&bed, ANN, &lab, &source).expect("a program");
    let own = format!("pid:{}", program.pid());
    for quota in ["900GB/month", "1TB/hour", "1GB/day", "none"] {
        let done = run_as(&bed, ANN, &format!("set {own} --quota {quota}"));
        assert_eq!(done.status, 0, "{}", done.stderr);
    }
    let refused = run_as(&bed, ANN, &format!("set user:{ANN} --quota none"));
    assert_ne!(refused.status, 0, "{}", refused.stdout);
    await_spent(&bed, &format!("user:{ANN}"));
    drop(program);
    let received = sink.stop().expect("a report").received;
    let most = 2_000_000 / FRAME * u64::from(PAYLOAD);
    assert!(received <= most, "{received} of {most}");
}

#[test]
fn bad_quotas_are_one_error_each_and_change_nothing() {
    let bed = TestBed::new().expect("a test bed");
    for (quota, reason) in [
        ("20/month", "it has no unit; write 20MB or 20GB"),
        ("20GB", "write an amount of data and a period"),
        ("0GB/day", "too small"),
        ("99999999999999TB/day", "too large"),
        ("5GB/day,then=5", "it has no unit"),
        ("5GB/day,zone=Europe/Berlni", "time zone database"),
    ] {
        let error = bed
            .run_with_status(&format!("set user:61234 --quota {quota}"), 2)
            .stderr;
        assert!(error.contains(reason), "{quota}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
    let shown = bed.netnice.show().expect("show works");
    assert_eq!(shown["targets"], serde_json::json!([]), "{shown}");
}
