//! A priority queue for up to 2^20 flows (a hierarchical calendar queue). Entries, each a flow
//! number and a code of 12 bits, come in with a key (a time or a start tag), and go out in the
//! order of rounded keys.
//!
//! # Structure
//! ```text
//! level 7  ....................................   2^14 buckets of 8^7 quanta
//!  ...                                            . a bucket without entries
//! level 1  ..............x.....................   2^14 buckets of 8 quanta
//! level 0  ...x..xx............................   2^14 buckets of 1 quantum
//!             │                                   x a bucket with entries: a list of nodes
//!             └─▶ node ─▶ node ─▶ node            64 bytes: 14 entries, a link and a header
//! ```
//! A quantum is the width of the narrowest bucket: 512 ns where keys are times, 2^12 where they are
//! start tags, 1 µs in a [`super::Pacer`]. A level uses half of its buckets for keys after now, so
//! the last level reaches 2^34 quanta ahead: 2^43 ns (2.4 h) for times.
//!
//! A key goes to the shortest level that is long enough for the key's distance from now. So a
//! bucket is at most 1/1024 of that distance wide, or one quantum: **a key is rounded like a
//! floating-point number.** An entry never moves from level to level as time goes by. A key farther
//! away than the last level reaches, or a key for which no bucket is narrow enough, gets an earlier
//! bucket; when that bucket's time comes, the flow is inserted again.
//!
//! Inside a level the key is rounded to a unit of 1/2048 to 1/1024 of its distance even where the
//! level's buckets are narrower. So flows that wait for one length of time share at most about
//! 2,048 buckets, and most nodes of a large population are full. A full node gives the next flow
//! numbers as an array, which prefetching needs.
//!
//! Three layers of bit masks find the next bucket (find-first-set; Eiffel, NSDI 2019). The first
//! bucket of each level is stored.
//!
//! # Prefetching
//! With many flows most of the time would be waiting for memory. In a calendar with more than 2,048
//! entries, the module `lookahead` reads entries about sixteen packets before they are taken, so
//! that their flows can be prefetched. No function of this module fails.
//!
//! # Alternatives
//! Measured with shaping alone, all flows backlogged: cycles for each packet at 65,536 flows, and
//! at 1,048,576 flows (lowest and highest of several measurements):
//! - a binary heap (the structure of the paper CELL): 280-500 and 900-2,500;
//! - a 4-ary heap that replaces its top: 200-275 and 1,500-1,750;
//! - linked lists in find-first-set buckets: 135 and 730-850;
//! - this calendar, with the rest of a [`super::Pacer`]: 46-70 and 45-105.
//!
//! A heap waits for memory at every layer, and a linked list for every flow.
//!
//! # Order
//! Keys may wrap around. They are compared by their distance from `base`, which the owner moves
//! (start tags wrap; times do not, and their base stays 0). The entries of one bucket leave first
//! in, first out. The removal of an entry is an exception: the bucket's first entry takes the
//! position of the removed one.

mod bucket;
mod deferred;
mod detached;
mod lookahead;
mod pool;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

pub(super) use bucket::BucketRef;
use bucket::{BUCKETS, GROUPS, LEVEL_MASK, LEVELS, LONGEST, SPAN, Shape, WORDS};
use deferred::DeferredInserts;
pub(super) use detached::DetachedNode;
use lookahead::Lookahead;
use pool::{BucketId, NONE};
pub(super) use pool::{EntryPosition, Pool, Run};

/// A flow number and a code of 12 bits, for use when the entry is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueEntry(u32);

impl QueueEntry {
    /// An entry of flow `id` with a code of 12 bits.
    #[inline(always)]
    pub(super) fn new(id: u32, code: u32) -> QueueEntry {
        debug_assert!(id < MAX_FLOWS && code < 1 << 12);
        QueueEntry(id | code << QueueEntry::CODE_SHIFT)
    }

    /// The flow number.
    #[inline(always)]
    pub(super) fn id(self) -> u32 {
        self.0 & (MAX_FLOWS - 1)
    }

    /// The code of the entry, 12 bits: in the sleepers, the encoded deadline.
    #[inline(always)]
    pub(super) fn code(self) -> u32 {
        self.0 >> QueueEntry::CODE_SHIFT
    }

    /// The position of the code's first bit.
    const CODE_SHIFT: u32 = 20;
}

/// A set of entries in the order of their keys, see the module. `QUANTUM` is the binary logarithm
/// of the narrowest bucket's width.
#[derive(Debug)]
pub(super) struct Calendar<const QUANTUM: u32> {
    /// Keys are compared by their distance from this key.
    pub(super) base: u64,
    /// The first bucket of all, if there are entries.
    next: BucketRef,
    /// The first node of that bucket.
    front: u32,
    /// State of reading ahead.
    lookahead: Lookahead,
    /// Entries that are inserted a little later.
    deferred: DeferredInserts,
    /// One bit for each word of `summary` that is not zero: four for each level.
    groups: u32,
    /// Number of inserted entries.
    len: u32,
    /// A key that is not after the least key of the levels other than that of `next`. If those
    /// levels have no entries, the key that is farthest away.
    rest: u64,
    /// The key of each level's first bucket with entries.
    first: [u64; LEVELS],
    /// One bit for each word of `masks` that is not zero.
    summary: [u64; LEVELS * GROUPS],
    /// One bit for each bucket with entries.
    masks: Box<[u64; LEVELS * WORDS]>,
    /// The last node of each bucket, or none. The node behind it is the bucket's first.
    tails: Box<[u32; LEVELS * BUCKETS]>,
    /// Distinguishes the calendars that share a pool.
    name: u8,
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// An empty calendar. `name` is its number in the pool, below 64.
    pub(super) fn new(name: u8) -> Calendar<QUANTUM> {
        Calendar {
            base: 0,
            next: BucketRef::default(),
            front: NONE,
            lookahead: Lookahead::default(),
            deferred: DeferredInserts::default(),
            groups: 0,
            len: 0,
            rest: u64::MAX,
            first: [0; LEVELS],
            summary: [0; LEVELS * GROUPS],
            masks: zeroed(),
            tails: zeroed(),
            name,
        }
    }

    /// Bytes of the buckets and masks, independent of the number of entries.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.masks) + size_of_val(&*self.tails)
    }

    /// Whether there are no entries, except the deferred ones.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first bucket that is not before `key`, as narrow as the distance of `key` from `now`
    /// allows. `key` is not before `now`. `max_width` limits the width of the bucket further: it is
    /// a binary logarithm, at least `QUANTUM`. `None` if there is no such bucket. Then the caller
    /// uses an earlier one ([`Calendar::bucket_before`]).
    #[inline(always)]
    pub(super) fn bucket_not_before(
        &self,
        key: u64,
        now: u64,
        max_width: u32,
    ) -> Option<BucketRef> {
        self.bucket_not_before_as(key.wrapping_sub(now), key, now, max_width)
    }

    /// As [`Calendar::bucket_not_before`], with a width that a distance of `long` allows, or the
    /// distance of `key` from `now` if that is longer.
    #[inline(always)]
    pub(super) fn bucket_not_before_as(
        &self,
        long: u64,
        key: u64,
        now: u64,
        max_width: u32,
    ) -> Option<BucketRef> {
        let shape = Self::shape(long | key.wrapping_sub(now));
        let digits = shape.digits().min(max_width);
        let narrow = u64::MAX << (digits % u64::BITS);
        let bucket = shape.bucket(key.wrapping_add(!narrow) & narrow);
        (digits >= shape.shift() && self.is_available(bucket, now)).then_some(bucket)
    }

    /// The bucket of `key`. If that is too far away or not available, an earlier one. Never before
    /// the bucket of `now`.
    #[inline(always)]
    pub(super) fn bucket_before(&self, key: u64, now: u64) -> BucketRef {
        // A distance is at least 2^10 times its rounding, or below one bucket. So the bucket of
        // `now` is the earliest.
        let shape = Self::shape(key.wrapping_sub(now));
        let bucket = shape.bucket(key & u64::MAX << shape.digits());
        match shape.digits() >= shape.shift() && self.is_available(bucket, now) {
            true => bucket,
            false => self.far_bucket_before(key, now),
        }
    }

    /// The bucket of `key` or an earlier one, as narrow as the distance of `key` from the earliest
    /// key allows (from `now`, if no key is before `now`). For deadlines, which keep their order
    /// when they are over.
    #[inline(always)]
    pub(super) fn bucket_in_order(&self, key: u64, now: u64) -> BucketRef {
        // The distance from the first key is not longer than the level, so the bucket is always
        // available.
        let overdue = !self.is_empty() && self.next.key < now;
        let from = if overdue { self.next.key } else { now };
        let shape = Self::shape(key.saturating_sub(from));
        match shape.digits() >= shape.shift() {
            true => shape.bucket(key & u64::MAX << shape.digits()),
            false => self.far_bucket_before(key, now),
        }
    }

    #[cold]
    fn far_bucket_before(&self, key: u64, now: u64) -> BucketRef {
        let far = key.wrapping_sub(now).min((1 << (QUANTUM + LONGEST)) - 1);
        let shape = Self::shape(far);
        let bucket = shape.bucket(now.wrapping_add(far) & u64::MAX << shape.digits());
        match self.is_available(bucket, now) {
            true => bucket,
            false => {
                let last = ((BUCKETS - 1) as u64) << shape.shift();
                shape.bucket(self.first[bucket.level()].wrapping_add(last))
            }
        }
    }

    /// Inserts an entry into a bucket that a `bucket_…` function of this calendar has returned.
    /// Returns the entry's position.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        pool: &mut Pool,
        bucket: BucketRef,
        entry: QueueEntry,
    ) -> EntryPosition {
        let tail = &mut self.tails[bucket.slot()];
        self.len += 1;
        if let Some(position) = pool.append(*tail, entry.0) {
            return position;
        }
        if *tail != NONE {
            let (new, position) = pool.append_node(*tail, entry.0);
            *tail = new;
            return position;
        }
        let (new, position) = pool.start_bucket(BucketId::new(self.name, bucket.slot), entry.0);
        *tail = new;
        self.mark(bucket, new);
        position
    }

    /// The first bucket, without the deferred entries; `None` if no bucket has an entry.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<BucketRef> {
        (!self.is_empty()).then_some(self.next)
    }

    /// Takes the next entry; `None` if there are no entries, except deferred ones.
    #[inline(always)]
    pub(super) fn take(&mut self, pool: &mut Pool) -> Option<QueueEntry> {
        if self.is_empty() {
            return None;
        }
        let (entry, left) = pool.take(self.front);
        self.len -= 1;
        if !left {
            self.next_node(pool);
        }
        Some(QueueEntry(entry))
    }

    /// Takes all entries of the next node. There must be one.
    #[inline(always)]
    pub(super) fn take_run(&mut self, pool: &mut Pool) -> Run {
        let run = pool.run(self.front);
        self.len -= run.len();
        self.next_node(pool);
        pool.prefetch(self.front);
        run
    }

    /// Removes the entry at `position`. Returns the other entry that is at `position` afterwards,
    /// `None` if there is none.
    pub(super) fn remove(
        &mut self,
        pool: &mut Pool,
        position: EntryPosition,
    ) -> Option<QueueEntry> {
        let slot = pool.bucket_id(position).slot();
        let tail = self.tails[slot as usize];
        let first = pool.next_node(tail);
        let (moved, left) = pool.remove(first, position);
        self.len -= 1;
        if !left {
            match (pool.drop_first(first, tail), slot == self.next.slot) {
                (Some(next), true) => self.front = next,
                (Some(_), false) => {}
                (None, true) => self.unmark_next(pool),
                (None, false) => self.unmark_other(slot),
            }
        }
        moved.map(QueueEntry)
    }

    /// Whether an entry of flow `id` is at `position` in this calendar.
    pub(super) fn holds(&self, pool: &Pool, position: EntryPosition, id: u32) -> bool {
        pool.get(position).is_some_and(|raw| {
            QueueEntry(raw).id() == id && pool.bucket_id(position).name() == self.name
        })
    }

    /// Panics if the structure differs from the module's description. Returns the number of
    /// entries. Its time is linear in that number.
    pub(super) fn invariants(&self, pool: &Pool) -> usize {
        let (mut found, mut rest) = (0, None);
        for level in 0..LEVELS {
            let mut least = None;
            for slot in self.marked(level) {
                let tail = self.tails[slot];
                assert_ne!(tail, NONE, "slot {slot} is marked");
                found += pool.invariants(tail, BucketId::new(self.name, slot as u32));
                let first = Shape::<QUANTUM>::of_level(level).bucket(self.first[level]);
                let distance = slot.wrapping_sub(first.slot()) % BUCKETS;
                least = Some(least.map_or(distance, |l: usize| l.min(distance)));
            }
            let live = self.is_live(level);
            assert_eq!(least.is_some(), live, "live bits of level {level}");
            assert_eq!(least.unwrap_or(0), 0, "first bucket of level {level}");
            let order = self.order(self.first[level]);
            if live && level != self.next.level() {
                rest = Some(rest.map_or(order, |rest: u64| rest.min(order)));
            }
            let next = self.order(self.next.key);
            assert!(!live || next <= order, "level {level} is before the next");
        }
        for (group, word) in self.summary.iter().enumerate() {
            assert_eq!(self.groups & (1 << group) != 0, *word != 0, "groups");
        }
        if !self.is_empty() {
            assert_eq!(self.first[self.next.level()], self.next.key, "next");
            let front = pool.next_node(self.tails[self.next.slot()]);
            assert_eq!(self.front, front, "front");
        }
        assert!(
            rest.is_none_or(|rest| rest >= self.order(self.rest)),
            "rest"
        );
        // An entry in a bucket that is not marked would be missing here.
        assert_eq!(found, self.len as usize, "entries");
        found + self.deferred_entries().count()
    }

    /// The marked buckets of a level. Panics if `masks` and `summary` differ.
    fn marked(&self, level: usize) -> Vec<usize> {
        let mut marked = Vec::new();
        for group in level * GROUPS..(level + 1) * GROUPS {
            let words = &self.masks[group * 64..(group + 1) * 64];
            if self.summary[group] == 0 {
                // Compared as a whole, since most groups are empty.
                assert_eq!(words, [0; 64], "group {group}");
                continue;
            }
            for (at, word) in words.iter().enumerate() {
                let summary = self.summary[group] & (1 << at) != 0;
                assert_eq!(summary, *word != 0, "summary of word {at} of group {group}");
                let mut bits = *word;
                while bits != 0 {
                    marked.push((group * 64 + at) * 64 + bits.trailing_zeros() as usize);
                    bits &= bits - 1;
                }
            }
        }
        marked
    }

    /// The level, width and rounding of keys at a distance.
    #[inline(always)]
    fn shape(distance: u64) -> Shape<QUANTUM> {
        Shape::OF[(distance | 1).ilog2() as usize % 64]
    }

    /// Whether a bucket ahead of `now` is less than one round (the length of its level) after the
    /// first key of its level. It is false only if an entry has been overdue for half a round of
    /// level 0 or more.
    #[inline(always)]
    fn is_available(&self, bucket: BucketRef, now: u64) -> bool {
        let overdue = now.wrapping_sub(self.next.key) as i64;
        overdue < 1 << (QUANTUM + SPAN) || self.is_within_round(bucket)
    }

    #[cold]
    fn is_within_round(&self, bucket: BucketRef) -> bool {
        let first = self.order(self.first[bucket.level()]);
        let behind = self.order(bucket.key).wrapping_sub(first);
        !self.is_live(bucket.level())
            || (behind as i64) < 0
            || behind >> Shape::<QUANTUM>::of_level(bucket.level()).shift() < BUCKETS as u64
    }

    #[inline(always)]
    fn is_live(&self, level: usize) -> bool {
        self.groups >> (level * GROUPS) & LEVEL_MASK != 0
    }

    #[inline(always)]
    fn order(&self, key: u64) -> u64 {
        key.wrapping_sub(self.base)
    }

    /// Marks a bucket that has got its first entry. Its first node is `front`.
    #[inline(always)]
    fn mark(&mut self, bucket: BucketRef, front: u32) {
        let (level, slot) = (bucket.level(), bucket.slot());
        let (groups, live) = (self.groups, self.is_live(level));
        let mask = &mut self.masks[slot / 64];
        if *mask == 0 {
            let (word, group) = (slot / 64, slot / 64 / 64);
            self.summary[group] |= 1 << (word % 64);
            self.groups |= 1 << group;
        }
        *mask |= 1 << (slot % 64);
        let order = self.order(bucket.key);
        if live && order >= self.order(self.first[level]) {
            return;
        }
        self.first[level] = bucket.key;
        if groups == 0 {
            (self.next, self.front) = (bucket, front);
        } else if order < self.order(self.next.key) {
            if level != self.next.level() {
                self.rest = self.next.key;
            }
            (self.next, self.front) = (bucket, front);
        } else if level != self.next.level() && order < self.order(self.rest) {
            self.rest = bucket.key;
        }
    }

    /// Drops the front node after its last entry was taken.
    #[inline(always)]
    fn next_node(&mut self, pool: &mut Pool) {
        let tail = self.tails[self.next.slot()];
        match pool.drop_first(self.front, tail) {
            Some(next) => self.front = next,
            None if self.len == 0 => self.unmark_last(),
            None => self.unmark_next(pool),
        }
    }

    /// Unmarks the last bucket with entries.
    #[inline(always)]
    fn unmark_last(&mut self) {
        let slot = self.next.slot();
        self.tails[slot] = NONE;
        self.masks[slot / 64] = 0;
        self.summary[slot / 64 / 64] = 0;
        self.groups = 0;
    }

    /// Unmarks the next bucket and finds the bucket that is next now.
    #[inline(always)]
    fn unmark_next(&mut self, pool: &Pool) {
        let (level, slot) = (self.next.level(), self.next.slot());
        self.tails[slot] = NONE;
        let mask = &mut self.masks[slot / 64];
        *mask &= !(1 << (slot % 64));
        let here = *mask & u64::MAX << (slot % 64);
        if here != 0 {
            let next = slot & !63 | here.trailing_zeros() as usize;
            let shift = Shape::<QUANTUM>::of_level(level).shift();
            let key = self.next.key.wrapping_add(((next - slot) as u64) << shift);
            self.first[level] = key;
            self.next = BucketRef {
                key,
                slot: next as u32,
            };
        } else if self.find_first_after(slot, self.next.key) {
            let key = self.first[level];
            self.next = Shape::<QUANTUM>::of_level(level).bucket(key);
        } else {
            return self.find_next(pool);
        }
        if self.order(self.next.key) > self.order(self.rest) {
            return self.find_next(pool);
        }
        self.front = pool.next_node(self.tails[self.next.slot()]);
    }

    /// Unmarks a bucket other than the next.
    #[cold]
    fn unmark_other(&mut self, slot: u32) {
        let (slot, level) = (slot as usize, slot as usize / BUCKETS);
        self.tails[slot] = NONE;
        self.masks[slot / 64] &= !(1 << (slot % 64));
        let first = Shape::<QUANTUM>::of_level(level).bucket(self.first[level]);
        if first.slot() != slot {
            // Its mask may have become zero.
            self.summarize(slot);
            return;
        }
        self.find_first_after(slot, first.key);
        self.find_rest(self.next.level());
    }

    /// Finds a level's first bucket after the bucket at `slot`, which was the first, has become
    /// empty. `key` is the key of `slot`. Returns whether the level has a bucket with entries.
    #[inline(never)]
    fn find_first_after(&mut self, slot: usize, key: u64) -> bool {
        self.summarize(slot);
        let level = slot / BUCKETS;
        if !self.is_live(level) {
            return false;
        }
        let next = self.next_from(slot);
        let steps = (next.wrapping_sub(slot) % BUCKETS) as u64;
        let shift = Shape::<QUANTUM>::of_level(level).shift();
        self.first[level] = key.wrapping_add(steps << shift);
        true
    }

    /// Updates `summary` and `groups` after a bit of `masks` was cleared.
    #[inline(always)]
    fn summarize(&mut self, slot: usize) {
        let (word, group) = (slot / 64, slot / 64 / 64);
        let gone = u64::from(self.masks[word] == 0);
        self.summary[group] &= !(gone << (word % 64));
        let gone = u32::from(self.summary[group] == 0);
        self.groups &= !(gone << group);
    }

    /// Finds the first bucket of all levels, and the least key of the other levels.
    #[inline(never)]
    fn find_next(&mut self, pool: &Pool) {
        let mut first = (u64::MAX, None);
        let mut second = u64::MAX;
        for (level, order) in self.live() {
            match order <= first.0 {
                true => (second, first) = (first.0, (order, Some(level))),
                false => second = second.min(order),
            }
        }
        let Some(level) = first.1 else { return };
        self.rest = self.base.wrapping_add(second);
        self.next = Shape::<QUANTUM>::of_level(level).bucket(self.first[level]);
        self.front = pool.next_node(self.tails[self.next.slot()]);
    }

    /// Finds the least key of all levels but one.
    fn find_rest(&mut self, but: usize) {
        let rest = self.live().filter(|(level, _)| *level != but);
        let least = rest.map(|(_, order)| order).min();
        self.rest = self.base.wrapping_add(least.unwrap_or(u64::MAX));
    }

    /// The levels with entries, with the order of each level's first key.
    #[inline(always)]
    fn live(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut groups = self.groups;
        core::iter::from_fn(move || {
            let level =
                (groups != 0).then(|| groups.trailing_zeros() as usize / GROUPS % LEVELS)?;
            groups &= !(LEVEL_MASK << (level * GROUPS));
            Some((level, self.order(self.first[level])))
        })
    }

    /// The first marked bucket of a level, from `start` on and around its end. There must be one.
    #[inline(always)]
    fn next_from(&self, start: usize) -> usize {
        let (word, group) = (start / 64, start / 64 / 64);
        let here = self.masks[word] & u64::MAX << (start % 64);
        if here != 0 {
            return word * 64 + here.trailing_zeros() as usize;
        }
        // The words behind this one; then the next group, around to this one again.
        let this = 1_u64 << (word % 64);
        let behind = self.summary[group] & !(this | (this - 1));
        let found = match behind {
            0 => {
                let level = group / GROUPS * GROUPS;
                let groups = self.groups >> level & LEVEL_MASK;
                let around = groups | groups << GROUPS;
                let step = (around >> (group % GROUPS + 1)).trailing_zeros() as usize;
                let group = level + (group + 1 + step) % GROUPS;
                group * 64 + self.summary[group].trailing_zeros() as usize
            }
            words => group * 64 + words.trailing_zeros() as usize,
        };
        found * 64 + self.masks[found % (LEVELS * WORDS)].trailing_zeros() as usize
    }
}

/// An array of zeros on the heap. It is never on the stack.
fn zeroed<T: Copy + From<u8>, const N: usize>() -> Box<[T; N]> {
    match vec![T::from(0); N].into_boxed_slice().try_into() {
        Ok(all) => all,
        Err(_) => unreachable!("there are N of them"),
    }
}

/// The number of flows that the ids of entries can distinguish.
pub(super) const MAX_FLOWS: u32 = 1 << 20;

#[cfg(test)]
mod tests;
