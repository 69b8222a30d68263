//! Limits the packet thread's share of a processor, so that the kernel does not stop it for long.
//!
//! Linux reserves a twentieth of a processor for ordinary programs. If a SCHED_FIFO thread leaves
//! less, the kernel stops the thread for up to 50 ms of each second (`sched_rt_runtime_us`, since
//! 6.12 the fair server). A delay of microseconds is better than that. So [`CpuBudget`] is an
//! account of time: a nanosecond awake takes one from it, and a nanosecond asleep adds eleven, up
//! to [`FULL`] (10 ms).
//!
//! | credit | what the thread does |
//! |---|---|
//! | at least half of [`FULL`] | spins before a departure |
//! | less | sleeps until the departure instead |
//! | below 0, if the kernel has ever stopped the thread | also pauses 50 µs after an iteration |
//!
//! If no other thread needs the processor, the kernel does not stop the packet thread, and a busy
//! link gets the whole processor.
//!
//! The caller passes the time and does the pauses. No call fails.

use std::time::Duration;

use netnice_core::units::Instant;

/// The processor time that the packet thread may use before it must sleep.
#[derive(Debug)]
pub(crate) struct CpuBudget {
    /// Time that the thread may still be awake, in ns.
    credit: i64,
    /// Time is accounted for until this moment.
    accounted_until: Instant,
    /// The kernel has stopped the thread while it had work.
    was_stopped: bool,
}

impl CpuBudget {
    /// The budget of a thread that has credit for [`FULL`] (10 ms).
    pub(crate) fn new(now: Instant) -> CpuBudget {
        CpuBudget {
            credit: FULL,
            accounted_until: now,
            was_stopped: false,
        }
    }

    /// Charges the time until `now` as awake. Returns how long the thread should pause; `None`: it
    /// can continue.
    pub(crate) fn charge(&mut self, now: Instant) -> Option<Duration> {
        let took = self.advance(now);
        self.was_stopped |= took >= STOPPED;
        // Time during which the thread was stopped is charged too, since it cannot be told apart.
        self.credit = (self.credit - took.min(FULL)).max(-FULL);
        (self.was_stopped && self.credit < 0).then_some(PAUSE)
    }

    /// Credits the time until `now` as sleep.
    pub(crate) fn credit(&mut self, now: Instant) {
        let slept = self.advance(now).min(FULL);
        self.credit = FULL.min(self.credit + slept * CREDIT_PER_SLEEP);
    }

    /// Whether the account suffices for spinning.
    pub(crate) fn may_spin(&self) -> bool {
        self.credit >= FULL / 2
    }

    fn advance(&mut self, now: Instant) -> i64 {
        let passed = now.0.saturating_sub(self.accounted_until.0);
        self.accounted_until = now;
        passed.min(i64::MAX as u64) as i64
    }
}

/// The most credit, in ns: a hundredth of the second that the kernel accounts by.
const FULL: i64 = 10_000_000;
/// Credit per nanosecond of sleep. One part in twelve is sleep: the kernel's twentieth, and the
/// cost of the switches.
const CREDIT_PER_SLEEP: i64 = 11;
/// An iteration of this length or more, in ns, shows that the kernel stopped the thread: iterations
/// take less than a millisecond otherwise.
const STOPPED: i64 = 20_000_000;
/// Length of a pause: short enough to delay no packet noticeably, and much longer than the two
/// context switches.
const PAUSE: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests;
