//! Containers: targets that have a network of their own, which is joined to ours by a pair of interfaces.
//!
//! What a container sends arrives in this namespace by our end of the pair, and what it receives leaves by it; both pass
//! the cap stage there and go on as before, be it to a bridge, to the host itself or away. So all its traffic is held,
//! whatever protocol or socket it has, and counted once. A container in this namespace's own network is a control group
//! like any other.
//!
//! Which pair is whose? The kernel numbers the other namespaces that interfaces of ours lead to; a process of the
//! container has the same number. That is asked when something changes. A container that starts would be known late by
//! that, so the programs learn it too: the first packet of a socket in the container's control group that arrives by an
//! interface tells whose that is ([`boxes`](../../bpf/maps.h)), and for that they are on every pair while a container is
//! a target.

use std::collections::{BTreeMap, BTreeSet};

use super::{Kernel, loaded};
use crate::{
    again::Forget,
    cgroup,
    device::{self, Device},
    error::KernelError,
    process,
};

/// How a container is joined to this namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Housing {
    /// No process is in it.
    Empty,
    /// It uses this namespace's own network.
    Here,
    /// It has a network of its own; the interfaces of this namespace that lead there.
    Apart(Vec<String>),
}

impl Kernel {
    /// Says which targets are containers, with the control group of each that runs; tells how they are joined to this
    /// namespace, and holds what passes there.
    pub fn house(
        &mut self,
        groups: &BTreeMap<u32, Option<String>>,
    ) -> Result<BTreeMap<u32, Housing>, KernelError> {
        let mut housings = BTreeMap::new();
        let mut boxes: BTreeMap<u32, u32> = BTreeMap::new();
        // Pairs are numbered when they are listed.
        let devices = device::list(&mut self.route)?;
        for (id, path) in groups {
            let housing = match path {
                Some(path) => self.housing(path, &devices)?,
                None => Housing::Empty,
            };
            if let Housing::Apart(names) = &housing {
                let own = devices.iter().filter(|d| names.contains(&d.name));
                boxes.extend(own.map(|d| (d.index, *id)));
            }
            housings.insert(*id, housing);
        }
        if self.programs.is_none() {
            return Ok(housings);
        }
        self.name_containers(groups.keys().copied().collect())?;
        if !self.containers.is_empty() {
            let plan = self.installed.clone();
            self.attach_interfaces(&plan, &devices)?;
        }
        self.write_boxes(&boxes)?;
        Ok(housings)
    }

    /// Where a control group's processes have their network.
    fn housing(&mut self, path: &str, devices: &[Device]) -> Result<Housing, KernelError> {
        let mut here = false;
        let mut beyond: BTreeMap<u64, u32> = BTreeMap::new();
        let group = cgroup::find(path).ok();
        for pid in group.iter().flat_map(cgroup::processes) {
            match process::namespace(pid) {
                Some(namespace) if Some(namespace) == process::own_namespace() => here = true,
                Some(namespace) => drop(beyond.insert(namespace, pid)),
                None => {} // ended meanwhile
            }
        }
        if beyond.is_empty() {
            return Ok(match here {
                true => Housing::Here,
                false => Housing::Empty,
            });
        }
        let mut numbers = BTreeSet::new();
        for pid in beyond.into_values() {
            numbers.extend(device::namespace_of(&mut self.route, pid).ok().flatten());
        }
        let leads = |d: &&Device| d.is_veth() && d.beyond.is_some_and(|n| numbers.contains(&n));
        let names = devices.iter().filter(leads).map(|d| d.name.clone());
        Ok(Housing::Apart(names.collect()))
    }

    /// Tells the programs which targets are containers.
    fn name_containers(&mut self, ids: BTreeSet<u32>) -> Result<(), KernelError> {
        if ids == self.containers {
            return Ok(());
        }
        let programs = loaded(&mut self.programs)?;
        let mut map = programs.hash::<u32, u32>("containers")?;
        for id in self.containers.difference(&ids) {
            map.forget(id)?;
        }
        for id in ids.difference(&self.containers) {
            map.insert(id, id, 0)
                .map_err(|e| KernelError::bpf(format!("name container {id}"), e))?;
        }
        let mut settings = programs.settings()?;
        settings.containers = ids.len() as u32;
        programs.set_settings(settings)?;
        let none_left = ids.is_empty();
        self.containers = ids;
        if none_left {
            let devices = device::list(&mut self.route)?;
            let plan = self.installed.clone();
            self.attach_interfaces(&plan, &devices)?;
        }
        Ok(())
    }

    /// Tells the programs whose pairs are known. What they have learned themselves stays, as long as it is of a
    /// container that is held.
    fn write_boxes(&mut self, boxes: &BTreeMap<u32, u32>) -> Result<(), KernelError> {
        let mut map = loaded(&mut self.programs)?.hash::<u32, u32>("boxes")?;
        let told: BTreeMap<u32, u32> = map.iter().flatten().collect();
        for (index, id) in &told {
            if !self.containers.contains(id) {
                map.forget(index)?;
            }
        }
        for (index, id) in boxes {
            if told.get(index) != Some(id) {
                map.insert(index, id, 0)
                    .map_err(|e| KernelError::bpf("say whose a pair of interfaces is", e))?;
            }
        }
        Ok(())
    }
}
