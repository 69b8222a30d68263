//! Nodes inside a budget, and nodes with a minimum inside a limit: which of them are in the cap
//! stage, their priorities in HTB, and the division of a budget among them; and the division of a
//! link among its top nodes, by the same rule. Nothing here fails.

use std::collections::{BTreeMap, BTreeSet};

use super::{ChildrenByParent, Direction, Nesting, Node, TreePlan, bytes_per_second};
use crate::plan::{Desired, Limit, Target};

impl Nesting<'_> {
    /// The nodes of the cap stage, with one more for each target that has a minimum in this
    /// direction and is inside a limit.
    pub(super) fn with_minimums(
        &self,
        mut nodes: BTreeMap<u16, Node>,
        desired: &Desired,
        direction: Direction,
    ) -> BTreeMap<u16, Node> {
        for target in &desired.targets {
            let Some(outer) = self.limit_around(target, &nodes) else {
                continue;
            };
            let is_sum = self
                .with_ancestors(target)
                .any(|t| matches!(t.limit, Limit::Both(_)));
            let Some(share) = &target.share else { continue };
            let rates = match (is_sum, direction) {
                (true, Direction::Up) => [share.min, share.min_down],
                (false, Direction::Up) => [share.min, None],
                (_, Direction::Down) => [share.min_down, None],
            };
            let minimum: u64 = rates.into_iter().flatten().map(bytes_per_second).sum();
            if minimum == 0 {
                continue;
            }
            let node = Node {
                parent: None,
                burst: target.burst,
                weight: target.weight,
                ..outer
            };
            nodes.entry(target.slot).or_insert(node).minimum = minimum;
        }
        nodes
    }

    /// The node with the smallest limit around a target; `None` if no limit is around it.
    fn limit_around(&self, target: &Target, nodes: &BTreeMap<u16, Node>) -> Option<Node> {
        let around = self.with_ancestors(target).skip(1);
        let limited = around.filter(|outer| outer.limit != Limit::None);
        let limits = limited.filter_map(|outer| nodes.get(&outer.slot));
        limits.min_by_key(|node| node.ceil).copied()
    }

    /// Gives the nodes inside a budget the priority of the outermost budget around them.
    pub(super) fn contain_priorities(&self, nodes: &mut BTreeMap<u16, Node>) {
        let inside: Vec<(u16, u8)> = nodes
            .keys()
            .filter_map(|slot| {
                let target = self.by_slot.get(slot)?;
                let around = self.with_ancestors(target).skip(1);
                let budgets = around.filter_map(|outer| nodes.get(&outer.slot));
                let outermost = budgets.filter(|node| node.is_budget).last()?;
                Some((*slot, outermost.rank))
            })
            .collect();
        for (slot, rank) in inside {
            if let Some(node) = nodes.get_mut(&slot) {
                node.priorities = [u32::from(rank); 2];
            }
        }
    }
}

impl TreePlan<'_> {
    /// The assured rate of each top node of a link beyond its guarantee.
    pub(super) fn shares(
        &self,
        tops: &[u16],
        nested: &ChildrenByParent,
        idle: Option<&BTreeSet<u16>>,
    ) -> BTreeMap<u16, u64> {
        let guaranteed: u64 = tops.iter().map(|s| self.guaranteed(*s, nested)).sum();
        let spare = self
            .top
            .map_or(0, |top| top.rate.saturating_sub(guaranteed));
        self.divided(spare, tops, idle, |node| node.priorities[1])
    }

    /// The parts of `rate` that a budget assures its nested nodes beyond their guarantees: by
    /// weight among those of the first priority that carry traffic. `None` if the node is no
    /// budget.
    pub(super) fn budget_shares(
        &self,
        slot: u16,
        rate: u64,
        children: &[u16],
        idle: Option<&BTreeSet<u16>>,
    ) -> Option<BTreeMap<u16, u64>> {
        if !self.nodes[&slot].is_budget {
            return None;
        }
        Some(self.divided(rate, children, idle, |node| u32::from(node.rank)))
    }

    /// Divides `rate` by weight among those nodes that carry traffic and are of the first
    /// priority.
    pub(super) fn divided(
        &self,
        rate: u64,
        nodes: &[u16],
        idle: Option<&BTreeSet<u16>>,
        priority: impl Fn(&Node) -> u32,
    ) -> BTreeMap<u16, u64> {
        let busy = || {
            let divides = |s: &&u16| !self.nodes[s].yields && !idle.is_some_and(|q| q.contains(s));
            nodes.iter().filter(divides)
        };
        let first = busy().map(|s| priority(&self.nodes[s])).min();
        let takers = || busy().filter(|s| Some(priority(&self.nodes[s])) == first);
        let weights: u64 = takers().map(|s| u64::from(self.nodes[s].weight)).sum();
        let share = |slot: &u16| rate * u64::from(self.nodes[slot].weight) / weights.max(1);
        takers().map(|slot| (*slot, share(slot))).collect()
    }
}
