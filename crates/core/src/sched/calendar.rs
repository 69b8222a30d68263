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
//! # Why not something else
//! Measured with shaping, all backlogged, in cycles a packet at 65,536 and 1,048,576 flows: a
//! binary heap (CELL's structure) 360-500 and 2,500, a 4-ary heap that replaces its top 200-275
//! and 1,500-1,750, linked lists in find-first-set buckets 135 and 730-850, chunks with
//! prefetch 27 and 48. A heap waits for memory at every level, a linked list for every flow.
//!
//! # Order
//! Keys may wrap around: they are compared by their distance from `base`, which the owner moves
//! (start tags wrap; times do not, and their base stays 0). Entries of one bucket come out first
//! in, first out.

mod pool;

use alloc::boxed::Box;
use alloc::vec;

pub(super) use pool::{NOWHERE, Place, Pool};

/// A flow and what is to be known of it when its time comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(u32);

impl Entry {
    /// An entry of a flow with a word of 12 bits.
    #[inline(always)]
    pub(super) fn new(id: u32, word: u32) -> Entry {
        debug_assert!(id < MAX_FLOWS && word < 1 << 12);
        Entry(id | word << 20)
    }

    /// The flow.
    #[inline(always)]
    pub(super) fn id(self) -> u32 {
        self.0 & (MAX_FLOWS - 1)
    }

    /// The word.
    #[inline(always)]
    pub(super) fn word(self) -> u32 {
        self.0 >> 20
    }
}

/// Keys in order, see the module.
#[derive(Debug)]
pub(super) struct Calendar {
    /// Tells the calendars of one pool apart.
    name: u8,
    /// Binary logarithm of the quantum.
    quantum: u32,
    /// Keys are compared by their distance from here.
    pub(super) base: u64,
    /// One bit for each ring that is not empty.
    live: u32,
    /// The key of each ring's first bucket, if it is not empty.
    first: [u64; RINGS],
    /// Of each ring, which words of `masks` are not zero.
    summary: [[u64; WORDS / 64]; RINGS],
    /// One bit for each bucket that is not empty.
    masks: Box<[u64]>,
    /// The last chunk of each bucket, or none; its `next` is the first chunk.
    tails: Box<[u32]>,
    /// Entries in all.
    len: usize,
}

impl Calendar {
    /// An empty calendar. Keys are rounded to multiples of `2^quantum` at least.
    pub(super) fn new(name: u8, quantum: u32) -> Calendar {
        Calendar {
            name,
            quantum,
            base: 0,
            live: 0,
            first: [0; RINGS],
            summary: [[0; WORDS / 64]; RINGS],
            masks: vec![0; RINGS * WORDS].into_boxed_slice(),
            tails: vec![NOWHERE; RINGS * BUCKETS].into_boxed_slice(),
            len: 0,
        }
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A place not before `key`, as near as a distance from `now` so long can have. `finest` is
    /// a binary logarithm: of how wide the place may be beyond that. Nothing if there is no such
    /// place; then one before it must do, see [`Calendar::before`].
    #[inline(always)]
    pub(super) fn not_before(&self, key: u64, now: u64, finest: u32) -> Option<Spot> {
        let distance = key.saturating_sub(now);
        let (ring, digits) = self.ring_for(distance)?;
        let shift = self.shift(ring);
        let digits = digits.min(finest).max(self.quantum);
        if digits < shift {
            return None;
        }
        let width = 1_u64 << digits;
        let key = key.checked_add(width - 1)? & !(width - 1);
        self.inside(ring, key).then_some(Spot { ring, key })
    }

    /// The place of `key` or, where that is too far away or not free to have, one before it.
    /// Never before the place of `now`.
    #[inline(always)]
    pub(super) fn before(&self, key: u64, now: u64) -> Spot {
        let distance = key.wrapping_sub(now);
        let (ring, digits) = self.ring_for(distance).unwrap_or((RINGS - 1, 0));
        let shift = self.shift(ring);
        let far = distance.min((1 << (shift + SPAN)) - 1);
        let rounded = now.wrapping_add(far) & (u64::MAX << digits.max(shift));
        let floor = now & (u64::MAX << shift);
        let key = match self.order(rounded) < self.order(floor) {
            true => floor,
            false => rounded,
        };
        match self.inside(ring, key) {
            true => Spot { ring, key },
            false => Spot {
                ring,
                key: self.first[ring].wrapping_add(((BUCKETS - 1) as u64) << shift),
            },
        }
    }

    /// Puts an entry at a place that this calendar gave. Says where it stands now.
    #[inline(always)]
    pub(super) fn push(&mut self, pool: &mut Pool, spot: Spot, entry: Entry) -> Place {
        let Spot { ring, key } = spot;
        let bucket = self.bucket(ring, key);
        let index = ring * BUCKETS + bucket;
        let tail = self.tails[index];
        self.len += 1;
        if tail != NOWHERE {
            if let Some(place) = pool.append(tail, entry.0) {
                return place;
            }
            let (new, place) = pool.grow(tail, entry.0);
            self.tails[index] = new;
            return place;
        }
        let home = pool::Home::new(self.name, ring as u8, bucket as u16);
        let (new, place) = pool.start(home, entry.0);
        self.tails[index] = new;
        let word = bucket / 64;
        self.masks[ring * WORDS + word] |= 1 << (bucket % 64);
        self.summary[ring][word / 64] |= 1 << (word % 64);
        let empty = self.live & (1 << ring) == 0;
        if empty || self.order(key) < self.order(self.first[ring]) {
            self.first[ring] = key;
            self.live |= 1 << ring;
        }
        place
    }

    /// Where the next entry stands.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<Spot> {
        if self.live == 0 {
            return None;
        }
        let mut rings = self.live;
        let mut ring = rings.trailing_zeros() as usize;
        let mut key = self.first[ring & (RINGS - 1)];
        rings &= rings - 1;
        while rings != 0 {
            let other = rings.trailing_zeros() as usize & (RINGS - 1);
            if self.order(self.first[other]) < self.order(key) {
                (ring, key) = (other, self.first[other]);
            }
            rings &= rings - 1;
        }
        Some(Spot { ring, key })
    }

    /// Takes the next entry, which stands at the place that [`Calendar::peek`] gave. `ahead` is
    /// called with the id that stands some places behind it, if it is known.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        pool: &mut Pool,
        spot: Spot,
        ahead: impl FnOnce(u32),
    ) -> Option<Entry> {
        let bucket = self.bucket(spot.ring, spot.key);
        let index = spot.ring * BUCKETS + bucket;
        let (entry, left) = pool.take_first(self.tails[index], |raw| ahead(Entry(raw).id()))?;
        self.len -= 1;
        if !left {
            self.tails[index] = NOWHERE;
            self.emptied(spot.ring, bucket);
        }
        Some(Entry(entry))
    }

    /// Takes away a certain entry. Says which other one stands in its place now, if any.
    pub(super) fn remove(&mut self, pool: &mut Pool, place: Place) -> Option<Entry> {
        let home = pool.home(place);
        let (ring, bucket) = (usize::from(home.ring()), usize::from(home.bucket()));
        let index = ring * BUCKETS + bucket;
        let (moved, left) = pool.remove(self.tails[index], place);
        self.len -= 1;
        if !left {
            self.tails[index] = NOWHERE;
            self.emptied(ring, bucket);
        }
        moved.map(Entry)
    }

    /// Whether an entry of this flow stands at a place of this calendar.
    pub(super) fn holds(&self, pool: &Pool, place: Place, id: u32) -> bool {
        pool.get(place)
            .is_some_and(|raw| Entry(raw).id() == id && pool.home(place).name() == self.name)
    }

    /// Panics if anything is not as the module says. Linear in what the calendar holds.
    pub(super) fn invariants(&self, pool: &Pool) -> usize {
        let mut found = 0;
        for ring in 0..RINGS {
            let mut least = None;
            for word in 0..WORDS {
                let mut mask = self.masks[ring * WORDS + word];
                let summary = self.summary[ring][word / 64] & (1 << (word % 64)) != 0;
                assert_eq!(summary, mask != 0, "summary of ring {ring} word {word}");
                while mask != 0 {
                    let bucket = word * 64 + mask.trailing_zeros() as usize;
                    mask &= mask - 1;
                    let tail = self.tails[ring * BUCKETS + bucket];
                    assert_ne!(tail, NOWHERE, "ring {ring} bucket {bucket} is marked");
                    found += pool.invariants(tail, self.name, ring as u8, bucket as u16);
                    let first = self.bucket(ring, self.first[ring]);
                    let distance = bucket.wrapping_sub(first) % BUCKETS;
                    least = Some(least.map_or(distance, |l: usize| l.min(distance)));
                }
            }
            let live = self.live & (1 << ring) != 0;
            assert_eq!(least.is_some(), live, "live bit of ring {ring}");
            assert_eq!(least.unwrap_or(0), 0, "first bucket of ring {ring}");
        }
        // A bucket with entries that is not marked would be missing here.
        assert_eq!(found, self.len, "entries");
        found
    }

    /// The finest ring that reaches so far, and to how many binary digits a key is rounded.
    #[inline(always)]
    fn ring_for(&self, distance: u64) -> Option<(usize, u32)> {
        let bits = u64::BITS - distance.leading_zeros();
        let ring = bits.saturating_sub(self.quantum + SPAN).div_ceil(STEP) as usize;
        (ring < RINGS).then(|| (ring, bits.saturating_sub(DIGITS + 1).max(self.quantum)))
    }

    /// Whether a key lies less than one round behind the first of its ring.
    #[inline(always)]
    fn inside(&self, ring: usize, key: u64) -> bool {
        let shift = self.shift(ring);
        self.live & (1 << ring) == 0
            || self.order(key) < self.order(self.first[ring])
            || key.wrapping_sub(self.first[ring]) >> shift < BUCKETS as u64
    }

    /// Binary logarithm of a bucket's width.
    #[inline(always)]
    fn shift(&self, ring: usize) -> u32 {
        self.quantum + STEP * ring as u32
    }

    #[inline(always)]
    fn bucket(&self, ring: usize, key: u64) -> usize {
        (key >> self.shift(ring)) as usize & (BUCKETS - 1)
    }

    #[inline(always)]
    fn order(&self, key: u64) -> u64 {
        key.wrapping_sub(self.base)
    }

    /// Notes that a bucket is empty, and finds the ring's next one.
    #[inline(always)]
    fn emptied(&mut self, ring: usize, bucket: usize) {
        let word = bucket / 64;
        let mask = &mut self.masks[ring * WORDS + word];
        *mask &= !(1 << (bucket % 64));
        if *mask == 0 {
            self.summary[ring][word / 64] &= !(1 << (word % 64));
        }
        let first = self.bucket(ring, self.first[ring]);
        if first != bucket {
            return;
        }
        match self.next_from(ring, bucket) {
            None => self.live &= !(1 << ring),
            Some(next) => {
                let steps = (next.wrapping_sub(bucket) % BUCKETS) as u64;
                let shift = self.shift(ring);
                self.first[ring] = self.first[ring].wrapping_add(steps << shift);
            }
        }
    }

    /// The first bucket of a ring that is not empty, from `start` on and around.
    #[inline(always)]
    fn next_from(&self, ring: usize, start: usize) -> Option<usize> {
        let word = start / 64;
        let here = self.masks[ring * WORDS + word] & (u64::MAX << (start % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let summary = &self.summary[ring];
        // Words behind this one in its group, the groups behind, and around to where it began.
        let group = word / 64;
        let behind = summary[group] & !(u64::MAX >> (63 - word % 64));
        let mut found = (behind != 0).then(|| group * 64 + behind.trailing_zeros() as usize);
        for step in 1..=summary.len() {
            if found.is_some() {
                break;
            }
            let other = (group + step) % summary.len();
            let words = summary[other];
            found = (words != 0).then(|| other * 64 + words.trailing_zeros() as usize);
        }
        let word = found?;
        let mask = self.masks[ring * WORDS + word];
        Some(word * 64 + mask.trailing_zeros() as usize)
    }
}

/// A place for a key: a ring, and the key of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    ring: usize,
    /// When the place is due.
    pub(super) key: u64,
}

/// What the ids of entries can tell apart.
pub(super) const MAX_FLOWS: u32 = 1 << 20;

const RINGS: usize = 8;
const BUCKETS: usize = 1 << 14;
const WORDS: usize = BUCKETS / 64;

/// Binary logarithm of how many buckets of a ring are in use ahead of now: half of them, so that
/// what is overdue and what is far ahead do not meet.
const SPAN: u32 = 13;

/// Binary logarithm of how much coarser each ring is than the one before. With `SPAN` it leaves
/// every distance at least ten binary digits.
const STEP: u32 = 3;

/// To how many binary digits a distance is rounded.
const DIGITS: u32 = 10;

#[cfg(test)]
mod tests;
