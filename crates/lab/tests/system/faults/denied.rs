//! A system call of a change fails.
//!
//! The call is not executed and returns one of six errors. The change must then be refused with an
//! error that names the failed step, or be made all the same. The daemon must go on and make the
//! next change.

use netnice_api::{Response, Show};
use netnice_lab::tracer::{Call, Verdict};
use nix::errno::Errno;

use super::{Asked, Bench, Operation, Strike, calls, set, strikes};

const ERRORS: [Errno; 6] = [
    Errno::EPERM,
    Errno::ENOMEM,
    Errno::ENOSPC,
    Errno::EBUSY,
    Errno::EINTR,
    Errno::EIO,
];

/// Counts the calls that are tried. Of consecutive reads from one file (the kernel's type
/// information takes more than a thousand) only the first ones are tried.
#[derive(Default)]
struct Counter {
    tried: u64,
    last: Option<u64>,
    alike: u32,
}

impl Counter {
    /// Whether this call is tried.
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

/// Makes the n-th tried call return an error, counted from 1.
fn failing(n: u64, errno: Errno) -> impl FnMut(&Call) -> Verdict {
    let mut counter = Counter::default();
    move |call| match counter.counts(call) && counter.tried == n {
        true => Verdict::Fail(errno),
        false => Verdict::Go,
    }
}

/// Tries one failure; `false` if the operation has no n-th call.
fn fail(at: &mut Strike, n: u64, errno: Errno) -> bool {
    let (call, answer) = match at.trace(n, failing(n, errno)) {
        Ok(failed) => failed,
        Err(more) => return more,
    };
    let mut found = Vec::new();
    at.keeps_roots("then", &mut found);
    if !at.bench.desk.netnice.runs() {
        let said = at.bench.desk.netnice.complaints();
        at.bench.desk.netnice.kill_daemon();
        match at.operation {
            // The daemon may refuse to start with an error message.
            Operation::Start if said.contains("netniced: cannot") => {}
            _ => found.push(format!("the daemon ended: {}", said.trim())),
        }
        if let Err(error) = at.bench.desk.netnice.start_daemon() {
            found.push(format!("no daemon starts: {error:#}"));
            at.tell(&format!("{errno} at call {n}, {call}"), &found);
            return true;
        }
    }
    match &answer {
        Ok(Response::Refused(refused)) => names_a_thing(&refused.text, &mut found),
        Ok(Response::Failed(failed)) => names_a_thing(&failed.text, &mut found),
        _ => {}
    }
    at.judge(&answer, &mut found);
    if !goes_on(at.bench) {
        found.push("the next change is not made".to_owned());
    }
    let what = format!("{errno} at call {n}, {call}, answered {answer:?}");
    at.tell(&what, &found);
    true
}

/// The error must say more than the kernel's error text.
fn names_a_thing(text: &str, found: &mut Vec<String>) {
    let bare = ERRORS.iter().any(|errno| text.trim() == errno.desc());
    if text.len() < 20 || bare {
        found.push(format!("says only: {text}"));
    }
}

/// Whether the daemon makes another change and clears it.
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

/// Tries some failures of each operation, or all.
fn failures(operations: &[Operation], sample: Option<u64>) {
    let count = |bench: &mut Bench, operation| {
        let mut counter = Counter::default();
        calls(bench, operation, |call| counter.counts(call))
    };
    strikes("denied", operations, sample, count, |at, n, random| {
        let errors = match random {
            Some(random) => &[ERRORS[random.below(ERRORS.len() as u64) as usize]][..],
            None => &ERRORS,
        };
        let reached: Vec<bool> = errors.iter().map(|errno| fail(at, n, *errno)).collect();
        reached.contains(&true)
    });
}

#[test]
fn a_change_of_which_a_system_call_fails_is_refused_or_made_and_the_daemon_goes_on() {
    use Operation::{Clear, Reload, Set};
    failures(&[Set, Clear, Reload], Some(3));
}

#[test]
fn a_start_of_which_a_system_call_fails_leaves_what_was_in_force() {
    use Operation::{All, First, Link, Start};
    failures(&[Start, First, All, Link], Some(1));
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

/// Number of consecutive reads from one file that are tried.
const ENOUGH_ALIKE: u32 = 3;
