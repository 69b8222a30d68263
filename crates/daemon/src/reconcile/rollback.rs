//! Rolls back changes when their time is over or their process has ended.

use std::collections::BTreeSet;

use netnice_api::Until;
use netnice_core::admission::TargetId;
use netnice_core::claims::Claims;
use netnice_core::contract::Contract;
use netnice_core::units::Instant;

use super::{Draft, Reconciler, Terms};
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::Host;
use crate::journal::Kind;
use crate::ledger::undo::{self, Cleared, Undo, Waiting};
use crate::ledger::{Body, Managed, Root, describe_link};

impl<H: Host> Reconciler<H> {
    /// Refuses invalid terms.
    pub(crate) fn check_terms(&mut self, terms: Terms) -> Result<(), Denied> {
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

    /// Drops claims, cleared for a limited time, on processes that have ended.
    pub(crate) fn forget_ended(&mut self, draft: &mut Draft) {
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

    /// The time of the next rollback.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.books.undos.earliest()
    }

    /// Rolls back the changes whose time is over.
    pub(crate) fn expire(&mut self, now: Now) {
        // Many changes may wait for the same process.
        let awaited: BTreeSet<Root> = self.books.undos.awaited().collect();
        let ended = awaited.into_iter().filter(|root| !self.lives(*root));
        let ended: Vec<Root> = ended.collect();
        if ended.is_empty()
            && self
                .books
                .undos
                .earliest()
                .is_none_or(|at| at > now.monotonic)
        {
            return;
        }
        let mut rest = self.books.undos.clone();
        let due = rest.due(now.monotonic, &ended);
        self.books.undos = rest;
        for waiting in due {
            let why = match (waiting.until, waiting.confirmable) {
                (Some(_), _) => "was made until a process ended",
                (None, true) => "was not confirmed",
                (None, false) => "was made for a time that is over",
            };
            let number = waiting.number;
            let user = (!waiting.by.privileged).then_some(waiting.by.uid);
            let (kind, text) = match self.take_back_change(waiting, now) {
                Ok(what) => (Kind::Done, format!("change {number} {why}: {what}")),
                Err(denied) => (
                    Kind::Fault,
                    format!("change {number} {why}, but cannot be taken back: {denied}"),
                ),
            };
            self.journal.tell(now, user, kind, text);
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
                        // The former value no longer fits: then at least the change is removed.
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
                    describe_link(&managed.link)
                }
                None => {
                    draft.ledger.unmanage(&name)?;
                    format!("{name} is no longer managed")
                }
            },
            Undo::Cleared { targets, links } => return Ok(self.bring_back(targets, links, now)),
        };
        self.install(draft)?;
        Ok(what)
    }

    /// Restores cleared targets and links one by one; returns the result of each as text.
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
            let result = result.and_then(|()| self.install(draft));
            tell(name, result.map(|_| true));
        }
        // The target cleared last contains the others.
        for cleared in targets.into_iter().rev() {
            let name = cleared.target.to_string();
            tell(name, self.reinstate(cleared, now));
        }
        told.join(", ")
    }

    /// Restores the withdrawn claims on a target; false if what it consisted of is gone.
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
            // A claim made meanwhile stays, and stays alone if the two cannot be combined.
            let both = undo::merged(&back.contract.as_change(), &now.contract.as_change());
            if let Ok(both) = Contract::default().apply(&both) {
                now.contract = both;
            }
        }
        let claims = Claims::restore(claims)?;
        draft.ledger.admit(slot, claims, now.wall_ns)?;
        draft.ledger.set_rule(slot, cleared.rule);
        self.install(draft)?;
        Ok(true)
    }

    /// The slot of a cleared target, opened if it is not held.
    fn slot_of_cleared(
        &mut self,
        draft: &mut Draft,
        cleared: &Cleared,
    ) -> Result<Option<TargetId>, Denied> {
        let Body::Processes { roots, only } = &cleared.body else {
            return self.finder().seat_of(draft, &cleared.target).map(Some);
        };
        let mut slot = None;
        for root in roots {
            let Some(process) = self.host.process(root.pid).filter(|p| p.root == *root) else {
                continue;
            };
            slot = Some(match slot {
                None => match draft.ledger.find_process(*root) {
                    Some(held) => held.entry.id,
                    None => self.finder().open_process(
                        draft,
                        cleared.target.clone(),
                        &process,
                        *only,
                    )?,
                },
                Some(slot) => {
                    self.finder().join_as(draft, slot, &process, *only)?;
                    slot
                }
            });
        }
        Ok(slot)
    }
}
