//! Shares: best effort by weight, optionally with a minimum and a limit.
//!
//! ```text
//! min r   eligible E = max(arrival, last deadline), deadline E + length / r
//! max r   not before TATm - burst; sent at t: TATm = max(t, TATm) + length / r
//! ```
//! *Last deadline* is the deadline of the packet that was last sent within the minimum. Packets
//! from the left-over come in addition and do not change it. TATm is the theoretical arrival time
//! of the limit, as in the GCRA. All packets count against the limit. No function fails.

use super::pace::{Moment, Pace, WHOLE};
use super::{deadline, limit};
use crate::contract::Weight;
use crate::units::{Nanos, Rate};

/// The state of a share. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareState {
    /// Start tag in the left-over, see `sched::fair`.
    pub(super) tag: u64,
    /// 1 / min.
    min: Option<Pace>,
    /// Nanoseconds of the last deadline of the minimum as a [`Moment`].
    min_at: u64,
    /// 1 / max.
    max: Option<Pace>,
    /// Nanoseconds of TATm as a [`Moment`].
    max_at: u64,
    pub(super) weight: u16,
    /// The limit's burst as a code of `deadline`.
    burst: u16,
    min_part: u16,
    max_part: u16,
}

impl ShareState {
    /// A share that has not sent.
    pub(super) fn new(min: Option<Rate>, max: Option<(Rate, Nanos)>, weight: Weight) -> ShareState {
        let burst = max.map_or(0, |(_, burst)| burst.0);
        ShareState {
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

    /// The state under another contract. The change gives no credit. A minimum that is new counts
    /// from `now`.
    pub(super) fn changed(&self, fresh: ShareState, now: u64) -> ShareState {
        let mut old = *self;
        if old.min.is_none() {
            old.wake(now);
        }
        ShareState {
            min: fresh.min,
            max: fresh.max,
            weight: fresh.weight,
            burst: fresh.burst,
            ..old
        }
    }

    /// A packet arrives at the empty queue.
    #[inline(always)]
    pub(super) fn wake(&mut self, now: u64) {
        if self.min_at < now {
            (self.min_at, self.min_part) = (now, WHOLE);
        }
    }

    /// The time from which the limit permits the next packet; 0 without a limit.
    #[inline(always)]
    pub(super) fn allowed_from(&self) -> u64 {
        match self.max {
            None => 0,
            Some(_) => limit::allowed_from(self.used(), self.burst),
        }
    }

    /// The eligible time and the deadline of a packet of this length within the minimum; `None`
    /// without a minimum.
    #[inline(always)]
    pub(super) fn plan(&self, length: u32) -> Option<(u64, u64)> {
        let pace = self.min?;
        let eligible = self.min_deadline();
        // Rounded down, because the deadline is promised.
        let deadline = eligible.saturating_plus(pace.span(length)).floor();
        Some((eligible.nanos, deadline))
    }

    /// A packet of this length left at `at`, within the minimum or from the left-over.
    #[inline(always)]
    pub(super) fn sent(&mut self, at: u64, length: u32, within_min: bool) {
        if let (true, Some(pace)) = (within_min, self.min) {
            let deadline = self.min_deadline().saturating_plus(pace.span(length));
            (self.min_at, self.min_part) = (deadline.nanos, deadline.part);
        }
        if let Some(pace) = self.max {
            self.set_used(limit::after(self.used(), at, pace, length));
        }
    }

    /// TATm, the theoretical arrival time of the limit.
    #[inline(always)]
    pub(super) fn used(&self) -> Moment {
        Moment {
            nanos: self.max_at,
            part: self.max_part,
        }
    }

    /// Sets TATm to its value under another contract.
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
