//! Writes the programs' doorbells, in the packet thread or in a second thread.
//!
//! A doorbell is an eventfd. The kernel goes through all waiters before the write returns: less
//! than a microsecond for one waiter, half a millisecond for a program that polls the doorbell
//! 20,000 times at once. In the packet thread that time is taken from all flows, so the packet
//! thread times each of its own writes. A write that takes longer than [`DEAR`] moves the user of
//! that program to a second thread of ordinary priority for [`MEMORY`]. This covers all programs of
//! the user, also those that attach meanwhile, so a program cannot avoid it by detaching and
//! attaching again.
//! ```text
//!              a write took longer than DEAR
//!   packet thread ─────────────────────────▶ second thread
//!      ▲                                            │
//!      └─── MEMORY is over, and PROOF writes ───────┘
//!             in a row were short
//! ```
//! The second thread has one queue. A program has at most one entry in the queue, so the queue does
//! not overflow while descriptors suffice; a notification that is requested while an entry waits is
//! covered by that entry. After a write that took long, the second thread serves the same user
//! again no sooner than after nine times as long. So a user gets at most a tenth of the second
//! thread's time, and other users wait for at most one write of each such user.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;
use std::{io, mem};

use netnice_core::units::{Instant, Nanos};
use netnice_ring::doorbell::Notifier;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::serve::{monotonic, processor_time};

/// The packet thread's side of the doorbells.
#[derive(Default)]
pub struct Bells {
    other: Option<Other>,
    /// Users whose writes take long, with the time until which this holds.
    dear: HashMap<u32, Instant>,
}

struct Other {
    /// `Some` until the drop.
    queue: Option<Producer<Job>>,
    thread: Thread,
}

impl Drop for Other {
    fn drop(&mut self) {
        // The order matters: the second thread checks for an abandoned queue when it wakes.
        self.queue = None;
        self.thread.unpark();
    }
}

/// The second thread. It ends when its [`Bells`] are dropped.
pub struct Belfry(JoinHandle<()>);

/// A program's doorbell.
pub struct Bell {
    ringer: Notifier,
    mark: Arc<Mark>,
    /// The packet thread writes this doorbell itself.
    itself: bool,
}

/// State that both threads share.
struct Mark {
    uid: u32,
    /// The program has an entry in the queue.
    waits: AtomicBool,
    /// Number of short writes in a row.
    short: AtomicU32,
}

struct Job {
    ringer: Notifier,
    mark: Arc<Mark>,
}

impl Bells {
    /// Starts the second thread, which calls `begin` first. Without a second thread
    /// ([`Bells::default`]) the packet thread writes all doorbells.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn with_thread(begin: impl FnOnce() + Send + 'static) -> io::Result<(Bells, Belfry)> {
        let (queue, jobs) = RingBuffer::new(LENGTH);
        let builder = thread::Builder::new().name("bells".to_owned());
        let handle = builder.spawn(move || {
            begin();
            serve(jobs);
        })?;
        let bells = Bells {
            other: Some(Other {
                queue: Some(queue),
                thread: handle.thread().clone(),
            }),
            dear: HashMap::new(),
        };
        Ok((bells, Belfry(handle)))
    }

    /// The doorbell of a program of the user `uid`.
    pub fn bell(&self, ringer: Notifier, uid: u32) -> Bell {
        Bell {
            ringer,
            mark: Arc::new(Mark {
                uid,
                waits: AtomicBool::new(false),
                short: AtomicU32::new(0),
            }),
            itself: !self.dear.contains_key(&uid),
        }
    }

    /// Notifies a program if it sleeps.
    #[inline]
    pub fn ring(&mut self, bell: &mut Bell) {
        if bell.ringer.take_flag() {
            self.strike(bell);
        }
    }

    /// Notifies a program, whether it sleeps or not.
    pub fn strike(&mut self, bell: &mut Bell) {
        if self.other.is_none() {
            return bell.ringer.signal();
        }
        let now = monotonic();
        if self.rings_itself(bell, now) {
            bell.ringer.signal();
            let took = Nanos(monotonic().0.saturating_sub(now.0));
            if took > DEAR {
                self.was_dear(bell, now);
            }
            return;
        }
        let Some(other) = &mut self.other else { return };
        if bell.mark.waits.swap(true, Ordering::AcqRel) {
            return;
        }
        let job = Job {
            ringer: bell.ringer.clone(),
            mark: bell.mark.clone(),
        };
        let queue = other.queue.as_mut();
        if queue.is_none_or(|queue| queue.push(job).is_err()) {
            // The queue is full (more programs than descriptors allow) or the thread has ended.
            bell.mark.waits.store(false, Ordering::Release);
            bell.ringer.signal();
        }
        other.thread.unpark();
    }

    fn rings_itself(&mut self, bell: &mut Bell, now: Instant) -> bool {
        let uid = bell.mark.uid;
        if let Some(until) = self.dear.get(&uid) {
            if *until > now {
                bell.itself = false;
                return false;
            }
            self.dear.remove(&uid);
        }
        bell.itself |= bell.mark.short.load(Ordering::Relaxed) >= PROOF;
        bell.itself
    }

    #[cold]
    fn was_dear(&mut self, bell: &mut Bell, now: Instant) {
        bell.itself = false;
        bell.mark.short.store(0, Ordering::Relaxed);
        self.dear.retain(|_, until| *until > now);
        let until = Instant(now.0.saturating_add(MEMORY.0));
        self.dear.insert(bell.mark.uid, until);
    }
}

impl Belfry {
    /// Waits for the end of the second thread. The [`Bells`] must be dropped first.
    pub fn join(self) {
        // The thread does not panic, and an error here has no remedy.
        let _ = self.0.join();
    }
}

/// The loop of the second thread.
fn serve(mut jobs: Consumer<Job>) {
    let mut users = Pauses::default();
    let mut held = VecDeque::new();
    loop {
        // The order matters: requests from before the end are served.
        let ended = jobs.is_abandoned();
        while let Ok(job) = jobs.pop() {
            held.push_back(job);
        }
        for job in mem::take(&mut held) {
            match users.rests(job.mark.uid, monotonic()) {
                true => held.push_back(job),
                false => job.ring(&mut users),
            }
        }
        if ended {
            return;
        }
        match users.first(&held) {
            Some(until) => {
                let rest = until.0.saturating_sub(monotonic().0);
                thread::park_timeout(Duration::from_nanos(rest));
            }
            None => thread::park(),
        }
    }
}

impl Job {
    fn ring(self, users: &mut Pauses) {
        // First: news after this point makes a new request.
        self.mark.waits.store(false, Ordering::Release);
        let began = processor_time();
        self.ringer.signal();
        let took = Nanos(processor_time().saturating_sub(began));
        if took > DEAR {
            self.mark.short.store(0, Ordering::Relaxed);
            users.pause(self.mark.uid, took, monotonic());
        } else {
            let short = self.mark.short.load(Ordering::Relaxed);
            let short = short.saturating_add(1);
            self.mark.short.store(short, Ordering::Relaxed);
        }
    }
}

/// Users whose writes took long, with the earliest time of their next write.
#[derive(Default)]
struct Pauses(HashMap<u32, Instant>);

impl Pauses {
    fn rests(&mut self, uid: u32, now: Instant) -> bool {
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
        let pause = took.0.saturating_mul(NINE).max(PAUSE.0);
        self.0.insert(uid, Instant(now.0.saturating_add(pause)));
    }

    /// The earliest time at which one of these jobs may run.
    fn first(&self, held: &VecDeque<Job>) -> Option<Instant> {
        let of_one = |job: &Job| self.0.get(&job.mark.uid).copied();
        held.iter()
            .map(|job| of_one(job).unwrap_or(Instant(0)))
            .min()
    }
}

/// Fifty times the duration of an ordinary write. A program with 500 epolls around its doorbell,
/// more than the kernel allows, takes 30 µs.
const DEAR: Nanos = Nanos(100_000);
/// The shortest time for which the second thread serves a user.
const MEMORY: Nanos = Nanos::from_secs(60);
/// Number of short writes in a row after which the packet thread serves a program again.
const PROOF: u32 = 64;
/// The second thread skips a user whose write took long for at least `PAUSE`, and for `NINE` times
/// the duration of the write.
const PAUSE: Nanos = Nanos::from_millis(10);
const NINE: u64 = 9;
/// A program has five descriptors, of 65,536.
const LENGTH: usize = 16_384;

#[cfg(test)]
mod tests;
