//! Finds the processes, executable, control group or user that a target names, and adds the target
//! to a draft of the ledger.
//!
//! Input is a target and the machine's [`Inventory`]. Output is the target's slot in the draft, and
//! an [`Act`] in the draft that binds the target in the kernel when the draft is installed. A call
//! fails with [`RequestError`] if the machine has no such object (except for
//! [`Finder::slot_of_future`], which adds a target whose object may appear later), if the ledger
//! has no free slot, if a process may not join a target, or if the members table cannot be read.

use std::collections::BTreeSet;

use netnice_api::Found;
use netnice_core::admission::TargetId;
use netnice_core::target::Target;

use super::{Draft, ancestry};
use crate::error::RequestError;
use crate::host::{Act, Inventory, Process};
use crate::ledger::{Body, HeldTarget, Ledger, NewTarget, TargetPlace};

/// Makes the act that binds the found object in the kernel, from the target's id.
type Bind = Box<dyn FnOnce(u32) -> Act>;

/// Looks up targets on a machine and in a ledger.
pub(crate) struct Finder<'a, I> {
    machine: &'a mut I,
    /// The present ledger, without the draft.
    ledger: &'a Ledger,
}

impl<'a, I: Inventory> Finder<'a, I> {
    /// A finder on a machine and the present ledger.
    pub(crate) fn new(machine: &'a mut I, ledger: &'a Ledger) -> Finder<'a, I> {
        Finder { machine, ledger }
    }

    /// Adds a new target of processes to the draft, with `process` as its first root process. With
    /// `only`, its present descendants are not members. Unless the request is `privileged`,
    /// descendants that root or the group limits by another target stay in that one.
    ///
    /// # Errors
    /// If the ledger has no free slot, or the members table cannot be read.
    pub(crate) fn open_process(
        &mut self,
        draft: &mut Draft,
        target: Target,
        process: &Process,
        only: bool,
        privileged: bool,
    ) -> Result<TargetId, RequestError> {
        let inner = self.inner_targets(process, only)?;
        let place = self.place_of(process);
        let around = place.own;
        let slot = draft.ledger.open(NewTarget {
            target,
            body: Body::Processes {
                roots: vec![process.root],
                only,
            },
            place,
            inside: BTreeSet::new(),
        })?;
        draft
            .ledger
            .put_inside(slot, &inner.inside, around, privileged);
        let id = draft.ledger.get(slot).map_or(0, |held| held.id);
        let keep = inner.kept(&draft.ledger, slot, privileged);
        draft.acts.push(adopt(id, process, only, keep));
        Ok(slot)
    }

    /// Adds a root process to a target of processes. The target then nests inside those targets
    /// that contain all its processes. No effect if the slot is free or has a target of another
    /// kind.
    ///
    /// # Errors
    /// [`RequestError::NotPermitted`] if the request is not `privileged` and the process or the
    /// target would leave a target that root or the group limits. The draft is then as before.
    /// Another error if the members table cannot be read.
    pub(crate) fn add_process(
        &mut self,
        draft: &mut Draft,
        slot: TargetId,
        process: &Process,
        only: bool,
        privileged: bool,
    ) -> Result<(), RequestError> {
        let Some(held) = draft.ledger.get(slot).cloned() else {
            return Ok(());
        };
        let id = held.id;
        let Body::Processes { roots, .. } = &held.body else {
            return Ok(());
        };
        let mut roots = roots.clone();
        let place = self.place_of(process);
        let around = place.own;
        // For a user's request: the ledger to return to, and the targets that must contain both.
        let before = (!privileged).then(|| {
            let must_contain = draft.ledger.privileged_around(slot, &place);
            (draft.ledger.clone(), must_contain)
        });
        let place = match roots.is_empty() {
            true => place,
            false if roots.contains(&process.root) => held.place.clone(),
            false => draft.ledger.joined(slot, &place),
        };
        if !roots.contains(&process.root) {
            roots.push(process.root);
        }
        draft
            .ledger
            .set_body(slot, Body::Processes { roots, only }, place);
        let mut inner = self.inner_targets(process, only)?;
        inner.inside.remove(&id);
        draft
            .ledger
            .put_inside(slot, &inner.inside, around, privileged);
        let contains = draft.ledger.with_around(slot);
        let leaves = |outer: &&TargetId| !contains.contains(outer);
        if let Some((before, must_contain)) = before
            && let Some(left) = must_contain.iter().find(leaves)
        {
            let left = before.get(*left);
            let left = left.map_or_else(String::new, |left| left.entry.target.to_string());
            draft.ledger = before;
            return Err(RequestError::NotPermitted(format!(
                "process {} cannot join {}: {left}, which root or the group netnice limits, \
                 contains one of them and would not contain both",
                process.root.pid, held.entry.target
            )));
        }
        let keep = inner.kept(&draft.ledger, slot, privileged);
        draft.acts.push(adopt(id, process, only, keep));
        Ok(())
    }

    fn place_of(&mut self, process: &Process) -> TargetPlace {
        TargetPlace {
            uid: Some(process.uid),
            ..self.machine.place(process.root.pid)
        }
    }

    /// The held targets with members among the descendants of a process; none with `only`.
    fn inner_targets(
        &mut self,
        process: &Process,
        only: bool,
    ) -> Result<InnerTargets, RequestError> {
        if only {
            return Ok(InnerTargets::default());
        }
        let family = self.machine.family(process.root.pid);
        self.inner_targets_of(&family, Some(process.root.pid))
    }

    /// The held targets with members in `family`, a set of process ids, except targets that contain
    /// `newcomer`. `newcomer` is the process from which the family descends, if it descends from
    /// one.
    fn inner_targets_of(
        &mut self,
        family: &BTreeSet<u32>,
        newcomer: Option<u32>,
    ) -> Result<InnerTargets, RequestError> {
        let around = newcomer.map_or(0, |pid| self.machine.membership(pid).0);
        let own = family.iter().map(|pid| self.machine.membership(*pid).0);
        let all: BTreeSet<u32> = own.filter(|own| *own != around && *own != 0).collect();
        // If all of the family belong to the surrounding target or to none, no target is nested.
        if all.is_empty() {
            return Ok(InnerTargets::default());
        }
        let members = self.machine.members()?;
        let inside = ancestry::inside(self.ledger, &members, family, newcomer);
        Ok(InnerTargets { all, inside })
    }

    /// The slot of a target that is not a process and exists on the machine. If no held target has
    /// this name or the same object, the draft gets a new target.
    ///
    /// # Errors
    /// If the object does not exist, the ledger has no free slot, or the members table cannot be
    /// read.
    pub(crate) fn slot_of_existing(
        &mut self,
        draft: &mut Draft,
        target: &Target,
    ) -> Result<TargetId, RequestError> {
        if let Some(held) = draft.ledger.find(target) {
            return Ok(held.entry.id);
        }
        let found = self.find_non_process(target)?;
        self.slot_of_found(draft, target, found)
    }

    /// As [`Finder::slot_of_existing`], for a target that may not exist yet. A target that does not
    /// exist is bound later, when its object appears.
    ///
    /// # Errors
    /// If a user does not exist, the ledger has no free slot, or the members table cannot be read.
    /// For a process or a flow, unless the process is held by this name.
    pub(crate) fn slot_of_future(
        &mut self,
        draft: &mut Draft,
        target: &Target,
    ) -> Result<TargetId, RequestError> {
        if let Some(held) = draft.ledger.find(target) {
            return Ok(held.entry.id);
        }
        let absent = match self.find_non_process(target) {
            Ok(found) => return self.slot_of_found(draft, target, found),
            Err(absent) => absent,
        };
        let body = match target {
            Target::Name(_) => Body::Processes {
                roots: Vec::new(),
                only: false,
            },
            Target::App(_) => Body::App(None),
            Target::Cgroup(_) | Target::Unit(_) | Target::Container(_) => Body::Cgroup(None),
            Target::Pid(_) | Target::User(_) | Target::Flow(_) | Target::Direct(_) => {
                return Err(absent);
            }
        };
        draft.ledger.open(NewTarget {
            target: target.clone(),
            body,
            place: TargetPlace::default(),
            inside: BTreeSet::new(),
        })
    }

    fn slot_of_found(
        &mut self,
        draft: &mut Draft,
        target: &Target,
        (body, place, bind): (Body, TargetPlace, Bind),
    ) -> Result<TargetId, RequestError> {
        if let Some(held) = draft.ledger.find_alias(&body) {
            return Ok(held.entry.id);
        }
        let inside = match body {
            Body::App(Some(key)) => {
                let family = self.machine.running(key);
                self.inner_targets_of(&family, None)?.inside
            }
            _ => BTreeSet::new(),
        };
        let slot = draft.ledger.open(NewTarget {
            target: target.clone(),
            body,
            place,
            inside,
        })?;
        let id = draft.ledger.get(slot).map_or(0, |held| held.id);
        draft.acts.push(bind(id));
        Ok(slot)
    }

    /// The held target of this name, or of another name for the same object.
    ///
    /// # Errors
    /// If no such target is held.
    pub(crate) fn lookup(&mut self, target: &Target) -> Result<&'a HeldTarget, RequestError> {
        let id = match self.ledger.find(target) {
            Some(held) => Some(held.id),
            None => self
                .find_non_process(target)
                .ok()
                .and_then(|(body, ..)| self.ledger.find_alias(&body))
                .map(|held| held.id),
        };
        id.and_then(|id| self.ledger.by_id(id)).ok_or_else(|| {
            RequestError::Failed(format!(
                "nothing is set for {target}; `netnice show` lists what is"
            ))
        })
    }

    /// The processes, executable, control group or user of the target `text`, held or not.
    ///
    /// # Errors
    /// If the object does not exist, a name is not held, or the text is not a target.
    pub(crate) fn find(&mut self, text: &str) -> Result<Found, RequestError> {
        let target: Target = text.parse()?;
        let body = match &target {
            Target::Pid(pid) => {
                let gone = || RequestError::Failed(format!("process {} does not exist", pid.get()));
                let process = self.machine.process(pid.get()).ok_or_else(gone)?;
                return Ok(Found::Processes(vec![process.root.pid]));
            }
            Target::Name(_) => self.lookup(&target)?.body.clone(),
            other => self.find_non_process(other)?.0,
        };
        consists_of(&body, &target)
            .ok_or_else(|| RequestError::Failed(format!("{target} is not there now")))
    }

    /// Looks up the executable, user or control group of a target on the machine. Returns its body,
    /// its place, and the act that binds it.
    ///
    /// # Errors
    /// If the object does not exist, or the target is a process, a name or a flow.
    pub(crate) fn find_non_process(
        &mut self,
        target: &Target,
    ) -> Result<(Body, TargetPlace, Bind), RequestError> {
        let nowhere = TargetPlace::default();
        let bound = match target {
            Target::App(path) => {
                let path = path.to_string();
                let key = self.machine.app(&path)?;
                let bind: Bind = Box::new(move |id| Act::BindApp { id, path });
                return Ok((Body::App(Some(key)), nowhere, bind));
            }
            Target::User(name) => {
                let uid = self.machine.user(name.as_str())?;
                let bind: Bind = Box::new(move |id| Act::BindUser { id, uid });
                return Ok((Body::User(uid), nowhere, bind));
            }
            Target::Unit(name) => self.machine.unit(name.as_str())?,
            Target::Cgroup(path) => self.machine.cgroup(path.as_str())?,
            Target::Container(name) => self.machine.container(name.as_str())?,
            Target::Pid(_) | Target::Name(_) => {
                return Err(RequestError::BadUsage(format!(
                    "{target} consists of processes"
                )));
            }
            Target::Flow(_) | Target::Direct(_) => {
                return Err(RequestError::BadUsage(format!(
                    "{target} is of the direct path: flows are opened, changed and closed by their \
                     programs; \
                     netnice show and explain show them"
                )));
            }
        };
        let place = TargetPlace {
            cgroup: Some(bound.path.clone()),
            ..nowhere
        };
        let body = Body::Cgroup(Some(bound.clone()));
        Ok((
            body,
            place,
            Box::new(move |id| Act::BindCgroup { id, bound }),
        ))
    }
}

/// The object of a target, as a client gets it: the root processes, executable, control group or
/// user. `None` if it does not exist now.
pub(crate) fn consists_of(body: &Body, target: &Target) -> Option<Found> {
    match (body, target) {
        (Body::Processes { roots, .. }, _) => {
            let pids = roots.iter().map(|root| root.pid).collect();
            Some(Found::Processes(pids))
        }
        (Body::Cgroup(bound), _) => bound.as_ref().map(|b| Found::Cgroup(b.path.clone())),
        (Body::User(uid), _) => Some(Found::User(*uid)),
        (Body::App(Some(_)), Target::App(path)) => Some(Found::App(path.to_string())),
        (Body::App(_), _) => None,
    }
}

/// The held targets with members in a family of processes, without those around the family. Ids.
#[derive(Default)]
struct InnerTargets {
    /// All of them.
    all: BTreeSet<u32>,
    /// Those that nest inside a target of the family.
    inside: BTreeSet<u32>,
}

impl InnerTargets {
    /// The targets whose members stay in them when the target at `slot` takes in the family: those
    /// that nest inside it, and, unless the request is privileged, those whose members would leave
    /// a target that root or the group limits.
    fn kept(self, ledger: &Ledger, slot: TargetId, privileged: bool) -> BTreeSet<u32> {
        let mut keep = self.inside;
        if !privileged && !self.all.is_empty() {
            let contains = ledger.with_around(slot);
            let leaves_limit = |id: &u32| {
                let around = ledger
                    .by_id(*id)
                    .map(|held| ledger.with_around(held.entry.id));
                let mut left = around
                    .iter()
                    .flatten()
                    .filter(|one| !contains.contains(one));
                left.any(|outer| ledger.is_privileged(*outer))
            };
            keep.extend(self.all.into_iter().filter(leaves_limit));
        }
        keep
    }
}

fn adopt(id: u32, process: &Process, only: bool, keep: BTreeSet<u32>) -> Act {
    Act::Adopt {
        id,
        pid: process.root.pid,
        only,
        keep,
    }
}
