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
use netnice_core::contract::{Contract, ProcessorTime, Slice};
use netnice_core::target::Target;

use super::{AutoTime, HeldTarget, Ledger};
use crate::error::RequestError;

/// What drivers need of the processors while a target has its time exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverTime {
    /// What they ask for, which new reservations leave free.
    pub asked: Vec<Reservation>,
    /// What they need at least, for which a reservation in force ends.
    pub least: Vec<Reservation>,
}

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
    pub(crate) fn set_driver_time(&mut self, driver_time: DriverTime) {
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

    /// Sets what the direct flows of a target need, or why that is unknown, for `cpu auto`.
    /// [`Ledger::heal`] follows it. No effect if the slot is free.
    pub(crate) fn set_needed_time(
        &mut self,
        slot: TargetId,
        needed: Result<Option<Slice>, String>,
    ) {
        self.update(slot, |held| match needed {
            Ok(needed) => (held.auto.needed, held.auto.unknown) = (needed, None),
            Err(why) => (held.auto.needed, held.auto.unknown) = (None, Some(why)),
        });
    }

    /// Checks that a target can have the `cpu` of a contract, if that asks for more than what the
    /// target has now. A target that has `cpu auto` keeps it, whatever its flows need by now.
    ///
    /// # Errors
    /// If no target is held in the slot, or the reservation does not fit.
    pub(super) fn check_processor_time(
        &self,
        slot: TargetId,
        contract: &Contract,
    ) -> Result<(), RequestError> {
        let held = self.held_at(slot)?;
        if contract.has_auto_time() {
            if held.entry.contract.has_auto_time() {
                return Ok(());
            }
            if let Some(why) = &held.auto.unknown {
                let target = &held.entry.target;
                let text = format!("refused: {target}: cpu auto: {why}");
                return Err(RequestError::NotAdmitted(text));
            }
        }
        match (held.granted_time(), held.asked(contract)) {
            (_, None) => Ok(()),
            (Some(before), Some(after)) if !after.is_larger_than(&before) => Ok(()),
            (_, Some(after)) => self
                .admit_processor_time(held, after, &self.driver_time.asked)
                .map_err(RequestError::NotAdmitted),
        }
    }

    /// Admits the reservation of a target again after a change of its contract. It stays as it is
    /// if it is not larger than `before`, the one before the change. No effect if the slot is free.
    pub(super) fn settle_processor_time(&mut self, slot: TargetId, before: Option<Slice>) {
        let Some(held) = self.held.get(&slot) else {
            return;
        };
        let asked = held.asked(&held.entry.contract);
        // What is unknown stays as it was.
        let asked = asked.or_else(|| held.granted_time());
        let why = match (before, asked) {
            (_, None) => None,
            (Some(before), Some(after)) if !after.is_larger_than(&before) => {
                held.time_refused.clone()
            }
            (_, Some(after)) => self
                .admit_processor_time(held, after, &self.driver_time.asked)
                .err(),
        };
        self.update(slot, |held| {
            held.time_refused = why;
            match held.entry.contract.cpu() {
                Some(ProcessorTime::Auto { .. }) => held.auto.granted = asked,
                _ => held.auto = AutoTime::default(),
            }
        });
    }

    /// Admits all reservations again: first those in force, beside what drivers need at least, then
    /// the others, each oldest target first, and last what `cpu auto` needs beyond what it has.
    /// Returns the targets whose reservation is in force only since now.
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
        for (was_refused, _, slot) in &wanted {
            let Some(held) = self.held.get(slot) else {
                continue;
            };
            let granted = held.granted_time().filter(|_| !was_refused);
            let asked = granted.or_else(|| held.asked(&held.entry.contract));
            let drivers = match was_refused {
                true => &self.driver_time.asked,
                false => &self.driver_time.least,
            };
            let refused =
                asked.and_then(|asked| self.admit_processor_time(held, asked, drivers).err());
            let target = held.entry.target.clone();
            if *was_refused && refused.is_none() {
                healed.push(target);
            }
            self.update(*slot, |held| {
                let is_auto = held.entry.contract.has_auto_time();
                held.auto.granted = asked.filter(|_| is_auto);
                held.time_refused = refused;
            });
        }
        for (.., slot) in wanted {
            self.follow_needed_time(slot);
        }
        healed
    }

    /// Gives a target with `cpu auto` what its flows need, or says why not. While it has nothing
    /// because that does not fit, nothing changes.
    fn follow_needed_time(&mut self, slot: TargetId) {
        let Some(held) = self.held.get(&slot) else {
            return;
        };
        let contract = &held.entry.contract;
        if !contract.has_auto_time() || held.time_refused.is_some() || held.auto.unknown.is_some() {
            return;
        }
        let needed = held.auto.needed;
        let is_more = match (held.auto.granted, needed) {
            (Some(granted), Some(needed)) => needed.is_larger_than(&granted),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        let asked = held.asked(contract).filter(|_| is_more);
        let drivers = &self.driver_time.asked;
        let short = asked.and_then(|asked| self.admit_processor_time(held, asked, drivers).err());
        self.update(slot, |held| match short {
            None => (held.auto.granted, held.auto.short) = (needed, None),
            short => held.auto.short = short,
        });
    }

    /// Decides whether a target can have a slice beside the other reservations in force and those
    /// of drivers. Fails with a text for people.
    fn admit_processor_time(
        &self,
        held: &HeldTarget,
        slice: Slice,
        drivers: &[Reservation],
    ) -> Result<(), String> {
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
        let others: Vec<Reservation> = others.chain(drivers.iter().cloned()).collect();
        let admitted = self.processors.admit(&others, &held.reservation_of(slice));
        admitted.map_err(|refusal| refusal.to_string())
    }
}

impl HeldTarget {
    /// The reservation of processor time in force; `None` if there is none.
    pub(crate) fn reservation(&self) -> Option<Reservation> {
        self.reserved().map(|slice| self.reservation_of(slice))
    }

    /// The slice of processor time in force; `None` if there is none.
    pub(crate) fn reserved(&self) -> Option<Slice> {
        self.granted_time().filter(|_| self.time_refused.is_none())
    }

    /// The slice that the contract has, in force or not.
    pub(super) fn granted_time(&self) -> Option<Slice> {
        match self.entry.contract.cpu()? {
            ProcessorTime::Slice(slice) => Some(slice),
            ProcessorTime::Auto { extra } => with_extra(self.auto.granted?, extra),
        }
    }

    /// The slice that a contract asks for; `None`: none, or nothing is needed now.
    fn asked(&self, contract: &Contract) -> Option<Slice> {
        match contract.cpu()? {
            ProcessorTime::Slice(slice) => Some(slice),
            ProcessorTime::Auto { extra } => with_extra(self.auto.needed?, extra),
        }
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

fn with_extra(slice: Slice, extra: bool) -> Option<Slice> {
    // A slice stays within its bounds.
    Slice::new(slice.slice(), slice.period(), extra).ok()
}

#[cfg(test)]
mod tests;
