//! The clause `cpu` in requests. Reads from the host what the ledger needs to admit it: what the
//! processors can be promised, on which of them a target may run, and what its flows need.
//! Describes the reservation of a target for documents. Keeps what a packet costs, for `cpu auto`;
//! only that can fail.

use std::collections::{BTreeMap, BTreeSet};

use netnice_api::{
    Done, PacketCostsDoc, ProcessorStatusDoc, ProcessorTimeDoc, SliceDoc, ThreadPartDoc,
};
use netnice_core::admission::TargetId;
use netnice_core::admission::packet_costs::SendingFlow;
use netnice_core::admission::processors::Reservation;
use netnice_core::contract::{Change, Contract, Setting};
use netnice_core::units::Nanos;

use super::Service;
use super::view::View;
use crate::authority;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::journal::EventKind;
use crate::ledger::{Body, DriverTime, HeldTarget, Ledger};
use crate::peer::Peer;
use crate::processors::{DriverThread, ProcessorStatus, Way};
use crate::reconcile::{Reconciler, Sending};
use crate::state::{CostsStore, costs_of};
use crate::user_names::user_name;

impl<H: Host> Service<H> {
    /// Sets the packet threads of the drivers that run now, and what each needs while a target has
    /// its processor time exactly.
    pub(crate) fn set_driver_threads(&mut self, drivers: Vec<DriverThread>) {
        let reservation = |driver: &DriverThread, slice| Reservation {
            holder: driver.name.clone(),
            slice,
            processors: BTreeSet::new(),
        };
        let driver_time = DriverTime {
            asked: drivers
                .iter()
                .map(|one| reservation(one, one.slice))
                .collect(),
            least: drivers
                .iter()
                .map(|one| reservation(one, one.least))
                .collect(),
        };
        self.reconciler.books.ledger.set_driver_time(driver_time);
        self.reconciler.processors.set_drivers(drivers);
    }

    /// Sets the file of what a packet costs, and reads it. The caller calls it before
    /// [`Service::start`].
    pub(crate) fn set_costs_store(&mut self, store: CostsStore, now: Now) {
        match store.load() {
            Ok(costs) => self.reconciler.sending.set_costs(costs),
            Err(error) => self.reconciler.journal.warn(now, error),
        }
        self.costs_store = Some(store);
    }

    /// Sets the flows that send now, and gives targets with `cpu auto` what these need.
    pub(crate) fn follow_sending(&mut self, flows: BTreeMap<u32, Vec<SendingFlow>>, now: Now) {
        self.set_sending(flows);
        self.reconciler.follow_sending(now);
    }

    /// Sets the flows that send now.
    pub(crate) fn set_sending(&mut self, flows: BTreeMap<u32, Vec<SendingFlow>>) {
        self.reconciler.sending.set_flows(flows);
    }

    /// True if a target has `cpu auto`.
    pub(crate) fn follows_flows(&self) -> bool {
        self.reconciler.sending.is_asked
    }

    /// True if reservations of processor time are in force, or may be soon.
    pub(crate) fn keeps_processors(&self) -> bool {
        !self.reconciler.processors.is_idle() || self.follows_flows()
    }

    /// Follows the threads that have reservations of processor time. The caller calls it at each
    /// [`crate::processors::STEP`] while [`Service::keeps_processors`].
    pub(crate) fn step_processors(&mut self, now: Now) {
        self.reconciler.step_processors(now);
    }
}

/// Reads the facts for a change of the target in `slot`, if the change sets `cpu`.
pub(super) fn look_up_change<H: Host>(
    (host, sending): (&mut H, &Sending),
    ledger: &mut Ledger,
    slot: TargetId,
    change: &Change,
) {
    if matches!(change.cpu, Some(Setting::Set(_))) {
        look_up((host, sending), ledger, Some(slot));
    }
}

/// Reads the facts for contracts, each of the target in a slot, if one of them has `cpu`. `None`
/// stands for a target that is opened later: it may run on all processors until it is looked up.
pub(super) fn look_up_contracts<'c, H: Host>(
    (host, sending): (&mut H, &Sending),
    ledger: &mut Ledger,
    contracts: impl Iterator<Item = (Option<TargetId>, &'c Contract)>,
) {
    for (slot, _) in contracts.filter(|(_, contract)| contract.cpu().is_some()) {
        look_up((host, sending), ledger, slot);
    }
}

fn look_up<H: Host>(
    (host, sending): (&mut H, &Sending),
    ledger: &mut Ledger,
    slot: Option<TargetId>,
) {
    ledger.set_processors(host.processors());
    if let Some(held) = slot.and_then(|slot| ledger.get(slot)) {
        let slot = held.entry.id;
        let pids = processes(host, held);
        // Those of a user change all the time.
        let allowed = match &held.body {
            Body::User(_) => BTreeSet::new(),
            _ => host.allowed_processors(&pids),
        };
        ledger.set_target_processors(slot, allowed);
        ledger.set_needed_time(slot, sending.needed(pids));
    }
}

/// The processes of a target.
fn processes<H: Host>(host: &mut H, held: &HeldTarget) -> BTreeSet<u32> {
    match &held.body {
        Body::Processes { roots, only: true } => roots.iter().map(|root| root.pid).collect(),
        Body::Processes { roots, only: false } => {
            let families = roots.iter().map(|root| host.family(root.pid));
            families.flatten().collect()
        }
        Body::App(Some(app)) => host.running(*app),
        Body::Cgroup(Some(bound)) => host.group_processes(&bound.path),
        Body::User(uid) => host.processes_of_user(*uid),
        Body::App(None) | Body::Cgroup(None) => BTreeSet::new(),
    }
}

/// Keeps what a packet costs on this machine, and follows it at once.
///
/// # Errors
/// If the peer is not root or of the group, a value is impossible, or the file cannot be written.
pub(super) fn keep_costs<H: Host>(
    reconciler: &mut Reconciler<H>,
    store: Option<&CostsStore>,
    peer: &Peer,
    costs: &PacketCostsDoc,
    now: Now,
) -> Result<Done, RequestError> {
    authority::may_manage(peer, "what a packet costs")?;
    let read = costs_of(costs).map_err(RequestError::BadUsage)?;
    if let Some(store) = store {
        store.save(costs).map_err(RequestError::Failed)?;
    }
    reconciler.sending.set_costs(Some(read));
    reconciler.follow_sending(now);
    let text = format!("{} set what a packet costs", user_name(peer.uid));
    reconciler
        .journal
        .log(now, peer.user(), EventKind::Done, text);
    Ok(Done {
        messages: vec!["kept for `cpu auto`".to_owned()],
        ..Done::default()
    })
}

impl<H> View<'_, H> {
    /// The reserved processor time of a target, how it is kept, and what was used of it; `None` if
    /// none is in force.
    pub(super) fn processor_time(&self, held: &HeldTarget) -> Option<ProcessorTimeDoc> {
        let reservation = held.reservation()?;
        let is_auto = held.entry.contract.has_auto_time();
        Some(ProcessorTimeDoc {
            reserved: SliceDoc::from(reservation.slice),
            processors: reservation.processors.into_iter().collect(),
            status: self.processors.status(held.id).map(status_doc),
            needed: held.auto.needed.filter(|_| is_auto).map(SliceDoc::from),
            short: held.auto.fault().cloned().filter(|_| is_auto),
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
