//! From what is granted to the classes that enforce it.
//!
//! This module is pure: it computes the class trees that ought to be there ([`plan`]) and the steps from the trees
//! that are there ([`difference`]); another module carries the steps out. So all of it is tested without a kernel.
//!
//! # Trees
//! There is one tree in the cap stage, and one for each managed direction of a link:
//!
//! ```text
//!   cap stage              managed link, rate R
//!   ├─ target a: up        root: R
//!   │  ├─ sparse           ├─ rest (traffic without a target)
//!   │  ├─ bulk             │  ├─ sparse, bulk
//!   │  └─ target b, in a   └─ target a: its minimum, up to R
//!   └─ target a: down         ├─ sparse, bulk
//!      ├─ sparse, bulk        └─ target b, in a
//! ```
//!
//! A target has a *node* in a tree where it has a limit of its own (cap stage), or a minimum, weight or priority (link);
//! its node hangs under that of the nearest target around it that has one, and packets of a target without a node use
//! the leaves of that one. Every node keeps two leaves of its own, so that nested targets can come and go.
//!
//! # Rates
//! In HTB a class sends at its *assured* rate whatever its parent's tokens say, and borrows up to its *ceiling* only
//! while its parent has tokens. So a ceiling holds only if the assured rates below it add up to no more. A node shares
//! what it is assured, A: with no nested nodes A/4 to its sparse leaf and 3A/4 to its bulk leaf; with nested nodes a
//! quarter to each leaf and a half to the nested together, in equal parts of which there is a power of two, so that
//! one more nested target seldom changes the others. All ceilings are the node's own limit.
//!
//! The sparse leaf's assured rate is why a ping does not wait for the debt of a bulk packet.
//!
//! # Queues
//! A bulk queue that is a plain FIFO must hold [`FIFO_FLOOR`] bytes, or a large packet of segmentation offload would
//! never pass, and a flooding UDP sender would burn a core on drops in place of waiting for its socket buffer.

use std::collections::BTreeMap;

use netnice_core::units::{Nanos, Rate};

use crate::tc::{HtbClass, Queue};

#[cfg(test)]
mod tests;

/// All that should be in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The targets; a target's parent stands anywhere in the list.
    pub targets: Vec<Target>,
    /// The managed links.
    pub links: Vec<Link>,
    /// What queues in the leaves.
    pub leaves: Leaves,
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
    pub queue: Option<Queue>,
}

/// The classes of one HTB, by number.
pub type Tree = BTreeMap<u16, Class>;

/// A pair of leaves, by class number; equal where there is only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// For flows far below their share.
    pub sparse: u16,
    /// For all others.
    pub bulk: u16,
    /// Window of the flow accounting that chooses.
    pub window: Nanos,
}

/// Where a target's packets queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// In the cap stage, by direction (up, down).
    pub cap: [Option<Pair>; 2],
    /// Whether these are the target's own leaves, not those of a target around it.
    pub own: [bool; 2],
}

/// The class trees of a managed link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkTrees {
    /// By direction (up, down); none where the direction is not managed.
    pub trees: [Option<Tree>; 2],
    /// Leaves of traffic without a target, by direction.
    pub rest: [Option<Pair>; 2],
    /// Leaves of each target that has any on this link, by target number.
    pub places: BTreeMap<u32, [Option<Pair>; 2]>,
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

/// Computes the classes for what is desired.
pub fn plan(desired: &Desired) -> Plan {
    let family = Family::new(&desired.targets);
    let mut plan = Plan::default();
    let up = Stage::cap(desired, &family, Direction::Up);
    let down = Stage::cap(desired, &family, Direction::Down);
    up.write(&mut plan.cap);
    down.write(&mut plan.cap);
    for target in &desired.targets {
        let sends = up.nearest(target);
        let receives = down
            .nearest(target)
            .or(sends.filter(|slot| family.limits_both(*slot)));
        let cap = [
            sends.map(|slot| up.pair(slot)),
            receives.map(|slot| down.pair_or(&up, slot)),
        ];
        // What a limit on both directions counted is told once, as sent.
        let own = [
            sends == Some(target.slot),
            down.nodes.contains_key(&target.slot),
        ];
        plan.places.insert(target.id, Places { cap, own });
    }
    for link in &desired.links {
        plan.links
            .insert(link.name.clone(), link_trees(desired, &family, link));
    }
    plan
}

fn link_trees(desired: &Desired, family: &Family, link: &Link) -> LinkTrees {
    let mut trees = LinkTrees::default();
    for (direction, rate) in [(Direction::Up, link.up), (Direction::Down, link.down)] {
        let Some(rate) = rate else { continue };
        let stage = Stage::link(desired, family, link, direction, rate);
        let at = direction as usize;
        trees.rest[at] = Some(stage.pair(REST));
        for target in &desired.targets {
            if let Some(slot) = stage.nearest(target) {
                trees.places.entry(target.id).or_default()[at] = Some(stage.pair(slot));
            }
        }
        let mut tree = Tree::new();
        stage.write(&mut tree);
        trees.trees[at] = Some(tree);
    }
    trees
}

/// The direction that a tree serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// Who contains whom.
struct Family<'a> {
    by_slot: BTreeMap<u16, &'a Target>,
}

impl<'a> Family<'a> {
    fn new(targets: &'a [Target]) -> Self {
        Self {
            by_slot: targets.iter().map(|t| (t.slot, t)).collect(),
        }
    }

    /// The target itself and those around it, inside out. It ends at a parent that is not there, and after as many
    /// steps as there are targets, so that no input makes it loop.
    fn chain(&self, target: &Target) -> impl Iterator<Item = &'a Target> + '_ {
        let mut next = self.by_slot.get(&target.slot).copied();
        std::iter::from_fn(move || {
            let here = next?;
            next = here
                .parent
                .and_then(|slot| self.by_slot.get(&slot).copied());
            Some(here)
        })
        .take(self.by_slot.len())
    }

    fn limits_both(&self, slot: u16) -> bool {
        self.by_slot
            .get(&slot)
            .is_some_and(|t| matches!(t.limit, Limit::Both(_)))
    }
}

/// The nodes of one direction of one tree.
struct Stage<'a> {
    family: &'a Family<'a>,
    leaves: Leaves,
    direction: Direction,
    /// The class above all nodes, if the tree has one.
    top: Option<HtbClass>,
    nodes: BTreeMap<u16, Node>,
}

/// One target's node.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: Option<u16>,
    /// Bytes per second that were promised to it.
    minimum: u64,
    /// Bytes per second that it never exceeds.
    ceil: u64,
    burst: Nanos,
    weight: u16,
    /// Priority of its sparse and its bulk leaf.
    order: [u32; 2],
}

impl<'a> Stage<'a> {
    /// The limits of one direction. A limit on both directions together lives with the sending ones.
    fn cap(desired: &Desired, family: &'a Family<'a>, direction: Direction) -> Self {
        let limit_of = |target: &Target| match (target.limit, direction) {
            (Limit::Each { up, .. }, Direction::Up) => up,
            (Limit::Each { down, .. }, Direction::Down) => down,
            (Limit::Both(rate), Direction::Up) => Some(rate),
            (Limit::Both(_), Direction::Down) | (Limit::None, _) => None,
        };
        let node = |target: &Target, rate: Rate| Node {
            parent: None,
            minimum: 0,
            ceil: bytes_per_second(rate),
            burst: target.burst,
            weight: target.weight,
            order: [0, 1],
        };
        let nodes = desired
            .targets
            .iter()
            .filter_map(|t| Some((t.slot, node(t, limit_of(t)?))))
            .collect();
        Self {
            family,
            leaves: desired.leaves,
            direction,
            top: None,
            nodes,
        }
        .with_parents()
    }

    /// The parts of one direction of a managed link.
    fn link(
        desired: &Desired,
        family: &'a Family<'a>,
        link: &Link,
        direction: Direction,
        rate: Rate,
    ) -> Self {
        let ceil = bytes_per_second(rate);
        let mut nodes: BTreeMap<u16, Node> = BTreeMap::new();
        for target in &desired.targets {
            let Some(share) = target.share.as_ref().filter(|s| s.link == link.name) else {
                continue;
            };
            let minimum = match direction {
                Direction::Up => share.min,
                Direction::Down => share.min_down,
            };
            let node = Node {
                parent: None,
                minimum: minimum.map_or(0, bytes_per_second),
                ceil,
                burst: target.burst,
                weight: target.weight,
                order: [u32::from(target.priority); 2],
            };
            nodes.insert(target.slot, node);
        }
        let rest = Node {
            parent: None,
            minimum: 0,
            ceil,
            burst: DEFAULT_BURST,
            weight: DEFAULT_WEIGHT,
            order: [u32::from(DEFAULT_PRIORITY); 2],
        };
        nodes.insert(REST, rest);
        let top = HtbClass {
            overhead: link.overhead,
            ..htb(ceil, ceil, DEFAULT_BURST, SMALL_QUANTUM, 0)
        };
        Self {
            family,
            leaves: desired.leaves,
            direction,
            top: Some(top),
            nodes,
        }
        .with_parents()
    }

    /// Hangs every node under the nearest node around it.
    fn with_parents(mut self) -> Self {
        let slots: Vec<u16> = self.nodes.keys().copied().collect();
        for slot in slots {
            let Some(target) = self.family.by_slot.get(&slot) else {
                continue;
            };
            let parent = self
                .family
                .chain(target)
                .skip(1)
                .map(|t| t.slot)
                .find(|s| self.nodes.contains_key(s));
            if let Some(node) = self.nodes.get_mut(&slot) {
                node.parent = parent;
            }
        }
        self
    }

    /// The node whose leaves a target's packets use.
    fn nearest(&self, target: &Target) -> Option<u16> {
        self.family
            .chain(target)
            .map(|t| t.slot)
            .find(|slot| self.nodes.contains_key(slot))
    }

    /// The leaves of a node.
    fn pair(&self, slot: u16) -> Pair {
        let [_, sparse, bulk] = self.numbers(slot);
        Pair {
            sparse,
            bulk,
            window: window(self.nodes[&slot].ceil),
        }
    }

    /// The leaves of a node that is here, or in the other direction's stage.
    fn pair_or(&self, other: &Self, slot: u16) -> Pair {
        if self.nodes.contains_key(&slot) {
            self.pair(slot)
        } else {
            other.pair(slot)
        }
    }

    /// Class numbers of a node: its own, its sparse leaf's, its bulk leaf's.
    fn numbers(&self, slot: u16) -> [u16; 3] {
        let own = match (slot, self.direction) {
            (REST, _) => REST_CLASS,
            (_, Direction::Up) => slot * BLOCK,
            (_, Direction::Down) => slot * BLOCK + BLOCK / 2,
        };
        [own, own + 1, own + 2]
    }

    /// Nodes by the node that they hang under.
    fn nested(&self) -> BTreeMap<Option<u16>, Vec<u16>> {
        let mut nested: BTreeMap<Option<u16>, Vec<u16>> = BTreeMap::new();
        for (slot, node) in &self.nodes {
            nested.entry(node.parent).or_default().push(*slot);
        }
        nested
    }

    fn write(&self, tree: &mut Tree) {
        let nested = self.nested();
        let tops = nested.get(&None).map(Vec::as_slice).unwrap_or_default();
        let parent = match self.top {
            Some(htb) => {
                tree.insert(
                    TOP_CLASS,
                    Class {
                        parent: 0,
                        htb,
                        queue: None,
                    },
                );
                TOP_CLASS
            }
            None => 0,
        };
        let base = self.base_quantum(tops);
        for slot in tops {
            let assured = match self.top {
                Some(_) => self.promised(*slot, &nested).max(TRICKLE),
                None => self.nodes[slot].ceil,
            };
            self.write_node(*slot, parent, assured, base, &nested, tree);
        }
    }

    /// Writes a node, its leaves, and the nodes in it.
    fn write_node(
        &self,
        slot: u16,
        parent: u16,
        assured: u64,
        base: u64,
        nested: &BTreeMap<Option<u16>, Vec<u16>>,
        tree: &mut Tree,
    ) {
        let node = self.nodes[&slot];
        let assured = assured.min(node.ceil);
        let [own, sparse, bulk] = self.numbers(slot);
        let inside = nested
            .get(&Some(slot))
            .map(Vec::as_slice)
            .unwrap_or_default();
        let promised: u64 = inside.iter().map(|s| self.promised(*s, nested)).sum();
        let spare = assured.saturating_sub(promised);
        let part = match inside.len() {
            0 => spare - spare / 4,
            _ => spare / 4,
        };
        let quantum = quantum(base, node.weight);
        let class = |rate: u64, quantum: u32, order: u32| HtbClass {
            overhead: self.top.map_or(0, |t| t.overhead),
            ..htb(
                rate.max(TRICKLE).min(node.ceil),
                node.ceil,
                node.burst,
                quantum,
                order,
            )
        };
        tree.insert(
            own,
            Class {
                parent,
                htb: class(assured, quantum, node.order[1]),
                queue: None,
            },
        );
        let leaf = |htb, queue| Class {
            parent: own,
            htb,
            queue: Some(queue),
        };
        let (few, many) = (self.sparse_queue(&node), self.bulk_queue(&node));
        tree.insert(
            sparse,
            leaf(class(spare / 4, SMALL_QUANTUM, node.order[0]), few),
        );
        tree.insert(bulk, leaf(class(part, quantum, node.order[1]), many));
        let share = spare / 2 / inside.len().max(1).next_power_of_two() as u64;
        let base = self.base_quantum(inside);
        for child in inside {
            let assured = (self.promised(*child, nested) + share).max(TRICKLE);
            self.write_node(*child, own, assured, base, nested, tree);
        }
    }

    /// What a node has been promised: its own minimum, or what is promised inside it.
    fn promised(&self, slot: u16, nested: &BTreeMap<Option<u16>, Vec<u16>>) -> u64 {
        let inside = nested
            .get(&Some(slot))
            .map(Vec::as_slice)
            .unwrap_or_default();
        let sum = inside.iter().map(|s| self.promised(*s, nested)).sum();
        self.nodes[&slot].minimum.max(sum)
    }

    /// Bytes per turn of the smallest weight among nodes that share a parent. HTB sends a whole packet even where the
    /// quantum is smaller, so shares are only right with quanta above the packets' size; but long turns are long waits.
    fn base_quantum(&self, siblings: &[u16]) -> u64 {
        let weights = || {
            siblings
                .iter()
                .map(|s| u64::from(self.nodes[s].weight.max(1)))
        };
        let smallest = weights().min().unwrap_or(1);
        let largest = weights().max().unwrap_or(1);
        let ceil = siblings
            .iter()
            .map(|s| self.nodes[s].ceil)
            .max()
            .unwrap_or_default();
        let turn = ceil / TURNS_PER_SECOND;
        let longest = ceil / LONGEST_TURNS_PER_SECOND * smallest / largest;
        turn.min(longest)
            .clamp(u64::from(SMALL_QUANTUM), LARGEST_PACKET)
            * 1_000
            / smallest
    }

    fn sparse_queue(&self, node: &Node) -> Queue {
        match self.leaves {
            Leaves::FqCodel => fq_codel(node.ceil),
            Leaves::Fifo => Queue::Fifo {
                limit: to_u32(bytes_in(node.ceil, FIFO_TIME / 2).max(SPARSE_FLOOR)),
            },
        }
    }

    fn bulk_queue(&self, node: &Node) -> Queue {
        match self.leaves {
            Leaves::FqCodel => fq_codel(node.ceil),
            Leaves::Fifo => Queue::Fifo {
                limit: to_u32(bytes_in(node.ceil, FIFO_TIME).max(FIFO_FLOOR)),
            },
        }
    }
}

/// A step towards the desired tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make this class, and its queue.
    Add(u16, Class),
    /// Change this class's parameters.
    Change(u16, Class),
    /// Replace this leaf's queue.
    Requeue(u16, Queue),
    /// Remove this class.
    Remove(u16),
}

/// The steps from one tree to another, in two halves: between them the maps are switched, so that no packet is ever
/// sent to a class that is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// What comes and changes.
    pub before: Vec<Step>,
    /// What goes.
    pub after: Vec<Step>,
}

/// The steps from the tree that is there to the one that ought to be. A class that hangs elsewhere now is removed with
/// all below it and made anew, for HTB cannot move one. Rates that fall are changed before rates that rise, so that no
/// ceiling is broken on the way.
pub fn difference(current: &Tree, desired: &Tree) -> Steps {
    let hangs_elsewhere = |n: &u16| {
        desired
            .get(n)
            .zip(current.get(n))
            .is_some_and(|(new, old)| new.parent != old.parent)
    };
    let moved = |n: &u16| ancestors(current, *n).any(|above| hangs_elsewhere(&above));
    let (moved, still): (Vec<u16>, Vec<u16>) = current.keys().partition(|n| moved(n));
    let kept = |n: &u16| current.get(n).filter(|_| !moved.contains(n));
    let gone: Vec<u16> = still
        .into_iter()
        .filter(|n| !desired.contains_key(n))
        .collect();
    let mut steps = Steps::default();
    steps
        .before
        .extend(deepest_first(current, &moved).into_iter().map(Step::Remove));
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

/// A class and those above it.
fn ancestors(tree: &Tree, number: u16) -> impl Iterator<Item = u16> + '_ {
    let mut next = Some(number);
    std::iter::from_fn(move || {
        let here = next?;
        next = tree.get(&here).map(|c| c.parent).filter(|p| *p != 0);
        Some(here)
    })
    .take(DEEPEST)
}

fn deepest_first(tree: &Tree, numbers: &[u16]) -> Vec<u16> {
    let mut order: Vec<(usize, u16)> = numbers
        .iter()
        .map(|n| (ancestors(tree, *n).count(), *n))
        .collect();
    order.sort_by(|a, b| b.cmp(a));
    order.into_iter().map(|(_, n)| n).collect()
}

fn htb(rate: u64, ceil: u64, burst: Nanos, quantum: u32, priority: u32) -> HtbClass {
    HtbClass {
        rate,
        ceil,
        burst: ticks(rate, burst),
        cburst: ticks(ceil, burst),
        quantum,
        priority,
        overhead: 0,
    }
}

/// How long a class may run ahead: the burst asked for, but two full packets at least, in HTB's ticks.
fn ticks(rate: u64, burst: Nanos) -> u32 {
    let two_packets = 2 * FULL_PACKET * 1_000_000_000 / rate.max(1);
    to_u32(two_packets.max(burst.0).min(LONGEST_BURST) >> PSCHED_SHIFT)
}

fn quantum(base: u64, weight: u16) -> u32 {
    to_u32((base * u64::from(weight.max(1)) / 1_000).max(u64::from(SMALL_QUANTUM)))
}

fn fq_codel(rate: u64) -> Queue {
    // RFC 8290 5.2.2: the target is raised where a packet alone takes longer than it.
    let packet = FULL_PACKET * 1_000_000 / rate.max(1);
    Queue::FqCodel {
        target: to_u32((packet * 3 / 2).max(5_000)),
        quantum: FULL_PACKET as u32,
    }
}

/// How long a window of the flow accounting is: ten packets at least.
fn window(rate: u64) -> Nanos {
    Nanos((10 * FULL_PACKET * 1_000_000_000 / rate.max(1)).max(SHORTEST_WINDOW))
}

fn bytes_per_second(rate: Rate) -> u64 {
    rate.bits_per_second() / 8
}

fn bytes_in(rate: u64, nanos: u64) -> u64 {
    (u128::from(rate) * u128::from(nanos) / 1_000_000_000) as u64
}

fn to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Highest slot: its block of class numbers still fits 16 bits.
pub const MAX_SLOT: u16 = 8_190;
/// Class numbers that belong to one slot: four for up (or both), four for down.
const BLOCK: u16 = 8;
/// The slot of traffic without a target.
const REST: u16 = 0;
const REST_CLASS: u16 = 2;
const TOP_CLASS: u16 = 1;
/// HTB stops at eight levels.
const DEEPEST: usize = 9;
/// What a class without a promise is assured, bytes per second: HTB wants a number, and this one is noise.
const TRICKLE: u64 = 1_000;
/// A full Ethernet packet with its header.
const FULL_PACKET: u64 = 1_514;
/// A packet of segmentation offload, and lo's largest with its header.
const LARGEST_PACKET: u64 = 65_550;
const SMALL_QUANTUM: u32 = 1_514;
/// A flooding sender's socket buffer (net.core.wmem_default, 212,992 bytes of memory) holds about 140 kB of full
/// packets. A FIFO that takes them all makes the sender wait, one that does not makes it burn a core on drops.
const FIFO_FLOOR: u64 = 164_000;
/// How long a FIFO may be at high rates.
const FIFO_TIME: u64 = 20_000_000;
/// Ten packets: a sparse flow has at most one or two under way.
const SPARSE_FLOOR: u64 = 15_140;
const DEFAULT_BURST: Nanos = Nanos::from_millis(5);
const DEFAULT_WEIGHT: u16 = 100;
const DEFAULT_PRIORITY: u8 = 4;
/// A turn of the smallest weight takes 2 ms of the link, and of the largest at most 50 ms.
const TURNS_PER_SECOND: u64 = 500;
const LONGEST_TURNS_PER_SECOND: u64 = 20;
const SHORTEST_WINDOW: u64 = 100_000_000;
const PSCHED_SHIFT: u32 = 6;
/// Ticks are 32 bits wide: 274 s.
const LONGEST_BURST: u64 = (u32::MAX as u64) << PSCHED_SHIFT;
