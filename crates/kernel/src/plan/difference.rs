//! Computes the steps that turn a present HTB class tree into a desired one, in the order in which
//! they must be carried out. Two trees come in, and [`Steps`] go out; nothing here fails or calls
//! the kernel.

use std::collections::BTreeSet;

use super::{Class, Tree};
use crate::tc::LeafQueue;

/// A change of one class, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Make this class and its queue.
    Add(u16, Class),
    /// Change this class's parameters.
    Change(u16, Class),
    /// Replace this leaf's queue.
    Requeue(u16, LeafQueue),
    /// Remove this class.
    Remove(u16),
}

/// The steps from one tree to another, in two halves. Between them the eBPF maps are switched to
/// the desired classes, so that no packet is sent to a class that does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    /// The steps before the maps are switched: removals of moved classes, changes of classes,
    /// replacements of queues, and additions.
    pub before: Vec<Step>,
    /// The steps after the maps are switched: removals of classes that no target uses any more.
    pub after: Vec<Step>,
}

/// The steps from the present tree to the desired tree. A class with a new parent is removed with
/// all classes below it and made again, because HTB cannot move a class. Falling rates are changed
/// before rising rates, so that no ceiling is exceeded between the steps.
pub(crate) fn difference(current: &Tree, desired: &Tree) -> Steps {
    let elsewhere: BTreeSet<u16> = desired
        .iter()
        .filter(|(n, new)| current.get(n).is_some_and(|old| old.parent != new.parent))
        .map(|(n, _)| *n)
        .collect();
    let moved = |n: &u16| {
        !elsewhere.is_empty() && ancestors(current, *n).any(|above| elsewhere.contains(&above))
    };
    let (moving, still): (Vec<u16>, Vec<u16>) = current.keys().partition(|n| moved(n));
    let moved: BTreeSet<u16> = moving.iter().copied().collect();
    let kept = |n: &u16| current.get(n).filter(|_| !moved.contains(n));
    let gone: Vec<u16> = still
        .into_iter()
        .filter(|n| !desired.contains_key(n))
        .collect();
    let mut steps = Steps::default();
    let removed = deepest_first(current, &moving).into_iter();
    steps.before.extend(removed.map(Step::Remove));
    let mut changes: Vec<(bool, u16, Class)> = desired
        .iter()
        .filter_map(|(n, class)| {
            let old = kept(n)?;
            (old.htb != class.htb).then_some((class.htb.rate > old.htb.rate, *n, *class))
        })
        .collect();
    changes.sort_by_key(|(rises, n, _)| (*rises, *n));
    steps.before.extend(
        changes
            .into_iter()
            .map(|(_, n, class)| Step::Change(n, class)),
    );
    for (n, class) in desired {
        if let (Some(old), Some(queue)) = (kept(n), class.queue)
            && old.queue != Some(queue)
        {
            steps.before.push(Step::Requeue(*n, queue));
        }
    }
    let added: Vec<u16> = desired
        .keys()
        .filter(|n| kept(n).is_none())
        .copied()
        .collect();
    let parents_first = deepest_first(desired, &added).into_iter().rev();
    steps
        .before
        .extend(parents_first.map(|n| Step::Add(n, desired[&n])));
    steps
        .after
        .extend(deepest_first(current, &gone).into_iter().map(Step::Remove));
    steps
}

/// The numbers of a class and its ancestors, from the class upwards.
fn ancestors(tree: &Tree, number: u16) -> impl Iterator<Item = u16> + '_ {
    let mut next = Some(number);
    std::iter::from_fn(move || {
        let here = next?;
        next = tree.get(&here).map(|c| c.parent).filter(|p| *p != 0);
        Some(here)
    })
    .take(MAX_DEPTH)
}

fn deepest_first(tree: &Tree, numbers: &[u16]) -> Vec<u16> {
    let mut order: Vec<(usize, u16)> = numbers
        .iter()
        .map(|n| (ancestors(tree, *n).count(), *n))
        .collect();
    order.sort_by(|a, b| b.cmp(a));
    order.into_iter().map(|(_, n)| n).collect()
}

/// Bound on a chain of ancestors: one more than the eight levels of HTB.
const MAX_DEPTH: usize = 9;
