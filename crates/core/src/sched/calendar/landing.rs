//! Putting entries in a few packets later, with the memory that it takes brought near meanwhile.
//!
//! Where an entry is to be put cannot be known before its flow is served, and then the bucket and
//! its last chunk are two waits for memory, one after the other. So with very many flows an entry is
//! kept back while [`IN_FLIGHT`] others come: first its bucket is asked for, then the bucket's last
//! chunk, then it lands.
//!
//! With fewer flows, from [`FEW`] on, an entry is kept back until the next one comes. Whether its
//! bucket has a chunk with room is a branch that nobody can predict. If it hung on the arithmetic of
//! the same packet, a wrong guess would cost all of that again; a packet later it is known at once.
//!
//! Nobody can tell: an entry lands before its time comes ([`Calendar::is_landing_due`]), and
//! [`Calendar::soonest`] counts those in flight.

use super::{Calendar, Entry, Place, Pool, Spot};
use crate::prefetch;

/// Entries that are not put in yet, the oldest at `next`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    /// Not after any of their keys; the end of time if there are none.
    least: u64,
    /// How many there are.
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
    /// Puts an entry at a place that is not due yet, now or a few entries later. Says which entry
    /// has landed instead, if any, and where it stands.
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
        prefetch::soon(&self.tails[spot.slot()]);
        let half = self.landing.spots[(at + IN_FLIGHT / 2) % IN_FLIGHT];
        pool.prefetch(self.tails[half.slot()]);
        self.landing.spots[at] = spot;
        self.landing.entries[at] = entry;
        self.landing.least = self.landing.least.min(spot.key);
        self.landing.next = self.landing.next.wrapping_add(1);
        landed
    }

    /// The same, a single entry later. At most one is in flight.
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

    /// Whether what is in flight has to land, because its time has come.
    #[inline(always)]
    pub(in crate::sched) fn is_landing_due(&self, now: u64) -> bool {
        now >= self.landing.least
    }

    /// Lets everything land; `landed` is told where.
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

    /// What has not landed.
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

/// How many entries are in flight: the bucket comes near while the first half of them is put in,
/// its last chunk during the other half.
const IN_FLIGHT: usize = 4;

/// Up to so many entries each is put in at once. Tests have fewer.
const FEW: u32 = if cfg!(test) { 6 } else { 64 };
