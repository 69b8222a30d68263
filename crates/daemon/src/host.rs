//! The machine: who exists on it, what is in force, and what was counted.
//!
//! The other parts know contracts and slots. What these are made of (processes, control groups, interfaces, classes) they
//! ask of three narrow traits, and take no more of them than they need:
//!
//! - [`Inventory`]: who and what exists;
//! - [`Enforcer`]: apply, act, audit;
//! - [`Meter`]: read the counts.
//!
//! [`kernel::KernelHost`] is the Linux kernel. Tests use a machine of their own, on which processes start and end at will
//! and any step can fail.

pub(crate) mod containers;
pub(crate) mod kernel;
#[cfg(test)]
pub(crate) mod machine;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use netnice_core::units::{Instant, Rate};
use netnice_kernel::connections::Connection;
use netnice_kernel::enforce::{Adoption, Found, Housing, Sample, Whereabouts};
use netnice_kernel::plan::Desired;
use netnice_kernel::probe::Finding;
use netnice_kernel::traffic::Passed;

use crate::denied::Denied;
use crate::ledger::{AppKey, Bound, Place, Root};

/// A process, as far as it matters who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number and when it was started.
    pub root: Root,
    /// Its real user.
    pub uid: u32,
    /// Whether users other than root may look into it.
    pub dumpable: bool,
    /// Its command name.
    pub name: String,
}

/// The targets that processes are members of, by process: made by process or name, and by executable. 0: none.
pub(crate) type Members = BTreeMap<u32, (u32, u32)>;

/// What the executables that a request names are looked at with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sight {
    /// With root's rights.
    #[default]
    Roots,
    /// With a user's: the path that the request names was looked at before, and what stands there, or why nothing does, is
    /// known.
    Users(String, Result<AppKey, String>),
    /// Not at all: the request of a user names none.
    Nothing,
}

/// What has passed so far, by the name of the interface.
pub(crate) type Seen = BTreeMap<String, Passed>;

/// An interface of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Whether it is up.
    pub up: bool,
}

/// One step of taking in or releasing what a target is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Takes a process, and unless `only` its descendants, into a target.
    Adopt {
        /// The target.
        id: u32,
        /// The process.
        pid: u32,
        /// Not its descendants.
        only: bool,
        /// Targets whose members stay where they are: they nest.
        keep: BTreeSet<u32>,
    },
    /// Takes processes that were members before into their targets again.
    Readopt {
        /// The target of each process.
        members: BTreeMap<u32, u32>,
    },
    /// Lets the members of process targets go, to the target around theirs: of all of them at once, for each look at
    /// who is a member takes as long as there are members.
    Release {
        /// The target around each target.
        heirs: BTreeMap<u32, Option<u32>>,
    },
    /// Binds an executable.
    BindApp {
        /// The target.
        id: u32,
        /// Its path.
        path: String,
    },
    /// Lets an executable go.
    UnbindApp {
        /// The target.
        id: u32,
        /// Its path.
        path: String,
    },
    /// Binds a control group.
    BindCgroup {
        /// The target.
        id: u32,
        /// The group.
        bound: Bound,
    },
    /// Lets a control group go, with those that the target had before it.
    UnbindCgroup {
        /// The target.
        id: u32,
        /// The group; none if it is gone already.
        bound: Option<Bound>,
    },
    /// Binds a user.
    BindUser {
        /// The target.
        id: u32,
        /// The user.
        uid: u32,
    },
    /// Lets a user go.
    UnbindUser {
        /// The target.
        id: u32,
        /// The user.
        uid: u32,
    },
}

impl Act {
    /// Lets the members of one process target go.
    pub(crate) fn release(id: u32, heir: Option<u32>) -> Act {
        Act::Release {
            heirs: BTreeMap::from([(id, heir)]),
        }
    }

    /// Lets go of those that were taken in again.
    pub(crate) fn release_again(members: &BTreeMap<u32, u32>) -> Act {
        Act::Release {
            heirs: members.values().map(|id| (*id, None)).collect(),
        }
    }

    /// Whether it releases something.
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
            Act::Release { heirs } => match heirs.len() {
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

/// Who and what exists on the machine: processes, executables, control groups, users, interfaces. Asking changes nothing.
pub(crate) trait Inventory {
    /// The process of this number.
    fn process(&mut self, pid: u32) -> Option<Process>;
    /// What is around a process.
    fn place(&mut self, pid: u32) -> Place;
    /// A process and its living descendants.
    fn family(&mut self, pid: u32) -> BTreeSet<u32>;
    /// The processes that run an executable, and their living descendants.
    fn running(&mut self, app: AppKey) -> BTreeSet<u32>;
    /// The targets that a process is a member of: by descent, and by what it executes. 0: none.
    fn membership(&mut self, pid: u32) -> (u32, u32);
    /// The members of targets.
    fn members(&mut self) -> Result<Members, Denied>;
    /// The executable at a path.
    fn app(&mut self, path: &str) -> Result<AppKey, Denied>;
    /// The control group at a path.
    fn cgroup(&mut self, path: &str) -> Result<Bound, Denied>;
    /// The control group of a unit.
    fn unit(&mut self, name: &str) -> Result<Bound, Denied>;
    /// The control group of a container, by name or id.
    fn container(&mut self, name: &str) -> Result<Bound, Denied>;
    /// The names of the units that have a control group.
    fn running_units(&mut self) -> BTreeSet<String>;
    /// The number of a user.
    fn user(&mut self, name: &str) -> Result<u32, Denied>;
    /// The interfaces.
    fn interfaces(&mut self) -> Result<Vec<Interface>, Denied>;
    /// The speed that the driver of an interface reports.
    fn speed(&mut self, interface: &str) -> Result<Option<Rate>, Denied>;
    /// The sockets of these processes, of those that run a program or are in a control group or below it, or those that
    /// a user has made.
    fn connections(&mut self, of: &netnice_api::Found) -> Result<Vec<Connection>, Denied>;
    /// Says what a path may be looked at for until this is said again.
    fn behold(&mut self, _sight: Sight) {}
}

/// What is in force: classes, limits, and whose packets they hold. Everything that changes the kernel is here.
pub(crate) trait Enforcer {
    /// Makes the kernel's classes equal to what is desired, or leaves them as they were.
    fn apply(&mut self, desired: &Desired) -> Result<(), Denied>;
    /// What [`Enforcer::apply`] would do, in words.
    fn preview(&mut self, desired: &Desired) -> Vec<String>;
    /// Carries out one act; tells what was found, and the act that takes it back.
    fn act(&mut self, act: &Act) -> Result<(Adoption, Act), Denied>;
    /// Tells the kernel the control groups that, when they are made, are a target's from the start: by path, or by the
    /// last name alone for one that is in nothing but slices.
    fn await_groups(&mut self, names: &BTreeMap<String, u32>) -> Result<(), Denied>;
    /// Says which targets are containers, with the control group of each that runs; tells how they are joined to this
    /// namespace.
    fn house(
        &mut self,
        groups: &BTreeMap<u32, Option<String>>,
    ) -> Result<BTreeMap<u32, Housing>, Denied>;
    /// Shares out anew what is left over on managed links.
    fn balance(&mut self, now: Instant) -> Result<(), Denied>;
    /// Looks at the interfaces anew, and repairs what is not as it was installed.
    fn reconcile(&mut self) -> Result<(), Denied>;
    /// What is not as it was installed. Not `anew`: as far as the last sample shows it.
    fn audit(&mut self, anew: bool) -> Result<Vec<String>, Denied>;
    /// Looks after what changes in the kernel's tables by itself; tells what a person should know. To be called each second.
    fn tend(&mut self) -> Result<Vec<String>, Denied> {
        Ok(Vec::new())
    }
    /// How many looks at the open sockets of new members are not finished.
    fn looks_left(&self) -> usize {
        0
    }
    /// Goes on with one of them, for some milliseconds; where it ends, tells what it has found since it began.
    fn look_on(&mut self) -> Result<Option<Adoption>, Denied> {
        Ok(None)
    }
    /// Forgets members that have ended without being seen to.
    fn forget_dead(&mut self) -> Result<(), Denied>;
    /// What an earlier daemon has left in force.
    fn found(&mut self) -> Result<Found, Denied>;
    /// Whether anything is in force.
    fn is_enforcing(&self) -> bool;
    /// What queues in the leaves: `fq_codel` or `sparse+bulk`.
    fn leaf(&self) -> &'static str;
    /// The interfaces on which packets are looked at.
    fn attached(&self) -> Vec<String>;
    /// How they are looked at: `tcx` or `clsact`.
    fn attachment(&self) -> &'static str;
    /// The classes that hold packets of a target back.
    fn whereabouts(&self, id: u32) -> Vec<Whereabouts>;
    /// What this kernel offers.
    fn probe(&mut self) -> Vec<Finding>;
}

/// What was counted.
pub(crate) trait Meter {
    /// Reads all counts.
    fn sample(&mut self) -> Result<Sample, Denied>;
    /// What has passed the interfaces.
    fn seen(&mut self) -> Result<Seen, Denied>;
    /// Bytes that the classes of a link had sent when [`Enforcer::balance`] looked last.
    fn sent_on(&self, link: &str) -> Option<u64>;
}

/// A whole machine.
pub(crate) trait Host: Inventory + Enforcer + Meter {}

impl<T: Inventory + Enforcer + Meter> Host for T {}
