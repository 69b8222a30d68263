//! Replaces the queues of a link's leaves without a loss. If a queue of another kind replaces a
//! queue, the kernel drops the packets that wait there. A queue that becomes shorter drops new
//! packets until the former ones have left. So a leaf of a link keeps its queue while packets wait
//! there, for at most [`LONGEST`] calls of [`Kernel::balance`]. The queues of other stages are
//! replaced at once. Fails if the kernel does not list the classes, or refuses a queue.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::{Kernel, stages::LINK_MAJOR};
use crate::{
    error::KernelError,
    plan::{Step, Tree},
    tc::{self, Handle, LeafQueue, Queue},
};

/// The leaves of links that get the queue of the installed plan when they are empty, by interface
/// index and class number, with the number of calls of [`Kernel::balance`] that found packets
/// there.
pub(super) type Requeues = BTreeMap<(u32, u16), u8>;

impl Kernel {
    /// The leaves of a link whose queues are not replaced now, because packets wait in them. Empty
    /// for the tree of another stage, and if no step would lose a packet.
    pub(super) fn busy_leaves(
        &mut self,
        (ifindex, major): (u32, u16),
        current: &Tree,
        steps: &[Step],
    ) -> Result<BTreeSet<u16>, KernelError> {
        let loses = |step: &Step| match step {
            Step::Requeue(number, queue) => {
                let present = current.get(number).and_then(|class| class.queue);
                let waits = self.stages.requeues.contains_key(&(ifindex, *number));
                (waits || present.is_none_or(|present| may_drop(&present, queue)))
                    .then_some(*number)
            }
            _ => None,
        };
        let lossy: BTreeSet<u16> = match major {
            LINK_MAJOR => steps.iter().filter_map(loses).collect(),
            _ => BTreeSet::new(),
        };
        if lossy.is_empty() {
            return Ok(lossy);
        }
        let busy = self.leaves_with_packets(ifindex)?;
        Ok(lossy.intersection(&busy).copied().collect())
    }

    /// Replaces the queues of leaves that are empty now, or have had packets for long.
    pub(super) fn replace_queues(&mut self) -> Result<(), KernelError> {
        let mut busy: BTreeMap<u32, BTreeSet<u16>> = BTreeMap::new();
        for ((ifindex, number), tries) in self.stages.requeues.clone() {
            let busy = match busy.entry(ifindex) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.leaves_with_packets(ifindex)?),
            };
            if busy.contains(&number) && tries + 1 < LONGEST {
                self.stages.requeues.insert((ifindex, number), tries + 1);
                continue;
            }
            self.stages.requeues.remove(&(ifindex, number));
            let Some(queue) = self.installed_queue(ifindex, number) else {
                continue;
            };
            let leaf = Handle::new(LINK_MAJOR, number);
            tc::put_queue(&mut self.netlink, ifindex, leaf, &queue)?;
        }
        Ok(())
    }

    /// The queue of a leaf of a link in the installed plan.
    fn installed_queue(&self, ifindex: u32, number: u16) -> Option<LeafQueue> {
        let mut links = self.stages.up.iter();
        let (name, _) = links.find(|(_, index)| **index == ifindex)?;
        let tree = self.installed.links.get(name)?.trees[0].as_ref()?;
        tree.get(&number)?.queue
    }

    /// Forgets the queues that leaves of a link were to get: its classes are gone.
    pub(super) fn forget_requeues(&mut self, link: &str) {
        if let Some(index) = self.stages.up.get(link).copied() {
            self.stages.requeues.retain(|(other, _), _| *other != index);
        }
    }

    fn leaves_with_packets(&mut self, ifindex: u32) -> Result<BTreeSet<u16>, KernelError> {
        let classes = tc::classes(&mut self.netlink, ifindex)?;
        let busy = classes.iter().filter(|class| class.counts.backlog > 0);
        let numbers = busy.filter(|class| class.id.major() == LINK_MAJOR);
        Ok(numbers.map(|class| class.id.minor()).collect())
    }
}

/// True if packets may be lost when a queue takes the place of another one, or changes into it.
fn may_drop(present: &LeafQueue, wanted: &LeafQueue) -> bool {
    if present.segment_to != wanted.segment_to {
        return true;
    }
    match (present.queue, wanted.queue) {
        (Queue::Fifo { limit: present }, Queue::Fifo { limit: wanted }) => wanted < present,
        (Queue::FqCodel { .. }, Queue::FqCodel { .. }) => false,
        _ => true,
    }
}

/// The calls of [`Kernel::balance`], 200 ms apart, for which a leaf keeps its queue.
const LONGEST: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_of_another_kind_or_a_shorter_one_may_drop() {
        let fifo = |limit: u32, segment_to: Option<u32>| LeafQueue {
            queue: Queue::Fifo { limit },
            segment_to,
        };
        let codel = |target: u32| LeafQueue {
            queue: Queue::FqCodel {
                target,
                quantum: 1_514,
            },
            segment_to: None,
        };
        assert!(!may_drop(&fifo(100, None), &fifo(101, None)));
        assert!(may_drop(&fifo(100, None), &fifo(99, None)));
        assert!(may_drop(&fifo(100, None), &fifo(100, Some(1_514))));
        assert!(may_drop(&fifo(100, Some(1_514)), &fifo(100, None)));
        assert!(may_drop(&fifo(100, Some(9_000)), &fifo(100, Some(1_514))));
        assert!(!may_drop(&codel(5_000), &codel(10_000)));
        assert!(may_drop(&codel(5_000), &fifo(1_000_000, None)));
    }
}
