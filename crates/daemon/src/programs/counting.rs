//! The thread that counts ([`ProgramCounting`]), and the requests that wait for it.
//!
//! ```text
//!             submit                      Ask                    last request + its time to keep
//!   requests ────────> waiting or answered ───> thread: load, read ──────────────────> unload
//!                        ^                        │ Counted::Snapshot, Counted::Failed    │
//!                        └──────── handle <───────┴───────────────── Counted::Ended <─────┘
//! ```
//!
//! The thread loads the programs of the kernel at its start, and unloads them before it ends. It
//! reads the counts when asked, but at most every [`MIN_INTERVAL`] (half a second), and so seldom
//! that readings take at most 2 % of the time: clients that ask more often get the last snapshot.
//! Walks over `/proc`, which have a bound of their own, visit at most [`MOST_DESCRIPTORS`]
//! (200,000) descriptors. If loading or
//! reading fails, the waiting requests fail with that error, and so do further ones for
//! [`RETRY_PAUSE`] (5 s).

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;

use netnice_core::units::{Instant, Nanos};
use netnice_kernel::netlink::NetlinkClient;
use netnice_kernel::usage::{self, Reading, UsageCounter};
use netnice_kernel::{KernelError, cgroup, connections, process};
use tokio::sync::mpsc;

use super::Snapshot;
use super::accounts::{Accounts, Facts};
use super::owners::Owners;

/// A message of the thread.
#[derive(Debug)]
pub(crate) enum Counted {
    /// The counts were read.
    Snapshot(Arc<Snapshot>),
    /// The programs could not be loaded, or the counts not be read. The thread ends.
    Failed(String),
    /// The thread has ended; nothing is counted.
    Ended,
}

/// A message to the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ask {
    /// How long to count without another message.
    keep: Nanos,
    /// True to read the counts and send a snapshot.
    read: bool,
}

/// The counting, as the event loop sees it. `P` is a waiting request.
#[derive(Debug)]
pub(crate) struct ProgramCounting<P> {
    waiting: Vec<P>,
    /// The longest time to keep of the waiting requests.
    keep: Nanos,
    thread: Option<Sender<Ask>>,
    /// True while the thread owes a snapshot.
    is_reading: bool,
    last: Option<Arc<Snapshot>>,
    /// When counting failed last, and why.
    failed: Option<(Instant, String)>,
    messages: mpsc::Sender<Counted>,
}

/// Requests that waited, and their result: the counts, or the reason why there are none.
pub(crate) type Answered<P> = (Vec<P>, Result<Arc<Snapshot>, String>);

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Submitted<P> {
    /// The counts are there.
    Answer(P, Arc<Snapshot>),
    /// The request waits for [`ProgramCounting::handle`].
    Waits,
    /// Counting is not possible, for this reason.
    Fails(P, String),
}

impl<P> ProgramCounting<P> {
    /// Starts without a thread; the receiver gets the messages of the threads.
    pub(crate) fn new() -> (ProgramCounting<P>, mpsc::Receiver<Counted>) {
        let (messages, received) = mpsc::channel(QUEUE_LENGTH);
        let counting = ProgramCounting {
            waiting: Vec::new(),
            keep: Nanos(0),
            thread: None,
            is_reading: false,
            last: None,
            failed: None,
            messages,
        };
        (counting, received)
    }

    /// Takes a request for counts that are at most `within` old; counting continues for `keep`
    /// after it, which is brought into the range from [`KEEP`].
    pub(crate) fn submit(
        &mut self,
        request: P,
        within: Nanos,
        keep: Nanos,
        now: Instant,
    ) -> Submitted<P> {
        self.submit_with(request, within, keep, now, start_thread)
    }

    fn submit_with(
        &mut self,
        request: P,
        within: Nanos,
        keep: Nanos,
        now: Instant,
        start: impl FnOnce(mpsc::Sender<Counted>) -> io::Result<Sender<Ask>>,
    ) -> Submitted<P> {
        let keep = keep.clamp(KEEP.0, KEEP.1);
        if let Some((_, why)) = self
            .failed
            .as_ref()
            .filter(|(at, _)| now.since(*at) < RETRY_PAUSE)
        {
            return Submitted::Fails(request, why.clone());
        }
        let within = within.max(MIN_INTERVAL);
        let fresh = self.last.clone().filter(|last| now.since(last.at) < within);
        let ask = Ask {
            keep,
            read: fresh.is_none() && !self.is_reading,
        };
        if let Err(error) = self.ask(ask, start) {
            return Submitted::Fails(request, error.to_string());
        }
        match fresh {
            Some(fresh) => Submitted::Answer(request, fresh),
            None => {
                self.is_reading = true;
                self.keep = self.keep.max(keep);
                self.waiting.push(request);
                Submitted::Waits
            }
        }
    }

    /// Sends a message to the thread, which is started if there is none. Fails if it cannot be
    /// started.
    fn ask(
        &mut self,
        ask: Ask,
        start: impl FnOnce(mpsc::Sender<Counted>) -> io::Result<Sender<Ask>>,
    ) -> io::Result<()> {
        let thread = match &self.thread {
            Some(thread) => thread,
            None => self.thread.insert(start(self.messages.clone())?),
        };
        // A thread that ends meanwhile sends `Ended`, and `handle` asks another one.
        let _ = thread.send(ask);
        Ok(())
    }

    /// Handles a message of the thread. Returns the requests that waited for it, with their
    /// result.
    pub(crate) fn handle(&mut self, message: Counted, now: Instant) -> Option<Answered<P>> {
        self.handle_with(message, now, start_thread)
    }

    fn handle_with(
        &mut self,
        message: Counted,
        now: Instant,
        start: impl FnOnce(mpsc::Sender<Counted>) -> io::Result<Sender<Ask>>,
    ) -> Option<Answered<P>> {
        let result = match message {
            Counted::Snapshot(snapshot) => {
                self.last = Some(Arc::clone(&snapshot));
                Ok(snapshot)
            }
            Counted::Failed(why) => {
                self.failed = Some((now, why.clone()));
                Err(why)
            }
            Counted::Ended => {
                (self.thread, self.last, self.is_reading) = (None, None, false);
                if self.waiting.is_empty() {
                    return None;
                }
                self.is_reading = true;
                let ask = Ask {
                    keep: self.keep,
                    read: true,
                };
                match self.ask(ask, start) {
                    Ok(()) => return None,
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        (self.is_reading, self.keep) = (false, Nanos(0));
        Some((std::mem::take(&mut self.waiting), result))
    }
}

/// Starts the thread. Fails if the system gives none.
fn start_thread(messages: mpsc::Sender<Counted>) -> io::Result<Sender<Ask>> {
    let (to_thread, asks) = channel();
    thread::Builder::new()
        .name("programs".to_owned())
        .spawn(move || {
            // The receiver of the messages is dropped while the daemon stops.
            if let Err(error) = count(&asks, &messages) {
                let _ = messages.blocking_send(Counted::Failed(error.to_string()));
            }
            drop(asks);
            let _ = messages.blocking_send(Counted::Ended);
        })?;
    Ok(to_thread)
}

/// Counts until no message came for the time of the last one. Fails if the programs cannot be
/// loaded or the counts cannot be read.
fn count(asks: &Receiver<Ask>, messages: &mpsc::Sender<Counted>) -> Result<(), KernelError> {
    let mut counter = Counter {
        usage: UsageCounter::load()?,
        accounts: Accounts::new(process::monotonic()),
        owners: Owners::default(),
        is_walk_complete: true,
        next_reading: Instant(0),
        last: None,
    };
    let mut until = process::monotonic().after(KEEP.0);
    loop {
        let now = process::monotonic();
        match asks.recv_timeout(until.since(now).into()) {
            Ok(ask) => {
                until = until.max(process::monotonic().after(ask.keep));
                if !ask.read {
                    continue;
                }
                let snapshot = counter.snapshot()?;
                if messages.blocking_send(Counted::Snapshot(snapshot)).is_err() {
                    return Ok(());
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// The state of the thread.
struct Counter {
    usage: UsageCounter,
    accounts: Accounts,
    owners: Owners,
    /// False if the last walk ended before it had visited all descriptors.
    is_walk_complete: bool,
    next_reading: Instant,
    last: Option<Arc<Snapshot>>,
}

impl Counter {
    /// The present sums, or the last ones if a reading is not due.
    fn snapshot(&mut self) -> Result<Arc<Snapshot>, KernelError> {
        let began = process::monotonic();
        if let Some(last) = self.last.clone().filter(|_| began < self.next_reading) {
            return Ok(last);
        }
        let reading = self.usage.read()?;
        let walked = self.find_owners(&reading);
        let owners = &self.owners;
        self.accounts
            .update(&reading, |cookie, usage| owners.of(cookie, usage));
        self.check_processes();
        for cookie in self.accounts.idle() {
            let last = self.usage.take(cookie)?;
            self.accounts.close(cookie, last.as_ref());
        }
        let mut snapshot = self.accounts.snapshot();
        if !self.is_walk_complete {
            snapshot.remarks.push(format!(
                "the host has more than {MOST_DESCRIPTORS} open descriptors: programs whose \
                 sockets are older than the counting may be missing"
            ));
        }
        let snapshot = Arc::new(snapshot);
        self.last = Some(Arc::clone(&snapshot));
        let took = process::monotonic().since(began.after(walked));
        let pause = Nanos(took.0.saturating_mul(PAUSE_FACTOR)).max(MIN_INTERVAL);
        self.next_reading = began.after(pause);
        Ok(snapshot)
    }

    /// Looks for the holders of sockets whose owner is not known, if a walk is due. If the sockets
    /// cannot be listed, they stay unknown until the next walk. Returns the time that it took.
    fn find_owners(&mut self, reading: &Reading) -> Nanos {
        let began = process::monotonic();
        if !self.owners.needs_walk(reading, began) {
            return Nanos(0);
        }
        let listed =
            NetlinkClient::open_diagnosis().and_then(|mut diag| connections::list(&mut diag));
        let sockets = listed.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the sockets, so programs stay unknown");
            Vec::new()
        });
        let inodes: HashSet<u64> = sockets.iter().map(|socket| socket.inode).collect();
        let holders = usage::holders(&inodes, MOST_DESCRIPTORS);
        self.is_walk_complete = holders.is_complete;
        let ended = process::monotonic();
        self.owners
            .record_walk(reading, &sockets, &holders, began, ended);
        ended.since(began)
    }

    /// Reads which programs still live, and the facts of some.
    fn check_processes(&mut self) {
        for (process, read_facts) in self.accounts.processes_to_check() {
            let facts = read_facts.then(|| facts(process.pid)).flatten();
            // The start time shows that the facts are not those of a later process.
            let lives = process::start_time(process.pid) == Some(process.started);
            match lives {
                true => self.accounts.lives(process, facts),
                false => self.accounts.ended(process),
            }
        }
    }
}

fn facts(pid: u32) -> Option<Facts> {
    let facts = process::facts(pid)?;
    Some(Facts {
        uid: facts.uid,
        command: facts.name,
        cgroup: cgroup::of_process(pid),
    })
}

/// Length of the queue of messages that the event loop has not taken.
const QUEUE_LENGTH: usize = 4;
/// The shortest time between two readings.
const MIN_INTERVAL: Nanos = Nanos::from_millis(500);
/// The time between two readings is at least this many times as long as a reading.
const PAUSE_FACTOR: u64 = 50;
/// The shortest and the longest time for which counting continues after a request.
pub(super) const KEEP: (Nanos, Nanos) = (Nanos::from_secs(2), Nanos::from_secs(30));
/// How long requests fail after counting has failed.
const RETRY_PAUSE: Nanos = Nanos::from_secs(5);
/// The largest number of descriptors that a walk visits.
const MOST_DESCRIPTORS: usize = 200_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant(0).after(Nanos::from_millis(100_000 + millis))
    }

    /// A thread that only records the requests to it.
    struct FakeThread {
        asks: Receiver<Ask>,
    }

    impl FakeThread {
        fn new() -> (FakeThread, Sender<Ask>) {
            let (to_thread, asks) = channel();
            (FakeThread { asks }, to_thread)
        }

        fn asked(&self) -> Vec<(u64, bool)> {
            let asks = self.asks.try_iter();
            asks.map(|ask| (ask.keep.0 / 1_000_000_000, ask.read))
                .collect()
        }
    }

    fn snapshot(at: Instant) -> Arc<Snapshot> {
        Arc::new(Snapshot {
            at,
            ..Snapshot::default()
        })
    }

    fn submit(
        counting: &mut ProgramCounting<u32>,
        request: u32,
        now: Instant,
        thread: Option<Sender<Ask>>,
    ) -> Submitted<u32> {
        let second = Nanos::from_secs(1);
        counting.submit_with(request, second, Nanos::from_secs(3), now, |_| {
            Ok(thread.expect("no further thread"))
        })
    }

    #[test]
    fn requests_share_one_reading_and_each_prolongs_the_counting() {
        let (mut counting, _messages) = ProgramCounting::new();
        let (fake, thread) = FakeThread::new();
        let first = submit(&mut counting, 1, at(0), Some(thread));
        assert!(matches!(first, Submitted::Waits));
        let second = submit(&mut counting, 2, at(1), None);
        assert!(matches!(second, Submitted::Waits));
        assert_eq!(fake.asked(), [(3, true), (3, false)]);
        let done = counting.handle(Counted::Snapshot(snapshot(at(5))), at(6));
        let (waited, result) = done.expect("an answer");
        assert_eq!((waited, result.is_ok()), (vec![1, 2], true));
        let third = submit(&mut counting, 3, at(900), None);
        assert!(matches!(third, Submitted::Answer(3, _)));
        assert_eq!(fake.asked(), [(3, false)]);
        let fourth = submit(&mut counting, 4, at(1_005), None);
        assert!(matches!(fourth, Submitted::Waits));
        assert_eq!(fake.asked(), [(3, true)]);
    }

    #[test]
    fn no_request_makes_the_thread_read_more_than_twice_a_second_or_count_for_ever() {
        let (mut counting, _messages) = ProgramCounting::new();
        let (fake, thread) = FakeThread::new();
        let ages = [Nanos(0), Nanos(u64::MAX)];
        for (request, within) in ages.into_iter().enumerate() {
            let thread = thread.clone();
            let keep = Nanos(u64::MAX);
            drop(counting.submit_with(request, within, keep, at(0), |_| Ok(thread)));
        }
        assert_eq!(fake.asked(), [(30, true), (30, false)]);
        drop(counting.handle(Counted::Snapshot(snapshot(at(0))), at(1)));
        let soon = counting.submit_with(9, Nanos(0), Nanos(0), at(400), |_| unreachable!());
        assert!(matches!(soon, Submitted::Answer(9, _)));
        assert_eq!(fake.asked(), [(2, false)]);
    }

    #[test]
    fn a_request_that_meets_the_end_of_the_thread_gets_another_one() {
        let (mut counting, _messages) = ProgramCounting::new();
        let (fake, thread) = FakeThread::new();
        drop(submit(&mut counting, 1, at(0), Some(thread)));
        drop(fake);
        let (fake, thread) = FakeThread::new();
        let done = counting.handle_with(Counted::Ended, at(1), |_| Ok(thread));
        assert!(done.is_none());
        assert_eq!(fake.asked(), [(3, true)]);
        let done = counting.handle(Counted::Snapshot(snapshot(at(5))), at(6));
        assert_eq!(done.expect("an answer").0, [1]);
        // Without a waiting request no thread is started.
        let done = counting.handle_with(Counted::Ended, at(9), |_| unreachable!());
        assert!(done.is_none());
    }

    #[test]
    fn a_failed_start_is_repeated_only_after_some_seconds() {
        let (mut counting, _messages) = ProgramCounting::new();
        let (_fake, thread) = FakeThread::new();
        drop(submit(&mut counting, 1, at(0), Some(thread)));
        let done = counting.handle(Counted::Failed("no BTF".into()), at(1));
        let (waited, result) = done.expect("an answer");
        assert_eq!((waited, result), (vec![1], Err("no BTF".into())));
        assert!(counting.handle(Counted::Ended, at(2)).is_none());
        match submit(&mut counting, 2, at(4_000), None) {
            Submitted::Fails(2, why) => assert_eq!(why, "no BTF"),
            other => panic!("{other:?}"),
        }
        let (_fake, thread) = FakeThread::new();
        let again = submit(&mut counting, 3, at(6_000), Some(thread));
        assert!(matches!(again, Submitted::Waits));
    }
}
