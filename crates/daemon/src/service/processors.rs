//! The clause `cpu` in requests. Reads from the host what the ledger needs to admit it: what the
//! processors can be promised, and on which of them a target may run. Describes the reservation of
//! a target for documents. Nothing here fails.

use std::collections::BTreeSet;

use netnice_api::{ProcessorStatusDoc, ProcessorTimeDoc, SliceDoc, ThreadPartDoc};
use netnice_core::admission::TargetId;
use netnice_core::contract::{Change, Contract, Setting};
use netnice_core::units::Nanos;

use super::view::View;
use crate::host::Host;
use crate::ledger::{Body, HeldTarget, Ledger};
use crate::processors::{ProcessorStatus, Way};

/// Reads the facts for a change of the target in `slot`, if the change sets `cpu`.
pub(super) fn look_up_change<H: Host>(
    host: &mut H,
    ledger: &mut Ledger,
    slot: TargetId,
    change: &Change,
) {
    if matches!(change.cpu, Some(Setting::Set(_))) {
        look_up(host, ledger, Some(slot));
    }
}

/// Reads the facts for contracts, each of the target in a slot, if one of them has `cpu`. `None`
/// stands for a target that is opened later: it may run on all processors until it is looked up.
pub(super) fn look_up_contracts<'c, H: Host>(
    host: &mut H,
    ledger: &mut Ledger,
    contracts: impl Iterator<Item = (Option<TargetId>, &'c Contract)>,
) {
    for (slot, _) in contracts.filter(|(_, contract)| contract.cpu().is_some()) {
        look_up(host, ledger, slot);
    }
}

fn look_up<H: Host>(host: &mut H, ledger: &mut Ledger, slot: Option<TargetId>) {
    ledger.set_processors(host.processors());
    if let Some(held) = slot.and_then(|slot| ledger.get(slot)) {
        let slot = held.entry.id;
        let allowed = allowed_processors(host, held);
        ledger.set_target_processors(slot, allowed);
    }
}

/// The processors on which the processes of a target may run; empty if it has none, or if it is a
/// user, whose processes change all the time.
fn allowed_processors<H: Host>(host: &mut H, held: &HeldTarget) -> BTreeSet<u32> {
    let pids = match &held.body {
        Body::Processes { roots, only: true } => roots.iter().map(|root| root.pid).collect(),
        Body::Processes { roots, only: false } => {
            let families = roots.iter().map(|root| host.family(root.pid));
            families.flatten().collect()
        }
        Body::App(Some(app)) => host.running(*app),
        Body::Cgroup(Some(bound)) => host.group_processes(&bound.path),
        Body::App(None) | Body::Cgroup(None) | Body::User(_) => BTreeSet::new(),
    };
    host.allowed_processors(&pids)
}

impl<H> View<'_, H> {
    /// The reserved processor time of a target, how it is kept, and what was used of it; `None` if
    /// none is in force.
    pub(super) fn processor_time(&self, held: &HeldTarget) -> Option<ProcessorTimeDoc> {
        let reservation = held.reservation()?;
        Some(ProcessorTimeDoc {
            reserved: SliceDoc::from(reservation.slice),
            processors: reservation.processors.into_iter().collect(),
            status: self.processors.status(held.id).map(status_doc),
        })
    }
}

fn status_doc(status: ProcessorStatus) -> ProcessorStatusDoc {
    ProcessorStatusDoc {
        way: match status.way {
            Way::Exact => "exact".to_owned(),
            Way::Group => "group".to_owned(),
        },
        reason: status.reason,
        threads: status.threads as u64,
        used_ns: status.used.0,
        exhausted: status.exhausted,
        missed: status.missed,
        parts: status.parts.into_iter().map(part_doc).collect(),
    }
}

fn part_doc((thread, time): (u32, Nanos)) -> ThreadPartDoc {
    ThreadPartDoc {
        thread,
        time_ns: time.0,
    }
}
