//! Limits the driver's time for the received packets of all flows together, and divides it.
//!
//! If flows were limited only one by one, several flooded flows would leave the driver no time for
//! others: frames would be lost before their flow is known. So there is one more bucket, the
//! [`SharedBudget`], as large as the largest budget that a flow has had, and both are charged. When
//! the shared budget is exhausted, a flow still has its *part*, a bucket that earns the shared
//! budget's rate divided by the number of programs that received something recently, and again by
//! the number of the program's flows that received something recently. A packet is delivered under
//! this condition:
//! ```text
//!   admitted = its own budget covers it, and its part or the shared budget covers it
//! ```
//! A flow that uses less than its part is not affected by others; flows that use more divide what
//! others leave. A program with many flows gets no more than a program with few.
//!
//! A flow that is not admitted is suspended until its own bucket is half full. If neither its part
//! nor the shared budget covered the packet, the flow also waits until its part's bucket is half
//! full or the shared bucket is full, whichever is sooner. Among few flows the part is sooner, so
//! the flows do not return all at once; for one flow of a million the part alone would take many
//! seconds.
//!
//! While only one program uses the driver, a flow may receive for [`LENT_PART`] of real time in
//! place of the shared budget: the rest is *lent* to it. Programs use the driver if their rings
//! moved recently; redirected targets count as one more program. The flow must have the largest
//! budget, and it must answer: if it sent nothing in the period before, it may be flooded.
//!
//! A flow whose contract has `receive P%` has that part of the shared budget for certain: its
//! *share*. Such a flow is not counted as a receiver. The other receivers divide the rest of the
//! shared budget. The daemon admits shares of at most [`MAX_RESERVED_RECEIVE`] in all.
//!
//! Recent receivers are counted in periods of [`ACTIVE_PERIOD`] (10 ms). The size of the shared
//! bucket is divided too; otherwise thousands of idle flows could be flooded for a millisecond
//! each. But a part's bucket holds at least twice the price of a packet that arrives alone and
//! wakes the driver ([`Cost::lone_packet`](super::Cost::lone_packet)), though no more than the
//! shared bucket: prices are learnt, and the next packet may cost more than the last. So a flow
//! among many that receives little can pay for its packet even if the packet is the first of an
//! iteration and pays for the iteration. No function fails.

use netnice_api::driver::MAX_RESERVED_RECEIVE;
use netnice_core::units::{Instant, Nanos};

use super::ReceiveBudget;

/// The receive budget that all flows with a budget have together.
#[derive(Clone, Debug)]
pub(crate) struct SharedBudget {
    budget: ReceiveBudget,
    programs: ActiveSet,
    /// The sum of the parts that open flows have for certain, in millionths.
    reserved: u32,
    /// The least burst of a part.
    least_burst: Nanos,
    /// Programs that use the driver.
    active: ActiveSet,
}

/// Counts recent users: programs of a driver, or flows of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ActiveSet {
    /// The period that is counted now.
    period: u64,
    current: u32,
    previous: u32,
}

/// A flow's own budget, and its part of the shared budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowBudget {
    own: ReceiveBudget,
    part: ReceiveBudget,
    /// The period in which the flow was last counted.
    period: u64,
    /// The sum of certain parts and the number of receivers that the shared budget was divided by
    /// then.
    divided_by: (u32, u64),
    /// The part's burst, unless it is less than the least.
    part_burst: Nanos,
    /// Packets that the flow had sent when the period began, and whether that was more than when
    /// the period before began.
    sent: u64,
    answers: bool,
}

impl Default for SharedBudget {
    fn default() -> SharedBudget {
        SharedBudget {
            budget: ReceiveBudget::new(0, Nanos(0)),
            programs: ActiveSet::default(),
            reserved: 0,
            least_burst: Nanos(0),
            active: ActiveSet::default(),
        }
    }
}

impl SharedBudget {
    /// Adds a flow that has the budget `own`, and returns the account of the flow. The shared
    /// budget becomes `own` if `own` is larger; it is not reduced when the flow is closed.
    pub(crate) fn add_flow(&mut self, own: ReceiveBudget) -> FlowBudget {
        if self.budget.part < own.part {
            self.budget = own;
        }
        self.reserved = self.reserved.saturating_add(own.share);
        FlowBudget {
            own,
            part: ReceiveBudget { level: 0, ..own },
            period: 0,
            divided_by: (0, 0),
            part_burst: Nanos(0),
            sent: 0,
            answers: false,
        }
    }

    /// A program has used the driver. `period` is that in which it was last counted.
    pub(crate) fn count_active(&mut self, period: &mut u64, now: Instant) {
        let present = now.0 / ACTIVE_PERIOD + 1;
        if std::mem::replace(period, present) != present {
            self.active.count(present);
        }
    }

    /// Whether only one program has used the driver recently.
    pub(crate) fn is_alone(&self, period: u64) -> bool {
        let active = &self.active;
        period <= active.period + 1 && active.size() <= 1
    }

    /// A flow is closed.
    pub(crate) fn remove_flow(&mut self, flow: &FlowBudget) {
        self.reserved = self.reserved.saturating_sub(flow.own.share);
    }

    /// Changes the part that a flow has for certain, in millionths.
    pub(crate) fn set_share(&mut self, flow: &mut FlowBudget, share: u32) {
        self.remove_flow(flow);
        flow.own.share = share;
        flow.divided_by = (0, 0);
        self.reserved = self.reserved.saturating_add(share);
    }

    /// The part of a flow with this share; with the share 0 that of one of so many receivers.
    /// `whole` is the rate or the size of the shared budget.
    fn part_of(&self, whole: u64, share: u32, receivers: u64) -> u64 {
        match share {
            0 => {
                let rest = MILLION - u64::from(self.reserved.min(MAX_RESERVED_RECEIVE));
                whole * rest / MILLION / receivers
            }
            share => whole * u64::from(share) / MILLION,
        }
    }

    /// Begins an iteration, in which a packet that arrives alone and wakes the driver costs
    /// `lone_packet`.
    pub(crate) fn begin(&mut self, lone_packet: Nanos) {
        self.least_burst = Nanos(self.budget.burst.min(2 * lone_packet.0));
    }

    /// Less than half of the largest level is left.
    #[inline]
    pub(crate) fn is_nearly_exhausted(&self) -> bool {
        self.budget.is_nearly_exhausted()
    }
}

impl ActiveSet {
    /// Counts one more in this period; true if it is the first.
    fn count(&mut self, period: u64) -> bool {
        if self.period == period {
            self.current += 1;
            return false;
        }
        self.previous = if self.period + 1 == period {
            self.current
        } else {
            0
        };
        (self.period, self.current) = (period, 1);
        true
    }

    fn size(&self) -> u32 {
        self.current.max(self.previous).max(1)
    }
}

impl FlowBudget {
    /// A packet arrived for a flow of this program, which has sent `sent` packets so far. Charges
    /// the look-up, and `delivery` too if the flow can pay for it.
    ///
    /// # Errors
    /// The time until which the flow cannot pay.
    pub(crate) fn admit(
        &mut self,
        (shared, program): (&mut SharedBudget, &mut ActiveSet),
        (lookup, delivery): (Nanos, Nanos),
        (sent, now): (u64, Instant),
    ) -> Result<(), Instant> {
        let period = now.0 / ACTIVE_PERIOD + 1;
        let is_first = std::mem::replace(&mut self.period, period) != period;
        let share = self.own.share;
        if is_first && share == 0 && program.count(period) {
            shared.programs.count(period);
        }
        let receivers = u64::from(shared.programs.size()) * u64::from(program.size());
        let divided_by = (shared.reserved, receivers);
        if is_first || self.divided_by != divided_by {
            self.divided_by = divided_by;
            self.part.part = shared.part_of(shared.budget.part, share, receivers);
            self.part_burst = Nanos(shared.part_of(shared.budget.burst, share, receivers));
        }
        if is_first {
            self.answers = std::mem::replace(&mut self.sent, sent) != sent;
        }
        self.part.burst = self.part_burst.max(shared.least_burst).0;
        let may_borrow = self.answers && self.own.part == shared.budget.part;
        let lent = may_borrow && shared.is_alone(period);
        for (budget, may_borrow) in [
            (&mut self.own, lent),
            (&mut self.part, false),
            (&mut shared.budget, lent),
        ] {
            let part = budget.part;
            budget.part = if may_borrow {
                part.max(LENT_PART)
            } else {
                part
            };
            budget.earn(now);
            budget.part = part;
            budget.charge(lookup);
        }
        let has_part = self.part.covers(delivery) || shared.budget.covers(delivery);
        if !self.own.covers(delivery) || !has_part {
            let own = self.own.half_full_at();
            return Err(match has_part {
                true => own,
                false => own.max(self.part.half_full_at().min(shared.budget.full_at())),
            });
        }
        self.own.charge(delivery);
        shared.budget.charge(delivery);
        // A packet that the shared budget pays for leaves no debt in the part.
        let least = self.part.level.min(0);
        self.part.charge(delivery);
        self.part.level = self.part.level.max(least);
        Ok(())
    }

    /// Less than half of the flow's own largest level is left.
    #[inline]
    pub(crate) fn is_nearly_exhausted(&self) -> bool {
        self.own.is_nearly_exhausted()
    }
}

/// Parts are in millionths.
const MILLION: u64 = 1_000_000;
/// What is lent, in the units of [`ReceiveBudget`]: three quarters of real time. The rest is for
/// the programs that run on the driver's processor, which come after it.
const LENT_PART: u64 = 750_000 * super::MILLIONTH;
/// Length of a period, in ns: longer than the gaps between the frames of a steady receiver, and too
/// short for a person to notice.
const ACTIVE_PERIOD: u64 = 10_000_000;

#[cfg(test)]
mod tests;
