//! Nodes of a link that yield: their assured rate, and the priorities of all nodes beside them. The
//! nodes come in with the priorities of their contracts, and go out with those of HTB. Nothing here
//! fails.

use std::collections::{BTreeMap, BTreeSet};

use super::{Node, TreePlan};

impl TreePlan<'_> {
    /// The least rate that a node is assured.
    pub(super) fn least_assured(&self, slot: u16) -> u64 {
        match self.nodes[&slot].yields {
            true => self.yield_assured,
            false => self.min_assured(),
        }
    }
}

/// Gives the nodes of a link that yield a priority behind all others, and returns their number.
/// There are as many priorities as contracts can name, so the others may have to move forward.
pub(super) fn put_yielding_last(nodes: &mut BTreeMap<u16, Node>) -> u64 {
    let yielding = nodes.values().filter(|node| node.yields).count();
    if yielding == 0 {
        return 0;
    }
    let others = nodes.values().filter(|node| !node.yields);
    let used: BTreeSet<u32> = others.map(|node| node.priorities[1]).collect();
    let unused = (0..LAST_PRIORITY).rev().find(|p| !used.contains(p));
    let moves_from = match used.contains(&LAST_PRIORITY) {
        true => unused.unwrap_or(LAST_PRIORITY - 1),
        false => LAST_PRIORITY,
    };
    for node in nodes.values_mut() {
        for priority in &mut node.priorities {
            *priority = match node.yields {
                true => LAST_PRIORITY,
                false if *priority > moves_from => *priority - 1,
                false => *priority,
            };
        }
    }
    yielding as u64
}

/// The last of HTB's priorities (TC_HTB_NUMPRIO is 8).
const LAST_PRIORITY: u32 = 7;
