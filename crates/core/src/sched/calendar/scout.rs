//! Looking ahead: which entries come next, told some time before they are taken, so that their
//! flows can be prefetched.
//!
//! A scout walks through the calendar's buckets in their order, [`AHEAD`] entries and more in
//! front of what is taken, one chunk at a time. All that it knows is a hint: it may be wrong, and
//! then a flow is fetched late or for nothing.
//!
//! Of what is put in behind its back, between what is taken and where it stands, whoever puts it
//! in is told at once ([`Calendar::push_ahead`]). Since it cannot know what is removed, it begins
//! afresh now and then, and when it seems to be too far ahead.

use super::place::{BUCKETS, RINGS};
use super::{Calendar, Entry, GROUPS, Home, NOWHERE, Pool, RING, Shape, Spot};

/// How far entries are known before they are taken. All of it is a hint: what comes in between is
/// missed, and now and then it begins afresh.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scout {
    /// About so many entries were told of and are still to be taken.
    lead: u32,
    /// How many buckets more are told of before it begins afresh.
    turns: u32,
    /// The chunk to go on with in the bucket at `slot`, or none.
    chunk: u32,
    slot: u32,
    /// The key of the last bucket that was told of.
    reached: u64,
    /// Of each ring, the key of the bucket to go on with.
    from: [u64; RINGS],
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// Takes the next entry. Where there are many, `ahead` is called with each entry and its key
    /// some time before it is taken, but for those that [`Calendar::push_ahead`] has told of.
    #[inline(always)]
    pub(in crate::sched) fn take_ahead(
        &mut self,
        pool: &mut Pool,
        ahead: impl Fn(Entry, u64),
    ) -> Option<Entry> {
        if self.is_deep() {
            self.scout.lead = self.scout.lead.saturating_sub(1);
            if self.scout.lead.wrapping_sub(AHEAD) > TOO_FAR {
                self.look_ahead(pool, ahead);
            }
        }
        self.take(pool)
    }

    /// Whether what is put in at a key now comes before what was told of already (or would be
    /// if there were enough).
    #[inline(always)]
    pub(in crate::sched) fn is_soon(&self, key: u64) -> bool {
        !self.is_deep() || self.order(key) <= self.order(self.scout.reached)
    }

    /// Puts an entry at a place. Says whether it comes before what was told of already: then it
    /// will not be told of any more.
    #[inline(always)]
    pub(in crate::sched) fn push_ahead(
        &mut self,
        pool: &mut Pool,
        spot: Spot,
        entry: Entry,
    ) -> bool {
        let soon = self.is_soon(spot.key);
        self.scout.lead = self.scout.lead.wrapping_add(u32::from(soon));
        self.push(pool, spot, entry);
        soon
    }

    /// Whether there are so many entries that it is worth looking ahead.
    #[inline(always)]
    fn is_deep(&self) -> bool {
        self.len > DEEP
    }

    /// Tells of one chunk more.
    #[inline(never)]
    fn look_ahead(&mut self, pool: &Pool, ahead: impl Fn(Entry, u64)) {
        if self.scout.turns == 0 || self.scout.lead > TOO_FAR {
            self.scout = Scout {
                turns: AFRESH,
                reached: self.next.key,
                from: self.first,
                ..Scout::default()
            };
        }
        let (chunk, slot) = (self.scout.chunk, self.scout.slot);
        if chunk != NOWHERE && pool.belongs(chunk, Home::new(self.name, slot)) {
            let key = self.scout.reached;
            self.scout.lead += pool.announce(chunk, |raw| ahead(Entry(raw), key));
            self.scout.chunk = match chunk == self.tails[slot as usize] {
                true => NOWHERE,
                false => pool.behind(chunk),
            };
            return;
        }
        let mut least: Option<(usize, u64)> = None;
        let mut groups = self.groups;
        while groups != 0 {
            let ring = groups.trailing_zeros() as usize / GROUPS % RINGS;
            let shift = Shape::<QUANTUM>::of_ring(ring).shift();
            let first = self.order(self.first[ring]);
            let behind = self.scout.from[ring].wrapping_sub(self.first[ring]) as i64;
            let behind = behind.max(0) as u64;
            let order = first.wrapping_add(behind);
            let inside = behind < (BUCKETS as u64) << shift;
            if inside && least.is_none_or(|(_, least)| order < least) {
                least = Some((ring, order));
            }
            groups &= !(RING << (ring * GROUPS));
        }
        let Some((ring, order)) = least else {
            self.scout.turns = 0;
            return;
        };
        self.scout.turns -= 1;
        let shape = Shape::<QUANTUM>::of_ring(ring);
        let spot = shape.spot(order.wrapping_add(self.base));
        let slot = spot.slot();
        let tail = self.tails[slot];
        if tail != NOWHERE {
            let first = pool.behind(tail);
            self.scout.lead += pool.announce(first, |raw| ahead(Entry(raw), spot.key));
            (self.scout.reached, self.scout.slot) = (spot.key, spot.slot);
            self.scout.chunk = match first == tail {
                true => NOWHERE,
                false => pool.behind(first),
            };
        }
        let next = self.next_from((slot & !(BUCKETS - 1)) | ((slot + 1) % BUCKETS));
        let steps = (next.wrapping_sub(slot).wrapping_sub(1) % BUCKETS + 1) as u64;
        self.scout.from[ring] = spot.key.wrapping_add(steps << shape.shift());
    }
}

/// How many entries are known before they are taken, if there are so many.
const AHEAD: u32 = 16;

/// From so many entries on it is worth it: the flows of fewer are near anyway.
const DEEP: u32 = 2048;

/// If it seems to be so many, what is known is not what comes next.
const TOO_FAR: u32 = 128;

/// After how many buckets looking ahead begins afresh.
const AFRESH: u32 = 64;
