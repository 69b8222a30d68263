//! Finds the held targets that lie inside a process family (a process and its living descendants,
//! or the processes that run an executable and their living descendants), and the targets that
//! processes inherit from their ancestors.
//!
//! The kernel's members table has the target of each process; the process also belongs to the
//! targets around that one. A target made by pid lies inside a family if its named process does.
//! Once that process has left the target, and for targets made by name, all members must lie
//! inside. Only finding inherited targets can fail: if the members table cannot be read.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::target::Target;

use crate::error::RequestError;
use crate::host::{Inventory, Members};
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

/// For members of closed names, by pid: the target in `ledger` that the member inherits from its
/// ancestors, if nothing is around the name or that target is inside what is around the name. A
/// name can take in processes from several families, so the target around the name is not always
/// the innermost one around a member. `before` is the ledger in which the names were held. `closed`
/// has the closed targets, each with the target around it.
///
/// # Errors
/// If the members table cannot be read.
pub(super) fn inherited(
    machine: &mut impl Inventory,
    before: &Ledger,
    ledger: &Ledger,
    closed: &BTreeMap<u32, Option<u32>>,
) -> Result<BTreeMap<u32, u32>, RequestError> {
    let is_name = |id: &u32| {
        let held = before.by_id(*id);
        held.is_some_and(|held| matches!(held.entry.target, Target::Name(_)))
    };
    let names: BTreeSet<u32> = closed.keys().copied().filter(is_name).collect();
    let mut found = BTreeMap::new();
    if names.is_empty() {
        return Ok(found);
    }
    let members = machine.members()?;
    for (pid, (own, _)) in members.iter().filter(|(_, (own, _))| names.contains(own)) {
        let inherited = target_of_ancestors(machine, ledger, &members, *pid);
        let around = closed.get(own).copied().flatten();
        let is_deeper = |id: &u32| match around {
            Some(around) => *id != around && ledger.ancestors_of(Some(*id)).contains(&around),
            None => true,
        };
        found.extend(inherited.filter(is_deeper).map(|id| (*pid, id)));
    }
    Ok(found)
}

/// The id of the held target that the nearest ancestor with one passes on to its descendants.
fn target_of_ancestors(
    machine: &mut impl Inventory,
    ledger: &Ledger,
    members: &Members,
    pid: u32,
) -> Option<u32> {
    let mut next = machine.parent(pid);
    for _ in 0..MAX_GENERATIONS {
        let ancestor = next.filter(|ancestor| *ancestor > 1)?;
        let own = members.get(&ancestor).map(|(own, _)| *own);
        if let Some(held) = own.and_then(|own| ledger.by_id(own)) {
            return match held.body {
                // Only that process is a member, and the target around it holds its descendants.
                Body::Processes { only: true, .. } => held.place.own,
                _ => Some(held.id),
            };
        }
        next = machine.parent(ancestor);
    }
    None
}

/// Largest number of ancestors that are examined, so that a very deep tree of processes does not
/// delay the daemon.
const MAX_GENERATIONS: u32 = 1024;
