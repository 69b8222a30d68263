//! Attaches the eBPF programs to interfaces, and assigns each interface the return slots by which
//! packets come back to it from a stage. [`Kernel::reconcile`] repairs what other programs removed.
//! If more than [`MAX_INTERFACES`] (4,096) interfaces of the namespace need the programs, the
//! change fails with [`KernelError::TooManyInterfaces`]. Calls also fail if the programs are not
//! loaded, or if the kernel does not list the interfaces or refuses a program or a map entry.

use std::{
    collections::BTreeSet,
    fs,
    os::fd::{AsFd, OwnedFd},
};

use super::{Kernel, entries, find_device, loaded, random, stages};
use crate::{
    abi,
    device::{self, Device},
    error::KernelError,
    plan::Plan,
    programs::{Hook, Programs},
    rcu::ShortGracePeriods,
    retry::{self, RemoveEntry, with_retries},
};

/// An interface that has netnice's programs.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub name: String,
    pub iface: abi::Iface,
}

/// Where the packets that go to the classes of a managed link are counted.
#[derive(Debug)]
pub struct PathCounter {
    /// The place in the map.
    pub place: u32,
    /// The kernel's number of the map. It tells a map from one that was made later.
    pub map_id: u32,
    /// The map, an array of [`abi::PathCount`] for mmap(2).
    pub map: OwnedFd,
}

impl Kernel {
    /// Attaches the programs to every interface that needs them, and writes its description to the
    /// map that they read. Detaches the programs from all other interfaces. Fails with
    /// [`KernelError::TooManyInterfaces`] if too many need the programs; also if the kernel does
    /// not list the interfaces, or refuses a program or a map entry.
    pub(super) fn attach_interfaces(
        &mut self,
        plan: &Plan,
        devices: &[Device],
    ) -> Result<(), KernelError> {
        let managed = |d: &Device| d.is_port() && plan.links.contains_key(&d.name);
        let may_lead_to_container = |d: &Device| d.is_veth() && !self.containers.is_empty();
        let mut wanted: Vec<&Device> = devices
            .iter()
            .filter(|d| d.carries_own_packets() || managed(d) || may_lead_to_container(d))
            .collect();
        if wanted.len() > MAX_INTERFACES {
            return Err(KernelError::TooManyInterfaces {
                count: wanted.len(),
                max: MAX_INTERFACES,
            });
        }
        // The description of an interface over another contains the slot of the lower one.
        wanted.sort_by_key(|d| d.lower.is_some());
        let gone: Vec<u32> = self
            .interfaces
            .keys()
            .filter(|index| !wanted.iter().any(|d| d.index == **index))
            .copied()
            .collect();
        let added = wanted
            .iter()
            .filter(|d| !self.interfaces.contains_key(&d.index))
            .count();
        let _short_grace_periods = ShortGracePeriods::for_batch(&self.runtime, gone.len() + added);
        for index in gone {
            self.remove_interface(index)?;
        }
        if !plan.cap.is_empty() && wanted.iter().any(|d| d.is_loopback()) {
            self.set_loopback_settings()?;
        }
        for device in wanted {
            if let Err(error) = self.attach(device, plan) {
                // Interfaces of containers come and go within seconds; a removed one needs nothing.
                let present = device::list(&mut self.netlink)?;
                if present.iter().any(|d| d.index == device.index) {
                    if !self.interfaces.contains_key(&device.index) {
                        // The next try writes these entries again.
                        let _ = self.remove_interface_entries(device.index, None);
                    }
                    return Err(error);
                }
                self.remove_interface(device.index)?;
            }
        }
        if plan.cap.is_empty() {
            self.restore_loopback_settings();
        }
        Ok(())
    }

    fn attach(&mut self, device: &Device, plan: &Plan) -> Result<(), KernelError> {
        let known = self.interfaces.get(&device.index).cloned();
        let slots = match &known {
            Some(attached) => slots_of(&attached.iface),
            None => self.new_slots(device.index)?,
        };
        let iface = self.describe(device, plan, slots);
        self.write_link_classes(device, plan)?;
        let programs = loaded(&mut self.programs)?;
        if known.as_ref().map(|k| k.iface) != Some(iface) {
            let mut map = programs.hash::<u32, abi::Iface>("ifaces")?;
            map.insert(device.index, iface, 0).map_err(|e| {
                KernelError::bpf(
                    format!("write the description of interface {}", device.name),
                    e,
                )
            })?;
        }
        let attached_hooks = known.as_ref().map_or(&[][..], |k| hooks_of(&k.iface));
        for hook in hooks_of(&iface)
            .iter()
            .filter(|h| !attached_hooks.contains(h))
        {
            programs.attach(&mut self.netlink, device.index, &device.name, *hook)?;
        }
        for hook in attached_hooks
            .iter()
            .filter(|h| !hooks_of(&iface).contains(h))
        {
            programs.detach(&mut self.netlink, device.index, &device.name, *hook);
        }
        self.interfaces.insert(
            device.index,
            Attached {
                name: device.name.clone(),
                iface,
            },
        );
        Ok(())
    }

    fn describe(&self, device: &Device, plan: &Plan, slots: [u16; SLOTS]) -> abi::Iface {
        let trees = plan.links.get(&device.name);
        let managed = |dir: usize| trees.is_some_and(|t| t.trees[dir].is_some());
        let rest = |dir: usize, major| stages::leaf(major, trees.and_then(|t| t.rest[dir]));
        let flag = |on: bool, bit: u32| if on { bit as u16 } else { 0 };
        let [
            slot_up,
            slot_down,
            slot_link,
            slot_handled,
            slot_container_up,
            slot_container_down,
            slot_from_container,
        ] = slots;
        let below = device.lower.and_then(|i| self.interfaces.get(&i));
        abi::Iface {
            slot_up,
            slot_down,
            slot_link,
            flags: flag(device.is_loopback(), abi::IFACE_LOOPBACK)
                | flag(device.is_headerless(), abi::IFACE_NO_MAC)
                | flag(device.is_port(), abi::IFACE_PORT)
                | flag(device.shares_address, abi::IFACE_BELOW)
                | flag(device.is_veth(), abi::IFACE_VETH)
                | flag(managed(0), abi::IFACE_MANAGED_UP)
                | flag(managed(1), abi::IFACE_MANAGED_DOWN),
            link_stage: self
                .stages
                .down
                .get(&device.name)
                .map_or(0, |pair| pair.near),
            slot_handled,
            slot_below: below.map_or(0, |below| below.iface.slot_handled),
            slot_container_up,
            slot_container_down,
            slot_from_container,
            path_count: match managed(0) {
                true => self.place_of_count(device.index),
                false => 0,
            },
            redirect_pair: self
                .stages
                .redirects
                .get(&device.name)
                .map_or(0, |pair| pair.near),
            rest: [rest(0, stages::LINK_MAJOR), rest(1, stages::DOWN_MAJOR)],
        }
    }

    /// The place of a managed link's count in the map `path_counts`: the present one, or the lowest
    /// unused one. There are as many places as interfaces, without place 0.
    fn place_of_count(&self, index: u32) -> u16 {
        let present = self.interfaces.get(&index).map(|a| a.iface.path_count);
        if let Some(place) = present.filter(|place| *place != 0) {
            return place;
        }
        let taken: BTreeSet<u16> = self
            .interfaces
            .values()
            .map(|a| a.iface.path_count)
            .collect();
        let places = 1..abi::MAX_IFACES as u16;
        places
            .into_iter()
            .find(|place| !taken.contains(place))
            .unwrap_or(0)
    }

    /// Where the packets that go to the classes of a managed link are counted; `None` if the link
    /// is not managed for sending.
    ///
    /// # Errors
    /// If the descriptor cannot be duplicated.
    pub fn path_counter(&self, link: &str) -> Result<Option<PathCounter>, KernelError> {
        let attached = self.interfaces.values().find(|a| a.name == link);
        let place = attached.map_or(0, |a| a.iface.path_count);
        let (Some(programs), true) = (&self.programs, place != 0) else {
            return Ok(None);
        };
        let counts = programs.array(Programs::PATH_COUNTS)?;
        let what = "read the map of counts";
        let map_id = counts.info().map_err(|e| KernelError::bpf(what, e))?.id();
        let map = counts.fd().as_fd().try_clone_to_owned();
        let map = map.map_err(|e| KernelError::bpf(what, e))?;
        Ok(Some(PathCounter {
            place: place.into(),
            map_id,
            map,
        }))
    }

    /// Draws unused random slots for an interface: return slots, one for packets from an interface
    /// above, and one for packets of a container behind it. They are random so that an earlier
    /// interface's slot is not taken for a present one. The key in the settings proves that netnice
    /// assigned the slot.
    fn new_slots(&mut self, index: u32) -> Result<[u16; SLOTS], KernelError> {
        // The slots are cached: reading them back for thousands of interfaces would take seconds.
        let mut taken: BTreeSet<u16> = BTreeSet::from([0]);
        taken.extend(self.interfaces.values().flat_map(|a| slots_of(&a.iface)));
        let mut map = loaded(&mut self.programs)?.hash::<u16, abi::Slot>("slots")?;
        let mut slots = [0; SLOTS];
        for (stage, slot) in slots.iter_mut().enumerate() {
            while taken.contains(slot) {
                let [number] = random()?;
                *slot = number as u16;
            }
            taken.insert(*slot);
            map.insert(
                *slot,
                abi::Slot {
                    ifindex: index,
                    stage: stage as u32,
                },
                0,
            )
            .map_err(|e| KernelError::bpf("write a slot", e))?;
        }
        Ok(slots)
    }

    /// Writes the classes of each target on a managed link.
    fn write_link_classes(&mut self, device: &Device, plan: &Plan) -> Result<(), KernelError> {
        let empty = Default::default();
        let new = plan.links.get(&device.name).map_or(&empty, |l| &l.leaves);
        let old = self
            .installed
            .links
            .get(&device.name)
            .map_or(&empty, |l| &l.leaves);
        if new.is_empty() && old.is_empty() {
            return Ok(());
        }
        let same = new == old && self.interfaces.contains_key(&device.index);
        if same {
            return Ok(());
        }
        let programs = loaded(&mut self.programs)?;
        let mut map = programs.hash::<abi::LinkKey, abi::Leaf>("links")?;
        for (target, pairs) in new {
            for (dir, major) in [stages::LINK_MAJOR, stages::DOWN_MAJOR]
                .into_iter()
                .enumerate()
            {
                let key = abi::LinkKey {
                    ifindex: device.index,
                    target: *target,
                    dir: dir as u32,
                };
                match pairs[dir] {
                    Some(pair) => map
                        .insert(key, stages::leaf(major, Some(pair)), 0)
                        .map_err(|e| {
                            KernelError::bpf(format!("write target {target} on {}", device.name), e)
                        })?,
                    None => map.remove_entry(&key)?,
                }
            }
        }
        let gone: Vec<abi::LinkKey> = map
            .keys()
            .flatten()
            .filter(|k| k.ifindex == device.index && !new.contains_key(&k.target))
            .collect();
        for key in gone {
            map.remove_entry(&key)?;
        }
        Ok(())
    }

    /// Removes the state of an interface that is gone (its programs went with it) or that no longer
    /// needs the programs, for example because it became a port.
    fn remove_interface(&mut self, index: u32) -> Result<(), KernelError> {
        let known = self.interfaces.remove(&index);
        if let Some(attached) = &known {
            let programs = loaded(&mut self.programs)?;
            for hook in hooks_of(&attached.iface) {
                programs.detach(&mut self.netlink, index, &attached.name, *hook);
            }
        }
        self.remove_interface_entries(index, known.map(|attached| attached.iface))
    }

    /// Removes the map entries and pins of an interface.
    fn remove_interface_entries(
        &mut self,
        index: u32,
        known: Option<abi::Iface>,
    ) -> Result<(), KernelError> {
        let programs = loaded(&mut self.programs)?;
        programs.remove_interface_pins(index);
        programs
            .hash::<u32, abi::Iface>("ifaces")?
            .remove_entry(&index)?;
        programs
            .hash::<u32, u32>("container_veths")?
            .remove_entry(&index)?;
        let mut slots = programs.hash::<u16, abi::Slot>("slots")?;
        let stale: Vec<u16> = match known {
            Some(iface) => slots_of(&iface).into(),
            // The interface vanished before its description was written.
            None => slots
                .iter()
                .flatten()
                .filter(|(_, slot)| slot.ifindex == index)
                .map(|(number, _)| number)
                .collect(),
        };
        for number in stale {
            slots.remove_entry(&number)?;
        }
        Ok(())
    }

    /// Detaches the programs from all interfaces that exist in `devices`, and restores the settings
    /// of lo. A failure to detach is ignored.
    pub(super) fn detach_interfaces(&mut self, devices: &[Device]) {
        for (index, attached) in std::mem::take(&mut self.interfaces) {
            let exists = find_device(devices, &attached.name).is_some_and(|d| d.index == index);
            if let Some(programs) = self.programs.as_mut().filter(|_| exists) {
                for hook in hooks_of(&attached.iface) {
                    programs.detach(&mut self.netlink, index, &attached.name, *hook);
                }
            }
        }
        self.restore_loopback_settings();
    }

    /// Finds the interfaces of an earlier daemon and replaces its programs with this daemon's.
    /// Fails if the programs are not loaded, the interfaces or the map cannot be read, or the
    /// kernel refuses a program.
    pub(super) fn adopt_interfaces(&mut self) -> Result<(), KernelError> {
        let devices = device::list(&mut self.netlink)?;
        let programs = loaded(&mut self.programs)?;
        let map = programs.hash::<u32, abi::Iface>("ifaces")?;
        let known: Vec<(u32, abi::Iface)> = entries(map.iter(), "ifaces")?;
        for (index, iface) in known {
            match devices.iter().find(|d| d.index == index) {
                Some(device) => {
                    let programs = loaded(&mut self.programs)?;
                    if !hooks_of(&iface).contains(&Hook::Ingress) {
                        // An earlier daemon may have attached a program here too, which would hold
                        // a packet twice.
                        programs.detach(&mut self.netlink, index, &device.name, Hook::Ingress);
                    }
                    for hook in hooks_of(&iface) {
                        programs.attach(&mut self.netlink, index, &device.name, *hook)?;
                    }
                    self.interfaces.insert(
                        index,
                        Attached {
                            name: device.name.clone(),
                            iface,
                        },
                    );
                }
                None => self.remove_interface_entries(index, Some(iface))?,
            }
        }
        Ok(())
    }

    /// Makes lo accept packets that passed the stage. They lost their route there. In a new route
    /// lookup the kernel would reject a packet with a source address of this host. The settings
    /// `accept_local` and `route_localnet`, of lo only, permit such packets there. The values
    /// before the change are saved.
    fn set_loopback_settings(&mut self) -> Result<(), KernelError> {
        let saved = self.runtime.join(LOOPBACK_FILE);
        let path = |name: &str| format!("/proc/sys/net/ipv4/conf/lo/{name}");
        let mut now = Vec::new();
        for name in LOOPBACK_SETTINGS {
            let value = fs::read_to_string(path(name))
                .map_err(KernelError::file("read a setting of lo", path(name)))?;
            now.push((name, value.trim().to_owned()));
        }
        // A failed check must not count as "no file": the present values would replace the saved
        // ones.
        let is_saved = with_retries(|| saved.try_exists()).map_err(KernelError::file(
            "look for the saved settings of lo",
            &saved,
        ))?;
        if !is_saved {
            let lines = now.iter().map(|(name, value)| format!("{name} {value}\n"));
            let before: String = lines.collect();
            // Written and renamed, so the file is complete: after a change the earlier values
            // cannot be read any more.
            let new = saved.with_extension("new");
            fs::write(&new, before)
                .and_then(|()| fs::rename(&new, &saved))
                .map_err(|source| {
                    let _ = fs::remove_file(&new);
                    KernelError::file("save the settings of lo", &saved)(source)
                })?;
        }
        // A daemon that was killed may have saved the values and changed none.
        for (name, _) in now.iter().filter(|(_, value)| value != "1") {
            fs::write(path(name), "1")
                .map_err(KernelError::file("change a setting of lo", path(name)))?;
        }
        Ok(())
    }

    /// Restores the settings of lo that netnice has changed, from the file in the runtime folder,
    /// and removes the file. No effect without the file.
    pub(super) fn restore_loopback_settings(&mut self) {
        let saved = self.runtime.join(LOOPBACK_FILE);
        // Left by a daemon that was killed while it wrote the file.
        retry::remove_file(saved.with_extension("new"));
        let Ok(before) = with_retries(|| fs::read_to_string(&saved)) else {
            return;
        };
        for (name, value) in before.lines().filter_map(|l| l.split_once(' ')) {
            if LOOPBACK_SETTINGS.contains(&name) {
                let path = format!("/proc/sys/net/ipv4/conf/lo/{name}");
                if let Err(error) = with_retries(|| fs::write(&path, value)) {
                    tracing::warn!(%error, "cannot set {path} back to {value}");
                }
            }
        }
        retry::remove_file(&saved);
    }

    /// Reads the interfaces and the classes again, attaches removed programs again, and applies the
    /// desired state to what came, went or was changed. To be called after netlink reported a
    /// change. No effect if the programs are not loaded.
    ///
    /// # Errors
    /// If the state cannot be read, or a program or the desired state cannot be put in force again.
    pub fn reconcile(&mut self) -> Result<(), KernelError> {
        if self.programs.is_none() {
            return Ok(());
        }
        let devices = self.refresh_installed()?;
        self.reattach(&devices)?;
        let mut desired = self.desired.clone();
        // A managed link whose interface is gone stays desired until the interface returns.
        desired
            .links
            .retain(|l| find_device(&devices, &l.name).is_some());
        let complete = self.desired.clone();
        let result = self.apply(&desired);
        self.desired = complete;
        result
    }

    /// Reads back netnice's present state, from which other programs may have removed parts.
    /// Returns the list of interfaces. Fails if the kernel does not list the interfaces or the
    /// classes.
    pub(super) fn refresh_installed(&mut self) -> Result<Vec<Device>, KernelError> {
        let devices = device::list(&mut self.netlink)?;
        // State on removed interfaces was removed with them.
        let exists = |index: u32| devices.iter().any(|d| d.index == index);
        if self
            .stages
            .cap
            .is_some_and(|p| !exists(p.near) || !exists(p.far))
        {
            self.stages.cap = None;
            self.installed.cap.clear();
        }
        let lost_up: Vec<String> = self
            .stages
            .up
            .iter()
            .filter(|(_, i)| !exists(**i))
            .map(|(n, _)| n.clone())
            .collect();
        for name in lost_up {
            self.forget_requeues(&name);
            self.stages.up.remove(&name);
            self.stages.pacers.remove(&name);
            self.stages.closing.remove(&name);
            self.installed.links.entry(name).or_default().trees[0] = None;
        }
        let lost_down: Vec<String> = self
            .stages
            .down
            .iter()
            .filter(|(_, p)| !exists(p.near))
            .map(|(n, _)| n.clone())
            .collect();
        for name in lost_down {
            self.stages.down.remove(&name);
            self.installed.links.entry(name).or_default().trees[1] = None;
        }
        self.forget_lost_redirects(&devices);
        self.read_installed_trees()?;
        Ok(devices)
    }

    /// The hooks where netnice's programs belong, with the index and name of each interface.
    fn hooks(&self, devices: &[Device]) -> Vec<(u32, String, Hook)> {
        let pairs = self.stages.cap.iter().chain(self.stages.down.values());
        let exits = pairs.map(|pair| (pair.far, Hook::StageExit));
        let interfaces = self.interfaces.iter();
        let on_interfaces =
            interfaces.flat_map(|(i, a)| hooks_of(&a.iface).iter().map(|hook| (*i, *hook)));
        exits
            .chain(on_interfaces)
            .filter_map(|(index, hook)| {
                let device = devices.iter().find(|d| d.index == index)?;
                Some((index, device.name.clone(), hook))
            })
            .collect()
    }

    /// The hooks from which another program removed netnice's program. Fails if the programs are
    /// not loaded, or the kernel does not list an interface's programs or filters.
    pub(super) fn missing_hooks(
        &mut self,
        devices: &[Device],
    ) -> Result<Vec<(u32, String, Hook)>, KernelError> {
        let hooks = self.hooks(devices);
        let programs = loaded(&mut self.programs)?;
        let mut missing = Vec::new();
        for (index, name, hook) in hooks {
            if !programs.is_attached(&mut self.netlink, index, &name, hook)? {
                missing.push((index, name, hook));
            }
        }
        Ok(missing)
    }

    /// Attaches programs again that another program removed.
    fn reattach(&mut self, devices: &[Device]) -> Result<(), KernelError> {
        for (index, name, hook) in self.missing_hooks(devices)? {
            loaded(&mut self.programs)?.attach(&mut self.netlink, index, &name, hook)?;
        }
        Ok(())
    }

    /// Reads the present classes, so that classes removed by another program are made again.
    fn read_installed_trees(&mut self) -> Result<(), KernelError> {
        let keep_queues =
            |found: crate::plan::Tree, old: &crate::plan::Tree| -> crate::plan::Tree {
                found
                    .into_iter()
                    .map(|(n, mut c)| {
                        c.queue = old.get(&n).and_then(|o| o.queue);
                        (n, c)
                    })
                    .collect()
            };
        if let Some(pair) = self.stages.cap {
            let found = self
                .read_tree(pair.near, stages::CAP_MAJOR)
                .unwrap_or_default();
            self.installed.cap = keep_queues(found, &self.installed.cap);
        }
        let ups: Vec<(String, u32)> = self
            .stages
            .up
            .iter()
            .map(|(n, i)| (n.clone(), *i))
            .collect();
        for (name, index) in ups {
            let found = self
                .read_tree(index, stages::LINK_MAJOR)
                .unwrap_or_default();
            if found.is_empty() {
                // The root qdisc is gone; check its owner again.
                self.forget_requeues(&name);
                self.stages.up.remove(&name);
                self.stages.pacers.remove(&name);
                self.stages.closing.remove(&name);
            }
            let trees = self.installed.links.entry(name).or_default();
            trees.trees[0] = Some(keep_queues(
                found,
                trees.trees[0].as_ref().unwrap_or(&Default::default()),
            ));
        }
        let downs: Vec<(String, u32)> = self
            .stages
            .down
            .iter()
            .map(|(n, p)| (n.clone(), p.near))
            .collect();
        for (name, index) in downs {
            let found = self
                .read_tree(index, stages::DOWN_MAJOR)
                .unwrap_or_default();
            let trees = self.installed.links.entry(name).or_default();
            trees.trees[1] = Some(keep_queues(
                found,
                trees.trees[1].as_ref().unwrap_or(&Default::default()),
            ));
        }
        Ok(())
    }

    /// The names of the interfaces that have netnice's programs.
    pub fn attached_interfaces(&self) -> Vec<String> {
        self.interfaces.values().map(|a| a.name.clone()).collect()
    }
}

/// The hooks of an interface. Packets on lo are handled once, on its egress, unless lo is a managed
/// link: then its ingress leads to the receive stage.
fn hooks_of(iface: &abi::Iface) -> &'static [Hook] {
    let once = iface.flags & abi::IFACE_LOOPBACK as u16 != 0
        && iface.flags & abi::IFACE_MANAGED_DOWN as u16 == 0;
    if once {
        &[Hook::Egress]
    } else {
        &[Hook::Egress, Hook::Ingress]
    }
}

/// The slots of an interface, in the order of `STAGE_*`.
fn slots_of(iface: &abi::Iface) -> [u16; SLOTS] {
    [
        iface.slot_up,
        iface.slot_down,
        iface.slot_link,
        iface.slot_handled,
        iface.slot_container_up,
        iface.slot_container_down,
        iface.slot_from_container,
    ]
}

/// The largest number of interfaces that can have the eBPF programs.
pub const MAX_INTERFACES: usize = abi::MAX_IFACES as usize;
/// One slot for each `STAGE_*`.
const SLOTS: usize = 7;
const LOOPBACK_FILE: &str = "lo-settings";
const LOOPBACK_SETTINGS: [&str; 2] = ["accept_local", "route_localnet"];
