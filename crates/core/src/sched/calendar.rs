//! A priority queue for up to a million flows, with a few dozen cycles for each entry (a
//! hierarchical calendar queue). Entries come in with a key, a time or a start tag, and go out in
//! the order of rounded keys.
//!
//! # Structure
//! ```text
//! ring 7  ....................................   2^14 buckets of 8^7 quanta
//!  ...
//! ring 1  ..............x.....................   2^14 buckets of 8 quanta
//! ring 0  ...x..xx............................   2^14 buckets of 1 quantum
//!            │
//!            └─▶ chunk ─▶ chunk ─▶ chunk         64 bytes: 14 entries of 4 bytes, links
//! ```
//! A key goes to the shortest ring that is long enough for the key's distance from now. So a bucket
//! is at most 1/1024 of that distance wide, or one quantum: **a key is rounded like a
//! floating-point number.** An entry never moves from ring to ring as time goes by. The last ring
//! is 2^43 ns (2.4 h) long. A key farther away, or a key for which no bucket is narrow enough, gets
//! an earlier bucket; when that bucket falls due, the flow is placed again.
//!
//! Inside a ring the key is rounded to ten binary digits of its distance even where the ring is
//! finer. So flows of one rate share at most 2,048 buckets, and the buckets of a large population
//! are full chunks. A full chunk gives the next ids as an array, which prefetching needs.
//!
//! Three levels of 64-bit masks find the next bucket (find-first-set; Eiffel, NSDI 2019). The
//! result is stored for each ring.
//!
//! # Prefetching
//! With many flows nearly all of the time would be waiting for memory. `scout` reads entries some
//! sixteen packets before they are taken, so that their flows can be prefetched.
//!
//! # Alternatives
//! Measured with shaping, all flows backlogged, in cycles a packet at 65,536 and 1,048,576 flows:
//! - a binary heap (the structure of the paper CELL): 280-500 and 900-2,500;
//! - a 4-ary heap that replaces its top: 200-275 and 1,500-1,750;
//! - linked lists in find-first-set buckets: 135 and 730-850;
//! - this calendar, with the rest of a [`super::Pacer`]: 46-70 and 45-105.
//!
//! A heap waits for memory at every level, a linked list for every flow.
//!
//! # Order
//! Keys may wrap around. They are compared by their distance from `base`, which the owner moves
//! (start tags wrap; times do not, and their base stays 0). The entries of one bucket leave first
//! in, first out.

mod landing;
mod place;
mod pool;
mod scout;
mod whole;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use landing::Landing;
pub(super) use place::Spot;
use place::{BUCKETS, GROUPS, LONGEST, RING, RINGS, SPAN, Shape, WORDS};
use pool::{Home, NOWHERE};
pub(super) use pool::{Place, Pool, Run};
use scout::Scout;
pub(super) use whole::Whole;

/// A flow number and a word of 12 bits, for use when the entry is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(u32);

impl Entry {
    /// An entry of flow `id` with a word of 12 bits.
    #[inline(always)]
    pub(super) fn new(id: u32, word: u32) -> Entry {
        debug_assert!(id < MAX_FLOWS && word < 1 << 12);
        Entry(id | word << Entry::WORD_AT)
    }

    /// The flow number.
    #[inline(always)]
    pub(super) fn id(self) -> u32 {
        self.0 & (MAX_FLOWS - 1)
    }

    #[inline(always)]
    pub(super) fn word(self) -> u32 {
        self.0 >> Entry::WORD_AT
    }

    /// The position of the word's first bit.
    const WORD_AT: u32 = 20;
}

/// A set of entries in the order of their keys, see the module. `QUANTUM` is the binary logarithm
/// of the narrowest bucket's width.
#[derive(Debug)]
pub(super) struct Calendar<const QUANTUM: u32> {
    /// Keys are compared by their distance from this key.
    pub(super) base: u64,
    /// The first bucket of all, if there are entries.
    next: Spot,
    /// The first chunk of that bucket.
    front: u32,
    /// State of reading ahead.
    scout: Scout,
    /// Entries in flight: they are inserted a little later.
    landing: Landing,
    /// One bit for each word of `summary` that is not zero: four for each ring.
    groups: u32,
    /// Number of inserted entries.
    len: u32,
    /// A key that is not after the least key of the rings other than that of `next`. If those rings
    /// have no entries, the key that is farthest away.
    rest: u64,
    /// The key of each ring's first bucket with entries.
    first: [u64; RINGS],
    /// One bit for each word of `masks` that is not zero.
    summary: [u64; RINGS * GROUPS],
    /// One bit for each bucket with entries.
    masks: Box<[u64; RINGS * WORDS]>,
    /// The last chunk of each bucket, or none. The chunk behind it is the bucket's first.
    tails: Box<[u32; RINGS * BUCKETS]>,
    /// Distinguishes the calendars that share a pool.
    name: u8,
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    pub(super) fn new(name: u8) -> Calendar<QUANTUM> {
        Calendar {
            base: 0,
            next: Spot::default(),
            front: NOWHERE,
            scout: Scout::default(),
            landing: Landing::default(),
            groups: 0,
            len: 0,
            rest: u64::MAX,
            first: [0; RINGS],
            summary: [0; RINGS * GROUPS],
            masks: zeroed(),
            tails: zeroed(),
            name,
        }
    }

    /// Bytes of its buckets and masks, independent of the number of entries.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.masks) + size_of_val(&*self.tails)
    }

    /// Whether there are no entries, except those in flight.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first bucket that is not before `key`, as narrow as the distance of `key` from `now`
    /// allows. `key` is not before `now`. `finest` limits the width of the bucket further: it is a
    /// binary logarithm, at least `QUANTUM`. `None` if there is no such bucket. Then the caller
    /// uses an earlier one ([`Calendar::before`]).
    #[inline(always)]
    pub(super) fn not_before(&self, key: u64, now: u64, finest: u32) -> Option<Spot> {
        self.not_before_as(key.wrapping_sub(now), key, now, finest)
    }

    /// As [`Calendar::not_before`], with a width that a distance of `long` allows, or the distance
    /// of `key` from `now` if that is longer.
    #[inline(always)]
    pub(super) fn not_before_as(&self, long: u64, key: u64, now: u64, finest: u32) -> Option<Spot> {
        let shape = Self::shape(long | key.wrapping_sub(now));
        let digits = shape.digits().min(finest);
        let narrow = u64::MAX << (digits % u64::BITS);
        let spot = shape.spot(key.wrapping_add(!narrow) & narrow);
        (digits >= shape.shift() && self.inside(spot, now)).then_some(spot)
    }

    /// The bucket of `key`. If that is too far away or not available, an earlier one. Never before
    /// the bucket of `now`.
    #[inline(always)]
    pub(super) fn before(&self, key: u64, now: u64) -> Spot {
        // A distance is at least 2^10 times its rounding, or below one bucket. So the bucket of
        // `now` is the earliest.
        let shape = Self::shape(key.wrapping_sub(now));
        let spot = shape.spot(key & u64::MAX << shape.digits());
        match shape.digits() >= shape.shift() && self.inside(spot, now) {
            true => spot,
            false => self.before_that(key, now),
        }
    }

    /// The bucket of `key` or an earlier one, as narrow as the distance of `key` from the earliest
    /// key allows (from `now`, if no key is overdue). For deadlines, which keep their order when
    /// they are over. No key is a round behind the first, so every bucket is available.
    #[inline(always)]
    pub(super) fn in_order(&self, key: u64, now: u64) -> Spot {
        // The distance from the first key is not longer than the ring, so the bucket is always
        // available.
        let overdue = !self.is_empty() && self.next.key < now;
        let from = if overdue { self.next.key } else { now };
        let shape = Self::shape(key.saturating_sub(from));
        match shape.digits() >= shape.shift() {
            true => shape.spot(key & u64::MAX << shape.digits()),
            false => self.before_that(key, now),
        }
    }

    #[cold]
    fn before_that(&self, key: u64, now: u64) -> Spot {
        let far = key.wrapping_sub(now).min((1 << (QUANTUM + LONGEST)) - 1);
        let shape = Self::shape(far);
        let spot = shape.spot(now.wrapping_add(far) & u64::MAX << shape.digits());
        match self.inside(spot, now) {
            true => spot,
            false => {
                let last = ((BUCKETS - 1) as u64) << shape.shift();
                shape.spot(self.first[spot.ring()].wrapping_add(last))
            }
        }
    }

    /// Inserts an entry into a bucket that this calendar has returned. Returns the entry's
    /// position.
    #[inline(always)]
    pub(super) fn push(&mut self, pool: &mut Pool, spot: Spot, entry: Entry) -> Place {
        let tail = &mut self.tails[spot.slot()];
        self.len += 1;
        if let Some(place) = pool.append(*tail, entry.0) {
            return place;
        }
        if *tail != NOWHERE {
            let (new, place) = pool.grow(*tail, entry.0);
            *tail = new;
            return place;
        }
        let (new, place) = pool.start(Home::new(self.name, spot.slot), entry.0);
        *tail = new;
        self.opened(spot, new);
        place
    }

    /// The first bucket, without entries in flight.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<Spot> {
        (!self.is_empty()).then_some(self.next)
    }

    /// Takes the next entry.
    #[inline(always)]
    pub(super) fn take(&mut self, pool: &mut Pool) -> Option<Entry> {
        if self.is_empty() {
            return None;
        }
        let (entry, left) = pool.take(self.front);
        self.len -= 1;
        if !left {
            self.next_chunk(pool);
        }
        Some(Entry(entry))
    }

    /// Takes all entries of the next chunk. There must be one.
    #[inline(always)]
    pub(super) fn take_run(&mut self, pool: &mut Pool) -> Run {
        let run = pool.run(self.front);
        self.len -= run.len();
        self.next_chunk(pool);
        pool.prefetch(self.front);
        run
    }

    /// Removes the entry at `place`. Returns the other entry that stands at `place` afterwards, if
    /// any.
    pub(super) fn remove(&mut self, pool: &mut Pool, place: Place) -> Option<Entry> {
        let slot = pool.home(place).slot();
        let tail = self.tails[slot as usize];
        let first = pool.behind(tail);
        let (moved, left) = pool.remove(first, place);
        self.len -= 1;
        if !left {
            match (pool.drop_first(first, tail), slot == self.next.slot) {
                (Some(next), true) => self.front = next,
                (Some(_), false) => {}
                (None, true) => self.emptied(pool),
                (None, false) => self.emptied_elsewhere(slot),
            }
        }
        moved.map(Entry)
    }

    /// Whether an entry of flow `id` stands at `place` in this calendar.
    pub(super) fn holds(&self, pool: &Pool, place: Place, id: u32) -> bool {
        pool.get(place)
            .is_some_and(|raw| Entry(raw).id() == id && pool.home(place).name() == self.name)
    }

    /// Panics if the structure differs from the module's description. Returns the number of
    /// entries. Its time is linear in that number.
    pub(super) fn invariants(&self, pool: &Pool) -> usize {
        let (mut found, mut rest) = (0, None);
        for ring in 0..RINGS {
            let mut least = None;
            for slot in self.marked(ring) {
                let tail = self.tails[slot];
                assert_ne!(tail, NOWHERE, "slot {slot} is marked");
                found += pool.invariants(tail, Home::new(self.name, slot as u32));
                let first = Shape::<QUANTUM>::of_ring(ring).spot(self.first[ring]);
                let distance = slot.wrapping_sub(first.slot()) % BUCKETS;
                least = Some(least.map_or(distance, |l: usize| l.min(distance)));
            }
            let live = self.is_live(ring);
            assert_eq!(least.is_some(), live, "live bits of ring {ring}");
            assert_eq!(least.unwrap_or(0), 0, "first bucket of ring {ring}");
            let order = self.order(self.first[ring]);
            if live && ring != self.next.ring() {
                rest = Some(rest.map_or(order, |rest: u64| rest.min(order)));
            }
            let next = self.order(self.next.key);
            assert!(!live || next <= order, "ring {ring} is before the next");
        }
        for (group, word) in self.summary.iter().enumerate() {
            assert_eq!(self.groups & (1 << group) != 0, *word != 0, "groups");
        }
        if !self.is_empty() {
            assert_eq!(self.first[self.next.ring()], self.next.key, "next");
            let front = pool.behind(self.tails[self.next.slot()]);
            assert_eq!(self.front, front, "front");
        }
        assert!(
            rest.is_none_or(|rest| rest >= self.order(self.rest)),
            "rest"
        );
        // An entry in a bucket that is not marked would be missing here.
        assert_eq!(found, self.len as usize, "entries");
        found + self.in_flight().count()
    }

    /// The marked buckets of a ring. Panics if `masks` and `summary` differ.
    fn marked(&self, ring: usize) -> Vec<usize> {
        let mut marked = Vec::new();
        for group in ring * GROUPS..(ring + 1) * GROUPS {
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

    /// The ring, width and rounding of keys at a distance.
    #[inline(always)]
    fn shape(distance: u64) -> Shape<QUANTUM> {
        Shape::OF[(distance | 1).ilog2() as usize % 64]
    }

    /// Whether a key ahead of `now` is less than one round behind the first key of its ring. It is
    /// false only if an entry has been overdue for half a round or more.
    #[inline(always)]
    fn inside(&self, spot: Spot, now: u64) -> bool {
        let overdue = now.wrapping_sub(self.next.key) as i64;
        overdue < 1 << (QUANTUM + SPAN) || self.is_inside(spot)
    }

    #[cold]
    fn is_inside(&self, spot: Spot) -> bool {
        let first = self.order(self.first[spot.ring()]);
        let behind = self.order(spot.key).wrapping_sub(first);
        !self.is_live(spot.ring())
            || (behind as i64) < 0
            || behind >> Shape::<QUANTUM>::of_ring(spot.ring()).shift() < BUCKETS as u64
    }

    #[inline(always)]
    fn is_live(&self, ring: usize) -> bool {
        self.groups >> (ring * GROUPS) & RING != 0
    }

    #[inline(always)]
    fn order(&self, key: u64) -> u64 {
        key.wrapping_sub(self.base)
    }

    /// Marks a bucket that has got its first entry. Its first chunk is `front`.
    #[inline(always)]
    fn opened(&mut self, spot: Spot, front: u32) {
        let (ring, slot) = (spot.ring(), spot.slot());
        let (groups, live) = (self.groups, self.is_live(ring));
        let mask = &mut self.masks[slot / 64];
        if *mask == 0 {
            let (word, group) = (slot / 64, slot / 64 / 64);
            self.summary[group] |= 1 << (word % 64);
            self.groups |= 1 << group;
        }
        *mask |= 1 << (slot % 64);
        let order = self.order(spot.key);
        if live && order >= self.order(self.first[ring]) {
            return;
        }
        self.first[ring] = spot.key;
        if groups == 0 {
            (self.next, self.front) = (spot, front);
        } else if order < self.order(self.next.key) {
            if ring != self.next.ring() {
                self.rest = self.next.key;
            }
            (self.next, self.front) = (spot, front);
        } else if ring != self.next.ring() && order < self.order(self.rest) {
            self.rest = spot.key;
        }
    }

    /// Drops the front chunk after its last entry was taken.
    #[inline(always)]
    fn next_chunk(&mut self, pool: &mut Pool) {
        let tail = self.tails[self.next.slot()];
        match pool.drop_first(self.front, tail) {
            Some(next) => self.front = next,
            None if self.len == 0 => self.emptied_at_all(),
            None => self.emptied(pool),
        }
    }

    /// Unmarks the last bucket with entries.
    #[inline(always)]
    fn emptied_at_all(&mut self) {
        let slot = self.next.slot();
        self.tails[slot] = NOWHERE;
        self.masks[slot / 64] = 0;
        self.summary[slot / 64 / 64] = 0;
        self.groups = 0;
    }

    /// Unmarks the next bucket and finds the bucket that is next now.
    #[inline(always)]
    fn emptied(&mut self, pool: &Pool) {
        let (ring, slot) = (self.next.ring(), self.next.slot());
        self.tails[slot] = NOWHERE;
        let mask = &mut self.masks[slot / 64];
        *mask &= !(1 << (slot % 64));
        let here = *mask & u64::MAX << (slot % 64);
        if here != 0 {
            let next = slot & !63 | here.trailing_zeros() as usize;
            let shift = Shape::<QUANTUM>::of_ring(ring).shift();
            let key = self.next.key.wrapping_add(((next - slot) as u64) << shift);
            self.first[ring] = key;
            self.next = Spot {
                key,
                slot: next as u32,
            };
        } else if self.following(slot, self.next.key) {
            let key = self.first[ring];
            self.next = Shape::<QUANTUM>::of_ring(ring).spot(key);
        } else {
            return self.find_next(pool);
        }
        if self.order(self.next.key) > self.order(self.rest) {
            return self.find_next(pool);
        }
        self.front = pool.behind(self.tails[self.next.slot()]);
    }

    /// Unmarks a bucket other than the next.
    #[cold]
    fn emptied_elsewhere(&mut self, slot: u32) {
        let (slot, ring) = (slot as usize, slot as usize / BUCKETS);
        self.tails[slot] = NOWHERE;
        self.masks[slot / 64] &= !(1 << (slot % 64));
        let first = Shape::<QUANTUM>::of_ring(ring).spot(self.first[ring]);
        if first.slot() != slot {
            // Its mask may have become zero.
            self.summarize(slot);
            return;
        }
        self.following(slot, first.key);
        self.find_rest(self.next.ring());
    }

    /// Finds a ring's first bucket after the one at `slot`, which was the first, has become empty,
    /// and the rest of its word of `masks` is empty too. `key` is the key of `slot`. Returns
    /// whether the ring has a bucket with entries.
    #[inline(never)]
    fn following(&mut self, slot: usize, key: u64) -> bool {
        self.summarize(slot);
        let ring = slot / BUCKETS;
        if !self.is_live(ring) {
            return false;
        }
        let next = self.next_from(slot);
        let steps = (next.wrapping_sub(slot) % BUCKETS) as u64;
        let shift = Shape::<QUANTUM>::of_ring(ring).shift();
        self.first[ring] = key.wrapping_add(steps << shift);
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

    /// Finds the first bucket of all rings, and the least key of the other rings.
    #[inline(never)]
    fn find_next(&mut self, pool: &Pool) {
        let mut first = (u64::MAX, None);
        let mut second = u64::MAX;
        for (ring, order) in self.live() {
            match order <= first.0 {
                true => (second, first) = (first.0, (order, Some(ring))),
                false => second = second.min(order),
            }
        }
        let Some(ring) = first.1 else { return };
        self.rest = self.base.wrapping_add(second);
        self.next = Shape::<QUANTUM>::of_ring(ring).spot(self.first[ring]);
        self.front = pool.behind(self.tails[self.next.slot()]);
    }

    /// Finds the least key of all rings but one.
    fn find_rest(&mut self, but: usize) {
        let rest = self.live().filter(|(ring, _)| *ring != but);
        let least = rest.map(|(_, order)| order).min();
        self.rest = self.base.wrapping_add(least.unwrap_or(u64::MAX));
    }

    /// The rings with entries, with the order of each ring's first key.
    #[inline(always)]
    fn live(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut groups = self.groups;
        core::iter::from_fn(move || {
            let ring = (groups != 0).then(|| groups.trailing_zeros() as usize / GROUPS % RINGS)?;
            groups &= !(RING << (ring * GROUPS));
            Some((ring, self.order(self.first[ring])))
        })
    }

    /// The first marked bucket of a ring, from `start` on and around its end. There must be one.
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
                let ring = group / GROUPS * GROUPS;
                let groups = self.groups >> ring & RING;
                let around = groups | groups << GROUPS;
                let step = (around >> (group % GROUPS + 1)).trailing_zeros() as usize;
                let group = ring + (group + 1 + step) % GROUPS;
                group * 64 + self.summary[group].trailing_zeros() as usize
            }
            words => group * 64 + words.trailing_zeros() as usize,
        };
        found * 64 + self.masks[found % (RINGS * WORDS)].trailing_zeros() as usize
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
