//! Delayed insertion of entries, while the memory that it needs is prefetched.
//!
//! The bucket of an entry is unknown before its flow is served. Then the bucket and its last chunk
//! cost two waits for memory, one after the other. So with very many flows an entry is held back
//! while [`IN_FLIGHT`] others come: first its bucket is prefetched, then the bucket's last chunk,
//! then the entry is inserted ("lands").
//!
//! With fewer flows, from [`FEW`] on, an entry is held back until the next one comes. The branch on
//! whether its bucket has a chunk with room is unpredictable. If it depended on the arithmetic of
//! the same packet, a wrong prediction would cost all of that arithmetic again; one packet later
//! the condition is known at once.
//!
//! The delay is not observable: an entry lands before its time comes
//! ([`Calendar::is_landing_due`]), and [`Calendar::soonest`] includes the entries in flight.

use super::{Calendar, Entry, Place, Pool, Spot};
use crate::prefetch;

/// Entries that are not inserted yet. The oldest is at `next`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    /// A key that is not after any of their keys; `u64::MAX` if there are none.
    least: u64,
    /// Number of entries in flight.
    len: u32,
    next: u32,
    spots: [Spot; IN_FLIGHT],
    entries: [Entry; IN_FLIGHT],
}

impl Default for Landing {
    fn default() -> Landing {
        Landing {
            least: u64::MAX,
            len: 0,
            next: 0,
            spots: [Spot::default(); IN_FLIGHT],
            entries: [Entry(0); IN_FLIGHT],
        }
    }
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// Inserts an entry into a bucket that is not due yet, now or a few entries later. Returns the
    /// entry that was inserted by this call, if any, with its position.
    #[inline(always)]
    pub(in crate::sched) fn push_later(
        &mut self,
        pool: &mut Pool,
        spot: Spot,
        entry: Entry,
    ) -> Option<(u32, Place)> {
        if self.len <= FEW {
            return Some((entry.id(), self.push(pool, spot, entry)));
        }
        if !self.is_vast() && self.landing.len <= 1 {
            return self.push_next_time(pool, spot, entry);
        }
        let at = self.landing.next as usize % IN_FLIGHT;
        let landed = match self.landing.len as usize == IN_FLIGHT {
            true => {
                let (spot, entry) = (self.landing.spots[at], self.landing.entries[at]);
                Some((entry.id(), self.push(pool, spot, entry)))
            }
            false => {
                self.landing.len += 1;
                None
            }
        };
        prefetch::first_line(&self.tails[spot.slot()]);
        let half = self.landing.spots[(at + IN_FLIGHT / 2) % IN_FLIGHT];
        pool.prefetch(self.tails[half.slot()]);
        self.landing.spots[at] = spot;
        self.landing.entries[at] = entry;
        self.landing.least = self.landing.least.min(spot.key);
        self.landing.next = self.landing.next.wrapping_add(1);
        landed
    }

    /// As [`Calendar::push_later`], one entry later. At most one is in flight.
    #[inline(always)]
    fn push_next_time(
        &mut self,
        pool: &mut Pool,
        spot: Spot,
        entry: Entry,
    ) -> Option<(u32, Place)> {
        let landed = match self.landing.len {
            0 => None,
            _ => {
                let (spot, entry) = (self.landing.spots[0], self.landing.entries[0]);
                Some((entry.id(), self.push(pool, spot, entry)))
            }
        };
        (self.landing.len, self.landing.next) = (1, 1);
        self.landing.least = spot.key;
        (self.landing.spots[0], self.landing.entries[0]) = (spot, entry);
        landed
    }

    /// Whether the entries in flight have to land, because the time of one of them has come.
    #[inline(always)]
    pub(in crate::sched) fn is_landing_due(&self, now: u64) -> bool {
        now >= self.landing.least
    }

    /// Inserts all entries in flight. `landed` is called with each flow and position.
    #[inline(never)]
    pub(in crate::sched) fn land(&mut self, pool: &mut Pool, mut landed: impl FnMut(u32, Place)) {
        let Landing {
            len,
            next,
            spots,
            entries,
            ..
        } = core::mem::take(&mut self.landing);
        for age in (1..=len).rev() {
            let at = next.wrapping_sub(age) as usize % IN_FLIGHT;
            let place = self.push(pool, spots[at], entries[at]);
            landed(entries[at].id(), place);
        }
    }

    /// The first key of all, in flight or not.
    #[inline(always)]
    pub(in crate::sched) fn soonest(&self) -> Option<u64> {
        match self.peek() {
            Some(spot) if spot.key <= self.landing.least => Some(spot.key),
            _ => self.soonest_in_flight(),
        }
    }

    #[cold]
    fn soonest_in_flight(&self) -> Option<u64> {
        let here = self.in_flight().map(|(spot, _)| spot.key);
        here.chain(self.peek().map(|spot| spot.key)).min()
    }

    /// The entries that have not landed.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = (Spot, Entry)> {
        let Landing {
            len,
            next,
            spots,
            entries,
            ..
        } = self.landing;
        (1..=len).map(move |age| {
            let at = next.wrapping_sub(age) as usize % IN_FLIGHT;
            (spots[at], entries[at])
        })
    }
}

/// Number of entries in flight. The bucket is prefetched during the first half of them, its last
/// chunk during the other half.
const IN_FLIGHT: usize = 4;

/// Up to this number of entries, each entry is inserted at once. Tests use a smaller number.
const FEW: u32 = if cfg!(test) { 6 } else { 64 };
