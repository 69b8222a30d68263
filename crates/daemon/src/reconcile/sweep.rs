//! Follows changes that no request caused: puts claims into force and out of force by their
//! schedules, closes targets whose processes have ended (a target with a claim of the policy
//! stays), binds control groups and executables that were created again, releases executables whose
//! file is gone, and removes draining targets without traffic. Changes and errors go to the
//! journal; no function returns an error.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::admission::TargetId;
use netnice_core::target::Target;

use super::Reconciler;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{Act, Host};
use crate::journal::EventKind;
use crate::ledger::{Body, HeldTarget, TargetPlace};
use crate::peer::POLICY;

impl<H: Host> Reconciler<H> {
    /// Maintains the kernel's tables, checks everything that ends or appears on the machine, rolls
    /// back changes that are due, and writes the state file if that failed before. The caller calls
    /// it each second.
    pub(crate) fn check_all(&mut self, now: Now) {
        let tended = self.host.maintain_tables().map(|warnings| {
            for text in warnings {
                self.journal.warn(now, text);
            }
        });
        self.journal
            .log_result(now, "maintaining the kernel's tables", tended);
        self.expire(now);
        let followed = self.follow_schedules(now);
        self.journal
            .log_result(now, "following the schedules", followed);
        let followed = self.follow_quotas(now);
        self.journal
            .log_result(now, "following the traffic quotas", followed);
        let looked = self
            .close_ended(now)
            .and_then(|()| self.expire_draining(now))
            .and_then(|()| self.rebind(now));
        self.journal.log_result(now, "checking the machine", looked);
        let read = self.read_processors(now);
        self.journal
            .log_result(now, "reading what the processors can be promised", read);
        self.follow_processors(now);
        self.write_again(now);
        self.place_containers();
    }

    /// Puts claims into force whose schedule has become active, and takes those out of force whose
    /// schedule has become inactive. What has changed goes to the journal.
    ///
    /// # Errors
    /// If the kernel refuses the change. Then the claims stay as they were until the next call.
    fn follow_schedules(&mut self, now: Now) -> Result<(), RequestError> {
        if !self.books.ledger.has_due_schedule(now.wall_ns) {
            return Ok(());
        }
        let mut draft = self.unrequested_draft();
        let changes = draft.ledger.follow_schedules(now.wall_ns);
        if changes.is_empty() {
            self.books.ledger = draft.ledger;
            return Ok(());
        }
        self.install(draft)?;
        for change in changes {
            let text = change.to_string();
            self.journal.log(now, change.user, EventKind::Done, text);
        }
        Ok(())
    }

    /// Closes targets whose last process has ended, and binds control groups and executables that
    /// were created again. The caller calls it after an event that indicates either.
    pub(crate) fn close_and_rebind(&mut self, now: Now) {
        let looked = self.close_ended(now).and_then(|()| self.rebind(now));
        self.journal.log_result(now, "checking the machine", looked);
    }

    /// The paths of the held control groups, including those that do not exist now.
    pub(crate) fn group_paths(&self) -> Vec<String> {
        let path = |held: &HeldTarget| match (&held.body, &held.entry.target) {
            (_, Target::Cgroup(path)) => Some(path.to_string()),
            (Body::Cgroup(Some(bound)), _) => Some(bound.path.clone()),
            (Body::Cgroup(None), _) => held.place.cgroup.clone(),
            _ => None,
        };
        self.books.ledger.held().filter_map(path).collect()
    }

    /// Divides the left-over of managed links again. The caller calls it every 200 ms while there
    /// are managed links.
    pub(crate) fn balance(&mut self, now: Now) {
        if self.books.ledger.links().next().is_none() {
            return;
        }
        let shared = self.host.balance(now.monotonic);
        self.journal.log_result(now, "dividing the links", shared);
    }

    /// The slots of process targets whose last member has ended. A name that waits for a process is
    /// not one of them.
    ///
    /// # Errors
    /// If the members table cannot be read.
    pub(super) fn ended_targets(&mut self) -> Result<Vec<TargetId>, RequestError> {
        let of_processes = |held: &&HeldTarget| match &held.body {
            Body::Processes { roots, .. } => !roots.is_empty(),
            _ => false,
        };
        if self.books.ledger.held().find(of_processes).is_none() {
            return Ok(Vec::new());
        }
        let mut own: Vec<u32> = self.host.members()?.values().map(|(own, _)| *own).collect();
        own.sort_unstable();
        own.dedup();
        // A target lives as long as one inside it, because its limit applies to that one too.
        let around = own
            .into_iter()
            .flat_map(|id| self.books.ledger.ancestors_of(Some(id)));
        let alive: BTreeSet<u32> = around.collect();
        Ok(self
            .books
            .ledger
            .held()
            .filter(of_processes)
            .filter(|held| !alive.contains(&held.id))
            .map(|held| held.entry.id)
            .collect())
    }

    /// Closes process targets whose last member has ended. A target with a claim of the policy
    /// stays, without processes; if that claim no longer fits, the target becomes degraded.
    fn close_ended(&mut self, now: Now) -> Result<(), RequestError> {
        let ended = self.ended_targets()?;
        if ended.is_empty() {
            return Ok(());
        }
        let mut draft = self.unrequested_draft();
        let mut names = Vec::new();
        for slot in ended {
            let Some(held) = draft.ledger.get(slot).cloned() else {
                continue;
            };
            names.push((held.entry.target.to_string(), held.user_alone()));
            if held.claims.iter().any(|claim| claim.by == POLICY) {
                let others = held.claims.iter().filter(|claim| claim.by == POLICY);
                let claims = netnice_core::claims::Claims::restore(others.cloned().collect())?;
                draft
                    .ledger
                    .set_body(slot, held.body.without(), TargetPlace::default());
                draft.ledger.withdraw(slot, claims, now.wall_ns);
                draft.rollbacks.forget_target(held.id);
            } else if let Some(closed) = draft.close(slot) {
                draft.ledger.keep_draining(&closed, now.monotonic);
            }
        }
        self.install(draft)?;
        for (name, user) in names {
            self.journal
                .log(now, user, EventKind::Done, format!("{name} has ended"));
        }
        Ok(())
    }

    /// Removes draining targets that have no more traffic.
    fn expire_draining(&mut self, now: Now) -> Result<(), RequestError> {
        if self.books.ledger.draining().all(|left| left.found) {
            return Ok(());
        }
        let sample = self.host.sample()?;
        let traffic: BTreeMap<u32, (u64, u64)> = sample
            .targets
            .iter()
            .map(|(id, counts)| {
                let [up, down] = counts.directions;
                let offered = up.offered_packets + down.offered_packets;
                (*id, (offered, up.queued_packets + down.queued_packets))
            })
            .collect();
        let mut draft = self.unrequested_draft();
        let went = draft.ledger.expire_draining(now.monotonic, |id| {
            traffic.get(&id).copied().unwrap_or_default()
        });
        match went {
            true => self.install(draft).map(drop),
            false => {
                self.books.ledger = draft.ledger;
                Ok(())
            }
        }
    }

    /// Binds objects of targets that were created again (a control group, a file at an executable's
    /// path), and releases executables whose file is gone.
    ///
    /// # Errors
    /// If the kernel fails. The targets before the failed one are bound.
    pub(super) fn rebind(&mut self, now: Now) -> Result<(), RequestError> {
        let things: Vec<HeldTarget> = self
            .books
            .ledger
            .held()
            .filter(|held| matches!(held.body, Body::App(_) | Body::Cgroup(_)))
            .cloned()
            .collect();
        for held in things {
            let is = self.body_now(&held);
            if is == held.body {
                continue;
            }
            let mut draft = self.unrequested_draft();
            let (id, slot) = (held.id, held.entry.id);
            let place = match &is {
                Body::Cgroup(Some(bound)) => TargetPlace {
                    cgroup: Some(bound.path.clone()),
                    ..TargetPlace::default()
                },
                _ => held.place.clone(),
            };
            match (&held.body, &is, &held.entry.target) {
                (Body::Cgroup(_), Body::Cgroup(is), _) => {
                    // The former group stays bound, for packets that are still being sent.
                    let come = is.clone().map(|bound| Act::BindCgroup { id, bound });
                    draft.acts.extend(come);
                }
                (Body::App(was), Body::App(is), Target::App(path)) => {
                    let path = path.to_string();
                    let gone = was.map(|_| Act::UnbindApp {
                        id,
                        path: path.clone(),
                    });
                    let come = is.map(|_| Act::BindApp { id, path });
                    draft.acts.extend(gone.into_iter().chain(come));
                }
                _ => continue,
            }
            let there = !matches!(is, Body::App(None) | Body::Cgroup(None));
            draft.ledger.set_body(slot, is, place);
            self.install(draft)?;
            let what = if there {
                "was created again"
            } else {
                "is gone"
            };
            let text = format!("{} {what}; its contract stays", held.entry.target);
            self.journal.note(now, text);
        }
        Ok(())
    }

    /// The present body of a target that is not a process.
    fn body_now(&mut self, held: &HeldTarget) -> Body {
        match (&held.entry.target, &held.body) {
            (Target::App(path), _) => Body::App(self.host.app(path.as_str()).ok()),
            (Target::Cgroup(path), _) => Body::Cgroup(self.host.cgroup(path.as_str()).ok()),
            (Target::Unit(_) | Target::Container(_), Body::Cgroup(Some(bound)))
                if self.host.cgroup(&bound.path).ok().as_ref() == Some(bound) =>
            {
                held.body.clone()
            }
            (Target::Container(name), _) => Body::Cgroup(self.host.container(name.as_str()).ok()),
            (Target::Unit(name), _) => Body::Cgroup(self.host.unit(name.as_str()).ok()),
            _ => held.body.clone(),
        }
    }
}
