//! Looking ahead: which entries come next, told some time before they are taken, so that their
//! flows can be prefetched.
//!
//! A scout walks through the calendar's buckets in their order, [`AHEAD`] entries and more in
//! front of what is taken, one chunk at a time. Its own way leads through memory that is far away:
//! the bucket, the bucket's last chunk, the first one. It asks for each of them and goes on with
//! another bucket meanwhile, so three are on their way. All that it knows is a hint: it may be
//! wrong, and then a flow is fetched late or for nothing.
//!
//! Of what is put in behind its back, between what is taken and where it stands, whoever puts it
//! in is told at once ([`Calendar::push_ahead`]). Since it cannot know what is removed, it begins
//! afresh now and then, and when it seems to be too far ahead.

use super::place::{BUCKETS, RINGS};
use super::{Calendar, Entry, GROUPS, Home, NOWHERE, Pool, RING, Run, Shape, Spot};
use crate::prefetch;

/// How far entries are known before they are taken. All of it is a hint: what comes in between is
/// missed, and now and then it begins afresh.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scout {
    /// About so many entries were told of and are still to be taken.
    lead: u32,
    /// How many buckets more are told of before it begins afresh.
    turns: u32,
    /// The chunk to go on with in the bucket `here`, or none.
    chunk: u32,
    here: Spot,
    /// A bucket whose last chunk was asked for, and one that was asked for itself.
    coming: Option<Spot>,
    chosen: Option<Spot>,
    /// The key of the last bucket that was chosen.
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

    /// The same with all that stands in the next chunk. There is one.
    #[inline(always)]
    pub(in crate::sched) fn take_run_ahead(
        &mut self,
        pool: &mut Pool,
        ahead: impl Fn(Entry, u64),
    ) -> Run {
        let run = self.take_run(pool);
        if self.is_deep() {
            self.taken_ahead(run.len());
            if self.scout.lead.wrapping_sub(AHEAD) > TOO_FAR {
                self.look_ahead(pool, ahead);
            }
        }
        run
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
        let soon = self.told_ahead(spot.key, 1);
        self.push(pool, spot, entry);
        soon
    }

    /// So many entries are taken at once.
    #[inline(always)]
    pub(super) fn taken_ahead(&mut self, entries: u32) {
        self.scout.lead = self.scout.lead.saturating_sub(entries);
    }

    /// Whether so many entries at a key come before what was told of already; they are now.
    #[inline(always)]
    pub(super) fn told_ahead(&mut self, key: u64, entries: u32) -> bool {
        let soon = self.is_soon(key);
        let told = if soon { entries } else { 0 };
        self.scout.lead = self.scout.lead.wrapping_add(told);
        soon
    }

    /// Whether there are so many entries that it is worth looking ahead.
    #[inline(always)]
    pub(super) fn is_deep(&self) -> bool {
        self.len > DEEP
    }

    /// Whether there are so many entries that even what is taken next is far away.
    #[inline(always)]
    pub(in crate::sched) fn is_vast(&self) -> bool {
        self.len > VAST
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
        let (chunk, here) = (self.scout.chunk, self.scout.here);
        if chunk != NOWHERE {
            self.scout.chunk = NOWHERE;
            if pool.belongs(chunk, Home::new(self.name, here.slot)) {
                self.scout.lead += pool.announce(chunk, |raw| ahead(Entry(raw), here.key));
                if chunk != self.tails[here.slot()] {
                    self.scout.chunk = pool.behind(chunk);
                    return;
                }
            }
        }
        if let Some(spot) = self.scout.coming.take() {
            let tail = self.tails[spot.slot()];
            if tail != NOWHERE {
                (self.scout.chunk, self.scout.here) = (pool.behind(tail), spot);
                pool.prefetch(self.scout.chunk);
            }
        }
        if let Some(spot) = self.scout.chosen {
            pool.prefetch(self.tails[spot.slot()]);
        }
        self.scout.coming = self.scout.chosen.take();
        self.choose();
    }

    /// Which bucket comes behind those that were chosen before.
    #[inline(always)]
    fn choose(&mut self) {
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
            if self.scout.coming.is_none() && self.scout.chunk == NOWHERE {
                self.scout.turns = 0;
            }
            return;
        };
        self.scout.turns = self.scout.turns.saturating_sub(1);
        let shape = Shape::<QUANTUM>::of_ring(ring);
        let spot = shape.spot(order.wrapping_add(self.base));
        prefetch::soon(&self.tails[spot.slot()]);
        (self.scout.reached, self.scout.chosen) = (spot.key, Some(spot));
        let slot = spot.slot();
        let next = self.next_from((slot & !(BUCKETS - 1)) | ((slot + 1) % BUCKETS));
        let steps = (next.wrapping_sub(slot).wrapping_sub(1) % BUCKETS + 1) as u64;
        self.scout.from[ring] = spot.key.wrapping_add(steps << shape.shift());
    }
}

/// How many entries are known before they are taken, if there are so many.
const AHEAD: u32 = 16;

/// From so many entries on it is worth it: the flows of fewer are near anyway. Tests have fewer.
pub(super) const DEEP: u32 = if cfg!(test) { 8 } else { 2048 };

/// From so many entries on the calendar itself is far away too. Tests have fewer.
const VAST: u32 = if cfg!(test) { 12 } else { 1 << 17 };

/// If it seems to be so many, what is known is not what comes next.
const TOO_FAR: u32 = 128;

/// After how many buckets looking ahead begins afresh.
const AFRESH: u32 = 64;
