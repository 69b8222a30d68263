//! The lookahead reads entries of a calendar some time before they are taken, so that the scheduler
//! can prefetch their flows. It works in calendars with more than [`LOOKAHEAD_MIN`] entries.
//!
//! The lookahead goes through the calendar's buckets in order, one node at a time. Its *lead* is an
//! estimate of the number of entries that were read and not yet taken. It reads on while the lead
//! is below [`MIN_LEAD`]. Its own reads would miss the processor's cache too: the bucket, then the
//! bucket's last node, then the bucket's first node. So it prefetches each of the three and works
//! on another bucket meanwhile; up to three prefetches are pending at a time. Its results are
//! hints: a wrong hint causes a late or a useless prefetch.
//!
//! [`Calendar::push_with_lookahead`] returns whether the lookahead will not read the new entry,
//! because it is before the lookahead's position. Then the caller must prefetch the flow. Removals
//! of entries do not change the lookahead's state. So the lookahead starts again at the calendar's
//! first bucket after [`BUCKETS_PER_RESTART`] buckets, and when its lead is too long
//! ([`MAX_LEAD`]). No function fails.

use super::bucket::{BUCKETS, LEVELS};
use super::{
    BucketId, BucketRef, Calendar, GROUPS, LEVEL_MASK, NONE, Pool, QueueEntry, Run, Shape,
};
use crate::prefetch;

/// State of the lookahead. All of it is a hint: entries that are inserted before its position are
/// not read, and it starts again after [`BUCKETS_PER_RESTART`] buckets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lookahead {
    /// Estimated number of entries that were read ahead and not taken.
    lead: u32,
    /// Number of buckets before the lookahead starts again.
    buckets_left: u32,
    /// The node to continue with in `bucket`, or none.
    node: u32,
    bucket: BucketRef,
    /// A bucket whose last node is being prefetched.
    tail_coming: Option<BucketRef>,
    /// A bucket that is being prefetched itself.
    bucket_coming: Option<BucketRef>,
    /// The key of the last bucket that was chosen.
    reached: u64,
    /// For each level, the key of the bucket to continue with.
    from: [u64; LEVELS],
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// Takes the next entry; `None` if there are no entries, except deferred ones. If the calendar
    /// has many entries, `prefetch_entry` is called with each entry and its key some time before it
    /// is taken, except entries that [`Calendar::push_with_lookahead`] reported.
    #[inline(always)]
    pub(in crate::sched) fn take_with_lookahead(
        &mut self,
        pool: &mut Pool,
        prefetch_entry: impl FnMut(QueueEntry, u64),
    ) -> Option<QueueEntry> {
        if self.uses_lookahead() {
            self.lookahead.lead = self.lookahead.lead.saturating_sub(1);
            if self.lookahead.lead.wrapping_sub(MIN_LEAD) > MAX_LEAD {
                self.advance_lookahead(pool, prefetch_entry);
            }
        }
        self.take(pool)
    }

    /// As [`Calendar::take_with_lookahead`] for all entries of the next node. There must be one.
    #[inline(always)]
    pub(in crate::sched) fn take_run_with_lookahead(
        &mut self,
        pool: &mut Pool,
        prefetch_entry: impl FnMut(QueueEntry, u64),
    ) -> Run {
        let run = self.take_run(pool);
        if self.uses_lookahead() {
            self.count_taken(run.len());
            if self.lookahead.lead.wrapping_sub(MIN_LEAD) > MAX_LEAD {
                self.advance_lookahead(pool, prefetch_entry);
            }
        }
        run
    }

    /// Whether an entry at a key will not be read ahead: the key is before the lookahead's
    /// position, or the calendar has too few entries for a lookahead.
    #[inline(always)]
    pub(in crate::sched) fn is_passed(&self, key: u64) -> bool {
        !self.uses_lookahead() || self.order(key) <= self.order(self.lookahead.reached)
    }

    /// Inserts an entry into a bucket. Returns `true` if `prefetch_entry` will not be called for
    /// the entry, for the reasons of [`Calendar::is_passed`].
    #[inline(always)]
    pub(in crate::sched) fn push_with_lookahead(
        &mut self,
        pool: &mut Pool,
        bucket: BucketRef,
        entry: QueueEntry,
    ) -> bool {
        let passed = self.count_passed(bucket.key, 1);
        self.push(pool, bucket, entry);
        passed
    }

    /// Accounts for a number of entries that are taken at once.
    #[inline(always)]
    pub(super) fn count_taken(&mut self, entries: u32) {
        self.lookahead.lead = self.lookahead.lead.saturating_sub(entries);
    }

    /// As [`Calendar::is_passed`], for a number of new entries at a key. If it is true, the entries
    /// count as read ahead.
    #[inline(always)]
    pub(super) fn count_passed(&mut self, key: u64, entries: u32) -> bool {
        let passed = self.is_passed(key);
        let counted = if passed { entries } else { 0 };
        self.lookahead.lead = self.lookahead.lead.wrapping_add(counted);
        passed
    }

    /// Whether there are so many entries that reading ahead is worthwhile.
    #[inline(always)]
    pub(super) fn uses_lookahead(&self) -> bool {
        self.len > LOOKAHEAD_MIN
    }

    /// Whether there are so many entries that the calendar itself does not fit into the cache.
    #[inline(always)]
    pub(in crate::sched) fn exceeds_cache(&self) -> bool {
        self.len > CACHED_MAX
    }

    /// Reads one more node ahead.
    #[inline(never)]
    fn advance_lookahead(&mut self, pool: &Pool, mut prefetch_entry: impl FnMut(QueueEntry, u64)) {
        if self.lookahead.buckets_left == 0 || self.lookahead.lead > MAX_LEAD {
            self.lookahead = Lookahead {
                buckets_left: BUCKETS_PER_RESTART,
                reached: self.next.key,
                from: self.first,
                ..Lookahead::default()
            };
        }
        let (node, bucket) = (self.lookahead.node, self.lookahead.bucket);
        if node != NONE {
            self.lookahead.node = NONE;
            if pool.is_in(node, BucketId::new(self.name, bucket.slot)) {
                self.lookahead.lead +=
                    pool.for_each(node, |raw| prefetch_entry(QueueEntry(raw), bucket.key));
                if node != self.tails[bucket.slot()] {
                    self.lookahead.node = pool.next_node(node);
                    return;
                }
            }
        }
        if let Some(bucket) = self.lookahead.tail_coming.take() {
            let tail = self.tails[bucket.slot()];
            if tail != NONE {
                (self.lookahead.node, self.lookahead.bucket) = (pool.next_node(tail), bucket);
                pool.prefetch(self.lookahead.node);
            }
        }
        if let Some(bucket) = self.lookahead.bucket_coming {
            pool.prefetch(self.tails[bucket.slot()]);
        }
        self.lookahead.tail_coming = self.lookahead.bucket_coming.take();
        self.choose();
    }

    /// Chooses the bucket after the buckets that were chosen before.
    #[inline(always)]
    fn choose(&mut self) {
        let mut least: Option<(usize, u64)> = None;
        let mut groups = self.groups;
        while groups != 0 {
            let level = groups.trailing_zeros() as usize / GROUPS % LEVELS;
            let shift = Shape::<QUANTUM>::of_level(level).shift();
            let first = self.order(self.first[level]);
            let behind = self.lookahead.from[level].wrapping_sub(self.first[level]) as i64;
            let behind = behind.max(0) as u64;
            let order = first.wrapping_add(behind);
            let inside = behind < (BUCKETS as u64) << shift;
            if inside && least.is_none_or(|(_, least)| order < least) {
                least = Some((level, order));
            }
            groups &= !(LEVEL_MASK << (level * GROUPS));
        }
        let Some((level, order)) = least else {
            if self.lookahead.tail_coming.is_none() && self.lookahead.node == NONE {
                self.lookahead.buckets_left = 0;
            }
            return;
        };
        self.lookahead.buckets_left = self.lookahead.buckets_left.saturating_sub(1);
        let shape = Shape::<QUANTUM>::of_level(level);
        let bucket = shape.bucket(order.wrapping_add(self.base));
        prefetch::first_line(&self.tails[bucket.slot()]);
        (self.lookahead.reached, self.lookahead.bucket_coming) = (bucket.key, Some(bucket));
        let slot = bucket.slot();
        let next = self.next_from((slot & !(BUCKETS - 1)) | ((slot + 1) % BUCKETS));
        let steps = (next.wrapping_sub(slot).wrapping_sub(1) % BUCKETS + 1) as u64;
        self.lookahead.from[level] = bucket.key.wrapping_add(steps << shape.shift());
    }
}

/// The smallest number of entries that are read ahead, if the calendar has so many.
const MIN_LEAD: u32 = 16;

/// Reading ahead begins above this number of entries. The flows of fewer entries are in the cache
/// anyway. Tests use a smaller number.
pub(super) const LOOKAHEAD_MIN: u32 = if cfg!(test) { 8 } else { 2048 };

/// Above this number of entries, the calendar itself does not fit into the cache. Tests use a
/// smaller number.
const CACHED_MAX: u32 = if cfg!(test) { 12 } else { 1 << 17 };

/// With a lead of more than this and [`MIN_LEAD`] together, the entries that were read ahead are
/// not the next ones, and the lookahead starts again.
const MAX_LEAD: u32 = 128;

/// Number of buckets after which the lookahead starts again.
const BUCKETS_PER_RESTART: u32 = 64;
