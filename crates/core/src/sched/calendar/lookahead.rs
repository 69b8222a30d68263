//! Reading ahead: entries are read some time before they are taken, so that their flows can be
//! prefetched.
//!
//! The lookahead passes through the calendar's buckets in order, one node at a time, at least
//! [`MIN_LEAD`] entries before the entry that is taken. It reads distant memory itself: the bucket,
//! the bucket's last node, the first one. It prefetches each of these and continues with another
//! bucket meanwhile, so three prefetches are pending at a time. Its results are hints. A wrong one
//! causes a late or a useless prefetch.
//!
//! [`Calendar::push_with_lookahead`] returns whether it inserted an entry before the lookahead's
//! position. The caller then prefetches the flow itself. The lookahead does not register removals.
//! So it starts again after a number of buckets, and when its lead seems too long.

use super::bucket::{BUCKETS, LEVELS};
use super::{
    BucketId, BucketRef, Calendar, GROUPS, LEVEL_MASK, NONE, Pool, QueueEntry, Run, Shape,
};
use crate::prefetch;

/// State of the lookahead. All of it is a hint: it misses entries that are inserted behind it, and
/// it starts again after a number of buckets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lookahead {
    /// Estimated number of entries that were read ahead and not taken.
    lead: u32,
    /// Number of buckets before the lookahead starts again.
    buckets_left: u32,
    /// The node to continue with in `bucket`, or none.
    node: u32,
    bucket: BucketRef,
    /// A bucket whose last node is being prefetched, and a bucket that is being prefetched itself.
    tail_coming: Option<BucketRef>,
    bucket_coming: Option<BucketRef>,
    /// The key of the last bucket that was chosen.
    reached: u64,
    /// For each level, the key of the bucket to continue with.
    from: [u64; LEVELS],
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// Takes the next entry. If the calendar has many entries, `prefetch_entry` is called with each
    /// entry and its key some time before it is taken, except entries that
    /// [`Calendar::push_with_lookahead`] reported.
    #[inline(always)]
    pub(in crate::sched) fn take_with_lookahead(
        &mut self,
        pool: &mut Pool,
        prefetch_entry: impl Fn(QueueEntry, u64),
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
        prefetch_entry: impl Fn(QueueEntry, u64),
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

    /// Whether an entry at a key comes before the lookahead's position (or would, with enough
    /// entries).
    #[inline(always)]
    pub(in crate::sched) fn is_passed(&self, key: u64) -> bool {
        !self.uses_lookahead() || self.order(key) <= self.order(self.lookahead.reached)
    }

    /// Inserts an entry into a bucket. Returns whether it comes before the lookahead's position:
    /// then `prefetch_entry` will not be called for it.
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

    /// Whether a number of entries at a key come before the lookahead's position. If so, they count
    /// as read ahead.
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

    /// Whether there are so many entries that the next ones are distant memory too.
    #[inline(always)]
    pub(in crate::sched) fn exceeds_cache(&self) -> bool {
        self.len > CACHED_MAX
    }

    /// Reads one more node ahead.
    #[inline(never)]
    fn advance_lookahead(&mut self, pool: &Pool, prefetch_entry: impl Fn(QueueEntry, u64)) {
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

/// The number of entries that are read ahead, if there are so many.
const MIN_LEAD: u32 = 16;

/// Reading ahead begins above this number of entries. The flows of fewer entries are in the cache
/// anyway. Tests use a smaller number.
pub(super) const LOOKAHEAD_MIN: u32 = if cfg!(test) { 8 } else { 2048 };

/// Above this number of entries, the calendar itself is not in the cache. Tests use a smaller
/// number.
const CACHED_MAX: u32 = if cfg!(test) { 12 } else { 1 << 17 };

/// With a longer lead, the entries that were read ahead are not the next ones.
const MAX_LEAD: u32 = 128;

/// Number of buckets after which the lookahead starts again.
const BUCKETS_PER_RESTART: u32 = 64;
