//! Admission of claims, and precedence between them. A claim is refused if its contract does not
//! fit, is not for targets or contradicts other claims, or if the user may not
//! make it.
//!
//! Claims of root and of members of the group `netnice` (privileged claims) come before claims of
//! other users. The *chain* of a target is the target with those around and inside it; each target
//! of a chain that has a contract takes one *level* of the kernel's classes, of [`MAX_DEPTH`] (5).
//! A claim of an unprivileged user is admitted if it fits beside the claims in force and leaves one
//! level of its chain free. If a later privileged claim conflicts with it (another kind of limit in
//! the same chain, one level too many, a limit below a minimum), it is *set aside*: it stays
//! recorded without effect, the target keeps the contract of its privileged claims, and
//! [`Ledger::heal`] puts the claim into force again when it fits. Admission refuses a privileged
//! request only if it does not fit even without the unprivileged claims in its chain.
//!
//! ```text
//!            fits                     a privileged request conflicts with it
//!   asked ─────────> in force ──────────────────────────────────────────────> set aside
//!     │ does not       ^                                                         │
//!     v                └────────────────────── fits again ───────────────────────┘
//!   refused
//! ```
//! If guarantees of privileged claims do not fit any more, for example after a restart, their
//! target becomes degraded: it keeps its limits without the guarantees.

use std::collections::BTreeSet;

use netnice_core::admission::{self, Grant, MAX_DEPTH, TargetEntry, TargetId};
use netnice_core::claims::{Claimant, Claims};
use netnice_core::contract::{Change, Contract, target_support};
use netnice_core::target::Target;

use super::place::ContainmentIndex;
use super::{HeldTarget, Ledger};
use crate::error::RequestError;

impl Ledger {
    /// Applies a change to the claim of `by`, and admits the resulting contract. If no claim is
    /// left, the caller closes the target.
    ///
    /// # Errors
    /// If no target is held in the slot, `by` may not make the change or contradicts other claims,
    /// a target cannot have the contract, or the contract does not fit or would take
    /// the level that is kept for root and the group.
    pub(crate) fn change_claim(
        &mut self,
        slot: TargetId,
        by: Claimant,
        change: &Change,
        now_ns: u64,
    ) -> Result<(), RequestError> {
        let held = self.held_at(slot)?;
        if by.privileged {
            let claims = held.claims.apply(by, change)?;
            return self.admit(slot, claims, now_ns);
        }
        self.check_may_share(held, by.uid, change)?;
        let claims = held.claims.apply_in_budget(by, change)?;
        target_support(claims.effective())?;
        let grant = self.admit_whole(slot, &claims)?;
        self.check_reserved_level(grant.entry())?;
        self.record_grant(slot, claims, grant, now_ns);
        Ok(())
    }

    /// Replaces the claims of a target. If they contain a privileged claim and do not fit, claims
    /// of unprivileged users in the same chain are set aside.
    ///
    /// # Errors
    /// If no target is held in the slot, a target cannot have the contract, or the contract does
    /// not fit.
    pub(crate) fn admit(
        &mut self,
        slot: TargetId,
        claims: Claims,
        now_ns: u64,
    ) -> Result<(), RequestError> {
        target_support(claims.effective())?;
        self.check_processor_time(slot, claims.effective())?;
        let privileged = claims.iter().any(|claim| claim.by.privileged);
        match self.admit_whole(slot, &claims) {
            Ok(grant) => self.record_grant(slot, claims, grant, now_ns),
            Err(refusal) if privileged => self.set_aside_users(slot, claims, refusal, now_ns)?,
            Err(refusal) => return Err(refusal),
        }
        self.keep_budgets();
        Ok(())
    }

    /// Admits all claims of a target. Minimums of unprivileged users are no reason against
    /// privileged claims.
    fn admit_whole(&self, slot: TargetId, claims: &Claims) -> Result<Grant, RequestError> {
        let held = self.held_at(slot)?;
        let effective = claims.effective().clone();
        let contract = self.on_budget_link(held.entry.parent, claims, effective);
        let request = self.request(slot, contract)?;
        self.check_shares(&request, claims)?;
        let others = self.entries_beside(claims);
        Ok(admission::admit(&self.capacities(), &others, request)?)
    }

    /// The entries in force that count against these claims.
    fn entries_beside(&self, claims: &Claims) -> Vec<TargetEntry> {
        let privileged = claims.iter().any(|claim| claim.by.privileged);
        match privileged && claims.users_shares().is_none() {
            true => self.entries_before_users(),
            false => self.entries(),
        }
    }

    /// Replaces the claims of a target after some of them were withdrawn or have ended. The
    /// replacement takes effect even if the remaining claims do not fit, for example because their
    /// guarantee is larger: then claims are set aside or the target becomes degraded, as after a
    /// restart. No effect if the slot is free.
    pub(crate) fn withdraw(&mut self, slot: TargetId, left: Claims, now_ns: u64) {
        let before = self.clone();
        if self.admit(slot, left.clone(), now_ns).is_ok() {
            return;
        }
        *self = before;
        self.update(slot, |held| {
            held.claims = left;
            held.changed_ns = now_ns;
            held.restart_schedules(now_ns);
        });
        self.readmit_one(slot);
    }

    fn request(&self, slot: TargetId, contract: Contract) -> Result<TargetEntry, RequestError> {
        Ok(TargetEntry {
            contract,
            ..self.held_at(slot)?.entry.clone()
        })
    }

    fn record_grant(&mut self, slot: TargetId, claims: Claims, grant: Grant, now_ns: u64) {
        let Some(held) = self.held.get_mut(&slot) else {
            return;
        };
        let before = held.granted_time();
        held.claims = claims;
        held.changed_ns = now_ns;
        held.restart_schedules(now_ns);
        held.granted(grant);
        self.settle_processor_time(slot, before);
    }

    /// Admits privileged claims by setting aside the claims of unprivileged users on targets in the
    /// same chain, and then puts those of them into force again that fit, of the first
    /// [`MAX_TRIED`]. Returns `refusal` if the privileged claims do not fit then either.
    fn set_aside_users(
        &mut self,
        slot: TargetId,
        claims: Claims,
        refusal: RequestError,
        now_ns: u64,
    ) -> Result<(), RequestError> {
        let users = self.unprivileged_near(slot);
        for user in &users {
            self.update(*user, |held| {
                held.entry.contract = held.of_privileged();
                held.aside = Some(held.why_aside("it is looked at again at the next change"));
            });
        }
        let links = self.capacities();
        let without_shares = self.request(slot, claims.without_users_shares())?;
        let own = self.request(slot, claims.of_privileged())?;
        let others = self.entries_before_users();
        let admitted = self
            .admit_whole(slot, &claims)
            .or_else(|_| admission::admit(&links, &others, without_shares))
            .or_else(|_| admission::admit(&links, &others, own));
        let Ok(grant) = admitted else {
            return Err(refusal);
        };
        self.record_grant(slot, claims, grant, now_ns);
        // Each try is a pass over all targets, so their number is bounded. `Ledger::heal` tries the
        // rest.
        let looked = [slot].into_iter().chain(users).take(MAX_TRIED);
        for slot in looked {
            self.readmit_one(slot);
        }
        Ok(())
    }

    /// The targets around and inside this one on which an unprivileged user has a claim in force,
    /// oldest first.
    fn unprivileged_near(&self, slot: TargetId) -> Vec<TargetId> {
        let around: BTreeSet<TargetId> = self.around(slot).map(|held| held.entry.id).collect();
        let is_inside =
            |held: &HeldTarget| self.around(held.entry.id).any(|at| at.entry.id == slot);
        let in_chain = |held: &HeldTarget| around.contains(&held.entry.id) || is_inside(held);
        let claimed = self
            .held
            .values()
            .filter(|held| held.aside.is_none())
            .filter(|held| held.claims.iter().any(|claim| !claim.by.privileged));
        by_age(claimed.filter(|held| in_chain(held)).collect())
    }

    /// Refuses a request of an unprivileged user that would take the last level of the kernel's
    /// classes in its chain. That level is kept for root and the group `netnice`.
    fn check_reserved_level(&self, request: &TargetEntry) -> Result<(), RequestError> {
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
        // The request counts as a level, though its entry is not in force yet.
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
            false => Err(RequestError::NotAdmitted(format!(
                "refused: {} would be in a chain of {deepest} targets, and users have {} levels of \
                 {MAX_DEPTH}: one is \
                 kept for root and the group netnice",
                request.target,
                MAX_DEPTH - 1
            ))),
        }
    }

    /// Admits all claims again, as after a restart: first the privileged ones, those of outer
    /// targets before those of inner ones, else oldest target first. Then those of unprivileged
    /// users, oldest target first. A target whose privileged claims do not fit keeps their limits
    /// and becomes degraded. A claim of an unprivileged user that does not fit is set aside.
    pub(crate) fn readmit(&mut self) {
        // Also the guarantees of a target that is degraded now.
        let claimed = |held: &HeldTarget| TargetEntry {
            contract: self.on_its_link(held, held.claims.of_privileged()),
            ..held.entry.clone()
        };
        let mut held: Vec<&HeldTarget> = self.held.values().collect();
        held.sort_by_key(|held| held.id);
        let wanted: Vec<TargetEntry> = held.into_iter().map(claimed).collect();
        for (entry, answer) in admission::readmit(&self.capacities(), wanted) {
            let Some(held) = self.held.get_mut(&entry.id) else {
                continue;
            };
            match answer {
                Ok(grant) => held.granted(grant),
                Err(refusal) => held.degrade(entry.contract, refusal.to_string()),
            }
        }
        let asks = |held: &&HeldTarget| held.claims.iter().any(|claim| !claim.by.privileged);
        for slot in by_age(self.held.values().filter(asks).collect()) {
            self.readmit_one(slot);
        }
        self.readmit_processor_time();
    }

    /// Admits degraded targets again, oldest first, and then targets whose claims are set aside, as
    /// far as they fit. If more than [`MAX_TRIED`] are degraded, those that are certainly too large
    /// are not tried, and keep the reason of their last try. Returns the tried targets that are
    /// neither degraded nor set aside any more. One call tries at most [`MAX_TRIED`] of the targets
    /// with claims set aside, and the next call continues after them. Reservations of processor
    /// time are admitted again too.
    pub(crate) fn heal(&mut self) -> Vec<Target> {
        self.keep_budgets();
        let degraded = self.held.values().filter(|held| held.refused.is_some());
        let mut tried = by_age(degraded.collect());
        let is_many = tried.len() > MAX_TRIED;
        let aside = self.held.values().filter(|held| held.aside.is_some());
        let aside: Vec<&HeldTarget> = aside.collect();
        let all = aside.len() <= MAX_TRIED;
        let (before, mut next): (Vec<&HeldTarget>, Vec<&HeldTarget>) = aside
            .into_iter()
            .partition(|held| !all && held.id <= self.healed_to);
        next.sort_by_key(|held| held.id);
        let next: Vec<&HeldTarget> = match next.is_empty() {
            true => before,
            false => next,
        };
        let next: Vec<&HeldTarget> = next.into_iter().take(MAX_TRIED).collect();
        self.healed_to = next.last().map_or(0, |held| held.id);
        tried.extend(by_age(next));
        let mut healed = Vec::new();
        for slot in tried {
            if is_many && self.exceeds_room(slot) {
                continue;
            }
            self.readmit_in_place(slot);
            let held = self.held.get(&slot).filter(|held| held.is_served());
            healed.extend(held.map(|held| held.entry.target.clone()));
        }
        healed.extend(self.readmit_processor_time());
        healed
    }

    /// Sets the parent of a target after the one around it has gone, and admits its claims again
    /// there.
    pub(super) fn readmit_in_place(&mut self, slot: TargetId) {
        let Some(held) = self.held.get(&slot) else {
            return;
        };
        let parent = ContainmentIndex::of(self).around(held);
        if let Some(held) = self.held.get_mut(&slot) {
            held.entry.parent = parent;
        }
        self.readmit_one(slot);
    }

    /// Admits the first of these that fits: all claims of a target in its present place; those
    /// without the users' minimums, or without all their shares; the privileged ones there, with
    /// the rest set aside; the privileged ones outside all other
    /// targets; the limits alone, which makes the target degraded.
    fn readmit_one(&mut self, slot: TargetId) {
        let held = self.held.get(&slot);
        let before = held.and_then(HeldTarget::granted_time);
        self.readmit_on_links(slot);
        self.settle_processor_time(slot, before);
    }

    fn readmit_on_links(&mut self, slot: TargetId) {
        let Some(held) = self.held.get(&slot) else {
            return;
        };
        let links = self.capacities();
        let others = self.entries_beside(&held.claims);
        let of = |contract: Contract, parent| TargetEntry {
            contract,
            parent,
            ..held.entry.clone()
        };
        let parent = held.entry.parent;
        let effective = held.claims.effective().clone();
        let whole = match held.claims.users_shares() {
            Some(_) => self.on_budget_link(parent, &held.claims, effective),
            None => self.on_its_link(held, effective),
        };
        let whole = of(whole, parent);
        let admitted = self.check_shares(&whole, &held.claims);
        let admitted =
            admitted.and_then(|()| Ok(admission::admit(&links, &others, whole.clone())?));
        let refusal = match admitted {
            Ok(grant) => return self.update(slot, |held| held.granted(grant)),
            Err(refusal) => refusal,
        };
        if let Some(grant) = self.admit_without_minimums(held, &whole) {
            return self.update(slot, |held| {
                held.granted(grant);
                held.aside = Some(held.why_shares_aside(&refusal.to_string()));
            });
        }
        let privileged = self.on_its_link(held, held.claims.of_privileged());
        if privileged != whole.contract
            && let Ok(grant) = admission::admit(&links, &others, of(privileged.clone(), parent))
        {
            return self.update(slot, |held| {
                held.granted(grant);
                held.aside = Some(held.why_aside(&refusal.to_string()));
            });
        }
        // If the kinds of limits cannot be nested, the privileged claims hold outside the target
        // around this one.
        if parent.is_some()
            && let Ok(grant) = admission::admit(&links, &others, of(privileged.clone(), None))
        {
            let without_users = privileged != whole.contract;
            return self.update(slot, |held| {
                held.granted(grant);
                held.aside = without_users.then(|| held.why_aside(&refusal.to_string()));
            });
        }
        let limits = of(whole.contract.without_guarantees(), parent);
        let left = match admission::admit(&links, &others, limits) {
            Ok(grant) => grant.into_entry().contract,
            Err(_) => privileged.without_guarantees(),
        };
        self.update(slot, |held| held.degrade(left, refusal.to_string()));
    }

    /// Admits an entry without the minimums of users, or without all their shares. `None` if it has
    /// no shares of users, or neither fits.
    fn admit_without_minimums(&self, held: &HeldTarget, whole: &TargetEntry) -> Option<Grant> {
        held.claims.users_shares()?;
        let (links, others) = (self.capacities(), self.entries_before_users());
        let all = HeldTarget {
            entry: whole.clone(),
            ..held.clone()
        };
        let fewer = [all.without_users_minimums(), {
            let contract = held.claims.without_users_shares();
            self.on_its_link(held, contract)
        }];
        fewer.into_iter().find_map(|contract| {
            let entry = TargetEntry {
                contract,
                ..whole.clone()
            };
            self.check_shares(&entry, &held.claims).ok()?;
            admission::admit(&links, &others, entry).ok()
        })
    }

    /// A contract of a target's claims, with the link of its guarantees named: the link that they
    /// were granted on, if it is still managed, else the only managed one. If a claim names no link
    /// and another link was managed since, the guarantee stays on its link. A degraded target keeps
    /// its class there.
    fn on_its_link(&self, held: &HeldTarget, contract: Contract) -> Contract {
        if !contract.is_guaranteed() || contract.on().is_some() {
            return contract;
        }
        let granted_on = held.entry.contract.on();
        let granted_on = granted_on.filter(|link| self.links.contains_key(*link));
        let mut managed = self.links.keys();
        let only = managed.next().filter(|_| managed.next().is_none());
        match granted_on.or(only) {
            Some(link) => contract.with_link(link.clone()),
            None => contract,
        }
    }

    pub(super) fn update(&mut self, slot: TargetId, how: impl FnOnce(&mut HeldTarget)) {
        if let Some(held) = self.held.get_mut(&slot) {
            how(held);
        }
    }
}

/// The slots of targets, oldest first.
fn by_age(mut held: Vec<&HeldTarget>) -> Vec<TargetId> {
    held.sort_by_key(|held| held.id);
    held.into_iter().map(|held| held.entry.id).collect()
}

impl HeldTarget {
    /// True if the target is not degraded, and admission has set no claim on it aside.
    pub(crate) fn is_served(&self) -> bool {
        self.refused.is_none() && self.aside.is_none()
    }

    fn takes_a_level(&self) -> bool {
        !self.entry.contract.is_empty()
    }

    /// The contract of the privileged claims, without guarantees while the target is degraded.
    fn of_privileged(&self) -> Contract {
        let claimed = self.claims.of_privileged();
        match self.refused {
            Some(_) => claimed.without_guarantees(),
            None => claimed,
        }
    }

    /// Makes a granted contract the one in force; the target is then not degraded.
    pub(super) fn granted(&mut self, grant: Grant) {
        self.entry = grant.into_entry();
        self.refused = None;
        self.aside = None;
    }

    fn why_aside(&self, why: &str) -> String {
        let target = &self.entry.target;
        format!("what users ask of {target} is set aside, for root and the group come first: {why}")
    }

    /// Puts the limits of a contract into force, without guarantees.
    fn degrade(&mut self, contract: Contract, why: String) {
        self.entry.contract = contract.without_guarantees();
        self.refused = Some(why);
        self.aside = None;
    }
}

/// Largest number of targets with claims set aside that one call tries one by one.
const MAX_TRIED: usize = 64;

#[cfg(test)]
mod tests;
