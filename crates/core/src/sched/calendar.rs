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
//! and 1,500-1,750, linked lists in find-first-set buckets 135 and 730-850; this, with all that
//! a [`super::Pacer`] does beside it, 58-82 and 58-109. A heap waits for memory at every level, a
//! linked list for every flow.
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
/// `QUANTUM` is the binary logarithm of the width of the finest place.
#[derive(Debug)]
pub(super) struct Calendar<const QUANTUM: u32> {
    /// Tells the calendars of one pool apart.
    name: u8,
    /// Keys are compared by their distance from here.
    pub(super) base: u64,
    /// Entries in all.
    len: usize,
    /// The first place of all, if there are entries.
    next: Spot,
    /// One bit for each ring that is not empty.
    live: u32,
    /// Of each ring, which words of `summary` are not zero.
    groups: [u32; RINGS],
    /// The key of each ring's first bucket, if it is not empty.
    first: [u64; RINGS],
    /// Of each ring, which words of `masks` are not zero.
    summary: [[u64; GROUPS]; RINGS],
    /// One bit for each bucket that is not empty.
    masks: Box<[[u64; WORDS]; RINGS]>,
    /// The last chunk of each bucket, or none; its `next` is the first chunk.
    tails: Box<[[u32; BUCKETS]; RINGS]>,
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// An empty calendar.
    pub(super) fn new(name: u8) -> Calendar<QUANTUM> {
        Calendar {
            name,
            base: 0,
            len: 0,
            next: Spot::default(),
            live: 0,
            groups: [0; RINGS],
            first: [0; RINGS],
            summary: [[0; GROUPS]; RINGS],
            masks: zeroed(),
            tails: zeroed(),
        }
    }

    /// How many entries there are.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A place not before `key`, as near as a distance from `now` so long can have. `finest` is
    /// a binary logarithm: of how wide the place may be beyond that. Nothing if there is no such
    /// place; then one before it must do, see [`Calendar::before`].
    #[inline(always)]
    pub(super) fn not_before(&self, key: u64, now: u64, finest: u32) -> Option<Spot> {
        let bits = self.bits(key.saturating_sub(now));
        let ring = RING_OF[bits as usize % RING_OF.len()];
        let digits = (bits.saturating_sub(DIGITS + 1) + QUANTUM).min(finest.max(QUANTUM));
        let width = (1_u64 << digits) - 1;
        let rounded = key.wrapping_add(width) & !width;
        let spot = self.spot(ring, rounded);
        let fits = usize::from(ring) < RINGS && digits >= spot.shift::<QUANTUM>();
        (fits && rounded >= key && self.inside(spot, now)).then_some(spot)
    }

    /// The place of `key` or, where that is too far away or not free to have, one before it.
    /// Never before the place of `now`.
    #[inline(always)]
    pub(super) fn before(&self, key: u64, now: u64) -> Spot {
        let distance = key.wrapping_sub(now);
        let bits = self.bits(distance);
        let ring = RING_OF[bits as usize % RING_OF.len()].min(RINGS as u8 - 1);
        let shift = QUANTUM + STEP * u32::from(ring);
        // A distance is at least 2^10 of what it is rounded to, or below one bucket: so the place
        // of now is the earliest.
        let digits = (bits.saturating_sub(DIGITS + 1) + QUANTUM).clamp(shift, shift + STEP - 1);
        let far = distance.min((1 << (shift + SPAN)) - 1);
        let spot = self.spot(ring, now.wrapping_add(far) & (u64::MAX << digits));
        match self.inside(spot, now) {
            true => spot,
            false => {
                let last = ((BUCKETS - 1) as u64) << shift;
                self.spot(ring, self.first[spot.ring()].wrapping_add(last))
            }
        }
    }

    /// Puts an entry at a place that this calendar gave. Says where it stands now.
    #[inline(always)]
    pub(super) fn push(&mut self, pool: &mut Pool, spot: Spot, entry: Entry) -> Place {
        let tail = &mut self.tails[spot.ring()][spot.bucket()];
        self.len += 1;
        if *tail != NOWHERE {
            return match pool.append(*tail, entry.0) {
                Some(place) => place,
                None => {
                    let (new, place) = pool.grow(*tail, entry.0);
                    *tail = new;
                    place
                }
            };
        }
        let home = pool::Home::new(self.name, spot.ring, spot.bucket);
        let (new, place) = pool.start(home, entry.0);
        *tail = new;
        self.opened(spot);
        place
    }

    /// Where the next entry stands.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<Spot> {
        (self.len > 0).then_some(self.next)
    }

    /// Takes the next entry. `ahead` is called with the id that stands some places behind it,
    /// if it is known.
    #[inline(always)]
    pub(super) fn take(&mut self, pool: &mut Pool, ahead: impl FnOnce(u32)) -> Option<Entry> {
        let spot = self.peek()?;
        let tail = &mut self.tails[spot.ring()][spot.bucket()];
        let (entry, left) = pool.take_first(*tail, |raw| ahead(Entry(raw).id()))?;
        self.len -= 1;
        if !left {
            *tail = NOWHERE;
            self.emptied(spot.ring(), spot.bucket());
        }
        Some(Entry(entry))
    }

    /// Takes away a certain entry. Says which other one stands in its place now, if any.
    pub(super) fn remove(&mut self, pool: &mut Pool, place: Place) -> Option<Entry> {
        let home = pool.home(place);
        let (ring, bucket) = (usize::from(home.ring()), usize::from(home.bucket()));
        let tail = &mut self.tails[ring][bucket];
        let (moved, left) = pool.remove(*tail, place);
        self.len -= 1;
        if !left {
            *tail = NOWHERE;
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
                let mut mask = self.masks[ring][word];
                let summary = self.summary[ring][word / 64] & (1 << (word % 64)) != 0;
                assert_eq!(summary, mask != 0, "summary of ring {ring} word {word}");
                while mask != 0 {
                    let bucket = word * 64 + mask.trailing_zeros() as usize;
                    mask &= mask - 1;
                    let tail = self.tails[ring][bucket];
                    assert_ne!(tail, NOWHERE, "ring {ring} bucket {bucket} is marked");
                    found += pool.invariants(tail, self.name, ring as u8, bucket as u16);
                    let first = self.spot(ring as u8, self.first[ring]);
                    let distance = bucket.wrapping_sub(first.bucket()) % BUCKETS;
                    least = Some(least.map_or(distance, |l: usize| l.min(distance)));
                }
            }
            let live = self.live & (1 << ring) != 0;
            assert_eq!(least.is_some(), live, "live bit of ring {ring}");
            assert_eq!(least.unwrap_or(0), 0, "first bucket of ring {ring}");
            for (group, word) in self.summary[ring].iter().enumerate() {
                assert_eq!(self.groups[ring] & (1 << group) != 0, *word != 0, "groups");
            }
            assert!(
                !live || self.order(self.next.key) <= self.order(self.first[ring]),
                "ring {ring} is before the next"
            );
        }
        // A bucket with entries that is not marked would be missing here.
        assert_eq!(found, self.len, "entries");
        found
    }

    /// How many binary digits a distance is longer than the quantum.
    #[inline(always)]
    fn bits(&self, distance: u64) -> u32 {
        ((distance | 1).ilog2() + 1).saturating_sub(QUANTUM)
    }

    /// Whether a key that lies ahead of `now` is less than one round behind the first of its
    /// ring. Only what is overdue since half a round can make that false.
    #[inline(always)]
    fn inside(&self, spot: Spot, now: u64) -> bool {
        let overdue = self.order(now).wrapping_sub(self.order(self.next.key)) as i64;
        overdue < 1 << (QUANTUM + SPAN) || self.is_inside(spot)
    }

    #[cold]
    fn is_inside(&self, spot: Spot) -> bool {
        let first = self.order(self.first[spot.ring()]);
        let behind = self.order(spot.key).wrapping_sub(first);
        self.live & (1 << spot.ring()) == 0
            || (behind as i64) < 0
            || behind >> spot.shift::<QUANTUM>() < BUCKETS as u64
    }

    /// The place of a key in a ring.
    #[inline(always)]
    fn spot(&self, ring: u8, key: u64) -> Spot {
        let shift = QUANTUM + STEP * u32::from(ring);
        let bucket = (key >> (shift % u64::BITS)) as u16 % BUCKETS as u16;
        Spot { key, bucket, ring }
    }

    #[inline(always)]
    fn order(&self, key: u64) -> u64 {
        key.wrapping_sub(self.base)
    }

    /// Notes that a bucket is not empty any more.
    #[inline(always)]
    fn opened(&mut self, spot: Spot) {
        let (ring, bucket, word) = (spot.ring(), spot.bucket(), spot.bucket() / 64);
        self.masks[ring][word] |= 1 << (bucket % 64);
        self.summary[ring][word / 64] |= 1 << (word % 64);
        self.groups[ring] |= 1 << (word / 64);
        let empty = self.live & (1 << ring) == 0;
        if empty || self.order(spot.key) < self.order(self.first[ring]) {
            self.first[ring] = spot.key;
            if self.live == 0 || self.order(spot.key) < self.order(self.next.key) {
                self.next = spot;
            }
            self.live |= 1 << ring;
        }
    }

    /// Notes that a bucket is empty, and finds the next one.
    #[inline(always)]
    fn emptied(&mut self, ring: usize, bucket: usize) {
        // Without branches: which of the levels become empty cannot be predicted.
        let (word, group) = (bucket / 64, bucket / 64 / 64);
        self.masks[ring][word] &= !(1 << (bucket % 64));
        let gone = u64::from(self.masks[ring][word] == 0);
        self.summary[ring][group] &= !(gone << (word % 64));
        let gone = u32::from(self.summary[ring][group] == 0);
        self.groups[ring] &= !(gone << group);
        let first = self.spot(ring as u8, self.first[ring]);
        if first.bucket() != bucket {
            return;
        }
        match self.groups[ring] {
            0 => self.live &= !(1 << ring),
            _ => {
                let next = self.next_from(ring, bucket);
                let steps = (next.wrapping_sub(bucket) % BUCKETS) as u64;
                self.first[ring] = first.key.wrapping_add(steps << first.shift::<QUANTUM>());
            }
        }
        if self.next.ring() == ring {
            self.find_next();
        }
    }

    /// The first place of all rings.
    #[inline(always)]
    fn find_next(&mut self) {
        let mut rings = self.live;
        let mut least = u64::MAX;
        while rings != 0 {
            let ring = rings.trailing_zeros() as usize % RINGS;
            let key = self.first[ring];
            if self.order(key) <= least {
                least = self.order(key);
                self.next = self.spot(ring as u8, key);
            }
            rings &= rings - 1;
        }
    }

    /// The first bucket of a ring that is not empty, from `start` on and around. There is one.
    #[inline(always)]
    fn next_from(&self, ring: usize, start: usize) -> usize {
        let (word, group) = (start / 64, start / 64 / 64);
        let here = self.masks[ring][word] & (u64::MAX << (start % 64));
        // This word if something is behind `start` in it, else the words behind it; then the
        // next group, around to this one again.
        let this = 1_u64 << (word % 64);
        let behind = self.summary[ring][group] & !(this | (this - 1));
        let behind = behind | if here != 0 { this } else { 0 };
        let found = match behind {
            0 => {
                let around = self.groups[ring] | self.groups[ring] << GROUPS;
                let step = (around >> (group + 1)).trailing_zeros() as usize;
                let group = (group + 1 + step) % GROUPS;
                group * 64 + self.summary[ring][group].trailing_zeros() as usize
            }
            words => group * 64 + words.trailing_zeros() as usize,
        };
        let found = found % WORDS;
        let mask = if here != 0 {
            here
        } else {
            self.masks[ring][found]
        };
        found * 64 + mask.trailing_zeros() as usize
    }
}

/// All of it zero, without ever being on the stack.
fn zeroed<T: Copy + From<u8>, const N: usize>() -> Box<[[T; N]; RINGS]> {
    let rows = vec![[T::from(0); N]; RINGS].into_boxed_slice();
    match rows.try_into() {
        Ok(rows) => rows,
        Err(_) => unreachable!("there are RINGS rows"),
    }
}

/// A place for a key: a ring, a bucket of it, and the bucket's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spot {
    /// When the place is due.
    pub(super) key: u64,
    bucket: u16,
    ring: u8,
}

impl Spot {
    #[inline(always)]
    fn ring(self) -> usize {
        usize::from(self.ring) % RINGS
    }

    #[inline(always)]
    fn bucket(self) -> usize {
        usize::from(self.bucket) % BUCKETS
    }

    /// Binary logarithm of a bucket's width.
    #[inline(always)]
    fn shift<const QUANTUM: u32>(self) -> u32 {
        QUANTUM + STEP * u32::from(self.ring)
    }
}

/// What the ids of entries can tell apart.
pub(super) const MAX_FLOWS: u32 = 1 << 20;

const RINGS: usize = 8;
const BUCKETS: usize = 1 << 14;
const WORDS: usize = BUCKETS / 64;
const GROUPS: usize = WORDS / 64;

/// Binary logarithm of how many buckets of a ring are in use ahead of now: half of them, so that
/// what is overdue and what is far ahead do not meet.
const SPAN: u32 = 13;

/// Binary logarithm of how much coarser each ring is than the one before. With `SPAN` it leaves
/// every distance at least ten binary digits.
const STEP: u32 = 3;

/// To how many binary digits a distance is rounded.
const DIGITS: u32 = 10;

/// The ring of a distance, by how many binary digits it is longer than the quantum.
const RING_OF: [u8; 128] = {
    let mut rings = [RINGS as u8; 128];
    let mut bits = 0;
    while bits < 64 {
        rings[bits as usize] = bits_to_ring(bits);
        bits += 1;
    }
    rings
};

const fn bits_to_ring(bits: u32) -> u8 {
    bits.saturating_sub(SPAN).div_ceil(STEP) as u8
}

#[cfg(test)]
mod tests;
