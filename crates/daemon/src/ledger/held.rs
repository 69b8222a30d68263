//! [`HeldTarget`], a target in the ledger: its slot, name and admitted contract ([`TargetEntry`]),
//! what it consists of ([`Body`]: processes, an executable, a control group or a user), what
//! contains it ([`TargetPlace`]), and its claims; and the types of these parts. All are plain data,
//! and no method here changes them or fails.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::admission::TargetEntry;
use netnice_core::admission::processors::ProcessorSet;
use netnice_core::claims::Claims;
use netnice_core::contract::{Contract, Dscp, Setting, Slice};
use netnice_core::target::Target;
use netnice_core::units::Rate;

use super::{HeldQuota, Ledger, TargetPlace};
use crate::schedule::Phase;

/// A target in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldTarget {
    /// The slot, the name, the parent, and the admitted contract, which includes dormant claims.
    /// [`HeldTarget::in_force`] is the contract in force.
    pub entry: TargetEntry,
    /// The target's id in the kernel's maps, which is not reused.
    pub id: u32,
    /// What the target consists of.
    pub body: Body,
    /// What contains the target.
    pub place: TargetPlace,
    /// The requests, by user.
    pub claims: Claims,
    /// Why the target is degraded: its guarantees are not in force. `None` if it is not degraded.
    pub refused: Option<String>,
    /// Why the processor time that the contract names is not reserved; `None` if it is reserved, or
    /// if the contract names none.
    pub time_refused: Option<String>,
    /// Why admission has set the claims of unprivileged users aside: they do not fit beside other
    /// claims, or those of root and the group `netnice` conflict with them. `None` if it has not.
    /// Claims that contradict others on this target are in [`Claims::set_aside`] instead.
    pub aside: Option<String>,
    /// The name of the policy rule for the target, if there is one.
    pub rule: Option<String>,
    /// Time of the last change, in nanoseconds since 1970.
    pub changed_ns: u64,
    /// The present phase of each claim with a schedule, by user id.
    pub phases: BTreeMap<u32, Phase>,
    /// The traffic quota of each claim that has one, by user id, as far as the desired state
    /// depends on it.
    pub quotas: BTreeMap<u32, HeldQuota>,
    /// The processors on which the target may run; empty: all that are online.
    pub processors: ProcessorSet,
    /// The processor time of a contract with `cpu auto`; empty with another contract.
    pub auto: AutoTime,
}

/// The processor time that follows what the direct flows of a target need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AutoTime {
    /// What the flows need; `None` without a flow that is promised a rate, or if it is unknown.
    pub needed: Option<Slice>,
    /// Why it is unknown what the flows need; `None` if it is known.
    pub unknown: Option<String>,
    /// What the target has; `None`: nothing.
    pub granted: Option<Slice>,
    /// Why the target has less than its flows need; `None` if it does not.
    pub short: Option<String>,
}

impl AutoTime {
    /// Why the target may have less than its flows need; `None` if it has what they need.
    pub(crate) fn fault(&self) -> Option<&String> {
        self.unknown.as_ref().or(self.short.as_ref())
    }
}

/// What a target consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Processes: the named ones and their descendants.
    Processes {
        /// The named processes, which may have ended since; empty for a name without processes.
        roots: Vec<ProcessId>,
        /// True if the descendants that lived at the time of the request are not members. Later
        /// ones are members in any case.
        only: bool,
    },
    /// The processes that run an executable file, and what they start; `None` while there is no
    /// file at its path.
    App(Option<AppKey>),
    /// A control group and all below it; `None` while it does not exist.
    Cgroup(Option<CgroupRef>),
    /// The processes of a user.
    User(u32),
}

/// The identity of a process. The start time distinguishes processes that had the same pid one
/// after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessId {
    /// The pid.
    pub pid: u32,
    /// The start time, in clock ticks since boot.
    pub started: u64,
}

/// The identity of an executable file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppKey {
    /// Inode number.
    pub inode: u64,
    /// Device number, in the kernel's internal form.
    pub dev: u32,
}

/// An existing control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupRef {
    /// The group's path below the root of cgroup2.
    pub path: String,
    /// The kernel's id of the group. A group that is created again at the same path has another id.
    pub id: u64,
}

/// A target to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewTarget {
    /// The target's name.
    pub target: Target,
    /// What the target consists of.
    pub body: Body,
    /// What contains the target.
    pub place: TargetPlace,
    /// Ids of the held targets that lie entirely inside this one. Only for executables; for other
    /// targets the places determine it.
    pub inside: BTreeSet<u32>,
}

/// A target that was closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClosedTarget {
    /// The target as it was held.
    pub held: HeldTarget,
    /// Id of the process target that takes over its members; `None`: they become members of none.
    pub outer: Option<u32>,
}

impl Body {
    /// The same body without its present processes, file or control group. A user stays.
    pub(crate) fn without(&self) -> Body {
        match self {
            Body::Processes { only, .. } => Body::Processes {
                roots: Vec::new(),
                only: *only,
            },
            Body::App(_) => Body::App(None),
            Body::Cgroup(_) => Body::Cgroup(None),
            Body::User(uid) => Body::User(*uid),
        }
    }
}

impl HeldTarget {
    /// The code point that its packets get. Of this target and those around it, from the inside
    /// outwards, the first one decides to which root, the group `netnice` or the policy gave a code
    /// point; without one, the first one that has any. So a user does not override the code point
    /// that root gave a unit or the user. `None`: the packets keep theirs.
    pub(crate) fn dscp(&self, ledger: &Ledger) -> Option<Dscp> {
        let chain = || std::iter::once(self).chain(ledger.around(self.entry.id));
        let marked = |held: &&HeldTarget| held.entry.contract.dscp().is_some();
        let nearest = chain().find(marked)?;
        let of_root = chain().filter(marked).find_map(|held| {
            let has_one = held.claims.of_privileged().dscp().is_some();
            has_one.then(|| held.entry.contract.dscp()).flatten()
        });
        of_root.or(nearest.entry.contract.dscp())
    }

    /// The effective contract: the one in force, with the smallest of its own limits and those of
    /// the targets around it, and with the code point in force.
    pub(crate) fn effective(&self, ledger: &Ledger) -> Contract {
        let own = self.in_force();
        let mut change = own.as_change();
        let smaller = |own: Option<Rate>, outer: Option<Rate>| match (own, outer) {
            (Some(own), Some(outer)) => Some(own.min(outer)),
            (one, other) => one.or(other),
        };
        let (mut up, mut down, mut both) = (own.up(), own.down(), own.both());
        for outer in ledger.around(self.entry.id) {
            let outer = outer.in_force();
            up = smaller(up, outer.up());
            down = smaller(down, outer.down());
            both = smaller(both, outer.both());
        }
        let set = |rate: Option<Rate>| rate.map(Setting::Set);
        change.dscp = self.dscp(ledger).map(Setting::Set);
        (change.up, change.down, change.both) = (set(up), set(down), set(both));
        Contract::default()
            .apply(&change)
            .unwrap_or_else(|_| own.into_owned())
    }

    /// The uid of the unprivileged user with a claim on the target; `None` if there is none.
    pub(crate) fn user(&self) -> Option<u32> {
        let mut claims = self.claims.iter();
        let claim = claims.find(|claim| !claim.by.privileged)?;
        Some(claim.by.uid)
    }

    /// As [`HeldTarget::user`], but `None` if root, a member of the group `netnice` or the policy
    /// has a claim on it too.
    pub(crate) fn user_alone(&self) -> Option<u32> {
        self.user().filter(|_| !self.has_privileged_claim())
    }

    /// True if root, the group or the policy has a claim on it.
    pub(crate) fn has_privileged_claim(&self) -> bool {
        self.claims.iter().any(|claim| claim.by.privileged)
    }

    /// The uid of its processes. `None` if they belong to several users, or if the target is not
    /// one of processes.
    pub(crate) fn owner(&self) -> Option<u32> {
        match self.body {
            Body::Processes { .. } => self.place.uid,
            _ => None,
        }
    }
}
