//! Accounts for the packet thread's time, from clock readings that the loop takes anyway.
//!
//! Each stretch of time awake counts in one of three fields of [`TimeAccounting`]:
//!
//! | stretch | `receiving` | `sending` | `waiting` |
//! |---|---|---|---|
//! | an iteration with received frames and sent packets | receiving, notifying | the rest | |
//! | with received frames and no sent packet | all | | |
//! | with sent packets only, or after a wake-up by a program or a command | | all | |
//! | any other iteration, and spinning before a departure | | | all |
//!
//! Falling asleep and waking take longer than most iterations, and no clock reading covers them. So
//! the thread's own processor time is read for one sleep in 16 ([`WakeupCost`]), and the mean is
//! added to `receiving` after each sleep that received frames have ended. Nothing here fails.

use netnice_core::units::{Instant, Nanos};

/// Counts and times of the packet thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeAccounting {
    /// Iterations of the loop.
    pub iterations: u64,
    /// Sleeps.
    pub sleeps: u64,
    /// Iterations in which the interface refused frames, for example because it is down.
    pub refusals: u64,
    /// Doorbells that ended a sleep although their programs had not taken the driver's sleeping
    /// flag (rule R52 of docs/reference/ring.md).
    pub unasked: u64,
    /// Pauses despite pending work, which keep the kernel from stopping the thread for longer.
    pub pauses: u64,
    /// Time for received frames, including waking up for them.
    pub receiving: Nanos,
    /// Time for submitted packets and for commands.
    pub sending: Nanos,
    /// Time spent only to be on time: iterations without work, and spinning.
    pub waiting: Nanos,
}

/// What ended the sleep before this iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// There was no sleep.
    #[default]
    None,
    /// Received frames, or the end of the time in which they gather.
    Frames,
    /// A program, a command, or the end of a program's pause.
    Request,
    /// The time: a departure is near, or the longest sleep is over.
    Due,
}

/// The clock readings of one iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct IterationTimes {
    /// Reception begins.
    pub(crate) began: Instant,
    /// Received frames were delivered; sending begins.
    pub(crate) delivered: Instant,
    /// Packets were sent; notifying programs begins. `None` if no frame was received.
    pub(crate) sent: Option<Instant>,
    /// Whether a packet was sent.
    pub(crate) sends: bool,
}

impl TimeAccounting {
    /// Counts a doorbell that ended a sleep, if its program had not taken the sleeping flag.
    pub(super) fn count_doorbell(&mut self, unasked: bool) {
        self.unasked += u64::from(unasked);
    }

    /// Accounts for an iteration that took `awake` and ended at `now`. Returns the time for
    /// received frames.
    pub(super) fn iteration(
        &mut self,
        times: &IterationTimes,
        awake: Nanos,
        now: Instant,
        woken: WakeReason,
    ) -> Nanos {
        let span = |from: Instant, to: Instant| to.0.saturating_sub(from.0);
        let receiving = match times.sent {
            None => 0,
            Some(sent) if times.sends => span(times.began, times.delivered) + span(sent, now),
            Some(_) => awake.0,
        };
        let rest = awake.0.saturating_sub(receiving);
        match times.sends || woken == WakeReason::Request {
            true => self.sending.0 += rest,
            false => self.waiting.0 += rest,
        }
        self.receiving.0 += receiving;
        Nanos(receiving)
    }
}

/// The cost of falling asleep and waking.
#[derive(Debug)]
pub(super) struct WakeupCost {
    /// In ns.
    mean: u64,
    sleeps: u32,
    /// The thread's processor time at the beginning of a measured sleep.
    began: Option<u64>,
}

impl WakeupCost {
    /// An estimate without measurements: [`FIRST`].
    pub(crate) fn new() -> WakeupCost {
        WakeupCost {
            mean: FIRST,
            sleeps: 0,
            began: None,
        }
    }

    /// The mean cost of a sleep, over about the last 16 measurements.
    pub(crate) fn mean(&self) -> Nanos {
        Nanos(self.mean)
    }

    /// A sleep begins. `processor` reads the thread's processor time; it is called for few sleeps.
    pub(crate) fn sleep_begins(&mut self, processor: impl FnOnce() -> u64) {
        self.sleeps = self.sleeps.wrapping_add(1);
        self.began = self.sleeps.is_multiple_of(SAMPLE).then(processor);
    }

    /// The sleep has ended. `processor` is called if it was called at the sleep's begin.
    pub(crate) fn sleep_ended(&mut self, processor: impl FnOnce() -> u64) {
        if let Some(began) = self.began.take() {
            let took = processor().saturating_sub(began).min(MOST);
            self.mean = (self.mean * 15 + took) / 16;
        }
    }
}

/// The first value, in ns.
const FIRST: u64 = 3_000;
/// One sleep in so many is measured, since reading the processor time is a system call.
const SAMPLE: u32 = 16;
/// The longest cost of a measured sleep, in ns. A sleep that took more was interrupted.
const MOST: u64 = 50_000;

#[cfg(test)]
mod tests;
