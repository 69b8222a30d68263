//! How much of the driver's time one flow's received packets may take.
//!
//! VERT 3.5 asks who pays for the copy of a received packet: its call-privs let the program copy, on its own time. Here the driver
//! copies, and charges the flow. A [`Share`] is a bucket of nanoseconds that fills at a part of real time; a packet
//! that it cannot pay for is cut before the copy, and only the look that found this out is charged. So a flow that is
//! flooded costs no more than its share and that look.
//!
//! What a round of the driver takes is known only when it is over, and most of it is not any one frame's: to be woken, to look
//! round, to tell a program. So the first frame of a round pays for the round ([`Cost::begin`]), each pays for the look at it, and both
//! prices are learnt ([`Cost::saw`]): who comes alone, and wakes the driver, pays for that, and who comes behind
//! others pays little. While a flow has less than half of its bucket left the driver lets frames gather
//! ([`crate::serve`]), so that many come in one round, and cost little, before any is cut. Where XDP is, the flow is shut until half
//! of its bucket is there again ([`pool::Member::admit`] says when):
//! its frames are dropped before they come to the driver at all.
//!
//! What one flow may use, all together may use too, and no more: see [`pool`].

pub mod pool;

use netnice_core::units::{Instant, Nanos};

use crate::link::FRAME;

/// What one flow may use, and has used.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Of real time, in units of which it has [`WHOLE`]: it can be divided among millions.
    part: u64,
    /// The most that can be saved up.
    burst: u64,
    /// What is there, in such units of a nanosecond; below zero by no more than `burst`.
    level: i128,
    at: u64,
}

/// What the driver's work takes on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// A round in which frames came, whatever their number. Learnt, from what it begins with.
    pub round: Nanos,
    /// To look at a frame and find its flow. Learnt too.
    pub look: Nanos,
    /// To hand a packet over, whatever its length.
    pub hand: Nanos,
    /// To copy 1,024 bytes.
    pub kibibyte: Nanos,
    /// What the next frame pays beside the look at it.
    begun: Nanos,
    /// What it took to wake up for frames the last time.
    woke: Nanos,
}

impl Cost {
    /// A round begins, and to wake up for it took so long: its first frame pays for both.
    pub fn begin(&mut self, woke: Nanos) {
        self.begun = Nanos(self.round.0 + woke.0);
        if woke > Nanos(0) {
            self.woke = woke;
        }
    }

    /// What a packet takes that comes alone and wakes the driver, whatever its length.
    pub fn alone(&self) -> Nanos {
        Nanos(self.round.0 + self.woke.0 + self.look.0 + self.of(FRAME).0)
    }

    /// What is to be charged for the look at a frame.
    #[inline]
    pub fn look(&mut self) -> Nanos {
        Nanos(self.look.0 + std::mem::take(&mut self.begun).0)
    }

    /// A round took so long to receive so many frames and to tell their programs, without what it took to wake up. Few frames say
    /// what a round takes, many what a look takes. A round that is much longer than was thought was interrupted, perhaps: it says no
    /// more than one that is a little longer.
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

    /// Of a packet that is handed over, without the look.
    #[inline]
    pub fn of(&self, length: usize) -> Nanos {
        Nanos(self.hand.0 + (length as u64 * self.kibibyte.0).div_ceil(1024))
    }
}

impl Default for Cost {
    /// Measured on a virtual machine of 2026, and rounded up.
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
    /// A part of real time in millionths, of which at most `burst` is saved up. It begins full.
    pub fn new(part: u32, burst: Nanos) -> Share {
        Share {
            part: u64::from(part) * MILLIONTH,
            burst: burst.0,
            level: i128::from(burst.0) * WHOLE,
            at: 0,
        }
    }

    /// What time brings until now.
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

    /// Less than half of what can be saved up is left.
    #[inline]
    fn is_low(&self) -> bool {
        self.level < i128::from(self.burst) * (WHOLE / 2)
    }

    /// When half of what can be saved up will be there.
    fn recovers(&self) -> Instant {
        self.reaches(self.burst / 2)
    }

    /// When all of it will be.
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

/// A second of it fits into 64 bits, by which it is divided for each packet that is cut.
const WHOLE: i128 = 1_000_000_000;
const MILLIONTH: u64 = 1_000;
/// From so many frames on a round is for its frames.
const MANY: i64 = 8;
/// How much longer than was thought a round may be for it to be believed, in ns: to ring a program's bell takes half of that.
const SURPRISE: i64 = 20_000;
/// Between what the prices stay: what no machine is faster than, and what is not the driver's own doing, in ns.
const ROUND: (u64, u64) = (200, 50_000);
const LOOK: (u64, u64) = (50, 5_000);

#[cfg(test)]
mod tests;
