//! Shaping to a slice (papers NTCP and VERT: Atropos): `s` of transmit time in every `p`.
//!
//! ```text
//! left > 0     the head is eligible; its deadline is the end of the period
//! left <= 0    the head is eligible at the start of the next period with left > 0
//! sent         left -= duration of the packet, except for packets from the left-over
//! period ends  left  = s + min(left, 0)
//! ```
//! `left` is the rest of the slice in the current period; below zero it is a debt.
//!
//! - A packet may overdraw the rest of the slice. The next periods repay the debt with `s` each,
//!   also while the queue is empty. An unused rest is lost at the end of the period.
//! - With `extra` a flow with left <= 0 also sends from the left-over.
//! - When a packet arrives at the empty queue and the period is over, a new period starts now. If
//!   the period is not over, the rule of the constant-bandwidth server applies (Abeni and Buttazzo,
//!   1998): if the rest of the slice, over the rest of the period, is more than the share s/p, a
//!   new period starts now with one slice. A full slice with the old deadline would make other
//!   flows miss their deadlines.
//! - A changed contract takes effect with the next period.
//!
//! No function of this module fails.

use crate::contract;

/// The state of a flow with a slice. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceState {
    slice: u64,
    period: u64,
    /// End of the current period.
    ends: u64,
    /// Rest of the current period's slice. A negative rest is a debt.
    left: i64,
}

impl SliceState {
    /// A flow that has not sent. Its first period begins when its first packet arrives.
    pub(super) fn new(contract: &contract::Slice) -> SliceState {
        SliceState {
            slice: contract.slice().0,
            period: contract.period().0,
            ends: 0,
            left: 0,
        }
    }

    /// The state of a server without a slice. No packet is charged to it.
    pub(super) fn unused() -> SliceState {
        SliceState {
            slice: 1,
            period: 1,
            ends: 0,
            left: 0,
        }
    }

    /// The same period under another contract. The new contract counts from the next period.
    pub(super) fn changed(&self, contract: &contract::Slice) -> SliceState {
        SliceState {
            ends: self.ends,
            left: self.left,
            ..SliceState::new(contract)
        }
    }

    /// The slice's share of a rate, rounded down.
    pub(super) fn of(&self, rate: u64) -> u64 {
        // A slice is not longer than its period.
        (u128::from(rate) * u128::from(self.slice) / u128::from(self.period)) as u64
    }

    /// A packet arrives at the empty queue.
    #[inline(always)]
    pub(super) fn wake(&mut self, now: u64) {
        if now >= self.ends {
            let slept = (now - self.ends) / self.period;
            let repaid = slept.saturating_mul(self.slice);
            let debt = self.left.min(0).saturating_add_unsigned(repaid).min(0);
            self.begin(now, debt);
        } else if self.left > 0 {
            let share = u128::from(self.slice) * u128::from(self.ends - now);
            if u128::from(self.left.unsigned_abs()) * u128::from(self.period) > share {
                self.begin(now, 0);
            }
        }
    }

    /// The eligible time and the deadline of the next packet. Periods that end before the eligible
    /// time are accounted for when the packet is sent.
    #[inline(always)]
    pub(super) fn plan(&mut self, now: u64) -> (u64, u64) {
        self.roll(now);
        if self.left > 0 {
            return (now, self.ends);
        }
        // The first period at whose start the debt is repaid.
        let debt = self.left.unsigned_abs();
        let before = (debt / self.slice).saturating_mul(self.period);
        let eligible = self.ends.saturating_add(before);
        (eligible, eligible.saturating_add(self.period))
    }

    /// Start of the current period.
    #[inline(always)]
    pub(super) fn began(&mut self, now: u64) -> u64 {
        self.roll(now);
        self.ends.saturating_sub(self.period)
    }

    /// Whether the slice of the current period is spent.
    #[inline(always)]
    pub(super) fn is_spent(&mut self, now: u64) -> bool {
        self.roll(now);
        self.left <= 0
    }

    /// A packet of duration `cost`, chosen at `now`, left within the guarantee.
    #[inline(always)]
    pub(super) fn sent(&mut self, now: u64, cost: u64) {
        self.roll(now);
        self.left = self.left.saturating_sub_unsigned(cost);
    }

    /// Skips to the period that contains `now`. The skipped periods follow each other without gaps.
    #[inline(always)]
    fn roll(&mut self, now: u64) {
        if now < self.ends {
            return;
        }
        let over = (now - self.ends) / self.period;
        let repaid = over.saturating_mul(self.slice);
        let debt = self.left.min(0).saturating_add_unsigned(repaid).min(0);
        let begins = self.ends.saturating_add(over.saturating_mul(self.period));
        self.begin(begins, debt);
    }

    /// Begins a period, with a slice plus `debt` (which is zero or negative).
    #[inline(always)]
    fn begin(&mut self, at: u64, debt: i64) {
        self.ends = at.saturating_add(self.period);
        self.left = debt.saturating_add_unsigned(self.slice);
    }
}

#[cfg(test)]
mod tests;
