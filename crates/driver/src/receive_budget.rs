//! Limits the driver's time for one flow's received packets.
//!
//! In the paper VERT (section 3.5) the copy of a received packet runs on the receiving program's
//! processor time. Here the driver copies the packet and charges the flow. A [`ReceiveBudget`] is a
//! bucket of nanoseconds that fills at a part of real time. A packet that the flow cannot pay for
//! is dropped before the copy, and only its look-up is charged. So a flooded flow costs no more
//! than its budget and these look-ups.
//!
//! The duration of an iteration is known only at its end, and most of it belongs to no single
//! frame: waking up, polling, notifying a program. So the first frame of an iteration pays for the
//! iteration (`Cost::begin`), each frame pays for its own look-up, and both prices are learnt
//! (`Cost::learn`). A flow whose lone frame wakes the driver pays for the wake-up, and a frame
//! behind others costs little.
//!
//! While the bucket of a receiving flow or the bucket of all flows together is less than half full,
//! the driver lets frames gather ([`crate::event_loop`]), so that many frames share one iteration
//! before any frame is dropped. A flow whose frame was dropped is suspended until it can pay for
//! packets again (`shared::FlowBudget::admit` returns the time). If the flow has a port of its own,
//! XDP drops its frames until then, before they reach the driver. All other frames of suspended
//! flows reach the driver, which looks up each of them before it drops it: the frames in the
//! fallback mode, the frames of groups, and the frames of other protocols.
//!
//! All flows together may use as much as the flow with the largest budget: see `shared`. No
//! function fails.

pub(crate) mod shared;

use netnice_core::units::{Instant, Nanos};

use crate::frames::FRAME;

/// The receive budget of one flow, and its present level.
///
/// Aligned to 8 bytes, not to the 16 of `level`: an `Option` of it then has its discriminant in 8
/// bytes, so an `Option` of a flow uses that of a field which a sent packet needs anyway.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(8))]
pub struct ReceiveBudget {
    /// Part of real time, in units of 1/[`SCALE`], so that it can be divided among millions.
    part: u64,
    /// The largest level, in ns.
    burst: u64,
    /// The present level in units of 1/[`SCALE`] ns; at least `-burst`.
    level: i128,
    accounted_until: u64,
    /// The part of the shared budget that the flow has for certain, in millionths; 0: the same part
    /// as others.
    share: u32,
}

/// The prices of the driver's work on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// One iteration with received frames, whatever their number. Learnt, from the default.
    pub(crate) iteration: Nanos,
    /// Classifying one frame. Learnt, from the default.
    pub(crate) lookup: Nanos,
    /// Delivering a packet, whatever its length.
    pub(crate) delivery: Nanos,
    /// Copying 1,024 bytes.
    pub(crate) copied_kibibyte: Nanos,
    /// What the next frame pays beside its own look-up.
    due: Nanos,
    /// The cost of the last wake-up for frames.
    wakeup: Nanos,
}

impl Cost {
    /// Begins an iteration; waking up for it cost `wakeup`. The first frame pays for both.
    pub(crate) fn begin(&mut self, wakeup: Nanos) {
        self.due = Nanos(self.iteration.0 + wakeup.0);
        if wakeup > Nanos(0) {
            self.wakeup = wakeup;
        }
    }

    /// The most that one packet costs if it arrives alone and wakes the driver, for any length.
    pub(crate) fn lone_packet(&self) -> Nanos {
        Nanos(self.iteration.0 + self.wakeup.0 + self.lookup.0 + self.delivery(FRAME).0)
    }

    /// The charge for looking up the next frame. For the first frame of an iteration it includes
    /// the iteration and the wake-up.
    #[inline]
    pub(crate) fn lookup(&mut self) -> Nanos {
        Nanos(self.lookup.0 + std::mem::take(&mut self.due).0)
    }

    /// Learns from an iteration that received `frames` frames and notified their programs in
    /// `took`, without the wake-up. Fewer than 8 frames adjust the price of an iteration, 8 or more
    /// frames the price of a look-up. An unexpectedly long iteration may have been interrupted, so
    /// the excess is capped.
    pub(crate) fn learn(&mut self, frames: u32, took: Nanos) {
        if frames == 0 {
            return;
        }
        let frames = i64::from(frames);
        let expected = self.iteration.0 as i64 + frames * (self.lookup.0 + self.delivery.0) as i64;
        let took = i64::try_from(took.0).unwrap_or(i64::MAX);
        let excess = (took - expected).min(MAX_EXCESS);
        let adjust = |price: &mut Nanos, by: i64, (least, most): (u64, u64)| {
            price.0 = price.0.saturating_add_signed(by).clamp(least, most);
        };
        match frames < MANY_FRAMES {
            true => adjust(&mut self.iteration, excess / 16, ITERATION_RANGE),
            false => adjust(&mut self.lookup, excess / frames / 8, LOOKUP_RANGE),
        }
    }

    /// The price of delivering a packet of `length` bytes, without the look-up.
    #[inline]
    pub(crate) fn delivery(&self, length: usize) -> Nanos {
        Nanos(self.delivery.0 + (length as u64 * self.copied_kibibyte.0).div_ceil(1024))
    }
}

impl Default for Cost {
    /// Measured on a virtual machine in 2026, and rounded up.
    fn default() -> Cost {
        Cost {
            iteration: Nanos(2_000),
            lookup: Nanos(100),
            delivery: Nanos(100),
            copied_kibibyte: Nanos(60),
            due: Nanos(0),
            wakeup: Nanos(0),
        }
    }
}

impl ReceiveBudget {
    /// A budget of `part` millionths of real time, with a largest level of `burst`. It begins full.
    pub fn new(part: u32, burst: Nanos) -> ReceiveBudget {
        ReceiveBudget {
            part: u64::from(part) * MILLIONTH,
            burst: burst.0,
            level: i128::from(burst.0) * SCALE,
            accounted_until: 0,
            share: 0,
        }
    }

    /// The same budget of a flow that has this part of the shared budget for certain, in
    /// millionths; 0: the same part as others.
    pub fn with_share(self, share: u32) -> ReceiveBudget {
        ReceiveBudget { share, ..self }
    }

    /// Adds the earnings until `now`.
    fn earn(&mut self, now: Instant) {
        let passed = now.0.saturating_sub(self.accounted_until);
        self.accounted_until = self.accounted_until.max(now.0);
        let earned = i128::from(passed) * i128::from(self.part);
        self.level = (self.level + earned).min(i128::from(self.burst) * SCALE);
    }

    fn covers(&self, time: Nanos) -> bool {
        self.level >= i128::from(time.0) * SCALE
    }

    fn charge(&mut self, time: Nanos) {
        let least = -i128::from(self.burst) * SCALE;
        self.level = (self.level - i128::from(time.0) * SCALE).max(least);
    }

    /// Less than half of the largest level is left.
    #[inline]
    fn is_nearly_exhausted(&self) -> bool {
        self.level < i128::from(self.burst) * (SCALE / 2)
    }

    /// When half of the largest level will be reached.
    fn half_full_at(&self) -> Instant {
        self.time_of(self.burst / 2)
    }

    /// When the largest level will be reached.
    fn full_at(&self) -> Instant {
        self.time_of(self.burst)
    }

    fn time_of(&self, level: u64) -> Instant {
        let missing = i128::from(level) * SCALE - self.level;
        let part = i128::from(self.part).max(1);
        let wait = u64::try_from(missing.max(0) / part).unwrap_or(u64::MAX);
        Instant(self.accounted_until.saturating_add(wait))
    }
}

/// Units of a budget's level in one ns. A second in these units fits into 64 bits.
const SCALE: i128 = 1_000_000_000;
const MILLIONTH: u64 = 1_000;
/// From this number of frames on, an iteration's time counts for its frames.
const MANY_FRAMES: i64 = 8;
/// The largest credible excess of an iteration over its expected duration, in ns; writing a
/// program's doorbell takes half of that.
const MAX_EXCESS: i64 = 20_000;
/// Ranges of the prices in ns: no machine is faster, and a longer time has another cause than the
/// driver's work.
const ITERATION_RANGE: (u64, u64) = (200, 50_000);
const LOOKUP_RANGE: (u64, u64) = (50, 5_000);

#[cfg(test)]
mod tests;
