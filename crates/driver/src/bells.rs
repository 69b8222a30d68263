//! Who rings the programs' doorbells: the packet thread itself, or another thread for those whose rings take long.
//!
//! To ring is a write to an eventfd, and the kernel goes through all who wait for it before the write returns: less than a microsecond
//! for one, half a millisecond for a program that polls it 20,000 times at once. In the packet thread that is everybody's time. So each ring
//! of its own is timed. A user of whom one takes longer than [`DEAR`] is rung for by another thread, of ordinary
//! priority, for [`MEMORY`]: all their programs, also those that come meanwhile, since who detaches and attaches again is still who they were.
//! ```text
//!            a ring took longer than DEAR
//!   itself ────────────────────────────────▶ by the other thread
//!     ▲                                            │
//!     └──── MEMORY is over, and PROOF rings ───────┘
//!           in a row were short
//! ```
//! The other thread has one queue. Each program stands in it once at most, so it never overflows, and a ring that is asked for while one waits
//! is that one. It rings for a user whose ring took long no sooner than after nine times as long, so no user has more than a tenth of
//! its time, and others wait for one ring of each such user at most.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;
use std::{io, mem};

use netnice_core::units::{Instant, Nanos};
use netnice_ring::bell::Ringer;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::serve::{monotonic, processor_time};

/// The packet thread's end.
#[derive(Default)]
pub struct Bells {
    other: Option<Other>,
    /// Users whose rings take long, and until when that is remembered.
    dear: HashMap<u32, Instant>,
}

struct Other {
    /// There until it ends.
    queue: Option<Producer<Job>>,
    thread: Thread,
}

impl Drop for Other {
    fn drop(&mut self) {
        // In this order: it looks whether there is somebody when it wakes.
        self.queue = None;
        self.thread.unpark();
    }
}

/// The other thread. It ends when nobody can ask it any more.
pub struct Belfry(JoinHandle<()>);

/// A program's doorbell.
pub struct Bell {
    ringer: Ringer,
    mark: Arc<Mark>,
    /// The packet thread rings it.
    itself: bool,
}

/// What both threads know of it.
struct Mark {
    uid: u32,
    /// It stands in the queue.
    waits: AtomicBool,
    /// How many rings in a row were short.
    short: AtomicU32,
}

struct Job {
    ringer: Ringer,
    mark: Arc<Mark>,
}

impl Bells {
    /// With another thread for those that take long, which begins with this; without it ([`Bells::default`]) the packet thread
    /// rings all.
    ///
    /// # Errors
    /// If there is no other thread to be had.
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

    /// The doorbell of a program of this user.
    pub fn bell(&self, ringer: Ringer, uid: u32) -> Bell {
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

    /// Wakes a program, if it sleeps.
    #[inline]
    pub fn ring(&mut self, bell: &mut Bell) {
        if bell.ringer.claim() {
            self.strike(bell);
        }
    }

    /// Rings, whether the program sleeps or not.
    pub fn strike(&mut self, bell: &mut Bell) {
        if self.other.is_none() {
            return bell.ringer.strike();
        }
        let now = monotonic();
        if self.rings_itself(bell, now) {
            bell.ringer.strike();
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
            // With more programs than there are descriptors for; or the thread is gone.
            bell.mark.waits.store(false, Ordering::Release);
            bell.ringer.strike();
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
    /// Waits until it has ended: after the [`Bells`] are dropped.
    pub fn join(self) {
        // It does not panic; and nobody could do anything about it.
        let _ = self.0.join();
    }
}

/// The other thread.
fn serve(mut jobs: Consumer<Job>) {
    let mut users = Pauses::default();
    let mut held = VecDeque::new();
    loop {
        // In this order: what was asked before the end is done.
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
        // First: who has something new from now on asks again.
        self.mark.waits.store(false, Ordering::Release);
        let began = processor_time();
        self.ringer.strike();
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

/// Users whose rings took long, and when the next one may be.
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

    /// When the first of these may be rung for.
    fn first(&self, held: &VecDeque<Job>) -> Option<Instant> {
        let of_one = |job: &Job| self.0.get(&job.mark.uid).copied();
        held.iter()
            .map(|job| of_one(job).unwrap_or(Instant(0)))
            .min()
    }
}

/// Fifty times what a ring takes. A program with 500 epolls around its doorbell, more than which the kernel allows, takes 30 µs.
const DEAR: Nanos = Nanos(100_000);
/// For how long a user is rung for by the other thread at least.
const MEMORY: Nanos = Nanos::from_secs(60);
/// How many short rings in a row bring a program back.
const PROOF: u32 = 64;
/// How long the other thread leaves a user alone whose ring took long, at least; and how many times as long as the ring took.
const PAUSE: Nanos = Nanos::from_millis(10);
const NINE: u64 = 9;
/// Each program has five descriptors, of 65,536.
const LENGTH: usize = 16_384;

#[cfg(test)]
mod tests;
