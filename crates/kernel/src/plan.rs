//! From what is granted to the classes that enforce it.
//!
//! This module is pure: it computes the class trees that ought to be there ([`plan`]) and the steps from the trees
//! that are there ([`difference()`]); another module carries the steps out. So all of it is tested without a kernel.
//!
//! # Trees
//! There is one tree in the cap stage, and one for each managed direction of a link:
//!
//! ```text
//!   cap stage                   managed link, rate R
//!   ├─ target a: up             root: R
//!   │  ├─ sparse                ├─ rest (traffic without a target)
//!   │  ├─ bulk                  │  ├─ sparse, bulk
//!   │  ├─ local                 └─ target a: its minimum, up to R
//!   │  └─ target b, in a           ├─ sparse, bulk
//!   └─ target a: down              └─ target b, in a
//!      ├─ sparse, bulk, local
//! ```
//!
//! A target has a *node* in a tree where it has a limit of its own (cap stage), or a minimum, weight or priority (link);
//! its node hangs under that of the nearest target around it that has one, and packets of a target without a node use
//! the leaves of that one. Every node keeps leaves of its own, so that nested targets can come and go.
//!
//! # Rates
//! In HTB a class sends at its *assured* rate whatever its parent's tokens say, and borrows up to its *ceiling* only
//! while its parent has tokens. So a ceiling holds only if the assured rates below it add up to no more. All ceilings are
//! the node's own limit.
//!
//! **In the cap stage only sparse leaves are assured anything**, all others borrow, so that packets leave one by one as the
//! outermost limit has room for them. (With a part of the limit assured to the bulk leaf, some packets left by that and some
//! by what was lent, and often two together: twice as long a wait for everybody else on a slow wire.) A node has A, its limit
//! or its part of the node's around it, and assures A/4 to its sparse leaf; a half is for the nested nodes together, in
//! equal parts of which there is a power of two, so that one more nested target seldom changes the others. The sparse
//! leaf's assured rate is why a ping does not wait for the debt of a bulk packet.
//!
//! **On a link** a node shares what it is assured, A: with no nested nodes A/4 to its sparse leaf and 3A/4 to its bulk leaf;
//! with nested nodes A/4 and A/8, and a half to the nested as above.
//!
//! On a link, the nodes at the top are assured what was promised to them plus their weight's part of what was promised
//! to nobody. HTB could lend that part out by itself, but not by weight: a class that runs at its own rate for a moment
//! loses its turn among the borrowers, so one with a minimum got a tenth of its part (measured). Only nodes that carry
//! traffic and are of the first priority among those take part ([`Quiet`] says who does not), so that the parts of the
//! others are not lent out unequally.
//!
//! # Queues
//! A bulk queue that is a plain FIFO must hold `FIFO_FLOOR` bytes, or a large packet of segmentation offload would
//! never pass, and a flooding UDP sender would burn a core on drops in place of waiting for its socket buffer.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::units::{Nanos, Rate};

use crate::tc::{HtbClass, LeafQueue};

mod difference;
mod stage;
#[cfg(test)]
mod tests;

pub use difference::{Step, Steps, difference};
use stage::{Direction, Family, Stage};

/// All that should be in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The targets; a target's parent stands anywhere in the list.
    pub targets: Vec<Target>,
    /// The managed links.
    pub links: Vec<Link>,
    /// What queues in the leaves.
    pub leaves: Leaves,
    /// Longest packet of any interface but lo, with its header.
    pub longest: u32,
}

/// What the kernel offers for leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaves {
    /// fq_codel.
    FqCodel,
    /// Byte FIFOs only.
    #[default]
    Fifo,
}

/// A target as far as classes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its number in the maps; never used again after it.
    pub id: u32,
    /// Its place in the class numbers: 1 to [`MAX_SLOT`], used again after it.
    pub slot: u16,
    /// Slot of the target that contains it.
    pub parent: Option<u16>,
    /// Limit on what it sends, receives, or on both together.
    pub limit: Limit,
    /// How long it may run ahead of its rates.
    pub burst: Nanos,
    /// Its part in a managed link.
    pub share: Option<Share>,
    /// Weight of its part in what is left over.
    pub weight: u16,
    /// Order of its part in what is left over; 0 is first.
    pub priority: u8,
}

/// A limit, by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// No limit of its own.
    #[default]
    None,
    /// Each direction by itself.
    Each {
        /// On what it sends.
        up: Option<Rate>,
        /// On what it receives.
        down: Option<Rate>,
    },
    /// One limit on the sum of both directions.
    Both(Rate),
}

/// A target's part in a managed link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The link's name.
    pub link: String,
    /// Assured sending rate.
    pub min: Option<Rate>,
    /// Assured receiving rate.
    pub min_down: Option<Rate>,
    /// The most that it sends here, beside its limits everywhere.
    pub max: Option<Rate>,
}

/// A managed link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Sending rate that is shared out.
    pub up: Option<Rate>,
    /// Receiving rate that is shared out (already reduced to what can be held).
    pub down: Option<Rate>,
    /// Bytes that each packet costs beyond layer 2.
    pub overhead: u16,
}

/// A class that ought to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Number of the class above it; 0 at the top.
    pub parent: u16,
    /// Its parameters.
    pub htb: HtbClass,
    /// Its queue, if it is a leaf.
    pub queue: Option<LeafQueue>,
}

/// The classes of one HTB, by number.
pub type Tree = BTreeMap<u16, Class>;

/// The leaves of a node, by class number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// For flows far below their share.
    pub sparse: u16,
    /// For all others.
    pub bulk: u16,
    /// For all others on lo.
    pub local: u16,
    /// Window of the flow accounting that chooses.
    pub window: Nanos,
    /// Bytes that the node is assured in a window.
    pub assured: u64,
}

/// Where a target's packets queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// In the cap stage, by direction (up, down).
    pub cap: [Option<Leaf>; 2],
    /// Whether these are the target's own leaves, not those of a target around it.
    pub own: [bool; 2],
}

/// The class trees of a managed link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkTrees {
    /// By direction (up, down); none where the direction is not managed.
    pub trees: [Option<Tree>; 2],
    /// Leaves of traffic without a target, by direction.
    pub rest: [Option<Leaf>; 2],
    /// Leaves of each target that has any on this link, by target number.
    pub places: BTreeMap<u32, [Option<Leaf>; 2]>,
}

/// All that the kernel is to be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The tree of the cap stage.
    pub cap: Tree,
    /// Leaves of each target in the cap stage, by target number.
    pub places: BTreeMap<u32, Places>,
    /// The trees of each managed link, by name.
    pub links: BTreeMap<String, LinkTrees>,
}

/// Who on a managed link carries too little now to need a share of what is left over: by link, direction (up, down)
/// and slot. Measured, not granted: minimums hold whatever stands here.
pub type Quiet = BTreeMap<String, [BTreeSet<u16>; 2]>;

/// Computes the classes for what is desired.
pub fn plan(desired: &Desired, quiet: &Quiet) -> Plan {
    let family = Family::new(&desired.targets);
    let mut plan = Plan::default();
    let up = Stage::cap(desired, &family, Direction::Up);
    let down = Stage::cap(desired, &family, Direction::Down);
    up.write(&mut plan.cap, None);
    down.write(&mut plan.cap, None);
    for target in &desired.targets {
        let sends = up.nearest(target);
        let receives = down
            .nearest(target)
            .or(sends.filter(|slot| family.limits_both(*slot)));
        let cap = [
            sends.map(|slot| up.leaf(slot, &plan.cap)),
            receives.map(|slot| down.leaf_or(&up, slot, &plan.cap)),
        ];
        // What a limit on both directions counted is told once, as sent.
        let own = [sends == Some(target.slot), down.has_node(target.slot)];
        plan.places.insert(target.id, Places { cap, own });
    }
    for link in &desired.links {
        plan.links
            .insert(link.name.clone(), link_trees(desired, &family, link, quiet));
    }
    plan
}

fn link_trees(desired: &Desired, family: &Family, link: &Link, quiet: &Quiet) -> LinkTrees {
    let mut trees = LinkTrees::default();
    for (direction, rate) in [(Direction::Up, link.up), (Direction::Down, link.down)] {
        let Some(rate) = rate else { continue };
        let stage = Stage::link(desired, family, link, direction, rate);
        let at = direction as usize;
        let mut tree = Tree::new();
        stage.write(&mut tree, quiet.get(&link.name).map(|q| &q[at]));
        trees.rest[at] = Some(stage.leaf(REST, &tree));
        for target in &desired.targets {
            if let Some(slot) = stage.nearest(target) {
                trees.places.entry(target.id).or_default()[at] = Some(stage.leaf(slot, &tree));
            }
        }
        trees.trees[at] = Some(tree);
    }
    trees
}

/// Whether a class is the one above all nodes of a link's tree.
pub fn is_top(number: u16) -> bool {
    number == stage::TOP_CLASS
}

/// The slot that a node's class belongs to; 0 for traffic without a target.
pub fn slot_of(number: u16) -> u16 {
    number / stage::BLOCK
}

/// Whether a node's class limits what is received.
pub fn is_down(number: u16) -> bool {
    number % stage::BLOCK >= stage::BLOCK / 2
}

/// Highest slot: its block of class numbers still fits 16 bits.
pub const MAX_SLOT: u16 = 8_190;
/// The slot of traffic without a target.
const REST: u16 = 0;
