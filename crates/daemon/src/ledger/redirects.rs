//! Redirected targets: targets whose packets go to the driver of their link, in place of the
//! kernel's classes. The ledger stores which place of the map of redirects each of them has
//! ([`RedirectPlace`]), decides which targets can be redirected ([`Ledger::redirectable`]), and
//! counts each promise once: a redirected target has its own entry in admission, and the direct
//! path's part of the link, which contains its promise too, is counted without it. The flow manager
//! decides when a target is redirected, and admits its contract at the driver.
//!
//! A target that a request gives to a driver, and whose packets no class held before, has no class
//! until the driver serves it ([`Ledger::await_driver`]). In a new class with the target's rate,
//! the packets of a running program would wait until the driver answers, and a full queue would
//! drop some of them. Nothing here fails.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::admission::TargetId;
use netnice_core::contract::{Change, Contract, Direction, IfName, Setting};
use netnice_core::link::Link;
use netnice_core::units::{Amount, Instant};

use super::{HeldTarget, Ledger, ManagedLink};

/// A place in the map of redirects that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedirectPlace {
    /// The link.
    pub link: IfName,
    /// The id of the target, which may be closed already.
    pub target: u32,
    /// The rate of the target that the direct path's part of the link contains. Not in the state
    /// file.
    pub rate: Amount,
    /// What the place is used for.
    pub phase: RedirectPhase,
    /// True if the classes have no ceiling for the target while the driver is asked: it had none
    /// before. Otherwise a running program would fill the queue of a slow class for a moment, and
    /// lose packets there. Not in the state file.
    pub begins: bool,
}

/// What a place in the map of redirects is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedirectPhase {
    /// The driver is being asked. The packets still go to the classes.
    Prepared,
    /// The packets go to the driver.
    Active,
    /// The packets go to the classes, and the driver sends what it still has.
    Ending,
}

/// A target that the driver of its link can serve in place of the kernel's classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedirectableTarget {
    /// The target's id.
    pub id: u32,
    /// The link.
    pub link: IfName,
    /// The contract for the driver: the guarantee for sending, and the weight. The limits of the
    /// target are kept before its packets reach the link.
    pub contract: Contract,
    /// The rate that the link reserves for the target.
    pub rate: Amount,
    /// True for a cell contract or a slice, which are reason enough to run a driver; false for a
    /// minimum.
    pub starts_driver: bool,
}

impl Ledger {
    /// The places in use, by number.
    pub(crate) fn redirects(&self) -> &BTreeMap<u16, RedirectPlace> {
        &self.redirects
    }

    /// Replaces the places in use, and returns the former ones.
    pub(crate) fn set_redirects(
        &mut self,
        places: BTreeMap<u16, RedirectPlace>,
    ) -> BTreeMap<u16, RedirectPlace> {
        std::mem::replace(&mut self.redirects, places)
    }

    /// The place to which a target's packets go on a link; `None`: they go to its classes.
    pub(crate) fn active_redirect(&self, id: u32, link: &IfName) -> Option<u16> {
        let active = |place: &RedirectPlace| place.phase == RedirectPhase::Active;
        let mut places = self.redirects_on(link);
        let found = places.find(|(_, place)| place.target == id && active(place));
        found.map(|(number, _)| number)
    }

    /// Whether the classes of a link have no ceiling for a target now ([`RedirectPlace::begins`]).
    pub(crate) fn begins_at_driver(&self, id: u32, link: &IfName) -> bool {
        let mut places = self.redirects_on(link);
        places.any(|(_, place)| {
            place.target == id && place.begins && place.phase == RedirectPhase::Prepared
        })
    }

    /// The targets that have no class until their driver serves them, by id, with the time at which
    /// they get one in any case.
    pub(crate) fn awaiting(&self) -> &BTreeMap<u32, Instant> {
        &self.awaiting
    }

    /// Replaces the targets that have no class until their driver serves them, and returns the
    /// former ones.
    pub(crate) fn set_awaiting(
        &mut self,
        targets: BTreeMap<u32, Instant>,
    ) -> BTreeMap<u32, Instant> {
        std::mem::replace(&mut self.awaiting, targets)
    }

    /// Gives a target no class until its driver serves it, at most until `until`.
    pub(crate) fn await_driver(&mut self, id: u32, until: Instant) {
        self.awaiting.insert(id, until);
    }

    /// True if a target has no class of a link now, because its driver is to serve it.
    pub(crate) fn awaits_driver(&self, id: u32, link: &IfName) -> bool {
        self.awaiting.contains_key(&id) && self.active_redirect(id, link).is_none()
    }

    /// True if nothing slows down what a target sends: it has no class on a link, no limit, and
    /// does not yield. A target that is not held is free too.
    pub(crate) fn sends_freely(&self, id: u32) -> bool {
        self.by_id(id).is_none_or(|held| {
            let contract = held.in_force();
            let is_limited = contract.up().is_some() || contract.both().is_some();
            !is_limited && !contract.yields() && self.link_of(&contract).is_none()
        })
    }

    /// The places of a link.
    pub(crate) fn redirects_on(
        &self,
        link: &IfName,
    ) -> impl Iterator<Item = (u16, &RedirectPlace)> {
        let places = self
            .redirects
            .iter()
            .map(|(number, place)| (*number, place));
        places.filter(move |(_, place)| place.link == *link)
    }

    /// The sum of the targets' rates that the direct path's part of a link contains.
    pub(super) fn redirected_on(&self, link: &IfName) -> Amount {
        let counted = self.redirects_on(link).filter(|(_, place)| place.counts());
        counted.map(|(_, place)| place.rate).sum()
    }

    /// True if the driver of a link keeps the promise to a target, or is being asked to.
    pub(crate) fn is_redirected(&self, id: u32, link: &IfName) -> bool {
        let mut places = self.redirects_on(link);
        places.any(|(_, place)| place.target == id && place.counts())
    }

    /// The sum of the sending rates that a link reserves for its redirected targets now, which the
    /// kernel's classes need not keep.
    pub(crate) fn promised_to_redirected(&self, link: &Link) -> Amount {
        let counted = self.redirects_on(&link.name);
        let targets = counted.filter(|(_, place)| place.counts());
        let held = targets.filter_map(|(_, place)| self.by_id(place.target));
        held.filter_map(|held| rate_on(held, link)).sum()
    }

    /// The targets that the drivers of their links can serve, those with cell contracts and slices
    /// first, else by slot. Minimums are among them only on the links of `minimums_on`.
    pub(crate) fn redirectable(&self, minimums_on: &BTreeSet<IfName>) -> Vec<RedirectableTarget> {
        let candidate = |held: &&HeldTarget| {
            let contract = &held.entry.contract;
            let is_minimum = contract.min(Direction::Up).is_some();
            contract.reserves(Direction::Up)
                && (!is_minimum || contract.on().is_some_and(|on| minimums_on.contains(on)))
        };
        let candidates: Vec<&HeldTarget> = self.held.values().filter(candidate).collect();
        if candidates.is_empty() {
            return Vec::new();
        }
        let inner = self.targets_inside();
        let possible = |held: &&HeldTarget| self.fault_with(held, &inner).is_none();
        let possible = candidates.into_iter().filter(possible);
        let mut targets: Vec<RedirectableTarget> =
            possible.filter_map(|held| self.for_driver(held)).collect();
        targets.sort_by_key(|target| !target.starts_driver);
        targets
    }

    /// Why the driver of its link cannot serve a target with a guarantee for sending; `None` if it
    /// can.
    pub(crate) fn redirect_fault(&self, held: &HeldTarget) -> Option<String> {
        self.fault_with(held, &self.targets_inside())
    }

    /// The link on which a target with this contract has a class of its own: the link that the
    /// contract names, if it is managed; without a named link, but with a weight or priority, the
    /// only managed link. Else `None`.
    pub(crate) fn link_of(&self, contract: &Contract) -> Option<&ManagedLink> {
        if let Some(name) = contract.on() {
            return self.link(name.as_str());
        }
        if contract.weight().is_none() && contract.priority().is_none() {
            return None;
        }
        let mut links = self.links();
        links.next().filter(|_| links.next().is_none())
    }

    /// For each target around others, a target inside it for each link on which that one has a
    /// class of its own.
    fn targets_inside(&self) -> BTreeMap<(TargetId, &IfName), &HeldTarget> {
        let mut inside = BTreeMap::new();
        for held in self.held.values() {
            let Some(managed) = self.link_of(&held.entry.contract) else {
                continue;
            };
            for outer in self.around(held.entry.id) {
                inside.insert((outer.entry.id, &managed.link.name), held);
            }
        }
        inside
    }

    fn fault_with(
        &self,
        held: &HeldTarget,
        inside: &BTreeMap<(TargetId, &IfName), &HeldTarget>,
    ) -> Option<String> {
        let contract = &*held.in_force();
        let Some(on) = contract.on().filter(|_| held.refused.is_none()) else {
            return Some("its guarantee is not in force".to_owned());
        };
        let has_rate = |managed: &ManagedLink| managed.link.usable(Direction::Up).is_some();
        if !self.links.get(on).is_some_and(has_rate) {
            return Some(format!("{on} has no sending rate"));
        }
        if contract.priority().is_some() {
            return Some("it has a priority, which only the kernel's classes can serve".to_owned());
        }
        if contract.delegate().is_some() {
            return Some("it is a budget, which the kernel's classes divide".to_owned());
        }
        let reserves = |outer: &&HeldTarget| {
            let contract = &outer.entry.contract;
            contract.reserves(Direction::Up) && contract.on() == Some(on)
        };
        if let Some(outer) = self.around(held.entry.id).find(reserves) {
            let outer = &outer.entry.target;
            return Some(format!("{outer} around it has a guarantee on {on} too"));
        }
        let inner = &inside.get(&(held.entry.id, on))?.entry.target;
        Some(format!("{inner} inside it has a part of {on} too"))
    }

    fn for_driver(&self, held: &HeldTarget) -> Option<RedirectableTarget> {
        let contract = &*held.in_force();
        let link = &self.links.get(contract.on()?)?.link;
        let change = Change {
            min: contract.min(Direction::Up).map(Setting::Set),
            slice: contract.slice().map(Setting::Set),
            cell: contract.cell().map(Setting::Set),
            weight: contract.weight().map(Setting::Set),
            ..Change::default()
        };
        Some(RedirectableTarget {
            id: held.id,
            link: link.name.clone(),
            contract: Contract::default().apply(&change).ok()?,
            rate: rate_on(held, link)?,
            starts_driver: contract.slice().is_some() || contract.cell().is_some(),
        })
    }
}

impl RedirectPlace {
    /// True if the direct path's part of the link contains the promise to the target.
    pub(crate) fn counts(&self) -> bool {
        self.phase != RedirectPhase::Ending
    }
}

/// The rate that a link reserves for what a target sends; `None` if it reserves nothing.
fn rate_on(held: &HeldTarget, link: &Link) -> Option<Amount> {
    let contract = &held.entry.contract;
    let usable = link.usable(Direction::Up);
    let usable = usable.filter(|_| contract.on() == Some(&link.name))?;
    let min = contract.link_min(Direction::Up, usable)?;
    min.map(Amount::from)
}

#[cfg(test)]
mod tests;
