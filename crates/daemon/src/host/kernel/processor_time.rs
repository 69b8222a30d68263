//! [`ProcessorHost`] and [`ProcessorTime`] with `netnice_kernel::processor`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use netnice_core::admission::processors::{Processors, Reservation};
use netnice_core::contract::Slice;
use netnice_core::units::Nanos;
use netnice_kernel::processor::groups::{CertainShare, Group, GroupUsage, Groups, Home};
use netnice_kernel::processor::policy::{self, Deadline, Policy};
use netnice_kernel::processor::{ProcessorSet, host};
use netnice_kernel::{KernelError, cgroup, process};
use rustix::io::Errno;

use super::KernelHost;
use crate::error::RequestError;
use crate::host::ProcessorHost;
use crate::host::processor_time::{DriverBefore, GroupName, NotExact, ProcessorTime};

impl KernelHost {
    fn groups(&self) -> Result<Groups, KernelError> {
        Groups::find(&self.processor_key)
    }

    fn group(&self, group: &GroupName) -> Result<Group, KernelError> {
        Ok(self.groups()?.group(&group.name, &group.home))
    }
}

impl ProcessorHost for KernelHost {
    fn processors(&mut self) -> Processors {
        let foreign = host::reserved_threads().into_iter();
        let foreign = foreign.filter(|one| !self.reserved.contains(&one.thread));
        let others = foreign.filter_map(|one| {
            Some(Reservation {
                holder: format!("SCHED_DEADLINE of {} (pid {})", one.name, one.pid),
                slice: Slice::new(one.budget, one.period, false).ok()?,
                processors: one.processors,
            })
        });
        Processors {
            online: host::online(),
            admitted_ppm: host::admitted_ppm(),
            others: others.collect(),
        }
    }

    fn allowed_processors(&mut self, pids: &BTreeSet<u32>) -> ProcessorSet {
        pids.iter().flat_map(|pid| host::allowed(*pid)).collect()
    }

    fn group_processes(&mut self, path: &str) -> BTreeSet<u32> {
        let group = cgroup::find(path).ok();
        let processes = group.map(|group| cgroup::processes(&group));
        processes.unwrap_or_default().into_iter().collect()
    }
}

impl ProcessorTime for KernelHost {
    fn check_process(&mut self, group: &GroupName, pid: u32) -> Result<(), RequestError> {
        let refuse = |why: String| {
            Err(RequestError::NotAdmitted(format!(
                "refused: process {pid} {why}"
            )))
        };
        if process::is_kernel_thread(pid) {
            return refuse("is a kernel thread, which gets no reservation".to_owned());
        }
        for thread in process::threads(pid) {
            match policy::policy(thread) {
                Ok(Policy::Other | Policy::Number(_)) => {}
                Ok(other) => {
                    return refuse(format!(
                        "has a thread ({thread}) with {other}, which a reservation would replace; give it SCHED_OTHER first (`chrt -o -p 0 \
                         {thread}`)"
                    ));
                }
                Err(error) if is_ended(&error) => {}
                Err(error) => return refuse(format!("cannot be examined: {error}")),
            }
        }
        let groups = self.groups()?;
        let home = groups.home(pid)?;
        if groups.version() == 2 && home != group.home {
            return refuse(format!(
                "is in the control group {}, and the target's first process in {}: with control \
                 groups of version 2 a reservation is kept within one",
                home.cpu, group.home.cpu
            ));
        }
        match groups.obstacle(pid, &home) {
            Some(why) => refuse(format!("gets no reservation: {why}")),
            None => Ok(()),
        }
    }

    fn inherit_nice(&mut self, from: u32, threads: &[u32]) -> Result<(), RequestError> {
        match policy::inherit_nice(from, threads) {
            Err(error) if !is_ended(&error) => Err(RequestError::Failed(format!(
                "cannot give the threads of {from} its nice value: {error}"
            ))),
            _ => Ok(()),
        }
    }

    fn processes_of_user(&mut self, uid: u32) -> BTreeSet<u32> {
        let mut pids = process::all();
        pids.retain(|pid| process::facts(*pid).is_some_and(|facts| facts.uid == uid));
        pids.into_iter().collect()
    }

    fn home(&mut self, pid: u32) -> Result<Home, RequestError> {
        Ok(self.groups()?.home(pid)?)
    }

    fn open_group(&mut self, group: &GroupName) -> Result<bool, RequestError> {
        Ok(self.groups()?.open(&group.name, &group.home)?)
    }

    fn lacking_cpu(&mut self, group: &GroupName) -> Vec<String> {
        let groups = self.groups();
        groups.map_or_else(|_| Vec::new(), |groups| groups.lacking(&group.home))
    }

    fn stop_passing_on(&mut self, path: &str) -> Result<(), RequestError> {
        Ok(self.groups()?.stop_passing_on(path)?)
    }

    fn take(&mut self, group: &GroupName, pid: u32) -> Result<(), RequestError> {
        Ok(self.group(group)?.take(pid)?)
    }

    fn give_back(&mut self, group: &GroupName, pid: u32, home: &Home) -> Result<(), RequestError> {
        Ok(self.group(group)?.give_back(pid, home)?)
    }

    fn remove_group(&mut self, group: &GroupName) -> Result<(), RequestError> {
        Ok(self.group(group)?.remove()?)
    }

    fn threads(&mut self, group: &GroupName) -> Vec<u32> {
        self.group(group)
            .map_or_else(|_| Vec::new(), |group| group.threads())
    }

    fn process_of(&mut self, thread: u32) -> Option<u32> {
        process::thread_group(thread)
    }

    fn set_group(
        &mut self,
        group: &GroupName,
        weight: u32,
        quota: Option<(Nanos, Nanos)>,
    ) -> Result<(), RequestError> {
        let group = self.group(group)?;
        group.set_weight(weight)?;
        Ok(group.set_quota(quota)?)
    }

    fn certain_share(&mut self, group: &GroupName) -> Option<CertainShare> {
        let groups = self.groups().ok()?;
        groups.certain_share(&group.name, &group.home)
    }

    fn usage(&mut self, group: &GroupName) -> GroupUsage {
        self.group(group)
            .map_or_else(|_| GroupUsage::default(), |group| group.usage())
    }

    fn waited(&mut self, threads: &[u32]) -> Nanos {
        Nanos(threads.iter().map(|thread| host::waited(*thread).0).sum())
    }

    fn busy(&mut self) -> BTreeMap<u32, Nanos> {
        host::busy()
    }

    fn reserve(
        &mut self,
        group: &GroupName,
        thread: u32,
        budget: Nanos,
        period: Nanos,
    ) -> Result<Option<ProcessorSet>, NotExact> {
        let group = self.group(group);
        let group = group.map_err(|error| NotExact::Refused(error.to_string()))?;
        match policy::policy(thread) {
            Ok(Policy::Other | Policy::Deadline(_)) => {}
            Ok(own) => {
                let why = format!("its thread has {own}, a policy of its own, which it keeps");
                return Err(NotExact::Refused(why));
            }
            Err(error) => {
                let why = format!("thread {thread} cannot be examined: {error}");
                return Err(NotExact::Refused(why));
            }
        }
        let time = Deadline::exactly(budget, period);
        let reserved = group.reserve(thread, time, &host::online(), true);
        if reserved.is_ok() {
            self.reserved.insert(thread);
        }
        reserved.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => NotExact::Busy,
            Some(Errno::PERM) => NotExact::Refused(format!(
                "SCHED_DEADLINE for thread {thread}: {error} (it needs CAP_SYS_NICE and all \
                 processors; `netnice doctor` says which is missing)"
            )),
            _ => NotExact::Refused(format!("SCHED_DEADLINE for thread {thread}: {error}")),
        })
    }

    fn reserve_driver(
        &mut self,
        name: &str,
        thread: u32,
        budget: Nanos,
        period: Nanos,
    ) -> Result<DriverBefore, NotExact> {
        let refused = |why: String| NotExact::Refused(format!("{name}: {why}"));
        let groups = self.groups().map_err(|error| refused(error.to_string()))?;
        let home = groups
            .home(thread)
            .map_err(|error| refused(error.to_string()))?;
        let policy = policy::policy(thread).map_err(|error| refused(error.to_string()))?;
        let priority = match policy {
            Policy::Fifo(priority) => Some(priority),
            _ => None,
        };
        let group = groups.group(name, &home);
        // What comes suddenly takes longer than a budget that follows the use of some seconds, and
        // the kernel counts time that the machine did not give as used.
        let time = Deadline {
            reclaims: true,
            ..Deadline::exactly(budget, period)
        };
        let reserved = group.reserve(thread, time, &host::online(), false);
        match reserved {
            Ok(affinity) => {
                self.reserved.insert(thread);
                Ok(DriverBefore {
                    priority,
                    affinity,
                    home,
                })
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Err(NotExact::Busy),
            Err(error) => Err(refused(format!(
                "SCHED_DEADLINE for its packet thread: {error}"
            ))),
        }
    }

    fn release_driver(
        &mut self,
        name: &str,
        thread: u32,
        before: &DriverBefore,
    ) -> Result<(), RequestError> {
        self.reserved.remove(&thread);
        let groups = self.groups()?;
        let release = || -> io::Result<()> {
            match before.priority {
                Some(priority) => policy::set_fifo(thread, priority),
                None => policy::set_other(thread),
            }
        };
        match release() {
            Err(error) if is_ended(&error) => {}
            Err(error) => {
                return Err(RequestError::Failed(format!(
                    "cannot give {name} its former policy: {error}"
                )));
            }
            Ok(()) => {}
        }
        groups
            .group(name, &before.home)
            .release_from_cpuset(thread, &before.home)?;
        match before
            .affinity
            .as_ref()
            .map(|set| policy::set_affinity(thread, set))
        {
            Some(Err(error)) if !is_ended(&error) => Err(RequestError::Failed(format!(
                "cannot give {name} its former processors: {error}"
            ))),
            _ => Ok(()),
        }
    }

    fn thread_start(&mut self, thread: u32) -> Option<u64> {
        process::start_time(thread)
    }

    fn deadline(&mut self, thread: u32) -> Option<(Nanos, Nanos)> {
        match policy::policy(thread) {
            Ok(Policy::Deadline(time)) => Some((time.budget, time.period)),
            _ => None,
        }
    }

    fn forget(&mut self, thread: u32) {
        self.reserved.remove(&thread);
    }

    fn resume(&mut self, thread: u32) {
        self.reserved.insert(thread);
    }

    fn release(
        &mut self,
        thread: u32,
        affinity: Option<&ProcessorSet>,
    ) -> Result<(), RequestError> {
        let counts = self.reserved.contains(&thread);
        let release = || -> io::Result<()> {
            if counts && let Policy::Deadline(_) = policy::policy(thread)? {
                policy::set_other(thread)?;
            }
            match affinity {
                Some(affinity) => policy::set_affinity(thread, affinity),
                None => Ok(()),
            }
        };
        match release() {
            Err(error) if !is_ended(&error) => Err(RequestError::Failed(format!(
                "cannot give thread {thread} its ordinary policy: {error}"
            ))),
            _ => {
                self.reserved.remove(&thread);
                Ok(())
            }
        }
    }
}

/// True if an error means that the thread has ended.
fn is_ended(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::SRCH) || error.kind() == io::ErrorKind::NotFound
}
