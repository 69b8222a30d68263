//! The driver's loop around the turn: it waits for frames, doorbells and the next departure, and spins the last microseconds.
//!
//! ```text
//!           ┌──▶ received frames ──▶ turn ──▶ flush ──┬─▶ more to do ─────────────┐
//!           │                                         └─▶ doze ─▶ wait ─▶ spin ──┤
//!           └─────────────────────────────────────────────────────────────────────┘
//! ```
//! A thread that only spins is stopped by the kernel for 50 ms of each second when somebody else wants the processor; one that
//! only sleeps is 3 µs late or more. So it sleeps until [`SPIN`] before the departure and spins the rest. It does not doze
//! while a program has news, and a program that sees it awake rings no bell.

use std::os::fd::AsRawFd;
use std::{io, mem};

use netnice_core::units::{Instant, Nanos};

use crate::link::Link;
use crate::turn::{Next, Turn};

/// A turn, its link, and how its time was spent.
pub struct Server {
    turn: Turn,
    link: Link,
    spent: Spent,
}

/// What the loop did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Rounds of the loop.
    pub rounds: u64,
    /// How often it slept.
    pub sleeps: u64,
    /// Rounds in which the interface took nothing: it is down, say.
    pub refusals: u64,
    /// Doorbells that were rung though the driver was awake.
    pub unasked: u64,
}

/// How exactly a thread is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// By SCHED_FIFO: within some microseconds, also beside other programs.
    Fifo,
    /// As other programs, with the finest timers that these have.
    Ordinary,
}

impl Server {
    /// Around a turn and its link.
    pub fn new(turn: Turn, link: Link) -> Server {
        Server {
            turn,
            link,
            spent: Spent::default(),
        }
    }

    /// The turn, to open and close flows between two rounds.
    pub fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }

    /// The link.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// What the loop did so far.
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// One round, and then a sleep for as long as nothing is to be done, at most `longest`.
    pub fn round(&mut self, longest: Nanos) {
        let next = self.work();
        let now = monotonic();
        let limit = now.0.saturating_add(longest.0);
        match next {
            Next::Again => {}
            Next::Wait(at) => self.rest(Instant(at.0.min(limit)), at.0 <= limit),
            Next::Idle => self.rest(Instant(limit), false),
        }
    }

    /// Receives, sends, flushes.
    pub fn work(&mut self) -> Next {
        self.spent.rounds += 1;
        let (turn, now) = (&mut self.turn, monotonic());
        let received = self.link.receive(RECEIVE, |frame| turn.receive(frame, now));
        if received > 0 {
            turn.publish(now);
        }
        let next = turn.transmit(&mut self.link, monotonic());
        match self.link.flush() {
            Ok(()) if received == RECEIVE => Next::Again,
            Ok(()) => next,
            // Nobody can say when it is better.
            Err(_) => {
                self.spent.refusals += 1;
                Next::Wait(Instant(monotonic().0 + RETRY))
            }
        }
    }

    /// Sleeps until then, or until something happens. To a departure it is there in time.
    fn rest(&mut self, until: Instant, exactly: bool) {
        let early = if exactly { SPIN } else { 0 };
        let wake = until.0.saturating_sub(early);
        let mut woken = false;
        if monotonic().0 < wake && self.turn.doze() {
            self.spent.sleeps += 1;
            woken = self.sleep(wake);
        }
        while exactly && !woken && monotonic().0 < until.0 {
            std::hint::spin_loop();
        }
    }

    /// True if it was not the time that ended the sleep.
    fn sleep(&mut self, wake: u64) -> bool {
        let entry = |fd: &dyn AsRawFd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut waited: Vec<libc::pollfd> = vec![entry(&self.link.fd())];
        waited.extend(self.turn.bells().map(|bell| entry(&bell)));
        let rest = wake.saturating_sub(monotonic().0);
        let rest = libc::timespec {
            tv_sec: (rest / SECOND) as i64,
            tv_nsec: (rest % SECOND) as i64,
        };
        // SAFETY: the array and the time outlive the call, and no mask is passed.
        let count = unsafe {
            libc::ppoll(
                waited.as_mut_ptr(),
                waited.len() as u64,
                &rest,
                std::ptr::null(),
            )
        };
        self.spent.unasked += self.turn.wake();
        count > 0
    }
}

/// CLOCK_MONOTONIC.
#[inline]
pub fn monotonic() -> Instant {
    // SAFETY: all bits zero are a value of this plain structure.
    let mut now: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: it is written by the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Instant(now.tv_sec as u64 * SECOND + now.tv_nsec as u64)
}

/// Makes the calling thread one that is woken exactly, on the given processor if one is named.
pub fn pace(processor: Option<usize>) -> io::Result<Pace> {
    if let Some(processor) = processor {
        // SAFETY: all bits zero are the empty set.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        if processor >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the number is below the size of the set.
        unsafe { libc::CPU_SET(processor, &mut set) };
        // SAFETY: the set outlives the call.
        let done = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let priority = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the parameters outlive the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) } == 0 {
        return Ok(Pace::Fifo);
    }
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    Ok(Pace::Ordinary)
}

/// A sleep ends 3 µs late in the median and 5 in the 99th percentile; beside other programs later.
const SPIN: u64 = 30_000;
/// How long it leaves an interface alone that takes nothing.
const RETRY: u64 = 1_000_000;
/// Frames of a round, before those that wait to be sent are looked at.
const RECEIVE: usize = 64;
const PRIORITY: i32 = 50;
const SECOND: u64 = 1_000_000_000;
