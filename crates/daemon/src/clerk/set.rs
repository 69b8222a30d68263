//! Setting: a contract for a process, a name, or anything else; and a process that joins a name.

use std::collections::BTreeSet;

use netnice_api::{Done, Set};
use netnice_core::admission::TargetId;
use netnice_core::contract::Change;
use netnice_core::target::Target;
use netnice_kernel::enforce::Adoption;

use super::{Clerk, Draft, Named, release};
use crate::authority;
use crate::clock::Now;
use crate::denied::Denied;
use crate::enforce::{Act, Host, Process};
use crate::ledger::{Body, Held, Newcomer, Place};
use crate::lineage;
use crate::peer::Peer;

impl<H: Host> Clerk<H> {
    pub(super) fn set(
        &mut self,
        peer: &Peer,
        set: &Set,
        named: Option<Named>,
        now: Now,
    ) -> Result<Done, Denied> {
        let target: Target = set.target.parse()?;
        let change: Option<Change> = set.change.as_deref().map(str::parse).transpose()?;
        if let Some(change) = &change {
            authority::may_ask(peer, change)?;
        }
        let mut draft = self.draft();
        let (slot, process) = match (&target, change.as_ref()) {
            (Target::Container(_), _) => {
                return Err(Denied::unsupported(format!(
                    "{target}: limiting a container"
                )));
            }
            (Target::Pid(_), Some(change)) => {
                let process = self.named(peer, named.as_ref(), None)?;
                let slot =
                    self.set_process(&mut draft, peer, &target, &process, set.only, change, now)?;
                (slot, Some(process))
            }
            (Target::Name(_), change) => {
                self.set_name(&mut draft, peer, &target, set, named.as_ref(), change, now)?
            }
            (_, Some(change)) => (
                self.set_thing(&mut draft, peer, &target, change, now)?,
                None,
            ),
            (_, None) => {
                return Err(Denied::BadUsage(format!(
                    "nothing is asked of {target}: name at least one of up, down, both, min, …"
                )));
            }
        };
        self.finish(peer, draft, slot, process, named, set, now)
    }

    /// Carries out a worked-out change and answers.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one request, each used once"
    )]
    fn finish(
        &mut self,
        peer: &Peer,
        mut draft: Draft,
        slot: TargetId,
        process: Option<Process>,
        named: Option<Named>,
        set: &Set,
        now: Now,
    ) -> Result<Done, Denied> {
        let held = draft.ledger.get(slot).cloned();
        let Some(held) = held else {
            return Err(Denied::Failed(format!("{} is not held", set.target)));
        };
        let existed = self.ledger.get(slot).is_some_and(|old| old.id == held.id);
        let ends = held.claims.is_empty();
        if ends {
            if !existed {
                return Ok(Done {
                    messages: vec![format!("nothing was set for {}", held.entry.target)],
                    target: Some(held.entry.target.to_string()),
                    ..Done::default()
                });
            }
            draft.acts.clear();
            if let Some(closed) = draft.ledger.close(slot) {
                draft.acts.extend(release(&closed));
            }
        }
        if set.dry_run {
            let plan = self.preview(&draft);
            let ledger = std::mem::replace(&mut self.ledger, draft.ledger);
            let done = self.done(peer, &held);
            self.ledger = ledger;
            return Ok(Done {
                plan: Some(plan),
                ..done
            });
        }
        let adoption = self.install(draft, |host| {
            still_lives(host, process.as_ref(), named.as_ref())
        })?;
        let done = match self.ledger.get(slot).filter(|_| !ends) {
            Some(now_held) => self.done(peer, now_held),
            None => Done {
                target: Some(held.entry.target.to_string()),
                contract: Some("none".to_owned()),
                effective: Some("none".to_owned()),
                ..Done::default()
            },
        };
        let who = authority::user(peer.uid);
        let what = done.effective.as_deref().unwrap_or_default();
        self.journal
            .note(now, format!("{who} set {}: {what}", held.entry.target));
        Ok(Done {
            messages: self.remarks(slot, &adoption),
            ..done
        })
    }

    /// What a person should know about a target that was set just now.
    fn remarks(&self, slot: TargetId, adoption: &Adoption) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(held) = self.ledger.get(slot) {
            remarks.extend(self.tighter_around(held));
        }
        if adoption.shared_listeners > 0 {
            remarks.push(format!(
                "{} listening sockets are shared with processes outside and were left alone",
                adoption.shared_listeners
            ));
        }
        if adoption.hidden_mptcp > 0 {
            remarks.push(format!(
                "{} open MPTCP sockets hide their connections from the kernel's owner; limit their unit or cgroup \
                 to hold them",
                adoption.hidden_mptcp
            ));
        }
        remarks
    }

    /// Limits of what is around a target that are below its own.
    fn tighter_around(&self, held: &Held) -> Vec<String> {
        let own = &held.entry.contract;
        let effective = held.effective(&self.ledger);
        let pairs = [
            ("up", own.up(), effective.up()),
            ("down", own.down(), effective.down()),
            ("both", own.both(), effective.both()),
        ];
        let tighter = pairs
            .into_iter()
            .filter(|(_, own, effective)| own.is_some() && effective < own);
        tighter
            .filter_map(|(word, _, effective)| {
                Some(format!(
                    "{word} is held at {} by what is around it",
                    effective?
                ))
            })
            .collect()
    }

    /// The process that a request means. It is read by number; that its pidfd still lives when all is done makes sure
    /// that it was this process which was read.
    fn named(
        &mut self,
        peer: &Peer,
        named: Option<&Named>,
        number: Option<u32>,
    ) -> Result<Process, Denied> {
        let Some(named) = named else {
            return Err(Denied::BadUsage(
                "a process is meant by a pidfd, and none came with the request".to_owned(),
            ));
        };
        if number.is_some_and(|number| number != named.pid) {
            return Err(Denied::BadUsage(format!(
                "the request names process {}, its pidfd is of process {}",
                number.unwrap_or_default(),
                named.pid
            )));
        }
        let gone = || Denied::Failed(format!("process {} does not exist (any more)", named.pid));
        let process = self.host.process(named.pid).ok_or_else(gone)?;
        if !(named.lives)() {
            return Err(gone());
        }
        authority::may_limit_process(peer, &process)?;
        Ok(process)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one request, each used once"
    )]
    fn set_process(
        &mut self,
        draft: &mut Draft,
        peer: &Peer,
        target: &Target,
        process: &Process,
        only: bool,
        change: &Change,
        now: Now,
    ) -> Result<TargetId, Denied> {
        if let Target::Pid(pid) = target
            && pid.get() != process.root.pid
        {
            return Err(Denied::BadUsage(format!(
                "the request names {target}, its pidfd is of process {}",
                process.root.pid
            )));
        }
        let found = draft.ledger.find_process(process.root).cloned();
        let slot = match found {
            Some(held) => {
                let was_only = matches!(held.body, Body::Processes { only: true, .. });
                if was_only && !only {
                    let keep = self.inside_process(process, only)?;
                    draft.acts.push(adopt(held.id, process, only, keep));
                    let body = Body::Processes {
                        roots: vec![process.root],
                        only,
                    };
                    draft.ledger.rebody(held.entry.id, body, held.place);
                }
                held.entry.id
            }
            None => self.open_process(draft, target.clone(), process, only)?,
        };
        draft
            .ledger
            .ask(slot, peer.claimant(), change, now.wall_ns)?;
        Ok(slot)
    }

    /// Takes a process in as the first of a target.
    fn open_process(
        &mut self,
        draft: &mut Draft,
        target: Target,
        process: &Process,
        only: bool,
    ) -> Result<TargetId, Denied> {
        let inside = self.inside_process(process, only)?;
        let place = Place {
            uid: Some(process.uid),
            ..self.host.place(process.root.pid)
        };
        let slot = draft.ledger.open(Newcomer {
            target,
            body: Body::Processes {
                roots: vec![process.root],
                only,
            },
            place,
            inside: inside.clone(),
        })?;
        let id = draft.ledger.get(slot).map_or(0, |held| held.id);
        draft.acts.push(adopt(id, process, only, inside));
        Ok(slot)
    }

    /// The held targets that a process contains.
    fn inside_process(&mut self, process: &Process, only: bool) -> Result<BTreeSet<u32>, Denied> {
        if only || self.ledger.held().next().is_none() {
            return Ok(BTreeSet::new());
        }
        let family = self.host.family(process.root.pid);
        let members = self.host.members()?;
        let me = Some(process.root.pid);
        Ok(lineage::inside(&self.ledger, &members, &family, me))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one request, each used once"
    )]
    fn set_name(
        &mut self,
        draft: &mut Draft,
        peer: &Peer,
        target: &Target,
        set: &Set,
        named: Option<&Named>,
        change: Option<&Change>,
        now: Now,
    ) -> Result<(TargetId, Option<Process>), Denied> {
        let found = draft.ledger.find(target).cloned();
        let joins = set.pid.is_some() || named.is_some();
        let process = match joins {
            true => Some(self.named(peer, named, set.pid)?),
            false => None,
        };
        let slot = match (found, &process) {
            (None, None) => {
                return Err(Denied::Failed(format!(
                    "nobody runs as {target}; `netnice run --name N … CMD` makes one"
                )));
            }
            (None, Some(_)) if change.is_none() => {
                return Err(Denied::BadUsage(format!(
                    "nobody runs as {target} yet, so say what it may use: netnice run --name N --up 4mbit CMD"
                )));
            }
            (None, Some(process)) => self.open_process(draft, target.clone(), process, set.only)?,
            (Some(held), process) => {
                let fresh = matches!(&held.body, Body::Processes { roots, .. } if roots.is_empty());
                if !fresh {
                    authority::may_limit_target(peer, target, held.owner())?;
                }
                if let Some(process) = process {
                    self.join(draft, &held, process, set.only, now)?;
                }
                held.entry.id
            }
        };
        if let Some(change) = change {
            draft
                .ledger
                .ask(slot, peer.claimant(), change, now.wall_ns)?;
        }
        Ok((slot, process))
    }

    /// Lets a process join a named target.
    fn join(
        &mut self,
        draft: &mut Draft,
        held: &Held,
        process: &Process,
        only: bool,
        now: Now,
    ) -> Result<(), Denied> {
        let Body::Processes { roots, .. } = &held.body else {
            return Ok(());
        };
        let place = Place {
            uid: Some(process.uid),
            ..self.host.place(process.root.pid)
        };
        let place = match roots.is_empty() {
            true => place,
            false => draft.ledger.joined(held.entry.id, &place),
        };
        let mut roots = roots.clone();
        if !roots.contains(&process.root) {
            roots.push(process.root);
        }
        let slot = held.entry.id;
        draft
            .ledger
            .rebody(slot, Body::Processes { roots, only: false }, place);
        draft.ledger.admit(slot, held.claims.clone(), now.wall_ns)?;
        let mut keep = self.inside_process(process, only)?;
        keep.remove(&held.id);
        draft.acts.push(adopt(held.id, process, only, keep));
        Ok(())
    }

    fn set_thing(
        &mut self,
        draft: &mut Draft,
        peer: &Peer,
        target: &Target,
        change: &Change,
        now: Now,
    ) -> Result<TargetId, Denied> {
        authority::may_limit_target(peer, target, None)?;
        let slot = match draft.ledger.find(target) {
            Some(held) => held.entry.id,
            None => {
                let (body, place, act) = self.find_thing(target)?;
                match draft.ledger.find_alias(&body) {
                    Some(held) => held.entry.id,
                    None => self.open_thing(draft, target, body, place, act)?,
                }
            }
        };
        draft
            .ledger
            .ask(slot, peer.claimant(), change, now.wall_ns)?;
        Ok(slot)
    }

    /// Takes in a target that is no process.
    pub(super) fn open_thing(
        &mut self,
        draft: &mut Draft,
        target: &Target,
        body: Body,
        place: Place,
        act: impl FnOnce(u32) -> Act,
    ) -> Result<TargetId, Denied> {
        let inside = match body {
            Body::App(Some(key)) if self.ledger.held().next().is_some() => {
                let family = self.host.running(key);
                let members = self.host.members()?;
                lineage::inside(&self.ledger, &members, &family, None)
            }
            _ => BTreeSet::new(),
        };
        let slot = draft.ledger.open(Newcomer {
            target: target.clone(),
            body,
            place,
            inside,
        })?;
        let id = draft.ledger.get(slot).map_or(0, |held| held.id);
        draft.acts.push(act(id));
        Ok(slot)
    }

    /// Finds what a target that is no process is made of, where it is, and how it is bound.
    pub(super) fn find_thing(
        &mut self,
        target: &Target,
    ) -> Result<(Body, Place, Box<dyn FnOnce(u32) -> Act>), Denied> {
        let nowhere = Place::default();
        Ok(match target {
            Target::App(path) => {
                let path = path.to_string();
                let key = self.host.app(&path)?;
                let bind: Box<dyn FnOnce(u32) -> Act> =
                    Box::new(move |id| Act::BindApp { id, path });
                (Body::App(Some(key)), nowhere, bind)
            }
            Target::Cgroup(_) | Target::Unit(_) => {
                let bound = match target {
                    Target::Unit(name) => self.host.unit(name.as_str())?,
                    Target::Cgroup(path) => self.host.cgroup(path.as_str())?,
                    _ => unreachable!("matched above"),
                };
                let place = Place {
                    cgroup: Some(bound.path.clone()),
                    ..nowhere
                };
                let body = Body::Cgroup(Some(bound.clone()));
                let bind: Box<dyn FnOnce(u32) -> Act> =
                    Box::new(move |id| Act::BindCgroup { id, bound });
                (body, place, bind)
            }
            Target::User(name) => {
                let uid = self.host.user(name.as_str())?;
                let bind: Box<dyn FnOnce(u32) -> Act> =
                    Box::new(move |id| Act::BindUser { id, uid });
                (Body::User(uid), nowhere, bind)
            }
            other => return Err(Denied::unsupported(format!("{other}: limiting this"))),
        })
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

/// Whether the process that was meant is still there: then all that was read by its number was read of it.
fn still_lives<H: Host>(
    host: &mut H,
    process: Option<&Process>,
    named: Option<&Named>,
) -> Result<(), Denied> {
    let (Some(process), Some(named)) = (process, named) else {
        return Ok(());
    };
    let pid = process.root.pid;
    let same = host
        .process(pid)
        .is_some_and(|now| now.root == process.root);
    match (named.lives)() && same {
        true => Ok(()),
        false => Err(Denied::Failed(format!(
            "process {pid} ended meanwhile; nothing was changed"
        ))),
    }
}

/// One act in words.
pub(super) fn describe(act: &Act) -> String {
    match act {
        Act::Adopt { pid, only, .. } => match only {
            true => format!("take in process {pid}"),
            false => format!("take in process {pid} and its descendants"),
        },
        Act::Readopt { pids, .. } => format!("take in {} processes", pids.len()),
        Act::Release { .. } => "let its processes go".to_owned(),
        Act::BindApp { path, .. } => format!("take in what runs {path}"),
        Act::UnbindApp { path, .. } => format!("let go what runs {path}"),
        Act::BindCgroup { bound, .. } => format!("take in control group {}", bound.path),
        Act::UnbindCgroup { bound, .. } => format!("let go control group {}", bound.path),
        Act::BindUser { uid, .. } => format!("take in user {uid}"),
        Act::UnbindUser { uid, .. } => format!("let go user {uid}"),
    }
}
