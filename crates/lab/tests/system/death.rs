//! Tests that limits outlive the daemon: the kernel keeps them, new child processes are limited,
//! and the next daemon finds the same state. (`netnice-lab run death` kills the daemon twenty
//! times, and draws a plot with `--plot`.)

use std::time::Duration;

use netnice_lab::experiment::bench::{R4M, Rate, pause};
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::stats;
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{ParentProcess, RunOptions, Tcp};
use netnice_lab::wire::{self, Tap};
use netnice_lab::world::Cgroup;

use crate::users::ANN;

const R8M: Rate = Rate {
    text: "8mbit",
    bits: 8_000_000,
};

#[test]
fn a_daemon_killed_repeatedly_under_traffic_keeps_limit_and_state() {
    let mut bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let mut program = ParentProcess::start(bed.world.client()).expect("a program");
    let flows = Tcp::connect(to, 4).source();
    program
        .traffic(&flows, RunOptions::at_once())
        .expect("a child");
    let (min, user) = (bed.sleeper(), format!("user:{ANN}"));
    let group = Cgroup::create("death.slice").expect("a group");
    bed.run_ok(&format!(
        "set pid:{} --up 8mbit --down 30mbit",
        program.pid()
    ));
    bed.run_ok("link eth0 --rate 200mbit --down-rate 100mbit");
    bed.run_ok(&format!("set pid:{} --min 5mbit --weight 200", min.pid()));
    bed.run_ok(&format!("set {user} --both 9mbit --burst 10ms"));
    bed.run_ok(&format!("set cgroup:{} --up 80mbit", group.path()));
    let server = bed.world.server();
    let tap = Tap::start(&server.ns, "eth0").expect("a tap");
    pause(0.7);
    let from = sys::now_ns();
    // Times before, between and after the daemon's periodic work, which it does every second.
    for moment in [0.13, 0.48, 0.91] {
        let before = bed.netnice.show_without_counters().expect("a show");
        pause(moment);
        bed.netnice.kill_daemon();
        // The child starts without a daemon. It lives longer than the second after which TCP
        // retransmits a SYN that was lost in the queue of the others.
        let options = RunOptions {
            lasts: Some(Duration::from_millis(1_800)),
            ..RunOptions::at_once()
        };
        let child = Tcp::connect(to, 2).source();
        let child = program.traffic(&child, options).expect("a child");
        pause(moment / 2.0);
        bed.netnice.start_daemon().expect("another daemon");
        assert_eq!(before, bed.netnice.show_without_counters().expect("a show"));
        let said = program
            .child_output(child, |v| v.get("sent").is_some(), EVENT_TIMEOUT)
            .expect("the child reports");
        assert!(said["sent"].as_u64() > Some(0), "it was not held but dead");
    }
    let until = sys::now_ns();
    let record = tap.stop(&bed.world.server().ns).expect("a record");
    record.validate().expect("a valid record");
    // The child must be limited: without a limit it sends as much in a tenth of a second as all may
    // in several. A window of 100 ms contains the burst of 5 ms and two packets more than its share
    // (8 %), and packets that a busy host delivers late add to the next window. The experiment
    // `death` judges 110 %, and `accuracy` the rate.
    let bins = record.bins(wire::inbound, from, until, 100_000_000);
    let most = stats::greatest(&bins) / R8M.bits as f64;
    assert!(most <= 1.5, "{:.1} % of the limit in 100 ms", most * 100.0);
    bed.assert_limited(
        record.rate(wire::inbound, from, until),
        R8M,
        "all the while",
    );
    // The last daemon controls the targets that it found.
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "lowered by it",
    );
    bed.run_ok("clear --all");
    bed.await_unlimited((0.1, 0.5), R8M, "cleared by it");
}

#[test]
fn a_daemon_killed_between_two_commands_keeps_all_answered_changes() {
    let mut bed = TestBed::new().expect("a test bed");
    let sleepers = [(); 8].map(|()| bed.sleeper());
    for (i, sleeper) in sleepers.iter().enumerate() {
        bed.run_ok(&format!("set pid:{} --up {}mbit", sleeper.pid(), i + 1));
        bed.netnice.kill_daemon();
        bed.netnice.start_daemon().expect("another daemon");
        let held = bed.netnice.show().expect("a show");
        let held = held["targets"].as_array().map(Vec::len);
        assert_eq!(held, Some(i + 1), "after command {}", i + 1);
    }
    // The daemon detects targets that ended meanwhile.
    let [first, ..] = sleepers;
    let name = format!("pid:{}", first.pid());
    bed.netnice.kill_daemon();
    drop(first);
    bed.netnice.start_daemon().expect("another daemon");
    assert!(
        becomes_true(|| bed.target(&name).is_null()),
        "{name} is held though it has ended"
    );
}

#[test]
fn a_command_waits_for_a_daemon_that_is_ending() {
    let mut bed = TestBed::new().expect("a test bed");
    let program = bed.sleeper();
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    bed.netnice.kill_daemon();
    // Its folder stays locked for a while, as by a daemon whose end takes time.
    let lock = bed.netnice.runtime().join("lock");
    let mut holder = std::process::Command::new("flock");
    holder
        .arg(&lock)
        .args(["sh", "-c", "echo locked; exec sleep 1.5"]);
    let mut holder = Proc::start(holder).expect("a holder");
    assert_eq!(holder.next_line(EVENT_TIMEOUT).expect("a line"), "locked");
    let shown = bed.netnice.run_line("show").expect("it runs");
    assert_eq!(shown.status, 0, "{shown:?}");
    assert_eq!(
        bed.effective_up(&format!("pid:{}", program.pid())),
        4_000_000
    );
}
