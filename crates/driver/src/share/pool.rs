//! How much of the driver's time the received packets of all flows may take together, and who has it when it is too little.
//!
//! Flows that are flooded at the same time would each have their share, and the driver no time for others: frames would be lost before
//! it could see whose they are. So there is one bucket more, the [`Pool`], as large as the largest share of a flow, and every flow pays
//! into both. When the pool is empty, a flow still has its *part*: what the pool earns, divided by the programs that received
//! something lately, and that by the flows of the program that did. So
//! ```text
//!   admitted = there is enough in its share, and in its part or in the pool
//! ```
//! A flow that uses less than its part never notices the others; those that use more have what the others leave. A program with many
//! flows has no more than one with few.
//!
//! When there is not, the flow is shut until half of what its share saves up is there again, and half of what its part does or the whole
//! pool, whichever is sooner. Of few flows that is the part, and they do not come back all at once; for one of a million its part alone
//! would take many seconds.
//!
//! Who received lately is counted in stretches of time of [`STRETCH`]. What is saved up is divided too: else thousands of flows that
//! were idle could be flooded for a millisecond each. But a part saves no less than what two packets take that come alone and wake the
//! driver ([`Cost::alone`](super::Cost::alone)); prices are learnt, and the next one may be dearer than the last. So who is among many,
//! and sends little, can pay for its packet also if it is the first of a round, which pays for the round.

use netnice_core::units::{Instant, Nanos};

use super::Share;

/// What all flows that have a share may use together.
#[derive(Clone, Debug)]
pub struct Pool {
    share: Share,
    programs: Crowd,
    /// What a part saves up at least.
    least: Nanos,
}

/// How many received something lately: programs of a driver, or flows of a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crowd {
    /// The stretch that is counted now.
    stretch: u64,
    now: u32,
    before: u32,
}

/// A flow's share, and its part of the pool.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    share: Share,
    part: Share,
    /// When it was counted last.
    stretch: u64,
    /// By how many the pool was divided then.
    others: u64,
    /// What it saves up of its part, if that is enough for a packet.
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
    /// A flow with this share comes.
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

    /// A round begins, and so much is what a packet takes that comes alone and wakes the driver.
    pub fn begin(&mut self, alone: Nanos) {
        self.least = Nanos(self.share.burst.min(2 * alone.0));
    }

    /// Less than half of what can be saved up is left.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.share.is_low()
    }
}

impl Crowd {
    /// One more in this stretch; true if it is the first.
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
    /// A packet came for a flow of this program: the look at it is charged. If the rest can be paid for it is charged too; if not,
    /// until when it cannot.
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
        // What others leave is no debt.
        let least = self.part.level.min(0);
        self.part.take(rest);
        self.part.level = self.part.level.max(least);
        Ok(())
    }

    /// Less than half of what its share can save up is left.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.share.is_low()
    }
}

/// In ns: long beside the pauses of who receives steadily, and short beside a person's.
const STRETCH: u64 = 10_000_000;

#[cfg(test)]
mod tests;
