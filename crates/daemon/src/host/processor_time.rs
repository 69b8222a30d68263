//! [`ProcessorTime`], the calls with which reservations of processor time are kept: control groups
//! of netnice's own, and policies of threads. [`crate::processors`] decides; the methods carry out.
//! A method that changes something fails with a [`RequestError`] if the kernel refuses, or if the
//! process has ended.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::units::Nanos;
use netnice_kernel::processor::ProcessorSet;
use netnice_kernel::processor::groups::{CertainShare, GroupUsage, Home};

use crate::error::RequestError;

/// A control group of netnice's own, by its name and the home of its first process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupName {
    /// The name, apart from the daemon's key.
    pub name: String,
    /// Where the group's first process was.
    pub home: Home,
}

/// Why a thread does not get SCHED_DEADLINE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotExact {
    /// The kernel admits no more: somebody else has a reservation.
    Busy,
    /// Another reason.
    Refused(String),
}

/// What a driver's packet thread had before its reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverBefore {
    /// Its real-time priority; `None`: an ordinary policy.
    pub priority: Option<u32>,
    /// Its affinity, if that was changed.
    pub affinity: Option<ProcessorSet>,
    /// Where it was.
    pub home: Home,
}

/// What keeps reservations of processor time on a machine.
pub(crate) trait ProcessorTime {
    /// Checks that a process can have a reservation in a group: it is no kernel thread, none of its
    /// threads has a real-time policy, and no control group around it is frozen or has a quota.
    /// With version 2 of control groups it must also have the home of the group.
    fn check_process(&mut self, group: &GroupName, pid: u32) -> Result<(), RequestError>;
    /// The processes whose real user id is this one.
    fn processes_of_user(&mut self, uid: u32) -> BTreeSet<u32>;
    /// The groups in which a process is.
    fn home(&mut self, pid: u32) -> Result<Home, RequestError>;
    /// Makes a group, or takes over an existing one. True if its weight and quota are not known.
    fn open_group(&mut self, group: &GroupName) -> Result<bool, RequestError>;
    /// The groups of others that do not pass the controller `cpu` on and that
    /// [`ProcessorTime::open_group`] lets pass it on.
    fn lacking_cpu(&mut self, group: &GroupName) -> Vec<String>;
    /// Lets a group of [`ProcessorTime::lacking_cpu`] no longer pass `cpu` on, unless others use
    /// that by now.
    fn stop_passing_on(&mut self, path: &str) -> Result<(), RequestError>;
    /// Moves a process into a group. No effect if it has ended.
    fn take(&mut self, group: &GroupName, pid: u32) -> Result<(), RequestError>;
    /// Moves a process out of a group, to its home. No effect if it has ended.
    fn give_back(&mut self, group: &GroupName, pid: u32, home: &Home) -> Result<(), RequestError>;
    /// Removes an empty group. No effect if it does not exist.
    fn remove_group(&mut self, group: &GroupName) -> Result<(), RequestError>;
    /// The threads in a group.
    fn threads(&mut self, group: &GroupName) -> Vec<u32>;
    /// The process of a thread; `None` if it has ended.
    fn process_of(&mut self, thread: u32) -> Option<u32>;
    /// Sets a group's weight, and its quota as budget and period.
    fn set_group(
        &mut self,
        group: &GroupName,
        weight: u32,
        quota: Option<(Nanos, Nanos)>,
    ) -> Result<(), RequestError>;
    /// What a group is certain of by the weights of the groups beside and around it; `None` if
    /// that is not known.
    fn certain_share(&mut self, group: &GroupName) -> Option<CertainShare>;
    /// What a group has used.
    fn usage(&mut self, group: &GroupName) -> GroupUsage;
    /// How long threads have waited for a processor.
    fn waited(&mut self, threads: &[u32]) -> Nanos;
    /// How long each processor was busy.
    fn busy(&mut self) -> BTreeMap<u32, Nanos>;
    /// Gives a thread of a group `budget` in every `period` exactly. Returns its former affinity if
    /// that had to be changed.
    fn reserve(
        &mut self,
        group: &GroupName,
        thread: u32,
        budget: Nanos,
        period: Nanos,
    ) -> Result<Option<ProcessorSet>, NotExact>;
    /// Gives threads that started while `from` had its time exactly the nice value of `from`.
    fn inherit_nice(&mut self, from: u32, threads: &[u32]) -> Result<(), RequestError>;
    /// Gives a driver's packet thread `budget` in every `period` exactly. `name` names the driver's
    /// group.
    fn reserve_driver(
        &mut self,
        name: &str,
        thread: u32,
        budget: Nanos,
        period: Nanos,
    ) -> Result<DriverBefore, NotExact>;
    /// Gives a driver's packet thread what it had before. No effect if it has ended.
    fn release_driver(
        &mut self,
        name: &str,
        thread: u32,
        before: &DriverBefore,
    ) -> Result<(), RequestError>;
    /// When a thread started, in clock ticks since boot; `None` if it has ended.
    fn thread_start(&mut self, thread: u32) -> Option<u64>;
    /// The budget and the period of a thread with SCHED_DEADLINE; `None` if it has another policy,
    /// or has ended.
    fn deadline(&mut self, thread: u32) -> Option<(Nanos, Nanos)>;
    /// Counts a thread no more as one with its time exactly, because it has ended.
    fn forget(&mut self, thread: u32);
    /// Counts a thread as one that an earlier daemon gave its time exactly.
    fn resume(&mut self, thread: u32);
    /// Gives a thread its ordinary policy again, and its former affinity. The policy stays if the
    /// thread has ended, has another policy by now, or does not count as one with its time exactly.
    fn release(&mut self, thread: u32, affinity: Option<&ProcessorSet>)
    -> Result<(), RequestError>;
}
