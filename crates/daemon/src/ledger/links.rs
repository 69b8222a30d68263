//! Managed links: what they carry, and what of it is promised.

use netnice_core::admission;
use netnice_core::contract::{Direction, IfName};
use netnice_core::link::Link;
use netnice_core::units::Amount;

use super::{Held, Ledger};
use crate::denied::Denied;

/// A managed link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Managed {
    /// What it carries.
    pub link: Link,
    /// The user who said so.
    pub by: u32,
}

impl Ledger {
    /// The managed links, by name.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Managed> {
        self.links.values()
    }

    /// A managed link.
    pub(crate) fn link(&self, name: &str) -> Option<&Managed> {
        self.links
            .values()
            .find(|managed| managed.link.name.as_str() == name)
    }

    /// The managed links, as admission wants them.
    pub(crate) fn capacities(&self) -> Vec<Link> {
        self.links
            .values()
            .map(|managed| managed.link.clone())
            .collect()
    }

    /// What is promised on a link, up and down, to outermost targets and to the direct path.
    pub(crate) fn promised(&self, link: &Link) -> [Amount; 2] {
        let [up, down] = self.promised_to_targets(link);
        [[up, self.needed(&link.name)].into_iter().sum(), down]
    }

    /// What is promised on a link to targets that nothing with a promise on it contains, up and down.
    pub(crate) fn promised_to_targets(&self, link: &Link) -> [Amount; 2] {
        let own = |held: &Held, direction| {
            let on = held.entry.contract.on().is_some_and(|on| *on == link.name);
            let usable = link.usable(direction).filter(|_| on)?;
            held.entry.contract.link_min(direction, usable).flatten()
        };
        Direction::ALL.map(|direction| {
            let outermost = |held: &&Held| {
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

    /// What is promised for sending on a link to each target that names it.
    pub(crate) fn promised_to_each(&self, link: &Link) -> impl Iterator<Item = (String, Amount)> {
        let usable = link.usable(Direction::Up);
        self.held().filter_map(move |held| {
            let contract = &held.entry.contract;
            let on = contract.on().is_some_and(|on| *on == link.name);
            let min = contract.link_min(Direction::Up, usable.filter(|_| on)?)??;
            Some((held.entry.target.to_string(), min.into()))
        })
    }

    /// Manages a link, or changes what it carries; refused if what is promised would not fit.
    pub(crate) fn manage(&mut self, link: Link, by: u32) -> Result<(), Denied> {
        let grant = admission::admit_link(&self.capacities(), &self.entries(), link)?;
        let link = grant.into_link();
        self.links.insert(link.name.clone(), Managed { link, by });
        Ok(())
    }

    /// Gives a link back; refused while something is promised on it.
    pub(crate) fn unmanage(&mut self, name: &IfName) -> Result<(), Denied> {
        admission::admit_unmanage(&self.capacities(), &self.entries(), name)?;
        self.links.remove(name);
        Ok(())
    }

    /// Tells what a link carries now, whatever was promised, and admits all anew: what no longer fits is degraded.
    #[cfg(test)]
    pub(crate) fn relink(&mut self, managed: Managed) {
        self.links.insert(managed.link.name.clone(), managed);
        self.readmit();
    }

    /// Takes in a link as it was managed before a restart.
    pub(crate) fn restore_link(&mut self, managed: Managed) {
        self.links.insert(managed.link.name.clone(), managed);
    }
}

/// A managed link in words.
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
