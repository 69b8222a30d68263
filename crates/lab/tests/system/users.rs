//! Tests the rights of users: root may do everything, and a plain user may limit its own processes.
//! A process number that was reused does not give access to another user's process.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use netnice_lab::experiment::bench::R4M;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Program, Running, Tcp};
use netnice_lab::world::{CommandOutput, Host};
use serde_json::Value;

/// Two users without an entry in the user database. Concurrent tests share them.
pub(crate) const ANN: u32 = 61_234;
pub(crate) const BOB: u32 = 61_235;
/// A user of the tests of libnetnice only.
pub(crate) const CAROL: u32 = 61_239;
/// The user `nobody`.
pub(crate) const NOBODY: u32 = 65_534;

/// The words before a command line that run it as the user `uid`, in the group of the same number
/// and in no other group.
pub(crate) fn setpriv(uid: u32) -> [String; 7] {
    let id = uid.to_string();
    let words = [
        "setpriv",
        "--reuid",
        &id,
        "--regid",
        &id,
        "--clear-groups",
        "--",
    ];
    words.map(str::to_owned)
}

/// A command on `host` that runs the program in its arguments as the user `uid`.
pub(crate) fn command_as(host: &Host, uid: u32) -> Command {
    let [program, options @ ..] = setpriv(uid);
    let mut command = host.ns.command(program);
    command.args(options);
    command
}

/// A command on the client that runs the program in its arguments as the user `uid`, with the
/// runtime folder of the bed's daemon in its environment.
pub(crate) fn as_user(bed: &TestBed, uid: u32) -> Command {
    let mut command = command_as(bed.world.client(), uid);
    command.env("NETNICE_RUNTIME_DIR", bed.netnice.runtime());
    command
}

/// Starts a traffic program on the client as the user `uid`. `lab` is a copy of `netnice-lab` that
/// the user may execute ([`TestBed::copy_for_all`]).
pub(crate) fn traffic_as(
    bed: &TestBed,
    uid: u32,
    lab: &Path,
    program: &impl Program,
) -> Result<Running> {
    let words = setpriv(uid);
    let words = words.each_ref().map(String::as_str);
    traffic::start_through(bed.world.client(), &words, Some(lab), program)
}

/// Starts a process of the user `uid` that does nothing.
pub(crate) fn process_of(bed: &TestBed, uid: u32) -> Proc {
    let mut command = as_user(bed, uid);
    command.args(["sh", "-c", "echo here; exec sleep 600"]);
    let mut process = Proc::start(command).expect("a process");
    process.next_line(EVENT_TIMEOUT).expect("it runs");
    process
}

/// Runs `netnice LINE` as the user `uid`.
pub(crate) fn run_as(bed: &TestBed, uid: u32, line: &str) -> CommandOutput {
    let mut command = as_user(bed, uid);
    // A plain user may have no access to the folder in which the programs were built.
    command.arg(bed.copy_for_all("netnice").expect("a copy"));
    let output = command
        .args(line.split(' '))
        .output()
        .expect("netnice can be started");
    CommandOutput {
        command_line: line.to_owned(),
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        at: (0, 0),
    }
}

#[test]
fn a_user_limits_own_processes_and_lifts_own_limits() {
    let bed = TestBed::new().expect("a test bed");
    let own = process_of(&bed, ANN);
    let pid = own.pid();
    let set = run_as(&bed, ANN, &format!("set pid:{pid} --up 4mbit --down 8mbit"));
    assert_eq!(set.status, 0, "{set:?}");
    assert_eq!(bed.effective_up(&format!("pid:{pid}")), 4_000_000);
    let raised = run_as(&bed, ANN, &format!("set pid:{pid} --up 6mbit"));
    assert_eq!(
        (raised.status, bed.effective_up(&format!("pid:{pid}"))),
        (0, 6_000_000.into()),
        "{raised:?}"
    );
    let lifted = run_as(&bed, ANN, &format!("clear pid:{pid}"));
    assert_eq!(
        (lifted.status, bed.effective_up(&format!("pid:{pid}"))),
        (0, Value::Null),
        "{lifted:?}"
    );
}

#[test]
fn a_user_cannot_lift_limits_of_root() {
    let bed = TestBed::new().expect("a test bed");
    let own = process_of(&bed, ANN);
    let pid = own.pid();
    bed.run_ok(&format!("set pid:{pid} --up 2mbit"));
    for line in [
        format!("set pid:{pid} --up 10mbit"),
        format!("set pid:{pid} --up none"),
        format!("clear pid:{pid}"),
        "clear --all".to_owned(),
    ] {
        let answer = run_as(&bed, ANN, &line);
        assert_eq!(
            bed.effective_up(&format!("pid:{pid}")),
            2_000_000,
            "after `{line}`: {answer:?}"
        );
    }
    // The smaller of two limits applies, whichever user set it.
    run_as(&bed, ANN, &format!("set pid:{pid} --up 1mbit"));
    assert_eq!(bed.effective_up(&format!("pid:{pid}")), 1_000_000);
    bed.run_ok(&format!("clear pid:{pid}"));
    assert_eq!(bed.effective_up(&format!("pid:{pid}")), Value::Null);
}

#[test]
fn a_user_can_neither_reserve_nor_limit_processes_of_others() {
    let bed = TestBed::new().expect("a test bed");
    let (own, other) = (process_of(&bed, ANN), process_of(&bed, BOB));
    let roots = bed.sleeper();
    bed.run_ok("link eth0 --rate 100mbit");
    bed.run_ok(&format!("set pid:{} --up 4mbit", other.pid()));
    let before = bed.netnice.show_without_counters().expect("a show");
    let own_pid = own.pid();
    for line in [
        format!("set pid:{own_pid} --min 1mbit"),
        format!("set pid:{own_pid} --priority 0"),
        format!("set pid:{own_pid} --priority none"),
        format!("set pid:{own_pid} --dscp EF"),
        format!("set pid:{own_pid} --slice 1ms/50ms"),
        format!("set pid:{} --up 1mbit", other.pid()),
        format!("set pid:{} --up 1mbit", roots.pid()),
        "set pid:1 --up 1mbit".to_owned(),
        format!("set user:{BOB} --up 1mbit"),
        "set cgroup:/ --up 1mbit".to_owned(),
        "link eth0 --rate 10mbit".to_owned(),
        "link eth0 --unmanage".to_owned(),
    ] {
        let answer = run_as(&bed, ANN, &line);
        assert_eq!(answer.status, 3, "`{line}`: {answer:?}");
        assert!(!answer.stderr.trim().is_empty());
    }
    let after = bed.netnice.show_without_counters().expect("a show");
    assert_eq!(before, after);
    // Every user may read.
    assert_eq!(run_as(&bed, ANN, "show --json").status, 0);
}

#[test]
fn a_limit_does_not_apply_to_a_process_with_a_reused_number() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let mut first = process_of(&bed, ANN);
    let pid = first.pid();
    bed.run_ok(&format!("set pid:{pid} --up 4mbit"));
    first.kill();
    // The kernel assigns numbers in order. Writing the last number makes it assign the same one
    // again, unless another process of the machine starts between the two lines.
    let mut second = None;
    for _ in 0..50 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).expect("root may");
        let paced = Tcp::connect(to, 1).source().rate(12_000_000);
        let running = traffic::start_now(bed.world.client(), &paced).expect("a program");
        if running.pid() == pid {
            second = Some(running);
            break;
        }
    }
    assert!(
        second.is_some(),
        "the number {pid} was not given again in 50 tries"
    );
    bed.await_unlimited((0.5, 0.7), R4M, "another process of the same number");
}

#[test]
fn a_user_runs_programs_under_a_name_that_others_cannot_use() {
    let bed = TestBed::new().expect("a test bed");
    let copy = bed.copy_for_all("netnice").expect("a copy");
    let mut command = as_user(&bed, ANN);
    command.arg(&copy);
    command.args(["run", "--name", "crawl", "--up", "4mbit", "-q", "--"]);
    command.args(["sh", "-c", "echo here; exec sleep 600"]);
    let mut running = Proc::start(command).expect("it runs");
    let within = EVENT_TIMEOUT;
    running.next_line(within).expect("it runs");
    let up = || bed.target("name:crawl")["effective"]["up"].clone();
    assert_eq!(up(), 4_000_000);
    assert_eq!(run_as(&bed, ANN, "set name:crawl --up 3mbit").status, 0);
    assert_eq!(up(), 3_000_000);
    for line in [
        "set name:crawl --up 1mbit",
        "clear name:crawl",
        "run --name crawl -- true",
    ] {
        let answer = run_as(&bed, BOB, line);
        assert_eq!(answer.status, 3, "`{line}`: {answer:?}");
    }
    assert_eq!(up(), 3_000_000);
    drop(running);
    let gone = || bed.target("name:crawl").is_null();
    assert!(becomes_true(gone), "a name ends with its last program");
}

#[test]
fn a_user_cannot_leave_roots_limit_by_joining_a_name() {
    let bed = TestBed::new().expect("a test bed");
    let copy = bed.copy_for_all("netnice").expect("a copy");
    let mut command = as_user(&bed, ANN);
    command.arg(&copy);
    command.args(["run", "--name", "fast", "--up", "900mbit", "-q", "--"]);
    command.args(["sh", "-c", "echo here; exec sleep 600"]);
    let mut outside = Proc::start(command).expect("it runs");
    outside.next_line(EVENT_TIMEOUT).expect("it runs");
    // It joins once root has limited it.
    let limited = copy.with_file_name("limited");
    let script = "echo here; until [ -e \"$1\" ]; do sleep 0.05; done; \
                  \"$0\" run --name fast -q -- true 2>&1; echo status $?";
    let mut command = as_user(&bed, ANN);
    command.args(["sh", "-c", script]).args([&copy, &limited]);
    let mut inside = Proc::start(command).expect("it runs");
    inside.next_line(EVENT_TIMEOUT).expect("it runs");
    bed.run_ok(&format!("set pid:{} --up 4mbit", inside.pid()));
    std::fs::write(&limited, []).expect("a file");
    let refusal = inside.next_line(EVENT_TIMEOUT).expect("an answer");
    assert!(refusal.contains("cannot join name:fast"), "{refusal}");
    let status = inside.next_line(EVENT_TIMEOUT).expect("a status");
    assert_eq!(status, "status 3");
}

#[test]
fn a_user_cannot_limit_an_own_process_that_is_not_dumpable() {
    let bed = TestBed::new().expect("a test bed");
    // prctl(PR_SET_DUMPABLE, 0), as programs that keep secrets do.
    let number = match std::env::consts::ARCH {
        "x86_64" => 157,
        _ => 167,
    };
    let script =
        format!("syscall({number}, 4, 0, 0, 0, 0) and die; $| = 1; print \"here\\n\"; sleep 600");
    let mut command = as_user(&bed, ANN);
    command.args(["perl", "-e", &script]);
    let mut process = Proc::start(command).expect("a process");
    let within = EVENT_TIMEOUT;
    process.next_line(within).expect("it closed itself");
    let line = format!("set pid:{} --up 4mbit", process.pid());
    let answer = run_as(&bed, ANN, &line);
    assert_eq!(answer.status, 3, "{answer:?}");
    assert!(answer.stderr.contains("is not dumpable"), "{answer:?}");
    bed.run_ok(&line);
}

#[test]
fn a_user_reads_own_contracts_and_temporary_changes_are_undone() {
    let bed = TestBed::new().expect("a test bed");
    let own = process_of(&bed, ANN);
    let pid = own.pid();
    bed.run_ok(&format!("set pid:{pid} --up 8mbit"));
    let set = run_as(&bed, ANN, &format!("set pid:{pid} --up 4mbit --for 1s"));
    assert_eq!(
        (set.status, bed.effective_up(&format!("pid:{pid}"))),
        (0, 4_000_000.into()),
        "{set:?}"
    );
    for line in ["show", &format!("{pid}"), "log", "doctor"] {
        let answer = run_as(&bed, ANN, line);
        assert_eq!(answer.status, 0, "`{line}`: {answer:?}");
    }
    assert!(
        becomes_true(|| bed.effective_up(&format!("pid:{pid}")) == 8_000_000),
        "root's limit does not come back: {}",
        bed.effective_up(&format!("pid:{pid}"))
    );
}
