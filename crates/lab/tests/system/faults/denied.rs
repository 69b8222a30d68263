//! A system call of a change fails.
//!
//! The call is not carried out and returns one of six errors. Then the change is refused, with an error that says
//! what could not be done, or it is made all the same; the daemon goes on, and the next change is made.

use netnice_api::{Response, Show};
use netnice_lab::desk::skip;
use netnice_lab::tracer::{Call, Outcome, Verdict};
use nix::errno::Errno;

use super::{Asked, Bench, Operation, Random, State, set};

const ERRORS: [Errno; 6] = [
    Errno::EPERM,
    Errno::ENOMEM,
    Errno::ENOSPC,
    Errno::EBUSY,
    Errno::EINTR,
    Errno::EIO,
];

/// Counts the calls that are tried. Of calls that read on and on from one file (type information of the kernel: more
/// than a thousand) the first ones stand for all.
#[derive(Default)]
struct Counter {
    tried: u64,
    last: Option<u64>,
    alike: u32,
}

impl Counter {
    /// Whether this one is tried.
    fn counts(&mut self, call: &Call) -> bool {
        if !call.may_fail() {
            return false;
        }
        let reads = call.reads_from();
        self.alike = match reads.is_some() && reads == self.last {
            true => self.alike + 1,
            false => 0,
        };
        self.last = reads;
        let counts = self.alike < ENOUGH_ALIKE;
        self.tried += u64::from(counts);
        counts
    }
}

/// Lets the n-th call that is tried return an error; counts from 1.
fn failing(n: u64, errno: Errno) -> impl FnMut(&Call) -> Verdict {
    let mut counter = Counter::default();
    move |call| match counter.counts(call) && counter.tried == n {
        true => Verdict::Fail(errno),
        false => Verdict::Go,
    }
}

/// One failure; false if the operation has no n-th call.
fn fail(
    bench: &mut Bench,
    operation: Operation,
    (n, errno): (u64, Errno),
    states: &(State, State),
    faults: &mut Vec<String>,
) -> bool {
    bench.prepare(operation);
    let outcome = bench.trace(operation, failing(n, errno));
    let (outcome, answer) = outcome.expect("it is followed");
    let call = match outcome {
        Outcome::Failed(call) => call,
        Outcome::Over => return false,
        other => {
            faults.push(format!("{operation:?}, call {n}: {other:?}"));
            bench.anew();
            return true;
        }
    };
    let mut found = Vec::new();
    let (as_before, as_asked) = (&states.0, &states.1);
    if operation.keeps_roots() {
        let missing = bench.missing();
        if !missing.is_empty() {
            found.push(format!("root's limit lacks: {missing:?}"));
        }
    }
    if !bench.desk.netnice.runs() {
        let said = bench.desk.netnice.complaints();
        bench.desk.netnice.kill_daemon();
        match operation {
            // It may refuse to start, and say why.
            Operation::Start if said.contains("netniced: cannot") => {}
            _ => found.push(format!("the daemon ended: {}", said.trim())),
        }
        if let Err(error) = bench.desk.netnice.start_daemon() {
            found.push(format!("no daemon starts: {error:#}"));
            faults.push(found.join("; "));
            bench.anew();
            return true;
        }
    }
    match &answer {
        Ok(Response::Refused(refused)) => names_a_thing(&refused.text, &mut found),
        Ok(Response::Failed(failed)) => names_a_thing(&failed.text, &mut found),
        _ => {}
    }
    match &answer {
        Ok(Response::Refused(_) | Response::Failed(_)) => {
            bench.comes_to(&[as_before], &mut found);
        }
        Ok(_) => bench.comes_to(&[as_asked], &mut found),
        Err(_) => bench.comes_to(&[as_before, as_asked], &mut found),
    }
    if !goes_on(bench) {
        found.push("the next change is not made".to_owned());
    }
    if !found.is_empty() {
        let text = format!(
            "{operation:?}, {errno} at call {n}, {call}: {}; the answer was {answer:?}",
            found.join("; ")
        );
        println!("{text}");
        faults.push(text);
        bench.anew();
    }
    true
}

/// An error that says no more than the kernel's word for it helps nobody.
fn names_a_thing(text: &str, found: &mut Vec<String>) {
    let bare = ERRORS.iter().any(|errno| text.trim() == errno.desc());
    if text.len() < 20 || bare {
        found.push(format!("says only: {text}"));
    }
}

/// Whether another change is made, and taken back.
fn goes_on(bench: &Bench) -> bool {
    let (netnice, pid) = (&bench.desk.netnice, bench.third.pid());
    let asked = Asked::ask(netnice, set(pid, "up 3mbit"), Some(pid));
    let made = matches!(asked.answer(), Ok(Response::Done(_)));
    let name = bench.target(pid);
    let held = !bench.desk.target(&name).is_null();
    if held {
        bench.desk.types(&format!("clear {name}"));
    }
    let show = netnice_api::Request::Show(Show::default());
    let answers = matches!(
        Asked::ask(netnice, show, None).answer(),
        Ok(Response::Shown(_))
    );
    made && held && answers
}

/// How many calls of an operation may fail.
fn calls(bench: &mut Bench, operation: Operation) -> u64 {
    bench.prepare(operation);
    let mut counter = Counter::default();
    let counted = bench.trace(operation, |call| {
        counter.counts(call);
        Verdict::Go
    });
    let (outcome, _) = counted.expect("it is followed");
    assert_eq!(outcome, Outcome::Over);
    counter.tried
}

/// Some failures of each operation, or all.
fn failures(operations: &[Operation], sample: Option<u64>) {
    if !cfg!(target_arch = "x86_64") {
        return skip("the tracer of system calls is written for x86-64");
    }
    let mut random = Random::new("denied");
    let mut bench = Bench::new();
    let mut faults = Vec::new();
    for operation in operations {
        let states = bench.undisturbed(*operation);
        let count = calls(&mut bench, *operation);
        match sample {
            Some(tries) => {
                for _ in 0..tries {
                    let n = 1 + random.below(count);
                    let errno = ERRORS[random.below(ERRORS.len() as u64) as usize];
                    println!("{operation:?}: {errno} at {n} of {count}");
                    fail(&mut bench, *operation, (n, errno), &states, &mut faults);
                }
            }
            None => {
                let mut n = 1;
                loop {
                    let reached = ERRORS
                        .map(|errno| fail(&mut bench, *operation, (n, errno), &states, &mut faults))
                        .contains(&true);
                    if !reached && n >= count {
                        break;
                    }
                    n += 1;
                }
                println!("{operation:?}: {n} calls, {} faults", faults.len());
            }
        }
        bench.without_policy();
    }
    bench.finish(faults);
}

#[test]
#[ignore = "long: errors that are ignored when something is removed or read from /proc still show here"]
fn a_change_of_which_a_system_call_fails_is_refused_or_made_and_the_daemon_goes_on() {
    use Operation::{Clear, Reload, Set};
    failures(&[Set, Clear, Reload], Some(6));
}

#[test]
#[ignore = "long: errors that are ignored when something is removed or read from /proc still show here"]
fn a_start_of_which_a_system_call_fails_leaves_what_was_in_force() {
    use Operation::{All, First, Link, Start};
    failures(&[Start, First, All, Link], Some(4));
}

#[test]
#[ignore = "long: six errors at each system call of a change"]
fn every_error_at_every_system_call_of_changes() {
    failures(&Operation::EVERY[..4], None);
}

#[test]
#[ignore = "long: six errors at each system call of a start"]
fn every_error_at_every_system_call_of_a_start() {
    failures(&[Operation::Start], None);
}

#[test]
#[ignore = "long: six errors at each system call of the first limit and of the last"]
fn every_error_at_every_system_call_of_the_first_limit_and_the_last() {
    failures(&[Operation::First, Operation::All], None);
}

/// How many reads from one file, one after the other, are tried.
const ENOUGH_ALIKE: u32 = 3;
