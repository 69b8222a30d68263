//! The calendar: who comes next, among up to a million, in a few dozen cycles.
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
//! A key (a time, or a start tag) has its place in the ring that is just long enough for its
//! distance from now, so a place is at most 1/1024 of that distance wide, or one quantum: **a key
//! is rounded as a floating-point number is.** Nothing moves from ring to ring as time goes by,
//! and no key is farther away than the last ring is long (2^43 ns, 2.4 h): farther ones, and
//! those for which no place is narrow enough, get an earlier place and are looked at again then.
//!
//! Inside a ring the key is rounded to ten binary digits of its distance even where the ring is
//! finer. So flows of one rate share at most 2,048 buckets, and buckets of a large population
//! are full chunks: the next ids are known as an array, which is what prefetching needs.
//!
//! Which bucket is next is found by three levels of 64-bit masks (find-first-set; Eiffel, NSDI
//! 2019) and remembered for each ring.
//!
//! # Prefetching
//! With many flows nearly all of the time would be waiting for memory. `scout` walks ahead of what
//! is taken, so that each flow is known some sixteen packets before it is needed.
//!
//! # Why not something else
//! Measured with shaping, all backlogged, in cycles a packet at 65,536 and 1,048,576 flows: a
//! binary heap (CELL's structure) 280-500 and 900-2,500, a 4-ary heap that replaces its top
//! 200-275 and 1,500-1,750, linked lists in find-first-set buckets 135 and 730-850; this, with
//! all that a [`super::Pacer`] does beside it, 46-70 and 45-105. A heap waits for memory at every
//! level, a linked list for every flow.
//!
//! # Order
//! Keys may wrap around: they are compared by their distance from `base`, which the owner moves
//! (start tags wrap; times do not, and their base stays 0). Entries of one bucket come out first
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

/// A flow and what is to be known of it when its time comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(u32);

impl Entry {
    /// An entry of a flow with a word of 12 bits.
    #[inline(always)]
    pub(super) fn new(id: u32, word: u32) -> Entry {
        debug_assert!(id < MAX_FLOWS && word < 1 << 12);
        Entry(id | word << Entry::WORD_AT)
    }

    /// The flow.
    #[inline(always)]
    pub(super) fn id(self) -> u32 {
        self.0 & (MAX_FLOWS - 1)
    }

    /// The word.
    #[inline(always)]
    pub(super) fn word(self) -> u32 {
        self.0 >> Entry::WORD_AT
    }

    /// The first bit of the word.
    const WORD_AT: u32 = 20;
}

/// Keys in order, see the module.
/// `QUANTUM` is the binary logarithm of the width of the finest place.
#[derive(Debug)]
pub(super) struct Calendar<const QUANTUM: u32> {
    /// Keys are compared by their distance from here.
    pub(super) base: u64,
    /// The first place of all, if there are entries.
    next: Spot,
    /// The first chunk of its bucket.
    front: u32,
    /// What was told of entries that are still to be taken.
    scout: Scout,
    /// Entries that are put in a little later.
    landing: Landing,
    /// One bit for each word of `summary` that is not zero: four for each ring.
    groups: u32,
    /// Entries in all.
    len: u32,
    /// Not after the least key of the rings beside that of `next`. If none of them has entries, a
    /// key as far away as can be.
    rest: u64,
    /// The key of each ring's first bucket, if it is not empty.
    first: [u64; RINGS],
    /// One bit for each word of `masks` that is not zero.
    summary: [u64; RINGS * GROUPS],
    /// One bit for each bucket that is not empty.
    masks: Box<[u64; RINGS * WORDS]>,
    /// The last chunk of each bucket, or none; behind it is the first chunk.
    tails: Box<[u32; RINGS * BUCKETS]>,
    /// Tells the calendars of one pool apart.
    name: u8,
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// An empty calendar.
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

    /// Bytes that its places take, whatever stands there.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.masks) + size_of_val(&*self.tails)
    }

    /// Whether there are no entries, but for those in flight.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A place not before `key` (which is not before `now`), as near as a distance from `now` so long can have. `finest` is
    /// a binary logarithm, at least `QUANTUM`: of how wide the place may be beyond that. Nothing
    /// if there is no such place; then one before it must do, see [`Calendar::before`].
    #[inline(always)]
    pub(super) fn not_before(&self, key: u64, now: u64, finest: u32) -> Option<Spot> {
        self.not_before_as(key.wrapping_sub(now), key, now, finest)
    }

    /// The same, as near as a distance of `long` can have, or of `key` from `now` if that is more.
    #[inline(always)]
    pub(super) fn not_before_as(&self, long: u64, key: u64, now: u64, finest: u32) -> Option<Spot> {
        let shape = Self::shape(long | key.wrapping_sub(now));
        let digits = shape.digits().min(finest);
        let narrow = u64::MAX << (digits % u64::BITS);
        let spot = shape.spot(key.wrapping_add(!narrow) & narrow);
        (digits >= shape.shift() && self.inside(spot, now)).then_some(spot)
    }

    /// The place of `key` or, where that is too far away or not free to have, one before it.
    /// Never before the place of `now`.
    #[inline(always)]
    pub(super) fn before(&self, key: u64, now: u64) -> Spot {
        // A distance is at least 2^10 of what it is rounded to, or below one bucket: so the place
        // of now is the earliest.
        let shape = Self::shape(key.wrapping_sub(now));
        let spot = shape.spot(key & u64::MAX << shape.digits());
        match shape.digits() >= shape.shift() && self.inside(spot, now) {
            true => spot,
            false => self.before_that(key, now),
        }
    }

    /// The place of `key`, or one before it, as near as its distance from the earliest key can have
    /// (from `now`, if nothing is overdue). For deadlines, which keep their order when they are
    /// over: no key is a round behind the first, so every place is free to have.
    #[inline(always)]
    pub(super) fn in_order(&self, key: u64, now: u64) -> Spot {
        // Not farther from the first key than the ring is long, so always free to have.
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

    /// Puts an entry at a place that this calendar gave. Says where it stands now.
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

    /// Where the next entry stands, of those that have landed.
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

    /// Takes all that stands in the next chunk. There is one.
    #[inline(always)]
    pub(super) fn take_run(&mut self, pool: &mut Pool) -> Run {
        let run = pool.run(self.front);
        self.len -= run.len();
        self.next_chunk(pool);
        pool.prefetch(self.front);
        run
    }

    /// Takes away a certain entry. Says which other one stands in its place now, if any.
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

    /// Whether an entry of this flow stands at a place of this calendar.
    pub(super) fn holds(&self, pool: &Pool, place: Place, id: u32) -> bool {
        pool.get(place)
            .is_some_and(|raw| Entry(raw).id() == id && pool.home(place).name() == self.name)
    }

    /// Panics if anything is not as the module says. Linear in what the calendar holds; that is
    /// how many entries there are.
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
        // A bucket with entries that is not marked would be missing here.
        assert_eq!(found, self.len as usize, "entries");
        found + self.in_flight().count()
    }

    /// The buckets of a ring that are marked; panics where `masks` and `summary` differ.
    fn marked(&self, ring: usize) -> Vec<usize> {
        let mut marked = Vec::new();
        for group in ring * GROUPS..(ring + 1) * GROUPS {
            let words = &self.masks[group * 64..(group + 1) * 64];
            if self.summary[group] == 0 {
                // Compared as a whole, since this is most of them.
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

    /// Which places a distance can have.
    #[inline(always)]
    fn shape(distance: u64) -> Shape<QUANTUM> {
        Shape::OF[(distance | 1).ilog2() as usize % 64]
    }

    /// Whether a key that lies ahead of `now` is less than one round behind the first of its
    /// ring. Only what is overdue since half a round can make that false.
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

    /// Notes that a bucket is not empty any more; it begins with the chunk `front`.
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

    /// The chunk at the front is used up.
    #[inline(always)]
    fn next_chunk(&mut self, pool: &mut Pool) {
        let tail = self.tails[self.next.slot()];
        match pool.drop_first(self.front, tail) {
            Some(next) => self.front = next,
            None if self.len == 0 => self.emptied_at_all(),
            None => self.emptied(pool),
        }
    }

    /// Notes that the only bucket is empty.
    #[inline(always)]
    fn emptied_at_all(&mut self) {
        let slot = self.next.slot();
        self.tails[slot] = NOWHERE;
        self.masks[slot / 64] = 0;
        self.summary[slot / 64 / 64] = 0;
        self.groups = 0;
    }

    /// Notes that the next bucket is empty, and finds the one that is next now.
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

    /// Notes that a bucket is empty which is not the next.
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

    /// The bucket at `slot`, the first of its ring, is empty, and so is the rest of its word of
    /// `masks` behind it: finds the ring's first bucket, if there is one. `key` is the key of `slot`.
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

    /// A bit of a word of `masks` was cleared.
    #[inline(always)]
    fn summarize(&mut self, slot: usize) {
        let (word, group) = (slot / 64, slot / 64 / 64);
        let gone = u64::from(self.masks[word] == 0);
        self.summary[group] &= !(gone << (word % 64));
        let gone = u32::from(self.summary[group] == 0);
        self.groups &= !(gone << group);
    }

    /// The first place of all rings, and the first of the rest.
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

    /// The first key of all rings but one.
    fn find_rest(&mut self, but: usize) {
        let rest = self.live().filter(|(ring, _)| *ring != but);
        let least = rest.map(|(_, order)| order).min();
        self.rest = self.base.wrapping_add(least.unwrap_or(u64::MAX));
    }

    /// The rings with entries, and where the first key of each stands in the order.
    #[inline(always)]
    fn live(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut groups = self.groups;
        core::iter::from_fn(move || {
            let ring = (groups != 0).then(|| groups.trailing_zeros() as usize / GROUPS % RINGS)?;
            groups &= !(RING << (ring * GROUPS));
            Some((ring, self.order(self.first[ring])))
        })
    }

    /// The first bucket of a ring that is not empty, from `start` on and around. There is one.
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

/// All of it zero, without ever being on the stack.
fn zeroed<T: Copy + From<u8>, const N: usize>() -> Box<[T; N]> {
    match vec![T::from(0); N].into_boxed_slice().try_into() {
        Ok(all) => all,
        Err(_) => unreachable!("there are N of them"),
    }
}

/// What the ids of entries can tell apart.
pub(super) const MAX_FLOWS: u32 = 1 << 20;

#[cfg(test)]
mod tests;
