//! Finds the held targets that lie inside a process family: a process and its living descendants,
//! or the processes that run an executable. Pure.
//!
//! The kernel's members table has the target of each process; the process also belongs to the
//! targets around that one. A target made by pid lies inside a family if its named process does.
//! Once that process has left the target, and for targets made by name, all members must lie
//! inside.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::target::Target;

use crate::host::Members;
use crate::ledger::{Body, Ledger};

/// Ids of the held targets that lie inside `family`, a set of process ids. Targets that contain the
/// process `newcomer` are left out, because its new target will be inside them.
pub(super) fn inside(
    ledger: &Ledger,
    members: &Members,
    family: &BTreeSet<u32>,
    newcomer: Option<u32>,
) -> BTreeSet<u32> {
    let mut by_target: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (pid, (own, _)) in members {
        for target in ledger.ancestors_of(Some(*own)) {
            by_target.entry(target).or_default().push(*pid);
        }
    }
    let around = newcomer
        .and_then(|pid| members.get(&pid))
        .map(|(own, _)| *own);
    let around = ledger.ancestors_of(around);
    let lies_inside = |id: u32, target: &Target, body: &Body| {
        let Body::Processes { roots, .. } = body else {
            return false;
        };
        let theirs = by_target.get(&id).map(Vec::as_slice).unwrap_or_default();
        let named = match target {
            Target::Pid(_) => roots.iter().find(|root| theirs.contains(&root.pid)),
            _ => None,
        };
        match named {
            Some(root) => family.contains(&root.pid),
            None => !theirs.is_empty() && theirs.iter().all(|pid| family.contains(pid)),
        }
    };
    ledger
        .held()
        .filter(|held| !around.contains(&held.id))
        .filter(|held| lies_inside(held.id, &held.entry.target, &held.body))
        .map(|held| held.id)
        .collect()
}
