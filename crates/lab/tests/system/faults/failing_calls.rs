//! Tests changes during which a system call of the daemon fails.
//!
//! The call is not executed and returns one of six errors. The change must then be refused with an
//! error that names the failed step, or be made all the same. The daemon must go on and make the
//! next change.

use netnice_api::{Response, Show};
use netnice_lab::storm::set_request;
use netnice_lab::tracer::{Action, Call};
use nix::errno::Errno;

use super::{FaultAttempt, FaultBed, Operation, PendingRequest, count_calls, try_faults};

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
    equal_reads: u32,
}

impl Counter {
    /// Whether this call is tried.
    fn counts(&mut self, call: &Call) -> bool {
        if !call.can_be_failed() {
            return false;
        }
        let reads = call.reads_from();
        self.equal_reads = match reads.is_some() && reads == self.last {
            true => self.equal_reads + 1,
            false => 0,
        };
        self.last = reads;
        let counts = self.equal_reads < MAX_EQUAL_READS;
        self.tried += u64::from(counts);
        counts
    }
}

/// Makes the n-th tried call return an error, counted from 1.
fn fail_call(n: u64, errno: Errno) -> impl FnMut(&Call) -> Action {
    let mut counter = Counter::default();
    move |call| match counter.counts(call) && counter.tried == n {
        true => Action::Fail(errno),
        false => Action::Execute,
    }
}

/// Tries one failure; `false` if the operation has no n-th call.
fn try_failure(at: &mut FaultAttempt, n: u64, errno: Errno) -> bool {
    let (call, answer) = match at.trace(n, fail_call(n, errno)) {
        Ok(failed) => failed,
        Err(more) => return more,
    };
    let mut found = Vec::new();
    at.check_root_limit("then", &mut found);
    if !at.fault_bed.bed.netnice.daemon_is_running() {
        let said = at.fault_bed.bed.netnice.take_stderr();
        at.fault_bed.bed.netnice.kill_daemon();
        match at.operation {
            // The daemon may refuse to start with an error message.
            Operation::Start if said.contains("netniced: cannot") => {}
            _ => found.push(format!("the daemon ended: {}", said.trim())),
        }
        if let Err(error) = at.fault_bed.bed.netnice.start_daemon() {
            found.push(format!("no daemon starts: {error:#}"));
            at.record(&format!("{errno} at call {n}, {call}"), &found);
            return true;
        }
    }
    match &answer {
        Ok(Response::Refused(refused)) => check_error_text(&refused.text, &mut found),
        Ok(Response::Failed(failed)) => check_error_text(&failed.text, &mut found),
        _ => {}
    }
    at.check_state(&answer, &mut found);
    if !makes_next_change(at.fault_bed) {
        found.push("the next change is not made".to_owned());
    }
    let what = format!("{errno} at call {n}, {call}, answered {answer:?}");
    at.record(&what, &found);
    true
}

/// The error must say more than the kernel's error text.
fn check_error_text(text: &str, found: &mut Vec<String>) {
    let bare = ERRORS.iter().any(|errno| text.trim() == errno.desc());
    if text.len() < 20 || bare {
        found.push(format!("says only: {text}"));
    }
}

/// Whether the daemon makes another change and clears it.
fn makes_next_change(fault_bed: &FaultBed) -> bool {
    let (netnice, pid) = (&fault_bed.bed.netnice, fault_bed.third.pid());
    let asked = PendingRequest::send(netnice, set_request(pid, "up 3mbit"), Some(pid));
    let made = matches!(asked.answer(), Ok(Response::Done(_)));
    let name = fault_bed.target(pid);
    let held = !fault_bed.bed.target(&name).is_null();
    if held {
        fault_bed.bed.run_ok(&format!("clear {name}"));
    }
    let show = netnice_api::Request::Show(Show::default());
    let answers = matches!(
        PendingRequest::send(netnice, show, None).answer(),
        Ok(Response::Shown(_))
    );
    made && held && answers
}

/// Tries some failures of each operation, or all.
fn try_failures(operations: &[Operation], sample: Option<u64>) {
    let count = |fault_bed: &mut FaultBed, operation| {
        let mut counter = Counter::default();
        count_calls(fault_bed, operation, |call| counter.counts(call))
    };
    try_faults("denied", operations, sample, count, |at, n, random| {
        let errors = match random {
            Some(random) => &[ERRORS[random.below(ERRORS.len() as u64) as usize]][..],
            None => &ERRORS,
        };
        let reached: Vec<bool> = errors
            .iter()
            .map(|errno| try_failure(at, n, *errno))
            .collect();
        reached.contains(&true)
    });
}

#[test]
fn a_change_with_a_failing_system_call_is_refused_or_made() {
    use Operation::{Clear, Reload, Set};
    try_failures(&[Set, Clear, Reload], Some(3));
}

#[test]
fn a_start_with_a_failing_system_call_keeps_the_limits() {
    use Operation::{All, First, Link, Start};
    try_failures(&[Start, First, All, Link], Some(1));
}

#[test]
#[ignore = "long: six errors at each system call of a change"]
fn changes_survive_every_error_at_every_system_call() {
    try_failures(&Operation::EVERY[..4], None);
}

#[test]
#[ignore = "long: six errors at each system call of a start"]
fn a_start_survives_every_error_at_every_system_call() {
    try_failures(&[Operation::Start], None);
}

#[test]
#[ignore = "long: six errors at each system call of the first limit and of the last"]
fn the_first_and_last_limit_survive_every_error_at_every_system_call() {
    try_failures(&[Operation::First, Operation::All], None);
}

/// Number of consecutive reads from one file that are tried.
const MAX_EQUAL_READS: u32 = 3;
