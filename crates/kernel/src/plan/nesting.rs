//! The nesting of the targets: which contain which. Nothing here fails.

use std::collections::{BTreeMap, BTreeSet};

use super::{Limit, Target};

/// The nesting of the targets.
pub(super) struct Nesting<'a> {
    pub(super) by_slot: BTreeMap<u16, &'a Target>,
}

impl<'a> Nesting<'a> {
    /// The nesting of these targets.
    pub(super) fn new(targets: &'a [Target]) -> Self {
        Self {
            by_slot: targets.iter().map(|t| (t.slot, t)).collect(),
        }
    }

    /// The target and the targets around it, from the inside outwards. The chain ends at a missing
    /// parent, and after as many steps as there are targets, so that no input makes it loop.
    pub(super) fn with_ancestors(&self, target: &Target) -> impl Iterator<Item = &'a Target> + '_ {
        let mut next = self.by_slot.get(&target.slot).copied();
        std::iter::from_fn(move || {
            let here = next?;
            next = here
                .parent
                .and_then(|slot| self.by_slot.get(&slot).copied());
            Some(here)
        })
        .take(self.by_slot.len())
    }

    /// The slots of all targets that are inside the same outermost target as one of these.
    pub(super) fn around(&self, slots: &BTreeSet<u16>) -> BTreeSet<u16> {
        let outermost = |target: &Target| self.with_ancestors(target).last().map(|t| t.slot);
        let with = |slot: &u16| outermost(self.by_slot.get(slot)?);
        let marked: BTreeSet<u16> = slots.iter().filter_map(with).collect();
        let targets = self.by_slot.values();
        targets
            .filter(|target| outermost(target).is_some_and(|slot| marked.contains(&slot)))
            .map(|target| target.slot)
            .collect()
    }

    /// True if the target in `slot` has one limit on the sum of both directions.
    pub(super) fn limits_the_sum(&self, slot: u16) -> bool {
        self.by_slot
            .get(&slot)
            .is_some_and(|t| matches!(t.limit, Limit::Both(_)))
    }
}
