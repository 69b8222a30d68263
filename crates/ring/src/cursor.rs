//! The two ends of a ring: a [`Producer`] writes records, a [`Consumer`] reads them. Both report a
//! [`Breach`] if the other side's index or a record breaks a rule of `docs/reference/ring.md`.
//!
//! ```text
//!        consumer index          producer index
//!              │                       │
//!   ───────────▼───────────────────────▼──────────────  indices count entries and wrap at 2^32
//!     free     │  waiting              │   free       entry i lies at i modulo the ring's entries
//! ```
//! Each end has three numbers in private memory: `next` is its own index; `shown` is the value of
//! that index which it last wrote to shared memory; `seen` is the last valid value of the other
//! side's index. An end never reads its own index back from shared memory, so the other side cannot
//! change it. An end reads the other side's index once, validates it, and then stores it in `seen`
//! or returns a [`Breach`].
//!
//! **Memory ordering.** An end stores an index with release after it wrote (or read) the entries.
//! The other end loads the index with acquire before it reads (or writes) the entries. No other
//! ordering is necessary: entries are relaxed atomics, and both ends never use an entry at the same
//! time.
//!
//! An end loads the other side's index only when `seen` allows no further progress. So in a busy
//! ring the cache line of the index moves once per batch and not once per record.

#[cfg(not(loom))]
use std::sync::Arc;

use crate::breach::{Breach, Rule};
use crate::layout::Ring;
#[cfg(not(loom))]
use crate::layout::{Place, Plan};
use crate::record::{Head, Judge, MAX_PAIRS, Pair, Record, Slot};
#[cfg(not(loom))]
use crate::region::Region;
use crate::words::{Ordering, Slots, Word};

/// The shared memory of one ring, as each end uses it.
pub(crate) struct Ends {
    pub ring: Ring,
    pub producer: Word,
    pub consumer: Word,
    pub slots: Slots,
}

/// The end that puts records in.
pub(crate) struct Producer {
    ends: Ends,
    next: u32,
    shown: u32,
    /// The last valid value of the consumer index.
    seen: u32,
}

impl Producer {
    /// The producer end of a ring whose indices are `at`: 0 except in tests.
    pub(crate) fn new(ends: Ends, at: u32) -> Producer {
        Producer {
            ends,
            next: at,
            shown: at,
            seen: at,
        }
    }

    /// True if `entries` entries are free. Loads the consumer index only if `seen` allows too few.
    #[inline]
    pub(crate) fn has_room(&mut self, entries: u32) -> Result<bool, Breach> {
        if self.free() < entries {
            self.look()?;
        }
        Ok(self.free() >= entries)
    }

    /// Loads the consumer index. True if it has moved since the last load.
    pub(crate) fn moved(&mut self) -> Result<bool, Breach> {
        let before = self.seen;
        self.look()?;
        Ok(self.seen != before)
    }

    /// Prefetches what the next `push` and `show` use.
    #[inline]
    pub(crate) fn soon(&self) {
        self.ends.slots.soon(self.next);
        self.ends.producer.soon();
    }

    /// Writes a record. The next [`Producer::show`] publishes it.
    ///
    /// # Panics
    /// If the ring has no room: call [`Producer::has_room`] first.
    #[inline]
    pub(crate) fn push(&mut self, note: u32, stamp: u64, pairs: &[Pair]) {
        let count = pairs.len() as u32;
        assert!(
            count < self.free(),
            "a record of {count} pairs in a full ring"
        );
        let head = Head { count, note, stamp };
        self.ends.slots.write(self.next, head.store());
        for (index, pair) in (1..).zip(pairs) {
            let slot = Slot {
                base: pair.base.into(),
                length: pair.length,
                reserved: 0,
            };
            self.ends
                .slots
                .write(self.next.wrapping_add(index), slot.store());
        }
        self.next = self.next.wrapping_add(1 + count);
    }

    /// Publishes the records written since the last call. True if there were any.
    #[inline]
    pub(crate) fn show(&mut self) -> bool {
        let moved = self.shown != self.next;
        if moved {
            self.ends.producer.store(self.next, Ordering::Release);
            self.shown = self.next;
        }
        moved
    }

    fn free(&self) -> u32 {
        self.ends.slots.entries() - self.next.wrapping_sub(self.seen)
    }

    /// Loads the consumer index. It may only advance to `shown`.
    fn look(&mut self) -> Result<(), Breach> {
        let now = self.ends.consumer.load(Ordering::Acquire);
        let advance = now.wrapping_sub(self.seen);
        let waiting = self.shown.wrapping_sub(self.seen);
        if advance > waiting {
            let rule = match is_back(advance) {
                true => Rule::ConsumerBack {
                    last: self.seen,
                    seen: now,
                },
                false => Rule::ConsumerPast { advance, waiting },
            };
            return Err(self.ends.breach(rule));
        }
        self.seen = now;
        Ok(())
    }
}

/// The end that takes records out.
pub(crate) struct Consumer {
    ends: Ends,
    judge: Judge,
    next: u32,
    shown: u32,
    /// The last valid value of the producer index.
    seen: u32,
}

/// The result of [`Consumer::pop`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped {
    Record(Record),
    Empty,
    /// There is a record, and the caller rejected it for now.
    Left,
}

impl Consumer {
    /// The consumer end of a ring whose indices are `at`: 0 except in tests.
    pub(crate) fn new(ends: Ends, judge: Judge, at: u32) -> Consumer {
        Consumer {
            ends,
            judge,
            next: at,
            shown: at,
            seen: at,
        }
    }

    /// Loads the producer index. True if it has moved since the last load.
    pub(crate) fn moved(&mut self) -> Result<bool, Breach> {
        let before = self.seen;
        self.look()?;
        Ok(self.seen != before)
    }

    /// Prefetches what the next `pop` and `show` use.
    #[inline]
    pub(crate) fn soon(&self) {
        if self.waiting() == 0 {
            self.ends.producer.soon();
        }
        self.ends.slots.soon(self.next);
        self.ends.consumer.soon();
    }

    /// Takes the next record out if `wanted` accepts its number of entries. The next
    /// [`Consumer::show`] returns the entries to the producer.
    #[inline]
    pub(crate) fn pop(
        &mut self,
        wanted: impl FnOnce(u32) -> Result<bool, Breach>,
    ) -> Result<Popped, Breach> {
        if self.waiting() == 0 {
            self.look()?;
            if self.waiting() == 0 {
                return Ok(Popped::Empty);
            }
        }
        let head = Head::load(self.ends.slots.read(self.next));
        self.judge
            .head(&head)
            .map_err(|rule| self.ends.breach(rule))?;
        let entries = 1 + head.count;
        // A producer publishes whole records, so the published entries end at the end of a record.
        let published = self.waiting();
        if entries > published {
            return Err(self.ends.breach(Rule::Partial { entries, published }));
        }
        if !wanted(entries)? {
            return Ok(Popped::Left);
        }
        let mut pairs = [Pair::default(); MAX_PAIRS];
        for (index, pair) in (1..entries).zip(&mut pairs) {
            let slot = Slot::load(self.ends.slots.read(self.next.wrapping_add(index)));
            *pair = self
                .judge
                .pair(&slot)
                .map_err(|rule| self.ends.breach(rule))?;
        }
        self.next = self.next.wrapping_add(entries);
        Ok(Popped::Record(Record {
            count: head.count as u8,
            note: head.note,
            stamp: head.stamp,
            pairs,
        }))
    }

    /// Publishes that the records taken since the last call are consumed. True if there were any.
    #[inline]
    pub(crate) fn show(&mut self) -> bool {
        let moved = self.shown != self.next;
        if moved {
            self.ends.consumer.store(self.next, Ordering::Release);
            self.shown = self.next;
        }
        moved
    }

    pub(crate) fn judge(&self) -> &Judge {
        &self.judge
    }

    /// A protocol violation in this ring.
    pub(crate) fn breach(&self, rule: Rule) -> Breach {
        self.ends.breach(rule)
    }

    fn waiting(&self) -> u32 {
        self.seen.wrapping_sub(self.next)
    }

    /// Loads the producer index. It may only advance into entries that `shown` released.
    fn look(&mut self) -> Result<(), Breach> {
        let now = self.ends.producer.load(Ordering::Acquire);
        let advance = now.wrapping_sub(self.seen);
        let room = self.ends.slots.entries() - self.seen.wrapping_sub(self.shown);
        if advance > room {
            let rule = match is_back(advance) {
                true => Rule::ProducerBack {
                    last: self.seen,
                    seen: now,
                },
                false => Rule::ProducerPast { advance, room },
            };
            return Err(self.ends.breach(rule));
        }
        self.seen = now;
        Ok(())
    }
}

impl Ends {
    /// The ring of a flow, at the offsets of the flow's plan.
    #[cfg(not(loom))]
    pub(crate) fn of(region: &Arc<Region>, place: &Place, plan: &Plan, ring: Ring) -> Ends {
        let word = |offset: u64| Word::new(region, place.offset + offset);
        Ends {
            ring,
            producer: word(ring.producer()),
            consumer: word(ring.consumer()),
            slots: Slots::new(
                region,
                place.offset + plan.ring(ring),
                place.shape.entries(ring),
            ),
        }
    }

    fn breach(&self, rule: Rule) -> Breach {
        Breach {
            ring: self.ring,
            rule,
        }
    }
}

/// An advance of more than half of the index range counts as a step back. Only the reported rule
/// depends on it.
fn is_back(advance: u32) -> bool {
    advance > u32::MAX / 2
}

#[cfg(all(test, not(loom)))]
mod tests;
