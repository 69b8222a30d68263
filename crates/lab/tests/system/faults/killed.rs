//! The daemon is killed before a system call of a change.
//!
//! Only calls that change something outside of the daemon count ([`Call::changes_host`]): the state
//! does not change between two of them.

use netnice_lab::tracer::{Call, Verdict};

use super::{Bench, Operation, Strike, calls, strikes};

/// Kills the daemon before the n-th call that changes something, counted from 1.
fn before(n: u64) -> impl FnMut(&Call) -> Verdict {
    let mut seen = 0;
    move |call| {
        seen += u64::from(call.changes_host());
        match call.changes_host() && seen == n {
            true => Verdict::Kill,
            false => Verdict::Go,
        }
    }
}

/// Tries one death; `false` if the operation has no n-th call.
fn die(at: &mut Strike, n: u64) -> bool {
    let (call, answer) = match at.trace(n, before(n)) {
        Ok(killed) => killed,
        Err(more) => return more,
    };
    let mut found = Vec::new();
    at.keeps_roots("with no daemon", &mut found);
    at.bench.desk.netnice.kill_daemon();
    if let Err(error) = at.bench.desk.netnice.start_daemon() {
        found.push(format!("no daemon starts: {error:#}"));
    } else {
        at.keeps_roots("after", &mut found);
        at.judge(&answer, &mut found);
    }
    at.tell(&format!("killed before call {n}, {call}"), &found);
    true
}

/// Tries some deaths of each operation, or all.
fn deaths(operations: &[Operation], sample: Option<u64>) {
    let count = |bench: &mut Bench, operation| calls(bench, operation, Call::changes_host);
    strikes("killed", operations, sample, count, |at, n, _| die(at, n));
}

#[test]
fn killed_at_some_system_calls_of_changes_the_daemon_has_done_all_or_nothing() {
    use Operation::{Clear, Reload, Set};
    deaths(&[Set, Clear, Reload], Some(3));
}

#[test]
fn killed_at_some_system_calls_of_starting_and_ending_it_leaves_nothing_half() {
    use Operation::{All, First, Link, Start};
    deaths(&[Start, First, All, Link], Some(2));
}

#[test]
#[ignore = "long: a new daemon for each system call of a change"]
fn killed_at_every_system_call_of_changes() {
    deaths(&Operation::EVERY[..4], None);
}

#[test]
#[ignore = "long: a new daemon for each system call of a start"]
fn killed_at_every_system_call_of_a_start() {
    deaths(&[Operation::Start], None);
}

#[test]
#[ignore = "long: a new daemon for each system call of the first limit and of the last"]
fn killed_at_every_system_call_of_the_first_limit_and_the_last() {
    deaths(&[Operation::First, Operation::All], None);
}
