//! `netnice show`: the present state of links and targets, with contracts and counters, as a
//! [`ShowDoc`]. Fails if the named text is no target, a named target is not held, a named process
//! does not exist, or the machine cannot be read.

use std::net::IpAddr;

use netnice_api::{
    ContractDoc, CountersDoc, InstalledDoc, LinkClassDoc, LinkDoc, LinkServerDoc, ScheduleDoc,
    ShowDoc, TargetDoc, UnconfirmedDoc,
};
use netnice_core::contract::{Contract, Direction};
use netnice_core::link::classes::LinkClass;
use netnice_core::target::Target;
use netnice_kernel::enforce::{Sample, TargetCounts};

use super::budgets;
use super::confirm::may_confirm;
use super::view::View;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{Host, Interface};
use crate::ledger::rollbacks::Undo;
use crate::ledger::{HeldTarget, Ledger, ManagedLink, slice_text};
use crate::meter;
use crate::peer::{POLICY, Peer};
use crate::reconcile::desired;
use crate::schedule;
use crate::user_names::user_name;

impl<H: Host> View<'_, H> {
    /// The state of all links and targets, or of one target if one is named. For a process, that of
    /// the target that contains it; no target if none does. Without a target, also the changes that
    /// the peer may confirm.
    ///
    /// # Errors
    /// If `target` is not the text of a target, a named target is not held, a named process does
    /// not exist, or the machine cannot be read.
    pub(super) fn show(
        &mut self,
        peer: &Peer,
        target: Option<&str>,
        now: Now,
    ) -> Result<ShowDoc, RequestError> {
        let Some(text) = target else {
            let all: Vec<HeldTarget> = self.ledger().held().cloned().collect();
            let links: Vec<ManagedLink> = self.ledger().links().cloned().collect();
            return Ok(ShowDoc {
                unconfirmed: self.unconfirmed(peer, now),
                ..self.document(&all, &links, now)?
            });
        };
        let target: Target = text.parse()?;
        let held = match target {
            Target::Pid(pid) => self.of_process(&target, pid.get())?,
            // `crate::flows` adds flows to the response.
            Target::Flow(_) | Target::Direct(_) => Vec::new(),
            _ => vec![self.finder().lookup(&target)?.clone()],
        };
        self.document(&held, &[], now)
    }

    /// The state of these targets, sorted by name, and of these links.
    ///
    /// # Errors
    /// If the machine cannot be read.
    pub(super) fn document(
        &mut self,
        targets: &[HeldTarget],
        links: &[ManagedLink],
        now: Now,
    ) -> Result<ShowDoc, RequestError> {
        let sample = self.machine.sample()?;
        let interfaces = self.machine.interfaces()?;
        let link = |managed: &ManagedLink| self.link_doc(managed, &sample, &interfaces, now);
        let links: Vec<LinkDoc> = links.iter().map(link).collect();
        let mut targets: Vec<TargetDoc> = targets
            .iter()
            .map(|held| self.target_doc(held, &sample, &interfaces, now))
            .collect();
        targets.sort_by(|a, b| a.target.cmp(&b.target));
        Ok(ShowDoc {
            version: ShowDoc::VERSION,
            links,
            targets,
            network_namespace: self.machine.network_namespace(),
            ..ShowDoc::default()
        })
    }

    /// The changes that wait for a confirmation, as far as the peer may confirm them.
    fn unconfirmed(&self, peer: &Peer, now: Now) -> Vec<UnconfirmedDoc> {
        let waiting = self.books.rollbacks.iter();
        let waiting = waiting.filter(|one| one.confirmable && may_confirm(peer, one));
        waiting
            .map(|one| UnconfirmedDoc {
                number: one.number,
                uid: one.by.uid,
                what: self.undone(&one.undo),
                left_ns: one.at.since(now.monotonic).0,
            })
            .collect()
    }

    /// The targets and links that a rollback changes, as texts.
    fn undone(&self, undo: &Undo) -> Vec<String> {
        match undo {
            Undo::Claim { id, .. } => {
                let held = self.ledger().by_id(*id);
                held.map(|held| held.entry.target.to_string())
                    .into_iter()
                    .collect()
            }
            Undo::Link { name, .. } => vec![format!("link {name}")],
            Undo::Cleared { targets, links } => {
                let targets = targets.iter().map(|cleared| cleared.target.to_string());
                let links = links.iter().map(|it| format!("link {}", it.link.name));
                targets.chain(links).collect()
            }
        }
    }

    fn link_doc(
        &self,
        managed: &ManagedLink,
        sample: &Sample,
        interfaces: &[Interface],
        now: Now,
    ) -> LinkDoc {
        let link = &managed.link;
        let name = link.name.as_str();
        let there = interfaces.iter().any(|i| i.name == name);
        let rest = sample.rest.get(name).copied().unwrap_or_default();
        let counts = TargetCounts { directions: rest };
        let meter = meter::meter(&counts, &Contract::default());
        let counters = CountersDoc::new(sample.at.unwrap_or(now.monotonic).0, &meter);
        let counters = match self.measurements.rates.of_link(name, now.monotonic) {
            Some([up, down]) => counters.with_rates(up, down),
            None => counters,
        };
        let mut degraded = self.link_faults(managed, interfaces);
        degraded.extend(self.missing_guarantees(managed));
        degraded.extend(self.estimate_fault(managed));
        LinkDoc {
            probes: managed.reflectors.iter().map(IpAddr::to_string).collect(),
            server: server_doc(managed),
            installed: there && !self.deviations.broken.contains_key(&link.name),
            degraded,
            counters,
            ..LinkDoc::new(link, self.ledger().promised(link))
        }
    }

    fn target_doc(
        &self,
        held: &HeldTarget,
        sample: &Sample,
        interfaces: &[Interface],
        now: Now,
    ) -> TargetDoc {
        let counts = sample.targets.get(&held.id).copied().unwrap_or_default();
        let meter = meter::meter(&counts, &held.in_force());
        let claimed = held.claims.effective();
        let mut contract = ContractDoc::from(claimed);
        for clause in claimed.as_change().clauses() {
            if let Some(uid) = held.claims.set_by(clause) {
                // Claims of the policy file are shown as root's.
                let uid = if uid == POLICY.uid { 0 } else { uid };
                contract.set_by.insert(clause.to_string(), uid);
            }
        }
        let counters = CountersDoc::new(sample.at.unwrap_or(now.monotonic).0, &meter);
        let counters = match self.measurements.rates.of(held.id, now.monotonic) {
            Some([up, down]) => counters.with_rates(up, down),
            None => counters,
        };
        let command = self.measurements.commands.of(held.id);
        TargetDoc {
            target: held.entry.target.to_string(),
            command: command.map(|command| command.name.clone()),
            user: command.map(|command| user_name(command.uid)),
            contract,
            budget: budgets::document(self.ledger(), held),
            schedules: schedule_docs(held),
            quotas: self.traffic_quotas(held),
            effective: ContractDoc::from(&held.effective(self.ledger())),
            installed: installed(self.ledger(), held, self.machine.link_leaf()),
            processor_time: self.processor_time(held),
            degraded: self.target_faults(held, interfaces),
            counters,
        }
    }
}

/// The server of a link; `None` if the link has no classes. The flow manager adds its members.
fn server_doc(managed: &ManagedLink) -> Option<LinkServerDoc> {
    let classes = &managed.classes;
    let rate = managed.link.usable(Direction::Up);
    let slice = rate.and_then(|rate| {
        let link = crate::flows::server_link(rate, managed.link.overhead);
        classes.slice(&link).ok().flatten()
    });
    let class = |(number, class): (u8, LinkClass)| LinkClassDoc {
        class: number,
        min: class.min.map(|rate| rate.bits_per_second()),
        overbook: class.overbook,
        ..LinkClassDoc::default()
    };
    (!classes.is_empty()).then(|| LinkServerDoc {
        slice: slice.as_ref().map(slice_text).unwrap_or_default(),
        named: classes.named_server().is_some(),
        suspended: None,
        classes: classes.iter().map(class).collect(),
    })
}

/// The claims on a target that have a schedule.
fn schedule_docs(held: &HeldTarget) -> Vec<ScheduleDoc> {
    held.scheduled()
        .map(|(claim, when, phase)| ScheduleDoc {
            uid: if claim.by.uid == POLICY.uid {
                0
            } else {
                claim.by.uid
            },
            contract: claim.contract.without_schedule().to_string(),
            when: when.to_string(),
            active: phase.active,
            next_ns: phase.next_ns,
            next: phase.next_ns.map(|at| schedule::local_text(when, at)),
        })
        .collect()
}

/// The limits and guarantees that are installed in the kernel for a target, in bit/s, and its burst
/// in bytes, and its code point; `None` if the target has neither a limit, a class on a link nor a
/// code point.
fn installed(ledger: &Ledger, held: &HeldTarget, link_leaf: &str) -> Option<InstalledDoc> {
    let contract = &*held.in_force();
    let bits = |rate: netnice_core::units::Rate| rate.bits_per_second();
    let share = ledger.link_of(contract);
    let yields = contract.yields() && ledger.links().count() > 0;
    let dscp = held.dscp(ledger);
    if !contract.is_limited() && share.is_none() && !yields && dscp.is_none() {
        return None;
    }
    let min = |direction| {
        let usable = share?.link.usable(direction)?;
        contract.link_min(direction, usable).flatten().map(bits)
    };
    let leaf = match contract.is_limited() {
        true => Some("sparse+bulk"),
        false => (share.is_some() || yields).then_some(link_leaf),
    };
    let fastest = contract.both().or(contract.up()).or(contract.down());
    Some(InstalledDoc {
        path: "kernel".to_owned(),
        up: contract.both().or(contract.up()).map(bits),
        down: contract.down().map(bits),
        min: min(Direction::Up),
        min_down: min(Direction::Down),
        burst_bytes: fastest.map(|rate| rate.bytes_in(desired::burst(contract)).0),
        leaf: leaf.map(str::to_owned),
        dscp: dscp.map(|dscp| dscp.get()),
    })
}
