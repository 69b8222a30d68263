//! Tests changes during which the daemon is killed before one of its system calls.
//!
//! Only calls that change something outside of the daemon count ([`Call::changes_host`]): the state
//! does not change between two of them.

use netnice_lab::tracer::{Action, Call};

use super::{FaultAttempt, FaultBed, Operation, count_calls, try_faults};

/// Kills the daemon before the n-th call that changes something, counted from 1.
fn kill_before(n: u64) -> impl FnMut(&Call) -> Action {
    let mut seen = 0;
    move |call| {
        seen += u64::from(call.changes_host());
        match call.changes_host() && seen == n {
            true => Action::Kill,
            false => Action::Execute,
        }
    }
}

/// Tries one death; `false` if the operation has no n-th call.
fn try_kill(at: &mut FaultAttempt, n: u64) -> bool {
    let (call, answer) = match at.trace(n, kill_before(n)) {
        Ok(killed) => killed,
        Err(more) => return more,
    };
    let mut found = Vec::new();
    at.check_root_limit("with no daemon", &mut found);
    at.fault_bed.bed.netnice.kill_daemon();
    if let Err(error) = at.fault_bed.bed.netnice.start_daemon() {
        found.push(format!("no daemon starts: {error:#}"));
    } else {
        at.check_root_limit("after", &mut found);
        at.check_state(&answer, &mut found);
    }
    at.record(&format!("killed before call {n}, {call}"), &found);
    true
}

/// Tries some deaths of each operation, or all.
fn try_kills(operations: &[Operation], sample: Option<u64>) {
    let count =
        |fault_bed: &mut FaultBed, operation| count_calls(fault_bed, operation, Call::changes_host);
    try_faults("killed", operations, sample, count, |at, n, _| {
        try_kill(at, n)
    });
}

#[test]
fn a_daemon_killed_during_a_change_has_made_all_of_it_or_nothing() {
    use Operation::{Clear, Reload, Set};
    try_kills(&[Set, Clear, Reload], Some(3));
}

#[test]
fn a_daemon_killed_while_it_starts_or_ends_leaves_nothing_half_done() {
    use Operation::{All, First, Link, Start};
    try_kills(&[Start, First, All, Link], Some(2));
}

#[test]
#[ignore = "long: a new daemon for each system call of a change"]
fn changes_survive_a_kill_at_every_system_call() {
    try_kills(&Operation::EVERY[..4], None);
}

#[test]
#[ignore = "long: a new daemon for each system call of a start"]
fn a_start_survives_a_kill_at_every_system_call() {
    try_kills(&[Operation::Start], None);
}

#[test]
#[ignore = "long: a new daemon for each system call of the first limit and of the last"]
fn the_first_and_last_limit_survive_a_kill_at_every_system_call() {
    try_kills(&[Operation::First, Operation::All], None);
}
