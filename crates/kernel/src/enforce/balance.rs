//! Divides the left-over of managed links among the targets that use it.
//!
//! The class tree of a link has a *top class* for each target that is in no other target with a
//! class there, and one for traffic without a target. Of the busy top classes, the plan assures
//! those of the first priority their weights' parts of the bandwidth that is not guaranteed. This
//! module finds the busy ones from the bytes that each carried since the last call, and from the
//! bytes queued in it. A top class becomes busy if it carries more than 1 % of its highest rate, or
//! if more than [`STANDING_QUEUE`] (3,028) bytes are queued; it becomes idle if it carries less
//! than half a percent and has no such queue. The queue matters because a class that becomes busy
//! while the others use the whole link carries almost nothing.
//!
//! A budget ([`plan::Target::is_budget`]) is divided in the same way among the nodes directly
//! inside it, so these are observed too.
//!
//! If the daemon ends, the division stays as it is. Guaranteed minimums do not depend on it.
//! [`Kernel::balance`] fails if the classes cannot be listed or changed.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::units::Instant;

use super::{Kernel, stages};
use crate::{error::KernelError, plan, tc};

/// The state at the last call.
#[derive(Debug, Default)]
pub(super) struct LastCounts {
    at: Option<Instant>,
    /// Bytes carried by each observed class, by link, direction and slot.
    bytes: BTreeMap<(String, usize, u16), u64>,
    /// Bytes that the top classes of each link have sent together.
    sent: BTreeMap<String, u64>,
}

impl Kernel {
    /// Finds the idle nodes of the managed links, and divides the left-over again if their set has
    /// changed. To be called a few times a second while a link is managed. Returns whether the
    /// division changed.
    ///
    /// # Errors
    /// If the classes cannot be listed, or [`Kernel::apply`] fails.
    pub fn balance(&mut self, now: Instant) -> Result<bool, KernelError> {
        let links: Vec<String> = self.installed.links.keys().cloned().collect();
        if links.is_empty() {
            return Ok(false);
        }
        self.close_pacers()?;
        self.replace_queues()?;
        let passed = self.last_counts.at.map(|at| now.since(at).0);
        let mut idle = self.idle_nodes.clone();
        idle.retain(|name, _| links.contains(name));
        let mut bytes = BTreeMap::new();
        let mut sent: BTreeMap<String, u64> = BTreeMap::new();
        let targets = self.desired.targets.iter();
        let budgets = targets.filter(|target| target.is_budget);
        let budgets: BTreeSet<u16> = budgets.map(|target| target.slot).collect();
        for name in links {
            for dir in 0..2 {
                for node in self.observed_classes(&name, dir, &budgets)? {
                    let key = (name.clone(), dir, node.slot);
                    if let (Some(before), Some(passed)) = (self.last_counts.bytes.get(&key), passed)
                    {
                        let carried = u128::from(node.bytes.saturating_sub(*before));
                        let rate = carried * 1_000_000_000 / u128::from(passed.max(1));
                        let set = &mut idle.entry(name.clone()).or_default()[dir];
                        if node.queued > STANDING_QUEUE || rate * BUSY_ABOVE > u128::from(node.ceil)
                        {
                            set.remove(&node.slot);
                        } else if rate * IDLE_BELOW < u128::from(node.ceil) {
                            set.insert(node.slot);
                        }
                    }
                    if node.is_top && dir == 0 {
                        *sent.entry(name.clone()).or_default() += node.bytes;
                    }
                    bytes.insert(key, node.bytes);
                }
            }
        }
        self.last_counts = LastCounts {
            at: Some(now),
            bytes,
            sent,
        };
        if idle == self.idle_nodes {
            return Ok(false);
        }
        self.idle_nodes = idle;
        let desired = self.desired.clone();
        self.apply(&desired).map(|()| true)
    }

    /// Bytes that all top classes of a link's sending direction together had sent at the last call
    /// of [`Kernel::balance`]; 0 for a link without classes. `None` before the first such call.
    pub fn sent_on(&self, link: &str) -> Option<u64> {
        self.last_counts.at?;
        Some(self.last_counts.sent.get(link).copied().unwrap_or(0))
    }

    /// The top classes of one tree, and the classes of the nodes directly inside budgets.
    fn observed_classes(
        &mut self,
        link: &str,
        dir: usize,
        budgets: &BTreeSet<u16>,
    ) -> Result<Vec<ObservedClass>, KernelError> {
        let location = [
            self.stages
                .up
                .get(link)
                .map(|index| (*index, stages::LINK_MAJOR)),
            self.stages
                .down
                .get(link)
                .map(|pair| (pair.near, stages::DOWN_MAJOR)),
        ][dir];
        let Some((ifindex, major)) = location else {
            return Ok(Vec::new());
        };
        let mut classes = tc::classes(&mut self.netlink, ifindex)?;
        classes.retain(|c| c.id.major() == major);
        let parents: BTreeMap<u16, u16> = classes
            .iter()
            .map(|c| (c.id.minor(), c.parent.minor()))
            .collect();
        let mut queued: BTreeMap<u16, u64> = BTreeMap::new();
        for class in &classes {
            for around in up_to_top(&parents, class.id.minor()) {
                *queued.entry(around).or_default() += u64::from(class.counts.backlog);
            }
        }
        let in_budget = |c: &&tc::FoundClass| {
            let (own, parent) = (c.id.minor(), c.parent.minor());
            budgets.contains(&plan::slot_of(parent)) && plan::slot_of(own) != plan::slot_of(parent)
        };
        Ok(classes
            .iter()
            .filter(|c| plan::is_top(c.parent.minor()) || in_budget(c))
            .filter_map(|c| {
                Some(ObservedClass {
                    is_top: plan::is_top(c.parent.minor()),
                    slot: plan::slot_of(c.id.minor()),
                    bytes: c.counts.bytes,
                    queued: queued.get(&c.id.minor()).copied().unwrap_or_default(),
                    ceil: c.htb?.ceil,
                })
            })
            .collect())
    }
}

/// The state of one class.
struct ObservedClass {
    /// False if it is inside a budget.
    is_top: bool,
    slot: u16,
    /// Bytes carried so far.
    bytes: u64,
    /// Bytes queued in the class and below it.
    queued: u64,
    /// The class's highest rate on the link in bytes per second.
    ceil: u64,
}

/// This class and those above it up to its top class; none if it has no top class.
fn up_to_top(parents: &BTreeMap<u16, u16>, class: u16) -> Vec<u16> {
    let mut chain = vec![class];
    for _ in 0..parents.len() {
        let current = chain.last().copied().unwrap_or_default();
        match parents.get(&current) {
            Some(above) if plan::is_top(*above) => return chain,
            Some(above) => chain.push(*above),
            None => return Vec::new(),
        }
    }
    Vec::new()
}

/// The divisor of a top class's highest rate below which the class becomes idle: half a percent.
const IDLE_BELOW: u128 = 200;
/// The divisor of a top class's highest rate above which the class becomes busy: one percent.
const BUSY_ABOVE: u128 = 100;
/// In bytes: two full packets. A target that gets all the bandwidth it asks for has a shorter queue
/// most of the time.
const STANDING_QUEUE: u64 = 3_028;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_of_a_nested_class_counts_for_its_top_class() {
        let parents = BTreeMap::from([(1, 0), (8, 1), (16, 8), (18, 16), (5, 5)]);
        assert_eq!(up_to_top(&parents, 18), [18, 16, 8]);
        assert_eq!(up_to_top(&parents, 8), [8]);
        let none: [u16; 0] = [];
        assert_eq!(up_to_top(&parents, 1), none);
        assert_eq!(up_to_top(&parents, 5), none, "a circle ends");
        assert_eq!(up_to_top(&parents, 99), none);
    }
}
