//! The machine as traits: what exists on it, what is in force, and what was counted.
//!
//! The parts that handle requests and keep limits in force (`service`, `reconcile`, `meter`,
//! `policy`) reach processes, control groups, interfaces and the kernel's classes through these
//! traits. Each part takes only those that it needs. [`crate::flows`] has a trait of its own for
//! the network.
//!
//! - [`Inventory`] reads what exists;
//! - [`Enforcer`] applies the desired classes, binds processes to targets, and checks and repairs
//!   what is in force;
//! - [`Meter`] reads the counts;
//! - [`QuotaCounter`] sets and reads the traffic quotas;
//! - [`ProcessorHost`] reads what the processors can be promised;
//! - [`ProcessorTime`] keeps reservations of processor time.
//!
//! A method that can fail returns a [`RequestError`]: the named thing does not exist, or the kernel
//! refuses. [`kernel::KernelHost`] is the Linux kernel. Tests use a fake machine, on which
//! processes start and end at the calls of the test, and changes can fail.

pub(crate) mod containers;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod kernel;
pub(crate) mod processor_time;
mod processors;
mod traffic_quotas;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use netnice_api::Found;
use netnice_core::units::{Instant, Nanos, Rate};
use netnice_kernel::connections::Connection;
use netnice_kernel::enforce::{
    Adoption, ContainerPlacement, PathCounter, Recovered, Redirects, Sample, TargetClass,
};
use netnice_kernel::netlink::NetlinkClient;
use netnice_kernel::plan::Desired;
use netnice_kernel::traffic::ByteCounts;
use netnice_kernel::{KernelError, routes};

pub(crate) use processor_time::ProcessorTime;
pub(crate) use processors::ProcessorHost;
pub(crate) use traffic_quotas::QuotaCounter;

use crate::error::RequestError;
use crate::ledger::{AppKey, CgroupRef, ProcessId, TargetPlace};

/// The identity of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// The process's pid and start time.
    pub root: ProcessId,
    /// The process's real uid.
    pub uid: u32,
    /// True if only its real user controls it ([`netnice_kernel::process::Facts::dumpable`]).
    pub dumpable: bool,
    /// The process's command name.
    pub name: String,
    /// True if the process is in the daemon's network namespace: limits and flows apply in no other
    /// one. `None` if the process's namespace cannot be read.
    pub in_own_network: Option<bool>,
}

impl Process {
    /// Checks that the process is not in another network namespace than the daemon.
    ///
    /// # Errors
    /// [`RequestError::NotPermitted`], if it is in another one.
    pub(crate) fn check_network(&self) -> Result<(), RequestError> {
        match self.in_own_network {
            Some(true) | None => Ok(()),
            Some(false) => Err(RequestError::NotPermitted(format!(
                "process {} ({}) is in another network namespace than this netniced, whose limits \
                 and flows do not reach there; limit its container (container:NAME), or use a \
                 netniced of that namespace, with a --runtime-dir of its own",
                self.root.pid, self.name
            ))),
        }
    }
}

/// By pid, the ids of the targets that the process is a member of: by descent, and by executable.
/// 0: none.
pub(crate) type Members = BTreeMap<u32, (u32, u32)>;

/// The rights with which the executable or the user that a request names is looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum LookupRights {
    /// Root's rights; the event loop waits for the result.
    #[default]
    AsRoot,
    /// A user's rights: the path in the request was looked up before. Contains the path and the
    /// result.
    AsUser(String, Result<AppKey, String>),
    /// The name service was asked for the user in the request before. Contains the name and the
    /// uid, `None` if there is no such user.
    NamedUser(String, Option<u32>),
    /// No look-up: the request of an unprivileged user names nothing that needs one.
    NoLookup,
}

/// Bytes that have passed so far, by interface name.
pub(crate) type InterfaceTraffic = BTreeMap<String, ByteCounts>;

/// An interface of the daemon's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The interface's name.
    pub name: String,
    /// The interface's index.
    pub index: u32,
    /// True if the interface is up.
    pub up: bool,
}

/// One step of binding or releasing what a target consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Makes a process and, unless `only`, its descendants members of a target.
    Adopt {
        /// The target.
        id: u32,
        /// The process.
        pid: u32,
        /// True to leave out its descendants.
        only: bool,
        /// Targets whose members stay in them. Their descendants become members of them too.
        keep: BTreeSet<u32>,
    },
    /// Makes processes members of the targets that released them.
    Readopt {
        /// The target of each process.
        members: BTreeMap<u32, u32>,
    },
    /// Releases the members of process targets to the targets around these. One act takes several
    /// targets, because each pass over the members takes time proportional to their number.
    Release {
        /// The target around each target.
        outer_targets: BTreeMap<u32, Option<u32>>,
        /// By pid, for some members: the target that takes over the member instead, because an
        /// ancestor of the member belongs to it.
        by_descent: BTreeMap<u32, u32>,
    },
    /// Binds an executable: the processes that run it are members of the target.
    BindApp {
        /// The target.
        id: u32,
        /// The path of the executable.
        path: String,
    },
    /// Releases an executable: its processes leave the target.
    UnbindApp {
        /// The target.
        id: u32,
        /// The path of the executable.
        path: String,
    },
    /// Binds a control group: the processes in it and below it belong to the target.
    BindCgroup {
        /// The target.
        id: u32,
        /// The group.
        bound: CgroupRef,
    },
    /// Releases a control group and the former groups of the target.
    UnbindCgroup {
        /// The target.
        id: u32,
        /// The group; `None` if it is gone already.
        bound: Option<CgroupRef>,
    },
    /// Binds a user: the sockets that the user creates belong to the target.
    BindUser {
        /// The target.
        id: u32,
        /// The user.
        uid: u32,
    },
    /// Releases a user.
    UnbindUser {
        /// The target.
        id: u32,
        /// The user.
        uid: u32,
    },
}

impl Act {
    /// Releases the members of one process target to `outer`, or to no target.
    pub(crate) fn release(id: u32, outer: Option<u32>) -> Act {
        Act::Release {
            outer_targets: BTreeMap::from([(id, outer)]),
            by_descent: BTreeMap::new(),
        }
    }

    /// Releases all members of the targets in `members` to no target: undoes [`Act::Readopt`].
    pub(crate) fn release_again(members: &BTreeMap<u32, u32>) -> Act {
        Act::Release {
            outer_targets: members.values().map(|id| (*id, None)).collect(),
            by_descent: BTreeMap::new(),
        }
    }

    /// True if the act releases something.
    pub(crate) fn releases(&self) -> bool {
        matches!(
            self,
            Act::Release { .. }
                | Act::UnbindApp { .. }
                | Act::UnbindCgroup { .. }
                | Act::UnbindUser { .. }
        )
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Adopt { pid, only, .. } => match only {
                true => write!(f, "take in process {pid}"),
                false => write!(f, "take in process {pid} and its descendants"),
            },
            Act::Readopt { members } => write!(f, "take in {} processes", members.len()),
            Act::Release { outer_targets, .. } => match outer_targets.len() {
                1 => f.write_str("let its processes go"),
                targets => write!(f, "let the processes of {targets} targets go"),
            },
            Act::BindApp { path, .. } => write!(f, "take in what runs {path}"),
            Act::UnbindApp { path, .. } => write!(f, "let go what runs {path}"),
            Act::BindCgroup { bound, .. } => write!(f, "take in control group {}", bound.path),
            Act::UnbindCgroup { bound, .. } => match bound {
                Some(bound) => write!(f, "let go control group {}", bound.path),
                None => f.write_str("wait for a control group no longer"),
            },
            Act::BindUser { uid, .. } => write!(f, "take in user {uid}"),
            Act::UnbindUser { uid, .. } => write!(f, "let go user {uid}"),
        }
    }
}

/// What exists on the machine: processes, executables, control groups, users, interfaces. The
/// methods change nothing in the kernel.
pub(crate) trait Inventory {
    /// The process with this pid; `None` if there is none.
    fn process(&mut self, pid: u32) -> Option<Process>;
    /// The inode number of the daemon's network namespace; `None` if it cannot be read.
    fn network_namespace(&mut self) -> Option<u64>;
    /// The facts that determine which targets contain a process.
    fn place(&mut self, pid: u32) -> TargetPlace;
    /// The processes with this command name, by pid.
    fn processes_named(&mut self, command: &str) -> Vec<Process>;
    /// A process and its living descendants.
    fn family(&mut self, pid: u32) -> BTreeSet<u32>;
    /// The pid of a process's parent; `None` if the process has ended.
    fn parent(&mut self, pid: u32) -> Option<u32>;
    /// The processes that run an executable, and their living descendants.
    fn running(&mut self, app: AppKey) -> BTreeSet<u32>;
    /// The ids of the targets that a process is a member of: by descent, and by executable. 0:
    /// none.
    fn membership(&mut self, pid: u32) -> (u32, u32);
    /// The members of all targets.
    fn members(&mut self) -> Result<Members, RequestError>;
    /// The executable at a path, looked up with the rights of [`Inventory::set_lookup_rights`].
    /// Fails if there is none, or the rights do not allow the look-up.
    fn app(&mut self, path: &str) -> Result<AppKey, RequestError>;
    /// The control group at a path. Fails if there is none.
    fn cgroup(&mut self, path: &str) -> Result<CgroupRef, RequestError>;
    /// The ids of a control group and of the groups below it; none if it does not exist.
    fn group_ids(&mut self, path: &str) -> BTreeSet<u64>;
    /// The control group of a unit. Fails if there is none.
    fn unit(&mut self, name: &str) -> Result<CgroupRef, RequestError>;
    /// The control group of a container, by name or id. Fails if there is none.
    fn container(&mut self, name: &str) -> Result<CgroupRef, RequestError>;
    /// The names of the units that have a control group.
    fn running_units(&mut self) -> BTreeSet<String>;
    /// The uid of a user, by name or number. Fails if there is no user of this name.
    fn user(&mut self, name: &str) -> Result<u32, RequestError>;
    /// The interfaces.
    fn interfaces(&mut self) -> Result<Vec<Interface>, RequestError>;
    /// True if packets to a host leave over an interface, by a router or over a point-to-point
    /// link. The default asks the kernel of this machine.
    fn leads_to(&mut self, interface: &str, host: IpAddr) -> Result<bool, RequestError> {
        let interfaces = self.interfaces()?;
        let Some(found) = interfaces.iter().find(|i| i.name == interface) else {
            return Ok(false);
        };
        let mut netlink = NetlinkClient::open().map_err(KernelError::from)?;
        let leads = routes::leads_over(&mut netlink, host, found.index);
        Ok(leads.map_err(KernelError::from)?)
    }
    /// The speed that an interface's driver reports; `None` if it reports none.
    fn speed(&mut self, interface: &str) -> Result<Option<Rate>, RequestError>;
    /// The sockets of these processes, of the processes that run an executable or are in a control
    /// group or below it, or the sockets that a user has created. `None`: all sockets of the
    /// network namespace.
    fn connections(&mut self, of: Option<&Found>) -> Result<Vec<Connection>, RequestError>;
    /// Sets the rights for look-ups of executables, until the next call.
    fn set_lookup_rights(&mut self, _sight: LookupRights) {}
}

/// What is in force on the kernel path: classes, limits, and the members of targets. The parts that
/// use [`Inventory`] change the kernel path only through this trait.
pub(crate) trait Enforcer {
    /// Makes the kernel's classes the desired ones. If it fails, they stay as they were.
    fn apply(&mut self, desired: &Desired) -> Result<(), RequestError>;
    /// Carries out an act; returns what was found, and the act that undoes it. If the act fails, it
    /// is undone as far as possible.
    fn act(&mut self, act: &Act) -> Result<(Adoption, Act), RequestError>;
    /// Sets the control groups that belong to a target from their creation, with the target's id:
    /// by path, or by the last component of the path for a group that has only slices around it.
    fn expect_groups(&mut self, names: &BTreeMap<String, u32>) -> Result<(), RequestError>;
    /// Sets the targets that are containers, with the control group of each running one. Returns
    /// how they are connected to this namespace.
    fn place_containers(
        &mut self,
        groups: &BTreeMap<u32, Option<String>>,
    ) -> Result<BTreeMap<u32, ContainerPlacement>, RequestError>;
    /// Divides the left-over of managed links again. `now` is the time of the call.
    fn balance(&mut self, now: Instant) -> Result<(), RequestError>;
    /// Reads the interfaces again, and repairs what differs from the installed state.
    fn reconcile(&mut self) -> Result<(), RequestError>;
    /// A text for each difference from the installed state. Unless `anew`, the classes are those
    /// that the last [`Meter::sample`] read.
    fn audit(&mut self, anew: bool) -> Result<Vec<String>, RequestError>;
    /// Maintains the kernel's tables that change over time; returns what needs attention. The
    /// caller calls it each second.
    fn maintain_tables(&mut self) -> Result<Vec<String>, RequestError> {
        Ok(Vec::new())
    }
    /// The number of unfinished passes over open sockets of new members.
    fn unfinished_surveys(&self) -> usize {
        0
    }
    /// Continues one of these passes for some milliseconds. If this ends the pass, returns what all
    /// its steps but the first have found, else `None`.
    fn continue_survey(&mut self) -> Result<Option<Adoption>, RequestError> {
        Ok(None)
    }
    /// Drops members that ended while no eBPF program could remove them.
    fn forget_dead(&mut self) -> Result<(), RequestError>;
    /// What an earlier daemon has left in force.
    fn recovered(&mut self) -> Result<Recovered, RequestError>;
    /// True if anything is in force.
    fn is_enforcing(&self) -> bool;
    /// True if the classes of a managed link are on the interface of this index.
    fn serves(&self, link: &str, index: u32) -> bool;
    /// The queues in the classes of links: `fq_codel` or `sparse+bulk`.
    fn link_leaf(&self) -> &'static str;
    /// The interfaces with eBPF programs.
    fn attached(&self) -> Vec<String>;
    /// How the programs are attached: `tcx`, `clsact`, or `nothing` if they are not loaded.
    fn attachment(&self) -> &'static str;
    /// The classes that delay packets of a target.
    fn target_classes(&self, id: u32) -> Vec<TargetClass>;
}

/// What was counted: of targets and their classes, and of interfaces.
pub(crate) trait Meter {
    /// Reads all counts.
    fn sample(&mut self) -> Result<Sample, RequestError>;
    /// Bytes that have passed the interfaces.
    fn interface_traffic(&mut self) -> Result<InterfaceTraffic, RequestError>;
    /// Bytes that the classes of a link had sent at the last [`Enforcer::balance`]; `None` if
    /// unknown.
    fn sent_on(&self, link: &str) -> Option<u64>;
    /// The counter of what the classes of a link are given to send; `None` if the link is not
    /// managed for sending.
    fn path_counter(&self, link: &str) -> Result<Option<PathCounter>, RequestError>;
    /// The time in which the classes of a link send what they have queued of the target with this
    /// id, or of traffic without a target if no class has its packets.
    fn drain_time(&mut self, _link: &str, _id: u32) -> Result<Nanos, RequestError> {
        Ok(Nanos(0))
    }
    /// The redirect pair of a link, and the map of redirects; `None` if the link has no pair.
    fn redirects(&self, link: &str) -> Result<Option<Redirects>, RequestError>;
}

/// A machine with all traits.
pub(crate) trait Host:
    Inventory + Enforcer + Meter + QuotaCounter + ProcessorHost + ProcessorTime
{
}

impl<T> Host for T where
    T: Inventory + Enforcer + Meter + QuotaCounter + ProcessorHost + ProcessorTime
{
}
