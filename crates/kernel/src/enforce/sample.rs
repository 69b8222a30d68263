//! Reads the counts of packets offered, sent, queued and dropped, by target and direction
//! ([`Kernel::sample`]). The eBPF programs count what is offered, before any queue. The HTB classes
//! and their queues count the rest. Fails with [`KernelError`] if counts cannot be read.

use std::collections::BTreeMap;

use super::{Kernel, stages};
use crate::{
    abi,
    error::KernelError,
    plan::NodeLeaves,
    tc::{self, Counts, FoundClass, Handle},
};

/// All counts at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
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
/// `offered_*`. The classes of the target's own limit count the rest; without such a limit, the
/// classes that serve the target on managed links do. Without any such class, the rest is 0.
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

impl Kernel {
    /// Reads all counts. Empty while the programs are not loaded.
    ///
    /// # Errors
    /// If the classes, the qdiscs or the counters cannot be read.
    pub fn sample(&mut self) -> Result<Sample, KernelError> {
        let mut sample = Sample::default();
        self.listed.clear();
        let mut offered = self.offered()?;
        let cap = match self.stages.cap {
            Some(pair) => self.leaf_counts(pair.near, stages::CAP_MAJOR)?,
            None => ClassCounts::new(),
        };
        for (id, leaves) in &self.installed.leaves {
            let mut counts = TargetCounts::default();
            for dir in 0..2 {
                let direction = &mut counts.directions[dir];
                let own = leaves.cap[dir].filter(|_| leaves.own[dir]);
                if let Some(seen) = offered.remove(&(*id, dir)) {
                    direction.offered_packets = seen.packets;
                    direction.offered_bytes = seen.bytes;
                    direction.dropped_packets = own.map_or(0, |_| seen.dropped);
                }
                direction.add_classes(&cap, own);
            }
            sample.targets.insert(*id, counts);
        }
        self.sample_links(&mut sample)?;
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
            self.queued_packets += u64::from(counts.queued);
            self.queued_bytes += u64::from(counts.backlog);
            self.overlimits += counts.overlimits;
        }
    }
}
