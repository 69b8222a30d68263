//! The common parts of those traffic programs that print a [`Report`]: start and end (`go`, `stop`,
//! an end by itself), the counters of their threads, and the sampler that records the counts over
//! time. [`run_until_end`] prints the report and ends the process. No call fails; a failed send is
//! counted by the name of its error.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Report;
use crate::sys;

/// Arguments of a traffic program: when it begins and ends, and how often it samples.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// Wait for the line `go` on standard input before sending.
    #[arg(long)]
    pub wait: bool,
    /// End by itself after so many milliseconds; end of input is then no reason to end.
    #[arg(long)]
    pub for_ms: Option<u64>,
    /// End by itself soon after so many payload bytes were received.
    #[arg(long)]
    pub until_received: Option<u64>,
    /// Microseconds between two samples.
    #[arg(long, default_value_t = 10_000)]
    pub sample_us: u64,
}

/// Time between the last expected byte and the end of the program, in which duplicates are counted.
const DUPLICATES_WINDOW: Duration = Duration::from_millis(50);

/// The counters of a program's threads. They become the fields of the same names in [`Report`].
#[derive(Default)]
pub struct Tally {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub received_wire: AtomicU64,
    pub sends: AtomicU64,
    pub refused: Mutex<BTreeMap<String, u64>>,
    pub round_trips: Mutex<Vec<(u64, u64)>>,
    pub lost: AtomicU64,
    pub first_ns: AtomicU64,
    pub stops: Mutex<Vec<(u64, u64)>>,
    /// Set when the traffic may begin.
    pub going: AtomicBool,
    /// What is called once at the end, to add what only the end of the traffic shows.
    pub at_end: Mutex<Option<AtEnd>>,
}

/// Adds to a report what is counted elsewhere.
pub type AtEnd = Box<dyn FnOnce(&mut Report) + Send>;

impl Tally {
    /// Counts a send call that failed, by the name of the error.
    pub fn count_error(&self, error: &std::io::Error) {
        let name = match error.raw_os_error() {
            Some(libc::ENOBUFS) => "ENOBUFS".to_owned(),
            Some(libc::EAGAIN) => "EAGAIN".to_owned(),
            Some(libc::ECONNREFUSED) => "ECONNREFUSED".to_owned(),
            _ => error.to_string(),
        };
        self.count_refused(&name);
    }

    /// Counts a packet that was not sent, by the reason `why`.
    pub fn count_refused(&self, why: &str) {
        let mut refused = locked(&self.refused);
        *refused.entry(why.to_owned()).or_default() += 1;
    }

    /// Sleeps until the traffic may begin: at once, or with `--wait` after the line `go` on
    /// standard input.
    pub fn await_go(&self) {
        while !self.going.load(Relaxed) {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Runs a program: prints that it is ready, waits for `go` with `--wait`, samples until the end,
/// prints the report and ends the process. The end is the line `stop`, the end of standard input
/// (not with `--for-ms`), or one of the limits in `run`. Threads are not joined, because many are
/// in a blocking call.
///
/// `wire` returns received wire bytes that only the sockets count; they are added to the tally's.
pub fn run_until_end(run: &RunArgs, tally: &Arc<Tally>, wire: impl Fn() -> u64) -> ! {
    let commands = read_commands();
    println!(
        "{}",
        serde_json::json!({"ready": true, "pid": std::process::id()})
    );
    let stopped = |within: Duration| match commands.recv_timeout(within) {
        Ok(line) => line == "stop",
        Err(RecvTimeoutError::Timeout) => false,
        Err(RecvTimeoutError::Disconnected) => {
            std::thread::sleep(within);
            run.for_ms.is_none()
        }
    };
    if run.wait {
        while !matches!(commands.recv().as_deref(), Ok("go") | Err(_)) {}
    }
    let mut report = Report {
        started_ns: sys::now_ns(),
        ..Report::default()
    };
    tally.going.store(true, Relaxed);
    let started = Instant::now();
    let cpu = sys::cpu_time();
    let step = Duration::from_micros(run.sample_us.max(100));
    let mut next = started;
    loop {
        let received = tally.received_wire.load(Relaxed) + wire();
        let (sent, payload) = (tally.sent.load(Relaxed), tally.received.load(Relaxed));
        report.series.push((sys::now_ns(), sent, received, payload));
        next += step;
        if stopped(next.saturating_duration_since(Instant::now())) {
            break;
        }
        if run
            .for_ms
            .is_some_and(|ms| started.elapsed() >= Duration::from_millis(ms))
        {
            break;
        }
        if run
            .until_received
            .is_some_and(|bytes| tally.received.load(Relaxed) >= bytes)
        {
            // Duplicates arrive in this time.
            std::thread::sleep(DUPLICATES_WINDOW);
            break;
        }
    }
    let spent = sys::cpu_time();
    report.ended_ns = sys::now_ns();
    report.user_ns = (spent.0 - cpu.0).as_nanos() as u64;
    report.system_ns = (spent.1 - cpu.1).as_nanos() as u64;
    report.sent = tally.sent.load(Relaxed);
    report.received = tally.received.load(Relaxed);
    report.received_wire = tally.received_wire.load(Relaxed) + wire();
    report.sends = tally.sends.load(Relaxed);
    report.refused = locked(&tally.refused).clone();
    report.round_trips = locked(&tally.round_trips).clone();
    report.lost = tally.lost.load(Relaxed);
    report.first_ns = tally.first_ns.load(Relaxed);
    report.stops = locked(&tally.stops).clone();
    let at_end = locked(&tally.at_end).take();
    if let Some(add) = at_end {
        add(&mut report);
    }
    println!(
        "{}",
        serde_json::to_string(&report).expect("a report is plain data")
    );
    std::process::exit(0);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics with it")
}

/// Lines from standard input; the channel closes at end of input.
fn read_commands() -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if send.send(line.trim().to_owned()).is_err() {
                break;
            }
        }
    });
    receive
}

/// Calls `send` at `bits` per second on the wire, with frames of `frame` bytes, at most `count`
/// times and until it returns `false`. After a blocked send it catches up on at most 20 ms of
/// backlog (at least one frame), so that the offered rate stays exact.
pub fn send_paced(frame: u64, bits: u64, count: u64, mut send: impl FnMut() -> bool) {
    let gap = frame as f64 * 8e9 / bits as f64;
    let backlog = Duration::from_millis(20).max(Duration::from_nanos(gap as u64));
    let mut due = Instant::now();
    let mut left = count;
    while left > 0 {
        let now = Instant::now();
        if due > now {
            std::thread::sleep((due - now).max(SHORTEST_SLEEP));
            continue;
        }
        if now - due > backlog {
            due = now - backlog;
        }
        if !send() {
            return;
        }
        left -= 1;
        due += Duration::from_nanos(gap as u64);
    }
}

/// The shortest sleep between two frames.
const SHORTEST_SLEEP: Duration = Duration::from_micros(200);

/// Bytes of the Ethernet header and the IP header without options.
pub fn frame_overhead(ipv6: bool) -> u64 {
    14 + if ipv6 { 40 } else { 20 }
}
