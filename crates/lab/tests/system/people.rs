//! The rights of users: root may do everything, and a plain user may limit its own processes. A
//! process number that was reused does not give access to another user's process.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use netnice_lab::desk::{Desk, soon};
use netnice_lab::experiment::bench::R4M;
use netnice_lab::process::{PATIENCE, Proc};
use netnice_lab::traffic::{self, Program, Running, Tcp};
use netnice_lab::world::{Answer, Host};
use serde_json::Value;

/// Two users without an entry in the user database. Concurrent tests share them.
pub(crate) const ANN: u32 = 61_234;
pub(crate) const BOB: u32 = 61_235;
/// A user of one test only, which requires that no other process of the machine has this user.
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
/// runtime folder of the desk's daemon in its environment.
pub(crate) fn as_user(desk: &Desk, uid: u32) -> Command {
    let mut command = command_as(desk.world.client(), uid);
    command.env("NETNICE_RUNTIME_DIR", desk.netnice.runtime());
    command
}

/// Starts a traffic program on the client as the user `uid`. `lab` is a copy of `netnice-lab` that
/// the user may execute ([`Desk::copy_for_all`]).
pub(crate) fn traffic_as(
    desk: &Desk,
    uid: u32,
    lab: &Path,
    program: &impl Program,
) -> Result<Running> {
    let words = setpriv(uid);
    let words = words.each_ref().map(String::as_str);
    traffic::eager_behind(desk.world.client(), &words, Some(lab), program)
}

/// Starts a process of the user `uid` that does nothing.
pub(crate) fn process_of(desk: &Desk, uid: u32) -> Proc {
    let mut command = as_user(desk, uid);
    command.args(["sh", "-c", "echo here; exec sleep 600"]);
    let mut process = Proc::start(command).expect("a process");
    process.next_line(PATIENCE).expect("it runs");
    process
}

/// Runs `netnice LINE` as the user `uid`.
pub(crate) fn types(desk: &Desk, uid: u32, line: &str) -> Answer {
    let mut command = as_user(desk, uid);
    // A plain user may have no access to the folder in which the programs were built.
    command.arg(desk.copy_for_all("netnice").expect("a copy"));
    let output = command
        .args(line.split(' '))
        .output()
        .expect("netnice can be started");
    Answer {
        typed: line.to_owned(),
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        at: (0, 0),
    }
}

/// The effective send limit of a process; null if there is none.
fn up(desk: &Desk, pid: u32) -> Value {
    let shown = desk.netnice.show().expect("a show");
    let name = format!("pid:{pid}");
    let targets = shown["targets"].as_array().expect("a list");
    let target = targets.iter().find(|t| t["target"] == name.as_str());
    target.map_or(Value::Null, |t| t["effective"]["up"].clone())
}

#[test]
fn a_user_limits_own_processes_and_lifts_own_limits() {
    let desk = Desk::new().expect("a desk");
    let own = process_of(&desk, ANN);
    let pid = own.pid();
    let set = types(
        &desk,
        ANN,
        &format!("set pid:{pid} --up 4mbit --down 8mbit"),
    );
    assert_eq!(set.status, 0, "{set:?}");
    assert_eq!(up(&desk, pid), 4_000_000);
    let raised = types(&desk, ANN, &format!("set pid:{pid} --up 6mbit"));
    assert_eq!(
        (raised.status, up(&desk, pid)),
        (0, 6_000_000.into()),
        "{raised:?}"
    );
    let lifted = types(&desk, ANN, &format!("clear pid:{pid}"));
    assert_eq!(
        (lifted.status, up(&desk, pid)),
        (0, Value::Null),
        "{lifted:?}"
    );
}

#[test]
fn a_user_cannot_lift_what_root_has_set() {
    let desk = Desk::new().expect("a desk");
    let own = process_of(&desk, ANN);
    let pid = own.pid();
    desk.types(&format!("set pid:{pid} --up 2mbit"));
    for line in [
        format!("set pid:{pid} --up 10mbit"),
        format!("set pid:{pid} --up none"),
        format!("clear pid:{pid}"),
        "clear --all".to_owned(),
    ] {
        let answer = types(&desk, ANN, &line);
        assert_eq!(up(&desk, pid), 2_000_000, "after `{line}`: {answer:?}");
    }
    // The smaller of two limits applies, whichever user set it.
    types(&desk, ANN, &format!("set pid:{pid} --up 1mbit"));
    assert_eq!(up(&desk, pid), 1_000_000);
    desk.types(&format!("clear pid:{pid}"));
    assert_eq!(up(&desk, pid), Value::Null);
}

#[test]
fn a_user_neither_reserves_nor_touches_others() {
    let desk = Desk::new().expect("a desk");
    let (own, other) = (process_of(&desk, ANN), process_of(&desk, BOB));
    let roots = desk.sleeper();
    desk.types("link eth0 --rate 100mbit");
    desk.types(&format!("set pid:{} --up 4mbit", other.pid()));
    let before = desk.netnice.show_standing().expect("a show");
    let own_pid = own.pid();
    for line in [
        format!("set pid:{own_pid} --min 1mbit"),
        format!("set pid:{own_pid} --priority 0"),
        format!("set pid:{own_pid} --slice 1ms/50ms"),
        format!("set pid:{} --up 1mbit", other.pid()),
        format!("set pid:{} --up 1mbit", roots.pid()),
        "set pid:1 --up 1mbit".to_owned(),
        format!("set user:{BOB} --up 1mbit"),
        "set cgroup:/ --up 1mbit".to_owned(),
        "link eth0 --rate 10mbit".to_owned(),
        "link eth0 --unmanage".to_owned(),
    ] {
        let answer = types(&desk, ANN, &line);
        assert_eq!(answer.status, 3, "`{line}`: {answer:?}");
        assert!(!answer.stderr.trim().is_empty());
    }
    let after = desk.netnice.show_standing().expect("a show");
    assert_eq!(before, after);
    // Every user may read.
    assert_eq!(types(&desk, ANN, "show --json").status, 0);
}

#[test]
fn a_number_that_was_given_to_somebody_else_is_not_hit() {
    let desk = Desk::new().expect("a desk");
    let to = desk.sink(5001).expect("a sink");
    let mut first = process_of(&desk, ANN);
    let pid = first.pid();
    desk.types(&format!("set pid:{pid} --up 4mbit"));
    first.kill();
    // The kernel assigns numbers in order. Writing the last number makes it assign the same one
    // again, unless another process of the machine starts between the two lines.
    let mut second = None;
    for _ in 0..50 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).expect("root may");
        let paced = Tcp::connect(to, 1).source().rate(12_000_000);
        let running = traffic::eager(desk.world.client(), &paced).expect("a program");
        if running.pid() == pid {
            second = Some(running);
            break;
        }
    }
    assert!(
        second.is_some(),
        "the number {pid} was not given again in 50 tries"
    );
    desk.freed((0.5, 0.7), R4M, "somebody else of the same number");
}

#[test]
fn a_user_runs_programs_under_a_name_that_stays_theirs() {
    let desk = Desk::new().expect("a desk");
    let copy = desk.copy_for_all("netnice").expect("a copy");
    let mut command = as_user(&desk, ANN);
    command.arg(&copy);
    command.args(["run", "--name", "crawl", "--up", "4mbit", "-q", "--"]);
    command.args(["sh", "-c", "echo here; exec sleep 600"]);
    let mut running = Proc::start(command).expect("it runs");
    let within = PATIENCE;
    running.next_line(within).expect("it runs");
    let up = || desk.target("name:crawl")["effective"]["up"].clone();
    assert_eq!(up(), 4_000_000);
    assert_eq!(types(&desk, ANN, "set name:crawl --up 3mbit").status, 0);
    assert_eq!(up(), 3_000_000);
    for line in [
        "set name:crawl --up 1mbit",
        "clear name:crawl",
        "run --name crawl -- true",
    ] {
        let answer = types(&desk, BOB, line);
        assert_eq!(answer.status, 3, "`{line}`: {answer:?}");
    }
    assert_eq!(up(), 3_000_000);
    drop(running);
    let gone = || desk.target("name:crawl").is_null();
    assert!(soon(gone), "a name ends with its last program");
}

#[test]
fn a_process_that_is_closed_to_its_user_is_closed_to_their_netnice() {
    let desk = Desk::new().expect("a desk");
    // prctl(PR_SET_DUMPABLE, 0), as programs that keep secrets do.
    let number = match std::env::consts::ARCH {
        "x86_64" => 157,
        _ => 167,
    };
    let script =
        format!("syscall({number}, 4, 0, 0, 0, 0) and die; $| = 1; print \"here\\n\"; sleep 600");
    let mut command = as_user(&desk, ANN);
    command.args(["perl", "-e", &script]);
    let mut process = Proc::start(command).expect("a process");
    let within = PATIENCE;
    process.next_line(within).expect("it closed itself");
    let line = format!("set pid:{} --up 4mbit", process.pid());
    let answer = types(&desk, ANN, &line);
    assert_eq!(answer.status, 3, "{answer:?}");
    assert!(answer.stderr.contains("closed"), "{answer:?}");
    desk.types(&line);
}

#[test]
fn a_user_reads_what_holds_for_them_and_undoes_in_time_what_they_did() {
    let desk = Desk::new().expect("a desk");
    let own = process_of(&desk, ANN);
    let pid = own.pid();
    desk.types(&format!("set pid:{pid} --up 8mbit"));
    let set = types(&desk, ANN, &format!("set pid:{pid} --up 4mbit --for 1s"));
    assert_eq!(
        (set.status, up(&desk, pid)),
        (0, 4_000_000.into()),
        "{set:?}"
    );
    for line in ["show", &format!("{pid}"), "log", "doctor"] {
        let answer = types(&desk, ANN, line);
        assert_eq!(answer.status, 0, "`{line}`: {answer:?}");
    }
    assert!(
        soon(|| up(&desk, pid) == 8_000_000),
        "root's limit does not come back: {}",
        up(&desk, pid)
    );
}
