//! Computes the classes that enforce what is granted.
//!
//! This module is pure. It computes the desired class trees (`plan`) and the steps to them from
//! the present trees (`difference()`); [`crate::enforce`] carries out the steps. So all of it is
//! tested without a kernel. Nothing here fails: admission has checked the input.
//!
//! # Trees
//! There is one tree in the cap stage, and one for each managed direction of a link:
//!
//! ```text
//!   cap stage                   managed link, rate R
//!   ├─ target a: up             root: R
//!   │  ├─ sparse, bulk          ├─ rest (traffic without a target)
//!   │  ├─ local                 │  ├─ sparse, bulk
//!   │  ├─ patient               └─ target a: its minimum, up to R
//!   │  └─ target b, in a           ├─ sparse, bulk
//!   └─ target a: down              └─ target b, in a
//!      ├─ sparse, bulk, local
//! ```
//!
//! A target has a *node* in a tree where it has a limit of its own (cap stage), or a [`LinkShare`]
//! or [`Target::yields`] (link): a class, and the leaves below it. The parent of its node is the
//! node of the nearest target around it that has one. Packets of a target without a node use the
//! leaves of the node of the nearest target around it. Every node keeps leaves of its own, so that
//! nested targets can come and go.
//!
//! # Rates
//! In HTB a class sends at its *assured* rate regardless of its parent's tokens, and borrows up to
//! its *ceiling* only while its parent has tokens. So a ceiling holds only if the assured rates
//! below it add up to no more. The ceiling of all classes of a node is the node's limit; on a link,
//! it is the link's rate or the target's highest rate there.
//!
//! **In the cap stage only sparse leaves have an assured rate.** All other leaves borrow, so that
//! packets leave one by one as the outermost limit permits. (With a part of the limit assured to
//! the bulk leaf, some packets left at that rate and some by borrowing, and often two together: on
//! a slow link all others waited twice as long.) A node has A, its limit or its part of the
//! surrounding node's, and assures A/4 to its sparse leaf. A half is for the nested nodes together,
//! in equal parts; the number of parts is a power of two, so that one more nested target seldom
//! changes the others. Because of the sparse leaf's assured rate, a ping does not wait for the debt
//! of a bulk packet.
//!
//! **On a link** a node keeps the guarantees of its nested nodes, and divides the rest A of its
//! assured rate. Without nested nodes, A/4 goes to its sparse leaf and 3A/4 to its bulk leaf. With
//! nested nodes these leaves get A/4 and A/8, and a half goes to the nested nodes as above, in
//! addition to their guarantees.
//!
//! On a link, the assured rate of a top node (one without a node around it) is its guarantee plus
//! its weight's part of the rate that is not guaranteed. HTB could lend that rest out by itself,
//! but not by weight: a class that runs at its own rate for a moment loses its turn among the
//! borrowers, so a class with a minimum got a tenth of its part (measured). Only nodes that carry
//! traffic, and of these only those of the first priority, take part, so that HTB does not lend out
//! the parts of the others unequally. (`IdleNodes` lists the nodes that carry too little.)
//!
//! **A target that yields** has a node on every managed link, of a priority behind all others, and
//! takes no part in this division. So HTB lends to it only what no other class with packets uses,
//! and the node gives way with the next packet. Its node is below the parent of all nodes, even if
//! the target is inside another one: below a node with a guarantee it would borrow that guarantee
//! before others borrow from the link. It stays inside a node whose highest rate is below the
//! link's, which bounds it. All nodes that yield are assured a hundredth of the link together, and
//! each at most `MIN_ASSURED`, so that their connections do not time out.
//!
//! HTB has eight priorities, as many as contracts. If a link has a target of priority 7 and one
//! that yields, the priorities behind the last unused one move forward by one; if all are in use, 6
//! and 7 become one.
//!
//! **In a budget** ([`Target::is_budget`]) the nested nodes divide the half by their weights. Only
//! nodes that carry traffic, and of these only those of the first priority, take part, as the top
//! nodes of a link do. HTB's priorities count in the whole tree, so all nodes in a budget have that
//! of the budget's node: a priority of a nested node never takes anything from a node outside.
//!
//! **A minimum inside a limit** has a node in the cap stage too, which is assured the minimum.
//! Otherwise the other packets under that limit would crowd it out before it reaches its link.
//!
//! # Queues
//! The leaves of the cap stage are FIFOs. The eBPF programs bound what waits in the bulk leaf
//! ([`NodeLeaves::bound`]), and refuse the rest before it enters. So a TCP sender of this host
//! slows down without a loss, each flow has its part of the queue, and the FIFO itself drops
//! nothing.
//!
//! Other senders of this host (UDP) wait for their socket's buffer. Their packets are never
//! refused, or a flooding sender would use a whole core for attempts; they have a leaf of their
//! own, the patient one, so that TCP does not wait behind a flood. Received packets are bounded in
//! the same way, but dropped one at a time, because a remote sender finds its rate by losses only.
//!
//! # Packets of lo
//! On lo a packet can have 64 KiB, and HTB sends at least one packet at each turn of a leaf. So
//! while packets of lo wait in the local leaf of a node, all leaves of the outermost node around it
//! have turns of that length; otherwise lo would get 43 times as much as cables. Without packets in
//! a local leaf, turns are short, so that packets of the leaves take turns one by one.
//!
//! Packets of lo that are no longer than those of cables wait in the bulk leaf, with them
//! ([`NodeLeaves::longest`]).
//!
//! On a link, a bulk queue for sent packets that is a plain FIFO holds at least `FIFO_FLOOR` bytes
//! (164,000). In a short one, a large packet of segmentation offload would never pass, and a
//! flooding UDP sender would use a whole core for drops. For received packets, the FIFO of a node
//! below 500 Mbit/s may be shorter (`RECEIVE_TIME`), because no sender waits for it.
//!
//! # The filter above a link's classes
//! Each class may send ahead of its rate by its burst, or by one packet, also while all others do.
//! So what a tree sends ahead grows with the number of its classes, and every user who may yield
//! makes classes. Where a driver of the direct path promises deadlines on the same link, a token
//! bucket filter above the tree ([`Link::bucket`]) passes on no more than its bucket and its rate,
//! whatever the tree consists of.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::contract::Dscp;
use netnice_core::units::{Nanos, Rate};

use crate::tc::{HtbClass, LeafQueue};

mod difference;
mod nesting;
mod pacer;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use difference::{Step, difference};
use nesting::Nesting;
pub(crate) use pacer::Pacer;
use tree::{Direction, TreePlan};

/// The input of `plan`: the granted targets, the managed links, and the properties of the machine
/// on which the classes depend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The targets with their grants, in any order.
    pub targets: Vec<Target>,
    /// The managed links.
    pub links: Vec<Link>,
    /// The queueing discipline of the leaves of links.
    pub leaf_qdisc: LeafQdisc,
    /// Longest packet of any interface but lo in bytes, with its header.
    pub longest_packet: u32,
    /// The name of the loopback interface; `None` if it is unknown.
    pub loopback: Option<String>,
    /// The slots of the targets whose local leaves carry packets now. It is measured, not granted.
    pub on_lo: BTreeSet<u16>,
}

/// The queueing discipline (qdisc) of the leaves of links. [`crate::probe::leaf_qdisc`] selects it.
/// The leaves of the cap stage are FIFOs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeafQdisc {
    /// fq_codel (RFC 8290), if the kernel has it.
    FqCodel,
    /// FIFOs that are bounded in bytes.
    #[default]
    Fifo,
}

/// The part of a target that determines its classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The target's number in the maps; never reused.
    pub id: u32,
    /// The target's position in the class numbers: 1 to [`MAX_SLOT`]; reused after the target.
    pub slot: u16,
    /// Slot of the target around it; `None` if no target contains it.
    pub parent: Option<u16>,
    /// Limit on what it sends, on what it receives, or on both together.
    pub limit: Limit,
    /// Burst of its rates: the amount that may pass at once after a silence, as time at the rate.
    pub burst: Nanos,
    /// The target's part in a managed link; `None` if it has none.
    pub share: Option<LinkShare>,
    /// Weight of its part in the left-over; 100 is the default.
    pub weight: u16,
    /// Order of its part in the left-over; 0 is first.
    pub priority: u8,
    /// The code point of the packets that the target sends; `None` if they keep theirs.
    pub dscp: Option<Dscp>,
    /// Whether the target yields: on every managed link it uses only bandwidth that no other
    /// traffic uses. Then it has no `share`.
    pub yields: bool,
    /// Whether the weights and priorities of the targets inside it count only among these.
    pub is_budget: bool,
    /// The keys of the traffic quotas that hold its packets: its own and those of the targets
    /// around it. At most [`crate::enforce::MOST_QUOTAS`]; more have no effect.
    pub quotas: Vec<u64>,
}

/// A limit, by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// No limit of its own.
    #[default]
    None,
    /// One limit for each direction.
    Each {
        /// Limit on what it sends.
        up: Option<Rate>,
        /// Limit on what it receives.
        down: Option<Rate>,
    },
    /// One limit on the sum of both directions.
    Both(Rate),
}

/// A target's part in a managed link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkShare {
    /// The link's name.
    pub link: String,
    /// Assured sending rate; `None` without a guarantee.
    pub min: Option<Rate>,
    /// Assured receiving rate; `None` without a guarantee.
    pub min_down: Option<Rate>,
    /// The highest sending rate on this link, in addition to the target's [`Target::limit`]; `None`
    /// if the link's rate is the only bound here.
    pub max: Option<Rate>,
    /// The place in the map of redirects by which the target's sent packets go to the driver of the
    /// link, in place of its classes; `None`: to its classes. While the driver does not run, they
    /// go to the classes in any case.
    pub redirect: Option<u16>,
}

/// A managed link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The name of the link's interface.
    pub name: String,
    /// Managed sending rate; `None` if that direction is not managed.
    pub up: Option<Rate>,
    /// Managed receiving rate (already reduced to the rate that can be held), or `None`.
    pub down: Option<Rate>,
    /// Bytes that each packet takes on the link beyond layer 2.
    pub overhead: u16,
    /// The bucket of a filter above all classes, as time at the sending rate; `None` for a filter
    /// that lets everything through.
    /// The classes together then send ahead of their rate by at most this bucket, or by the longest
    /// packet if that is more.
    pub bucket: Option<Nanos>,
    /// Whether the link has a redirect pair, by which packets of targets go to its driver.
    pub has_redirects: bool,
}

/// A class of the desired HTB tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    /// Number of the parent class; 0 at the top.
    pub parent: u16,
    /// The class's parameters.
    pub htb: HtbClass,
    /// The class's queue, if it is a leaf.
    pub queue: Option<LeafQueue>,
}

/// The classes of one HTB, by number.
pub(crate) type Tree = BTreeMap<u16, Class>;

/// The leaves of a node, by class number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeLeaves {
    /// Class of flows that use far less than their share.
    pub sparse: u16,
    /// Class of all other flows.
    pub bulk: u16,
    /// Class of all other flows on lo with packets longer than `longest`. Only the cap stage has
    /// one; on a link, the same as `bulk`.
    pub local: u16,
    /// Class of all other flows whose sender waits for its socket's buffer; where there is none,
    /// the same as `bulk`.
    pub patient: u16,
    /// Bytes that may wait in the bulk leaf; 0: as many as its queue takes.
    pub bound: u32,
    /// The longest packet in bytes that the bulk leaf of the cap stage takes whole; longer ones are
    /// segmented or, if they cannot be, dropped. 0: it takes any.
    pub longest: u32,
    /// The limit in bytes per second; 0 on a link.
    pub rate: u32,
    /// Length of the window in which the eBPF program accounts flows, to choose a packet's leaf.
    pub window: Nanos,
    /// Bytes that the node is assured in a window.
    pub assured: u64,
    /// The place by which packets go to the link's driver instead ([`LinkShare::redirect`]).
    pub redirect: Option<u16>,
}

/// The queues of a target's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetLeaves {
    /// The leaves in the cap stage, by direction (up, down).
    pub cap: [Option<NodeLeaves>; 2],
    /// By direction: true for the target's own leaves; false for those of a target that contains
    /// it, and without leaves. Under a limit on both directions together it is false for received
    /// packets, so that the leaves count once.
    pub own: [bool; 2],
}

/// The class trees of a managed link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkTrees {
    /// By direction (up, down); `None` for a direction that is not managed.
    pub trees: [Option<Tree>; 2],
    /// Leaves of traffic without a target, by direction.
    pub rest: [Option<NodeLeaves>; 2],
    /// Leaves of each target that has any on this link, by target number.
    pub leaves: BTreeMap<u32, [Option<NodeLeaves>; 2]>,
    /// The filter above the classes of the sending direction; `None` for an open one.
    pub pacer: Option<Pacer>,
    /// Whether the link has a redirect pair.
    pub has_redirects: bool,
}

/// The result of [`plan`]: the class trees, and the leaves of each target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The tree of the cap stage.
    pub cap: Tree,
    /// Leaves of each target in the cap stage, by target number.
    pub leaves: BTreeMap<u32, TargetLeaves>,
    /// The trees of each managed link, by name.
    pub links: BTreeMap<String, LinkTrees>,
}

/// The nodes of a managed link that now carry too little to need a share of the left-over: by link,
/// direction (up, down) and slot. The set is measured, not granted; minimums do not depend on it.
pub(crate) type IdleNodes = BTreeMap<String, [BTreeSet<u16>; 2]>;

/// Computes the class trees for the desired state. `idle` are the nodes that get no share of the
/// left-over now.
pub(crate) fn plan(desired: &Desired, idle: &IdleNodes) -> Plan {
    let nesting = Nesting::new(&desired.targets);
    let mut plan = Plan::default();
    let up = TreePlan::cap(desired, &nesting, Direction::Up);
    let down = TreePlan::cap(desired, &nesting, Direction::Down);
    up.write(&mut plan.cap, None);
    down.write(&mut plan.cap, None);
    for target in &desired.targets {
        let sends = up.nearest(target);
        let receives = down
            .nearest(target)
            .or(sends.filter(|slot| nesting.limits_the_sum(*slot)));
        let cap = [
            sends.map(|slot| up.leaf(slot, Direction::Up, &plan.cap)),
            receives.map(|slot| down.leaf_or(&up, slot, &plan.cap)),
        ];
        // A limit on both directions counts its packets once, as sent.
        let own = [sends == Some(target.slot), down.has_node(target.slot)];
        plan.leaves.insert(target.id, TargetLeaves { cap, own });
    }
    for link in &desired.links {
        plan.links
            .insert(link.name.clone(), link_trees(desired, &nesting, link, idle));
    }
    plan
}

fn link_trees(desired: &Desired, nesting: &Nesting, link: &Link, idle: &IdleNodes) -> LinkTrees {
    let mut trees = LinkTrees {
        pacer: Pacer::of(link),
        has_redirects: link.has_redirects,
        ..LinkTrees::default()
    };
    let places = redirects(desired, link);
    for (direction, rate) in [(Direction::Up, link.up), (Direction::Down, link.down)] {
        let Some(rate) = rate else { continue };
        let tree_plan = TreePlan::link(desired, nesting, link, direction, rate);
        let at = direction as usize;
        let mut tree = Tree::new();
        tree_plan.write(&mut tree, idle.get(&link.name).map(|q| &q[at]));
        trees.rest[at] = Some(tree_plan.leaf(REST, direction, &tree));
        for target in &desired.targets {
            if let Some(slot) = tree_plan.nearest(target) {
                let redirect = match direction {
                    Direction::Up => places.get(&slot).copied(),
                    Direction::Down => None,
                };
                trees.leaves.entry(target.id).or_default()[at] = Some(NodeLeaves {
                    redirect,
                    ..tree_plan.leaf(slot, direction, &tree)
                });
            }
        }
        trees.trees[at] = Some(tree);
    }
    trees
}

/// The places of the redirected targets of a link, by slot.
fn redirects(desired: &Desired, link: &Link) -> BTreeMap<u16, u16> {
    let places = desired.targets.iter().filter_map(|target| {
        let share = target.share.as_ref()?;
        Some((target.slot, share.redirect?)).filter(|_| share.link == link.name)
    });
    places.filter(|_| link.has_redirects).collect()
}

/// Whether a class is the parent of all nodes of a link's tree.
pub(crate) fn is_top(number: u16) -> bool {
    number == tree::TOP_CLASS
}

/// The slot of a node's class; 0 for traffic without a target, and for the parent of all nodes.
pub(crate) fn slot_of(number: u16) -> u16 {
    number / tree::CLASSES_PER_SLOT
}

/// Whether a node's class limits what is received.
pub(crate) fn is_down(number: u16) -> bool {
    number % tree::CLASSES_PER_SLOT >= tree::CLASSES_UP
}

/// Highest slot: its block of class numbers still fits in 16 bits.
pub const MAX_SLOT: u16 = 7_280;
/// The slot that stands for traffic without a target.
const REST: u16 = 0;
