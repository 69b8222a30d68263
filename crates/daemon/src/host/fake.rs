//! A fake machine for tests ([`FakeMachine`]): processes start, fork and end at the calls of a
//! test, and a chosen call of `apply` or `act` fails. A child inherits the memberships of its
//! parent, as with the eBPF programs.

mod enforcer;
pub(crate) mod processor_time;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;

use netnice_api::Found;
use netnice_core::admission::processors::{ProcessorSet, Processors};
use netnice_core::units::Rate;
use netnice_kernel::connections::Connection;
use netnice_kernel::enforce::{Adoption, PathCounter, QuotaEntry, QuotaState, Redirects, Sample};
use netnice_kernel::plan::Desired;

use super::{
    Interface, InterfaceTraffic, Inventory, Members, Meter, Process, ProcessorHost, QuotaCounter,
};
use crate::error::RequestError;
use crate::ledger::{AppKey, CgroupRef, ProcessId, TargetPlace};

/// A machine without a kernel, for tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeMachine {
    /// The machine's processes, by pid.
    pub processes: BTreeMap<u32, FakeProcess>,
    /// Ids of the machine's control groups, by path.
    pub groups: BTreeMap<String, u64>,
    /// The machine's executables, by path.
    pub apps: BTreeMap<String, AppKey>,
    /// Uids of the machine's users, by name.
    pub users: BTreeMap<String, u32>,
    /// The machine's interfaces, and whether they are up.
    pub interfaces: BTreeMap<String, bool>,
    /// Speeds that drivers report, by interface.
    pub speeds: BTreeMap<String, Rate>,
    /// The interface of the default route.
    pub default_route: Option<String>,
    /// Links with a root qdisc of another program.
    pub foreign: BTreeSet<String>,
    /// Links whose interface was created again and has no classes yet.
    pub without_classes: BTreeSet<String>,
    /// What is in force.
    pub in_force: InForce,
    /// How often the redirect pairs were made anew.
    pub remade_pairs: u32,
    /// The number of calls of `apply` and `act` before the one that fails; `None`: none fails.
    pub fails_in: Option<usize>,
    /// The bytes to report as passed.
    pub seen: InterfaceTraffic,
    /// Connections, each with the pid of its process.
    pub connections: Vec<(u32, Connection)>,
    /// The counts to report.
    pub sample: Sample,
    /// The bytes to report as sent by the classes of a link.
    pub sent: BTreeMap<String, u64>,
    /// The targets that are containers.
    pub containers: BTreeSet<u32>,
    /// The control groups to be bound at their creation.
    pub expected: BTreeMap<String, u32>,
    /// The differences from the installed state to report.
    pub faults: Vec<String>,
    /// What its processors can be promised; `None`: 90 % of each of two.
    pub processors: Option<Processors>,
    /// The processors on which a process may run, by pid; all if it is absent.
    pub affinities: BTreeMap<u32, ProcessorSet>,
    /// The traffic quotas, by key.
    pub quotas: BTreeMap<u64, QuotaState>,
    /// Groups and policies that keep processor time.
    pub processor: processor_time::FakeProcessorTime,
    clock: u64,
}

/// The part of netnice's state that is in force on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InForce {
    /// Classes and limits.
    pub desired: Desired,
    /// Members of process and executable targets.
    pub members: Members,
    /// Executables, by target.
    pub apps: BTreeMap<u32, String>,
    /// Control groups, by target.
    pub groups: BTreeMap<u32, u64>,
    /// Users, by target.
    pub users: BTreeMap<u32, u32>,
}

/// A process.
#[derive(Clone, Debug)]
pub(crate) struct FakeProcess {
    /// The process's identity.
    pub process: Process,
    /// The pid of the process's parent.
    pub parent: u32,
    /// The process's control group.
    pub cgroup: String,
    /// The process's executable.
    pub runs: Option<AppKey>,
}

/// The number of the machine's network namespace.
pub(crate) const NETWORK: u64 = 4_026_531_840;

impl FakeMachine {
    /// Starts a process under init.
    pub(crate) fn spawn(&mut self, pid: u32, uid: u32) {
        self.clock += 1;
        let process = Process {
            root: ProcessId {
                pid,
                started: self.clock,
            },
            uid,
            dumpable: true,
            name: format!("p{pid}"),
            in_own_network: Some(true),
        };
        let living = FakeProcess {
            process,
            parent: 1,
            cgroup: "/".to_owned(),
            runs: None,
        };
        self.processes.insert(pid, living);
    }

    /// Forks a child, which inherits the memberships.
    pub(crate) fn fork(&mut self, parent: u32, child: u32) {
        let Some(living) = self.processes.get(&parent).cloned() else {
            return;
        };
        self.spawn(child, living.process.uid);
        if let Some(new) = self.processes.get_mut(&child) {
            new.parent = parent;
            new.cgroup = living.cgroup;
            new.runs = living.runs;
        }
        if let Some(membership) = self.in_force.members.get(&parent).copied() {
            self.in_force.members.insert(child, membership);
        }
    }

    /// Ends a process; its children become init's.
    pub(crate) fn exit(&mut self, pid: u32) {
        self.processes.remove(&pid);
        self.in_force.members.remove(&pid);
        for living in self.processes.values_mut() {
            if living.parent == pid {
                living.parent = 1;
            }
        }
    }

    /// The id of the target that a process belongs to by descent; 0: none.
    pub(crate) fn own(&self, pid: u32) -> u32 {
        self.in_force.members.get(&pid).map_or(0, |m| m.0)
    }

    /// Passes a packet of a target as the eBPF programs do: it counts for every quota of the
    /// target, if it fits into all. True if it passes.
    pub(crate) fn pass(&mut self, target: u32, up: bool, bytes: u64) -> bool {
        let mut targets = self.in_force.desired.targets.iter();
        let keys = targets
            .find(|it| it.id == target)
            .map(|it| it.quotas.clone());
        let mut charged = Vec::new();
        for key in keys.unwrap_or_default() {
            let Some(state) = self.quotas.get_mut(&key) else {
                continue;
            };
            if !(if up { state.entry.up } else { state.entry.down }) {
                continue;
            }
            let after = state.bytes.wrapping_sub(state.entry.base) + bytes;
            if state.entry.limit.is_some_and(|limit| after > limit) {
                state.refused += 1;
                for key in charged {
                    if let Some(state) = self.quotas.get_mut(&key) {
                        state.bytes -= bytes;
                    }
                }
                return false;
            }
            state.bytes += bytes;
            charged.push(key);
        }
        true
    }

    fn step(&mut self) -> Result<(), RequestError> {
        match &mut self.fails_in {
            Some(0) => {
                self.fails_in = None;
                Err(RequestError::Failed("the machine says no".to_owned()))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn set_own(&mut self, pid: u32, own: u32) {
        let entry = self.in_force.members.entry(pid).or_default();
        entry.0 = own;
        if *entry == (0, 0) {
            self.in_force.members.remove(&pid);
        }
    }

    fn set_app(&mut self, pid: u32, app: u32) {
        let entry = self.in_force.members.entry(pid).or_default();
        entry.1 = app;
        if *entry == (0, 0) {
            self.in_force.members.remove(&pid);
        }
    }

    fn adoption(processes: usize) -> Adoption {
        Adoption {
            processes,
            ..Adoption::default()
        }
    }
}

impl Inventory for FakeMachine {
    fn process(&mut self, pid: u32) -> Option<Process> {
        self.processes.get(&pid).map(|l| l.process.clone())
    }

    fn processes_named(&mut self, command: &str) -> Vec<Process> {
        let processes = self.processes.values().map(|living| &living.process);
        let named = processes.filter(|process| process.name == command);
        named.cloned().collect()
    }

    fn network_namespace(&mut self) -> Option<u64> {
        Some(NETWORK)
    }

    fn place(&mut self, pid: u32) -> TargetPlace {
        let (own, app) = self.in_force.members.get(&pid).copied().unwrap_or_default();
        let living = self.processes.get(&pid);
        let number = |id: u32| (id != 0).then_some(id);
        TargetPlace {
            own: number(own),
            app: number(app),
            cgroup: living.map(|l| l.cgroup.clone()),
            uid: living.map(|l| l.process.uid),
        }
    }

    fn family(&mut self, pid: u32) -> BTreeSet<u32> {
        let mut found = BTreeSet::from([pid]);
        loop {
            let before = found.len();
            let born = self
                .processes
                .iter()
                .filter(|(_, living)| found.contains(&living.parent));
            let born: Vec<u32> = born.map(|(pid, _)| *pid).collect();
            found.extend(born);
            if found.len() == before {
                return found;
            }
        }
    }

    fn parent(&mut self, pid: u32) -> Option<u32> {
        self.processes.get(&pid).map(|living| living.parent)
    }

    fn running(&mut self, app: AppKey) -> BTreeSet<u32> {
        let running = self.processes.iter().filter(|(_, l)| l.runs == Some(app));
        let running: Vec<u32> = running.map(|(pid, _)| *pid).collect();
        running
            .into_iter()
            .flat_map(|pid| self.family(pid))
            .collect()
    }

    fn membership(&mut self, pid: u32) -> (u32, u32) {
        self.in_force.members.get(&pid).copied().unwrap_or_default()
    }

    fn members(&mut self) -> Result<Members, RequestError> {
        Ok(self.in_force.members.clone())
    }

    fn app(&mut self, path: &str) -> Result<AppKey, RequestError> {
        let none = || RequestError::Failed(format!("there is no program at {path}"));
        self.apps.get(path).copied().ok_or_else(none)
    }

    fn group_ids(&mut self, path: &str) -> BTreeSet<u64> {
        let inside = |group: &&String| crate::ledger::place::contains(path, group);
        let paths = self.groups.keys().filter(inside);
        paths.map(|path| self.groups[path]).collect()
    }

    fn cgroup(&mut self, path: &str) -> Result<CgroupRef, RequestError> {
        let none = || RequestError::Failed(format!("there is no cgroup {path}"));
        let id = self.groups.get(path).copied().ok_or_else(none)?;
        Ok(CgroupRef {
            path: path.to_owned(),
            id,
        })
    }

    fn unit(&mut self, name: &str) -> Result<CgroupRef, RequestError> {
        let end = format!("/{name}");
        let found = self.groups.keys().find(|path| path.ends_with(&end));
        match found.cloned() {
            Some(path) => self.cgroup(&path),
            None => Err(RequestError::Failed(format!("there is no unit {name}"))),
        }
    }

    fn container(&mut self, name: &str) -> Result<CgroupRef, RequestError> {
        let end = format!("/{name}.scope");
        let found = self.groups.iter().find(|(path, _)| path.ends_with(&end));
        let (path, id) =
            found.ok_or_else(|| RequestError::Failed(format!("no container {name}")))?;
        Ok(CgroupRef {
            path: path.clone(),
            id: *id,
        })
    }

    fn running_units(&mut self) -> BTreeSet<String> {
        let names = self
            .groups
            .keys()
            .filter_map(|path| path.rsplit('/').next());
        names.map(str::to_owned).collect()
    }

    fn user(&mut self, name: &str) -> Result<u32, RequestError> {
        let named = self.users.get(name).copied();
        named
            .or_else(|| name.parse().ok())
            .ok_or_else(|| RequestError::Failed(format!("there is no user {name}")))
    }

    fn interfaces(&mut self) -> Result<Vec<Interface>, RequestError> {
        let interface = |(n, (name, up)): (usize, (&String, &bool))| Interface {
            name: name.clone(),
            index: n as u32 + 1,
            up: *up,
        };
        Ok(self.interfaces.iter().enumerate().map(interface).collect())
    }

    fn leads_to(&mut self, interface: &str, _host: IpAddr) -> Result<bool, RequestError> {
        Ok(self.default_route.as_deref() == Some(interface))
    }

    fn speed(&mut self, interface: &str) -> Result<Option<Rate>, RequestError> {
        Ok(self.speeds.get(interface).copied())
    }

    fn connections(&mut self, of: Option<&Found>) -> Result<Vec<Connection>, RequestError> {
        let Some(of) = of else {
            let all = self.connections.iter();
            return Ok(all.map(|(_, connection)| connection.clone()).collect());
        };
        let of = match of {
            Found::Processes(pids) => pids.iter().copied().collect(),
            Found::App(path) => {
                let key = self.app(path)?;
                self.running(key)
            }
            Found::Cgroup(path) => {
                let inside = |l: &&FakeProcess| l.cgroup.starts_with(path);
                let inside = self.processes.values().filter(inside);
                inside.map(|living| living.process.root.pid).collect()
            }
            Found::User(uid) => {
                let theirs = self.processes.values().filter(|l| l.process.uid == *uid);
                theirs.map(|living| living.process.root.pid).collect()
            }
        };
        let theirs =
            |(pid, connection): &(u32, Connection)| of.contains(pid).then(|| connection.clone());
        Ok(self.connections.iter().filter_map(theirs).collect())
    }
}

impl ProcessorHost for FakeMachine {
    fn processors(&mut self) -> Processors {
        let two = || Processors {
            online: [0, 1].into(),
            admitted_ppm: 900_000,
            others: Vec::new(),
        };
        self.processors.clone().unwrap_or_else(two)
    }

    fn allowed_processors(&mut self, pids: &BTreeSet<u32>) -> ProcessorSet {
        let all = self.processors().online;
        let allowed = |pid: &u32| self.affinities.get(pid).unwrap_or(&all).clone();
        let living = pids.iter().filter(|pid| self.processes.contains_key(pid));
        living.flat_map(allowed).collect()
    }

    fn group_processes(&mut self, path: &str) -> BTreeSet<u32> {
        let inside = |living: &&FakeProcess| crate::ledger::place::contains(path, &living.cgroup);
        let inside = self.processes.values().filter(inside);
        inside.map(|living| living.process.root.pid).collect()
    }
}

impl QuotaCounter for FakeMachine {
    fn set_quotas(&mut self, quotas: &BTreeMap<u64, QuotaEntry>) -> Result<(), RequestError> {
        self.quotas.retain(|key, _| quotas.contains_key(key));
        for (key, entry) in quotas {
            let state = self.quotas.entry(*key).or_insert(QuotaState {
                entry: *entry,
                bytes: 0,
                refused: 0,
                live: true,
            });
            state.entry = *entry;
        }
        Ok(())
    }

    fn quotas(&mut self) -> Result<BTreeMap<u64, QuotaState>, RequestError> {
        Ok(self.quotas.clone())
    }
}

impl Meter for FakeMachine {
    fn sample(&mut self) -> Result<Sample, RequestError> {
        Ok(self.sample.clone())
    }

    fn interface_traffic(&mut self) -> Result<InterfaceTraffic, RequestError> {
        Ok(self.seen.clone())
    }

    fn sent_on(&self, link: &str) -> Option<u64> {
        self.sent.get(link).copied()
    }

    fn path_counter(&self, _link: &str) -> Result<Option<PathCounter>, RequestError> {
        let map =
            File::open("/dev/zero").map_err(|error| RequestError::Failed(error.to_string()))?;
        Ok(Some(PathCounter {
            place: 1,
            map_id: 1,
            map: map.into(),
        }))
    }

    fn redirects(&self, link: &str) -> Result<Option<Redirects>, RequestError> {
        let mut links = self.in_force.desired.links.iter();
        if !links.any(|one| one.name == link && one.has_redirects) {
            return Ok(None);
        }
        let map =
            File::open("/dev/zero").map_err(|error| RequestError::Failed(error.to_string()))?;
        Ok(Some(Redirects {
            far: format!("far-{link}"),
            far_index: 40 + self.remade_pairs,
            map_id: 2,
            map: map.into(),
        }))
    }
}
