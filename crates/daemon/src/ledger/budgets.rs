//! Budgets: the minimums of a target that a user divides among own programs inside it.
//!
//! A target is a *budget* of a user if its contract has the clause `delegate` with that user. The
//! user's claims on targets inside it may then name *shares*: minimums, the link, a weight and a
//! priority. Shares are admitted inside the budget ([`Ledger::check_shares`]):
//!
//! 1. the target is inside a budget of the user, and its shares are on the link of that budget;
//! 2. for each minimum, the nearest target around it with a minimum in that direction is the
//!    budget, or a target inside the budget whose minimum is the same user's. So a user divides
//!    only what that user was given, and never the minimum of another program;
//! 3. the minimums inside the budget sum to at most its own: condition 2 of
//!    [`netnice_core::admission`], as for every target with a minimum.
//!
//! Of the link, only the budget's own minimum counts. So no share of a user can take anything from
//! a target outside the budget.
//!
//! Privileged claims come first. They are admitted as if the users' minimums were not there
//! ([`Ledger::entries_before_users`]), and then [`Ledger::keep_budgets`] takes those minimums out
//! of force that do not fit any more: the oldest that fit are kept. The others are set aside, their
//! targets keep their limits, and [`Ledger::heal`] puts them into force again when there is room.
//! The same happens when a budget ends, or when its link becomes too slow for it. A request fails
//! if a share breaks rule 1 or 2.

use std::collections::BTreeSet;

use netnice_core::admission::{self, TargetEntry, TargetId};
use netnice_core::claims::Claims;
use netnice_core::contract::{Change, Clause, Contract, Direction, IfName, Setting};
use netnice_core::link::Link;
use netnice_core::units::{Amount, Rate};

use super::{HeldTarget, Ledger, MAX_CHAIN};
use crate::error::RequestError;
use crate::user_names::user_name;

/// One direction of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetUse {
    /// The rate that the user may divide.
    pub min: Rate,
    /// The sum of the minimums inside it.
    pub used: Amount,
}

impl Ledger {
    /// The budgets in force.
    pub(crate) fn budgets(&self) -> impl Iterator<Item = &HeldTarget> {
        self.held.values().filter(|held| held.delegate().is_some())
    }

    /// The budget in force of a user that contains a place: the innermost one, on the link `on` if
    /// one is named. `parent` is the target directly around the place.
    pub(crate) fn budget_of(
        &self,
        parent: Option<TargetId>,
        uid: u32,
        on: Option<&IfName>,
    ) -> Option<&HeldTarget> {
        self.chain(parent).find(|held| {
            let link = held.entry.contract.on();
            held.delegate() == Some(uid) && (on.is_none() || link == on)
        })
    }

    /// A target and those around it, innermost first.
    pub(super) fn chain(&self, from: Option<TargetId>) -> impl Iterator<Item = &HeldTarget> {
        let mut next = from;
        std::iter::from_fn(move || {
            let here = self.held.get(&next?)?;
            next = here.entry.parent;
            Some(here)
        })
        .take(MAX_CHAIN)
    }

    /// Checks that a budget of an unprivileged user contains the target, if a change sets a share,
    /// or clears one that the user's claim does not have.
    ///
    /// # Errors
    /// [`RequestError::NotPermitted`] with the first such clause.
    pub(crate) fn check_may_share(
        &self,
        held: &HeldTarget,
        uid: u32,
        change: &Change,
    ) -> Result<(), RequestError> {
        let own = held.claims.iter().find(|claim| claim.by.uid == uid);
        let own = own.map_or_else(Vec::new, |own| own.contract.as_change().clauses());
        let cleared = change.cleared();
        let mut shares = change.clauses().into_iter().filter(|clause| {
            clause.is_share() && !(cleared.contains(clause) && own.contains(clause))
        });
        match shares.next() {
            Some(clause) if self.budget_of(held.entry.parent, uid, None).is_none() => {
                Err(RequestError::NotPermitted(format!(
                    "{clause} is for root and the group netnice, and for programs inside a budget \
                     of their user; no budget of {} contains {} (root gives one with `netnice set \
                     user:NAME --min R --delegate NAME`)",
                    user_name(uid),
                    held.entry.target
                )))
            }
            _ => Ok(()),
        }
    }

    /// A contract with the link of the user's budget, if it has shares of a user and names no link.
    pub(super) fn on_budget_link(
        &self,
        parent: Option<TargetId>,
        claims: &Claims,
        contract: Contract,
    ) -> Contract {
        let Some((uid, _)) = claims.users_shares().filter(|_| contract.on().is_none()) else {
            return contract;
        };
        let budget = self.budget_of(parent, uid, None);
        match budget.and_then(|budget| budget.entry.contract.on()) {
            Some(link) => contract.with_link(link.clone()),
            None => contract,
        }
    }

    /// Checks the place of the users' shares in an entry: rules 1 and 2 of the module. Admission
    /// checks rule 3.
    ///
    /// # Errors
    /// [`RequestError::NotAdmitted`] with the broken rule.
    pub(super) fn check_shares(
        &self,
        entry: &TargetEntry,
        claims: &Claims,
    ) -> Result<(), RequestError> {
        let Some((uid, shares)) = claims.users_shares() else {
            return Ok(());
        };
        let named = entry.contract.as_change().clauses();
        let mut shares = shares.into_iter().filter(|share| named.contains(share));
        let Some(first) = shares.next() else {
            return Ok(());
        };
        let refuse = |why: String| {
            let target = &entry.target;
            Err(RequestError::NotAdmitted(format!(
                "refused: {target} cannot have {first} here: {why}"
            )))
        };
        let who = user_name(uid);
        let Some(budget) = self.budget_of(entry.parent, uid, entry.contract.on()) else {
            return match self.budget_of(entry.parent, uid, None) {
                Some(other) => refuse(format!(
                    "the budget of {who} around it, {}, is on {}",
                    other.entry.target,
                    other.entry.contract.on().map_or("", IfName::as_str)
                )),
                None => refuse(format!("it is in no budget of {who} that is in force")),
            };
        };
        for (clause, direction) in MINIMUMS {
            let is_users = clause == first || shares.clone().any(|share| share == clause);
            if !is_users || entry.contract.min(direction).is_none() {
                continue;
            }
            let link = budget.entry.contract.on();
            let around = self.chain(entry.parent).find(|outer| {
                let contract = &outer.entry.contract;
                let has_min = has_minimum(contract, direction) && contract.on() == link;
                has_min || outer.id == budget.id
            });
            let Some(around) = around else { continue };
            if around.id == budget.id && !has_minimum(&budget.entry.contract, direction) {
                return refuse(format!(
                    "the budget of {who}, {}, has no {clause} to divide",
                    budget.entry.target
                ));
            }
            if around.id != budget.id && !around.has_users_share(uid, clause) {
                return refuse(format!(
                    "{clause} of {} around it is not of {who} to divide",
                    around.entry.target
                ));
            }
        }
        Ok(())
    }

    /// The entries in force for the admission of privileged claims: without the minimums of
    /// unprivileged users.
    pub(super) fn entries_before_users(&self) -> Vec<TargetEntry> {
        let held = self.held.values().map(|held| TargetEntry {
            contract: held.without_users_minimums(),
            ..held.entry.clone()
        });
        held.chain(self.part_entries()).collect()
    }

    /// Takes those minimums of users out of force that are in no budget any more, or that do not
    /// fit beside the older ones in their budget. Returns whether there was one.
    pub(super) fn keep_budgets(&mut self) -> bool {
        let with_shares: Vec<TargetId> = self
            .held
            .values()
            .filter(|held| has_shares_in_force(held))
            .map(|held| held.entry.id)
            .collect();
        let mut lost = false;
        // A share that is taken out of force can be one that others are inside of.
        for _ in 0..MAX_CHAIN {
            let misplaced: Vec<(TargetId, String)> = with_shares
                .iter()
                .filter_map(|slot| {
                    let held = self.held.get(slot)?;
                    let checked = self.check_shares(&held.entry, &held.claims);
                    Some((*slot, checked.err()?.to_string()))
                })
                .collect();
            if misplaced.is_empty() {
                break;
            }
            lost = true;
            for (slot, why) in misplaced {
                self.set_shares_aside(slot, &why, true);
            }
        }
        let budgets: Vec<TargetId> = self.budgets().map(|held| held.entry.id).collect();
        for budget in budgets {
            lost |= self.keep_budget(budget, &with_shares);
        }
        lost
    }

    /// Takes those minimums of users out of force that do not fit into one budget. The oldest that
    /// fit are kept.
    fn keep_budget(&mut self, budget: TargetId, with_shares: &[TargetId]) -> bool {
        let around = |slot: TargetId| self.around(slot).map(|held| held.entry.id);
        let inside = |slot: TargetId| around(slot).any(|outer| outer == budget);
        if !with_shares.iter().any(|slot| inside(*slot)) {
            return false;
        }
        let mut counted: BTreeSet<TargetId> = BTreeSet::from([budget]);
        for held in self.held.values() {
            let slot = held.entry.id;
            if held.entry.contract.is_guaranteed() && inside(slot) {
                counted.insert(slot);
                counted.extend(around(slot).take_while(|outer| *outer != budget));
            }
        }
        let mut counted: Vec<&HeldTarget> = counted.iter().filter_map(|s| self.get(*s)).collect();
        // Privileged minimums first, then the users' by age.
        counted.sort_by_key(|held| (held.claims.users_shares().is_some(), held.id));
        let entries: Vec<TargetEntry> = counted
            .into_iter()
            .map(|held| match held.entry.id == budget {
                true => TargetEntry {
                    parent: None,
                    ..held.entry.clone()
                },
                false => held.entry.clone(),
            })
            .collect();
        let links = self.capacities();
        let on = self.get(budget).and_then(|held| held.entry.contract.on());
        let link = links.iter().find(|link| Some(&link.name) == on).cloned();
        // One pass over all conditions.
        if link.is_some_and(|link| admission::admit_link(&links, &entries, link).is_ok()) {
            return false;
        }
        let mut lost = false;
        for (entry, answer) in admission::readmit(&links, entries) {
            let Err(refusal) = answer else { continue };
            if with_shares.contains(&entry.id) {
                self.set_shares_aside(entry.id, &refusal.to_string(), false);
                lost = true;
            }
        }
        lost
    }

    /// Takes the users' minimums of a target out of force, and all their shares if `all`.
    fn set_shares_aside(&mut self, slot: TargetId, why: &str, all: bool) {
        if let Some(held) = self.held.get_mut(&slot) {
            held.entry.contract = match all {
                true => held.without_users_shares(),
                false => held.without_users_minimums(),
            };
            held.aside = Some(held.why_shares_aside(why));
        }
    }

    /// What a user may divide of a budget in each direction, and how much of it is promised to
    /// programs inside and to their flows; `None` in a direction without a minimum.
    pub(crate) fn budget_use(&self, budget: &HeldTarget) -> [Option<BudgetUse>; 2] {
        let [up, down] = self.promised_inside(budget);
        let with_flows = |up: BudgetUse| BudgetUse {
            used: [up.used, self.flows_in(budget)].into_iter().sum(),
            ..up
        };
        [up.map(with_flows), down]
    }

    /// What a user may divide of a budget in each direction, and how much of it is promised to
    /// targets inside; `None` in a direction without a minimum.
    pub(super) fn promised_inside(&self, budget: &HeldTarget) -> [Option<BudgetUse>; 2] {
        let link = budget.entry.contract.on().and_then(|on| self.links.get(on));
        let own = |held: &HeldTarget, link: &Link, direction: Direction| {
            let contract = &held.entry.contract;
            let usable = link
                .usable(direction)
                .filter(|_| contract.on() == Some(&link.name))?;
            contract.link_min(direction, usable).flatten()
        };
        Direction::ALL.map(|direction| {
            let link = &link?.link;
            let min = own(budget, link, direction)?;
            let used = self.held.values().filter_map(|held| {
                let amount = own(held, link, direction)?;
                // The nearest minimum around it is the budget's.
                let mut around = self.around(held.entry.id);
                let outer = around.find(|outer| own(outer, link, direction).is_some())?;
                (outer.id == budget.id).then_some(Amount::from(amount))
            });
            Some(BudgetUse {
                min,
                used: used.sum(),
            })
        })
    }
}

impl HeldTarget {
    /// The user who may divide the target's minimums now; `None` if it is no budget in force.
    pub(crate) fn delegate(&self) -> Option<u32> {
        self.entry.contract.delegate()?.uid()
    }

    /// True if this user's claim decides a clause of the contract in force.
    fn has_users_share(&self, uid: u32, clause: Clause) -> bool {
        let shares = self.claims.users_shares();
        shares.is_some_and(|(of, clauses)| of == uid && clauses.contains(&clause))
    }

    /// The contract in force without the minimums of unprivileged users.
    pub(super) fn without_users_minimums(&self) -> Contract {
        // Most targets have none, and this is called for all of them.
        if !self.entry.contract.is_guaranteed() {
            return self.entry.contract.clone();
        }
        self.without_shares_of_users(|clause| matches!(clause, Clause::Min | Clause::MinDown))
    }

    /// The contract in force without the shares of unprivileged users.
    fn without_users_shares(&self) -> Contract {
        self.without_shares_of_users(|_| true)
    }

    fn without_shares_of_users(&self, removes: impl Fn(Clause) -> bool) -> Contract {
        let contract = &self.entry.contract;
        let has_user = self.user().is_some();
        let Some((_, shares)) = has_user.then(|| self.claims.users_shares()).flatten() else {
            return contract.clone();
        };
        let removed = |clause: Clause| (shares.contains(&clause) && removes(clause)).then_some(());
        // The ledger adds the link of the budget if the user's claim names none.
        let named = self.claims.without_users_shares();
        let on = named.on().is_none() && !named.is_guaranteed() && removes(Clause::On);
        let change = Change {
            min: removed(Clause::Min).map(|()| Setting::Clear),
            min_down: removed(Clause::MinDown).map(|()| Setting::Clear),
            on: on.then_some(Setting::Clear),
            weight: removed(Clause::Weight).map(|()| Setting::Clear),
            priority: removed(Clause::Priority).map(|()| Setting::Clear),
            ..Change::default()
        };
        match change.is_empty() {
            true => contract.clone(),
            // Clauses that agree with shares also agree without them.
            false => contract.apply(&change).unwrap_or_else(|_| named.clone()),
        }
    }

    /// A contract of the claims without the users' shares that are not in the admitted contract.
    pub(super) fn without_lost_shares(&self, contract: Contract) -> Contract {
        if self.aside.is_none() {
            return contract;
        }
        let admitted = self.entry.contract.as_change().clauses();
        let is_lost = |clause: Clause| !admitted.contains(&clause);
        let all = HeldTarget {
            entry: TargetEntry {
                contract,
                ..self.entry.clone()
            },
            ..self.clone()
        };
        all.without_shares_of_users(is_lost)
    }

    /// Describes why shares of a user are not in force.
    pub(super) fn why_shares_aside(&self, why: &str) -> String {
        let shares = self.claims.users_shares();
        let (who, what) = shares.map_or_else(Default::default, |(uid, shares)| {
            let words: Vec<&str> = shares.iter().map(|share| share.word()).collect();
            (user_name(uid), words.join(", "))
        });
        let target = &self.entry.target;
        format!("{what} that {who} asked for {target} is not in force: {why}")
    }
}

/// True if shares of a user are part of the contract in force.
fn has_shares_in_force(held: &HeldTarget) -> bool {
    let contract = &held.entry.contract;
    let weighs = contract.weight().is_some() || contract.priority().is_some();
    let shares = weighs || contract.on().is_some() || contract.is_guaranteed();
    if !shares || held.user().is_none() {
        return false;
    }
    let named = held.entry.contract.as_change().clauses();
    let shares = held.claims.users_shares();
    shares.is_some_and(|(_, shares)| shares.iter().any(|share| named.contains(share)))
}

/// True if the contract has a minimum in this direction. A slice and a cell contract are minimums
/// for sending.
pub(super) fn has_minimum(contract: &Contract, direction: Direction) -> bool {
    contract.reserves(direction)
}

const MINIMUMS: [(Clause, Direction); 2] = [
    (Clause::Min, Direction::Up),
    (Clause::MinDown, Direction::Down),
];
