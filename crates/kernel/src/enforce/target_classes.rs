//! Lists the classes that queue the packets of a target, with their interfaces and highest rates
//! ([`Kernel::target_classes`]), for `netnice explain`. Reads the desired targets and the
//! installed plan, which are in memory, so it never fails. A target that is not desired has none.

use netnice_core::contract::Direction;
use netnice_core::units::Rate;

use super::{Kernel, stages};
use crate::{
    plan::{self, NodeLeaves, Plan, Target, Tree},
    tc::Handle,
};

/// One class that queues packets of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetClass {
    /// The managed link of the class; `None` for the cap stage.
    pub link: Option<String>,
    /// The direction of the packets; `None` for a limit on both directions together.
    pub direction: Option<Direction>,
    /// The name of the interface that has the class; for a receive stage, `the receive stage of
    /// LINK`.
    pub device: String,
    /// The class, as tc(8) names it: `major:minor` in hexadecimal digits.
    pub class: String,
    /// The highest rate of the class; `None` if it is outside the range of [`Rate`].
    pub max_rate: Option<Rate>,
    /// True if the class is the target's own; false if it is that of a target around it.
    pub own: bool,
}

/// The directions in the order of the plan's leaves.
const DIRECTIONS: [Direction; 2] = [Direction::Up, Direction::Down];

impl Kernel {
    /// The classes that queue packets of the target with this number: at most one for each
    /// direction in the cap stage and on each managed link. Empty if neither the target nor a
    /// target around it has a limit or a class of its own on a managed link.
    pub fn target_classes(&self, id: u32) -> Vec<TargetClass> {
        let target = self.desired.targets.iter().find(|target| target.id == id);
        target.map_or_else(Vec::new, |target| classes_of(&self.installed, target))
    }
}

fn classes_of(plan: &Plan, target: &Target) -> Vec<TargetClass> {
    let mut found = Vec::new();
    if let Some(leaves) = plan.leaves.get(&target.id) {
        // One class limits both directions together.
        let class = |dir: usize| leaves.cap[dir].map(|leaf| leaf.bulk);
        let together = class(0) == class(1);
        for (dir, direction) in DIRECTIONS.into_iter().enumerate() {
            if together && dir == 1 {
                break;
            }
            let class = parent_class(&plan.cap, leaves.cap[dir]);
            found.extend(class.map(|(number, max_rate)| TargetClass {
                link: None,
                direction: (!together).then_some(direction),
                device: stages::CAP_NEAR.to_owned(),
                class: Handle::new(stages::CAP_MAJOR, number).to_string(),
                max_rate,
                own: plan::slot_of(number) == target.slot,
            }));
        }
    }
    for (name, trees) in &plan.links {
        let Some(leaves) = trees.leaves.get(&target.id) else {
            continue;
        };
        for (dir, major) in [stages::LINK_MAJOR, stages::DOWN_MAJOR]
            .into_iter()
            .enumerate()
        {
            let Some(tree) = &trees.trees[dir] else {
                continue;
            };
            let class = parent_class(tree, leaves[dir]);
            found.extend(class.map(|(number, max_rate)| TargetClass {
                link: Some(name.clone()),
                direction: Some(DIRECTIONS[dir]),
                device: match dir {
                    0 => name.clone(),
                    _ => format!("the receive stage of {name}"),
                },
                class: Handle::new(major, number).to_string(),
                max_rate,
                own: plan::slot_of(number) == target.slot,
            }));
        }
    }
    found
}

/// The number of a leaf's parent class, and its highest rate.
fn parent_class(tree: &Tree, leaf: Option<NodeLeaves>) -> Option<(u16, Option<Rate>)> {
    let number = tree.get(&leaf?.bulk)?.parent;
    let class = tree.get(&number)?;
    let max_rate = Rate::new(class.htb.ceil.saturating_mul(8));
    Some((number, max_rate))
}

#[cfg(test)]
mod tests {
    use netnice_core::units::Nanos;

    use super::*;
    use crate::plan::{Desired, IdleNodes, Limit, Link, LinkShare};

    #[test]
    fn a_class_belongs_to_the_target_that_it_was_made_for() {
        let rate: Rate = "1mbit".parse().expect("a rate");
        let target = |id, slot, parent| Target {
            id,
            slot,
            parent,
            limit: Limit::None,
            burst: Nanos::from_millis(5),
            share: None,
            weight: 100,
            priority: 4,
            dscp: None,
            yields: false,
            is_budget: false,
            quotas: Vec::new(),
        };
        // The inner target is older than the outer one.
        let inner = target(1, 1, Some(2));
        let outer = Target {
            limit: Limit::Both(rate),
            share: Some(LinkShare {
                link: "eth0".into(),
                min: Some(rate),
                min_down: None,
                max: None,
                redirect: None,
            }),
            ..target(2, 2, None)
        };
        let link = Link {
            name: "eth0".into(),
            up: Some(rate),
            down: Some(rate),
            overhead: 0,
            bucket: None,
            has_redirects: false,
        };
        let desired = Desired {
            targets: vec![inner.clone(), outer.clone()],
            links: vec![link],
            ..Desired::default()
        };
        let plan = plan::plan(&desired, &IdleNodes::new());
        for (target, own) in [(inner, false), (outer, true)] {
            let classes = classes_of(&plan, &target);
            let found: Vec<(&str, bool)> = classes
                .iter()
                .map(|class| (class.class.as_str(), class.own))
                .collect();
            assert_eq!(
                found,
                [("4e00:12", own), ("4e10:12", own), ("4e20:17", own)]
            );
        }
    }
}
