use std::process::Stdio;

use super::*;
use crate::process::own_group;

/// A shell that makes the file `one` and then the file `two` when it reads a line.
struct Shell {
    child: std::process::Child,
    folder: std::path::PathBuf,
}

impl Shell {
    fn new(name: &str) -> Shell {
        let folder = std::env::temp_dir().join(format!("nn-tracer-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut shell = own_group("sh");
        shell
            .current_dir(&folder)
            .args(["-c", "read x; : > one; : > two; read x"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null());
        let child = shell.spawn().expect("a shell");
        Shell { child, folder }
    }

    fn tell(&mut self) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        std::io::Write::write_all(stdin, b"go\n").expect("it reads");
    }

    fn made(&self) -> [bool; 2] {
        ["one", "two"].map(|name| self.folder.join(name).exists())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Gives the n-th call that changes something this action, and all others [`Action::Execute`].
fn nth(n: u32, action: Action) -> impl FnMut(&Call) -> Action {
    let mut seen = 0;
    move |call| {
        seen += u32::from(call.changes_host());
        match call.changes_host() && seen == n {
            true => action,
            false => Action::Execute,
        }
    }
}

#[test]
fn a_process_is_killed_before_the_chosen_call() {
    for n in 1..=2 {
        let mut shell = Shell::new("kill");
        let tracer = Tracer::seize(shell.child.id()).expect("it is ours");
        shell.tell();
        let outcome = tracer.follow(nth(n, Action::Kill), || false);
        let outcome = outcome.expect("it is followed");
        assert!(matches!(outcome, Outcome::Killed(_)), "{outcome:?}");
        assert_eq!(shell.made(), [n > 1, false], "{outcome:?}");
        let status = shell.child.wait().expect("it is left to its parent");
        assert!(!status.success());
    }
}

#[test]
fn a_failed_call_is_not_executed_and_the_process_continues() {
    let mut shell = Shell::new("fail");
    let tracer = Tracer::seize(shell.child.id()).expect("it is ours");
    shell.tell();
    let action = Action::Fail(Errno::ENOSPC);
    let outcome = tracer.follow(nth(2, action), || false);
    let outcome = outcome.expect("it is followed");
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    // A shell ends when a redirection fails; this test only checks that it is no longer traced.
    let status = std::fs::read_to_string(format!("/proc/{}/status", shell.child.id()));
    let traced = status.is_ok_and(|text| !text.contains("TracerPid:\t0"));
    assert!(!traced, "it is still traced");
    assert_eq!(shell.made(), [true, false]);
}

#[test]
fn a_process_continues_without_the_tracer_when_the_condition_is_met() {
    let mut shell = Shell::new("over");
    let tracer = Tracer::seize(shell.child.id()).expect("it is ours");
    shell.tell();
    let two = shell.folder.join("two");
    let outcome = tracer.follow(|_| Action::Execute, || two.exists());
    assert_eq!(outcome.expect("it is followed"), Outcome::ConditionMet);
    assert_eq!(shell.made(), [true, true]);
    shell.tell();
    assert!(shell.child.wait().expect("it ends").success());
}
