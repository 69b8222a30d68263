//! Tests programs on the direct path, end to end: a daemon that grants, a driver that sends, and
//! programs in Rust and in C that use the stack. At the other end of the cable are sockets of the
//! kernel, which verifies every checksum.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use netnice_lab::experiment::bench::at;
use netnice_lab::process::{self, EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{self, Direct, Echo, Probe, Report, RunOptions, Running, Udp};
use netnice_lab::world::{Family, Host};

use crate::c_compiler::{Link, compile};

const LINK: u64 = 100_000_000;

/// A test bed with a managed link.
fn test_bed() -> TestBed {
    let bed = TestBed::new().expect("a test bed");
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    bed
}

fn both(bed: &TestBed, family: Family, port: u16) -> (SocketAddr, SocketAddr) {
    let end = |host: &Host| at(host, family, port);
    (end(bed.world.client()), end(bed.world.server()))
}

/// UDP datagrams that a host's kernel discarded because of their checksum.
fn wrong_checksums(host: &Host) -> u64 {
    let mut cat = host.ns.command("cat");
    let text = process::run(cat.args(["/proc/net/snmp", "/proc/net/snmp6"])).expect("counters");
    let mut four = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let names = four.next().expect("names").split(' ');
    let values = four.next().expect("values").split(' ');
    let four = names
        .zip(values)
        .find(|(name, _)| *name == "InCsumErrors")
        .map(|(_, value)| value);
    let six = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("Udp6InCsumErrors")).then(|| words.next())?
    });
    let number = |text: Option<&str>| text.expect("counted").parse::<u64>().expect("a number");
    number(four) + number(six)
}

fn lasting(milliseconds: u64) -> RunOptions {
    RunOptions {
        at_once: true,
        lasts: Some(Duration::from_millis(milliseconds)),
        ..RunOptions::default()
    }
}

/// A program that ends by itself when it has received `bytes`.
fn receiving(bytes: u64) -> RunOptions {
    RunOptions {
        at_once: true,
        until_received: Some(bytes),
        ..RunOptions::default()
    }
}

fn report(running: Running) -> Report {
    running.report(EVENT_TIMEOUT).expect("a report in time")
}

#[test]
fn a_program_sends_receives_and_echoes() {
    let bed = test_bed();
    let (client, server) = (bed.world.client(), bed.world.server());
    let runtime = bed.netnice.runtime();
    for family in [Family::V4, Family::V6] {
        let before = wrong_checksums(server);
        // Sending under a contract: a twentieth of the link.
        let (from, to) = both(&bed, family, 6001);
        let all = 500 * 1400;
        let sink = traffic::start(server, &Udp::sink(to), receiving(all)).expect("a sink");
        let source = Direct::source(from, to).by(runtime).count(500).size(1400);
        let source = source.contract("slice 1ms/20ms");
        let source = traffic::start_now(client, &source).expect("a flow");
        let got = report(sink);
        let sent = source.stop().expect("a report");
        assert!(sent.refused.is_empty(), "{:?}", sent.refused);
        assert_eq!((sent.sends, sent.sent), (500, got.received), "{family:?}");
        // Sending takes 1.2 s. The rate may be 3 % over the slice plus one period's share, and half
        // of the slice, because a busy machine sends less. The experiment `vert-fig5a` judges
        // slices.
        let (begin, end) = (
            sent.started_ns + 200_000_000,
            sent.started_ns + 1_000_000_000,
        );
        let rate = got.received_rate(begin, end).expect("a rate") / LINK as f64;
        let most = 0.05 * (1.03 + 20.0 / 800.0);
        assert!(
            (0.025..=most).contains(&rate),
            "{rate} of the link, {family:?}"
        );
        // Receiving from a socket of the kernel; the longer datagrams are fragmented.
        for (port, size, count) in [(6002, 1000, 500), (6004, 4000, 100)] {
            let (at, from) = both(&bed, family, port);
            let all = u64::from(size) * count;
            let sink = Direct::sink(at).by(runtime);
            let sink = traffic::start(client, &sink, receiving(all)).expect("a flow");
            let source = Udp::source(from, at).rate(8_000_000).size(size);
            let source = source.count(count);
            let source = traffic::start_now(server, &source).expect("a source");
            let got = report(sink);
            let sent = source.stop().expect("a report");
            assert_eq!((sent.sent, got.received), (all, all), "{family:?}");
            assert_eq!(got.lost, 0);
        }
        // Echo.
        let (at, _) = both(&bed, family, 6003);
        let echo = traffic::start_now(client, &Direct::echo(at).by(runtime)).expect("a flow");
        let probe = Probe::udp(at, Duration::from_millis(5));
        let probe = report(traffic::start(server, &probe, lasting(500)).expect("a probe"));
        // The probe sends a hundred requests, on a busy machine fewer.
        assert!(probe.round_trips.len() >= 10, "{}", probe.round_trips.len());
        echo.stop().expect("a report");
        assert_eq!(wrong_checksums(server), before, "{family:?}");
    }
}

#[test]
fn a_multicast_datagram_reaches_each_member() {
    let bed = test_bed();
    let runtime = bed.netnice.runtime();
    let (at, _) = both(&bed, Family::V4, 6010);
    let (other, _) = both(&bed, Family::V4, 6011);
    let group: SocketAddr = "239.77.0.1:6012".parse().expect("an address");
    let members = [at, other].map(|at| {
        let member = Direct::member(at, group).by(runtime);
        traffic::start(bed.world.client(), &member, receiving(100_000)).expect("a member")
    });
    let (_, from) = both(&bed, Family::V4, 6013);
    let mut route = bed.world.server().ns.command("ip");
    let device = &bed.world.server().port().device;
    process::run(route.args(["route", "add", "239.0.0.0/8", "dev", device])).expect("a route");
    let source = Udp::source(from, group)
        .rate(4_000_000)
        .size(500)
        .count(200);
    let source = traffic::start_now(bed.world.server(), &source).expect("a source");
    for member in members {
        assert_eq!(report(member).received, 100_000);
    }
    source.stop().expect("a report");
}

/// The example of the C library, linked statically and dynamically.
fn examples(bed: &TestBed) -> [PathBuf; 2] {
    let root = bed.world.folder().join("usr");
    crate::c_compiler::install(&root);
    [(Link::Static, "static"), (Link::Shared, "shared")].map(|(link, name)| {
        let out = root.join(name);
        compile(&root, "examples/direct.c", &out, link);
        out
    })
}

#[test]
fn a_program_in_c_sends_and_echoes() {
    let bed = test_bed();
    let [example, other] = examples(&bed);
    let run = |example: &PathBuf, words: &[&str]| {
        let mut command = bed.world.client().ns.command(example);
        command.env("NETNICE_RUNTIME_DIR", bed.netnice.runtime());
        command.args(words);
        command
    };
    let before = wrong_checksums(bed.world.server());
    for family in [Family::V4, Family::V6] {
        let (own, to) = both(&bed, family, 6020);
        let echo = traffic::start_now(bed.world.server(), &Echo::listen(to)).expect("an echo");
        let (host, port) = (to.ip().to_string(), to.port().to_string());
        let mut asks = run(
            &example,
            &["-c", "slice 2ms/20ms", "-n", "200", &host, &port],
        );
        let said = process::run(&mut asks).expect("all come back");
        assert_eq!(said, "open\n200 sent, 200 came back\n", "{family:?}");
        echo.stop().expect("a report");
        // The other direction.
        let (host, port) = (own.ip().to_string(), own.port().to_string());
        let mut answers =
            Proc::start(run(&other, &["-n", "50", "-l", &host, &port])).expect("it starts");
        assert_eq!(answers.next_line(EVENT_TIMEOUT).expect("a line"), "open");
        let probe = Probe::udp(own, Duration::from_millis(5));
        let probe = traffic::start_now(bed.world.server(), &probe).expect("a probe");
        assert!(answers.wait(EVENT_TIMEOUT).expect("it ends").success());
        // The last answers may not have arrived yet.
        let come = probe.stop().expect("a report").round_trips.len();
        assert!(come >= 40, "{come}");
    }
    assert_eq!(wrong_checksums(bed.world.server()), before);
    // A refusal has the daemon's text.
    let (_, to) = both(&bed, Family::V4, 6021);
    let (host, port) = (to.ip().to_string(), to.port().to_string());
    let error = process::run(&mut run(&example, &["-c", "slice 30ms/20ms", &host, &port]));
    let said = format!("{:#}", error.expect_err("it does not fit"));
    assert!(said.contains("netnice_open_udp: "), "{said}");
}
