//! How much of the driver's time one flow's received packets may take.
//!
//! VERT 3.5 asks who pays for the copy of a received packet: its call-privs let the program copy, on its own time. Here the driver
//! copies, and charges the flow. A [`Share`] is a bucket of nanoseconds that fills at a part of real time; a packet
//! that it cannot pay for is cut before the copy, and only the look that found this out is charged. So a flow that is
//! flooded costs no more than its share and that look.
//!
//! A look costs little where many frames came together, and microseconds where each frame ended a sleep of its own. So
//! what it costs is measured ([`Cost::saw`]), and while packets are cut the driver lets frames gather
//! ([`crate::serve`]). And where XDP is, the flow is shut until half of its bucket is there again ([`Share::recovers`]):
//! its frames are dropped before they come to the driver at all.

use netnice_core::units::{Instant, Nanos};

/// What one flow may use, and has used.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Millionths of real time.
    part: u32,
    /// The most that can be saved up.
    burst: u64,
    /// What is there, in millionths of nanoseconds; below zero by no more than `burst`.
    level: i128,
    at: u64,
}

/// What the driver's work takes on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// To look at a frame and find its flow, with its part of what it takes to wake up for it. Measured, from what it begins with.
    pub look: Nanos,
    /// To hand a packet over, whatever its length.
    pub hand: Nanos,
    /// To copy 1,024 bytes.
    pub kibibyte: Nanos,
}

impl Cost {
    /// A round took so long to receive so many frames and to show them to their programs.
    pub fn saw(&mut self, frames: u32, took: Nanos) {
        if frames == 0 {
            return;
        }
        let each = took.0 / u64::from(frames);
        let look = each.saturating_sub(self.hand.0).clamp(LEAST, MOST);
        // A mean over some dozens of frames: one round that was interrupted says little.
        let weight = u64::from(frames.min(16));
        self.look.0 = (self.look.0 * (64 - weight) + look * weight) / 64;
    }

    /// Of a packet that is handed over, without the look.
    pub fn of(&self, length: usize) -> Nanos {
        Nanos(self.hand.0 + (length as u64 * self.kibibyte.0).div_ceil(1024))
    }
}

impl Default for Cost {
    /// Measured on a virtual machine of 2026, and rounded up.
    fn default() -> Cost {
        Cost {
            look: Nanos(100),
            hand: Nanos(100),
            kibibyte: Nanos(60),
        }
    }
}

impl Share {
    /// A part of real time in millionths, of which at most `burst` is saved up. It begins full.
    pub fn new(part: u32, burst: Nanos) -> Share {
        Share {
            part,
            burst: burst.0,
            level: i128::from(burst.0) * MILLION,
            at: 0,
        }
    }

    /// A packet came: the look is charged. Whether the rest can be paid for; if so, it is charged.
    pub fn admit(&mut self, look: Nanos, rest: Nanos, now: Instant) -> bool {
        let most = i128::from(self.burst) * MILLION;
        let passed = now.0.saturating_sub(self.at);
        self.at = self.at.max(now.0);
        let earned = i128::from(passed) * i128::from(self.part);
        let level = (self.level + earned).min(most) - i128::from(look.0) * MILLION;
        let left = level - i128::from(rest.0) * MILLION;
        let admitted = left >= 0;
        self.level = if admitted { left } else { level.max(-most) };
        admitted
    }

    /// When half of what can be saved up will be there.
    pub fn recovers(&self) -> Instant {
        let lacks = i128::from(self.burst) * MILLION / 2 - self.level;
        let part = i128::from(self.part).max(1);
        let wait = u64::try_from(lacks.max(0) / part).unwrap_or(u64::MAX);
        Instant(self.at.saturating_add(wait))
    }
}

const MILLION: i128 = 1_000_000;
/// What a look takes at least, and what it is taken for at most: above, the driver itself was stopped.
const LEAST: u64 = 50;
const MOST: u64 = 20_000;

#[cfg(test)]
mod tests;
