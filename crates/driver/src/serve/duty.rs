//! How much of a processor the packet thread may take, so that the kernel never stops it.
//!
//! Linux keeps a twentieth of a processor for ordinary programs: a SCHED_FIFO thread that leaves them less is stopped for up
//! to 50 ms of each second (`sched_rt_runtime_us`, since 6.12 the fair server). A packet is better late by microseconds than by
//! that. So time awake is paid from an account which sleep fills, eleven for one:
//! ```text
//!   FULL ┤▔▔╲      ╱╲        spins before a departure
//!   HALF ┤    ╲  ╱   ╲  ╱▔   sleeps to the departure instead
//!      0 ┤      ▔     ▔      pauses, though there is work; only if it was stopped once
//! ```
//! Without others who want the processor nobody stops it, and a busy link has all of it.

use std::time::Duration;

use netnice_core::units::Instant;

/// The account of a thread.
#[derive(Debug)]
pub(crate) struct Duty {
    /// What it may still be awake, in ns.
    credit: i64,
    /// Until when all is accounted for.
    since: Instant,
    /// It was stopped while it had work.
    stopped: bool,
}

impl Duty {
    /// Full.
    pub fn new(now: Instant) -> Duty {
        Duty {
            credit: FULL,
            since: now,
            stopped: false,
        }
    }

    /// It was awake until now; for how long it should pause.
    pub fn awake(&mut self, now: Instant) -> Option<Duration> {
        let took = self.until(now);
        self.stopped |= took >= STOPPED;
        // What it was stopped for was no work, but is not told apart.
        self.credit = (self.credit - took.min(FULL)).max(-FULL);
        (self.stopped && self.credit < 0).then_some(PAUSE)
    }

    /// It slept until now.
    pub fn slept(&mut self, now: Instant) {
        let slept = self.until(now).min(FULL);
        self.credit = FULL.min(self.credit + slept * FOR_ONE);
    }

    /// Whether there is enough to be awake without work.
    pub fn may_spin(&self) -> bool {
        self.credit >= FULL / 2
    }

    fn until(&mut self, now: Instant) -> i64 {
        let passed = now.0.saturating_sub(self.since.0);
        self.since = now;
        passed.min(i64::MAX as u64) as i64
    }
}

/// The most it saves up: of a second that the kernel looks at, a hundredth.
const FULL: i64 = 10_000_000;
/// What a nanosecond of sleep is worth. One in twelve is slept: the kernel's twentieth, and what it takes to switch.
const FOR_ONE: i64 = 11;
/// A round takes less than a millisecond, unless somebody stops it.
const STOPPED: i64 = 20_000_000;
/// Short enough to be no matter, and long beside the two switches of processor.
const PAUSE: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests;
