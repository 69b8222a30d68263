//! Tests how long requests stay in force: through restarts of the daemon, also of another version,
//! until their time is over or their program ends. A damaged state file is reported, and the daemon
//! serves.

use netnice_lab::experiment::bench::R4M;
use netnice_lab::process::Proc;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Running, Tcp};
use serde_json::Value;

/// A program that sends to port 5001 over four TCP connections, as fast as its limit of 4 Mbit/s
/// allows.
fn start_limited(bed: &TestBed) -> Running {
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 4).source();
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    program
}

fn sleeper(bed: &TestBed) -> Proc {
    let mut command = bed.world.client().ns.command("sleep");
    command.arg("600");
    Proc::start(command).expect("a process")
}

#[test]
fn a_stopped_daemon_leaves_its_limits_and_finds_them_again() {
    let mut bed = TestBed::new().expect("a test bed");
    let program = start_limited(&bed);
    let (a, b) = (sleeper(&bed), sleeper(&bed));
    bed.run_ok("link eth0 --rate 100mbit --down-rate 50mbit");
    bed.run_ok(&format!("set pid:{} --min 30mbit --weight 300", a.pid()));
    bed.run_ok(&format!("set pid:{} --both 3mbit --burst 10ms", b.pid()));
    bed.run_ok("set user:nobody --up 80mbit");
    let before = bed.shown();
    for crash in [false, true] {
        if crash {
            bed.netnice.kill_daemon();
        } else {
            bed.netnice.stop_daemon();
        }
        bed.await_limited(
            || bed.sent_rate(0.3, 1.0).expect("a rate"),
            R4M,
            "without a daemon",
        );
        bed.netnice.start_daemon().expect("it starts again");
        assert_eq!(before, bed.shown(), "after a restart");
        bed.await_limited(
            || bed.sent_rate(0.3, 1.0).expect("a rate"),
            R4M,
            "with a new daemon",
        );
    }
    // The new daemon controls the targets that it found.
    bed.run_ok(&format!("clear pid:{}", program.pid()));
    bed.await_unlimited((0.3, 0.5), R4M, "cleared by the new daemon");
}

#[test]
fn kernel_state_of_another_version_is_rebuilt() {
    let mut bed = TestBed::new().expect("a test bed");
    let program = start_limited(&bed);
    bed.run_ok("link eth0 --rate 100mbit --down-rate 50mbit");
    bed.run_ok(&format!("set pid:{} --min 2mbit", program.pid()));
    let before = bed.shown();
    bed.netnice.stop_daemon();
    // As a version with another map layout would have left it.
    let layout = bed.netnice.runtime().join("layout");
    assert!(layout.exists(), "nothing says how the maps are laid out");
    std::fs::write(&layout, "another").expect("root may");
    bed.netnice.start_daemon().expect("it starts all the same");
    assert_eq!(before, bed.shown(), "what was held is held");
    bed.await_limited(
        || bed.sent_rate(0.5, 1.0).expect("a rate"),
        R4M,
        "laid anew",
    );
    let log = bed.run_ok("log").stdout;
    assert!(log.contains("another version"), "{log}");
    bed.run_ok("clear --all");
    bed.await_unlimited((0.3, 0.5), R4M, "cleared");
    let left = bed.world.client().ns.ip("-o link").expect("ip");
    assert!(
        !left.contains("nn0") && !left.contains("nnd"),
        "something is left: {left}"
    );
    assert!(!layout.exists());
}

#[test]
fn targets_that_ended_while_the_daemon_was_dead_are_removed() {
    let mut bed = TestBed::new().expect("a test bed");
    let (stays, goes) = (sleeper(&bed), sleeper(&bed));
    for process in [&stays, &goes] {
        bed.run_ok(&format!("set pid:{} --up 4mbit", process.pid()));
    }
    bed.netnice.kill_daemon();
    drop(goes);
    bed.netnice.start_daemon().expect("it starts again");
    let only = format!("pid:{}", stays.pid());
    assert!(
        becomes_true(|| {
            let shown = bed.shown();
            let targets = shown["targets"].as_array().expect("a list");
            targets.len() == 1 && targets[0]["target"] == only.as_str()
        }),
        "{}",
        bed.shown()
    );
}

#[test]
fn a_change_ends_after_its_time_or_without_a_confirmation() {
    let bed = TestBed::new().expect("a test bed");
    let (a, b, c) = (sleeper(&bed), sleeper(&bed), sleeper(&bed));
    let empty = bed.shown();
    bed.run_ok(&format!("set pid:{} --up 4mbit --dry-run", a.pid()));
    assert_eq!(empty, bed.shown(), "a dry run changed something");
    bed.run_ok(&format!("set pid:{} --up 4mbit --for 1s", a.pid()));
    bed.run_ok(&format!("set pid:{} --up 4mbit --confirm 1s", b.pid()));
    bed.run_ok(&format!("set pid:{} --up 4mbit", c.pid()));
    let up = |shown: &Value, pid: u32| {
        let name = format!("pid:{pid}");
        let targets = shown["targets"].as_array().expect("a list").clone();
        let found = targets.into_iter().find(|t| t["target"] == name.as_str());
        found.map_or(Value::Null, |t| t["contract"]["up"].clone())
    };
    // A slow machine needs longer for the check than the change lasts: then a longer time is tried.
    let holds = |seconds: u32| {
        let change = format!("set pid:{} --up 8mbit --confirm {seconds}s", c.pid());
        bed.run_ok(&change);
        up(&bed.shown(), c.pid()) == 8_000_000
    };
    assert!([1, 4, 16].into_iter().any(holds), "{}", bed.shown());
    assert!(
        becomes_true(|| {
            let shown = bed.shown();
            let ended = up(&shown, a.pid()).is_null() && up(&shown, b.pid()).is_null();
            ended && up(&shown, c.pid()) == 4_000_000
        }),
        "{}",
        bed.shown()
    );
}

#[test]
fn a_damaged_state_file_is_reported_and_the_daemon_serves() {
    let mut bed = TestBed::new().expect("a test bed");
    let process = sleeper(&bed);
    bed.run_ok(&format!("set pid:{} --up 4mbit", process.pid()));
    bed.netnice.stop_daemon();
    let state = bed.netnice.runtime().join("state.json");
    let whole = std::fs::read(&state).expect("the state is there");
    for damage in [&b""[..], b"{", &whole[..whole.len() / 2], b"\0\0\0\0"] {
        std::fs::write(&state, damage).expect("root may");
        bed.netnice.start_daemon().expect("it starts all the same");
        // The daemon serves and accepts new requests.
        bed.run_ok(&format!("set pid:{} --up 5mbit", process.pid()));
        let said = bed.run_ok("log").stdout.to_lowercase();
        assert!(
            said.contains("state"),
            "the log does not speak of the state: {said}"
        );
        bed.netnice.stop_daemon();
    }
}

#[test]
fn a_program_that_ends_while_it_is_limited_leaves_no_target_behind() {
    let bed = TestBed::new().expect("a test bed");
    // A process with a limit that stays, so that the first change's work is done before and the
    // detection of ends goes on.
    let stays = sleeper(&bed);
    bed.run_ok(&format!("set pid:{} --up 4mbit", stays.pid()));
    for n in 0..60 {
        let mut command = bed.world.client().ns.command("sleep");
        command.arg(format!("0.{:03}", n % 30));
        let brief = Proc::start(command).expect("a process");
        // The request may be refused because the process has ended meanwhile.
        let target = format!("pid:{}", brief.pid());
        let words = ["set", &target, "--up", "4mbit"];
        bed.netnice.run(&words).expect("an answer");
    }
    let only = || {
        bed.shown()["targets"]
            .as_array()
            .is_some_and(|all| all.len() == 1)
    };
    assert!(becomes_true(only), "{}", bed.shown()["targets"]);
}
