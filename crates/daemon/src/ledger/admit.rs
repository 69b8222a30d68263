//! What is admitted of what is asked, and who gives way.
//!
//! Root and the group come first. What a user without privilege asks is admitted if it fits beside the rest; where it
//! stands in the way of what a privileged one asks later (another kind of limit in the same chain, one level too many, a
//! limit below a minimum), it is *set aside*: it stays on the books, its target is held by what is around it alone, and
//! [`Ledger::heal`] lets it count again as soon as it fits. Only where all that is in the way is privileged too, the
//! request is refused.
//!
//! ```text
//!            fits                     a privileged request needs its place
//!   asked ─────────> counts ─────────────────────────────────────────────────> set aside
//!     │ does not       ^                                                          │
//!     v                └────────────────────── fits again ────────────────────────┘
//!   refused
//! ```

use std::collections::BTreeSet;

use netnice_core::admission::{self, Entry, Grant, MAX_DEPTH, Refusal, TargetId};
use netnice_core::claims::{Claimant, Claims};
use netnice_core::contract::{Change, Contract, kernel_path_support};
use netnice_core::target::Target;

use super::place::Containers;
use super::{Held, Ledger};
use crate::denied::Denied;

impl Ledger {
    /// Lets `by` ask for a change, and admits what follows from all claims. If nobody asks anything after it, the
    /// caller closes the target.
    pub(crate) fn ask(
        &mut self,
        slot: TargetId,
        by: Claimant,
        change: &Change,
        now_ns: u64,
    ) -> Result<(), Denied> {
        let claims = self.at(slot)?.claims.apply(by, change)?;
        if by.privileged {
            return self.admit(slot, claims, now_ns);
        }
        kernel_path_support(claims.effective())?;
        let request = self.request(slot, claims.effective().clone())?;
        let grant = admission::admit(&self.capacities(), &self.entries(), request)?;
        self.leaves_a_level(grant.entry())?;
        self.take(slot, claims, grant, now_ns);
        Ok(())
    }

    /// Puts claims in the place of those that are there. What users without privilege ask gives way to those of root and
    /// the group.
    pub(crate) fn admit(
        &mut self,
        slot: TargetId,
        claims: Claims,
        now_ns: u64,
    ) -> Result<(), Denied> {
        kernel_path_support(claims.effective())?;
        let request = self.request(slot, claims.effective().clone())?;
        match admission::admit(&self.capacities(), &self.entries(), request) {
            Ok(grant) => {
                self.take(slot, claims, grant, now_ns);
                Ok(())
            }
            Err(refusal) if claims.iter().any(|claim| claim.by.privileged) => {
                self.make_way(slot, claims, refusal, now_ns)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    fn request(&self, slot: TargetId, contract: Contract) -> Result<Entry, Denied> {
        Ok(Entry {
            contract,
            ..self.at(slot)?.entry.clone()
        })
    }

    fn take(&mut self, slot: TargetId, claims: Claims, grant: Grant, now_ns: u64) {
        if let Some(held) = self.held.get_mut(&slot) {
            held.claims = claims;
            held.changed_ns = now_ns;
            held.granted(grant);
        }
    }

    /// Admits claims of root and the group by setting aside what users ask of targets in one chain with theirs, and then
    /// lets each of those count again that fits beside them. With the refusal if all that is in the way is privileged.
    fn make_way(
        &mut self,
        slot: TargetId,
        claims: Claims,
        refusal: Refusal,
        now_ns: u64,
    ) -> Result<(), Denied> {
        let users = self.unprivileged_near(slot);
        for user in &users {
            self.seated(*user, |held| {
                held.entry.contract = held.of_privileged();
                held.aside = Some(held.why_aside("it is looked at again at the next change"));
            });
        }
        let links = self.capacities();
        let whole = self.request(slot, claims.effective().clone())?;
        let own = self.request(slot, claims.of_privileged())?;
        let admitted = admission::admit(&links, &self.entries(), whole)
            .or_else(|_| admission::admit(&links, &self.entries(), own));
        let Ok(grant) = admitted else {
            return Err(refusal.into());
        };
        self.take(slot, claims, grant, now_ns);
        // Each look is a pass over all targets; the others wait until the ledger heals.
        let looked = [slot].into_iter().chain(users).take(MOST_LOOKED_AT);
        for slot in looked {
            self.settle(slot);
        }
        Ok(())
    }

    /// The targets around and inside this one of which a user without privilege asks something that counts, the eldest
    /// first.
    fn unprivileged_near(&self, slot: TargetId) -> Vec<TargetId> {
        let around: BTreeSet<TargetId> = self.around(slot).map(|held| held.entry.id).collect();
        let is_inside = |held: &Held| self.around(held.entry.id).any(|at| at.entry.id == slot);
        let in_chain = |held: &Held| around.contains(&held.entry.id) || is_inside(held);
        let asked = self
            .held
            .values()
            .filter(|held| held.aside.is_none())
            .filter(|held| held.claims.iter().any(|claim| !claim.by.privileged));
        by_age(asked.filter(|held| in_chain(held)).collect())
    }

    /// Keeps a level of the kernel's classes for root and the group, around or inside what users ask for.
    fn leaves_a_level(&self, request: &Entry) -> Result<(), Denied> {
        let chain = |slot| {
            let around = self.around(slot).filter(|held| held.takes_a_level());
            1 + around.count()
        };
        let inside = self.held.values().filter(|held| {
            held.takes_a_level()
                && self
                    .around(held.entry.id)
                    .any(|at| at.entry.id == request.id)
        });
        let outer = chain(request.id);
        // Around what lies inside, the request itself counts though its entry is not yet in force.
        let deepest = inside
            .map(|held| {
                let between = self
                    .around(held.entry.id)
                    .take_while(|at| at.entry.id != request.id);
                outer + 1 + between.filter(|at| at.takes_a_level()).count()
            })
            .max()
            .unwrap_or(outer);
        match deepest < MAX_DEPTH {
            true => Ok(()),
            false => Err(Denied::NotAdmitted(format!(
                "refused: {} would be in a chain of {deepest} targets, and users have {} levels of {MAX_DEPTH}: one is \
                 kept for root and the group netnice",
                request.target,
                MAX_DEPTH - 1
            ))),
        }
    }

    /// Admits everything anew, the eldest first, as after a restart: what root and the group ask, then what users ask.
    /// What does not fit stays, with its limits, and is said to be degraded; what users ask is set aside.
    pub(crate) fn readmit(&mut self) {
        let asked = |held: &Held| Entry {
            contract: held.of_privileged(),
            ..held.entry.clone()
        };
        let mut held: Vec<&Held> = self.held.values().collect();
        held.sort_by_key(|held| held.id);
        let wanted: Vec<Entry> = held.into_iter().map(asked).collect();
        for (entry, answer) in admission::readmit(&self.capacities(), wanted) {
            let Some(held) = self.held.get_mut(&entry.id) else {
                continue;
            };
            match answer {
                Ok(grant) => held.granted(grant),
                Err(refusal) => held.degrade(held.of_privileged(), refusal.to_string()),
            }
        }
        let asks = |held: &&Held| held.claims.iter().any(|claim| !claim.by.privileged);
        for slot in by_age(self.held.values().filter(asks).collect()) {
            self.settle(slot);
        }
    }

    /// Admits again what is degraded or set aside, the eldest first, as far as there is room for it now; tells what is
    /// served again. Of what is set aside only some each time, in turn.
    pub(crate) fn heal(&mut self) -> Vec<Target> {
        let degraded = self.held.values().filter(|held| held.refused.is_some());
        let mut tried = by_age(degraded.collect());
        let aside = self.held.values().filter(|held| held.aside.is_some());
        let (before, mut next): (Vec<&Held>, Vec<&Held>) =
            aside.partition(|held| held.id <= self.healed_to);
        next.sort_by_key(|held| held.id);
        let next: Vec<&Held> = match next.is_empty() {
            true => before,
            false => next,
        };
        let next: Vec<&Held> = next.into_iter().take(MOST_LOOKED_AT).collect();
        self.healed_to = next.last().map_or(0, |held| held.id);
        tried.extend(by_age(next));
        let mut healed = Vec::new();
        for slot in tried {
            self.reseat(slot);
            let held = self.held.get(&slot).filter(|held| held.is_served());
            healed.extend(held.map(|held| held.entry.target.clone()));
        }
        healed
    }

    /// Finds a new place for a target whose container has gone, and says so if what it asks does not fit there.
    pub(super) fn reseat(&mut self, slot: TargetId) {
        let Some(held) = self.held.get(&slot) else {
            return;
        };
        let parent = Containers::of(self).around(held);
        if let Some(held) = self.held.get_mut(&slot) {
            held.entry.parent = parent;
        }
        self.settle(slot);
    }

    /// Admits all that is asked of a target where it stands; else what root and the group ask, and the rest is set aside;
    /// else their limits alone.
    fn settle(&mut self, slot: TargetId) {
        let Some(held) = self.held.get(&slot) else {
            return;
        };
        let links = self.capacities();
        let others = self.entries();
        let of = |contract: Contract, parent| Entry {
            contract,
            parent,
            ..held.entry.clone()
        };
        let parent = held.entry.parent;
        let whole = of(held.claims.effective().clone(), parent);
        let refusal = match admission::admit(&links, &others, whole.clone()) {
            Ok(grant) => return self.seated(slot, |held| held.granted(grant)),
            Err(refusal) => refusal,
        };
        let privileged = held.claims.of_privileged();
        if privileged != whole.contract
            && let Ok(grant) = admission::admit(&links, &others, of(privileged.clone(), parent))
        {
            return self.seated(slot, |held| {
                held.granted(grant);
                held.aside = Some(held.why_aside(&refusal.to_string()));
            });
        }
        // Kinds of limits that cannot be inside each other: the more specific one of root and the group holds alone.
        if parent.is_some()
            && let Ok(grant) = admission::admit(&links, &others, of(privileged.clone(), None))
        {
            return self.seated(slot, |held| held.granted(grant));
        }
        let limits = of(whole.contract.without_guarantees(), parent);
        let left = match admission::admit(&links, &others, limits) {
            Ok(grant) => grant.into_entry().contract,
            Err(_) => privileged.without_guarantees(),
        };
        self.seated(slot, |held| held.degrade(left, refusal.to_string()));
    }

    fn seated(&mut self, slot: TargetId, how: impl FnOnce(&mut Held)) {
        if let Some(held) = self.held.get_mut(&slot) {
            how(held);
        }
    }
}

/// The slots of targets, the eldest first.
fn by_age(mut held: Vec<&Held>) -> Vec<TargetId> {
    held.sort_by_key(|held| held.id);
    held.into_iter().map(|held| held.entry.id).collect()
}

impl Held {
    /// Whether all that is asked of it is in force.
    pub(crate) fn is_served(&self) -> bool {
        self.refused.is_none() && self.aside.is_none()
    }

    fn takes_a_level(&self) -> bool {
        !self.entry.contract.is_empty()
    }

    /// What root and the group ask of it, as far as it can be in force.
    fn of_privileged(&self) -> Contract {
        let asked = self.claims.of_privileged();
        match self.refused {
            Some(_) => asked.without_guarantees(),
            None => asked,
        }
    }

    pub(super) fn granted(&mut self, grant: Grant) {
        self.entry = grant.into_entry();
        self.refused = None;
        self.aside = None;
    }

    fn why_aside(&self, why: &str) -> String {
        let target = &self.entry.target;
        format!("what users ask of {target} is set aside, for root and the group come first: {why}")
    }

    /// Keeps the limits of a contract in force, and no guarantee.
    fn degrade(&mut self, contract: Contract, why: String) {
        self.entry.contract = contract.without_guarantees();
        self.refused = Some(why);
        self.aside = None;
    }
}

/// How many targets are looked at one by one when some had to give way.
const MOST_LOOKED_AT: usize = 64;

#[cfg(test)]
mod tests;
