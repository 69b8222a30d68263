//! Reading ahead: the scout reads entries some time before they are taken, so that their flows can
//! be prefetched.
//!
//! A scout walks through the calendar's buckets in order, one chunk at a time, at least [`AHEAD`]
//! entries before the entry that is taken. On its way it reads distant memory too: the bucket, the
//! bucket's last chunk, the first one. It prefetches each of these and continues with another
//! bucket meanwhile, so three are under way. Its results are hints. A wrong one causes a late or a
//! useless prefetch.
//!
//! [`Calendar::push_ahead`] returns whether it inserted an entry before the scout's position. Its
//! caller then prefetches the flow itself. The scout does not register removals. So it starts again
//! after a number of buckets, and when its lead seems too long.

use super::place::{BUCKETS, RINGS};
use super::{Calendar, Entry, GROUPS, Home, NOWHERE, Pool, RING, Run, Shape, Spot};
use crate::prefetch;

/// State of the scout. All of it is a hint: it misses entries that are inserted behind it, and it
/// starts again after a number of buckets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scout {
    /// Estimated number of entries that were announced and not taken.
    lead: u32,
    /// Number of buckets before the scout starts again.
    turns: u32,
    /// The chunk to continue with in the bucket `here`, or none.
    chunk: u32,
    here: Spot,
    /// A bucket whose last chunk is being prefetched, and a bucket that is being prefetched itself.
    coming: Option<Spot>,
    chosen: Option<Spot>,
    /// The key of the last bucket that was chosen.
    reached: u64,
    /// For each ring, the key of the bucket to continue with.
    from: [u64; RINGS],
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// Takes the next entry. If the calendar has many entries, `ahead` is called with each entry
    /// and its key some time before it is taken, except entries that [`Calendar::push_ahead`]
    /// reported.
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

    /// As [`Calendar::take_ahead`] for all entries of the next chunk. There must be one.
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

    /// Whether an entry at a key comes before the scout's position (or would, with enough entries).
    #[inline(always)]
    pub(in crate::sched) fn is_soon(&self, key: u64) -> bool {
        !self.is_deep() || self.order(key) <= self.order(self.scout.reached)
    }

    /// Inserts an entry into a bucket. Returns whether it comes before the scout's position: then
    /// `ahead` will not be called for it.
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

    /// Accounts for a number of entries that are taken at once.
    #[inline(always)]
    pub(super) fn taken_ahead(&mut self, entries: u32) {
        self.scout.lead = self.scout.lead.saturating_sub(entries);
    }

    /// Whether a number of entries at a key come before the scout's position. If so, they count as
    /// announced.
    #[inline(always)]
    pub(super) fn told_ahead(&mut self, key: u64, entries: u32) -> bool {
        let soon = self.is_soon(key);
        let told = if soon { entries } else { 0 };
        self.scout.lead = self.scout.lead.wrapping_add(told);
        soon
    }

    /// Whether there are so many entries that reading ahead is worthwhile.
    #[inline(always)]
    pub(super) fn is_deep(&self) -> bool {
        self.len > DEEP
    }

    /// Whether there are so many entries that the next ones are distant memory too.
    #[inline(always)]
    pub(in crate::sched) fn is_vast(&self) -> bool {
        self.len > VAST
    }

    /// Announces one more chunk.
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

    /// Chooses the bucket after the buckets that were chosen before.
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
        prefetch::first_line(&self.tails[spot.slot()]);
        (self.scout.reached, self.scout.chosen) = (spot.key, Some(spot));
        let slot = spot.slot();
        let next = self.next_from((slot & !(BUCKETS - 1)) | ((slot + 1) % BUCKETS));
        let steps = (next.wrapping_sub(slot).wrapping_sub(1) % BUCKETS + 1) as u64;
        self.scout.from[ring] = spot.key.wrapping_add(steps << shape.shift());
    }
}

/// The number of entries that are announced before they are taken, if there are so many.
const AHEAD: u32 = 16;

/// The smallest number of entries for reading ahead. The flows of fewer entries are in the cache
/// anyway. Tests use a smaller number.
pub(super) const DEEP: u32 = if cfg!(test) { 8 } else { 2048 };

/// From this number of entries on, the calendar itself is not in the cache. Tests use a smaller
/// number.
const VAST: u32 = if cfg!(test) { 12 } else { 1 << 17 };

/// With a longer lead, the announced entries are not the next ones.
const TOO_FAR: u32 = 128;

/// Number of buckets after which the scout starts again.
const AFRESH: u32 = 64;
