//! Moves whole nodes of entries from one calendar to another.
//!
//! If thousands of flows of one contract fall due at the same instant, their entries fill nodes,
//! with the same code in each entry (the encoded deadline, `sched::deadline`). Such a node moves to
//! its new bucket as a whole, and its entries are not written. No function fails.

use super::{BucketId, BucketRef, Calendar, NONE, Pool, QueueEntry};

/// A node that is in no bucket.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(in crate::sched) struct DetachedNode {
    node: u32,
    len: u32,
    code: u32,
}

impl DetachedNode {
    /// Number of entries.
    #[inline(always)]
    pub(in crate::sched) fn len(self) -> u32 {
        self.len
    }

    /// The code of all entries.
    #[inline(always)]
    pub(in crate::sched) fn code(self) -> u32 {
        self.code
    }
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// Takes the next node as a whole. `None` if there is no node, if an entry of it has been
    /// taken, if its entries have different codes, if the code is not below `below`, or if it has
    /// fewer than [`MIN_ENTRIES`] entries.
    #[inline(always)]
    pub(in crate::sched) fn detach_node(
        &mut self,
        pool: &mut Pool,
        below: u32,
    ) -> Option<DetachedNode> {
        let (first, len) = pool.unread(self.front)?;
        let first = QueueEntry(first);
        if self.is_empty() || len < MIN_ENTRIES || first.code() >= below {
            return None;
        }
        if pool.differences(self.front) >> QueueEntry::CODE_SHIFT != 0 {
            return None;
        }
        let node = DetachedNode {
            node: self.front,
            len,
            code: first.code(),
        };
        self.len -= len;
        self.count_taken(len);
        match pool.detach_first(self.front, self.tails[self.next.slot()]) {
            Some(next) => self.front = next,
            None if self.len == 0 => self.unmark_last(),
            None => self.unmark_next(pool),
        }
        self.prefetch_following(pool);
        Some(node)
    }

    /// Prefetches the next node, and the last node of the bucket behind if that is in the same
    /// word of `masks`. That node is read as soon as this one is used up.
    #[inline(always)]
    fn prefetch_following(&self, pool: &Pool) {
        pool.prefetch(self.front);
        let slot = self.next.slot();
        let behind = self.masks[slot / 64] & (u64::MAX << (slot % 64) << 1);
        if behind != 0 {
            pool.prefetch(self.tails[slot & !63 | behind.trailing_zeros() as usize & 63]);
        }
    }

    /// Inserts a node into a bucket. If the lookahead will not read the node
    /// ([`Calendar::is_passed`]), it calls `each` with every entry and returns `true`.
    #[inline(always)]
    pub(in crate::sched) fn attach_node(
        &mut self,
        pool: &mut Pool,
        bucket: BucketRef,
        node: DetachedNode,
        mut each: impl FnMut(QueueEntry),
    ) -> bool {
        let passed = self.count_passed(bucket.key, node.len);
        if passed {
            pool.for_each(node.node, |raw| each(QueueEntry(raw)));
        }
        let tail = core::mem::replace(&mut self.tails[bucket.slot()], node.node);
        self.len += node.len;
        pool.attach(tail, node.node, BucketId::new(self.name, bucket.slot));
        if tail == NONE {
            self.mark(bucket, node.node);
        }
        passed
    }
}

/// The smallest number of entries for which a node is moved as a whole.
const MIN_ENTRIES: u32 = 4;
