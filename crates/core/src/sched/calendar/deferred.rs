//! Delayed insertion of entries, while the memory that it needs is prefetched.
//!
//! When a flow is served, the bucket for its next packet's entry becomes known. Reads of the bucket
//! and of its last node would then cost two waits for memory, one after the other. So in a calendar
//! with more than 131,072 entries a new entry is held back while [`MAX_DEFERRED`] others come:
//! first its bucket is prefetched, then the bucket's last node, then the entry is inserted.
//!
//! With fewer entries, but more than [`IMMEDIATE_MAX`], a new entry is held back until the next one
//! comes. The branch on whether the entry's bucket has a node with room is unpredictable. If the
//! branch depended on the arithmetic of the same packet, a wrong prediction would cost all of that
//! arithmetic again; one packet later the condition is known at once.
//!
//! The delay does not change which entries are taken: a deferred entry is inserted before its time
//! comes ([`Calendar::is_flush_due`]), and [`Calendar::first_key`] includes the deferred entries.
//! No function fails.

use super::{BucketRef, Calendar, EntryPosition, Pool, QueueEntry};
use crate::prefetch;

/// Entries that are not inserted yet. The oldest is at `next`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredInserts {
    /// A key that is not after any of their keys; `u64::MAX` if there are none.
    least: u64,
    /// Number of deferred entries.
    len: u32,
    next: u32,
    buckets: [BucketRef; MAX_DEFERRED],
    entries: [QueueEntry; MAX_DEFERRED],
}

impl Default for DeferredInserts {
    fn default() -> DeferredInserts {
        DeferredInserts {
            least: u64::MAX,
            len: 0,
            next: 0,
            buckets: [BucketRef::default(); MAX_DEFERRED],
            entries: [QueueEntry(0); MAX_DEFERRED],
        }
    }
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// Inserts an entry into a bucket that is not due yet, now or a few entries later. Returns the
    /// entry that was inserted by this call, with its position; `None` if none was.
    #[inline(always)]
    pub(in crate::sched) fn push_deferred(
        &mut self,
        pool: &mut Pool,
        bucket: BucketRef,
        entry: QueueEntry,
    ) -> Option<(u32, EntryPosition)> {
        if self.len <= IMMEDIATE_MAX {
            return Some((entry.id(), self.push(pool, bucket, entry)));
        }
        if !self.exceeds_cache() && self.deferred.len <= 1 {
            return self.push_one_deferred(pool, bucket, entry);
        }
        let at = self.deferred.next as usize % MAX_DEFERRED;
        let inserted = match self.deferred.len as usize == MAX_DEFERRED {
            true => {
                let (bucket, entry) = (self.deferred.buckets[at], self.deferred.entries[at]);
                Some((entry.id(), self.push(pool, bucket, entry)))
            }
            false => {
                self.deferred.len += 1;
                None
            }
        };
        prefetch::first_line(&self.tails[bucket.slot()]);
        let half = self.deferred.buckets[(at + MAX_DEFERRED / 2) % MAX_DEFERRED];
        pool.prefetch(self.tails[half.slot()]);
        self.deferred.buckets[at] = bucket;
        self.deferred.entries[at] = entry;
        self.deferred.least = self.deferred.least.min(bucket.key);
        self.deferred.next = self.deferred.next.wrapping_add(1);
        inserted
    }

    /// As [`Calendar::push_deferred`], one entry later. At most one is deferred.
    #[inline(always)]
    fn push_one_deferred(
        &mut self,
        pool: &mut Pool,
        bucket: BucketRef,
        entry: QueueEntry,
    ) -> Option<(u32, EntryPosition)> {
        let inserted = match self.deferred.len {
            0 => None,
            _ => {
                let (bucket, entry) = (self.deferred.buckets[0], self.deferred.entries[0]);
                Some((entry.id(), self.push(pool, bucket, entry)))
            }
        };
        (self.deferred.len, self.deferred.next) = (1, 1);
        self.deferred.least = bucket.key;
        (self.deferred.buckets[0], self.deferred.entries[0]) = (bucket, entry);
        inserted
    }

    /// Whether the deferred entries must be inserted, because the time of one of them has come.
    #[inline(always)]
    pub(in crate::sched) fn is_flush_due(&self, now: u64) -> bool {
        now >= self.deferred.least
    }

    /// Inserts all deferred entries. `inserted` is called with each flow and position.
    #[inline(never)]
    pub(in crate::sched) fn flush(
        &mut self,
        pool: &mut Pool,
        mut inserted: impl FnMut(u32, EntryPosition),
    ) {
        let DeferredInserts {
            len,
            next,
            buckets,
            entries,
            ..
        } = core::mem::take(&mut self.deferred);
        for age in (1..=len).rev() {
            let at = next.wrapping_sub(age) as usize % MAX_DEFERRED;
            let position = self.push(pool, buckets[at], entries[at]);
            inserted(entries[at].id(), position);
        }
    }

    /// The first key of all, deferred or not; `None` if there are no entries.
    #[inline(always)]
    pub(in crate::sched) fn first_key(&self) -> Option<u64> {
        match self.peek() {
            Some(bucket) if bucket.key <= self.deferred.least => Some(bucket.key),
            _ => self.first_key_deferred(),
        }
    }

    #[cold]
    fn first_key_deferred(&self) -> Option<u64> {
        let here = self.deferred_entries().map(|(bucket, _)| bucket.key);
        here.chain(self.peek().map(|bucket| bucket.key)).min()
    }

    /// The deferred entries, oldest first.
    pub(super) fn deferred_entries(&self) -> impl Iterator<Item = (BucketRef, QueueEntry)> {
        let DeferredInserts {
            len,
            next,
            buckets,
            entries,
            ..
        } = self.deferred;
        (1..=len).map(move |age| {
            let at = next.wrapping_sub(age) as usize % MAX_DEFERRED;
            (buckets[at], entries[at])
        })
    }
}

/// The largest number of deferred entries. The bucket is prefetched during the first half of them,
/// its last node during the other half.
const MAX_DEFERRED: usize = 4;

/// Up to this number of entries, each entry is inserted at once. Tests use a smaller number.
const IMMEDIATE_MAX: u32 = if cfg!(test) { 6 } else { 64 };
