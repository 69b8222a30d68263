//! Shaping to a slice (papers NTCP and VERT: Atropos): `s` of transmit time in every `p`.
//!
//! ```text
//!            left > 0, backlogged          left <= 0
//!  asleep ──────────▶ due by `ends` ──────────────▶ waits for the next period that has some
//!    ▲                     │    ▲                                │
//!    └─── queue empty ─────┘    └──── period ends, left += s ────┘
//! ```
//! - A packet may overdraw what is left; the debt is taken from the next periods, and also while
//!   the flow sleeps: each period slept repays `s`. What is left at a period's end is lost.
//! - Service beyond the slice (`extra`) is not charged.
//! - On waking, the rule of the constant-bandwidth server (Abeni and Buttazzo, 1998): if what is
//!   left, until the end of the period, is more than the share s/p, a new period starts now with
//!   a slice and no more. An old deadline kept with a full slice would make others miss theirs.
//! - A changed contract counts from the next period.

use crate::contract;

/// The state of a flow with a slice. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    slice: u64,
    period: u64,
    /// When the current period ends.
    ends: u64,
    /// What is left of the current period's slice; negative is debt.
    left: i64,
}

impl Slice {
    /// A flow that has never sent. Its first period begins when it wakes.
    pub(super) fn new(contract: &contract::Slice) -> Slice {
        Slice {
            slice: contract.slice().0,
            period: contract.period().0,
            ends: 0,
            left: 0,
        }
    }

    /// The same period under another contract; the next ones are the new contract's.
    pub(super) fn changed(&self, contract: &contract::Slice) -> Slice {
        Slice {
            ends: self.ends,
            left: self.left,
            ..Slice::new(contract)
        }
    }

    /// This share of a rate, rounded down.
    pub(super) fn of(&self, rate: u64) -> u64 {
        // A slice is not longer than its period.
        (u128::from(rate) * u128::from(self.slice) / u128::from(self.period)) as u64
    }

    /// A packet comes to the empty queue.
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

    /// When the next packet may go, and by when it must. Periods that are over by then are
    /// accounted for when it is sent.
    #[inline(always)]
    pub(super) fn plan(&mut self, now: u64) -> (u64, u64) {
        self.roll(now);
        if self.left > 0 {
            return (now, self.ends);
        }
        // The first period at whose start debt and slices sum to something.
        let debt = self.left.unsigned_abs();
        let before = (debt / self.slice).saturating_mul(self.period);
        let eligible = self.ends.saturating_add(before);
        (eligible, eligible.saturating_add(self.period))
    }

    /// When the current period began.
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

    /// A packet that takes `cost` left within the guarantee, and was decided on at `now`.
    #[inline(always)]
    pub(super) fn sent(&mut self, now: u64, cost: u64) {
        self.roll(now);
        self.left = self.left.saturating_sub_unsigned(cost);
    }

    /// Periods that are over give way to the next, all of one grid.
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

    /// A period begins, with a slice less a debt (which is zero or less).
    #[inline(always)]
    fn begin(&mut self, at: u64, debt: i64) {
        self.ends = at.saturating_add(self.period);
        self.left = debt.saturating_add_unsigned(self.slice);
    }
}

#[cfg(test)]
mod tests;
