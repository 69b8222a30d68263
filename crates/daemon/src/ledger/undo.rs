//! Changes that are taken back by themselves: those that wait for `netnice confirm`, and those that were made for a
//! time only, or for as long as a process lives. Pure; the reconciler carries them out.
//!
//! A change of a target is taken back clause by clause: each clause that it named gets the value that the asker's own
//! claim had before. If the same asker changes a clause again before that, the clause is theirs to decide anew:
//!
//! - a lasting change: the clause stays as it is now set;
//! - a change that is taken back too: it takes over, and when its own time comes, what was there before the *first* of
//!   them comes back. So nothing that was meant for a time ever becomes lasting by overlapping.
//!
//! What was cleared for a time comes back in the same way, clause by clause; clearing it for good ends the wait.

use netnice_core::claims::{Claim, Claimant};
use netnice_core::contract::{Change, Clause, Contract, IfName, Setting};
use netnice_core::target::Target;
use netnice_core::units::Instant;

use crate::ledger::{Body, Managed, Place, Root};

/// All changes that wait to be taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Undos {
    waiting: Vec<Waiting>,
    next: u64,
}

/// One change that waits to be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// By which it is confirmed.
    pub number: u64,
    /// When it is taken back, on the monotonic clock; of no meaning where it waits for a process.
    pub at: Instant,
    /// The process with whose end it is taken back.
    pub until: Option<Root>,
    /// Whether confirming it keeps it; else it was made for a time.
    pub confirmable: bool,
    /// Who made the change.
    pub by: Claimant,
    /// What brings back what was before.
    pub undo: Undo,
}

/// What brings back what was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    /// A change of the asker's claim on a target.
    Claim {
        /// The target's number.
        id: u32,
        /// The change.
        change: Change,
    },
    /// A link as it was managed; none if it was not.
    Link {
        /// Its name.
        name: IfName,
        /// As it was.
        before: Option<Managed>,
    },
    /// What was cleared.
    Cleared {
        /// The claims that were taken back, by target.
        targets: Vec<Cleared>,
        /// The links that were given back.
        links: Vec<Managed>,
    },
}

/// A target of which claims were taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cleared {
    /// Its name.
    pub target: Target,
    /// What it was made of.
    pub body: Body,
    /// What was around it.
    pub place: Place,
    /// The claims that were taken back.
    pub claims: Vec<Claim>,
    /// The policy rule that asked for it.
    pub rule: Option<String>,
}

impl Undos {
    /// As they were written down earlier.
    pub(crate) fn restore(waiting: Vec<Waiting>, next: u64) -> Undos {
        let largest = waiting.iter().map(|one| one.number + 1).max();
        Undos {
            next: next.max(largest.unwrap_or(0)),
            waiting,
        }
    }

    /// Those that wait.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter()
    }

    /// The number that the next one gets.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Lets a change wait; tells its number. Numbers begin with 1.
    pub(crate) fn push(&mut self, at: Instant, confirmable: bool, by: Claimant, undo: Undo) -> u64 {
        self.next = self.next.max(1);
        let number = self.next;
        self.next += 1;
        self.waiting.push(Waiting {
            number,
            at,
            until: None,
            confirmable,
            by,
            undo,
        });
        number
    }

    /// Lets a change wait for the end of a process.
    pub(crate) fn push_until(&mut self, root: Root, by: Claimant, undo: Undo) {
        self.push(Instant(u64::MAX), false, by, undo);
        if let Some(waiting) = self.waiting.last_mut() {
            waiting.until = Some(root);
        }
    }

    /// The processes that targets were made of which were cleared for a time.
    pub(crate) fn cleared_roots(&self) -> impl Iterator<Item = Root> {
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

    /// The processes whose end changes wait for.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = Root> {
        self.waiting.iter().filter_map(|one| one.until)
    }

    /// Takes out the change of this number, if `may` allows it to be confirmed.
    pub(crate) fn confirm(
        &mut self,
        number: u64,
        may: impl Fn(&Waiting) -> bool,
    ) -> Option<Waiting> {
        let found = |one: &Waiting| one.number == number && one.confirmable && may(one);
        let at = self.waiting.iter().position(found)?;
        Some(self.waiting.remove(at))
    }

    /// Takes out all whose time has come, or whose process is among the `ended`; the latest made first.
    pub(crate) fn due(&mut self, now: Instant, ended: &[Root]) -> Vec<Waiting> {
        let is_due = |one: &Waiting| match &one.until {
            Some(root) => ended.contains(root),
            None => one.at <= now,
        };
        let (mut due, waiting): (Vec<Waiting>, Vec<Waiting>) =
            self.waiting.drain(..).partition(is_due);
        self.waiting = waiting;
        due.sort_by_key(|one| std::cmp::Reverse(one.number));
        due
    }

    /// When the next one is due.
    pub(crate) fn earliest(&self) -> Option<Instant> {
        let timed = self.waiting.iter().filter(|one| one.until.is_none());
        timed.map(|one| one.at).min()
    }

    /// Takes the clauses of a change out of what the same asker has waiting for the same target. What these would
    /// have brought back is given back.
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
                    *old = without(old, change, &mut before);
                }
                Undo::Cleared { targets, .. } => {
                    let cleared = targets.iter_mut().filter(|one| one.target == *target);
                    let claims = cleared.flat_map(|one| &mut one.claims);
                    for claim in claims.filter(|claim| claim.by.uid == by.uid) {
                        let left = without(&claim.contract.as_change(), change, &mut before);
                        // What is left may need what was taken out.
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

    /// Forgets those of the claims that were cleared for a time that are `gone`.
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

    /// Forgets everything.
    pub(crate) fn forget_all(&mut self) {
        self.waiting.clear();
    }

    /// Forgets what waits for a target that is gone.
    pub(crate) fn forget_target(&mut self, id: u32) {
        self.waiting
            .retain(|one| !matches!(one.undo, Undo::Claim { id: of, .. } if of == id));
    }

    /// Forgets what waits for a link; tells what it would have brought back.
    pub(crate) fn forget_link(&mut self, link: &IfName) -> Option<Option<Managed>> {
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

/// A change without the clauses of another; those that are not in `before` yet are put there.
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

/// What takes a change of a claim back: for each clause that it names, the value that the claim had.
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

/// One change over another: the clauses of `over` win.
pub(crate) fn merged(under: &Change, over: &Change) -> Change {
    let mut merged = under.clone();
    for clause in over.clauses() {
        copy(over, clause, &mut merged);
    }
    merged
}

/// The change of the short form where the host limits directions apart: `both` means `up`.
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
        Clause::Slice => to.slice = from.slice.clone(),
        Clause::Cpu => to.cpu = from.cpu.clone(),
        Clause::Cell => to.cell = from.cell.clone(),
        Clause::Channel => to.channel = from.channel.clone(),
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
        Clause::Slice => to.slice = Some(Setting::Clear),
        Clause::Cpu => to.cpu = Some(Setting::Clear),
        Clause::Cell => to.cell = Some(Setting::Clear),
        Clause::Channel => to.channel = Some(Setting::Clear),
    }
}

#[cfg(test)]
mod tests;
