//! Changes that are taken back by themselves, and the confirmation that keeps them.

use std::collections::BTreeSet;

use netnice_api::{Confirm, Done, Until};
use netnice_core::admission::TargetId;
use netnice_core::claims::Claims;
use netnice_core::contract::{Change, Contract};
use netnice_core::target::Target;
use netnice_core::units::{Instant, Nanos};

use super::{Clerk, Draft};
use crate::authority;
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::Host;
use crate::ledger::undo::{self, Cleared, Undo, Waiting};
use crate::ledger::{Body, Managed, Root};
use crate::peer::Peer;

/// For how long a change was asked.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub confirm_ns: Option<u64>,
    pub for_ns: Option<u64>,
    pub until: Option<Until>,
}

impl Terms {
    /// Whether the change lasts.
    pub fn is_lasting(self) -> bool {
        self.confirm_ns.is_none() && self.for_ns.is_none() && self.until.is_none()
    }

    /// Refuses times that are none.
    pub fn check(self) -> Result<(), Denied> {
        let longest = Nanos::MAX;
        for (option, time) in [("--confirm", self.confirm_ns), ("--for", self.for_ns)] {
            match time {
                Some(0) => {
                    return Err(Denied::BadUsage(format!("{option}: the time is zero")));
                }
                Some(time) if time > longest.0 => {
                    return Err(Denied::BadUsage(format!(
                        "{option}: {} is longer than the longest time, {longest}",
                        Nanos(time)
                    )));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Draft {
    /// Lets `undo` wait as long as was asked; tells the number to confirm.
    pub(super) fn wait(&mut self, terms: Terms, peer: &Peer, undo: Undo, now: Now) -> Option<u64> {
        let mut push = |time: Option<u64>, confirmable| {
            let at = now.monotonic.after(Nanos(time?));
            let by = peer.claimant();
            Some(self.undos.push(at, confirmable, by, undo.clone()))
        };
        push(terms.for_ns, false);
        let number = push(terms.confirm_ns, true);
        if let Some(Until { pid, started }) = terms.until {
            let root = Root { pid, started };
            self.undos.push_until(root, peer.claimant(), undo);
        }
        number
    }

    /// Notes that a claim on a target is changed: what waited for the same clauses does so no longer, and the change
    /// itself waits if it was made for a time.
    pub(super) fn wait_for_claim(
        &mut self,
        (id, target): (u32, &Target),
        terms: Terms,
        peer: &Peer,
        change: &Change,
        before: &Contract,
        now: Now,
    ) -> Option<u64> {
        let first = self.undos.supersede(id, target, peer.claimant(), change);
        if terms.is_lasting() {
            return None;
        }
        let change = undo::merged(&undo::inverse(change, before), &first);
        self.wait(terms, peer, Undo::Claim { id, change }, now)
    }
}

impl<H: Host> Clerk<H> {
    /// Refuses terms that make no sense.
    pub(super) fn check_terms(&mut self, terms: Terms) -> Result<(), Denied> {
        terms.check()?;
        match terms.until {
            Some(Until { pid, started }) if !self.lives(Root { pid, started }) => {
                Err(Denied::Failed(format!(
                    "--until-exit: process {pid} does not run (any more)"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Forgets what was cleared for a time of processes that have ended since.
    pub(super) fn forget_ended(&mut self, draft: &mut Draft) {
        let roots: BTreeSet<Root> = draft.undos.cleared_roots().collect();
        let ended: Vec<Root> = roots.into_iter().filter(|r| !self.lives(*r)).collect();
        let has_ended = |cleared: &Cleared| match &cleared.body {
            Body::Processes { roots, .. } => roots.iter().all(|root| ended.contains(root)),
            _ => false,
        };
        draft
            .undos
            .forget_cleared(|cleared, _| has_ended(cleared) && cleared.rule.is_none());
    }

    fn lives(&mut self, root: Root) -> bool {
        self.host.process(root.pid).is_some_and(|p| p.root == root)
    }

    pub(super) fn confirm(
        &mut self,
        peer: &Peer,
        confirm: &Confirm,
        now: Now,
    ) -> Result<Done, Denied> {
        let mut draft = self.draft();
        let may = |waiting: &Waiting| peer.uid == 0 || waiting.by.uid == peer.uid;
        let number = confirm.id;
        draft.undos.confirm(number, may).ok_or_else(|| {
            Denied::Failed(format!(
                "no change of yours waits to be confirmed as {number}; it may have been taken back already, \
                 `netnice log` tells"
            ))
        })?;
        self.install(draft, |_| Ok(()))?;
        let who = authority::user(peer.uid);
        self.journal
            .note(now, format!("{who} confirmed change {number}"));
        Ok(Done {
            messages: vec![format!("change {number} is kept")],
            ..Done::default()
        })
    }

    /// When the next change is to be taken back.
    pub fn next_due(&self) -> Option<Instant> {
        self.undos.earliest()
    }

    /// Takes back the changes whose time has come.
    pub fn expire(&mut self, now: Now) {
        // Many may wait for the end of one.
        let awaited: BTreeSet<Root> = self.undos.awaited().collect();
        let ended = awaited.into_iter().filter(|root| !self.lives(*root));
        let ended: Vec<Root> = ended.collect();
        if ended.is_empty() && self.undos.earliest().is_none_or(|at| at > now.monotonic) {
            return;
        }
        let mut rest = self.undos.clone();
        let due = rest.due(now.monotonic, &ended);
        self.undos = rest;
        for waiting in due {
            let why = match (waiting.until, waiting.confirmable) {
                (Some(_), _) => "was made until a process ended",
                (None, true) => "was not confirmed",
                (None, false) => "was made for a time that is over",
            };
            let number = waiting.number;
            match self.take_back_change(waiting, now) {
                Ok(what) => self
                    .journal
                    .note(now, format!("change {number} {why}: {what}")),
                Err(denied) => self.journal.warn(
                    now,
                    format!("change {number} {why}, but cannot be taken back: {denied}"),
                ),
            }
        }
    }

    fn take_back_change(&mut self, waiting: Waiting, now: Now) -> Result<String, Denied> {
        let mut draft = self.draft_by_itself();
        let what = match waiting.undo {
            Undo::Claim { id, change } => {
                let Some(held) = draft.ledger.by_id(id).cloned() else {
                    return Ok("its target is gone".to_owned());
                };
                let slot = held.entry.id;
                let asked = draft
                    .ledger
                    .ask(slot, waiting.by, &change, now.wall_ns)
                    .or_else(|denied| {
                        // What was there before no longer fits: then at least what was asked goes.
                        let clears = change.only_clears();
                        match clears.is_empty() {
                            true => Err(denied),
                            false => draft.ledger.ask(slot, waiting.by, &clears, now.wall_ns),
                        }
                    });
                asked?;
                let left = draft.ledger.get(slot);
                if left.is_some_and(|held| held.claims.is_empty()) {
                    draft.close(slot);
                }
                format!("{} {change}", held.entry.target)
            }
            Undo::Link { name, before } => match before {
                Some(managed) => {
                    draft.ledger.manage(managed.link.clone(), managed.by)?;
                    super::link::describe(&managed.link)
                }
                None => {
                    draft.ledger.unmanage(&name)?;
                    format!("{name} is no longer managed")
                }
            },
            Undo::Cleared { targets, links } => return Ok(self.bring_back(targets, links, now)),
        };
        self.install(draft, |_| Ok(()))?;
        Ok(what)
    }

    /// Brings back what was cleared, one by one; tells what came of each.
    fn bring_back(&mut self, targets: Vec<Cleared>, links: Vec<Managed>, now: Now) -> String {
        let mut told = Vec::new();
        let mut tell = |name: String, result: Result<bool, Denied>| {
            told.push(match result {
                Ok(true) => format!("{name} is back"),
                Ok(false) => format!("{name} is gone"),
                Err(denied) => format!("{name} does not come back: {denied}"),
            });
        };
        for managed in links {
            let name = managed.link.name.to_string();
            let mut draft = self.draft_by_itself();
            let known = draft.ledger.link(&name).is_some();
            let result = match known {
                true => Ok(()),
                false => draft.ledger.manage(managed.link, managed.by),
            };
            let result = result.and_then(|()| self.install(draft, |_| Ok(())));
            tell(name, result.map(|_| true));
        }
        // What was cleared last was around the others.
        for cleared in targets.into_iter().rev() {
            let name = cleared.target.to_string();
            tell(name, self.reinstate(cleared, now));
        }
        told.join(", ")
    }

    /// Gives a target back the claims that were taken from it; false if what it was made of is gone.
    fn reinstate(&mut self, cleared: Cleared, now: Now) -> Result<bool, Denied> {
        let mut draft = self.draft_by_itself();
        let Some(slot) = self.slot_of_cleared(&mut draft, &cleared)? else {
            return Ok(false);
        };
        let held = draft.ledger.get(slot);
        let mut claims: Vec<_> = held.map_or_else(Vec::new, |h| h.claims.iter().cloned().collect());
        for back in cleared.claims {
            let Some(now) = claims.iter_mut().find(|now| now.by.uid == back.by.uid) else {
                claims.push(back);
                continue;
            };
            // What was asked meanwhile stays, and stays alone where the two do not go together.
            let both = undo::merged(&back.contract.as_change(), &now.contract.as_change());
            if let Ok(both) = Contract::default().apply(&both) {
                now.contract = both;
            }
        }
        let claims = Claims::restore(claims)?;
        draft.ledger.admit(slot, claims, now.wall_ns)?;
        draft.ledger.set_rule(slot, cleared.rule);
        self.install(draft, |_| Ok(()))?;
        Ok(true)
    }

    /// The slot of a target that was cleared: as it is held, or opened anew.
    fn slot_of_cleared(
        &mut self,
        draft: &mut Draft,
        cleared: &Cleared,
    ) -> Result<Option<TargetId>, Denied> {
        let Body::Processes { roots, only } = &cleared.body else {
            return self.seat_of(draft, &cleared.target).map(Some);
        };
        let mut slot = None;
        for root in roots {
            let Some(process) = self.host.process(root.pid).filter(|p| p.root == *root) else {
                continue;
            };
            slot = Some(match slot {
                None => match draft.ledger.find_process(*root) {
                    Some(held) => held.entry.id,
                    None => self.open_process(draft, cleared.target.clone(), &process, *only)?,
                },
                Some(slot) => {
                    self.join_as(draft, slot, &process, *only)?;
                    slot
                }
            });
        }
        Ok(slot)
    }
}
