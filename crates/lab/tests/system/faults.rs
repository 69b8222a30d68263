//! What happens in the midst of a change: the daemon is killed before each of its system calls, or one of them
//! fails. Whatever the moment, the change is there or it is not, a limit of root's is never off, and nothing half
//! done is left.
//!
//! A [`Bench`] is a desk on which a program sends three times as much as root's limit lets it, all the time. An
//! [`Operation`] is one change, tried again and again from the same state. Judged are
//!
//! 1. what `show --json` says: as before or as asked, and as the answer said where there was one;
//! 2. what the kernel has of root's limit: its class, its entries in the maps, by `tc` and `bpftool`, also between the
//!    death of one daemon and the start of the next;
//! 3. what is in the network namespace and in the runtime folder: what a daemon that was never disturbed has there;
//! 4. what arrives at the other end of the cable, every 50 ms.
//!
//! Each module has a sample of the moments, drawn by a seed that it prints, for `make test`; and all moments, for
//! `make test-long`.

mod denied;
mod killed;
mod random;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netnice_api::{
    Clear, ClearWhat, Client, ClientError, LinkChange, Reload, Request, Response, RuntimeDir, Set,
    Show,
};
use netnice_lab::desk::{Desk, skip, soon};
use netnice_lab::experiment::bench::pause;
use netnice_lab::process::{PATIENCE, Proc};
use netnice_lab::storm::seed;
use netnice_lab::sys;
use netnice_lab::tracer::{Call, Outcome, Tracer, Verdict};
use netnice_lab::traffic::{self, Running, Udp};
use netnice_lab::world::{Door, Netnice, traces};
use netnice_sim::Random;
use serde_json::Value;

/// Root's limit, as it is typed, and in bit/s; and what the limited program sends.
const ROOTS: (&str, u64) = ("8mbit", 8_000_000);
const OFFERED: u64 = 24_000_000;
/// How `tc` prints a class of that rate.
const ROOTS_CLASS: &str = "8Mbit";

/// One change, and the state that it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// A second target beside root's.
    Set,
    /// It is taken back.
    Clear,
    /// A policy is read that asks for a third target and for another rate of a fourth.
    Reload,
    /// A link is managed.
    Link,
    /// A daemon starts, and takes over from one that was killed.
    Start,
    /// The first limit of all: what there is to be loaded is loaded.
    First,
    /// Everything is taken back: what was loaded is unloaded.
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

    /// Whether root's limit is there before, while and after.
    fn keeps_roots(self) -> bool {
        !matches!(self, Operation::First | Operation::All)
    }

    fn request(self, bench: &Bench) -> Request {
        match self {
            Operation::Set => set(bench.other.pid(), "up 4mbit"),
            Operation::Clear => clear(ClearWhat::Target(bench.target(bench.other.pid()))),
            Operation::Reload => Request::Reload(Reload {}),
            Operation::Link => Request::Link(LinkChange {
                iface: "eth0".to_owned(),
                rate: Some("100mbit".to_owned()),
                down_rate: Some("50mbit".to_owned()),
                ..LinkChange::default()
            }),
            // That it answers is what is waited for.
            Operation::Start => Request::Show(Show::default()),
            Operation::First => set(bench.root.pid(), &format!("up {}", ROOTS.0)),
            Operation::All => clear(ClearWhat::All),
        }
    }

    /// The process that the request means.
    fn process(self, bench: &Bench) -> Option<u32> {
        match self {
            Operation::Set => Some(bench.other.pid()),
            Operation::First => Some(bench.root.pid()),
            _ => None,
        }
    }
}

fn set(pid: u32, change: &str) -> Request {
    Request::Set(Set {
        target: format!("pid:{pid}"),
        change: Some(change.to_owned()),
        ..Set::default()
    })
}

fn clear(what: ClearWhat) -> Request {
    Request::Clear(Clear {
        what,
        dry_run: false,
        confirm_ns: None,
        for_ns: None,
        until: None,
    })
}

/// The answer to a request, as it arrives on a thread of its own: the daemon is stopped again and again meanwhile.
struct Asked {
    thread: JoinHandle<Result<Response, ClientError>>,
}

impl Asked {
    /// Sends a request; with it travels a pidfd of the process that it means.
    fn ask(netnice: &Netnice, request: Request, process: Option<u32>) -> Asked {
        let client = Client::connect(&dir(netnice)).expect("the daemon listens");
        let pidfd = process.map(pidfd);
        let thread = std::thread::spawn(move || {
            let mut client = client;
            client.call(&request, pidfd.as_ref().map(AsFd::as_fd))
        });
        Asked { thread }
    }

    /// Asks a daemon that starts, as soon as it listens, or until nobody wants to know any more.
    fn ask_once_it_listens(netnice: &Netnice, request: Request, over: &Arc<AtomicBool>) -> Asked {
        let (dir, over) = (dir(netnice), over.clone());
        let thread = std::thread::spawn(move || {
            loop {
                match Client::connect(&dir) {
                    Ok(mut client) => break client.call(&request, None),
                    Err(error) if over.load(Ordering::Relaxed) => break Err(error),
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Asked { thread }
    }

    fn has_come(&self) -> bool {
        self.thread.is_finished()
    }

    fn answer(self) -> Result<Response, ClientError> {
        self.thread.join().expect("it does not panic")
    }
}

fn dir(netnice: &Netnice) -> RuntimeDir {
    RuntimeDir::choose(Some(netnice.runtime().to_owned()), None)
}

fn pidfd(pid: u32) -> std::os::fd::OwnedFd {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a number");
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("it lives")
}

/// Everything that is looked at when the daemon is at rest.
#[derive(Clone, Debug, PartialEq)]
struct State {
    shown: Value,
    /// Interfaces, queues, classes and files, one line each.
    traces: BTreeSet<String>,
}

/// A desk with a program under root's limit, and one that is to get a limit.
struct Bench {
    desk: Desk,
    root: Running,
    other: Proc,
    third: Proc,
    watch: Watch,
    /// What the kernel has of root's limit.
    roots: Option<BTreeSet<String>>,
}

impl Bench {
    fn new() -> Bench {
        let desk = Desk::new().expect("a desk");
        let to = desk.sink(5001).expect("a sink");
        let flood = Udp::source(desk.client(4001), to).rate(OFFERED);
        let root = traffic::eager(desk.world.client(), &flood).expect("a program");
        let (other, third) = (desk.sleeper(), desk.sleeper());
        let watch = Watch::new(desk.world.server().ns.door());
        Bench {
            desk,
            root,
            other,
            third,
            watch,
            roots: None,
        }
    }

    fn target(&self, pid: u32) -> String {
        format!("pid:{pid}")
    }

    /// Makes the state that an operation begins with. What is in force of it already is left alone.
    fn prepare(&mut self, operation: Operation) {
        let (root, other) = (self.root.pid(), self.other.pid());
        if !operation.keeps_roots() {
            self.watch.rest();
            // It will be another target.
            self.roots = None;
        }
        match operation {
            Operation::First => return self.lift_all(),
            Operation::All => self.hold(root, ROOTS.0),
            _ => {
                self.hold(root, ROOTS.0);
                if self.roots.is_none() {
                    pause(0.3);
                    self.roots = Some(self.of_root());
                    self.watch.begin();
                }
            }
        }
        match operation {
            Operation::Set | Operation::Reload | Operation::Link => self.lift(other),
            Operation::Clear | Operation::Start | Operation::All => self.hold(other, "4mbit"),
            Operation::First => {}
        }
        let policy = self.desk.netnice.policy();
        match operation {
            Operation::Reload | Operation::Start => {
                let there = std::fs::read_to_string(&policy).is_ok_and(|text| text == POLICY[0]);
                std::fs::write(&policy, POLICY[0]).expect("a policy");
                if !there {
                    self.desk.types("reload");
                }
                if operation == Operation::Reload {
                    std::fs::write(&policy, POLICY[1]).expect("a policy");
                }
            }
            Operation::Link if !self.shown()["links"].as_array().is_some_and(Vec::is_empty) => {
                self.desk.types("link eth0 --unmanage");
            }
            _ => {}
        }
    }

    /// Back to no policy.
    fn without_policy(&mut self) {
        let policy = self.desk.netnice.policy();
        if policy.exists() {
            std::fs::write(&policy, "").expect("a policy");
            self.desk.types("reload");
            std::fs::remove_file(&policy).expect("it is there");
        }
    }

    fn hold(&self, pid: u32, rate: &str) {
        let name = self.target(pid);
        if self.desk.target(&name).is_null() {
            self.desk.types(&format!("set {name} --up {rate}"));
        }
    }

    fn lift(&self, pid: u32) {
        let name = self.target(pid);
        if !self.desk.target(&name).is_null() {
            self.desk.types(&format!("clear {name}"));
        }
    }

    fn lift_all(&self) {
        let shown = self.shown();
        let none = |what: &str| shown[what].as_array().is_some_and(Vec::is_empty);
        if !none("targets") || !none("links") {
            self.desk.types("clear --all");
        }
    }

    fn shown(&self) -> Value {
        self.desk.netnice.show_standing().expect("a show")
    }

    /// The state of a daemon that is at rest.
    fn state(&self) -> State {
        State {
            shown: self.shown(),
            traces: self.traces(),
        }
    }

    /// The states before and after an operation that nothing disturbs.
    fn undisturbed(&mut self, operation: Operation) -> (State, State) {
        self.prepare(operation);
        let before = self.at_rest();
        let outcome = self.trace(operation, |_| Verdict::Go);
        let (outcome, answer) = outcome.expect("it is followed");
        assert_eq!(outcome, Outcome::Over, "{operation:?}: {answer:?}");
        let answer = answer.expect("an answer");
        let refused = matches!(answer, Response::Refused(_) | Response::Failed(_));
        assert!(!refused, "{operation:?}: {answer:?}");
        (before, self.at_rest())
    }

    /// The state once it does not change any more.
    fn at_rest(&self) -> State {
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

    /// Carries an operation out while the daemon is traced.
    fn trace(
        &mut self,
        operation: Operation,
        judge: impl FnMut(&Call) -> Verdict,
    ) -> anyhow::Result<(Outcome, Result<Response, ClientError>)> {
        let request = operation.request(self);
        let over = Arc::new(AtomicBool::new(false));
        let netnice = &mut self.desk.netnice;
        if operation == Operation::Start {
            netnice.kill_daemon();
            let pid = netnice.start_daemon_stopped()?;
            let tracer = Tracer::seize(pid)?;
            sys::kill(pid as i32, libc::SIGCONT)?;
            let asked = Asked::ask_once_it_listens(netnice, request, &over);
            let outcome = tracer.follow(since_first_change(judge), || asked.has_come())?;
            if matches!(outcome, Outcome::Failed(_)) {
                // Either it answers, or it has ended.
                let until = Instant::now() + PATIENCE;
                while !asked.has_come() && netnice.runs() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            over.store(true, Ordering::Relaxed);
            return Ok((outcome, asked.answer()));
        }
        let pid = netnice.pid().expect("the daemon runs");
        let process = operation.process(self);
        let tracer = Tracer::seize(pid)?;
        let asked = Asked::ask(&self.desk.netnice, request, process);
        let outcome = tracer.follow(judge, || asked.has_come())?;
        Ok((outcome, asked.answer()))
    }

    /// What the kernel has of root's limit: the class, the programs, and the entries of the maps, those of other
    /// targets left out.
    fn of_root(&self) -> BTreeSet<String> {
        let ns = &self.desk.world.client().ns;
        let classes = ns.tc("class show dev nn0").unwrap_or_default();
        let classes = classes.lines().filter(|line| line.contains(ROOTS_CLASS));
        let mut found: BTreeSet<String> = classes.map(|line| line.trim().to_owned()).collect();
        // What follows forks, sockets and packets hangs on these.
        let runtime = self.desk.netnice.runtime();
        let pins = std::fs::read_dir(runtime.join("bpf")).into_iter().flatten();
        let pins = pins
            .flatten()
            .map(|pin| pin.file_name().display().to_string());
        let links = pins.filter(|pin| pin.starts_with("link_"));
        found.extend(links.map(|link| format!("pin {link}")));
        let key = |number: &str| format!("\"key\":{number} ");
        let of = |map: &str, number: &str| {
            let entries = traces::entries(runtime, map).into_iter();
            entries
                .filter(|e| e.contains(&key(number)))
                .collect::<Vec<_>>()
        };
        for member in of("procs", &traces::key(self.root.pid())) {
            // The number of the target comes first in the value.
            let value = member.split_once("] [").map_or("", |(_, value)| value);
            let number: Vec<&str> = value.split(',').take(4).collect();
            found.extend(of("targets", &format!("[{}]", number.join(","))));
            found.insert(member);
        }
        found
    }

    /// What of root's limit is not in the kernel now.
    fn missing(&self) -> Vec<String> {
        let now = self.of_root();
        let before = self.roots.iter().flatten();
        before
            .filter(|line| !now.contains(*line))
            .cloned()
            .collect()
    }

    /// Interfaces, queues, classes and files.
    fn traces(&self) -> BTreeSet<String> {
        let (ns, runtime) = (&self.desk.world.client().ns, self.desk.netnice.runtime());
        let mut found = traces::traces(ns, runtime).expect("they are listed");
        // Numbers of targets are new ones each time; how many there are is not.
        let maps = [
            "procs", "targets", "apps", "users", "ifaces", "links", "slots",
        ];
        let count = |map: &str| format!("{map}: {} entries", traces::entries(runtime, map).len());
        found.extend(maps.map(count));
        found
    }

    /// Fails what is told to it unless the daemon comes to one of these states.
    fn comes_to(&self, states: &[&State], faults: &mut Vec<String>) {
        let until = Instant::now() + SETTLED;
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

    /// Everything anew, where something went wrong: the next try shall not suffer from it.
    fn anew(&mut self) {
        self.watch.rest();
        let netnice = &mut self.desk.netnice;
        if !netnice.runs() {
            netnice.kill_daemon();
            netnice.start_daemon().expect("another daemon");
        }
        let _ = std::fs::remove_file(netnice.policy());
        self.desk.types("clear --all");
        self.desk.netnice.stop_daemon();
        let runtime = self.desk.netnice.runtime().to_owned();
        for entry in std::fs::read_dir(&runtime).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        self.roots = None;
        self.desk.netnice.start_daemon().expect("another daemon");
    }

    /// Fails if anything of ours is left when all is lifted, and if more arrived than root's limit lets through.
    fn finish(mut self, mut faults: Vec<String>) {
        self.watch.rest();
        faults.extend(self.watch.judge());
        if faults.is_empty() {
            let _ = std::fs::remove_file(self.desk.netnice.policy());
            self.desk.types("clear --all");
            self.desk.netnice.stop_daemon();
            let ours = |line: &&String| {
                ["nn0", "interface nnd", "file "]
                    .iter()
                    .any(|mark| line.contains(mark))
            };
            let left = || self.traces().iter().filter(ours).count();
            soon(|| left() == 0);
            faults.extend(self.traces().iter().filter(ours).cloned());
            self.desk.netnice.start_daemon().expect("another daemon");
        }
        let count = faults.len();
        faults.truncate(MOST_TOLD);
        assert!(faults.is_empty(), "{count} faults:\n{}", faults.join("\n"));
    }
}

/// Counts what a start does from its first change on: before, the loader looks for libraries.
fn since_first_change(mut judge: impl FnMut(&Call) -> Verdict) -> impl FnMut(&Call) -> Verdict {
    let mut begun = false;
    move |call| {
        begun |= call.changes_host();
        match begun {
            true => judge(call),
            false => Verdict::Go,
        }
    }
}

/// Looks at what arrives at the other end of the cable, again and again.
struct Watch {
    samples: Arc<Mutex<Vec<Option<Sample>>>>,
    looks: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Bytes that have arrived, read between two moments.
#[derive(Clone, Copy)]
struct Sample {
    from_ns: u64,
    to_ns: u64,
    bytes: u64,
}

impl Watch {
    fn new(door: Door) -> Watch {
        let samples: Arc<Mutex<Vec<Option<Sample>>>> = Arc::default();
        let (looks, over): (Arc<AtomicBool>, Arc<AtomicBool>) = (Arc::default(), Arc::default());
        let (into, looking, ended) = (samples.clone(), looks.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            door.settle().expect("the namespace is there");
            while !ended.load(Ordering::Relaxed) {
                let sample = looking.load(Ordering::Relaxed).then(sample);
                into.lock().expect("no panic").push(sample);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Watch {
            samples,
            looks,
            over,
            thread: Some(thread),
        }
    }

    /// From now on the limit holds.
    fn begin(&self) {
        self.looks.store(true, Ordering::Relaxed);
    }

    /// From now on it need not hold.
    fn rest(&self) {
        if self.looks.swap(false, Ordering::Relaxed) {
            self.samples.lock().expect("no panic").push(None);
        }
    }

    /// Windows in which more arrived than the limit lets through. A window has 250 ms, so a limit that is off for a
    /// tenth of a second shows; what a busy host delivers late adds to the next window, so the bound is wide there,
    /// and 3 % over all.
    fn judge(&self) -> Vec<String> {
        let samples = self.samples.lock().expect("no panic");
        let mut faults = Vec::new();
        for stretch in samples.split(Option::is_none) {
            let stretch: Vec<Sample> = stretch.iter().flatten().copied().collect();
            for (at, first) in stretch.iter().enumerate() {
                let rest = &stretch[at..];
                let Some(last) = rest.iter().find(|s| s.from_ns >= first.to_ns + WINDOW) else {
                    break;
                };
                let share = share(first, last);
                if share > 1.4 {
                    faults.push(format!("{:.0} % of the limit in 250 ms", share * 100.0));
                }
            }
            if let [first, .., last] = stretch.as_slice()
                && last.from_ns > first.to_ns + 5 * SECOND
                && share(first, last) > 1.03
            {
                let over = share(first, last) * 100.0;
                faults.push(format!("{over:.1} % of the limit all the while"));
            }
        }
        faults
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The least that the rate between two samples can have been, as a part of root's limit.
fn share(first: &Sample, last: &Sample) -> f64 {
    let bits = (last.bytes - first.bytes) as f64 * 8.0;
    bits / (last.to_ns - first.from_ns) as f64 * 1e9 / ROOTS.1 as f64
}

fn sample() -> Sample {
    let from_ns = sys::now_ns();
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let to_ns = sys::now_ns();
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("eth0:"));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    Sample {
        from_ns,
        to_ns,
        bytes: bytes.expect("the device counts"),
    }
}

/// Tries a fault at some system calls of each operation, drawn at random, or at all.
///
/// `count` says how many calls of an operation are tried. `strike` tries the n-th, counted from 1, and says whether
/// there was one; it gets chance where only some are tried.
fn strikes(
    what: &str,
    operations: &[Operation],
    sample: Option<u64>,
    count: impl Fn(&mut Bench, Operation) -> u64,
    mut strike: impl FnMut(&mut Strike, u64, Option<&mut Random>) -> bool,
) {
    if !cfg!(target_arch = "x86_64") {
        return skip("the tracer of system calls is written for x86-64");
    }
    let mut random = Random::new(seed(what));
    let mut bench = Bench::new();
    let mut faults = Vec::new();
    for operation in operations {
        let states = bench.undisturbed(*operation);
        let count = count(&mut bench, *operation);
        let mut at = Strike {
            bench: &mut bench,
            operation: *operation,
            states: &states,
            faults: &mut faults,
        };
        match sample {
            Some(tries) => {
                for _ in 0..tries {
                    let n = 1 + random.below(count);
                    println!("{operation:?}: {n} of {count}");
                    strike(&mut at, n, Some(&mut random));
                }
            }
            None => {
                let mut n = 1;
                // The daemon's own rounds come in between, so the last one is where none is reached.
                while strike(&mut at, n, None) || n < count {
                    n += 1;
                }
                println!("{operation:?}: {n} calls, {} faults", at.faults.len());
            }
        }
        bench.without_policy();
    }
    bench.finish(faults);
}

/// Where a fault is tried, and what is known of it.
struct Strike<'a> {
    bench: &'a mut Bench,
    operation: Operation,
    /// Before the operation, and after it.
    states: &'a (State, State),
    faults: &'a mut Vec<String>,
}

impl Strike<'_> {
    /// Carries the operation out while its calls are judged. The call that was struck, and the answer; or whether there
    /// is more to try.
    fn trace(
        &mut self,
        n: u64,
        judge: impl FnMut(&Call) -> Verdict,
    ) -> Result<(String, Result<Response, ClientError>), bool> {
        self.bench.prepare(self.operation);
        let traced = self.bench.trace(self.operation, judge);
        let (outcome, answer) = traced.expect("it is followed");
        match outcome {
            Outcome::Killed(call) | Outcome::Failed(call) => Ok((call, answer)),
            Outcome::Over => Err(false),
            other => {
                let text = format!("{:?}, call {n}: {other:?}", self.operation);
                self.faults.push(text);
                self.bench.anew();
                Err(true)
            }
        }
    }

    /// Judges the state by the answer: as before, as asked, or one of them where none came.
    fn judge(&self, answer: &Result<Response, ClientError>, found: &mut Vec<String>) {
        let (before, asked) = (&self.states.0, &self.states.1);
        match answer {
            Ok(Response::Refused(_) | Response::Failed(_)) => self.bench.comes_to(&[before], found),
            Ok(_) => self.bench.comes_to(&[asked], found),
            Err(_) => self.bench.comes_to(&[before, asked], found),
        }
    }

    /// Whether root's limit is there, where it has to be.
    fn keeps_roots(&self, when: &str, found: &mut Vec<String>) {
        if self.operation.keeps_roots() {
            let missing = self.bench.missing();
            if !missing.is_empty() {
                found.push(format!("root's limit lacks, {when}: {missing:?}"));
            }
        }
    }

    /// Tells what was found, and begins anew.
    fn tell(&mut self, what: &str, found: &[String]) {
        if !found.is_empty() {
            let text = format!("{:?}, {what}: {}", self.operation, found.join("; "));
            println!("{text}");
            self.faults.push(text);
            self.bench.anew();
        }
    }
}

/// How many calls of an operation `counts` holds for.
fn calls(bench: &mut Bench, operation: Operation, mut counts: impl FnMut(&Call) -> bool) -> u64 {
    bench.prepare(operation);
    let mut seen = 0;
    let counted = bench.trace(operation, |call| {
        seen += u64::from(counts(call));
        Verdict::Go
    });
    let (outcome, _) = counted.expect("it is followed");
    assert_eq!(outcome, Outcome::Over);
    seen
}

/// A policy, and what it becomes.
const POLICY: [&str; 2] = [
    "[[rule]]\nname = \"a\"\nmatch = \"user:61234\"\nup = \"5mbit\"\n",
    "[[rule]]\nname = \"a\"\nmatch = \"user:61234\"\nup = \"6mbit\"\n\
     [[rule]]\nname = \"b\"\nmatch = \"user:61235\"\ndown = \"7mbit\"\n",
];
const SECOND: u64 = 1_000_000_000;
const WINDOW: u64 = SECOND / 4;
/// How long what is to come may take to come: a daemon looks at the machine each second.
const SETTLED: Duration = Duration::from_secs(8);
/// Faults that are told; where there are more, they have the same cause.
const MOST_TOLD: usize = 12;
