//! Containers: targets with a network namespace of their own, which a veth pair joins to this
//! namespace.
//!
//! The packets that a container sends arrive in this namespace at the pair's near end, and packets
//! for the container leave by it. Both pass the cap stage there and continue to a bridge, to the
//! host itself or to another host. So all traffic of the container is held, with any protocol or
//! socket, and counted once. A container in this namespace's own network is an ordinary cgroup.
//!
//! Two sources map a pair to its container. First, the kernel assigns ids to the other namespaces
//! that interfaces of this one lead to, and a process of the container has the same id. The daemon
//! queries this when something changes, which is late for a container that just started. So the
//! eBPF programs record the pair too: the first packet of a socket in the container's cgroup that
//! arrives by an interface identifies the container ([`boxes`](../../bpf/maps.h)). For that the
//! programs are on every veth pair while a container is a target.

use std::collections::{BTreeMap, BTreeSet};

use super::{Kernel, loaded};
use crate::{
    again::Forget,
    cgroup,
    device::{self, Device},
    error::KernelError,
    process,
};

/// The connection of a container to this namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Housing {
    /// The container has no process.
    Empty,
    /// The container uses this namespace's own network.
    Here,
    /// The container has its own network; the names of this namespace's interfaces that lead there.
    Apart(Vec<String>),
}

impl Kernel {
    /// Sets which targets are containers, each with the path of its cgroup if it runs. Returns how
    /// each is joined to this namespace, and attaches the programs to the joining interfaces.
    pub fn house(
        &mut self,
        groups: &BTreeMap<u32, Option<String>>,
    ) -> Result<BTreeMap<u32, Housing>, KernelError> {
        let mut housings = BTreeMap::new();
        let mut boxes: BTreeMap<u32, u32> = BTreeMap::new();
        // The kernel assigns namespace ids to veth pairs when they are listed.
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

    /// The network of the processes in a cgroup.
    fn housing(&mut self, path: &str, devices: &[Device]) -> Result<Housing, KernelError> {
        let mut here = false;
        let mut beyond: BTreeMap<u64, u32> = BTreeMap::new();
        let group = cgroup::find(path).ok();
        for pid in group.iter().flat_map(cgroup::processes) {
            match process::namespace(pid) {
                Some(namespace) if Some(namespace) == process::own_namespace() => here = true,
                Some(namespace) => drop(beyond.insert(namespace, pid)),
                None => {} // the process ended meanwhile
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

    /// Writes the set of containers for the eBPF programs.
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

    /// Writes the known mappings of pairs to containers. Entries that the eBPF programs made stay
    /// as long as their container is a target.
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
