//! Holds containers: targets with a network namespace of their own, which a veth pair joins to
//! this namespace. [`Kernel::place_containers`] finds the pairs of each container; it fails if the
//! interfaces cannot be listed, or if a map or an interface refuses a change.
//!
//! The packets that a container sends arrive in this namespace at this end of its pair, and packets
//! for the container leave by that end. If the container has a limit, both pass the cap stage there
//! and continue to a bridge, to the host itself or to another host. So all traffic of the container
//! is limited and counted once, with any protocol or socket. On the way to a managed link its
//! packets carry a mark of this interface, by which the program on the link finds the container's
//! class (`bpf/container.h`). A container in this namespace's own network is an ordinary cgroup.
//!
//! Two sources map a pair to its container. First, the kernel assigns ids to the other namespaces
//! that interfaces of this one lead to, and the namespace of the container's processes has the id
//! of the pair. The daemon queries this when something changes, which is late for a container that
//! just started. So the eBPF programs record the pair too: the first packet of a socket in the
//! container's cgroup that arrives by an interface identifies the container (map
//! `container_veths`). For that, the programs are on every veth pair while a container is a target.

use std::collections::{BTreeMap, BTreeSet};

use super::{Kernel, loaded};
use crate::{
    cgroup,
    device::{self, Device},
    error::KernelError,
    process,
    retry::RemoveEntry,
};

/// The connection of a container to this namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerPlacement {
    /// The container has no process.
    NotRunning,
    /// The container uses this namespace's own network.
    HostNetwork,
    /// The container has its own network; the names of this namespace's interfaces that lead there.
    OwnNetwork(Vec<String>),
}

impl Kernel {
    /// Sets which targets are containers: `groups` maps the target number of each to the path of
    /// its cgroup, or to `None` if the container does not run. Returns how each is connected to
    /// this network namespace. If the eBPF programs are loaded, writes the containers and their
    /// veth pairs to the maps of the programs. If there is a container, also attaches the programs
    /// to every veth interface.
    ///
    /// # Errors
    /// If the interfaces cannot be listed, a program cannot be attached, or a map refuses an entry.
    pub fn place_containers(
        &mut self,
        groups: &BTreeMap<u32, Option<String>>,
    ) -> Result<BTreeMap<u32, ContainerPlacement>, KernelError> {
        let mut placements = BTreeMap::new();
        let mut veths: BTreeMap<u32, u32> = BTreeMap::new();
        // The kernel assigns namespace ids to veth pairs when they are listed.
        let devices = device::list(&mut self.netlink)?;
        for (id, path) in groups {
            let placement = match path {
                Some(path) => self.placement(path, &devices)?,
                None => ContainerPlacement::NotRunning,
            };
            if let ContainerPlacement::OwnNetwork(names) = &placement {
                let own = devices.iter().filter(|d| names.contains(&d.name));
                veths.extend(own.map(|d| (d.index, *id)));
            }
            placements.insert(*id, placement);
        }
        if self.programs.is_none() {
            return Ok(placements);
        }
        self.set_containers(groups.keys().copied().collect())?;
        if !self.containers.is_empty() {
            let plan = self.installed.clone();
            self.attach_interfaces(&plan, &devices)?;
        }
        self.write_container_veths(&veths)?;
        Ok(placements)
    }

    /// The network of the processes in a cgroup.
    fn placement(
        &mut self,
        path: &str,
        devices: &[Device],
    ) -> Result<ContainerPlacement, KernelError> {
        let mut in_host_network = false;
        let mut other_namespaces: BTreeMap<u64, u32> = BTreeMap::new();
        let group = cgroup::find(path).ok();
        for pid in group.iter().flat_map(cgroup::processes) {
            match process::namespace(pid) {
                Some(namespace) if Some(namespace) == process::own_namespace() => {
                    in_host_network = true
                }
                Some(namespace) => drop(other_namespaces.insert(namespace, pid)),
                None => {} // the process ended meanwhile
            }
        }
        if other_namespaces.is_empty() {
            return Ok(match in_host_network {
                true => ContainerPlacement::HostNetwork,
                false => ContainerPlacement::NotRunning,
            });
        }
        let mut numbers = BTreeSet::new();
        for pid in other_namespaces.into_values() {
            numbers.extend(device::namespace_of(&mut self.netlink, pid).ok().flatten());
        }
        let leads =
            |d: &&Device| d.is_veth() && d.peer_namespace.is_some_and(|n| numbers.contains(&n));
        let names = devices.iter().filter(leads).map(|d| d.name.clone());
        Ok(ContainerPlacement::OwnNetwork(names.collect()))
    }

    /// Writes the set of containers for the eBPF programs.
    fn set_containers(&mut self, ids: BTreeSet<u32>) -> Result<(), KernelError> {
        if ids == self.containers {
            return Ok(());
        }
        let programs = loaded(&mut self.programs)?;
        let mut map = programs.hash::<u32, u32>("containers")?;
        for id in self.containers.difference(&ids) {
            map.remove_entry(id)?;
        }
        for id in ids.difference(&self.containers) {
            map.insert(id, id, 0)
                .map_err(|e| KernelError::bpf(format!("record container {id}"), e))?;
        }
        let mut settings = programs.settings()?;
        settings.containers = ids.len() as u32;
        programs.set_settings(settings)?;
        let none_left = ids.is_empty();
        self.containers = ids;
        if none_left {
            let devices = device::list(&mut self.netlink)?;
            let plan = self.installed.clone();
            self.attach_interfaces(&plan, &devices)?;
        }
        Ok(())
    }

    /// Writes the known mappings of pairs to containers. Entries that the eBPF programs made stay
    /// as long as their container is a target.
    fn write_container_veths(&mut self, veths: &BTreeMap<u32, u32>) -> Result<(), KernelError> {
        let mut map = loaded(&mut self.programs)?.hash::<u32, u32>("container_veths")?;
        let present: BTreeMap<u32, u32> = map.iter().flatten().collect();
        for (index, id) in &present {
            if !self.containers.contains(id) {
                map.remove_entry(index)?;
            }
        }
        for (index, id) in veths {
            if present.get(index) != Some(id) {
                map.insert(index, id, 0)
                    .map_err(|e| KernelError::bpf("record the container of a veth pair", e))?;
            }
        }
        Ok(())
    }
}
