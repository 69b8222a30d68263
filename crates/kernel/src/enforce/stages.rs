//! Makes, changes, audits and removes the class trees and the interfaces that carry them: the veth
//! pair of the cap stage, the HTB at the root of each managed link, and the veth pair of each
//! managed link's receive stage. Fails with [`KernelError::ForeignQdisc`] if a managed link has the
//! root qdisc of another program, with [`KernelError::NoInterface`] if the link does not exist, and
//! with the kernel's error if the programs are not loaded or the kernel refuses a change.

use std::collections::BTreeMap;

use super::{Kernel, find_device, loaded, queues, roots};
use crate::{
    abi,
    device::{self, Device, Pair},
    error::KernelError,
    plan::{self, Class, Plan, Step, Tree},
    programs::Hook,
    retry::RemoveEntry,
    tc::{self, FoundClass, Handle},
};

/// The interfaces that carry classes of netnice.
#[derive(Debug, Default)]
pub(super) struct Stages {
    pub cap: Option<Pair>,
    /// Receive stages, by the link's name.
    pub down: BTreeMap<String, Pair>,
    /// Redirect pairs, by the link's name.
    pub redirects: BTreeMap<String, Pair>,
    /// Interface indices of the links whose root qdisc is netnice's, by name.
    pub up: BTreeMap<String, u32>,
    /// The links of `up` that have a filter above their classes, with its parameters; `None` if
    /// they are unknown.
    pub pacers: BTreeMap<String, Option<tc::Tbf>>,
    /// Those of the filters whose bucket becomes shorter.
    pub closing: BTreeMap<String, roots::ClosingPacer>,
    /// The leaves of links that get another queue when they are empty.
    pub requeues: queues::Requeues,
}

/// A tree and its interface.
struct StageTree<'a> {
    ifindex: u32,
    major: u16,
    current: &'a Tree,
    desired: &'a Tree,
}

/// Classes to remove once no map entry refers to them.
pub(super) struct Removals(Vec<(u32, u16, Vec<Step>)>);

impl Kernel {
    /// Makes the missing stages of a plan. Fails if the programs are not loaded, a managed link
    /// does not exist or has the root qdisc of another program, or the kernel refuses a change.
    pub(super) fn prepare_stages(
        &mut self,
        plan: &Plan,
        devices: &[Device],
    ) -> Result<(), KernelError> {
        if !plan.cap.is_empty() && self.stages.cap.is_none() {
            self.stages.cap = Some(self.make_stage(CAP_NEAR, CAP_FAR, CAP_MAJOR)?);
        }
        for (name, trees) in &plan.links {
            let device =
                find_device(devices, name).ok_or_else(|| KernelError::NoInterface(name.clone()))?;
            if trees.trees[0].is_some() {
                self.prepare_root(device, trees.pacer)?;
            }
            if trees.trees[1].is_some() && !self.stages.down.contains_key(name) {
                let (near, far) = receive_stage_names(device.index);
                let pair = self.make_stage(&near, &far, DOWN_MAJOR)?;
                self.stages.down.insert(name.clone(), pair);
            }
        }
        self.prepare_redirects(plan, devices)
    }

    fn make_stage(&mut self, near: &str, far: &str, major: u16) -> Result<Pair, KernelError> {
        let pair = device::ensure_pair(&mut self.netlink, near, far)?;
        match tc::add_htb(&mut self.netlink, pair.near, major) {
            Err(error) if !error.exists() => return Err(error.into()),
            _ => {}
        }
        let programs = loaded(&mut self.programs)?;
        programs.attach(&mut self.netlink, pair.far, far, Hook::StageExit)?;
        Ok(pair)
    }

    /// Makes and changes classes. Returns the classes to remove once no map entry refers to them.
    /// Fails if the kernel refuses a change.
    pub(super) fn add_classes(&mut self, plan: &Plan) -> Result<Removals, KernelError> {
        let nothing = Tree::new();
        let installed = self.installed.clone();
        let mut removals = Vec::new();
        for tree in stage_trees(&self.stages, &installed, plan, &nothing) {
            let steps = plan::difference(tree.current, tree.desired);
            let place = (tree.ifindex, tree.major);
            let busy = self.busy_leaves(place, tree.current, &steps.before)?;
            for step in &steps.before {
                if let Step::Requeue(number, _) = step
                    && busy.contains(number)
                {
                    self.stages.requeues.insert((tree.ifindex, *number), 0);
                    continue;
                }
                self.apply_step(tree.ifindex, tree.major, step)?;
            }
            removals.push((tree.ifindex, tree.major, steps.after));
        }
        Ok(Removals(removals))
    }

    /// Removes these classes. Fails if the kernel refuses a change.
    pub(super) fn remove_classes(&mut self, removals: Removals) -> Result<(), KernelError> {
        for (ifindex, major, steps) in removals.0 {
            for step in steps {
                self.apply_step(ifindex, major, &step)?;
            }
        }
        Ok(())
    }

    fn apply_step(&mut self, ifindex: u32, major: u16, step: &Step) -> Result<(), KernelError> {
        let id = |minor| Handle::new(major, minor);
        if let (
            LINK_MAJOR,
            Step::Add(number, _) | Step::Requeue(number, _) | Step::Remove(number),
        ) = (major, step)
        {
            self.stages.requeues.remove(&(ifindex, *number));
        }
        let netlink = &mut self.netlink;
        let put = |netlink: &mut _, number, class: &Class| {
            let parent = id(class.parent); // 0: the qdisc itself
            tc::put_class(netlink, ifindex, id(number), parent, &class.htb)
        };
        match step {
            Step::Add(number, class) => {
                put(netlink, *number, class)?;
                if let Some(queue) = &class.queue {
                    tc::put_queue(netlink, ifindex, id(*number), queue)?;
                }
            }
            Step::Change(number, class) => put(netlink, *number, class)?,
            Step::Requeue(number, queue) => tc::put_queue(netlink, ifindex, id(*number), queue)?,
            Step::Remove(number) => {
                tc::remove_class(netlink, ifindex, id(*number))?;
            }
        }
        match step {
            Step::Add(number, _) | Step::Requeue(number, _) if major == CAP_MAJOR => {
                self.forget_content(id(*number))
            }
            _ => Ok(()),
        }
    }

    /// Removes the window of a leaf whose queue is new, so that what was in an earlier one counts
    /// as gone. Otherwise its flows would be refused until the counts are out of date.
    fn forget_content(&mut self, leaf: Handle) -> Result<(), KernelError> {
        let programs = loaded(&mut self.programs)?;
        let mut windows = programs.hash::<abi::WindowKey, abi::Window>("windows")?;
        windows.remove_entry(&abi::WindowKey {
            leaf: leaf.0,
            link: 0,
        })
    }

    /// Removes stages that a plan no longer needs. A stage whose removal fails stays known, so that
    /// the next try removes it. Fails if the kernel refuses a removal.
    pub(super) fn drop_stages(
        &mut self,
        plan: &Plan,
        devices: &[Device],
    ) -> Result<(), KernelError> {
        if plan.cap.is_empty()
            && let Some(pair) = self.stages.cap
        {
            self.remove_pair(pair)?;
            self.stages.cap = None;
        }
        let is_needed = |name: &String, dir: usize| {
            plan.links.get(name).is_some_and(|l| l.trees[dir].is_some())
        };
        let down: Vec<String> = self
            .stages
            .down
            .keys()
            .filter(|n| !is_needed(n, 1))
            .cloned()
            .collect();
        for name in down {
            if let Some(pair) = self.stages.down.get(&name).copied() {
                self.remove_pair(pair)?;
                self.stages.down.remove(&name);
            }
        }
        let up: Vec<String> = self
            .stages
            .up
            .keys()
            .filter(|n| !is_needed(n, 0))
            .cloned()
            .collect();
        for name in up {
            let index = self.stages.up.get(&name).copied();
            let is_there =
                |index: &u32| find_device(devices, &name).is_some_and(|d| d.index == *index);
            if let Some(index) = index.filter(is_there) {
                self.remove_root(index)?;
            }
            self.forget_requeues(&name);
            self.stages.up.remove(&name);
            self.stages.pacers.remove(&name);
            self.stages.closing.remove(&name);
        }
        self.drop_redirects(plan)
    }

    /// Removes all stages. Fails as [`Kernel::drop_stages`].
    pub(super) fn remove_stages(&mut self, devices: &[Device]) -> Result<(), KernelError> {
        self.drop_stages(&Plan::default(), devices)
    }

    fn remove_pair(&mut self, pair: Pair) -> Result<(), KernelError> {
        if let Some(programs) = &mut self.programs {
            programs.remove_interface_pins(pair.far);
        }
        device::remove(&mut self.netlink, pair.near)?;
        Ok(())
    }

    /// Finds the stages of an earlier daemon, and their classes. Fails if the kernel does not list
    /// the qdiscs or the classes.
    pub(super) fn find_stages(&mut self, devices: &[Device]) -> Result<(), KernelError> {
        let index = |name: &str| find_device(devices, name).map(|d| d.index);
        let pair = |near: &str, far: &str| {
            Some(Pair {
                near: index(near)?,
                far: index(far)?,
            })
        };
        let qdiscs = tc::qdiscs(&mut self.netlink)?;
        self.find_redirects(devices);
        self.stages.cap = pair(CAP_NEAR, CAP_FAR);
        if let Some(pair) = self.stages.cap {
            self.installed.cap = self.read_tree(pair.near, CAP_MAJOR)?;
        }
        for device in devices {
            let (near, far) = receive_stage_names(device.index);
            if let Some(pair) = pair(&near, &far) {
                self.stages.down.insert(device.name.clone(), pair);
                let tree = self.read_tree(pair.near, DOWN_MAJOR)?;
                self.installed
                    .links
                    .entry(device.name.clone())
                    .or_default()
                    .trees[1] = Some(tree);
            }
            let root = roots::of(&qdiscs, device.index);
            if let Some(root) = root {
                self.stages.up.insert(device.name.clone(), device.index);
                if root == roots::Root::Paced {
                    self.stages.pacers.insert(device.name.clone(), None);
                }
                let tree = self.read_tree(device.index, LINK_MAJOR)?;
                self.installed
                    .links
                    .entry(device.name.clone())
                    .or_default()
                    .trees[0] = Some(tree);
            }
        }
        Ok(())
    }

    /// Finds the stages of an earlier daemon and replaces its programs with this daemon's. Fails if
    /// the programs are not loaded, the kernel does not list the interfaces, qdiscs or classes, or
    /// a program cannot be attached.
    pub(super) fn adopt_stages(&mut self) -> Result<(), KernelError> {
        let devices = device::list(&mut self.netlink)?;
        self.find_stages(&devices)?;
        // The programs at the far ends are the earlier daemon's.
        let fars: Vec<Pair> = self
            .stages
            .cap
            .into_iter()
            .chain(self.stages.down.values().copied())
            .collect();
        for pair in fars {
            if let Some(far) = devices.iter().find(|d| d.index == pair.far) {
                loaded(&mut self.programs)?.attach(
                    &mut self.netlink,
                    pair.far,
                    &far.name,
                    Hook::StageExit,
                )?;
            }
        }
        Ok(())
    }

    /// The present classes of an interface, without their queues. The queues of netnice's leaves
    /// never change by themselves, so they are not read. Fails if the kernel does not list the
    /// classes.
    pub(super) fn read_tree(&mut self, ifindex: u32, major: u16) -> Result<Tree, KernelError> {
        Ok(tree_of(tc::classes(&mut self.netlink, ifindex)?, major))
    }

    /// Compares all classes and attached programs with the installed state, and returns a text for
    /// each tree and each program that differs. If `anew` is false, uses the classes that the
    /// preceding [`Kernel::sample`] listed, and lists only the others. Empty if the programs are
    /// not loaded.
    ///
    /// # Errors
    /// If the interfaces or the attached programs cannot be read.
    pub fn audit(&mut self, anew: bool) -> Result<Vec<String>, KernelError> {
        let mut listed = std::mem::take(&mut self.listed);
        if anew {
            listed.clear();
        }
        let mut faults = Vec::new();
        if self.programs.is_none() {
            return Ok(faults);
        }
        let devices = device::list(&mut self.netlink)?;
        for (_, name, hook) in self.missing_hooks(&devices)? {
            faults.push(format!("the {} program of {name} was removed", hook.name()));
        }
        let nothing = Tree::new();
        // Restored below: copying thousands of classes each second costs too much.
        let installed = std::mem::take(&mut self.installed);
        for tree in stage_trees(&self.stages, &installed, &installed, &nothing) {
            let listed = listed.remove(&tree.ifindex).map(Ok);
            let found = listed
                .unwrap_or_else(|| tc::classes(&mut self.netlink, tree.ifindex))
                .map(|classes| tree_of(classes, tree.major))
                .unwrap_or_default();
            let without_queue = |(n, c): (&u16, &Class)| (*n, Class { queue: None, ..*c });
            if !found
                .iter()
                .map(without_queue)
                .eq(tree.desired.iter().map(without_queue))
            {
                let name = devices
                    .iter()
                    .find(|d| d.index == tree.ifindex)
                    .map_or("a stage that is gone", |d| &d.name);
                faults.push(format!(
                    "the classes of {name} differ from those that were set"
                ));
            }
        }
        self.installed = installed;
        Ok(faults)
    }
}

/// The classes of one HTB.
fn tree_of(classes: Vec<FoundClass>, major: u16) -> Tree {
    let ours = classes.into_iter().filter(|c| c.id.major() == major);
    ours.filter_map(|c| {
        let parent = match c.parent == Handle::ROOT {
            true => 0,
            false => c.parent.minor(),
        };
        let class = Class {
            parent,
            htb: c.htb?,
            queue: None,
        };
        Some((c.id.minor(), class))
    })
    .collect()
}

/// All trees of the stages: the present one and the desired one.
fn stage_trees<'a>(
    stages: &Stages,
    installed: &'a Plan,
    plan: &'a Plan,
    nothing: &'a Tree,
) -> Vec<StageTree<'a>> {
    let mut trees = Vec::new();
    if let Some(pair) = stages.cap {
        trees.push(StageTree {
            ifindex: pair.near,
            major: CAP_MAJOR,
            current: &installed.cap,
            desired: &plan.cap,
        });
    }
    let tree = |of: &'a Plan, name: &str, dir: usize| {
        of.links
            .get(name)
            .and_then(|l| l.trees[dir].as_ref())
            .unwrap_or(nothing)
    };
    for (name, index) in &stages.up {
        let (current, desired) = (tree(installed, name, 0), tree(plan, name, 0));
        trees.push(StageTree {
            ifindex: *index,
            major: LINK_MAJOR,
            current,
            desired,
        });
    }
    for (name, pair) in &stages.down {
        let (current, desired) = (tree(installed, name, 1), tree(plan, name, 1));
        trees.push(StageTree {
            ifindex: pair.near,
            major: DOWN_MAJOR,
            current,
            desired,
        });
    }
    trees
}

/// Converts a leaf to its form in the maps.
pub(super) fn leaf(major: u16, leaf: Option<plan::NodeLeaves>) -> abi::Leaf {
    leaf.map_or_else(abi::Leaf::default, |l| abi::Leaf {
        sparse: Handle::new(major, l.sparse).0,
        bulk: Handle::new(major, l.bulk).0,
        local: Handle::new(major, l.local).0,
        patient: Handle::new(major, l.patient).0,
        bound: l.bound,
        longest: l.longest,
        rate: l.rate,
        redirect: l.redirect.map_or(0, |place| u32::from(place) + 1),
        window_us: (l.window.0 / 1_000) as u32,
        window_bytes: u32::try_from(l.assured).unwrap_or(u32::MAX),
    })
}

/// The interface names of a link's receive stage. They contain the index, since a link's name may
/// already have the maximum length.
fn receive_stage_names(index: u32) -> (String, String) {
    (format!("nnd{index}"), format!("nne{index}"))
}

/// The handle of the HTB of the cap stage. The handles of netnice's HTBs differ because one
/// priority value must not select a class in two of them.
pub(super) const CAP_MAJOR: u16 = 0x4e00;
/// The handle of the HTB at the root of a managed link.
pub(crate) const LINK_MAJOR: u16 = 0x4e10;
/// The handle of the HTB of a receive stage.
pub(super) const DOWN_MAJOR: u16 = 0x4e20;
/// The name of the cap stage's interface that carries the classes.
pub(super) const CAP_NEAR: &str = "nn0";
const CAP_FAR: &str = "nn1";
