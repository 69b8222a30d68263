//! Shares: best effort by weight, with or without a minimum below it and a limit above it.
//!
//! ```text
//! min r   eligible E = max(arrival, last deadline), deadline E + length / r
//! max r   not before TATm - burst; sent at t: TATm = max(t, TATm) + length / r
//! ```
//! Only what is sent within the minimum moves its deadline on; what a flow gets of the left-over
//! is beside it. A limit counts both.

use super::pace::{Moment, Pace, WHOLE};
use super::{deadline, limit};
use crate::contract::Weight;
use crate::units::{Nanos, Rate};

/// The state of a share. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Start tag in the left-over, see the scheduler's `fair`.
    pub(super) tag: u64,
    /// 1 / min.
    min: Option<Pace>,
    /// The last deadline of the minimum, the nanoseconds of a [`Moment`].
    min_at: u64,
    /// 1 / max.
    max: Option<Pace>,
    /// TATm, likewise.
    max_at: u64,
    pub(super) weight: u16,
    /// The limit's burst, as a word of `deadline`.
    burst: u16,
    min_part: u16,
    max_part: u16,
}

impl Share {
    /// A share that has never sent.
    pub(super) fn new(min: Option<Rate>, max: Option<(Rate, Nanos)>, weight: Weight) -> Share {
        let burst = max.map_or(0, |(_, burst)| burst.0);
        Share {
            tag: 0,
            min: min.map(Pace::of),
            min_at: 0,
            max: max.map(|(rate, _)| Pace::of(rate)),
            max_at: 0,
            weight: weight.get(),
            // Below 2^12.
            burst: deadline::encode(burst) as u16,
            min_part: WHOLE,
            max_part: WHOLE,
        }
    }

    /// The same past under another contract: no credit comes from changing it, and what a
    /// minimum gives counts from `now` where there was none.
    pub(super) fn changed(&self, fresh: Share, now: u64) -> Share {
        let mut old = *self;
        if old.min.is_none() {
            old.wake(now);
        }
        Share {
            min: fresh.min,
            max: fresh.max,
            weight: fresh.weight,
            burst: fresh.burst,
            ..old
        }
    }

    /// A packet comes to the empty queue.
    #[inline(always)]
    pub(super) fn wake(&mut self, now: u64) {
        if self.min_at < now {
            (self.min_at, self.min_part) = (now, WHOLE);
        }
    }

    /// From when on the limit lets the next packet go.
    #[inline(always)]
    pub(super) fn gate(&self) -> u64 {
        match self.max {
            None => 0,
            Some(_) => limit::gate(self.used(), self.burst),
        }
    }

    /// When the minimum makes a packet of this length eligible, and by when it must go.
    #[inline(always)]
    pub(super) fn plan(&self, length: u32) -> Option<(u64, u64)> {
        let pace = self.min?;
        let eligible = self.min_deadline();
        // Rounded down: the deadline is promised.
        let deadline = eligible.after(pace.span(length)).floor();
        Some((eligible.nanos, deadline))
    }

    /// A packet of this length left at `at`, within the minimum or beside it.
    #[inline(always)]
    pub(super) fn sent(&mut self, at: u64, length: u32, within_min: bool) {
        if let (true, Some(pace)) = (within_min, self.min) {
            let deadline = self.min_deadline().after(pace.span(length));
            (self.min_at, self.min_part) = (deadline.nanos, deadline.part);
        }
        if let Some(pace) = self.max {
            self.set_used(limit::after(self.used(), at, pace, length));
        }
    }

    /// TATm.
    #[inline(always)]
    pub(super) fn used(&self) -> Moment {
        Moment {
            nanos: self.max_at,
            part: self.max_part,
        }
    }

    /// What is used of the limit was used under another contract.
    #[inline(always)]
    pub(super) fn set_used(&mut self, tat: Moment) {
        (self.max_at, self.max_part) = (tat.nanos, tat.part);
    }

    #[inline(always)]
    fn min_deadline(&self) -> Moment {
        Moment {
            nanos: self.min_at,
            part: self.min_part,
        }
    }
}
