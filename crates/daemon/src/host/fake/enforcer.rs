//! Enforcement on the fake machine: records what is in force, and changes memberships as the
//! kernel's implementation does. A call fails if the test has chosen it to fail, or if an
//! executable, a control group or a free link that it needs is missing.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::units::Instant;
use netnice_kernel::enforce::{Adoption, ContainerPlacement, Recovered, TargetClass};
use netnice_kernel::plan::Desired;

use super::{FakeMachine, InForce};
use crate::error::RequestError;
use crate::host::{Act, Enforcer, Inventory};

impl FakeMachine {
    fn adopt(&mut self, id: u32, pid: u32, only: bool, keep: &BTreeSet<u32>) -> (Adoption, Act) {
        let outer = Some(self.own(pid)).filter(|own| *own != 0 && *own != id);
        let family = match only {
            true => BTreeSet::from([pid]),
            false => self.family(pid),
        };
        let targets: Vec<(u32, u32)> = family
            .into_iter()
            .filter(|one| self.processes.contains_key(one))
            .map(|one| (one, self.target_below(id, one, pid, keep)))
            .collect();
        let mut count = 0;
        for (one, target) in targets {
            count += usize::from(self.own(one) != target || target == id);
            self.set_own(one, target);
        }
        (Self::adoption(count), Act::release(id, outer))
    }

    /// The target of a descendant of `root`, which becomes a member of `id`: the kept target of its
    /// nearest ancestor that has one, else `id`.
    fn target_below(&self, id: u32, pid: u32, root: u32, keep: &BTreeSet<u32>) -> u32 {
        let mut next = Some(pid);
        while let Some(one) = next.filter(|one| *one != root) {
            if keep.contains(&self.own(one)) {
                return self.own(one);
            }
            next = self.processes.get(&one).map(|living| living.parent);
        }
        id
    }

    /// Releases the members of targets to the targets around these, or to those by descent; returns
    /// the act that undoes it.
    fn release(
        &mut self,
        outer_targets: &BTreeMap<u32, Option<u32>>,
        by_descent: &BTreeMap<u32, u32>,
    ) -> Act {
        let theirs = self.in_force.members.iter();
        let theirs = theirs.filter(|(_, m)| outer_targets.contains_key(&m.0));
        let members: BTreeMap<u32, u32> = theirs.map(|(pid, m)| (*pid, m.0)).collect();
        for (pid, id) in &members {
            let mut outer = Some(*id);
            while let Some(next) = outer.and_then(|outer| outer_targets.get(&outer)) {
                outer = *next;
            }
            let target = by_descent.get(pid).copied().or(outer);
            self.set_own(*pid, target.unwrap_or(0));
        }
        Act::Readopt { members }
    }

    fn bind_app(&mut self, id: u32, path: String) -> Result<(Adoption, Act), RequestError> {
        let key = self.app(&path)?;
        let family = self.running(key);
        for pid in &family {
            self.set_app(*pid, id);
        }
        self.in_force.apps.insert(id, path.clone());
        Ok((Self::adoption(family.len()), Act::UnbindApp { id, path }))
    }

    fn unbind_app(&mut self, id: u32, path: String) -> Act {
        self.in_force.apps.remove(&id);
        let theirs = self.in_force.members.iter().filter(|(_, m)| m.1 == id);
        for pid in theirs.map(|(pid, _)| *pid).collect::<Vec<u32>>() {
            self.set_app(pid, 0);
        }
        Act::BindApp { id, path }
    }
}

impl Enforcer for FakeMachine {
    fn apply(&mut self, desired: &Desired) -> Result<(), RequestError> {
        self.step()?;
        let taken = |name: &str| self.foreign.contains(name);
        if let Some(link) = desired.links.iter().find(|link| taken(&link.name)) {
            return Err(RequestError::NotAdmitted(format!(
                "{} has the root qdisc of another program",
                link.name
            )));
        }
        self.in_force.desired = desired.clone();
        if *desired == Desired::default() {
            // The maps are removed with the programs.
            self.in_force = InForce::default();
        }
        Ok(())
    }

    fn act(&mut self, act: &Act) -> Result<(Adoption, Act), RequestError> {
        self.step()?;
        let nothing = Adoption::default();
        Ok(match act.clone() {
            Act::Adopt {
                id,
                pid,
                only,
                keep,
            } => self.adopt(id, pid, only, &keep),
            Act::Readopt { members } => {
                for (pid, id) in &members {
                    if self.processes.contains_key(pid) {
                        self.set_own(*pid, *id);
                    }
                }
                (nothing, Act::release_again(&members))
            }
            Act::Release {
                outer_targets,
                by_descent,
            } => (nothing, self.release(&outer_targets, &by_descent)),
            Act::BindApp { id, path } => self.bind_app(id, path)?,
            Act::UnbindApp { id, path } => (nothing, self.unbind_app(id, path)),
            Act::BindCgroup { id, bound } => {
                if self.groups.get(&bound.path) != Some(&bound.id) {
                    return Err(RequestError::Failed(format!("no cgroup {}", bound.path)));
                }
                self.in_force.groups.insert(id, bound.id);
                let bound = Some(bound);
                (nothing, Act::UnbindCgroup { id, bound })
            }
            Act::UnbindCgroup { id, bound } => {
                self.in_force.groups.remove(&id);
                let undo = match bound {
                    Some(bound) => Act::BindCgroup { id, bound },
                    None => Act::UnbindCgroup { id, bound },
                };
                (nothing, undo)
            }
            Act::BindUser { id, uid } => {
                self.in_force.users.insert(id, uid);
                (nothing, Act::UnbindUser { id, uid })
            }
            Act::UnbindUser { id, uid } => {
                self.in_force.users.remove(&id);
                (nothing, Act::BindUser { id, uid })
            }
        })
    }

    fn expect_groups(&mut self, names: &BTreeMap<String, u32>) -> Result<(), RequestError> {
        self.expected = names.clone();
        Ok(())
    }

    fn place_containers(
        &mut self,
        groups: &BTreeMap<u32, Option<String>>,
    ) -> Result<BTreeMap<u32, ContainerPlacement>, RequestError> {
        self.containers = groups.keys().copied().collect();
        let apart = |path: &Option<String>| match path {
            Some(_) => ContainerPlacement::OwnNetwork(vec!["veth0".to_owned()]),
            None => ContainerPlacement::NotRunning,
        };
        let placements = groups.iter().map(|(id, path)| (*id, apart(path)));
        Ok(placements.collect())
    }

    fn balance(&mut self, _now: Instant) -> Result<(), RequestError> {
        Ok(())
    }

    fn reconcile(&mut self) -> Result<(), RequestError> {
        self.faults.clear();
        Ok(())
    }

    fn audit(&mut self, _anew: bool) -> Result<Vec<String>, RequestError> {
        Ok(self.faults.clone())
    }

    fn forget_dead(&mut self) -> Result<(), RequestError> {
        let living = &self.processes;
        self.in_force
            .members
            .retain(|pid, _| living.contains_key(pid));
        Ok(())
    }

    fn recovered(&mut self) -> Result<Recovered, RequestError> {
        let limit =
            |target: &netnice_kernel::plan::Target| netnice_kernel::enforce::RecoveredLimit {
                slot: target.slot,
                parent: target.parent,
                limit: target.limit,
            };
        let targets = &self.in_force.desired.targets;
        Ok(Recovered {
            limits: targets.iter().map(limit).collect(),
            targets: targets.iter().map(|t| (t.id, t.slot)).collect(),
            links: self.in_force.desired.links.clone(),
        })
    }

    fn is_enforcing(&self) -> bool {
        self.in_force.desired != Desired::default()
    }

    fn serves(&self, link: &str, _index: u32) -> bool {
        !self.without_classes.contains(link)
    }

    fn link_leaf(&self) -> &'static str {
        "sparse+bulk"
    }

    fn attached(&self) -> Vec<String> {
        self.interfaces.keys().cloned().collect()
    }

    fn attachment(&self) -> &'static str {
        "tcx"
    }

    fn target_classes(&self, id: u32) -> Vec<TargetClass> {
        let targets = self.in_force.desired.targets.iter();
        let mine = targets.filter(|target| target.id == id);
        mine.map(|target| TargetClass {
            link: None,
            direction: None,
            device: "nn0".to_owned(),
            class: format!("4e00:{:x}", target.slot * 9),
            max_rate: None,
            own: true,
        })
        .collect()
    }
}
