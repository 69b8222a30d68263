//! A target that is held: who it is, what it is made of, who asked what for it, and what holds.

use std::collections::BTreeSet;

use netnice_core::admission::Entry;
use netnice_core::claims::Claims;
use netnice_core::contract::Contract;
use netnice_core::target::Target;
use netnice_core::units::Rate;

use super::{Ledger, Place};

/// A target that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Its slot, its name, what contains it, and what is in force for it.
    pub entry: Entry,
    /// Its number in the kernel's maps.
    pub id: u32,
    /// What it is made of.
    pub body: Body,
    /// What is around it.
    pub place: Place,
    /// Who asked for what.
    pub claims: Claims,
    /// Why its guarantees are not in force, if they do not fit any more.
    pub refused: Option<String>,
    /// Why what users without privilege ask of it does not count, if it stands in the way of what root and the group ask.
    pub aside: Option<String>,
    /// The policy rule that asks for it, if one does.
    pub rule: Option<String>,
    /// When it was changed last, nanoseconds since 1970.
    pub changed_ns: u64,
}

/// What a target is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Processes: those that were named, and (unless `only`) what descends from them.
    Processes {
        /// The named ones that were there when they were named.
        roots: Vec<Root>,
        /// Whether living descendants were left out.
        only: bool,
    },
    /// What runs an executable; none while there is no file at its path.
    App(Option<AppKey>),
    /// A control group and all below it.
    Cgroup(Option<Bound>),
    /// What a user's processes do.
    User(u32),
}

/// A process: its number, and when it was started, in clock ticks since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Root {
    /// Its number.
    pub pid: u32,
    /// When it was started.
    pub started: u64,
}

/// An executable file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppKey {
    /// Its inode.
    pub inode: u64,
    /// Its device, in the kernel's form.
    pub dev: u32,
}

/// A control group that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Its path below the root of cgroup2.
    pub path: String,
    /// The kernel's number of it.
    pub id: u64,
}

/// A target that is about to be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Newcomer {
    /// Who it is.
    pub target: Target,
    /// What it is made of.
    pub body: Body,
    /// What is around it.
    pub place: Place,
    /// Numbers of the held targets that lie wholly inside it; only of processes and executables, for the others the
    /// places tell.
    pub inside: BTreeSet<u32>,
}

/// A target that is no longer held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    /// As it was held.
    pub held: Held,
    /// Number of the process target that its members fall to.
    pub heir: Option<u32>,
}

impl Body {
    /// The same thing while it is not there.
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

impl Held {
    /// What holds: what was admitted, together with the limits of what is around.
    pub(crate) fn effective(&self, ledger: &Ledger) -> Contract {
        let mut change = self.entry.contract.as_change();
        let smaller = |own: Option<Rate>, outer: Option<Rate>| match (own, outer) {
            (Some(own), Some(outer)) => Some(own.min(outer)),
            (one, other) => one.or(other),
        };
        let (mut up, mut down, mut both) = (
            self.entry.contract.up(),
            self.entry.contract.down(),
            self.entry.contract.both(),
        );
        for outer in ledger.around(self.entry.id) {
            up = smaller(up, outer.entry.contract.up());
            down = smaller(down, outer.entry.contract.down());
            both = smaller(both, outer.entry.contract.both());
        }
        let set = |rate: Option<Rate>| rate.map(netnice_core::contract::Setting::Set);
        (change.up, change.down, change.both) = (set(up), set(down), set(both));
        Contract::default()
            .apply(&change)
            .unwrap_or_else(|_| self.entry.contract.clone())
    }

    /// The user without privilege who asks something of it, if one does.
    pub fn user(&self) -> Option<u32> {
        let mut claims = self.claims.iter();
        let claim = claims.find(|claim| !claim.by.privileged)?;
        Some(claim.by.uid)
    }

    /// The same, unless root, the group or the policy ask something of it too.
    pub fn user_alone(&self) -> Option<u32> {
        let alone = self.claims.iter().all(|claim| !claim.by.privileged);
        self.user().filter(|_| alone)
    }

    /// The uid of the processes that it is made of, if it is made of one user's.
    pub(crate) fn owner(&self) -> Option<u32> {
        match self.body {
            Body::Processes { .. } => self.place.uid,
            _ => None,
        }
    }
}
