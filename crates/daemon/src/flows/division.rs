//! How a link is divided between the driver of the direct path and the classes of the kernel. Pure.
//!
//! Each side has what it needs ([`super::admission`]), and the rest is lent to whoever uses it: looked at five times a
//! second. A side that uses most of what it has is *busy*. Where both are, the rest is halved; where one is, it gets
//! what the other does not use, but for a margin by which the other can show that it wants more.

use netnice_core::units::{Amount, Rate};

/// The two rates; together they are the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// The driver's.
    pub wire: Rate,
    /// The classes'.
    pub tree: Rate,
}

/// What there is to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// The link.
    pub capacity: Rate,
    /// What the classes keep.
    pub tree: Rate,
    /// What the driver needs.
    pub need: Rate,
}

/// What both used lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// The driver.
    pub wire: Amount,
    /// The classes.
    pub tree: Amount,
}

impl Whole {
    /// Where nothing is known of who uses what: what is nobody's is halved.
    pub(super) fn halved(&self) -> Split {
        self.with_wire(self.need.bits_per_second() + self.spare() / 2)
    }

    /// The next division, after what was used of the present one. The present one if little would change.
    pub(super) fn next(&self, now: Split, used: Used) -> Split {
        let busy = |used: Amount, of: Rate| used.0 > of.bits_per_second() / 100 * BUSY;
        let margin = self.spare() / MARGIN;
        let lent = |floor: Rate, used: Amount| {
            let wanted = (used.0 / 4 * 5).max(floor.bits_per_second());
            wanted.saturating_add(margin)
        };
        let capacity = self.capacity.bits_per_second();
        let next = match (busy(used.wire, now.wire), busy(used.tree, now.tree)) {
            (true, false) => {
                let half = self.halved().tree.bits_per_second();
                self.with_wire(capacity.saturating_sub(lent(self.tree, used.tree).min(half)))
            }
            (false, true) => {
                let half = self.halved().wire.bits_per_second();
                self.with_wire(lent(self.need, used.wire).min(half))
            }
            (true, true) => self.halved(),
            (false, false) if self.holds(now) => now,
            (false, false) => self.halved(),
        };
        let differs = next
            .wire
            .bits_per_second()
            .abs_diff(now.wire.bits_per_second());
        match self.holds(now) && differs < capacity / NOTICED {
            true => now,
            false => next,
        }
    }

    /// Whether a division gives each side what it needs, and no more than the link together.
    pub(super) fn holds(&self, split: Split) -> bool {
        let bits = Rate::bits_per_second;
        bits(split.wire) + bits(split.tree) <= bits(self.capacity)
            && split.wire >= self.need
            && split.tree >= self.tree
    }

    fn spare(&self) -> u64 {
        let needed = self.tree.bits_per_second() + self.need.bits_per_second();
        self.capacity.bits_per_second().saturating_sub(needed)
    }

    fn with_wire(&self, wire: u64) -> Split {
        let capacity = self.capacity.bits_per_second();
        let most = capacity.saturating_sub(self.tree.bits_per_second());
        let wire = wire.clamp(self.need.bits_per_second().min(most), most);
        Split {
            wire: Rate::new(wire).unwrap_or(Rate::MIN),
            tree: Rate::new(capacity - wire).unwrap_or(Rate::MIN),
        }
    }
}

/// Percent of what a side has, above which it wants more.
const BUSY: u64 = 85;
/// One part in so many of what is nobody's stays with the side that does not use it.
const MARGIN: u64 = 16;
/// Changes smaller than one part in so many of the link are not worth a change of classes.
const NOTICED: u64 = 50;
