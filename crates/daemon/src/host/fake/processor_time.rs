//! [`ProcessorTime`] on the tests' machine: groups and policies are tables, and time passes only in
//! what a test sets.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::units::Nanos;
use netnice_kernel::processor::ProcessorSet;
use netnice_kernel::processor::groups::{CertainShare, GroupUsage, Home, is_around};

use super::FakeMachine;
use crate::error::RequestError;
use crate::host::processor_time::{DriverBefore, GroupName, NotExact, ProcessorTime};

/// Groups and policies of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FakeProcessorTime {
    /// The groups of netnice's own, by name, with what was set.
    pub groups: BTreeMap<String, FakeGroup>,
    /// The group in which each process is, if it is one of netnice's own.
    pub inside: BTreeMap<u32, String>,
    /// The home of each process; others have the root.
    pub homes: BTreeMap<u32, Home>,
    /// Threads beside the first one of each process.
    pub more_threads: BTreeMap<u32, BTreeSet<u32>>,
    /// The start time of each thread; others started at 1.
    pub starts: BTreeMap<u32, u64>,
    /// Threads with a policy of their own.
    pub own_policies: BTreeSet<u32>,
    /// The threads with SCHED_DEADLINE, with budget and period.
    pub exact: BTreeMap<u32, (Nanos, Nanos)>,
    /// The drivers' threads with SCHED_DEADLINE.
    pub drivers: BTreeMap<u32, (Nanos, Nanos)>,
    /// Drivers cannot have a reservation.
    pub no_driver: bool,
    /// The largest budget that the kernel admits for a driver; `None`: each.
    pub most_of_driver: Option<Nanos>,
    /// Groups of others that do not pass the controller `cpu` on.
    pub lacking: BTreeSet<String>,
    /// Groups of others that were made to pass it on.
    pub passing: BTreeSet<String>,
    /// What each group is certain of.
    pub certain: Option<CertainShare>,
    /// Processes that cannot have a reservation.
    pub unfit: BTreeSet<u32>,
    /// The kernel admits no SCHED_DEADLINE.
    pub busy: bool,
    /// How long each processor was busy.
    pub busy_time: BTreeMap<u32, Nanos>,
    /// How long each thread has waited.
    pub waited: BTreeMap<u32, Nanos>,
}

/// A group of netnice's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FakeGroup {
    /// The weight.
    pub weight: u32,
    /// The quota.
    pub quota: Option<(Nanos, Nanos)>,
    /// What it has used.
    pub used: Nanos,
}

impl FakeMachine {
    fn threads_of(&self, pid: u32) -> BTreeSet<u32> {
        let mut threads = BTreeSet::from([pid]);
        threads.extend(self.processor.more_threads.get(&pid).into_iter().flatten());
        threads
    }

    fn present_in(&self, name: &str) -> impl Iterator<Item = u32> {
        let inside = self.processor.inside.iter();
        let here = inside.filter(move |(_, group)| *group == name);
        let alive = here.filter(|(pid, _)| self.processes.contains_key(pid));
        alive.map(|(pid, _)| *pid)
    }
}

impl ProcessorTime for FakeMachine {
    fn check_process(&mut self, _: &GroupName, pid: u32) -> Result<(), RequestError> {
        match self.processor.unfit.contains(&pid) {
            true => Err(RequestError::Failed(format!("process {pid} is unfit"))),
            false => Ok(()),
        }
    }

    fn processes_of_user(&mut self, uid: u32) -> BTreeSet<u32> {
        let own = self
            .processes
            .iter()
            .filter(|(_, one)| one.process.uid == uid);
        own.map(|(pid, _)| *pid).collect()
    }

    fn home(&mut self, pid: u32) -> Result<Home, RequestError> {
        match self.processes.contains_key(&pid) {
            true => Ok(self.processor.homes.get(&pid).cloned().unwrap_or_default()),
            false => Err(RequestError::Failed(format!("process {pid} has ended"))),
        }
    }

    fn open_group(&mut self, group: &GroupName) -> Result<bool, RequestError> {
        let lacking = self.lacking_cpu(group);
        self.processor.passing.extend(lacking);
        let groups = &mut self.processor.groups;
        let is_new = !groups.contains_key(&group.name);
        groups.entry(group.name.clone()).or_default();
        Ok(is_new)
    }

    fn lacking_cpu(&mut self, group: &GroupName) -> Vec<String> {
        let all = self.processor.lacking.difference(&self.processor.passing);
        let around = all.filter(|path| is_around(path, &group.home.cpu));
        around.cloned().collect()
    }

    fn stop_passing_on(&mut self, path: &str) -> Result<(), RequestError> {
        self.processor.passing.remove(path);
        Ok(())
    }

    fn take(&mut self, group: &GroupName, pid: u32) -> Result<(), RequestError> {
        self.step()?;
        self.processor.inside.insert(pid, group.name.clone());
        Ok(())
    }

    fn give_back(&mut self, _: &GroupName, pid: u32, home: &Home) -> Result<(), RequestError> {
        self.processor.inside.remove(&pid);
        self.processor.homes.insert(pid, home.clone());
        Ok(())
    }

    fn remove_group(&mut self, group: &GroupName) -> Result<(), RequestError> {
        self.processor.groups.remove(&group.name);
        Ok(())
    }

    fn threads(&mut self, group: &GroupName) -> Vec<u32> {
        let present = self.present_in(&group.name);
        present.flat_map(|pid| self.threads_of(pid)).collect()
    }

    fn process_of(&mut self, thread: u32) -> Option<u32> {
        let mut pids = self.processes.keys().copied();
        pids.find(|pid| self.threads_of(*pid).contains(&thread))
    }

    fn set_group(
        &mut self,
        group: &GroupName,
        weight: u32,
        quota: Option<(Nanos, Nanos)>,
    ) -> Result<(), RequestError> {
        let groups = &mut self.processor.groups;
        let group = groups.get_mut(&group.name);
        let group = group.ok_or_else(|| RequestError::Failed("no such group".to_owned()))?;
        (group.weight, group.quota) = (weight, quota);
        Ok(())
    }

    fn certain_share(&mut self, _: &GroupName) -> Option<CertainShare> {
        self.processor.certain.clone()
    }

    fn usage(&mut self, group: &GroupName) -> GroupUsage {
        let group = self.processor.groups.get(&group.name);
        GroupUsage {
            used: group.map_or(Nanos(0), |group| group.used),
            ..GroupUsage::default()
        }
    }

    fn waited(&mut self, threads: &[u32]) -> Nanos {
        let waited = |thread| self.processor.waited.get(thread).map_or(0, |time| time.0);
        Nanos(threads.iter().map(waited).sum())
    }

    fn busy(&mut self) -> BTreeMap<u32, Nanos> {
        self.processor.busy_time.clone()
    }

    fn reserve(
        &mut self,
        _: &GroupName,
        thread: u32,
        budget: Nanos,
        period: Nanos,
    ) -> Result<Option<ProcessorSet>, NotExact> {
        if self.processor.busy {
            return Err(NotExact::Busy);
        }
        if self.processor.own_policies.contains(&thread) {
            return Err(NotExact::Refused("it keeps its policy".to_owned()));
        }
        self.processor.exact.insert(thread, (budget, period));
        Ok(None)
    }

    fn inherit_nice(&mut self, _: u32, _: &[u32]) -> Result<(), RequestError> {
        Ok(())
    }

    fn reserve_driver(
        &mut self,
        _: &str,
        thread: u32,
        budget: Nanos,
        period: Nanos,
    ) -> Result<DriverBefore, NotExact> {
        if self.processor.no_driver {
            return Err(NotExact::Refused("the driver has none".to_owned()));
        }
        if self
            .processor
            .most_of_driver
            .is_some_and(|most| budget > most)
        {
            return Err(NotExact::Busy);
        }
        self.processor.drivers.insert(thread, (budget, period));
        Ok(DriverBefore::default())
    }

    fn release_driver(
        &mut self,
        _: &str,
        thread: u32,
        _: &DriverBefore,
    ) -> Result<(), RequestError> {
        self.processor.drivers.remove(&thread);
        Ok(())
    }

    fn thread_start(&mut self, thread: u32) -> Option<u64> {
        self.process_of(thread)?;
        Some(self.processor.starts.get(&thread).copied().unwrap_or(1))
    }

    fn deadline(&mut self, thread: u32) -> Option<(Nanos, Nanos)> {
        self.processor.exact.get(&thread).copied()
    }

    fn forget(&mut self, thread: u32) {
        self.processor.exact.remove(&thread);
    }

    fn resume(&mut self, _: u32) {}

    fn release(&mut self, thread: u32, _: Option<&ProcessorSet>) -> Result<(), RequestError> {
        self.processor.exact.remove(&thread);
        Ok(())
    }
}
