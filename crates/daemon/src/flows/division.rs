//! Computes the division of a link between the driver of the direct path and the kernel's classes
//! ([`Split`]), from the needs and the recent use of both sides. The functions are pure and do not
//! fail.
//!
//! The classes send at most at their part. The driver sends on the whole link, less what the
//! classes send (it reads their counter): its part is what it has for certain. So what the classes
//! do not use of their part is the driver's at once, and only the driver's part is lent by this
//! module.
//!
//! Each side has at least what it needs ([`super::admission`]), and half of the rest. If the
//! classes use more than 85 % of their part and the driver does not, the classes get what the
//! driver does not keep: 5/4 of what it uses, at least what it needs, and in addition 1/16 of the
//! rest, so that an increase of its use is visible; at most half of the rest. If neither uses so
//! much, the division stays. The caller adapts the division about every 200 ms. A change of less
//! than 1/50 of the link is not made. A division that gives a side less than it needs is always
//! replaced.

use netnice_core::units::{Amount, Rate};

/// The rates of the two sides. Their sum is the link's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// The rate that the driver has for certain.
    pub driver: Rate,
    /// The highest rate of the kernel's classes.
    pub tree: Rate,
}

/// The rate to divide, and what each side needs of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkNeeds {
    /// The link's rate.
    pub capacity: Rate,
    /// The rate that the kernel's classes keep.
    pub tree: Rate,
    /// The rate that the driver needs.
    pub need: Rate,
}

/// Recent use of both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SplitUse {
    /// The rate at which the driver sent.
    pub driver: Amount,
    /// The rate at which the kernel's classes sent.
    pub tree: Amount,
}

impl LinkNeeds {
    /// The division without data about use: each side has what it needs, and half of the rest.
    pub(super) fn halved(&self) -> Split {
        self.with_driver_rate(self.need.bits_per_second() + self.spare() / 2)
    }

    /// The next division, from what both sides use of the present division `now`. Returns `now` if
    /// it is valid and the next one would differ by less than 1/50 of the link.
    pub(super) fn next(&self, now: Split, used: SplitUse) -> Split {
        let busy = |used: Amount, of: Rate| used.0 > of.bits_per_second() / 100 * BUSY_PERCENT;
        let margin = self.spare() / MARGIN_DIVISOR;
        let capacity = self.capacity.bits_per_second();
        let next = match (busy(used.driver, now.driver), busy(used.tree, now.tree)) {
            (true, _) => self.halved(),
            (false, true) => {
                let half = self.halved().driver.bits_per_second();
                let kept = (used.driver.0 / 4 * 5).max(self.need.bits_per_second());
                self.with_driver_rate(kept.saturating_add(margin).min(half))
            }
            (false, false) if self.is_valid(now) => now,
            (false, false) => self.halved(),
        };
        let differs = next
            .driver
            .bits_per_second()
            .abs_diff(now.driver.bits_per_second());
        match self.is_valid(now) && differs < capacity / MIN_CHANGE_DIVISOR {
            true => now,
            false => next,
        }
    }

    /// True if a division gives each side what it needs, and in total no more than the link.
    pub(super) fn is_valid(&self, split: Split) -> bool {
        let bits = Rate::bits_per_second;
        bits(split.driver) + bits(split.tree) <= bits(self.capacity)
            && split.driver >= self.need
            && split.tree >= self.tree
    }

    fn spare(&self) -> u64 {
        let needed = self.tree.bits_per_second() + self.need.bits_per_second();
        self.capacity.bits_per_second().saturating_sub(needed)
    }

    fn with_driver_rate(&self, driver: u64) -> Split {
        let capacity = self.capacity.bits_per_second();
        let most = capacity.saturating_sub(self.tree.bits_per_second());
        let driver = driver.clamp(self.need.bits_per_second().min(most), most);
        Split {
            driver: Rate::new(driver).unwrap_or(Rate::MIN),
            tree: Rate::new(capacity - driver).unwrap_or(Rate::MIN),
        }
    }
}

/// A side that uses more than this percentage of its rate is busy.
const BUSY_PERCENT: u64 = 85;
/// 1/16 of the spare rate stays with a driver that does not use it.
const MARGIN_DIVISOR: u64 = 16;
/// A change smaller than 1/50 of the link is not applied.
const MIN_CHANGE_DIVISOR: u64 = 50;
