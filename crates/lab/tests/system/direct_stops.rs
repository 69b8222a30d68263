//! Tests that a driver notices when the machine does not let it run: the driver is stopped by a
//! signal, and afterwards its file of stops and `explain` have the time.

use std::time::Duration;

use netnice_lab::alibi;
use netnice_lab::experiment::{self, bench::at};
use netnice_lab::process::{self, EVENT_TIMEOUT};
use netnice_lab::sys;
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{self, Direct, MessageShape, MessageSource};
use netnice_lab::world::Family;
use serde_json::Value;

/// The process of the one driver of a test bed.
fn driver_pid(bed: &TestBed) -> i32 {
    let runtime = bed.netnice.runtime().display().to_string();
    let mut find = bed.world.client().ns.command("pgrep");
    find.args(["-f", &format!("netnice-driver --runtime-dir {runtime} ")]);
    let found = process::run(&mut find).expect("one driver");
    found.trim().parse().expect("one process number")
}

#[test]
fn a_driver_records_that_it_was_stopped() {
    let mut bed = TestBed::new().expect("a test bed");
    let restarted = bed.netnice.restart_with(&["--driver-stops"]);
    restarted.expect("the daemon starts");
    let device = bed.world.client().port().device.clone();
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    let from = at(bed.world.client(), Family::V4, 7100);
    let to = at(bed.world.server(), Family::V4, 7100);
    let source = Direct::source(from, to).by(bed.netnice.runtime());
    let source = source.contract("cell pcr=10mbit,cdvt=1ms");
    let source = traffic::start_now(bed.world.client(), &source).expect("a flow");
    std::thread::sleep(Duration::from_millis(200));
    let driver = driver_pid(&bed);
    sys::kill(driver, libc::SIGSTOP).expect("it can be stopped");
    std::thread::sleep(STOPPED);
    sys::kill(driver, libc::SIGCONT).expect("it can be continued");
    let file = bed.netnice.runtime().join(format!("driver-{device}.stops"));
    let until = std::time::Instant::now() + EVENT_TIMEOUT;
    loop {
        let log = std::fs::read_to_string(&file).expect("a file of stops");
        let stops = alibi::parse(&log).expect("stops");
        if stops.iter().any(|stop| stop.length.0 >= LONG) {
            break;
        }
        assert!(std::time::Instant::now() < until, "{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let page = bed.run_ok(&format!("explain direct:{device}")).stdout;
    assert!(page.contains("by the machine"), "{page}");
    source.stop().expect("a report");
}

/// How long the driver is stopped, and the stop in ns that it must have recorded: it asked to wake
/// at most 2 ms after the signal.
const STOPPED: Duration = Duration::from_millis(400);
const LONG: u64 = 380_000_000;

/// Six slices through daemon, driver and processes, and a policer for cells: no packet is missing,
/// early or late that no stop of the driver excuses. The experiments judge the exact rates.
#[test]
fn no_packet_fails_that_no_stop_excuses() {
    for id in ["vert-fig5a", "cell-fig3"] {
        let experiment = experiment::find(id).expect("an experiment");
        let outcome = experiment.test().expect("a measurement");
        let judged = outcome.checks.iter().filter(|check| {
            let parts = ["not excused", "did not arrive", "finds early"];
            parts.iter().any(|part| check.what.contains(part))
        });
        let judged: Vec<_> = judged.collect();
        assert!(judged.len() >= 2, "{id}: {:?}", outcome.checks);
        for check in judged {
            let ours = &outcome.ours;
            assert!(check.holds, "{id}: {}: {}: {ours}", check.what, check.value);
        }
    }
}

/// The channel of [`a_stop_moves_no_later_message_of_a_channel`]: its contract, 1/Rmax, and the
/// processing, in ns. A cell contract beside it keeps the driver's sleeps short.
const CHANNEL: &str = "channel mmax=1500B,rmax=10/s,bmax=2,deadline=90ms,processing=5ms";
const SPACING: u64 = 100_000_000;
const PROCESSING: u64 = 5_000_000;
const BESIDE: &str = "cell pcr=5mbit,cdvt=5ms";
const MESSAGES: usize = 30;

/// A program sends exactly Rmax messages per second, and the driver is stopped for four times
/// 1/Rmax. The messages after that leave at their logical arrivals by the contract, counted from
/// the times at which the program queued them. If the stop moved them, they would leave 2/Rmax
/// later: the two messages that waited in the driver's absence would count as arrived at its end.
#[test]
fn a_stop_moves_no_later_message_of_a_channel() {
    let bed = TestBed::new().expect("a test bed");
    let device = bed.world.client().port().device.clone();
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    let (client, server) = (bed.world.client(), bed.world.server());
    let ends = |port| (at(client, Family::V4, port), at(server, Family::V4, port));
    let (from, to) = ends(7200);
    let beside = Direct::source(from, to).by(bed.netnice.runtime());
    let beside = traffic::start_now(client, &beside.contract(BESIDE)).expect("a cell flow");
    let shape = MessageShape {
        parts: 1,
        size: 1400,
    };
    let source = MessageSource::start(client, bed.netnice.runtime(), ends(7201), CHANNEL, shape);
    let mut source = source.expect("a channel");
    let command = format!("periodic {SPACING} {MESSAGES}");
    source.command(&command).expect("a running program");
    std::thread::sleep(Duration::from_millis(500));
    let driver = driver_pid(&bed);
    sys::kill(driver, libc::SIGSTOP).expect("it can be stopped");
    std::thread::sleep(STOPPED);
    sys::kill(driver, libc::SIGCONT).expect("it can be continued");
    let sent = source.answer("first_ns", EVENT_TIMEOUT).expect("its times");
    let outcomes = source.run("outcomes", "stamp_ns").expect("its outcomes");
    beside.stop().expect("a report");

    let numbers = |answer: &Value, name: &str| -> Vec<u64> {
        let numbers = answer[name].as_array().into_iter().flatten();
        numbers.filter_map(Value::as_u64).collect()
    };
    let left = numbers(&outcomes, "stamp_ns");
    let queued = numbers(&sent, "queued_ns");
    assert_eq!((left.len(), queued.len()), (MESSAGES, MESSAGES));
    assert!(
        numbers(&outcomes, "status")
            .iter()
            .all(|status| *status == 0)
    );
    let mut planned = sent["first_ns"].as_u64().expect("a time");
    let (mut logical, mut after) = (0, Vec::new());
    for (queued, left) in queued.iter().zip(&left) {
        logical = planned.max(queued - PROCESSING).max(logical + SPACING);
        after.push(left.saturating_sub(logical));
        planned += SPACING;
    }
    let stopped = after.iter().filter(|after| **after > SPACING).count();
    assert!(stopped > 0, "the stop delayed no message: {after:?}");
    // The best one of the last: a busy machine delays single messages.
    let least = after[MESSAGES - 10..].iter().min();
    assert!(least < Some(&(SPACING / 2)), "{after:?}");
}
