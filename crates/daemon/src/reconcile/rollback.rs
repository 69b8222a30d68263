//! Rolls back changes when their time is over (`--for`, or `--confirm` without a confirmation), or
//! when the process that the request named with `--until-exit` has ended. If the former value of a
//! clause no longer fits, the clauses that the change added are still removed. The result of each
//! rollback goes to the journal. A rollback that fails is not tried again. The check of a duration
//! fails if a time is invalid or the process does not run.

use std::collections::BTreeSet;

use netnice_api::Until;
use netnice_core::admission::TargetId;
use netnice_core::claims::Claims;
use netnice_core::contract::Contract;
use netnice_core::units::Instant;

use super::{ChangeDuration, Draft, Reconciler};
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::journal::EventKind;
use crate::ledger::rollbacks::{self, Cleared, PendingRollback, Undo};
use crate::ledger::{Body, ManagedLink, ProcessId, describe_link};

impl<H: Host> Reconciler<H> {
    /// Checks a duration.
    ///
    /// # Errors
    /// If a time is zero or exceeds [`netnice_core::units::Nanos::MAX`] (366 days), or the process
    /// of `--until-exit` does not run.
    pub(crate) fn check_duration(&mut self, duration: ChangeDuration) -> Result<(), RequestError> {
        duration.check()?;
        match duration.until {
            Some(Until { pid, started }) if !self.is_alive(ProcessId { pid, started }) => {
                Err(RequestError::Failed(format!(
                    "--until-exit: process {pid} does not run (any more)"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Drops from a draft the cleared claims that wait to be restored, if all processes of their
    /// target have ended and no rule of the policy asks for the target.
    pub(crate) fn forget_ended(&mut self, draft: &mut Draft) {
        let roots: BTreeSet<ProcessId> = draft.rollbacks.cleared_roots().collect();
        let ended: Vec<ProcessId> = roots.into_iter().filter(|r| !self.is_alive(*r)).collect();
        let has_ended = |cleared: &Cleared| match &cleared.body {
            Body::Processes { roots, .. } => roots.iter().all(|root| ended.contains(root)),
            _ => false,
        };
        draft
            .rollbacks
            .forget_cleared(|cleared, _| has_ended(cleared) && cleared.rule.is_none());
    }

    fn is_alive(&mut self, root: ProcessId) -> bool {
        self.host.process(root.pid).is_some_and(|p| p.root == root)
    }

    /// The time of the next rollback that has a time; `None` if there is none.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.books.rollbacks.earliest()
    }

    /// Rolls back the changes whose time is over or whose process has ended.
    pub(crate) fn expire(&mut self, now: Now) {
        // Many changes may wait for the end of the same process.
        let awaited: BTreeSet<ProcessId> = self.books.rollbacks.awaited().collect();
        let ended = awaited.into_iter().filter(|root| !self.is_alive(*root));
        let ended: Vec<ProcessId> = ended.collect();
        if ended.is_empty()
            && self
                .books
                .rollbacks
                .earliest()
                .is_none_or(|at| at > now.monotonic)
        {
            return;
        }
        let mut rest = self.books.rollbacks.clone();
        let due = rest.due(now.monotonic, &ended);
        self.books.rollbacks = rest;
        for waiting in due {
            let why = match (waiting.until, waiting.confirmable) {
                (Some(_), _) => "was made until a process ended",
                (None, true) => "was not confirmed",
                (None, false) => "was made for a time that is over",
            };
            let number = waiting.number;
            let user = (!waiting.by.privileged).then_some(waiting.by.uid);
            let (kind, text) = match self.roll_back(waiting, now) {
                Ok(what) => (EventKind::Done, format!("change {number} {why}: {what}")),
                Err(error) => (
                    EventKind::Fault,
                    format!("change {number} {why}, but cannot be taken back: {error}"),
                ),
            };
            self.journal.log(now, user, kind, text);
        }
    }

    fn roll_back(&mut self, waiting: PendingRollback, now: Now) -> Result<String, RequestError> {
        let mut draft = self.unrequested_draft();
        let of_link = matches!(waiting.undo, Undo::Link { .. });
        let what = match waiting.undo {
            Undo::Claim { id, change } => {
                let Some(held) = draft.ledger.by_id(id).cloned() else {
                    return Ok("its target is gone".to_owned());
                };
                let slot = held.entry.id;
                let changed = draft
                    .ledger
                    .change_claim(slot, waiting.by, &change, now.wall_ns)
                    .or_else(|error| {
                        // The former value no longer fits: what the change added is still removed.
                        let clears = change.only_clears();
                        match clears.is_empty() {
                            true => Err(error),
                            false => {
                                draft
                                    .ledger
                                    .change_claim(slot, waiting.by, &clears, now.wall_ns)
                            }
                        }
                    });
                changed?;
                let left = draft.ledger.get(slot);
                if left.is_some_and(|held| held.claims.is_empty()) {
                    draft.close_unclaimed(slot);
                }
                format!("{} {change}", held.entry.target)
            }
            Undo::Link { name, before } => match before {
                Some(managed) => {
                    let text = describe_link(&managed.link);
                    draft.ledger.manage_or_degrade(managed.link, managed.by)?;
                    draft.ledger.set_reflectors(&name, managed.reflectors);
                    draft.ledger.set_classes(&name, managed.classes);
                    text
                }
                None => {
                    draft.ledger.unmanage(&name)?;
                    format!("{name} is no longer managed")
                }
            },
            Undo::Cleared { targets, links } => {
                return Ok(self.restore_cleared(targets, links, now));
            }
        };
        let before = self.books.ledger.clone();
        self.install(draft)?;
        if of_link {
            self.note_guarantees(&before, now);
        }
        Ok(what)
    }

    /// Restores cleared targets and links one by one; returns the result of each as text.
    fn restore_cleared(
        &mut self,
        targets: Vec<Cleared>,
        links: Vec<ManagedLink>,
        now: Now,
    ) -> String {
        let mut results = Vec::new();
        let mut report = |name: String, result: Result<bool, RequestError>| {
            results.push(match result {
                Ok(true) => format!("{name} is restored"),
                Ok(false) => format!("{name} is gone"),
                Err(error) => format!("{name} cannot be restored: {error}"),
            });
        };
        for managed in links {
            let name = managed.link.name.to_string();
            let mut draft = self.unrequested_draft();
            let known = draft.ledger.link(&name).is_some();
            let result = match known {
                true => Ok(()),
                false => draft.ledger.restore_cleared_link(managed),
            };
            let result = result.and_then(|()| self.install(draft));
            report(name, result.map(|_| true));
        }
        // A target was cleared before those that contain it, so it is restored after them.
        for cleared in targets.into_iter().rev() {
            let name = cleared.target.to_string();
            report(name, self.restore_claims(cleared, now));
        }
        results.join(", ")
    }

    /// Restores the withdrawn claims on a target; false if all its processes have ended.
    fn restore_claims(&mut self, cleared: Cleared, now: Now) -> Result<bool, RequestError> {
        let mut draft = self.unrequested_draft();
        let Some(slot) = self.slot_of_cleared(&mut draft, &cleared)? else {
            return Ok(false);
        };
        let now_held = draft.ledger.get(slot);
        let now_held = now_held.map_or_else(Claims::default, |held| held.claims.clone());
        let mut claims: Vec<_> = now_held.iter().cloned().collect();
        for back in cleared.claims {
            let Some(now) = claims.iter_mut().find(|now| now.by.uid == back.by.uid) else {
                claims.push(back);
                continue;
            };
            // A claim made meanwhile stays, and stays alone if the two cannot be combined.
            let both = rollbacks::merged(&back.contract.as_change(), &now.contract.as_change());
            if let Ok(both) = Contract::default().apply(&both) {
                now.contract = both;
            }
        }
        let claims = now_held.replace(claims)?;
        draft.ledger.admit(slot, claims, now.wall_ns)?;
        draft.ledger.set_rule(slot, cleared.rule);
        self.install(draft)?;
        Ok(true)
    }

    /// The slot of a cleared target, opened if it is not held; `None` if all its processes have
    /// ended.
    fn slot_of_cleared(
        &mut self,
        draft: &mut Draft,
        cleared: &Cleared,
    ) -> Result<Option<TargetId>, RequestError> {
        let Body::Processes { roots, only } = &cleared.body else {
            return self
                .finder()
                .slot_of_future(draft, &cleared.target)
                .map(Some);
        };
        let privileged = cleared.claims.iter().any(|claim| claim.by.privileged);
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
                        privileged,
                    )?,
                },
                Some(slot) => {
                    let (finder, draft) = (&mut self.finder(), &mut *draft);
                    match finder.add_process(draft, slot, &process, *only, privileged) {
                        // Root has limited it meanwhile.
                        Err(RequestError::NotPermitted(_)) => {}
                        added => added?,
                    }
                    slot
                }
            });
        }
        Ok(slot)
    }
}
