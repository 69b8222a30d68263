//! Enforcement on the fake machine. It handles memberships as the eBPF programs do.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::units::Instant;
use netnice_kernel::enforce::{Adoption, ContainerPlacement, Recovered, TargetClass};
use netnice_kernel::plan::Desired;
use netnice_kernel::probe::Finding;

use super::{Force, Machine};
use crate::denied::Denied;
use crate::host::{Act, Enforcer, Inventory};

impl Enforcer for Machine {
    fn apply(&mut self, desired: &Desired) -> Result<(), Denied> {
        self.step()?;
        let taken = |name: &str| self.foreign.contains(name);
        if let Some(link) = desired.links.iter().find(|link| taken(&link.name)) {
            return Err(Denied::NotAdmitted(format!("{} is somebody's", link.name)));
        }
        self.force.desired = desired.clone();
        if *desired == Desired::default() {
            // The maps are removed with the programs.
            self.force = Force::default();
        }
        Ok(())
    }

    fn preview(&mut self, desired: &Desired) -> Vec<String> {
        vec![format!("{} targets", desired.targets.len())]
    }

    fn act(&mut self, act: &Act) -> Result<(Adoption, Act), Denied> {
        self.step()?;
        let nothing = Adoption::default();
        Ok(match act.clone() {
            Act::Adopt {
                id,
                pid,
                only,
                keep,
            } => {
                let heir = Some(self.own(pid)).filter(|own| *own != 0 && *own != id);
                let family = match only {
                    true => BTreeSet::from([pid]),
                    false => self.family(pid),
                };
                let mut count = 0;
                for one in family {
                    if self.processes.contains_key(&one)
                        && (one == pid || !keep.contains(&self.own(one)))
                    {
                        self.set_own(one, id);
                        count += 1;
                    }
                }
                (Self::adoption(count), Act::release(id, heir))
            }
            Act::Readopt { members } => {
                for (pid, id) in &members {
                    if self.processes.contains_key(pid) {
                        self.set_own(*pid, *id);
                    }
                }
                (nothing, Act::release_again(&members))
            }
            Act::Release { heirs } => {
                let theirs = self.force.members.iter();
                let theirs = theirs.filter(|(_, m)| heirs.contains_key(&m.0));
                let members: BTreeMap<u32, u32> = theirs.map(|(pid, m)| (*pid, m.0)).collect();
                for (pid, id) in &members {
                    let mut heir = Some(*id);
                    while let Some(next) = heir.and_then(|heir| heirs.get(&heir)) {
                        heir = *next;
                    }
                    self.set_own(*pid, heir.unwrap_or(0));
                }
                (nothing, Act::Readopt { members })
            }
            Act::BindApp { id, path } => {
                let key = self.app(&path)?;
                let family = self.running(key);
                for pid in &family {
                    self.set_app(*pid, id);
                }
                self.force.apps.insert(id, path.clone());
                (Self::adoption(family.len()), Act::UnbindApp { id, path })
            }
            Act::UnbindApp { id, path } => {
                self.force.apps.remove(&id);
                let theirs = self.force.members.iter().filter(|(_, m)| m.1 == id);
                for pid in theirs.map(|(pid, _)| *pid).collect::<Vec<u32>>() {
                    self.set_app(pid, 0);
                }
                (nothing, Act::BindApp { id, path })
            }
            Act::BindCgroup { id, bound } => {
                if self.groups.get(&bound.path) != Some(&bound.id) {
                    return Err(Denied::Failed(format!("no cgroup {}", bound.path)));
                }
                self.force.groups.insert(id, bound.id);
                let bound = Some(bound);
                (nothing, Act::UnbindCgroup { id, bound })
            }
            Act::UnbindCgroup { id, bound } => {
                self.force.groups.remove(&id);
                let undo = match bound {
                    Some(bound) => Act::BindCgroup { id, bound },
                    None => Act::UnbindCgroup { id, bound },
                };
                (nothing, undo)
            }
            Act::BindUser { id, uid } => {
                self.force.users.insert(id, uid);
                (nothing, Act::UnbindUser { id, uid })
            }
            Act::UnbindUser { id, uid } => {
                self.force.users.remove(&id);
                (nothing, Act::BindUser { id, uid })
            }
        })
    }

    fn await_groups(&mut self, names: &BTreeMap<String, u32>) -> Result<(), Denied> {
        self.awaited = names.clone();
        Ok(())
    }

    fn house(
        &mut self,
        groups: &BTreeMap<u32, Option<String>>,
    ) -> Result<BTreeMap<u32, ContainerPlacement>, Denied> {
        self.housed = groups.keys().copied().collect();
        let apart = |path: &Option<String>| match path {
            Some(_) => ContainerPlacement::OwnNetwork(vec!["veth0".to_owned()]),
            None => ContainerPlacement::NotRunning,
        };
        let housings = groups.iter().map(|(id, path)| (*id, apart(path)));
        Ok(housings.collect())
    }

    fn balance(&mut self, _now: Instant) -> Result<(), Denied> {
        Ok(())
    }

    fn reconcile(&mut self) -> Result<(), Denied> {
        self.faults.clear();
        Ok(())
    }

    fn audit(&mut self, _anew: bool) -> Result<Vec<String>, Denied> {
        Ok(self.faults.clone())
    }

    fn forget_dead(&mut self) -> Result<(), Denied> {
        let living = &self.processes;
        self.force.members.retain(|pid, _| living.contains_key(pid));
        Ok(())
    }

    fn found(&mut self) -> Result<Recovered, Denied> {
        let limit =
            |target: &netnice_kernel::plan::Target| netnice_kernel::enforce::RecoveredLimit {
                slot: target.slot,
                parent: target.parent,
                limit: target.limit,
            };
        let targets = &self.force.desired.targets;
        Ok(Recovered {
            limits: targets.iter().map(limit).collect(),
            targets: targets.iter().map(|t| (t.id, t.slot)).collect(),
            links: self.force.desired.links.clone(),
        })
    }

    fn is_enforcing(&self) -> bool {
        self.force.desired != Desired::default()
    }

    fn leaf(&self) -> &'static str {
        "sparse+bulk"
    }

    fn attached(&self) -> Vec<String> {
        self.interfaces.keys().cloned().collect()
    }

    fn attachment(&self) -> &'static str {
        "tcx"
    }

    fn whereabouts(&self, id: u32) -> Vec<TargetClass> {
        let targets = self.force.desired.targets.iter();
        let mine = targets.filter(|target| target.id == id);
        mine.map(|target| TargetClass {
            link: None,
            down: false,
            device: "nn0".to_owned(),
            class: format!("4e00:{:x}", target.slot * 8),
            max_rate: None,
            own: true,
        })
        .collect()
    }

    fn probe(&mut self) -> Vec<Finding> {
        Vec::new()
    }
}
