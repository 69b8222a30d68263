//! Moving whole chunks of entries from calendar to calendar.
//!
//! If thousands of flows of one contract fall due at the same instant, their entries fill chunks,
//! with the same word in each entry. Such a chunk moves to its new bucket as a whole, in about the
//! time that one entry takes.

use super::{Calendar, Entry, Home, NOWHERE, Pool, Spot};

/// A chunk that is in no bucket.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(in crate::sched) struct Whole {
    chunk: u32,
    len: u32,
    word: u32,
}

impl Whole {
    /// Number of entries.
    #[inline(always)]
    pub(in crate::sched) fn len(self) -> u32 {
        self.len
    }

    /// The word of all entries.
    #[inline(always)]
    pub(in crate::sched) fn word(self) -> u32 {
        self.word
    }
}

impl<const QUANTUM: u32> Calendar<QUANTUM> {
    /// Takes the next chunk as a whole. `None` if an entry of it has been taken, if its entries
    /// have different words, if the word is not below `below`, or if it has too few entries.
    #[inline(always)]
    pub(in crate::sched) fn take_whole(&mut self, pool: &mut Pool, below: u32) -> Option<Whole> {
        let (first, len) = pool.untouched(self.front)?;
        let first = Entry(first);
        if self.is_empty() || len < WORTH || first.word() >= below {
            return None;
        }
        if pool.differences(self.front) >> Entry::WORD_AT != 0 {
            return None;
        }
        let whole = Whole {
            chunk: self.front,
            len,
            word: first.word(),
        };
        self.len -= len;
        self.taken_ahead(len);
        match pool.detach_first(self.front, self.tails[self.next.slot()]) {
            Some(next) => self.front = next,
            None if self.len == 0 => self.emptied_at_all(),
            None => self.emptied(pool),
        }
        self.bring_following(pool);
        Some(whole)
    }

    /// Prefetches the next chunk, and the last chunk of the bucket behind if that is in the same
    /// word of `masks`. That chunk is read as soon as this one is used up.
    #[inline(always)]
    fn bring_following(&self, pool: &Pool) {
        pool.prefetch(self.front);
        let slot = self.next.slot();
        let behind = self.masks[slot / 64] & (u64::MAX << (slot % 64) << 1);
        if behind != 0 {
            pool.prefetch(self.tails[slot & !63 | behind.trailing_zeros() as usize & 63]);
        }
    }

    /// Inserts a chunk into a bucket, as [`Calendar::push_ahead`] does with an entry.
    #[inline(always)]
    pub(in crate::sched) fn push_whole(
        &mut self,
        pool: &mut Pool,
        spot: Spot,
        whole: Whole,
        tell: impl Fn(Entry),
    ) -> bool {
        let soon = self.told_ahead(spot.key, whole.len);
        if soon {
            pool.announce(whole.chunk, |raw| tell(Entry(raw)));
        }
        let tail = core::mem::replace(&mut self.tails[spot.slot()], whole.chunk);
        self.len += whole.len;
        pool.attach(tail, whole.chunk, Home::new(self.name, spot.slot));
        if tail == NOWHERE {
            self.opened(spot, whole.chunk);
        }
        soon
    }
}

/// The smallest number of entries for which a chunk is moved as a whole.
const WORTH: u32 = 4;
