//! Tests faults during a change: the daemon is killed before one of its system calls, or one of
//! these calls fails. In each case the change must be either made or not made, root's limit must be
//! in force all the time, and no object of an unfinished change may be left.
//!
//! A [`FaultBed`] is a test bed on which a program always sends three times as much as root's limit
//! allows. An [`Operation`] is one change, repeated from the same state. The tests judge:
//!
//! 1. the state that `show --json` reports: as before or as requested, and consistent with the
//!    response if there was one;
//! 2. root's limit in the kernel: its class and its entries in the maps, by `tc` and `bpftool`,
//!    also between the death of one daemon and the start of the next;
//! 3. the objects in the network namespace and in the runtime folder: the same as those of a daemon
//!    without faults;
//! 4. the rate at the other end of the cable, every 50 ms.
//!
//! The modules `kills` and `failing_calls` try a sample of the fault points, drawn by a printed
//! seed, for `make test`, and all fault points for `make test-long`. `random_kills` kills the
//! daemon at random times, and `limit_watch` judges the rate.

mod failing_calls;
mod kills;
mod limit_watch;
mod random_kills;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netnice_api::{
    ClearWhat, Client, ClientError, LinkChange, Reload, Request, Response, RuntimeDir, Show,
};
use netnice_lab::experiment::bench::pause;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::storm::{clear_request, pidfd, seed, set_request};
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::tracer::{Action, Call, Outcome, Tracer};
use netnice_lab::traffic::{self, Running, Udp};
use netnice_lab::world::{Netnice, daemon_objects};
use netnice_sim::Random;
use serde_json::Value;

use limit_watch::LimitWatch;

/// Root's limit as typed and in bit/s, and the rate that the limited program offers.
const ROOT_LIMIT: (&str, u64) = ("8mbit", 8_000_000);
const OFFERED: u64 = 24_000_000;
/// The rate of its class as `tc` prints it.
const ROOT_CLASS: &str = "8Mbit";

/// One change, and the state in which it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Sets a limit on a second target.
    Set,
    /// Clears the second target.
    Clear,
    /// Loads a policy with a new third target and another rate of a fourth.
    Reload,
    /// Manages a link.
    Link,
    /// Starts a daemon, which takes over from a killed one.
    Start,
    /// Sets the first limit, which loads the eBPF programs.
    First,
    /// Clears everything, which unloads the eBPF programs.
    All,
}

impl Operation {
    const EVERY: [Operation; 7] = [
        Operation::Set,
        Operation::Clear,
        Operation::Reload,
        Operation::Link,
        Operation::Start,
        Operation::First,
        Operation::All,
    ];

    /// Whether root's limit exists before, during and after the operation.
    fn keeps_root_limit(self) -> bool {
        !matches!(self, Operation::First | Operation::All)
    }

    fn request(self, fault_bed: &FaultBed) -> Request {
        match self {
            Operation::Set => set_request(fault_bed.other.pid(), "up 4mbit"),
            Operation::Clear => {
                clear_request(ClearWhat::Target(fault_bed.target(fault_bed.other.pid())))
            }
            Operation::Reload => Request::Reload(Reload {}),
            Operation::Link => Request::Link(Box::new(LinkChange {
                iface: "eth0".to_owned(),
                rate: Some("100mbit".to_owned()),
                down_rate: Some("50mbit".to_owned()),
                ..LinkChange::default()
            })),
            // The response shows that the daemon runs.
            Operation::Start => Request::Show(Show::default()),
            Operation::First => set_request(fault_bed.root.pid(), &format!("up {}", ROOT_LIMIT.0)),
            Operation::All => clear_request(ClearWhat::All),
        }
    }

    /// The process in the request, if there is one.
    fn process(self, fault_bed: &FaultBed) -> Option<u32> {
        match self {
            Operation::Set => Some(fault_bed.other.pid()),
            Operation::First => Some(fault_bed.root.pid()),
            _ => None,
        }
    }
}

/// A request whose response arrives on a thread of its own, because the daemon is stopped
/// repeatedly meanwhile.
struct PendingRequest {
    thread: JoinHandle<Result<Response, ClientError>>,
}

impl PendingRequest {
    /// Sends a request, with a pidfd of its process if there is one.
    fn send(netnice: &Netnice, request: Request, process: Option<u32>) -> PendingRequest {
        let client = Client::connect(&dir(netnice)).expect("the daemon listens");
        let pidfd = process.map(|pid| pidfd(pid).expect("it lives"));
        let thread = std::thread::spawn(move || {
            let mut client = client;
            client.call(&request, pidfd.as_ref().map(AsFd::as_fd))
        });
        PendingRequest { thread }
    }

    /// Sends a request to a starting daemon as soon as it listens. If the front process ends
    /// before the answer, the daemon starts another one, and the request is sent again. Gives up
    /// when `over` is set.
    fn send_to_starting_daemon(
        netnice: &Netnice,
        request: Request,
        over: &Arc<AtomicBool>,
    ) -> PendingRequest {
        let (dir, over) = (dir(netnice), over.clone());
        let thread = std::thread::spawn(move || {
            loop {
                let called =
                    Client::connect(&dir).and_then(|mut client| client.call(&request, None));
                match called {
                    Ok(response) => break Ok(response),
                    Err(error) if over.load(Ordering::Relaxed) => break Err(error),
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        PendingRequest { thread }
    }

    fn is_answered(&self) -> bool {
        self.thread.is_finished()
    }

    fn answer(self) -> Result<Response, ClientError> {
        self.thread.join().expect("it does not panic")
    }
}

fn dir(netnice: &Netnice) -> RuntimeDir {
    RuntimeDir::choose(Some(netnice.runtime().to_owned()), None)
}

/// The state of an idle daemon.
#[derive(Clone, Debug, PartialEq)]
struct State {
    shown: Value,
    /// Interfaces, queues, classes, files, and the number of entries in each map, one line each.
    traces: BTreeSet<String>,
}

/// A test bed with a program under root's limit, and a process that the operations limit.
struct FaultBed {
    bed: TestBed,
    root: Running,
    other: Proc,
    third: Proc,
    watch: LimitWatch,
    /// Root's limit in the kernel.
    root_limit: Option<BTreeSet<String>>,
}

impl FaultBed {
    fn new() -> FaultBed {
        let bed = TestBed::new().expect("a test bed");
        let to = bed.sink(5001).expect("a sink");
        let flood = Udp::source(bed.client(4001), to).rate(OFFERED);
        let root = traffic::start_now(bed.world.client(), &flood).expect("a program");
        let (other, third) = (bed.sleeper(), bed.sleeper());
        let watch = LimitWatch::new(bed.world.server().ns.handle());
        FaultBed {
            bed,
            root,
            other,
            third,
            watch,
            root_limit: None,
        }
    }

    fn target(&self, pid: u32) -> String {
        format!("pid:{pid}")
    }

    /// Makes the state in which an operation starts. Parts of it that exist already are kept.
    fn prepare(&mut self, operation: Operation) {
        let (root, other) = (self.root.pid(), self.other.pid());
        if !operation.keeps_root_limit() {
            self.watch.pause();
            // The next limit has another target number.
            self.root_limit = None;
        }
        match operation {
            Operation::First => return self.ensure_no_limits(),
            Operation::All => self.ensure_limit(root, ROOT_LIMIT.0),
            _ => {
                self.ensure_limit(root, ROOT_LIMIT.0);
                if self.root_limit.is_none() {
                    pause(0.3);
                    self.root_limit = Some(self.root_limit_in_kernel());
                    self.watch.begin();
                }
            }
        }
        match operation {
            Operation::Set | Operation::Reload | Operation::Link => self.ensure_no_limit(other),
            Operation::Clear | Operation::Start | Operation::All => {
                self.ensure_limit(other, "4mbit")
            }
            Operation::First => {}
        }
        let policy = self.bed.netnice.policy();
        match operation {
            Operation::Reload | Operation::Start => {
                let there = std::fs::read_to_string(&policy).is_ok_and(|text| text == POLICY[0]);
                std::fs::write(&policy, POLICY[0]).expect("a policy");
                if !there {
                    self.bed.run_ok("reload");
                }
                if operation == Operation::Reload {
                    std::fs::write(&policy, POLICY[1]).expect("a policy");
                }
            }
            Operation::Link if !self.shown()["links"].as_array().is_some_and(Vec::is_empty) => {
                self.bed.run_ok("link eth0 --unmanage");
            }
            _ => {}
        }
    }

    /// Removes the policy.
    fn remove_policy(&mut self) {
        let policy = self.bed.netnice.policy();
        if policy.exists() {
            std::fs::write(&policy, "").expect("a policy");
            self.bed.run_ok("reload");
            std::fs::remove_file(&policy).expect("it is there");
        }
    }

    fn ensure_limit(&self, pid: u32, rate: &str) {
        let name = self.target(pid);
        if self.bed.target(&name).is_null() {
            self.bed.run_ok(&format!("set {name} --up {rate}"));
        }
    }

    fn ensure_no_limit(&self, pid: u32) {
        let name = self.target(pid);
        if !self.bed.target(&name).is_null() {
            self.bed.run_ok(&format!("clear {name}"));
        }
    }

    fn ensure_no_limits(&self) {
        let shown = self.shown();
        let none = |what: &str| shown[what].as_array().is_some_and(Vec::is_empty);
        if !none("targets") || !none("links") {
            self.bed.run_ok("clear --all");
        }
    }

    fn shown(&self) -> Value {
        self.bed.netnice.show_without_counters().expect("a show")
    }

    /// The current state of the daemon.
    fn state(&self) -> State {
        State {
            shown: self.shown(),
            traces: self.traces(),
        }
    }

    /// The states before and after an operation without a fault.
    fn states_without_fault(&mut self, operation: Operation) -> (State, State) {
        self.prepare(operation);
        let before = self.settled_state();
        let outcome = self.trace(operation, |_| Action::Execute);
        let (outcome, answer) = outcome.expect("it is followed");
        assert_eq!(outcome, Outcome::ConditionMet, "{operation:?}: {answer:?}");
        let answer = answer.expect("an answer");
        let refused = matches!(answer, Response::Refused(_) | Response::Failed(_));
        assert!(!refused, "{operation:?}: {answer:?}");
        (before, self.settled_state())
    }

    /// The state, once two samples are equal.
    fn settled_state(&self) -> State {
        let mut before = self.state();
        loop {
            pause(0.3);
            let now = self.state();
            if now == before {
                return now;
            }
            before = now;
        }
    }

    /// Executes an operation while the daemon is traced.
    fn trace(
        &mut self,
        operation: Operation,
        decide: impl FnMut(&Call) -> Action,
    ) -> anyhow::Result<(Outcome, Result<Response, ClientError>)> {
        let request = operation.request(self);
        let over = Arc::new(AtomicBool::new(false));
        let netnice = &mut self.bed.netnice;
        if operation == Operation::Start {
            netnice.kill_daemon();
            let pid = netnice.start_daemon_stopped()?;
            let tracer = Tracer::seize(pid)?;
            sys::kill(pid as i32, libc::SIGCONT)?;
            let asked = PendingRequest::send_to_starting_daemon(netnice, request, &over);
            let outcome = tracer.follow(since_first_change(decide), || asked.is_answered())?;
            if matches!(outcome, Outcome::Failed(_)) {
                // The daemon either answers or has ended.
                let until = Instant::now() + EVENT_TIMEOUT;
                while !asked.is_answered() && netnice.daemon_is_running() && Instant::now() < until
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            over.store(true, Ordering::Relaxed);
            return Ok((outcome, asked.answer()));
        }
        let pid = netnice.pid().expect("the daemon runs");
        let process = operation.process(self);
        let tracer = Tracer::seize(pid)?;
        let asked = PendingRequest::send(&self.bed.netnice, request, process);
        let outcome = tracer.follow(decide, || asked.is_answered())?;
        Ok((outcome, asked.answer()))
    }

    /// Root's limit in the kernel: the class, the programs, and the map entries of its target.
    fn root_limit_in_kernel(&self) -> BTreeSet<String> {
        let ns = &self.bed.world.client().ns;
        let classes = ns.tc("class show dev nn0").unwrap_or_default();
        let classes = classes.lines().filter(|line| line.contains(ROOT_CLASS));
        let mut found: BTreeSet<String> = classes.map(|line| line.trim().to_owned()).collect();
        // The programs behind these pins follow forks, sockets and packets.
        let runtime = self.bed.netnice.runtime();
        let pins = std::fs::read_dir(runtime.join("bpf")).into_iter().flatten();
        let pins = pins
            .flatten()
            .map(|pin| pin.file_name().display().to_string());
        let links = pins.filter(|pin| pin.starts_with("link_"));
        found.extend(links.map(|link| format!("pin {link}")));
        let key = |number: &str| format!("\"key\":{number} ");
        let of = |map: &str, number: &str| {
            let entries = daemon_objects::map_entries(runtime, map).into_iter();
            entries
                .filter(|e| e.contains(&key(number)))
                .collect::<Vec<_>>()
        };
        for member in of("procs", &daemon_objects::map_key(self.root.pid())) {
            // The value begins with the target's number.
            let value = member.split_once("] [").map_or("", |(_, value)| value);
            let number: Vec<&str> = value.split(',').take(4).collect();
            found.extend(of("targets", &format!("[{}]", number.join(","))));
            found.insert(member);
        }
        found
    }

    /// The parts of root's limit that are not in the kernel now.
    fn missing_of_root_limit(&self) -> Vec<String> {
        let now = self.root_limit_in_kernel();
        let before = self.root_limit.iter().flatten();
        before
            .filter(|line| !now.contains(*line))
            .cloned()
            .collect()
    }

    /// Interfaces, queues, classes and files, and the number of entries in each map.
    fn traces(&self) -> BTreeSet<String> {
        let (ns, runtime) = (&self.bed.world.client().ns, self.bed.netnice.runtime());
        let mut found = daemon_objects::list(ns, runtime).expect("they are listed");
        // Target numbers differ each time, but the number of entries does not.
        let maps = [
            "procs", "targets", "apps", "users", "ifaces", "links", "slots",
        ];
        let count = |map: &str| {
            format!(
                "{map}: {} entries",
                daemon_objects::map_entries(runtime, map).len()
            )
        };
        found.extend(maps.map(count));
        found
    }

    /// Waits until the daemon has one of these states, else adds to `faults`.
    fn await_state(&self, states: &[&State], faults: &mut Vec<String>) {
        let until = Instant::now() + STATE_TIMEOUT;
        let mut now = self.state();
        while !states.contains(&&now) && Instant::now() < until {
            pause(0.1);
            now = self.state();
        }
        if states.contains(&&now) {
            return;
        }
        match states.iter().find(|state| state.shown == now.shown) {
            None => faults.push(format!("shows neither of the states: {}", now.shown)),
            Some(state) => {
                let left = now.traces.difference(&state.traces);
                let gone = state.traces.difference(&now.traces);
                let left: Vec<&String> = left.collect();
                let gone: Vec<&String> = gone.collect();
                faults.push(format!("left over: {left:?}; gone: {gone:?}"));
            }
        }
    }

    /// Starts from an empty state after a fault, so that the next attempt is not affected.
    fn reset(&mut self) {
        self.watch.pause();
        let netnice = &mut self.bed.netnice;
        if !netnice.daemon_is_running() {
            netnice.kill_daemon();
            netnice.start_daemon().expect("another daemon");
        }
        let _ = std::fs::remove_file(netnice.policy());
        self.bed.run_ok("clear --all");
        self.bed.netnice.stop_daemon();
        let runtime = self.bed.netnice.runtime().to_owned();
        for entry in std::fs::read_dir(&runtime).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        self.root_limit = None;
        self.bed.netnice.start_daemon().expect("another daemon");
    }

    /// Fails if an object of netnice is left after everything is cleared, or if more arrived than
    /// root's limit allows.
    fn finish(mut self, mut faults: Vec<String>) {
        self.watch.pause();
        faults.extend(self.watch.faults());
        if faults.is_empty() {
            let _ = std::fs::remove_file(self.bed.netnice.policy());
            self.bed.run_ok("clear --all");
            self.bed.netnice.stop_daemon();
            let ours = |line: &&String| {
                ["nn0", "interface nnd", "file "]
                    .iter()
                    .any(|mark| line.contains(mark))
            };
            let left = || self.traces().iter().filter(ours).count();
            becomes_true(|| left() == 0);
            faults.extend(self.traces().iter().filter(ours).cloned());
            self.bed.netnice.start_daemon().expect("another daemon");
        }
        let count = faults.len();
        faults.truncate(MAX_PRINTED_FAULTS);
        assert!(faults.is_empty(), "{count} faults:\n{}", faults.join("\n"));
    }
}

/// Skips the calls of a start before the first change: the dynamic loader makes them.
fn since_first_change(mut decide: impl FnMut(&Call) -> Action) -> impl FnMut(&Call) -> Action {
    let mut begun = false;
    move |call| {
        begun |= call.changes_host();
        match begun {
            true => decide(call),
            false => Action::Execute,
        }
    }
}

/// Tries a fault at some system calls of each operation, drawn at random, or at all of them.
///
/// `count` returns the number of calls of an operation. `try_fault` tries the n-th call, counted
/// from 1, and returns whether it exists; it gets a random generator if only some calls are tried.
fn try_faults(
    what: &str,
    operations: &[Operation],
    sample: Option<u64>,
    count: impl Fn(&mut FaultBed, Operation) -> u64,
    mut try_fault: impl FnMut(&mut FaultAttempt, u64, Option<&mut Random>) -> bool,
) {
    if !cfg!(target_arch = "x86_64") {
        return skip("the tracer of system calls is written for x86-64");
    }
    let mut random = Random::new(seed(what));
    let mut fault_bed = FaultBed::new();
    let mut faults = Vec::new();
    for operation in operations {
        let states = fault_bed.states_without_fault(*operation);
        let count = count(&mut fault_bed, *operation);
        let mut at = FaultAttempt {
            fault_bed: &mut fault_bed,
            operation: *operation,
            states: &states,
            faults: &mut faults,
        };
        match sample {
            Some(tries) => {
                for _ in 0..tries {
                    let n = 1 + random.below(count);
                    println!("{operation:?}: {n} of {count}");
                    try_fault(&mut at, n, Some(&mut random));
                }
            }
            None => {
                let mut n = 1;
                // The daemon's periodic work adds calls, so the last call is reached when a call
                // does not exist.
                while try_fault(&mut at, n, None) || n < count {
                    n += 1;
                }
                println!("{operation:?}: {n} calls, {} faults", at.faults.len());
            }
        }
        fault_bed.remove_policy();
    }
    fault_bed.finish(faults);
}

/// The operation at which a fault is tried, and its expected states.
struct FaultAttempt<'a> {
    fault_bed: &'a mut FaultBed,
    operation: Operation,
    /// The states before and after the operation.
    states: &'a (State, State),
    faults: &'a mut Vec<String>,
}

impl FaultAttempt<'_> {
    /// Executes the operation; `decide` chooses the call at which the daemon is killed or which
    /// fails. Returns this call and the response to the operation. The error is `false` if no call
    /// was chosen (the operation has no n-th call), and `true` if the attempt ended otherwise,
    /// which is recorded as a fault.
    fn trace(
        &mut self,
        n: u64,
        decide: impl FnMut(&Call) -> Action,
    ) -> Result<(String, Result<Response, ClientError>), bool> {
        self.fault_bed.prepare(self.operation);
        let traced = self.fault_bed.trace(self.operation, decide);
        let (outcome, answer) = traced.expect("it is followed");
        match outcome {
            Outcome::Killed(call) | Outcome::Failed(call) => Ok((call, answer)),
            Outcome::ConditionMet => Err(false),
            other => {
                let text = format!("{:?}, call {n}: {other:?}", self.operation);
                self.faults.push(text);
                self.fault_bed.reset();
                Err(true)
            }
        }
    }

    /// Judges the state by the response: as before, as requested, or either if there was no
    /// response.
    fn check_state(&self, answer: &Result<Response, ClientError>, found: &mut Vec<String>) {
        let (before, asked) = (&self.states.0, &self.states.1);
        match answer {
            Ok(Response::Refused(_) | Response::Failed(_)) => {
                self.fault_bed.await_state(&[before], found)
            }
            Ok(_) => self.fault_bed.await_state(&[asked], found),
            Err(_) => self.fault_bed.await_state(&[before, asked], found),
        }
    }

    /// Checks that root's limit exists if the operation keeps it.
    fn check_root_limit(&self, when: &str, found: &mut Vec<String>) {
        if self.operation.keeps_root_limit() {
            let missing = self.fault_bed.missing_of_root_limit();
            if !missing.is_empty() {
                found.push(format!("root's limit lacks, {when}: {missing:?}"));
            }
        }
    }

    /// Reports faults, and starts from an empty state after them.
    fn record(&mut self, what: &str, found: &[String]) {
        if !found.is_empty() {
            let text = format!("{:?}, {what}: {}", self.operation, found.join("; "));
            println!("{text}");
            self.faults.push(text);
            self.fault_bed.reset();
        }
    }
}

/// The number of an operation's calls for which `counts` holds.
fn count_calls(
    fault_bed: &mut FaultBed,
    operation: Operation,
    mut counts: impl FnMut(&Call) -> bool,
) -> u64 {
    fault_bed.prepare(operation);
    let mut seen = 0;
    let counted = fault_bed.trace(operation, |call| {
        seen += u64::from(counts(call));
        Action::Execute
    });
    let (outcome, _) = counted.expect("it is followed");
    assert_eq!(outcome, Outcome::ConditionMet);
    seen
}

/// A policy, and the policy that replaces it.
const POLICY: [&str; 2] = [
    "[[rule]]\nname = \"a\"\nmatch = \"user:61234\"\nup = \"5mbit\"\n",
    "[[rule]]\nname = \"a\"\nmatch = \"user:61234\"\nup = \"6mbit\"\n\
     [[rule]]\nname = \"b\"\nmatch = \"user:61235\"\ndown = \"7mbit\"\n",
];
const SECOND: u64 = 1_000_000_000;
const WINDOW: u64 = SECOND / 4;
/// Time limit for a state: a daemon examines the machine every second.
const STATE_TIMEOUT: Duration = Duration::from_secs(8);
/// Number of faults that are printed; further ones usually have the same cause.
const MAX_PRINTED_FAULTS: usize = 12;
