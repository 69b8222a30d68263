//! Writes the programs' doorbells, in the packet thread or in a second thread.
//!
//! A doorbell is an eventfd. The kernel goes through all waiters before the write returns: less
//! than a microsecond for one waiter, half a millisecond for a program that polls the doorbell
//! 20,000 times at once. In the packet thread that time is taken from all flows, so the packet
//! thread times each of its own writes. A write that takes longer than [`SLOW_WRITE`] (100 µs)
//! makes the user of its program a *suspect* for [`SUSPECT_PERIOD`] (60 s). The machine can also
//! have stopped the thread during the write, so the writes of a suspect are judged by processor
//! time too. (On a virtual machine whose kernel does not know the time that is stolen from it,
//! processor time includes such stops; several of them in one minute's writes are rare.) A second
//! thread of ordinary priority writes the doorbells of a suspect for [`SLOW_PERIOD`] (60 s) after
//! [`SLOW_WRITES`] (3) writes that took longer than [`SLOW_WRITE`] of processor time, or
//! [`SLOW_TOTAL`] (2 ms) in all, or after [`LONG_WRITES`] (32) writes that took longer than
//! [`SLOW_WRITE`] in any way. Under load that thread can be late by many milliseconds. This holds
//! for all programs of the user, also for those that attach meanwhile, so a program cannot avoid it
//! by detaching and attaching again.
//! ```text
//!              slow writes of a suspect: SLOW_WRITES
//!   packet thread ────────────────────────────────────▶ second thread
//!      ▲                                                       │
//!      └── SLOW_PERIOD is over, and the program has had ───────┘
//!          SHORT_WRITES (64) short writes in a row there
//! ```
//! For a program that was attached before that period and has had no write in it, the packet thread
//! writes again when the period is over.
//!
//! The second thread has one queue. A program has at most one entry in the queue, so the queue does
//! not overflow while descriptors suffice; a notification that is requested while an entry waits is
//! covered by that entry. After a write that took longer than [`SLOW_WRITE`], the second thread
//! serves the same user again no sooner than after nine times as long, and at least 10 ms. So such
//! writes of one user take at most a tenth of the second thread's time, and other users wait for at
//! most one such write of each user. Only starting the second thread can fail.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;
use std::{io, mem};

use netnice_core::units::{Instant, Nanos};
use netnice_ring::doorbell::Notifier;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::clock::{monotonic, processor_time};

/// The packet thread's side of the doorbells.
#[derive(Default)]
pub(crate) struct Doorbells {
    second: Option<SecondThread>,
    /// Users whose writes take long, with the time until which this holds.
    slow_users: HashMap<u32, Instant>,
    suspects: HashMap<u32, Suspicion>,
}

/// A user whose doorbell took long to write.
struct Suspicion {
    until: Instant,
    /// Number of writes that took longer than [`SLOW_WRITE`].
    long_writes: u32,
    /// Number of those that took as long by processor time, and their processor time.
    slow_writes: u32,
    slow_total: Nanos,
}

struct SecondThread {
    /// `Some` until the drop.
    queue: Option<Producer<Job>>,
    thread: Thread,
}

impl Drop for SecondThread {
    fn drop(&mut self) {
        // The order matters: the second thread checks for an abandoned queue when it wakes.
        self.queue = None;
        self.thread.unpark();
    }
}

/// The thread that writes the doorbells of users for whom a write took long. It ends when its
/// [`Doorbells`] are dropped.
pub(crate) struct DoorbellThread(JoinHandle<()>);

/// A program's doorbell.
pub(crate) struct ProgramDoorbell {
    notifier: Notifier,
    state: Arc<DoorbellState>,
    /// The packet thread writes this doorbell itself.
    by_packet_thread: bool,
}

/// State that both threads share.
struct DoorbellState {
    uid: u32,
    /// The program has an entry in the queue.
    queued: AtomicBool,
    /// Number of short writes in a row.
    short_writes: AtomicU32,
}

struct Job {
    notifier: Notifier,
    state: Arc<DoorbellState>,
}

impl Doorbells {
    /// Starts the second thread, which calls `begin` first. Without a second thread
    /// ([`Doorbells::default`]) the packet thread writes all doorbells.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn with_thread(
        begin: impl FnOnce() + Send + 'static,
    ) -> io::Result<(Doorbells, DoorbellThread)> {
        let (queue, jobs) = RingBuffer::new(QUEUE_LENGTH);
        let builder = thread::Builder::new().name("doorbells".to_owned());
        let handle = builder.spawn(move || {
            begin();
            run_jobs(jobs);
        })?;
        let doorbells = Doorbells {
            second: Some(SecondThread {
                queue: Some(queue),
                thread: handle.thread().clone(),
            }),
            slow_users: HashMap::new(),
            suspects: HashMap::new(),
        };
        Ok((doorbells, DoorbellThread(handle)))
    }

    /// The doorbell of a program of the user `uid`.
    pub(crate) fn doorbell(&self, notifier: Notifier, uid: u32) -> ProgramDoorbell {
        ProgramDoorbell {
            notifier,
            state: Arc::new(DoorbellState {
                uid,
                queued: AtomicBool::new(false),
                short_writes: AtomicU32::new(0),
            }),
            by_packet_thread: !self.slow_users.contains_key(&uid),
        }
    }

    /// Notifies a program if it sleeps.
    #[inline]
    pub(crate) fn notify(&mut self, doorbell: &mut ProgramDoorbell) {
        if doorbell.notifier.take_flag() {
            self.write(doorbell);
        }
    }

    /// Notifies a program, whether it sleeps or not.
    pub(crate) fn write(&mut self, doorbell: &mut ProgramDoorbell) {
        if self.second.is_none() {
            return doorbell.notifier.signal();
        }
        let now = monotonic();
        if self.packet_thread_writes(doorbell, now) {
            let uid = doorbell.state.uid;
            let suspicion = self.suspects.get(&uid);
            let is_suspect = suspicion.is_some_and(|suspicion| suspicion.until > now);
            let began = is_suspect.then(processor_time);
            doorbell.notifier.signal();
            let took = Nanos(monotonic().0.saturating_sub(now.0));
            if took > SLOW_WRITE {
                let used = began.map(|began| Nanos(processor_time().saturating_sub(began)));
                self.judge_slow_write(doorbell, used, now);
            }
            return;
        }
        let Some(second) = &mut self.second else {
            return;
        };
        if doorbell.state.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let job = Job {
            notifier: doorbell.notifier.clone(),
            state: doorbell.state.clone(),
        };
        let queue = second.queue.as_mut();
        if queue.is_none_or(|queue| queue.push(job).is_err()) {
            // The queue is full: there are more programs than descriptors allow.
            doorbell.state.queued.store(false, Ordering::Release);
            doorbell.notifier.signal();
        }
        second.thread.unpark();
    }

    fn packet_thread_writes(&mut self, doorbell: &mut ProgramDoorbell, now: Instant) -> bool {
        let uid = doorbell.state.uid;
        if let Some(until) = self.slow_users.get(&uid) {
            if *until > now {
                doorbell.by_packet_thread = false;
                return false;
            }
            self.slow_users.remove(&uid);
        }
        doorbell.by_packet_thread |=
            doorbell.state.short_writes.load(Ordering::Relaxed) >= SHORT_WRITES;
        doorbell.by_packet_thread
    }

    /// Judges a write that took long. `used` is its processor time, which is measured for suspects.
    #[cold]
    fn judge_slow_write(
        &mut self,
        doorbell: &mut ProgramDoorbell,
        used: Option<Nanos>,
        now: Instant,
    ) {
        let uid = doorbell.state.uid;
        self.suspects.retain(|_, suspicion| suspicion.until > now);
        let until = Instant(now.0.saturating_add(SUSPECT_PERIOD.0));
        let suspicion = self.suspects.entry(uid).or_insert(Suspicion {
            until,
            long_writes: 0,
            slow_writes: 0,
            slow_total: Nanos(0),
        });
        suspicion.long_writes += 1;
        if let Some(used) = used.filter(|used| *used > SLOW_WRITE) {
            suspicion.slow_writes += 1;
            suspicion.slow_total.0 += used.0;
            suspicion.until = until;
        }
        if suspicion.slow_writes >= SLOW_WRITES
            || suspicion.slow_total >= SLOW_TOTAL
            || suspicion.long_writes >= LONG_WRITES
        {
            self.suspects.remove(&uid);
            self.mark_slow(doorbell, now);
        }
    }

    fn mark_slow(&mut self, doorbell: &mut ProgramDoorbell, now: Instant) {
        doorbell.by_packet_thread = false;
        doorbell.state.short_writes.store(0, Ordering::Relaxed);
        self.slow_users.retain(|_, until| *until > now);
        let until = Instant(now.0.saturating_add(SLOW_PERIOD.0));
        self.slow_users.insert(doorbell.state.uid, until);
    }
}

impl DoorbellThread {
    /// Waits for the end of the second thread. The [`Doorbells`] must be dropped first.
    pub(crate) fn join(self) {
        // The thread does not panic, and an error here has no remedy.
        let _ = self.0.join();
    }
}

/// The loop of the second thread.
fn run_jobs(mut jobs: Consumer<Job>) {
    let mut users = BackOff::default();
    let mut waiting = VecDeque::new();
    loop {
        // The order matters: requests from before the end are served.
        let ended = jobs.is_abandoned();
        while let Ok(job) = jobs.pop() {
            waiting.push_back(job);
        }
        for job in mem::take(&mut waiting) {
            match users.is_paused(job.state.uid, monotonic()) {
                true => waiting.push_back(job),
                false => job.write(&mut users),
            }
        }
        if ended {
            return;
        }
        match users.next_write(&waiting) {
            Some(until) => {
                let rest = until.0.saturating_sub(monotonic().0);
                thread::park_timeout(Duration::from_nanos(rest));
            }
            None => thread::park(),
        }
    }
}

impl Job {
    fn write(self, users: &mut BackOff) {
        // First: a request after this point makes a new entry.
        self.state.queued.store(false, Ordering::Release);
        let began = processor_time();
        self.notifier.signal();
        let took = Nanos(processor_time().saturating_sub(began));
        if took > SLOW_WRITE {
            self.state.short_writes.store(0, Ordering::Relaxed);
            users.pause(self.state.uid, took, monotonic());
        } else {
            let short = self.state.short_writes.load(Ordering::Relaxed);
            let short = short.saturating_add(1);
            self.state.short_writes.store(short, Ordering::Relaxed);
        }
    }
}

/// Users whose writes took long, with the earliest time of their next write.
#[derive(Default)]
struct BackOff(HashMap<u32, Instant>);

impl BackOff {
    fn is_paused(&mut self, uid: u32, now: Instant) -> bool {
        match self.0.get(&uid) {
            Some(until) if *until > now => true,
            Some(_) => {
                self.0.remove(&uid);
                false
            }
            None => false,
        }
    }

    fn pause(&mut self, uid: u32, took: Nanos, now: Instant) {
        let pause = took.0.saturating_mul(PAUSE_FACTOR).max(MIN_PAUSE.0);
        self.0.insert(uid, Instant(now.0.saturating_add(pause)));
    }

    /// The earliest time at which one of these jobs may run.
    fn next_write(&self, waiting: &VecDeque<Job>) -> Option<Instant> {
        let allowed_at = |job: &Job| self.0.get(&job.state.uid).copied();
        waiting
            .iter()
            .map(|job| allowed_at(job).unwrap_or(Instant(0)))
            .min()
    }
}

/// A longer write counts as slow. A write of a doorbell that 500 epolls watch takes 30 µs.
const SLOW_WRITE: Nanos = Nanos(100_000);
/// How long a user stays a suspect after a slow write.
const SUSPECT_PERIOD: Nanos = Nanos::from_secs(60);
/// Slow writes of a suspect, by processor time, after which the second thread serves the user.
const SLOW_WRITES: u32 = 3;
/// The sum of the processor time of a suspect's slow writes that has the same effect.
const SLOW_TOTAL: Nanos = Nanos::from_millis(2);
/// Long writes of a suspect, by the clock, that have the same effect: on a kernel whose locks sleep
/// a write with many waiters takes little processor time.
const LONG_WRITES: u32 = 32;
/// How long the second thread serves a user after slow writes, at least.
const SLOW_PERIOD: Nanos = Nanos::from_secs(60);
/// Number of short writes in a row after which the packet thread serves a program again.
const SHORT_WRITES: u32 = 64;
/// The second thread skips a user whose write took long for at least `MIN_PAUSE`, and for
/// `PAUSE_FACTOR` times the duration of the write.
const MIN_PAUSE: Nanos = Nanos::from_millis(10);
const PAUSE_FACTOR: u64 = 9;
/// Length of the queue: more than the programs for which 65,536 descriptors suffice, at five each.
const QUEUE_LENGTH: usize = 16_384;

#[cfg(test)]
mod tests;
