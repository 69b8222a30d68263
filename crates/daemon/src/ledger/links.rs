//! The managed links of the ledger ([`ManagedLink`]): their capacity, and the rates that are
//! promised on them. Managing a link fails if the promises on it do not fit. No longer managing it
//! fails if it is not managed, or if something is promised on it.

use netnice_core::admission;
use netnice_core::contract::{Direction, IfName};
use netnice_core::link::Link;
use netnice_core::units::Amount;

use super::{HeldTarget, Ledger};
use crate::error::RequestError;

/// A managed link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagedLink {
    /// The link with its capacity.
    pub link: Link,
    /// The uid of the user who manages it; for the policy, that of [`crate::peer::POLICY`].
    pub by: u32,
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

    /// The name of each target with a promise for sending on a link, and the promised rate. A
    /// target inside another one is listed too.
    pub(crate) fn promised_to_each(&self, link: &Link) -> impl Iterator<Item = (String, Amount)> {
        let usable = link.usable(Direction::Up);
        self.held().filter_map(move |held| {
            let contract = &held.entry.contract;
            let on = contract.on().is_some_and(|on| *on == link.name);
            let min = contract.link_min(Direction::Up, usable.filter(|_| on)?)??;
            Some((held.entry.target.to_string(), min.into()))
        })
    }

    /// Manages a link, or changes its capacity. `by` is the uid of the user.
    ///
    /// # Errors
    /// If the promises on it do not fit the capacity.
    pub(crate) fn manage(&mut self, link: Link, by: u32) -> Result<(), RequestError> {
        let grant = admission::admit_link(&self.capacities(), &self.entries(), link)?;
        let link = grant.into_link();
        self.links
            .insert(link.name.clone(), ManagedLink { link, by });
        Ok(())
    }

    /// Stops managing a link.
    ///
    /// # Errors
    /// If the link is not managed, or something is promised on it.
    pub(crate) fn unmanage(&mut self, name: &IfName) -> Result<(), RequestError> {
        admission::admit_unmanage(&self.capacities(), &self.entries(), name)?;
        self.links.remove(name);
        Ok(())
    }

    /// Sets a link's capacity whatever is promised on it, and admits everything again: targets that
    /// no longer fit become degraded.
    #[cfg(test)]
    pub(crate) fn relink(&mut self, managed: ManagedLink) {
        self.links.insert(managed.link.name.clone(), managed);
        self.readmit();
    }

    /// Adds a link as the state file or the kernel has it, without admission.
    pub(crate) fn restore_link(&mut self, managed: ManagedLink) {
        self.links.insert(managed.link.name.clone(), managed);
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
