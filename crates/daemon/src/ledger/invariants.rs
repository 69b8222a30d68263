//! Checks that a ledger does not contradict itself. Each held target has a slot from 1 to
//! [`MAX_SLOT`] and an assigned id, both of its own. No target contains itself or is inside an
//! empty slot. No draining target shares its slot or id with another target. The result is a text
//! about the first violation, or `None`. Debug builds check each draft before it is installed, and
//! panic. All builds check a state file that they read.

use std::collections::BTreeSet;

use netnice_kernel::plan::MAX_SLOT;

use super::Ledger;

impl Ledger {
    /// Panics if the ledger violates an invariant.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn assert_invariants(&self) {
        if let Some(fault) = self.fault() {
            panic!("the ledger contradicts itself: {fault}");
        }
    }

    /// Describes the first violated invariant; `None` if the ledger violates none.
    pub(crate) fn fault(&self) -> Option<String> {
        let mut ids = BTreeSet::new();
        for (slot, held) in &self.held {
            let name = &held.entry.target;
            if *slot != held.entry.id {
                return Some(format!("{name} is in slot {slot}, which is not its own"));
            }
            if slot.get() > MAX_SLOT {
                return Some(format!("{name} is in slot {slot}, beyond {MAX_SLOT}"));
            }
            if !ids.insert(held.id) || held.id >= self.next_id || held.id == 0 {
                return Some(format!(
                    "{name} has id {}, which was not assigned to it",
                    held.id
                ));
            }
            if self.slots.get(&held.id) != Some(slot) {
                return Some(format!("{name} is not found by its id"));
            }
            let mut chain = vec![*slot];
            let mut next = held.entry.parent;
            while let Some(parent) = next {
                if chain.contains(&parent) {
                    return Some(format!("{name} contains itself"));
                }
                chain.push(parent);
                match self.held.get(&parent) {
                    Some(outer) => next = outer.entry.parent,
                    None => return Some(format!("{name} is inside slot {parent}, which is empty")),
                }
            }
        }
        self.draining.iter().find_map(|(slot, draining)| {
            let alone = *slot == draining.slot
                && slot.get() <= MAX_SLOT
                && !self.held.contains_key(slot)
                && draining.id < self.next_id
                && ids.insert(draining.id);
            (!alone).then(|| format!("the draining target in slot {slot} shares its slot or id"))
        })
    }
}
