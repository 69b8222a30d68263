//! Limits the driver's time for the received packets of all flows together, and divides it.
//!
//! If flows were limited only one by one, several flooded flows would leave the driver no time for
//! others: frames would be lost before their flow is known. So there is one more bucket, the
//! [`Pool`], as large as the largest share of a flow, and every flow pays into both. When the pool
//! is empty, a flow still has its *part*: the pool's earnings divided by the number of programs
//! that received something recently, and again by the number of such flows of the program. So
//! ```text
//!   admitted = its share has enough, and its part or the pool has enough
//! ```
//! A flow that uses less than its part is not affected by others; flows that use more share what
//! others leave. A program with many flows gets no more than a program with few.
//!
//! A flow that is not admitted is suspended until half of its share's burst is there again, and
//! also half of its part's burst or the whole pool, whichever is sooner. Among few flows that is
//! the part, and the flows do not return all at once; for one flow of a million its part alone
//! would take many seconds.
//!
//! Recent receivers are counted in periods of [`STRETCH`]. The burst is divided too; otherwise
//! thousands of idle flows could be flooded for a millisecond each. But a part's burst is at least
//! twice the price of a packet that arrives alone and wakes the driver
//! ([`Cost::alone`](super::Cost::alone)), since prices are learnt and the next packet may cost more
//! than the last. So a flow among many that receives little can pay for its packet even if the
//! packet is the first of an iteration and pays for the iteration.

use netnice_core::units::{Instant, Nanos};

use super::Share;

/// The budget that all flows with a share have together.
#[derive(Clone, Debug)]
pub struct Pool {
    share: Share,
    programs: Crowd,
    /// The least burst of a part.
    least: Nanos,
}

/// Counts recent receivers: programs of a driver, or flows of a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crowd {
    /// The period that is counted now.
    stretch: u64,
    now: u32,
    before: u32,
}

/// A flow's share, and its part of the pool.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    share: Share,
    part: Share,
    /// The period in which the flow was last counted.
    stretch: u64,
    /// The number that the pool was divided by then.
    others: u64,
    /// The part's burst, unless it is less than the least.
    saves: Nanos,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool {
            share: Share::new(0, Nanos(0)),
            programs: Crowd::default(),
            least: Nanos(0),
        }
    }
}

impl Pool {
    /// Adds a flow with this share.
    pub fn member(&mut self, share: Share) -> Member {
        if self.share.part < share.part {
            self.share = share;
        }
        Member {
            share,
            part: Share { level: 0, ..share },
            stretch: 0,
            others: 0,
            saves: Nanos(0),
        }
    }

    /// Begins an iteration, in which a packet that arrives alone and wakes the driver costs
    /// `alone`.
    pub fn begin(&mut self, alone: Nanos) {
        self.least = Nanos(self.share.burst.min(2 * alone.0));
    }

    /// Less than half of the largest level is left.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.share.is_low()
    }
}

impl Crowd {
    /// Counts one more in this period; true if it is the first.
    fn count(&mut self, stretch: u64) -> bool {
        if self.stretch == stretch {
            self.now += 1;
            return false;
        }
        self.before = if self.stretch + 1 == stretch {
            self.now
        } else {
            0
        };
        (self.stretch, self.now) = (stretch, 1);
        true
    }

    fn size(&self) -> u32 {
        self.now.max(self.before).max(1)
    }
}

impl Member {
    /// A packet arrived for a flow of this program. Charges the look-up, and `rest` too if the flow
    /// can pay for it. Otherwise returns until when the flow cannot pay.
    pub fn admit(
        &mut self,
        (pool, program): (&mut Pool, &mut Crowd),
        (look, rest): (Nanos, Nanos),
        now: Instant,
    ) -> Result<(), Instant> {
        let stretch = now.0 / STRETCH + 1;
        let is_first = std::mem::replace(&mut self.stretch, stretch) != stretch;
        if is_first && program.count(stretch) {
            pool.programs.count(stretch);
        }
        let others = u64::from(pool.programs.size()) * u64::from(program.size());
        if is_first || self.others != others {
            self.others = others;
            self.part.part = pool.share.part / others;
            self.saves = Nanos(pool.share.burst / others);
        }
        self.part.burst = self.saves.max(pool.least).0;
        for bucket in [&mut self.share, &mut self.part, &mut pool.share] {
            bucket.earn(now);
            bucket.take(look);
        }
        let has_part = self.part.has(rest) || pool.share.has(rest);
        if !self.share.has(rest) || !has_part {
            let own = self.share.recovers();
            return Err(match has_part {
                true => own,
                false => own.max(self.part.recovers().min(pool.share.fills())),
            });
        }
        self.share.take(rest);
        pool.share.take(rest);
        // A packet that the pool pays for leaves no debt in the part.
        let least = self.part.level.min(0);
        self.part.take(rest);
        self.part.level = self.part.level.max(least);
        Ok(())
    }

    /// Less than half of the share's largest level is left.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.share.is_low()
    }
}

/// In ns: long beside the gaps of a steady receiver, and short for a person.
const STRETCH: u64 = 10_000_000;

#[cfg(test)]
mod tests;
