//! Admits the clause `cpu` of targets: reservations of processor time.
//!
//! The facts about the processors ([`Ledger::set_processors`]) come from the host, and are not in
//! the state file. A reservation that does not fit any more, because a processor went offline or
//! another program holds a reservation, is not in force until it fits again
//! ([`HeldTarget::time_refused`]). It is independent of what the target has of links. A target
//! inside another one with `cpu` has no reservation, because the time of its threads would count
//! twice. A request for more time than is in force fails if that does not fit.

use std::borrow::Cow;
use std::collections::BTreeSet;

use netnice_core::admission::TargetId;
use netnice_core::admission::processors::{ProcessorSet, Processors, Reservation};
use netnice_core::contract::{Contract, Slice};
use netnice_core::target::Target;

use super::{HeldTarget, Ledger};
use crate::error::RequestError;

impl Ledger {
    /// The facts about the processors of the host.
    pub(crate) fn processors(&self) -> &Processors {
        &self.processors
    }

    /// Replaces the facts about the processors. Reservations are admitted again with them by the
    /// next [`Ledger::heal`].
    pub(crate) fn set_processors(&mut self, processors: Processors) {
        self.processors = processors;
    }

    /// Sets what drivers need of the processors while a target has its time exactly. Reservations
    /// leave that free.
    pub(crate) fn set_driver_time(&mut self, driver_time: Vec<Reservation>) {
        self.driver_time = driver_time;
    }

    /// Sets the processors on which a target may run, for its reservation. No effect if the slot is
    /// free.
    pub(crate) fn set_target_processors(&mut self, slot: TargetId, processors: ProcessorSet) {
        let is_free = self.processors.online.is_subset(&processors);
        self.update(slot, |held| {
            held.processors = if is_free { BTreeSet::new() } else { processors };
        });
    }

    /// The reservations in force, with the ids of their targets, oldest target first.
    pub(crate) fn processor_reservations(&self) -> Vec<(u32, Reservation)> {
        let all = self.held.values();
        let mut all: Vec<(u32, Reservation)> = all
            .filter_map(|held| Some((held.id, held.reservation()?)))
            .collect();
        all.sort_by_key(|(id, _)| *id);
        all
    }

    /// Checks that a target can have the `cpu` of a contract, if that asks for more than what the
    /// target has now.
    ///
    /// # Errors
    /// If no target is held in the slot, or the reservation does not fit.
    pub(super) fn check_processor_time(
        &self,
        slot: TargetId,
        contract: &Contract,
    ) -> Result<(), RequestError> {
        let held = self.held_at(slot)?;
        match (held.entry.contract.cpu(), contract.cpu()) {
            (_, None) => Ok(()),
            (Some(before), Some(after)) if !is_larger(&after, &before) => Ok(()),
            (_, Some(after)) => self
                .admit_processor_time(held, after)
                .map_err(RequestError::NotAdmitted),
        }
    }

    /// Admits the reservation of a target again after a change of its contract. It stays as it is
    /// if it is not larger than `before`, the one in the former contract. No effect if the slot is
    /// free.
    pub(super) fn settle_processor_time(&mut self, slot: TargetId, before: Option<Slice>) {
        let Some(held) = self.held.get(&slot) else {
            return;
        };
        let why = match (before, held.entry.contract.cpu()) {
            (_, None) => None,
            (Some(before), Some(after)) if !is_larger(&after, &before) => return,
            (_, Some(after)) => self.admit_processor_time(held, after).err(),
        };
        self.update(slot, |held| held.time_refused = why);
    }

    /// Admits all reservations again: first those in force, then the others, each oldest target
    /// first. Returns the targets whose reservation is in force only since now.
    pub(super) fn readmit_processor_time(&mut self) -> Vec<Target> {
        let mut wanted: Vec<(bool, u32, TargetId)> = self
            .held
            .values()
            .filter(|held| held.entry.contract.cpu().is_some())
            .map(|held| (held.time_refused.is_some(), held.id, held.entry.id))
            .collect();
        wanted.sort_unstable();
        for (.., slot) in &wanted {
            self.update(*slot, |held| held.time_refused = Some(String::new()));
        }
        let mut healed = Vec::new();
        for (was_refused, _, slot) in wanted {
            self.settle_processor_time(slot, None);
            let held = self
                .held
                .get(&slot)
                .filter(|held| held.time_refused.is_none());
            healed.extend(
                held.filter(|_| was_refused)
                    .map(|held| held.entry.target.clone()),
            );
        }
        healed
    }

    /// Decides whether a target can have a slice beside the other reservations in force. Fails with
    /// a text for people.
    fn admit_processor_time(&self, held: &HeldTarget, slice: Slice) -> Result<(), String> {
        let (slot, target) = (held.entry.id, &held.entry.target);
        let has_time = |other: &&HeldTarget| other.reservation().is_some();
        if let Some(outer) = self.around(slot).find(has_time) {
            let outer = &outer.entry.target;
            return Err(format!(
                "refused: {target} is inside {outer}, which has cpu: its time would count twice; \
                 clear one of them with `cpu none`"
            ));
        }
        let is_inside =
            |other: &&HeldTarget| self.around(other.entry.id).any(|at| at.entry.id == slot);
        if let Some(inner) = self.held.values().filter(has_time).find(is_inside) {
            let inner = &inner.entry.target;
            return Err(format!(
                "refused: {inner} is inside {target} and has cpu: its time would count twice; \
                 clear one of them with `cpu none`"
            ));
        }
        if self.processors.online.is_empty() {
            return Err(format!(
                "refused: {target}: nothing is known of the processors of this machine"
            ));
        }
        let others = self.held.values().filter(|other| other.entry.id != slot);
        let others = others.filter_map(HeldTarget::reservation);
        let others: Vec<Reservation> = others.chain(self.driver_time.iter().cloned()).collect();
        let admitted = self.processors.admit(&others, &held.reservation_of(slice));
        admitted.map_err(|refusal| refusal.to_string())
    }
}

impl HeldTarget {
    /// The reservation of processor time in force; `None` if there is none.
    pub(crate) fn reservation(&self) -> Option<Reservation> {
        let slice = self.entry.contract.cpu()?;
        (self.time_refused.is_none()).then(|| self.reservation_of(slice))
    }

    /// A contract of the target without `cpu` while the reservation is not in force.
    pub(super) fn with_reserved_time<'c>(&self, contract: Cow<'c, Contract>) -> Cow<'c, Contract> {
        match self.time_refused {
            Some(_) => Cow::Owned(contract.without_processor_time()),
            None => contract,
        }
    }

    fn reservation_of(&self, slice: Slice) -> Reservation {
        Reservation {
            holder: self.entry.target.to_string(),
            slice,
            processors: self.processors.clone(),
        }
    }
}

/// True if the share of one slice is larger than that of another one.
fn is_larger(one: &Slice, other: &Slice) -> bool {
    let cross = |a: &Slice, b: &Slice| u128::from(a.slice().0) * u128::from(b.period().0);
    cross(one, other) > cross(other, one)
}

#[cfg(test)]
mod tests;
