//! Reads the counts of packets offered, sent, queued and dropped, by target and direction
//! ([`Kernel::sample`]). The eBPF programs count what is offered, before any queue, and what they
//! drop because a class is full. The HTB classes and their queues count the rest. Fails with
//! [`KernelError`] if counts cannot be read.

use std::collections::BTreeMap;

use netnice_core::units::{Instant, Nanos};

use super::{Kernel, stages};
use crate::{
    abi,
    error::KernelError,
    plan::{NodeLeaves, TargetLeaves},
    process::monotonic,
    tc::{self, Counts, FoundClass, Handle},
};

/// All counts at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time of the reading on CLOCK_MONOTONIC: the middle between its begin and its end. `None`:
    /// not known.
    pub at: Option<Instant>,
    /// Counts by target number.
    pub targets: BTreeMap<u32, TargetCounts>,
    /// Traffic without a target on managed links, by the link's name: sent, then received packets.
    /// Their `offered_*` are 0.
    pub rest: BTreeMap<String, [DirectionCounts; 2]>,
}

/// The counts of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// Sent, then received packets.
    pub directions: [DirectionCounts; 2],
}

/// The counts of one direction since the classes and the target were made. The eBPF programs count
/// `offered_*`. The classes of the target's own limit, and the programs before them, count the
/// rest; without such a limit, the classes that serve the target on managed links do. Without any
/// such class, the rest is 0. For a limit on both directions together, the sending direction has
/// the rest of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounts {
    /// Packets seen on the first pass, before any queue.
    pub offered_packets: u64,
    /// Wire bytes of these packets.
    pub offered_bytes: u64,
    /// Packets that left these classes.
    pub sent_packets: u64,
    /// Wire bytes of these packets.
    pub sent_bytes: u64,
    /// Packets that found these classes full, or that their queues dropped.
    pub dropped_packets: u64,
    /// Wire bytes of these packets. The kernel does not count the bytes of packets that a queue
    /// drops: each counts as a full Ethernet packet of 1,514 bytes.
    pub dropped_bytes: u64,
    /// Packets queued now.
    pub queued_packets: u64,
    /// Bytes queued now.
    pub queued_bytes: u64,
    /// How often these classes had to wait for their rate (`overlimits` of HTB).
    pub overlimits: u64,
}

/// Classes by interface index, from the last sample. A caller that reads counters and then audits
/// needs one listing for both.
pub(super) type ListedClasses = BTreeMap<u32, Vec<FoundClass>>;

/// Counts of the classes and queues of one HTB, by class number.
type ClassCounts = BTreeMap<u16, Counts>;

/// The bytes that a packet dropped by a queue counts as: a full Ethernet packet with its header.
const QUEUE_DROP: u64 = 1_514;

impl Kernel {
    /// Reads all counts. Empty while the programs are not loaded.
    ///
    /// # Errors
    /// If the classes, the qdiscs or the counters cannot be read.
    pub fn sample(&mut self) -> Result<Sample, KernelError> {
        let mut sample = Sample::default();
        let began = monotonic();
        self.listed.clear();
        let mut offered = self.offered()?;
        let cap = match self.stages.cap {
            Some(pair) => self.leaf_counts(pair.near, stages::CAP_MAJOR)?,
            None => ClassCounts::new(),
        };
        for (id, leaves) in &self.installed.leaves {
            let seen = [0, 1].map(|dir| offered.remove(&(*id, dir)).unwrap_or_default());
            sample
                .targets
                .insert(*id, target_counts(leaves, seen, &cap));
        }
        self.sample_links(&mut sample)?;
        let took = monotonic().since(began);
        sample.at = Some(began.after(Nanos(took.0 / 2)));
        Ok(sample)
    }

    /// Adds the counts of the classes of managed links, for targets without a limit of their own.
    fn sample_links(&mut self, sample: &mut Sample) -> Result<(), KernelError> {
        let links: Vec<(String, [Option<NodeLeaves>; 2])> = self
            .installed
            .links
            .iter()
            .map(|(n, l)| (n.clone(), l.rest))
            .collect();
        for (name, rest) in links {
            let ifindexes = [
                self.stages.up.get(&name).copied(),
                self.stages.down.get(&name).map(|p| p.near),
            ];
            for (dir, major) in [stages::LINK_MAJOR, stages::DOWN_MAJOR]
                .into_iter()
                .enumerate()
            {
                let Some(ifindex) = ifindexes[dir] else {
                    continue;
                };
                let classes = self.leaf_counts(ifindex, major)?;
                sample.rest.entry(name.clone()).or_default()[dir].add_classes(&classes, rest[dir]);
                let Some(trees) = self.installed.links.get(&name) else {
                    continue;
                };
                for (id, pairs) in &trees.leaves {
                    let capped = self.installed.leaves.get(id).is_some_and(|p| p.own[dir]);
                    if !capped {
                        let target = sample.targets.entry(*id).or_default();
                        target.directions[dir].add_classes(&classes, pairs[dir]);
                    }
                }
            }
        }
        Ok(())
    }

    /// The eBPF programs' counts for each target and direction, summed over the processors.
    fn offered(&mut self) -> Result<BTreeMap<(u32, usize), abi::Counter>, KernelError> {
        let Some(programs) = &mut self.programs else {
            return Ok(BTreeMap::new());
        };
        let counted = programs.counter_values()?.into_iter();
        let sums = counted.map(|(key, values)| {
            let sum = values
                .iter()
                .fold(abi::Counter::default(), |a, b| abi::Counter {
                    packets: a.packets + b.packets,
                    bytes: a.bytes + b.bytes,
                    dropped: a.dropped + b.dropped,
                    dropped_bytes: a.dropped_bytes + b.dropped_bytes,
                });
            ((key.target, key.dir as usize), sum)
        });
        Ok(sums.collect())
    }

    /// Bytes and packets of each class, with the drops and the backlog of the queue in it.
    fn leaf_counts(&mut self, ifindex: u32, major: u16) -> Result<ClassCounts, KernelError> {
        let classes = tc::classes(&mut self.netlink, ifindex)?;
        let mut counts: ClassCounts = classes
            .iter()
            .filter(|c| c.id.major() == major)
            .map(|c| (c.id.minor(), c.counts))
            .collect();
        self.listed.insert(ifindex, classes);
        for queue in tc::qdiscs(&mut self.netlink)? {
            if queue.ifindex == ifindex
                && queue.parent != Handle::ROOT
                && queue.parent.major() == major
                && let Some(class) = counts.get_mut(&queue.parent.minor())
            {
                class.drops = queue.counts.drops;
                class.backlog = queue.counts.backlog;
                class.queued = queue.counts.queued;
            }
        }
        Ok(counts)
    }
}

/// The counts of a target, from those of the programs in each direction and those of the cap stage.
fn target_counts(
    leaves: &TargetLeaves,
    seen: [abi::Counter; 2],
    cap: &ClassCounts,
) -> TargetCounts {
    let mut counts = TargetCounts::default();
    let bulk = leaves.cap.map(|leaf| leaf.map(|leaf| leaf.bulk));
    for (dir, seen) in seen.into_iter().enumerate() {
        let direction = &mut counts.directions[dir];
        direction.offered_packets = seen.packets;
        direction.offered_bytes = seen.bytes;
        direction.add_classes(cap, leaves.cap[dir].filter(|_| leaves.own[dir]));
        // One class for both directions counts as that of the sending direction.
        let limited = if bulk[dir] == bulk[0] { 0 } else { dir };
        if leaves.own[limited] {
            let direction = &mut counts.directions[limited];
            direction.dropped_packets += seen.dropped;
            direction.dropped_bytes += seen.dropped_bytes;
        }
    }
    counts
}

impl DirectionCounts {
    fn add_classes(&mut self, classes: &ClassCounts, leaf: Option<NodeLeaves>) {
        let Some(leaf) = leaf else { return };
        let others = [leaf.local, leaf.patient].into_iter();
        let others = others.filter(|number| *number != leaf.bulk);
        for number in [leaf.sparse, leaf.bulk].into_iter().chain(others) {
            let counts = classes.get(&number).copied().unwrap_or_default();
            self.sent_packets += counts.packets;
            self.sent_bytes += counts.bytes;
            self.dropped_packets += counts.drops;
            self.dropped_bytes += counts.drops * QUEUE_DROP;
            self.queued_packets += u64::from(counts.queued);
            self.queued_bytes += u64::from(counts.backlog);
            self.overlimits += counts.overlimits;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Desired, IdleNodes, Limit, Target};
    use netnice_core::units::Nanos;

    fn leaves(limit: Limit) -> TargetLeaves {
        let target = Target {
            id: 7,
            slot: 1,
            parent: None,
            limit,
            burst: Nanos::from_millis(5),
            share: None,
            weight: 100,
            priority: 4,
            dscp: None,
            yields: false,
            is_budget: false,
            quotas: Vec::new(),
        };
        let desired = Desired {
            targets: vec![target],
            ..Desired::default()
        };
        plan::plan(&desired, &IdleNodes::new()).leaves[&7]
    }

    #[test]
    fn the_drops_of_the_programs_belong_to_the_limit() {
        let rate = "8mbit".parse().ok();
        let both = Limit::Both(rate.expect("a rate"));
        let up = Limit::Each {
            up: rate,
            down: None,
        };
        let each = Limit::Each {
            up: rate,
            down: rate,
        };
        let cases = [
            (both, [[3, 190], [0, 0]]),
            (up, [[1, 90], [0, 0]]),
            (each, [[1, 90], [2, 100]]),
            (Limit::None, [[0, 0], [0, 0]]),
        ];
        let seen = [(1, 90), (2, 100)].map(|(dropped, dropped_bytes)| abi::Counter {
            packets: 10,
            bytes: 1_000,
            dropped,
            dropped_bytes,
        });
        for (limit, expected) in cases {
            let counts = target_counts(&leaves(limit), seen, &ClassCounts::new());
            let dropped = counts
                .directions
                .map(|counts| [counts.dropped_packets, counts.dropped_bytes]);
            assert_eq!(dropped, expected, "{limit:?}");
        }
    }

    #[test]
    fn a_packet_that_a_queue_drops_counts_as_a_full_one() {
        let leaves = leaves(Limit::Both("8mbit".parse().expect("a rate")));
        let sparse = leaves.cap[0].expect("limited").sparse;
        let counts = Counts {
            drops: 2,
            ..Counts::default()
        };
        let cap = ClassCounts::from([(sparse, counts)]);
        let [up, _] = target_counts(&leaves, Default::default(), &cap).directions;
        assert_eq!([up.dropped_packets, up.dropped_bytes], [2, 3_028]);
    }
}
