//! Tests that a direct flow gets what nobody else uses of a link: beside a program whose packets
//! the driver refuses, and with a slice beside an idle kernel path. And that a program is told how
//! its driver ended.

use std::time::Duration;

use netnice_lab::experiment::bench::at;
use netnice_lab::process::{self, EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{self, Direct, RunOptions, Udp};
use netnice_lab::world::Family;

use crate::c_compiler::{Link, compile, install};

const LINK: f64 = 100_000_000.0;

fn test_bed() -> TestBed {
    let bed = TestBed::new().expect("a test bed");
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    bed
}

/// The part of the link that a flood with this contract has, from 3 to 6 s after its start. A busy
/// machine sends less: the best of three runs counts, or the first that reaches `enough`.
fn part_of_flood(bed: &TestBed, port: u16, contract: Option<&str>, enough: f64) -> f64 {
    let mut best: f64 = 0.0;
    for run in 0..3 {
        let from = at(bed.world.client(), Family::V4, port + run);
        let to = at(bed.world.server(), Family::V4, port + run);
        let sink = traffic::start_now(bed.world.server(), &Udp::sink(to)).expect("a sink");
        let source = Direct::source(from, to).by(bed.netnice.runtime());
        let source = match contract {
            Some(contract) => source.contract(contract),
            None => source,
        };
        let lasting = RunOptions {
            at_once: true,
            lasts: Some(Duration::from_secs(6)),
            ..RunOptions::default()
        };
        let source = traffic::start(bed.world.client(), &source, lasting).expect("a flow");
        let sent = source.report(EVENT_TIMEOUT).expect("a report");
        let got = sink.stop().expect("a report");
        let (begin, end) = (
            sent.started_ns + 3_000_000_000,
            sent.started_ns + 5_900_000_000,
        );
        let rate = got.received_rate(begin, end).expect("a rate");
        best = best.max(rate / LINK);
        if best >= enough {
            break;
        }
    }
    best
}

/// A program floods with packets that are refused: another program's flood has the link all the
/// same.
#[test]
fn refused_packets_take_nothing_from_others() {
    let bed = test_bed();
    let root = bed.world.folder().join("usr");
    install(&root);
    let violator = root.join("violator");
    let source = "../lab/tests/system/direct_lending/violator.c";
    compile(&root, source, &violator, Link::Static);
    let to = at(bed.world.server(), Family::V4, 7000);
    let mut command = bed.world.client().ns.command(&violator);
    command.env("NETNICE_RUNTIME_DIR", bed.netnice.runtime());
    command.args([to.ip().to_string(), to.port().to_string()]);
    let mut violator = Proc::start(command).expect("it starts");
    let line = violator.next_line(EVENT_TIMEOUT).expect("a line");
    assert_eq!(line, "refused");
    // The rest of the kernel's part stays with the kernel: 97 % at most.
    let part = part_of_flood(&bed, 7001, None, 0.75);
    assert!(part >= 0.75, "{part:.3} of the link beside refused packets");
}

/// A slice with `extra` has its slice, and all that the kernel path and other flows do not use.
#[test]
fn a_slice_with_extra_gets_what_the_kernel_does_not_use() {
    let bed = test_bed();
    let part = part_of_flood(&bed, 7010, Some("slice 5ms/20ms extra"), 0.75);
    assert!(part >= 0.75, "{part:.3} of the link, and the rest is idle");
    // Without `extra` it has its slice, whatever the driver's rate, and no more.
    let part = part_of_flood(&bed, 7020, Some("slice 5ms/20ms"), 0.2);
    assert!(
        (0.12..=0.26).contains(&part),
        "{part:.3} of the link for a quarter"
    );
}

/// After SIGKILL of the driver its programs are told so, and nothing about others.
#[test]
fn a_program_is_notified_how_its_driver_ended() {
    let bed = test_bed();
    let from = at(bed.world.client(), Family::V4, 7030);
    let to = at(bed.world.server(), Family::V4, 7030);
    let source = Direct::source(from, to).by(bed.netnice.runtime());
    let _source = traffic::start_now(bed.world.client(), &source).expect("a flow");
    let device = &bed.world.client().port().device;
    let runtime = bed.netnice.runtime().display().to_string();
    let mut find = bed.world.client().ns.command("pgrep");
    find.args([
        "-f",
        &format!("netnice-driver --runtime-dir {runtime} .*{device}$"),
    ]);
    let found = process::run(&mut find).expect("one driver");
    let pids: Vec<&str> = found.split_whitespace().collect();
    assert_eq!(pids.len(), 1, "{found}");
    let mut kill = bed.world.client().ns.command("kill");
    process::run(kill.args(["-KILL", pids[0]])).expect("killed");
    let ended = format!("the driver of {device} has ended: signal 9 (SIGKILL) killed it");
    let until = std::time::Instant::now() + EVENT_TIMEOUT;
    loop {
        let log = bed.run_ok("log").stdout;
        if log.contains(&ended) {
            break;
        }
        assert!(std::time::Instant::now() < until, "{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
