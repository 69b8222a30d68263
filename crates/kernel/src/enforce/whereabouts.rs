//! The classes that hold the packets of a target, and their interfaces.

use netnice_core::units::Rate;

use super::{Kernel, stages};
use crate::{
    plan::{Leaf, Tree},
    tc::Handle,
};

/// One class that holds packets of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// The managed link of the class; `None` for the cap stage.
    pub link: Option<String>,
    /// Whether it holds received packets; else sent ones, or both.
    pub down: bool,
    /// The interface that has the class.
    pub device: String,
    /// The class, as tc(8) names it.
    pub class: String,
    /// The highest rate of the class.
    pub most: Option<Rate>,
    /// Whether the class is the target's own; else a target around it has it.
    pub own: bool,
}

impl Kernel {
    /// The classes that hold packets of a target.
    pub fn whereabouts(&self, id: u32) -> Vec<Whereabouts> {
        let mut found = Vec::new();
        if let Some(places) = self.installed.places.get(&id) {
            for dir in 0..2 {
                let class = node(&self.installed.cap, places.cap[dir], stages::CAP_MAJOR);
                found.extend(class.map(|(class, most)| Whereabouts {
                    link: None,
                    down: dir == 1,
                    device: stages::CAP_NEAR.to_owned(),
                    class,
                    most,
                    own: places.own[dir],
                }));
            }
        }
        for (name, trees) in &self.installed.links {
            let Some(leaves) = trees.places.get(&id) else {
                continue;
            };
            for (dir, major) in [stages::LINK_MAJOR, stages::DOWN_MAJOR]
                .into_iter()
                .enumerate()
            {
                let Some(tree) = &trees.trees[dir] else {
                    continue;
                };
                let shared = trees.places.iter().any(|(other, leaf)| {
                    *other < id && leaf[dir].is_some() && leaf[dir] == leaves[dir]
                });
                let class = node(tree, leaves[dir], major);
                found.extend(class.map(|(class, most)| Whereabouts {
                    link: Some(name.clone()),
                    down: dir == 1,
                    device: match dir {
                        0 => name.clone(),
                        _ => format!("the receive stage of {name}"),
                    },
                    class,
                    most,
                    own: !shared,
                }));
            }
        }
        found
    }
}

/// The parent class of a leaf, and its highest rate.
fn node(tree: &Tree, leaf: Option<Leaf>, major: u16) -> Option<(String, Option<Rate>)> {
    let number = tree.get(&leaf?.bulk)?.parent;
    let class = tree.get(&number)?;
    let most = Rate::new(class.htb.ceil.saturating_mul(8));
    Some((Handle::new(major, number).to_string(), most))
}
