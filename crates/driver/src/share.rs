//! Limits the driver's time for one flow's received packets.
//!
//! VERT 3.5 asks which side pays for the copy of a received packet: its call-privs let the program
//! copy, on its own time. Here the driver copies, and charges the flow. A [`Share`] is a bucket of
//! nanoseconds that fills at a part of real time. A packet that the flow cannot pay for is dropped
//! before the copy, and only the look-up that found this out is charged. So a flooded flow costs no
//! more than its share and these look-ups.
//!
//! The duration of an iteration is known only at its end, and most of it belongs to no single
//! frame: waking up, polling, notifying a program. So the first frame of an iteration pays for the
//! iteration ([`Cost::begin`]), each frame pays for its own look-up, and both prices are learnt
//! ([`Cost::saw`]). A flow whose lone frame wakes the driver pays for the wake-up, and a frame
//! behind others costs little. While a flow has less than half of its bucket left, the driver lets
//! frames gather ([`crate::serve`]), so that many frames share one iteration before any frame is
//! dropped. With XDP, the gate of the flow is then shut until half of its bucket is full again
//! ([`pool::Member::admit`] returns the time), and XDP drops its frames before they reach the
//! driver.
//!
//! All flows together may use as much as one flow: see [`pool`].

pub mod pool;

use netnice_core::units::{Instant, Nanos};

use crate::link::FRAME;

/// The receive budget of one flow, and its present level.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Part of real time, in units of 1/[`WHOLE`], so that it can be divided among millions.
    part: u64,
    /// The largest level, in ns.
    burst: u64,
    /// The present level in units of 1/[`WHOLE`] ns; at least `-burst`.
    level: i128,
    at: u64,
}

/// The prices of the driver's work on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// One iteration with received frames, whatever their number. Learnt, from the default.
    pub round: Nanos,
    /// Classifying one frame. Learnt, from the default.
    pub look: Nanos,
    /// Delivering a packet, whatever its length.
    pub hand: Nanos,
    /// Copying 1,024 bytes.
    pub kibibyte: Nanos,
    /// What the next frame pays beside its own look-up.
    begun: Nanos,
    /// The cost of the last wake-up for frames.
    woke: Nanos,
}

impl Cost {
    /// Begins an iteration; waking up for it cost `woke`. The first frame pays for both.
    pub fn begin(&mut self, woke: Nanos) {
        self.begun = Nanos(self.round.0 + woke.0);
        if woke > Nanos(0) {
            self.woke = woke;
        }
    }

    /// The most that one packet costs if it arrives alone and wakes the driver, for any length.
    pub fn alone(&self) -> Nanos {
        Nanos(self.round.0 + self.woke.0 + self.look.0 + self.of(FRAME).0)
    }

    /// The charge for looking up the next frame.
    #[inline]
    pub fn look(&mut self) -> Nanos {
        Nanos(self.look.0 + std::mem::take(&mut self.begun).0)
    }

    /// Learns from an iteration that received `frames` frames and notified their programs in
    /// `took`, without the wake-up. Few frames tell the price of an iteration, many the price of a
    /// look-up. An unexpectedly long iteration may have been interrupted, so the excess is capped.
    pub fn saw(&mut self, frames: u32, took: Nanos) {
        if frames == 0 {
            return;
        }
        let frames = i64::from(frames);
        let thought = self.round.0 as i64 + frames * (self.look.0 + self.hand.0) as i64;
        let took = i64::try_from(took.0).unwrap_or(i64::MAX);
        let more = (took - thought).min(SURPRISE);
        let learn = |price: &mut Nanos, by: i64, (least, most): (u64, u64)| {
            price.0 = price.0.saturating_add_signed(by).clamp(least, most);
        };
        match frames < MANY {
            true => learn(&mut self.round, more / 16, ROUND),
            false => learn(&mut self.look, more / frames / 8, LOOK),
        }
    }

    /// The price of delivering a packet of this length, without the look-up.
    #[inline]
    pub fn of(&self, length: usize) -> Nanos {
        Nanos(self.hand.0 + (length as u64 * self.kibibyte.0).div_ceil(1024))
    }
}

impl Default for Cost {
    /// Measured on a virtual machine in 2026, and rounded up.
    fn default() -> Cost {
        Cost {
            round: Nanos(2_000),
            look: Nanos(100),
            hand: Nanos(100),
            kibibyte: Nanos(60),
            begun: Nanos(0),
            woke: Nanos(0),
        }
    }
}

impl Share {
    /// A share of `part` millionths of real time, with a largest level of `burst`. It begins full.
    pub fn new(part: u32, burst: Nanos) -> Share {
        Share {
            part: u64::from(part) * MILLIONTH,
            burst: burst.0,
            level: i128::from(burst.0) * WHOLE,
            at: 0,
        }
    }

    /// Adds the earnings until `now`.
    fn earn(&mut self, now: Instant) {
        let passed = now.0.saturating_sub(self.at);
        self.at = self.at.max(now.0);
        let earned = i128::from(passed) * i128::from(self.part);
        self.level = (self.level + earned).min(i128::from(self.burst) * WHOLE);
    }

    fn has(&self, time: Nanos) -> bool {
        self.level >= i128::from(time.0) * WHOLE
    }

    fn take(&mut self, time: Nanos) {
        let least = -i128::from(self.burst) * WHOLE;
        self.level = (self.level - i128::from(time.0) * WHOLE).max(least);
    }

    /// Less than half of the largest level is left.
    #[inline]
    fn is_low(&self) -> bool {
        self.level < i128::from(self.burst) * (WHOLE / 2)
    }

    /// When half of the largest level will be reached.
    fn recovers(&self) -> Instant {
        self.reaches(self.burst / 2)
    }

    /// When the largest level will be reached.
    fn fills(&self) -> Instant {
        self.reaches(self.burst)
    }

    fn reaches(&self, level: u64) -> Instant {
        let lacks = i128::from(level) * WHOLE - self.level;
        let part = i128::from(self.part).max(1);
        let wait = u64::try_from(lacks.max(0) / part).unwrap_or(u64::MAX);
        Instant(self.at.saturating_add(wait))
    }
}

/// A second of it fits into 64 bits; the division for each dropped packet is by this.
const WHOLE: i128 = 1_000_000_000;
const MILLIONTH: u64 = 1_000;
/// From this number of frames on, an iteration's time counts for its frames.
const MANY: i64 = 8;
/// The largest credible excess of an iteration over its expected duration, in ns; writing a
/// program's doorbell takes half of that.
const SURPRISE: i64 = 20_000;
/// Ranges of the prices in ns: no machine is faster, and slower is not the driver's doing.
const ROUND: (u64, u64) = (200, 50_000);
const LOOK: (u64, u64) = (50, 5_000);

#[cfg(test)]
mod tests;
