//! Determines what contains a target: the held target directly around it, if there is one. No
//! function fails.
//!
//! A [`TargetPlace`] has the facts on which this depends. For a process they are the targets that
//! the kernel records it as a member of, by descent ([`TargetPlace::own`]) and by its executable
//! ([`TargetPlace::app`]), its control group and its user. Of the following targets, the first that
//! is held contains the process directly. This is the order in which the eBPF programs look up a
//! packet's owner:
//!
//! ```text
//!   process  in  the process or name target that it descends from
//!            in  the executable's target
//!            in  the deepest control group, unit or container around it
//!            in  the user's target
//!   control group, unit, container   in the deepest one above it
//!   executable, user                 in nothing
//! ```

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::admission::TargetId;

use super::{Body, HeldTarget, Ledger};

/// The facts that determine which targets contain a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetPlace {
    /// Id of the process or name target that the target's processes descend from.
    pub own: Option<u32>,
    /// Id of the executable target that the target's processes belong to.
    pub app: Option<u32>,
    /// Path of the control group around the target; for a target that is a control group, its own.
    pub cgroup: Option<String>,
    /// The real uid of the processes of the target, if all have the same.
    pub uid: Option<u32>,
}

/// The held targets, indexed for the search of what contains a target.
pub(super) struct ContainmentIndex<'a> {
    by_id: &'a BTreeMap<u32, TargetId>,
    groups: Vec<(&'a str, TargetId)>,
    users: BTreeMap<u32, TargetId>,
}

impl<'a> ContainmentIndex<'a> {
    /// The index of all held targets of the ledger.
    pub(super) fn of(ledger: &'a Ledger) -> ContainmentIndex<'a> {
        let mut index = ContainmentIndex {
            by_id: &ledger.slots,
            groups: Vec::new(),
            users: BTreeMap::new(),
        };
        for held in ledger.held.values() {
            let slot = held.entry.id;
            match &held.body {
                Body::Cgroup(Some(bound)) => index.groups.push((&bound.path, slot)),
                Body::User(uid) => drop(index.users.insert(*uid, slot)),
                _ => {}
            }
        }
        index
    }

    /// The slot of the target directly around a target; `None` if nothing contains it.
    pub(super) fn around(&self, held: &HeldTarget) -> Option<TargetId> {
        self.at(&held.place, Some(held))
    }

    /// The slot of the target directly around a place, other than `me`.
    fn at(&self, place: &TargetPlace, me: Option<&HeldTarget>) -> Option<TargetId> {
        let slot_of_me = me.map(|me| me.entry.id);
        let other =
            |slot: Option<&TargetId>| slot.copied().filter(|slot| Some(*slot) != slot_of_me);
        let by_id = |id: Option<u32>| other(self.by_id.get(&id?));
        by_id(place.own)
            .or_else(|| by_id(place.app))
            .or_else(|| self.group_around(place, me))
            .or_else(|| other(self.users.get(&place.uid?)))
    }

    /// The deepest held control group at or above the place's path; for a control group, only
    /// above.
    fn group_around(&self, place: &TargetPlace, me: Option<&HeldTarget>) -> Option<TargetId> {
        let path = place.cgroup.as_deref()?;
        let is_group = me.is_some_and(|me| matches!(me.body, Body::Cgroup(_)));
        let slot_of_me = me.map(|me| me.entry.id);
        let around = self.groups.iter().filter(|(group, slot)| {
            Some(*slot) != slot_of_me && contains(group, path) && !(is_group && *group == path)
        });
        around
            .max_by_key(|(group, _)| group.trim_end_matches('/').len())
            .map(|(_, slot)| *slot)
    }
}

impl Ledger {
    /// The innermost held target that contains a process at this place; `None` if none does.
    pub(crate) fn at_place(&self, place: &TargetPlace) -> Option<&HeldTarget> {
        self.get(ContainmentIndex::of(self).at(place, None)?)
    }

    /// As [`Ledger::at_place`], for many processes.
    pub(crate) fn at_places(&self, places: &[TargetPlace]) -> Vec<Option<&HeldTarget>> {
        let index = ContainmentIndex::of(self);
        let at = |place: &TargetPlace| self.get(index.at(place, None)?);
        places.iter().map(at).collect()
    }

    /// The slots of the targets with a claim of root, the group or the policy that contain a
    /// target, or a process at this place.
    pub(crate) fn privileged_around(
        &self,
        slot: TargetId,
        place: &TargetPlace,
    ) -> BTreeSet<TargetId> {
        let innermost = self
            .at_place(place)
            .map(|held| self.with_around(held.entry.id));
        let around = self.around(slot).map(|held| held.entry.id);
        let all = innermost.unwrap_or_default().into_iter().chain(around);
        all.filter(|slot| self.is_privileged(*slot)).collect()
    }

    /// The slot of a target and those of the targets around it.
    pub(crate) fn with_around(&self, slot: TargetId) -> BTreeSet<TargetId> {
        let around = self.around(slot).map(|held| held.entry.id);
        around.chain([slot]).collect()
    }

    /// True if root, the group or the policy has a claim on the target.
    pub(crate) fn is_privileged(&self, slot: TargetId) -> bool {
        self.get(slot).is_some_and(HeldTarget::has_privileged_claim)
    }

    /// The place of a target after a process at another place has joined it: the facts that hold
    /// for both.
    pub(crate) fn joined(&self, me: TargetId, joiner: &TargetPlace) -> TargetPlace {
        let Some(held) = self.held.get(&me) else {
            return joiner.clone();
        };
        let theirs = self.ancestors_of(joiner.own);
        if theirs.contains(&held.id) {
            return held.place.clone();
        }
        let ours = self.ancestors_of(held.place.own);
        let cgroup = |one: &str| common_path(one, joiner.cgroup.as_deref().unwrap_or("/"));
        TargetPlace {
            own: ours.into_iter().find(|id| theirs.contains(id)),
            app: held.place.app.filter(|app| joiner.app == Some(*app)),
            cgroup: held.place.cgroup.as_deref().map(cgroup),
            uid: held.place.uid.filter(|uid| joiner.uid == Some(*uid)),
        }
    }

    /// The ids of a process target and of those around it by descent, innermost first.
    pub(crate) fn ancestors_of(&self, mut own: Option<u32>) -> Vec<u32> {
        let mut chain = Vec::new();
        while let Some(held) = own.and_then(|id| self.by_id(id)) {
            if chain.contains(&held.id) {
                break;
            }
            chain.push(held.id);
            own = held.place.own;
        }
        chain
    }
}

/// True if the control group `group` is the one at `path` or above it.
pub(crate) fn contains(group: &str, path: &str) -> bool {
    let group = group.trim_end_matches('/');
    path.strip_prefix(group)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path of the deepest control group that contains both.
fn common_path(one: &str, other: &str) -> String {
    let parts = one.split('/').zip(other.split('/'));
    let common: Vec<&str> = parts
        .take_while(|(a, b)| a == b)
        .map(|(part, _)| part)
        .collect();
    match common.join("/") {
        path if path.is_empty() => "/".to_owned(),
        path => path,
    }
}
