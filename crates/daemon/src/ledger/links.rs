//! The managed links of the ledger ([`ManagedLink`]): their capacity, and the rates that are
//! promised on them. Managing a link fails if the promises on it do not fit, unless the caller
//! allows that targets become degraded. No longer managing it fails if it is not managed, or if
//! something is promised on it.
//!
//! If a link becomes too slow for the promises on it, the direct path's part comes down to its
//! smallest size, and the guarantees of targets are admitted one by one, as after a restart: outer
//! targets first, else oldest target first. A guarantee that does not fit is not in force any more,
//! and its target is degraded. A guarantee that fits is not touched. [`Ledger::heal`] admits the
//! degraded targets again when there is room.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netnice_core::admission::{self, Reason, Refusal, TargetEntry, TargetId};
use netnice_core::contract::{Direction, IfName, Slice};
use netnice_core::link::classes::LinkClasses;
use netnice_core::link::{CapacitySource, Link};
use netnice_core::units::{Amount, Rate};

use super::{HeldTarget, Ledger};
use crate::error::RequestError;

/// A managed link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagedLink {
    /// The link with its capacity.
    pub link: Link,
    /// The uid of the user who manages it; for the policy, that of [`crate::peer::POLICY`].
    pub by: u32,
    /// The hosts that are probed for an estimated rate; empty without one.
    pub reflectors: Vec<IpAddr>,
    /// The classes of its overbooked server, which direct flows share.
    pub classes: LinkClasses,
}

impl ManagedLink {
    /// True if the rate of a direction is the one that the interface's driver reports.
    pub(crate) fn follows_driver(&self) -> bool {
        let capacities = [self.link.up, self.link.down];
        let mut sources = capacities.iter().flatten().map(|capacity| capacity.source);
        sources.any(|source| source == CapacitySource::Driver)
    }
}

impl Ledger {
    /// The managed links, by name.
    pub(crate) fn links(&self) -> impl Iterator<Item = &ManagedLink> {
        self.links.values()
    }

    /// The managed link of this name; `None` if it is not managed.
    pub(crate) fn link(&self, name: &str) -> Option<&ManagedLink> {
        self.links
            .values()
            .find(|managed| managed.link.name.as_str() == name)
    }

    /// The managed links, for admission.
    pub(crate) fn capacities(&self) -> Vec<Link> {
        self.links
            .values()
            .map(|managed| managed.link.clone())
            .collect()
    }

    /// The rates promised on a link, for sending and for receiving: to targets, as
    /// [`Ledger::promised_to_targets`] adds them up, and for sending to the direct path.
    pub(crate) fn promised(&self, link: &Link) -> [Amount; 2] {
        let [up, down] = self.promised_to_targets(link);
        [[up, self.needed(&link.name)].into_iter().sum(), down]
    }

    /// The sum of the rates promised to targets on a link, for sending and for receiving. A target
    /// inside another one with a promise in that direction is not counted, because the outer
    /// promise contains its own.
    pub(crate) fn promised_to_targets(&self, link: &Link) -> [Amount; 2] {
        let own = |held: &HeldTarget, direction| {
            let on = held.entry.contract.on().is_some_and(|on| *on == link.name);
            let usable = link.usable(direction).filter(|_| on)?;
            held.entry.contract.link_min(direction, usable).flatten()
        };
        Direction::ALL.map(|direction| {
            let outermost = |held: &&HeldTarget| {
                let mut around = self.around(held.entry.id);
                around.all(|outer| own(outer, direction).is_none())
            };
            let amounts = self.held.values().filter(outermost);
            amounts
                .filter_map(|held| own(held, direction))
                .map(Amount::from)
                .sum()
        })
    }

    /// The name of each target with a promise for sending on a link that the kernel's classes keep,
    /// and the promised rate. A target inside another one is listed too.
    pub(crate) fn promised_to_each(&self, link: &Link) -> impl Iterator<Item = (String, Amount)> {
        let usable = link.usable(Direction::Up);
        self.held().filter_map(move |held| {
            let contract = &held.entry.contract;
            let on = contract.on().is_some_and(|on| *on == link.name);
            let min = contract.link_min(Direction::Up, usable.filter(|_| on)?)??;
            if self.is_redirected(held.id, &link.name) {
                return None;
            }
            Some((held.entry.target.to_string(), min.into()))
        })
    }

    /// Manages a link, or changes its capacity. `by` is the uid of the user.
    ///
    /// # Errors
    /// If the promises on it do not fit the capacity.
    pub(crate) fn manage(&mut self, link: Link, by: u32) -> Result<(), RequestError> {
        let entries = self.entries_before_users();
        let grant = admission::admit_link(&self.capacities(), &entries, link)?;
        let link = grant.into_link();
        let managed = self.managed(link, by);
        self.links.insert(managed.link.name.clone(), managed);
        Ok(())
    }

    /// A link with the classes that the present one of this name has, and with its reflectors if a
    /// rate is an estimate.
    fn managed(&self, link: Link, by: u32) -> ManagedLink {
        let present = self.links.get(&link.name);
        let classes = present.map_or_else(LinkClasses::default, |present| present.classes);
        let estimated = present.filter(|_| link.is_estimated());
        let reflectors = estimated.map_or_else(Vec::new, |present| present.reflectors.clone());
        ManagedLink {
            link,
            by,
            reflectors,
            classes,
        }
    }

    /// Sets the classes of a managed link. The flow manager admits them.
    pub(crate) fn set_classes(&mut self, name: &IfName, classes: LinkClasses) {
        if let Some(managed) = self.links.get_mut(name) {
            managed.classes = classes;
        }
    }

    /// Sets the hosts that are probed for the estimated rate of a managed link. Without such a rate
    /// or link, nothing changes.
    pub(crate) fn set_reflectors(&mut self, name: &IfName, reflectors: Vec<IpAddr>) {
        if let Some(managed) = self.links.get_mut(name)
            && managed.link.is_estimated()
        {
            managed.reflectors = reflectors;
        }
    }

    /// Sets the present estimates of a link, each within its bounds. What can be promised does not
    /// change. Returns whether a rate has changed.
    pub(crate) fn set_estimates(&mut self, name: &IfName, rates: [Option<Rate>; 2]) -> bool {
        let Some(managed) = self.links.get_mut(name) else {
            return false;
        };
        let mut has_changed = false;
        let link = &mut managed.link;
        for (capacity, rate) in [&mut link.up, &mut link.down].into_iter().zip(rates) {
            if let (Some(capacity), Some(rate)) = (capacity, rate)
                && let Some(bounds) = capacity.bounds()
            {
                let rate = bounds.clamp(rate);
                has_changed |= capacity.rate != rate;
                capacity.rate = rate;
            }
        }
        has_changed
    }

    /// As [`Ledger::manage`]. If the link is too slow for the promises on it, targets become
    /// degraded until the rest fits.
    ///
    /// # Errors
    /// If a direction with promises would not be managed any more, or a slice would exceed a limit
    /// because the capacity is too large.
    pub(crate) fn manage_or_degrade(&mut self, link: Link, by: u32) -> Result<(), RequestError> {
        let entries = self.entries_before_users();
        let admitted = admission::admit_link(&self.capacities(), &entries, link.clone());
        if let Err(refusal) = admitted
            && !is_too_slow(&refusal)
        {
            return Err(refusal.into());
        }
        let managed = self.managed(link, by);
        self.set_capacity(managed);
        Ok(())
    }

    /// Sets a link's capacity whatever is promised on it. Targets that do not fit become degraded.
    pub(crate) fn set_capacity(&mut self, managed: ManagedLink) {
        let link = &managed.link;
        let entries = self.entries_before_users();
        let fits = admission::admit_link(&self.capacities(), &entries, link.clone()).is_ok();
        let name = link.name.clone();
        self.links.insert(name.clone(), managed);
        if !fits {
            self.degrade_surplus(&name);
        }
        self.keep_budgets();
    }

    /// Takes those guarantees on a link out of force that do not fit.
    fn degrade_surplus(&mut self, name: &IfName) {
        // Only targets with a guarantee, and those around them, count in the sums of admission.
        let mut counted: BTreeSet<TargetId> = BTreeSet::new();
        for held in self.held.values() {
            if held.entry.contract.is_guaranteed() {
                counted.insert(held.entry.id);
                counted.extend(self.around(held.entry.id).map(|outer| outer.entry.id));
            }
        }
        let mut by_age: Vec<&HeldTarget> =
            counted.iter().filter_map(|slot| self.get(*slot)).collect();
        by_age.sort_by_key(|held| held.id);
        // The minimums of users are part of their budgets.
        let targets = by_age.into_iter().map(|held| TargetEntry {
            contract: held.without_users_minimums(),
            ..held.entry.clone()
        });
        let wanted: Vec<TargetEntry> = self
            .least_part_entry(name)
            .into_iter()
            .chain(targets)
            .collect();
        for (entry, answer) in admission::readmit(&self.capacities(), wanted) {
            let Err(refusal) = answer else { continue };
            let Some(held) = self.held.get_mut(&entry.id) else {
                continue;
            };
            let contract = &held.entry.contract;
            if contract.is_guaranteed() && contract.on() == Some(name) {
                // The class on the link stays, without a guarantee.
                held.entry.contract = contract.without_guarantees();
                held.refused = Some(refusal.to_string());
            }
        }
    }

    /// True if a degraded target is neither inside another one nor around one, and its guarantee is
    /// larger than what its link has left, so that it need not be tried. A try is a pass over all
    /// targets, and many targets can be degraded after a fall of a link's rate.
    pub(super) fn exceeds_room(&self, slot: TargetId) -> bool {
        let Some(held) = self.get(slot).filter(|held| held.refused.is_some()) else {
            return false;
        };
        let claimed = held.claims.effective();
        let managed = held.entry.contract.on().and_then(|on| self.links.get(on));
        let Some(link) = managed.map(|managed| &managed.link) else {
            return false;
        };
        let names_other = claimed.on().is_some_and(|on| *on != link.name);
        if names_other || held.aside.is_some() || held.entry.parent.is_some() {
            return false;
        }
        let promised = self.promised(link);
        let exceeds = |direction: Direction| {
            let usable = link.usable(direction)?;
            let min = Amount::from(claimed.link_min(direction, usable)??);
            Some(min > Amount::from(usable).less(promised[direction as usize]))
        };
        let is_too_large = Direction::ALL.iter().any(|d| exceeds(*d) == Some(true));
        is_too_large && self.children(slot).next().is_none()
    }

    /// The degraded targets with a guarantee on a link, by age.
    pub(crate) fn degraded_on<'l>(&'l self, name: &'l IfName) -> Vec<&'l HeldTarget> {
        let is_on =
            |held: &&HeldTarget| held.refused.is_some() && held.entry.contract.on() == Some(name);
        let mut degraded: Vec<&HeldTarget> = self.held.values().filter(is_on).collect();
        degraded.sort_by_key(|held| held.id);
        degraded
    }

    /// Stops managing a link. Its classes end, if no flow is open on it.
    ///
    /// # Errors
    /// If the link is not managed, or something is promised on it.
    pub(crate) fn unmanage(&mut self, name: &IfName) -> Result<(), RequestError> {
        if self.direct_part(name).is_some_and(|part| part.flows == 0) {
            self.set_direct_part(name, None);
        }
        admission::admit_unmanage(&self.capacities(), &self.entries(), name)?;
        self.links.remove(name);
        Ok(())
    }

    /// Manages a link again as it was, after it was cleared.
    ///
    /// # Errors
    /// As [`Ledger::manage`].
    pub(crate) fn restore_cleared_link(
        &mut self,
        managed: ManagedLink,
    ) -> Result<(), RequestError> {
        let name = managed.link.name.clone();
        self.manage(managed.link, managed.by)?;
        self.set_reflectors(&name, managed.reflectors);
        self.set_classes(&name, managed.classes);
        Ok(())
    }

    /// Adds a link as the state file or the kernel has it, without admission.
    pub(crate) fn restore_link(&mut self, managed: ManagedLink) {
        self.links.insert(managed.link.name.clone(), managed);
    }
}

/// True if a link is refused because it is too slow for the promises on it.
fn is_too_slow(refusal: &Refusal) -> bool {
    match refusal.reason() {
        Reason::LinkTooSlow(slow) => !slow.too_large,
        Reason::SliceTooSmall { .. } => true,
        _ => false,
    }
}

/// Describes a managed link in a message: its rates, their sources, and what can be promised.
pub(crate) fn describe_link(link: &Link) -> String {
    let mut text = format!("{} is managed", link.name);
    for direction in Direction::ALL {
        if let Some(capacity) = link.capacity(direction) {
            let word = direction.word();
            text.push_str(&format!(", {word} {} ({})", capacity.rate, capacity.source));
            if let Some(usable) = link.usable(direction).filter(|u| *u != capacity.rate) {
                text.push_str(&format!(", {usable:#} of it can be promised"));
            }
        }
    }
    text
}

/// A slice in the grammar of contracts, without `extra`.
pub(crate) fn slice_text(slice: &Slice) -> String {
    format!("{}/{}", slice.slice(), slice.period())
}

#[cfg(test)]
mod tests;
