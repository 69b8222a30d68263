//! The list of pending rollbacks ([`Rollbacks`]): of changes that wait for `netnice confirm`, and
//! of changes made for a limited time or until a process ends. This module only changes the list;
//! the reconciler carries the rollbacks out. No function fails.
//!
//! A change of a target is rolled back clause by clause: each clause that it named gets the value
//! that the same user's claim had before. If the same user changes a clause again before that, the
//! later change decides:
//!
//! - a lasting change: the clause keeps its new value;
//! - a change that will be rolled back too: it replaces the pending rollback, and its own rollback
//!   restores the value before the *first* of them. So no overlap makes a temporary change lasting.
//!
//! Claims that were cleared for a limited time are restored in the same way, clause by clause. If
//! they are cleared permanently, their rollback is dropped. A change of a link is rolled back as a
//! whole.

use netnice_core::claims::{Claim, Claimant};
use netnice_core::contract::{Change, Clause, Contract, IfName, Setting};
use netnice_core::target::Target;
use netnice_core::units::Instant;

use crate::ledger::{Body, ManagedLink, ProcessId, TargetPlace};

/// All pending rollbacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rollbacks {
    waiting: Vec<PendingRollback>,
    next: u64,
}

/// One pending rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingRollback {
    /// The number by which `netnice confirm` names the rollback.
    pub number: u64,
    /// The time of the rollback, on the monotonic clock; without meaning if `until` is set.
    pub at: Instant,
    /// The process at whose end the change is rolled back; `None`: at the time `at`.
    pub until: Option<ProcessId>,
    /// True if `netnice confirm` keeps the change. False if the change was made for a limited time
    /// or until a process ends.
    pub confirmable: bool,
    /// The user who made the change.
    pub by: Claimant,
    /// What restores the former state.
    pub undo: Undo,
}

/// What restores the former state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    /// A change of the same user's claim on a target.
    Claim {
        /// The target's id.
        id: u32,
        /// The change that restores the claim.
        change: Box<Change>,
    },
    /// A managed link's former settings.
    Link {
        /// The link's name.
        name: IfName,
        /// The former settings; `None` if it was not managed.
        before: Option<Box<ManagedLink>>,
    },
    /// The claims and links that `netnice clear` removed.
    Cleared {
        /// The targets with their withdrawn claims.
        targets: Vec<Cleared>,
        /// The links that were no longer managed.
        links: Vec<ManagedLink>,
    },
}

/// A target with withdrawn claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cleared {
    /// The target's name.
    pub target: Target,
    /// What the target consisted of then.
    pub body: Body,
    /// What contained the target then.
    pub place: TargetPlace,
    /// The withdrawn claims.
    pub claims: Vec<Claim>,
    /// The name of the policy rule for the target, if there was one.
    pub rule: Option<String>,
}

impl Rollbacks {
    /// The rollbacks as the state file has them; `next` is the number of the next one.
    pub(crate) fn restore(waiting: Vec<PendingRollback>, next: u64) -> Rollbacks {
        let largest = waiting.iter().map(|one| one.number + 1).max();
        Rollbacks {
            next: next.max(largest.unwrap_or(0)),
            waiting,
        }
    }

    /// The pending rollbacks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PendingRollback> {
        self.waiting.iter()
    }

    /// The number of the next rollback.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Adds a rollback at a time of the monotonic clock and returns its number. Numbers start at 1.
    pub(crate) fn push(&mut self, at: Instant, confirmable: bool, by: Claimant, undo: Undo) -> u64 {
        self.next = self.next.max(1);
        let number = self.next;
        self.next += 1;
        self.waiting.push(PendingRollback {
            number,
            at,
            until: None,
            confirmable,
            by,
            undo,
        });
        number
    }

    /// Adds a rollback for the end of a process.
    pub(crate) fn push_until(&mut self, root: ProcessId, by: Claimant, undo: Undo) {
        self.push(Instant(u64::MAX), false, by, undo);
        if let Some(waiting) = self.waiting.last_mut() {
            waiting.until = Some(root);
        }
    }

    /// The named processes of targets that were cleared and wait to be restored.
    pub(crate) fn cleared_roots(&self) -> impl Iterator<Item = ProcessId> {
        let cleared = self.waiting.iter().filter_map(|one| match &one.undo {
            Undo::Cleared { targets, .. } => Some(targets),
            _ => None,
        });
        let bodies = cleared.flatten().map(|cleared| &cleared.body);
        bodies
            .filter_map(|body| match body {
                Body::Processes { roots, .. } => Some(roots),
                _ => None,
            })
            .flatten()
            .copied()
    }

    /// The processes at whose end changes are rolled back.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = ProcessId> {
        self.waiting.iter().filter_map(|one| one.until)
    }

    /// Removes and returns the rollback of this number. `None` if there is none, it is not
    /// confirmable, or `may` does not allow it.
    pub(crate) fn confirm(
        &mut self,
        number: u64,
        may: impl Fn(&PendingRollback) -> bool,
    ) -> Option<PendingRollback> {
        let found = |one: &PendingRollback| one.number == number && one.confirmable && may(one);
        let at = self.waiting.iter().position(found)?;
        Some(self.waiting.remove(at))
    }

    /// Removes and returns the rollbacks whose time is over or whose process is in `ended`, latest
    /// first.
    pub(crate) fn due(&mut self, now: Instant, ended: &[ProcessId]) -> Vec<PendingRollback> {
        let is_due = |one: &PendingRollback| match &one.until {
            Some(root) => ended.contains(root),
            None => one.at <= now,
        };
        let (mut due, waiting): (Vec<PendingRollback>, Vec<PendingRollback>) =
            self.waiting.drain(..).partition(is_due);
        self.waiting = waiting;
        due.sort_by_key(|one| std::cmp::Reverse(one.number));
        due
    }

    /// The time of the next rollback that has a time, if there is one.
    pub(crate) fn earliest(&self) -> Option<Instant> {
        let timed = self.waiting.iter().filter(|one| one.until.is_none());
        timed.map(|one| one.at).min()
    }

    /// Removes the clauses of a change from the same user's pending rollbacks of the same target.
    /// Returns the values that those would have restored; if several would have restored a clause,
    /// that of the first.
    pub(crate) fn supersede(
        &mut self,
        id: u32,
        target: &Target,
        by: Claimant,
        change: &Change,
    ) -> Change {
        let mut before = Change::default();
        for one in &mut self.waiting {
            match &mut one.undo {
                Undo::Claim {
                    id: of,
                    change: old,
                } if *of == id && one.by.uid == by.uid => {
                    **old = without(old, change, &mut before);
                }
                Undo::Cleared { targets, .. } => {
                    let cleared = targets.iter_mut().filter(|one| one.target == *target);
                    let claims = cleared.flat_map(|one| &mut one.claims);
                    for claim in claims.filter(|claim| claim.by.uid == by.uid) {
                        let left = without(&claim.contract.as_change(), change, &mut before);
                        // The clauses that are left may be invalid without the removed ones.
                        claim.contract = Contract::default().apply(&left).unwrap_or_default();
                    }
                }
                _ => {}
            }
        }
        self.forget_cleared(|_, claim| claim.contract == Contract::default());
        self.waiting
            .retain(|one| !matches!(&one.undo, Undo::Claim { change, .. } if change.is_empty()));
        before
    }

    /// True if a rollback restores a claim of a target that is cleared, for which `of` is true.
    pub(crate) fn restores(&self, target: &Target, of: impl Fn(&Claim) -> bool) -> bool {
        self.waiting.iter().any(|one| match &one.undo {
            Undo::Cleared { targets, .. } => {
                let cleared = targets.iter().filter(|cleared| cleared.target == *target);
                cleared.flat_map(|cleared| &cleared.claims).any(&of)
            }
            _ => false,
        })
    }

    /// Drops those cleared claims that wait to be restored for which `gone` is true.
    pub(crate) fn forget_cleared(&mut self, gone: impl Fn(&Cleared, &Claim) -> bool) {
        self.waiting.retain_mut(|one| {
            let Undo::Cleared { targets, links } = &mut one.undo else {
                return true;
            };
            targets.retain_mut(|cleared| {
                let claims = std::mem::take(&mut cleared.claims);
                let stay = claims.into_iter().filter(|claim| !gone(cleared, claim));
                cleared.claims = stay.collect();
                !cleared.claims.is_empty()
            });
            !(targets.is_empty() && links.is_empty())
        });
    }

    /// Drops all rollbacks.
    pub(crate) fn forget_all(&mut self) {
        self.waiting.clear();
    }

    /// Keeps the pending rollbacks of a target that is closed because it has no claims: they
    /// restore the target, with the claims that they would have restored. `closed` is the target
    /// without claims.
    pub(crate) fn outlive_target(&mut self, id: u32, closed: &Cleared) {
        for one in &mut self.waiting {
            let Undo::Claim { id: of, change } = &one.undo else {
                continue;
            };
            if *of != id {
                continue;
            }
            let claim = Claim {
                by: one.by,
                order: 0,
                contract: Contract::default().apply(change).unwrap_or_default(),
            };
            let targets = vec![Cleared {
                claims: vec![claim],
                ..closed.clone()
            }];
            let links = Vec::new();
            one.undo = Undo::Cleared { targets, links };
        }
        self.forget_cleared(|_, claim| claim.contract == Contract::default());
    }

    /// Drops the rollbacks of changes of a closed target.
    pub(crate) fn forget_target(&mut self, id: u32) {
        self.waiting
            .retain(|one| !matches!(one.undo, Undo::Claim { id: of, .. } if of == id));
    }

    /// Drops the rollbacks of a link, and returns the settings that the first of them would have
    /// restored: `Some(None)` if the link would no longer be managed, `None` if there was no
    /// rollback.
    pub(crate) fn forget_link(&mut self, link: &IfName) -> Option<Option<Box<ManagedLink>>> {
        let mut first = None;
        self.waiting.retain(|one| match &one.undo {
            Undo::Link { name, before } if name == link => {
                first.get_or_insert_with(|| before.clone());
                false
            }
            _ => true,
        });
        first
    }
}

/// `old` without the clauses of `change`. Adds the removed clauses to `before`, unless they are
/// there already.
fn without(old: &Change, change: &Change, before: &mut Change) -> Change {
    let mut left = Change::default();
    for clause in old.clauses() {
        let to = match change.clauses().contains(&clause) {
            true if before.clauses().contains(&clause) => continue,
            true => &mut *before,
            false => &mut left,
        };
        copy(old, clause, to);
    }
    left
}

/// The inverse of a change of a claim: it gives each clause of the change its value in `old`, and
/// clears clauses that `old` does not name.
pub(crate) fn inverse(change: &Change, old: &Contract) -> Change {
    let old = old.as_change();
    let mut inverse = Change::default();
    for clause in change.clauses() {
        match old.clauses().contains(&clause) {
            true => copy(&old, clause, &mut inverse),
            false => clear(clause, &mut inverse),
        }
    }
    inverse
}

/// The clauses of two changes together. If both name a clause, that of `over` counts.
pub(crate) fn merged(under: &Change, over: &Change) -> Change {
    let mut merged = under.clone();
    for clause in over.clauses() {
        copy(over, clause, &mut merged);
    }
    merged
}

/// The change that the short form means if the policy sets `input_meter = false`: the rate of
/// `both` becomes that of `up`.
pub(crate) fn as_up(change: &Change) -> Change {
    Change {
        up: change.both.clone().or(change.up.clone()),
        both: None,
        ..change.clone()
    }
}

fn copy(from: &Change, clause: Clause, to: &mut Change) {
    match clause {
        Clause::Up => to.up = from.up.clone(),
        Clause::Down => to.down = from.down.clone(),
        Clause::Both => to.both = from.both.clone(),
        Clause::Min => to.min = from.min.clone(),
        Clause::MinDown => to.min_down = from.min_down.clone(),
        Clause::On => to.on = from.on.clone(),
        Clause::Weight => to.weight = from.weight.clone(),
        Clause::Priority => to.priority = from.priority.clone(),
        Clause::Burst => to.burst = from.burst.clone(),
        Clause::Dscp => to.dscp = from.dscp.clone(),
        Clause::Yield => to.yields = from.yields.clone(),
        Clause::Delegate => to.delegate = from.delegate.clone(),
        Clause::Slice => to.slice = from.slice.clone(),
        Clause::Cpu => to.cpu = from.cpu.clone(),
        Clause::Cell => to.cell = from.cell.clone(),
        Clause::Channel => to.channel = from.channel.clone(),
        Clause::Receive => to.receive = from.receive.clone(),
        Clause::Quota => to.quota = from.quota.clone(),
        Clause::When => to.when = from.when.clone(),
    }
}

fn clear(clause: Clause, to: &mut Change) {
    match clause {
        Clause::Up => to.up = Some(Setting::Clear),
        Clause::Down => to.down = Some(Setting::Clear),
        Clause::Both => to.both = Some(Setting::Clear),
        Clause::Min => to.min = Some(Setting::Clear),
        Clause::MinDown => to.min_down = Some(Setting::Clear),
        Clause::On => to.on = Some(Setting::Clear),
        Clause::Weight => to.weight = Some(Setting::Clear),
        Clause::Priority => to.priority = Some(Setting::Clear),
        Clause::Burst => to.burst = Some(Setting::Clear),
        Clause::Dscp => to.dscp = Some(Setting::Clear),
        Clause::Yield => to.yields = Some(Setting::Clear),
        Clause::Delegate => to.delegate = Some(Setting::Clear),
        Clause::Slice => to.slice = Some(Setting::Clear),
        Clause::Cpu => to.cpu = Some(Setting::Clear),
        Clause::Cell => to.cell = Some(Setting::Clear),
        Clause::Channel => to.channel = Some(Setting::Clear),
        Clause::Receive => to.receive = Some(Setting::Clear),
        Clause::Quota => to.quota = Some(Setting::Clear),
        Clause::When => to.when = Some(Setting::Clear),
    }
}

#[cfg(test)]
mod tests;
