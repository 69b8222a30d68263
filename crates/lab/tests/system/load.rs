//! Tests 64 concurrent clients. The final state must be that of the same changes made one after the
//! other, in the order of the daemon's log. Afterwards the daemon may use only a bounded amount of
//! memory and descriptors more than before.
//!
//! ```text
//!  64 clients at once ──────────────> first daemon ──> state A
//!                                          │
//!                                          └─ log: user, target and outcome of each change
//!                                                   │
//!  the same clients, one change at a time ──────────┴─> second daemon ──> state B
//! ```
//!
//! Only one client of a user changes a given target. So the user and the target of a log line give
//! the client, and its lines are its changes in order. A and B must be the same, and each change
//! must have the same outcome in both runs.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use netnice_api::{Client, Log, LogLine, Request, Response, RuntimeDir};
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::storm::client::{Change, ChangeOutcome, ClientRecord};
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::world::Netnice;
use serde_json::Value;

use crate::users::command_as;

/// The unprivileged users. Root has as many clients as all of them together.
const USERS: std::ops::Range<u32> = 61_300..61_308;
/// Number of clients of each of them.
const OF_EACH: usize = 4;

/// A process with the clients of one user.
struct ClientProcess {
    uid: u32,
    program: Proc,
    targets: Vec<String>,
}

impl ClientProcess {
    fn start(
        bed: &TestBed,
        second: &PathBuf,
        uid: u32,
        requests: u64,
        targets: &[String],
    ) -> ClientProcess {
        let lab = bed.copy_for_all("netnice-lab").expect("a copy");
        let client = bed.world.client();
        let mut command = if uid == 0 {
            client.ns.command(&lab)
        } else {
            let mut command = command_as(client, uid);
            command.arg(&lab);
            command
        };
        let clients = match targets.len() {
            0 => OF_EACH,
            some => some,
        };
        command.args(["storm", "client", "--runtime-dir"]);
        command
            .arg(bed.netnice.runtime())
            .arg("--second")
            .arg(second);
        command.args(["--clients", &clients.to_string()]);
        command.args(["--requests", &requests.to_string()]);
        command.args(["--seed", &sys::now_ns().to_string()]);
        if !targets.is_empty() {
            command.args(["--targets", &targets.join(","), "--promises"]);
        }
        let mut program = Proc::start(command).expect("it starts");
        let ready = program
            .next_json("ready", EVENT_TIMEOUT)
            .expect("it is ready");
        let targets = serde_json::from_value(ready["ready"].clone()).expect("a list");
        ClientProcess {
            uid,
            program,
            targets,
        }
    }

    /// Makes one change at the second daemon.
    fn repeat_change(&mut self, target: &str, change: &str) -> ChangeOutcome {
        let line = format!("{target} {change}");
        self.program.write_line(&line).expect("it listens");
        let outcome = self
            .program
            .next_json("outcome", EVENT_TIMEOUT)
            .expect("an answer");
        serde_json::from_value(outcome["outcome"].clone()).expect("an outcome")
    }
}

/// Reads the daemon's log while it grows, because the daemon keeps only the latest lines.
struct LogReader {
    lines: Arc<Mutex<Vec<LogLine>>>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl LogReader {
    fn start(netnice: &Netnice) -> LogReader {
        let lines: Arc<Mutex<Vec<LogLine>>> = Arc::default();
        let over: Arc<AtomicBool> = Arc::default();
        let dir = RuntimeDir::choose(Some(netnice.runtime().to_owned()), None);
        let (into, ended) = (lines.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            let mut client = Client::connect(&dir).expect("it listens");
            loop {
                let last = ended.load(Ordering::Relaxed);
                let read = client.call(&Request::Log(Log::default()), None);
                let Ok(Response::Log(log)) = read else {
                    panic!("no log: {read:?}");
                };
                append_new(&mut into.lock().expect("no panic"), log.lines);
                if last {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        LogReader {
            lines,
            over,
            thread,
        }
    }

    fn all(self) -> Vec<LogLine> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic");
        std::mem::take(&mut *self.lines.lock().expect("no panic"))
    }
}

/// Appends those lines of `read` that come after the last line of `known`.
fn append_new(known: &mut Vec<LogLine>, read: Vec<LogLine>) {
    let from = match known.last() {
        None => 0,
        Some(last) => match read.iter().rposition(|line| line == last) {
            Some(at) => at + 1,
            None => panic!("the log has lost lines: {} were read", known.len()),
        },
    };
    known.extend(read.into_iter().skip(from));
}

/// User, target and outcome of a line of the log.
fn parse_log_line(line: &str) -> Option<(u32, String, ChangeOutcome)> {
    let (uid, rest) = match line.strip_prefix("root") {
        Some(rest) => (0, rest),
        None => {
            let rest = line.strip_prefix("user ")?;
            let digits = rest.find(|c: char| !c.is_ascii_digit())?;
            (rest[..digits].parse().ok()?, &rest[digits..])
        }
    };
    // `root set pid:7: up 4mbit`, `root: pid:7 is cleared`, `root, pid:7: refused: …`
    let (rest, outcome) = match rest {
        _ if rest.starts_with(" set ") => (&rest[5..], ChangeOutcome::Done),
        _ if rest.starts_with(": ") => (&rest[2..], ChangeOutcome::Done),
        _ if rest.starts_with(", ") => (&rest[2..], ChangeOutcome::Refused),
        _ => return None,
    };
    let word = rest.split(' ').next()?;
    Some((uid, word.trim_end_matches(':').to_owned(), outcome))
}

fn shown_state(netnice: &Netnice) -> Value {
    netnice.show_without_counters().expect("a show")
}

fn descriptors(netnice: &Netnice) -> usize {
    let pid = netnice.pid().expect("it runs");
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd"));
    fds.expect("it runs").count()
}

/// The changes of each client's target, in order.
type Changes = BTreeMap<(u32, String), VecDeque<Change>>;

/// Starts a process for each user, and one for root, which changes the limits of most of the users'
/// processes and of the users themselves.
fn start_clients(bed: &TestBed, second: &PathBuf, requests: u64) -> Vec<ClientProcess> {
    let start =
        |uid: u32, targets: &[String]| ClientProcess::start(bed, second, uid, requests, targets);
    let mut clients: Vec<ClientProcess> = USERS.map(|uid| start(uid, &[])).collect();
    let processes = clients.iter().flat_map(|process| process.targets.clone());
    let roots = processes.take(USERS.len() * OF_EACH - USERS.len());
    let roots: Vec<String> = roots
        .chain(USERS.map(|uid| format!("user:{uid}")))
        .collect();
    clients.push(start(0, &roots));
    clients
}

/// Lets all clients make their requests at once; returns their changes.
fn make_requests(clients: &mut [ClientProcess], requests: u64) -> Changes {
    for process in &mut *clients {
        process.program.write_line("go").expect("it listens");
    }
    let mut changes = Changes::new();
    let (mut count, mut failures) = (0, Vec::new());
    let within = EVENT_TIMEOUT + Duration::from_millis(64 * 20 * requests);
    for process in clients {
        let report = process.program.next_json("records", within);
        let report = report.expect("a report");
        let records: Vec<ClientRecord> =
            serde_json::from_value(report["records"].clone()).expect("its form");
        for one in records {
            count += one.requests;
            failures.extend(one.failures);
            changes.insert((process.uid, one.target), one.changes.into());
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
    let all: usize = changes.values().map(VecDeque::len).sum();
    println!("{count} requests, {all} changes");
    changes
}

/// Repeats the changes one after the other at the second daemon, in the order of the log. Each must
/// have the outcome that it had before.
fn repeat_changes(clients: &mut [ClientProcess], log: &[LogLine], mut changes: Changes) {
    println!("{} lines of log", log.len());
    let mut faults = Vec::new();
    for line in log {
        let Some((uid, target, outcome)) = parse_log_line(&line.text) else {
            continue;
        };
        let Some(theirs) = changes.get_mut(&(uid, target.clone())) else {
            continue;
        };
        let Some(change) = theirs.pop_front() else {
            panic!("no client has made the change of `{}`", line.text);
        };
        assert_eq!(change.outcome, outcome, "`{}` of {change:?}", line.text);
        let process = clients.iter_mut().find(|process| process.uid == uid);
        let process = process.expect("they are there");
        let now = process.repeat_change(&target, &change.request);
        if now != outcome {
            faults.push(format!(
                "user {uid}, {target} {}: {outcome:?}, then {now:?}",
                change.request
            ));
        }
    }
    let left: usize = changes.values().map(VecDeque::len).sum();
    assert_eq!(left, 0, "changes that are not in the log: {changes:?}");
    assert!(faults.is_empty(), "{} differ: {faults:#?}", faults.len());
}

fn concurrent_equals_serial(requests: u64, memory: u64) {
    let mut bed = TestBed::new().expect("a test bed");
    let second = bed.world.folder().join("second");
    bed.run_ok("link eth0 --rate 100mbit");
    let mut clients = start_clients(&bed, &second, requests);
    let reader = LogReader::start(&bed.netnice);
    let before = (descriptors(&bed.netnice), bed.netnice.daemon_memory());
    let changes = make_requests(&mut clients, requests);
    let made = shown_state(&bed.netnice);
    let log = reader.all();
    let after = (descriptors(&bed.netnice), bed.netnice.daemon_memory());
    // By now the clients are gone and the first change's programs are loaded.
    let limits_open = 64 + 32;
    assert!(
        after.0 <= before.0 + limits_open,
        "{before:?} became {after:?}"
    );
    let (had, has) = (before.1.expect("it lives"), after.1.expect("it lives"));
    assert!(has <= had + memory, "{had} bytes became {has}");
    bed.run_ok("clear --all");
    bed.netnice.stop_daemon();
    let again = Netnice::start(&bed.world.client().ns, &second).expect("a second daemon");
    again.run_line("link eth0 --rate 100mbit").expect("a link");
    repeat_changes(&mut clients, &log, changes);
    assert!(
        becomes_true(|| shown_state(&again) == made),
        "one after the other {} became {}",
        made,
        shown_state(&again)
    );
}

#[test]
fn sixty_four_concurrent_clients_get_the_same_as_one_after_the_other() {
    concurrent_equals_serial(50, 32 << 20);
}

#[test]
#[ignore = "long: a million requests"]
fn a_million_requests_leave_memory_and_descriptors_constant() {
    concurrent_equals_serial(16_000, 24 << 20);
}
