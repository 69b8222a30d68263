//! Reads back what an earlier daemon left in force, from classes and maps, for a daemon whose state
//! file was lost.
//!
//! The classes give the limits and their nesting. The maps give, for each target number, the limit
//! in whose queues the target's packets wait. The requesting user and the names of the targets are
//! not recorded there. The guaranteed amounts cannot be read back either, since a class is assured
//! more than that. The result is a [`Recovered`]; reading fails if the map of targets cannot be
//! read.

use std::collections::BTreeMap;

use netnice_core::units::Rate;

use super::{Kernel, loaded};
use crate::{
    abi,
    error::KernelError,
    plan::{self, Class, Limit, Link, Tree},
    tc::Handle,
};

/// The state that [`Kernel::recovered`] read back from the classes and maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The limits.
    pub limits: Vec<RecoveredLimit>,
    /// Target numbers, each with the slot of the limit in whose queues the target's packets wait.
    pub targets: Vec<(u32, u16)>,
    /// The links that have classes of netnice.
    pub links: Vec<Link>,
}

/// A limit that was read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredLimit {
    /// The slot of the target that has the limit.
    pub slot: u16,
    /// The slot of the limit around this one; `None` if there is none.
    pub parent: Option<u16>,
    /// The limit's rates.
    pub limit: Limit,
}

impl Kernel {
    /// Reads back what an earlier daemon left in force. Empty if the programs are not loaded.
    ///
    /// # Errors
    /// If the map of targets cannot be read.
    pub fn recovered(&mut self) -> Result<Recovered, KernelError> {
        if self.programs.is_none() {
            return Ok(Recovered::default());
        }
        let map = loaded(&mut self.programs)?.hash::<u32, abi::Target>("targets")?;
        let targets: BTreeMap<u32, abi::Target> = super::entries(map.iter(), "targets")?;
        let found = read_back(&self.installed.cap, &targets);
        let links = self.installed.links.iter().map(|(name, trees)| {
            let top = |dir: usize| {
                let tree = trees.trees[dir].as_ref()?;
                tree.values().find(|class| class.parent == 0)
            };
            Link {
                name: name.clone(),
                up: top(0).and_then(rate_of),
                down: top(1).and_then(rate_of),
                overhead: top(0).or(top(1)).map_or(0, |class| class.htb.overhead),
                bucket: None,
                has_redirects: false,
            }
        });
        Ok(Recovered {
            links: links
                .filter(|l| l.up.is_some() || l.down.is_some())
                .collect(),
            ..found
        })
    }
}

/// The limits in a tree, and the targets that queue in them.
fn read_back(tree: &Tree, targets: &BTreeMap<u32, abi::Target>) -> Recovered {
    let mut limits: BTreeMap<u16, RecoveredLimit> = BTreeMap::new();
    let mut members = Vec::new();
    for (id, target) in targets {
        // The parent of a leaf is the class of the limit.
        let node = |dir: usize| {
            let leaf = Handle(target.cap[dir].bulk);
            let class = tree.get(&leaf.minor())?;
            tree.get_key_value(&class.parent)
        };
        let (up, down) = (node(0), node(1));
        let same = up.is_some() && up.map(|(n, _)| n) == down.map(|(n, _)| n);
        for (number, class) in [up, down].into_iter().flatten() {
            let mut at = Some((*number, class));
            while let Some((number, class)) = at {
                let above = tree.get_key_value(&class.parent);
                let slot = plan::slot_of(number);
                let known = limits.entry(slot).or_insert(RecoveredLimit {
                    slot,
                    parent: None,
                    limit: Limit::None,
                });
                known.parent = known.parent.or(above.map(|(n, _)| plan::slot_of(*n)));
                known.limit = add_class(known.limit, number, class, same);
                at = above.map(|(n, c)| (*n, c));
            }
        }
        let slots = [up, down].map(|n| n.map(|(number, _)| plan::slot_of(*number)));
        let (own, around) = match slots {
            [Some(up), Some(down)] if up != down => (up, Some(down)),
            [up, down] => match up.or(down) {
                Some(slot) => (slot, None),
                None => continue,
            },
        };
        if let Some(limit) = limits.get_mut(&own) {
            limit.parent = limit.parent.or(around);
        }
        members.push((*id, own));
    }
    Recovered {
        limits: limits.into_values().collect(),
        targets: members,
        links: Vec::new(),
    }
}

/// Combines a limit with the rate of one more class.
fn add_class(limit: Limit, number: u16, class: &Class, both: bool) -> Limit {
    let Some(rate) = rate_of(class) else {
        return limit;
    };
    if both {
        return Limit::Both(rate);
    }
    let (up, down) = match limit {
        Limit::Each { up, down } => (up, down),
        Limit::None => (None, None),
        Limit::Both(_) => return limit,
    };
    match plan::is_down(number) {
        true => Limit::Each {
            up,
            down: Some(rate),
        },
        false => Limit::Each {
            up: Some(rate),
            down,
        },
    }
}

fn rate_of(class: &Class) -> Option<Rate> {
    Rate::new(class.htb.ceil.saturating_mul(8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enforce::stages;
    use crate::plan::{Desired, IdleNodes, Target};
    use netnice_core::units::Nanos;

    fn rate(text: &str) -> Rate {
        text.parse().expect(text)
    }

    fn target(id: u32, slot: u16, parent: Option<u16>, limit: Limit) -> Target {
        Target {
            id,
            slot,
            parent,
            limit,
            burst: Nanos::from_millis(5),
            share: None,
            weight: 100,
            priority: 4,
            dscp: None,
            yields: false,
            is_budget: false,
            quotas: Vec::new(),
        }
    }

    #[test]
    fn limits_are_read_back_from_their_classes() {
        let up = |text| Limit::Each {
            up: Some(rate(text)),
            down: None,
        };
        let down = |text| Limit::Each {
            up: None,
            down: Some(rate(text)),
        };
        let desired = Desired {
            targets: vec![
                target(7, 1, None, up("80mbit")),
                target(8, 2, Some(1), up("8mbit")),
                target(9, 3, None, Limit::Both(rate("4mbit"))),
                target(10, 4, Some(3), Limit::None),
                target(11, 5, None, down("16mbit")),
                target(12, 6, Some(5), up("2mbit")),
            ],
            ..Desired::default()
        };
        let plan = plan::plan(&desired, &IdleNodes::new());
        let map = plan.leaves.iter().map(|(id, leaves)| {
            let cap = leaves.cap.map(|leaf| stages::leaf(stages::CAP_MAJOR, leaf));
            let target = abi::Target {
                counters: *id,
                dscp: 0,
                quotas: Default::default(),
                cap,
            };
            (*id, target)
        });
        let found = read_back(&plan.cap, &map.collect());
        let limit = |slot: u16| {
            let found = found.limits.iter().find(|limit| limit.slot == slot);
            found.map(|found| (found.parent, found.limit))
        };
        assert_eq!(limit(1), Some((None, up("80mbit"))));
        assert_eq!(limit(2), Some((Some(1), up("8mbit"))));
        assert_eq!(limit(3), Some((None, Limit::Both(rate("4mbit")))));
        assert_eq!(limit(5), Some((None, down("16mbit"))));
        assert_eq!(limit(6), Some((Some(5), up("2mbit"))));
        assert_eq!(found.limits.len(), 5, "slot 4 has no limit of its own");
        let slots: Vec<(u32, u16)> = found.targets.clone();
        assert_eq!(slots, [(7, 1), (8, 2), (9, 3), (10, 3), (11, 5), (12, 6)]);
    }
}
