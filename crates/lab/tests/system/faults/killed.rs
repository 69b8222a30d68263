//! The daemon is killed before a system call of a change.
//!
//! Only calls that change something outside of the daemon count ([`Call::changes_host`]): what is true before one
//! of them is true since the one before it.

use netnice_api::Response;
use netnice_lab::desk::skip;
use netnice_lab::tracer::{Call, Outcome, Verdict};

use super::{Bench, Operation, Random, State};

/// Kills before the n-th call that changes something; counts from 1.
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

/// One death; false if the operation has no n-th call.
fn die(
    bench: &mut Bench,
    operation: Operation,
    n: u64,
    states: &(State, State),
    faults: &mut Vec<String>,
) -> bool {
    bench.prepare(operation);
    let (outcome, answer) = bench.trace(operation, before(n)).expect("it is followed");
    let call = match outcome {
        Outcome::Killed(call) => call,
        Outcome::Over => return false,
        other => {
            faults.push(format!("{operation:?}, call {n}: {other:?}"));
            bench.anew();
            return true;
        }
    };
    let mut found = Vec::new();
    if operation.keeps_roots() {
        let missing = bench.missing();
        if !missing.is_empty() {
            found.push(format!("root's limit lacks, with no daemon: {missing:?}"));
        }
    }
    bench.desk.netnice.kill_daemon();
    if let Err(error) = bench.desk.netnice.start_daemon() {
        found.push(format!("no daemon starts: {error:#}"));
    } else {
        if operation.keeps_roots() {
            let missing = bench.missing();
            if !missing.is_empty() {
                found.push(format!("root's limit lacks, after: {missing:?}"));
            }
        }
        let (as_before, as_asked) = (&states.0, &states.1);
        match answer {
            Ok(Response::Refused(_) | Response::Failed(_)) => {
                bench.comes_to(&[as_before], &mut found);
            }
            Ok(_) => bench.comes_to(&[as_asked], &mut found),
            Err(_) => bench.comes_to(&[as_before, as_asked], &mut found),
        }
    }
    if !found.is_empty() {
        let text = found.join("; ");
        println!("{operation:?}, killed before call {n}, {call}: {text}");
        faults.push(format!(
            "{operation:?}, killed before call {n}, {call}: {text}"
        ));
        bench.anew();
    }
    true
}

/// How many calls of an operation change something.
fn calls(bench: &mut Bench, operation: Operation) -> u64 {
    bench.prepare(operation);
    let mut seen = 0;
    let counted = bench.trace(operation, |call| {
        seen += u64::from(call.changes_host());
        Verdict::Go
    });
    let (outcome, _) = counted.expect("it is followed");
    assert_eq!(outcome, Outcome::Over);
    seen
}

/// Some deaths of each operation, or all.
fn deaths(operations: &[Operation], sample: Option<u64>) {
    if !cfg!(target_arch = "x86_64") {
        return skip("the tracer of system calls is written for x86-64");
    }
    let mut random = Random::new("killed");
    let mut bench = Bench::new();
    let mut faults = Vec::new();
    for operation in operations {
        let states = bench.undisturbed(*operation);
        let count = calls(&mut bench, *operation);
        match sample {
            Some(tries) => {
                for _ in 0..tries {
                    let n = 1 + random.below(count);
                    println!("{operation:?}: {n} of {count}");
                    die(&mut bench, *operation, n, &states, &mut faults);
                }
            }
            None => {
                let mut n = 1;
                // The daemon's own rounds come in between, so the last one is where none is reached.
                while die(&mut bench, *operation, n, &states, &mut faults) || n < count {
                    n += 1;
                }
                println!("{operation:?}: {n} moments, {} faults", faults.len());
            }
        }
        bench.without_policy();
    }
    bench.finish(faults);
}

#[test]
fn killed_at_some_system_calls_of_changes_the_daemon_has_done_all_or_nothing() {
    use Operation::{Clear, Reload, Set};
    deaths(&[Set, Clear, Reload], Some(4));
}

#[test]
fn killed_at_some_system_calls_of_starting_and_ending_it_leaves_nothing_half() {
    use Operation::{All, First, Link, Start};
    deaths(&[Start, First, All, Link], Some(3));
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
