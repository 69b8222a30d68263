//! Lists the classes that queue the packets of a target, with their interfaces and highest rates
//! ([`Kernel::target_classes`]), for `netnice explain`. Reads the installed plan only, so it never
//! fails.

use netnice_core::contract::Direction;
use netnice_core::units::Rate;

use super::{Kernel, stages};
use crate::{
    plan::{NodeLeaves, Tree},
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
    /// True if the class is the target's own; false if it is that of a target around it. If several
    /// targets use a class of a link, the one with the lowest number counts as its owner.
    pub own: bool,
}

/// The directions in the order of the plan's leaves.
const DIRECTIONS: [Direction; 2] = [Direction::Up, Direction::Down];

impl Kernel {
    /// The classes that queue packets of the target with this number: at most one for each
    /// direction in the cap stage and on each managed link. Empty if neither the target nor a
    /// target around it has a limit or a class of its own on a managed link.
    pub fn target_classes(&self, id: u32) -> Vec<TargetClass> {
        let mut found = Vec::new();
        if let Some(leaves) = self.installed.leaves.get(&id) {
            // One class limits both directions together.
            let class = |dir: usize| leaves.cap[dir].map(|leaf| leaf.bulk);
            let together = class(0) == class(1);
            for (dir, direction) in DIRECTIONS.into_iter().enumerate() {
                if together && dir == 1 {
                    break;
                }
                let class = parent_class(&self.installed.cap, leaves.cap[dir], stages::CAP_MAJOR);
                found.extend(class.map(|(class, max_rate)| TargetClass {
                    link: None,
                    direction: (!together).then_some(direction),
                    device: stages::CAP_NEAR.to_owned(),
                    class,
                    max_rate,
                    own: leaves.own[dir],
                }));
            }
        }
        for (name, trees) in &self.installed.links {
            let Some(leaves) = trees.leaves.get(&id) else {
                continue;
            };
            for (dir, major) in [stages::LINK_MAJOR, stages::DOWN_MAJOR]
                .into_iter()
                .enumerate()
            {
                let Some(tree) = &trees.trees[dir] else {
                    continue;
                };
                let shared = trees.leaves.iter().any(|(other, leaf)| {
                    *other < id && leaf[dir].is_some() && leaf[dir] == leaves[dir]
                });
                let class = parent_class(tree, leaves[dir], major);
                found.extend(class.map(|(class, max_rate)| TargetClass {
                    link: Some(name.clone()),
                    direction: Some(DIRECTIONS[dir]),
                    device: match dir {
                        0 => name.clone(),
                        _ => format!("the receive stage of {name}"),
                    },
                    class,
                    max_rate,
                    own: !shared,
                }));
            }
        }
        found
    }
}

/// The parent class of a leaf, and its highest rate.
fn parent_class(
    tree: &Tree,
    leaf: Option<NodeLeaves>,
    major: u16,
) -> Option<(String, Option<Rate>)> {
    let number = tree.get(&leaf?.bulk)?.parent;
    let class = tree.get(&number)?;
    let max_rate = Rate::new(class.htb.ceil.saturating_mul(8));
    Some((Handle::new(major, number).to_string(), max_rate))
}
