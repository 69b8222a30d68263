//! Computes one direction of one class tree from the desired state: which targets have a node, how
//! the nodes nest, which rates they are assured, and the parameters of their classes and queues.
//! [`TreePlan::write`] adds the classes to a [`Tree`]. Nothing here fails. The rules are in the
//! documentation of [`crate::plan`].

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::units::{Nanos, Rate};

use super::nesting::Nesting;
use super::{Class, Desired, LeafQdisc, Limit, Link, NodeLeaves, REST, Target, Tree};
use crate::tc::{HtbClass, LeafQueue, Queue};

mod budgets;
mod yielding;
use yielding::put_yielding_last;

/// The direction that a tree serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

/// The nodes of one direction of one tree.
pub(super) struct TreePlan<'a> {
    nesting: &'a Nesting<'a>,
    leaf_qdisc: LeafQdisc,
    /// Longest packet in the tree that cannot be segmented, in bytes; in the cap stage without the
    /// packets of lo, which have a leaf of their own there.
    longest_packet: u32,
    direction: Direction,
    /// The parent class of all nodes, if the tree has one.
    top: Option<HtbClass>,
    nodes: BTreeMap<u16, Node>,
    /// Assured rate of a node that yields, in bytes per second.
    yield_assured: u64,
    /// The nodes whose leaves have turns of the longest packet of lo.
    long_turns: BTreeSet<u16>,
}

/// The nodes by parent; `None`: the nodes without a parent.
type ChildrenByParent = BTreeMap<Option<u16>, Vec<u16>>;

/// The node of one target.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: Option<u16>,
    /// Guaranteed rate in bytes per second.
    minimum: u64,
    /// Highest rate in bytes per second.
    ceil: u64,
    burst: Nanos,
    weight: u16,
    /// Priority of its sparse and its bulk leaf.
    priorities: [u32; 2],
    /// Whether the node takes only bandwidth that no other node uses.
    yields: bool,
    /// The priority of its contract, for the division of a budget.
    rank: u8,
    /// Whether its nested nodes divide its rate by weight and rank.
    is_budget: bool,
}

impl<'a> TreePlan<'a> {
    /// The nodes of the cap stage for one direction. A limit on both directions together is in the
    /// tree of the sending direction.
    pub(super) fn cap(desired: &Desired, nesting: &'a Nesting<'a>, direction: Direction) -> Self {
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
            priorities: [0, 1],
            yields: false,
            rank: DEFAULT_PRIORITY,
            is_budget: false,
        };
        let nodes: BTreeMap<u16, Node> = desired
            .targets
            .iter()
            .filter_map(|t| Some((t.slot, node(t, limit_of(t)?))))
            .collect();
        let nodes = nesting.with_minimums(nodes, desired, direction);
        Self {
            nesting,
            leaf_qdisc: desired.leaf_qdisc,
            longest_packet: desired.longest_packet,
            direction,
            top: None,
            nodes,
            yield_assured: 0,
            long_turns: match desired.on_lo.is_empty() {
                true => BTreeSet::new(),
                false => nesting.around(&desired.on_lo),
            },
        }
        .with_parents()
    }

    /// The nodes of one direction of a managed link that has this rate.
    pub(super) fn link(
        desired: &Desired,
        nesting: &'a Nesting<'a>,
        link: &Link,
        direction: Direction,
        rate: Rate,
    ) -> Self {
        let ceil = bytes_per_second(rate);
        let mut nodes: BTreeMap<u16, Node> = BTreeMap::new();
        for target in &desired.targets {
            let share = target.share.as_ref().filter(|s| s.link == link.name);
            let (minimum, most) = match (share, direction) {
                (Some(share), Direction::Up) => (share.min, share.max),
                (Some(share), Direction::Down) => (share.min_down, None),
                (None, _) if target.yields => (None, None),
                (None, _) => continue,
            };
            let node = Node {
                parent: None,
                minimum: minimum.map_or(0, bytes_per_second),
                ceil: most.map_or(ceil, |most| ceil.min(bytes_per_second(most))),
                burst: target.burst.max(LINK_BURST),
                weight: target.weight,
                priorities: [u32::from(target.priority); 2],
                yields: share.is_none(),
                rank: target.priority,
                is_budget: target.is_budget,
            };
            nodes.insert(target.slot, node);
        }
        let rest = Node {
            parent: None,
            minimum: 0,
            ceil,
            burst: LINK_BURST,
            weight: DEFAULT_WEIGHT,
            priorities: [u32::from(DEFAULT_PRIORITY); 2],
            yields: false,
            rank: DEFAULT_PRIORITY,
            is_budget: false,
        };
        nodes.insert(REST, rest);
        nesting.contain_priorities(&mut nodes);
        let yielding = put_yielding_last(&mut nodes);
        let top = HtbClass {
            overhead: link.overhead,
            ..htb(
                ceil,
                ceil,
                BurstRule::Packets(DEFAULT_BURST),
                SMALL_QUANTUM,
                0,
            )
        };
        Self {
            nesting,
            leaf_qdisc: desired.leaf_qdisc,
            longest_packet: match desired.loopback.as_ref() == Some(&link.name) {
                true => LARGEST_PACKET as u32,
                false => desired.longest_packet,
            },
            direction,
            top: Some(top),
            nodes,
            yield_assured: (ceil / 100 / yielding.next_power_of_two()).clamp(1, MIN_ASSURED),
            long_turns: BTreeSet::new(),
        }
        .with_parents()
    }

    /// Sets each node's parent to the nearest node around it; for one that yields, to the nearest
    /// one with a bound below the link's rate.
    fn with_parents(mut self) -> Self {
        let slots: Vec<u16> = self.nodes.keys().copied().collect();
        for slot in slots {
            let Some(target) = self.nesting.by_slot.get(&slot) else {
                continue;
            };
            let link_ceil = self.top.map_or(u64::MAX, |top| top.ceil);
            let yields = self.nodes.get(&slot).is_some_and(|node| node.yields);
            let is_parent = |outer: &Node| !yields || outer.ceil < link_ceil;
            let parent = self
                .nesting
                .with_ancestors(target)
                .skip(1)
                .map(|t| t.slot)
                .find(|s| self.nodes.get(s).is_some_and(is_parent));
            if let Some(node) = self.nodes.get_mut(&slot) {
                node.parent = parent;
            }
        }
        self
    }

    /// The slot of the node that provides the leaves for a target's packets: its own, else that of
    /// the nearest target around it. `None` if there is no such node.
    pub(super) fn nearest(&self, target: &Target) -> Option<u16> {
        self.nesting
            .with_ancestors(target)
            .map(|t| t.slot)
            .find(|slot| self.nodes.contains_key(slot))
    }

    /// Whether a target has a node in this tree.
    pub(super) fn has_node(&self, slot: u16) -> bool {
        self.nodes.contains_key(&slot)
    }

    /// The leaves of a node.
    pub(super) fn leaf(&self, slot: u16, direction: Direction, tree: &Tree) -> NodeLeaves {
        let [_, sparse, bulk, local, patient] = self.numbers(slot);
        let ceil = self.nodes[&slot].ceil;
        let window = window(ceil);
        // The sparse leaf is assured a quarter of the rate that the node divides.
        let assured = tree.get(&sparse).map_or(0, |class| 4 * class.htb.rate);
        NodeLeaves {
            sparse,
            bulk,
            local,
            patient,
            bound: match self.top {
                None => bound(ceil, direction),
                Some(_) => 0,
            },
            longest: match self.top {
                None => self.segment_to(ceil).unwrap_or(0),
                Some(_) => 0,
            },
            rate: match self.top {
                None => to_u32(ceil),
                Some(_) => 0,
            },
            window,
            assured: bytes_in(assured, window.0),
            redirect: None,
        }
    }

    /// The leaves of a node for packets of this direction: of `other` if this direction has no such
    /// node.
    pub(super) fn leaf_or(&self, other: &Self, slot: u16, tree: &Tree) -> NodeLeaves {
        if self.nodes.contains_key(&slot) {
            self.leaf(slot, self.direction, tree)
        } else {
            other.leaf(slot, self.direction, tree)
        }
    }

    /// Class numbers of a node: its own, and those of its sparse, bulk, local and patient leaf. A
    /// node without a local or patient leaf has its bulk leaf in its place.
    fn numbers(&self, slot: u16) -> [u16; 5] {
        let own = match (slot, self.direction) {
            (REST, _) => REST_CLASS,
            (_, Direction::Up) => slot * CLASSES_PER_SLOT,
            (_, Direction::Down) => slot * CLASSES_PER_SLOT + CLASSES_UP,
        };
        let bulk = own + 2;
        let local = if self.has_local() { own + 3 } else { bulk };
        let patient = if self.has_patient() { own + 4 } else { bulk };
        [own, own + 1, bulk, local, patient]
    }

    /// Whether the nodes have local leaves: a link carries either packets of lo only or none.
    fn has_local(&self) -> bool {
        self.top.is_none()
    }

    /// Whether the nodes have patient leaves: senders of this host wait only where they send.
    fn has_patient(&self) -> bool {
        self.top.is_none() && self.direction == Direction::Up
    }

    fn children_by_parent(&self) -> ChildrenByParent {
        let mut nested = ChildrenByParent::new();
        for (slot, node) in &self.nodes {
            nested.entry(node.parent).or_default().push(*slot);
        }
        nested
    }

    /// Adds the classes of all nodes to a tree. `idle` are the nodes of a link that get no share of
    /// the left-over now; `None` if there are none.
    pub(super) fn write(&self, tree: &mut Tree, idle: Option<&BTreeSet<u16>>) {
        let nested = self.children_by_parent();
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
        let base_quanta = [false, true].map(|long| self.base_quantum(tops, long));
        let shares = self.shares(tops, &nested, idle);
        for slot in tops {
            let assured = match self.top {
                Some(_) => self.guaranteed(*slot, &nested) + shares.get(slot).unwrap_or(&0),
                None => self.nodes[slot].ceil,
            };
            self.write_node(
                *slot,
                parent,
                assured.max(self.least_assured(*slot)),
                base_quanta[usize::from(self.long_turns.contains(slot))],
                (&nested, idle),
                tree,
            );
        }
    }

    /// Writes a node, its leaves and the nodes nested in it.
    fn write_node(
        &self,
        slot: u16,
        parent: u16,
        assured: u64,
        base_quantum: u64,
        (nested, idle): (&ChildrenByParent, Option<&BTreeSet<u16>>),
        tree: &mut Tree,
    ) {
        let node = self.nodes[&slot];
        let assured = assured.min(node.ceil);
        let own = self.numbers(slot)[0];
        let children = nested
            .get(&Some(slot))
            .map(Vec::as_slice)
            .unwrap_or_default();
        let guaranteed: u64 = children.iter().map(|s| self.guaranteed(*s, nested)).sum();
        let spare = assured.saturating_sub(guaranteed);
        // The assured rates of the node's own class and its bulk leaf. In the cap stage the
        // bulk leaf and a nested node's class have none, so that they wait for the outermost limit.
        let divides = |s: &&u16| !self.nodes[s].yields;
        let parts = children.iter().filter(divides).count();
        let (own_rate, bulk_rate) = match self.top {
            Some(_) if parts == 0 => (assured, spare - spare / 4),
            Some(_) => (assured, spare / 8),
            None if node.parent.is_none() => (node.ceil, 0),
            // Nothing but a minimum, which holds whatever the others under the limit send.
            None => (self.guaranteed(slot, nested), 0),
        };
        let burst_rule = self.burst_rule(&node);
        let htb = self.htb_class(&node, own_rate, burst_rule, INNER_QUANTUM, INNER_PRIORITY);
        let class = Class {
            parent,
            htb,
            queue: None,
        };
        tree.insert(own, class);
        self.write_leaves(slot, spare / 4, bulk_rate, base_quantum, tree);
        let share = spare / 2 / parts.max(1).next_power_of_two() as u64;
        let of_budget = self.budget_shares(slot, spare / 2, children, idle);
        let base_quantum = self.base_quantum(children, self.long_turns.contains(&slot));
        for child in children {
            let share = match &of_budget {
                Some(shares) => shares.get(child).copied().unwrap_or(0),
                None if self.nodes[child].yields => 0,
                None => share,
            };
            let assured = self.guaranteed(*child, nested) + share;
            let assured = assured.max(self.least_assured(*child));
            self.write_node(*child, own, assured, base_quantum, (nested, idle), tree);
        }
    }

    /// Writes the leaves of a node, with the assured rates of its sparse leaf and of the others.
    fn write_leaves(
        &self,
        slot: u16,
        sparse_rate: u64,
        bulk_rate: u64,
        base_quantum: u64,
        tree: &mut Tree,
    ) {
        let node = self.nodes[&slot];
        let [own, sparse, bulk, local, patient] = self.numbers(slot);
        let [first, second] = node.priorities;
        let quantum = quantum(base_quantum, node.weight);
        let burst_rule = self.burst_rule(&node);
        let leaf = |htb, queue| Class {
            parent: own,
            htb,
            queue: Some(queue),
        };
        let [sparse_queue, bulk_queue, local_queue, patient_queue] = self.queues(&node);
        let two_packets = BurstRule::Packets(node.burst);
        let htb = self.htb_class(&node, sparse_rate, two_packets, SMALL_QUANTUM, first);
        tree.insert(sparse, leaf(htb, sparse_queue));
        let htb = self.htb_class(&node, bulk_rate, burst_rule, quantum, second);
        tree.insert(bulk, leaf(htb, bulk_queue));
        if self.has_patient() {
            tree.insert(patient, leaf(htb, patient_queue));
        }
        if self.has_local() {
            let large = quantum.max(LARGEST_PACKET as u32);
            let htb = self.htb_class(&node, bulk_rate, burst_rule, large, second);
            tree.insert(local, leaf(htb, local_queue));
        }
    }

    /// A class of a node, with this assured rate or what its limits permit of it.
    fn htb_class(
        &self,
        node: &Node,
        rate: u64,
        burst_rule: BurstRule,
        quantum: u32,
        priority: u32,
    ) -> HtbClass {
        let least = if node.yields { 1 } else { self.min_assured() };
        let rate = rate.max(least).min(node.ceil);
        HtbClass {
            overhead: self.top.map_or(0, |top| top.overhead),
            ..htb(rate, node.ceil, burst_rule, quantum, priority)
        }
    }

    /// The burst of a node's classes. A limit permits exactly its burst; on a link a class must not
    /// lose the credit of its waiting time.
    fn burst_rule(&self, node: &Node) -> BurstRule {
        match self.top {
            Some(_) => BurstRule::Packets(node.burst),
            None => BurstRule::Exactly(node.burst),
        }
    }

    /// The assured rate of a class without a guarantee. In the cap stage it is almost nothing: the
    /// sum of many such rates would exceed a small limit.
    fn min_assured(&self) -> u64 {
        if self.top.is_some() { MIN_ASSURED } else { 1 }
    }

    /// The guaranteed rate of a node: its own minimum, or the sum inside it if that is more.
    fn guaranteed(&self, slot: u16, nested: &ChildrenByParent) -> u64 {
        let children = nested
            .get(&Some(slot))
            .map(Vec::as_slice)
            .unwrap_or_default();
        let sum = children.iter().map(|s| self.guaranteed(*s, nested)).sum();
        self.nodes[&slot].minimum.max(sum)
    }

    /// The quantum of one unit of weight in thousandths of a byte, among nodes with the same
    /// parent.
    ///
    /// HTB sends a whole packet even if the quantum is smaller, so shares are correct only if no
    /// quantum is below the longest packet. It must not be larger either: a class that is below its
    /// own rate for a moment loses the rest of its turn (with 16 packets a turn, a class with a
    /// minimum got half its share of the left-over). `long`: a leaf among them has long packets.
    fn base_quantum(&self, siblings: &[u16], long: bool) -> u64 {
        let weights = || {
            siblings
                .iter()
                .map(|s| u64::from(self.nodes[s].weight.max(1)))
        };
        let smallest = weights().min().unwrap_or(1);
        let ceil = siblings
            .iter()
            .map(|s| self.nodes[s].ceil)
            .max()
            .unwrap_or_default();
        let packet = if ceil < SEGMENT_BELOW && !long {
            u64::from(self.longest_packet)
        } else {
            LARGEST_PACKET
        };
        packet.max(FULL_PACKET) * 1_000 / smallest
    }

    /// The length to which packets are segmented before the bulk leaf of a node with this highest
    /// rate; `None` if they are not.
    fn segment_to(&self, ceil: u64) -> Option<u32> {
        let longest = self.longest_packet.max(FULL_PACKET as u32);
        let is_segmented = ceil < SEGMENT_BELOW && u64::from(longest) < LARGEST_PACKET;
        is_segmented.then_some(longest)
    }

    /// The queues of a node's leaves: sparse, bulk, local, patient.
    fn queues(&self, node: &Node) -> [LeafQueue; 4] {
        let segment_to = self.segment_to(node.ceil);
        let fifo = |limit: u64| Queue::Fifo {
            limit: to_u32(limit),
        };
        let floor = match self.direction {
            Direction::Up => FIFO_FLOOR,
            Direction::Down => {
                bytes_in(node.ceil, RECEIVE_TIME).clamp(RECEIVE_FLOOR, LARGEST_PACKET)
            }
        };
        let long = |floor: u64| fifo(bytes_in(node.ceil, FIFO_TIME).max(floor));
        let sparse = || fifo(bytes_in(node.ceil, FIFO_TIME / 2).max(SPARSE_FLOOR));
        let (sparse, bulk, local, patient) = match self.leaf_qdisc {
            _ if self.top.is_none() => {
                let unreached = || fifo(UNREACHED);
                (sparse(), unreached(), unreached(), unreached())
            }
            LeafQdisc::FqCodel => {
                let queue = || fq_codel(node.ceil, self.direction);
                (queue(), queue(), queue(), queue())
            }
            LeafQdisc::Fifo => {
                let bulk = match segment_to {
                    Some(_) => long(floor),
                    None => long(FIFO_FLOOR),
                };
                (sparse(), bulk, long(FIFO_FLOOR), long(FIFO_FLOOR))
            }
        };
        [
            LeafQueue {
                queue: sparse,
                segment_to: None,
            },
            LeafQueue {
                queue: bulk,
                segment_to,
            },
            LeafQueue {
                queue: local,
                segment_to: None,
            },
            LeafQueue {
                queue: patient,
                segment_to,
            },
        ]
    }
}

/// How long a class may exceed its rate.
#[derive(Clone, Copy)]
enum BurstRule {
    /// This time. HTB sends a packet of any length while the bucket is not overdrawn, so any bucket
    /// size works.
    Exactly(Nanos),
    /// This time, but at least two full packets.
    Packets(Nanos),
}

fn htb(rate: u64, ceil: u64, burst_rule: BurstRule, quantum: u32, priority: u32) -> HtbClass {
    HtbClass {
        rate,
        ceil,
        burst: ticks(rate, burst_rule),
        cburst: ticks(ceil, burst_rule),
        quantum,
        priority,
        overhead: 0,
    }
}

/// The burst of a class of this rate, in HTB's ticks.
fn ticks(rate: u64, burst_rule: BurstRule) -> u32 {
    let time = match burst_rule {
        BurstRule::Exactly(burst) => burst.0,
        BurstRule::Packets(burst) => burst.0.max(2 * FULL_PACKET * 1_000_000_000 / rate.max(1)),
    };
    to_u32(time.clamp(1 << PSCHED_SHIFT, LONGEST_BURST) >> PSCHED_SHIFT)
}

fn quantum(base: u64, weight: u16) -> u32 {
    to_u32((base * u64::from(weight.max(1)) / 1_000).max(u64::from(SMALL_QUANTUM)))
}

fn fq_codel(rate: u64, direction: Direction) -> Queue {
    // RFC 8290 5.2.2: the target is raised if a single packet takes longer.
    let packet = FULL_PACKET * 1_000_000 / rate.max(1);
    let min_target = match direction {
        Direction::Up => 5_000,
        Direction::Down => RECEIVE_TARGET,
    };
    Queue::FqCodel {
        target: to_u32((packet * 3 / 2).max(min_target)),
        quantum: FULL_PACKET as u32,
    }
}

/// The length of a window of the flow accounting: the time of ten full packets at this rate in
/// bytes per second, but at least [`SHORTEST_WINDOW`].
fn window(rate: u64) -> Nanos {
    Nanos((10 * FULL_PACKET * 1_000_000_000 / rate.max(1)).max(SHORTEST_WINDOW))
}

/// The bytes that may wait in a bulk leaf of the cap stage, at this rate in bytes per second.
fn bound(rate: u64, direction: Direction) -> u32 {
    let bound = match direction {
        Direction::Up => bytes_in(rate, SENT_TIME).min(LARGEST_PACKET),
        Direction::Down => bytes_in(rate, RECEIVED_TIME).clamp(RECEIVED_FLOOR, LARGEST_PACKET),
    };
    to_u32(bound.max(bytes_in(rate, FIFO_TIME)).max(2 * FULL_PACKET))
}

pub(super) fn bytes_per_second(rate: Rate) -> u64 {
    rate.bits_per_second() / 8
}

pub(super) fn bytes_in(rate: u64, nanos: u64) -> u64 {
    (u128::from(rate) * u128::from(nanos) / 1_000_000_000) as u64
}

fn to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Class numbers of one slot: five for up (or both), four for down.
pub(super) const CLASSES_PER_SLOT: u16 = 9;
/// Class numbers of one slot for up (or both).
pub(super) const CLASSES_UP: u16 = 5;
const REST_CLASS: u16 = 2;
/// The class of a link that carries all traffic, at the link's rate.
pub(super) const TOP_CLASS: u16 = 1;
/// The assured rate of a class without a guarantee on a link, in bytes per second. HTB needs a
/// number, and this one is negligible beside a link's rate.
const MIN_ASSURED: u64 = 1_000;
/// Bytes of a full Ethernet packet with its header.
const FULL_PACKET: u64 = 1_514;
/// Bytes of the longest packet of segmentation offload, and of lo's longest with its header.
const LARGEST_PACKET: u64 = 65_550;
/// Below this rate, in bytes per second, a packet of segmentation offload takes longer than a
/// millisecond.
const SEGMENT_BELOW: u64 = 62_500_000;
const SMALL_QUANTUM: u32 = 1_514;
/// HTB uses quantum and priority of leaves only. For any other class it keeps the values from its
/// creation. A change of them would look like a change by another program at every audit.
const INNER_QUANTUM: u32 = SMALL_QUANTUM;
const INNER_PRIORITY: u32 = 0;
/// Bytes. The socket buffer of a flooding sender (net.core.wmem_default, 212,992 bytes of memory)
/// holds about 140 kB of full packets. A FIFO that takes them all makes the sender wait. A shorter
/// one makes the sender use a core for drops.
const FIFO_FLOOR: u64 = 164_000;
/// On the receiving side no sender waits for the queue: a remote sender fills any queue and finds
/// its rate by losses. So a FIFO there is short: this time in ns, but at least a window that
/// recovers from a loss without a timeout, twenty full packets, and at most one packet of
/// segmentation offload.
const RECEIVE_TIME: u64 = 100_000_000;
const RECEIVE_FLOOR: u64 = 30_280;
/// The target delay of fq_codel on the receiving side, in µs. A TCP flow has at least two packets
/// in flight. Eight flows at 3.7 Mbit/s together need a round trip of 52 ms. If the queue here is
/// shorter, they send more than their part, and the excess is queued and lost before the link,
/// where all flows are treated alike. With 5 ms, a minimum of 6 Mbit/s of 10 got 1 to 2 there; with
/// 25 ms it got all of it.
const RECEIVE_TARGET: u64 = 25_000;
/// How long packets wait in a bulk leaf of the cap stage in ns, if they are sent at the node's
/// rate; less if the bytes are more than one packet of segmentation offload, but never less than
/// [`FIFO_TIME`] or two full packets.
const SENT_TIME: u64 = 40_000_000;
/// The same for received packets, and at least ten of them: in fewer, a flow has too few in flight
/// to recover from a loss without a timeout. After a loss the eBPF programs permit three times as
/// much for a while, which at most rates takes less time than TCP's shortest timeout (200 ms).
const RECEIVED_TIME: u64 = 50_000_000;
const RECEIVED_FLOOR: u64 = 15_140;
/// The length of a FIFO in bytes that the eBPF programs keep from being full. Only other senders
/// than TCP can fill it, with some eighty sockets.
const UNREACHED: u64 = 16 << 20;
/// The length of a FIFO in ns, as time at the node's rate, where that is more than the floor.
const FIFO_TIME: u64 = 20_000_000;
/// Bytes of ten full packets: a sparse flow has at most one or two packets in flight.
const SPARSE_FLOOR: u64 = 15_140;
const DEFAULT_BURST: Nanos = Nanos::from_millis(5);
/// The burst on a link. If the classes of a link are assured all of its rate, a class waits for its
/// turn among the others. The credit that it collects meanwhile must not be cut off; otherwise it
/// gets less than its assured rate.
const LINK_BURST: Nanos = Nanos::from_millis(25);
const DEFAULT_WEIGHT: u16 = 100;
const DEFAULT_PRIORITY: u8 = 4;
/// In ns.
const SHORTEST_WINDOW: u64 = 100_000_000;
/// The logarithm of HTB's tick in ns.
const PSCHED_SHIFT: u32 = 6;
/// The longest burst in ns: ticks are 32 bits wide, so 274 s.
const LONGEST_BURST: u64 = (u32::MAX as u64) << PSCHED_SHIFT;
