//! The two ends of a ring: one side puts records in, the other takes them out.
//!
//! ```text
//!        consumer index          producer index
//!              │                       │
//!   ───────────▼───────────────────────▼──────────────  indices count entries and wrap at 2^32
//!     free     │  waiting              │   free          entry i lies at i modulo the ring's entries
//! ```
//! Each end has three numbers in private memory: `next`, where it is; `shown`, what it last wrote to shared memory; and
//! `seen`, what it last read of the other's index and found right. The ring's own numbers are never read back, so
//! the other side cannot change them. A number of the other side's is read once, judged against what is known, and
//! becomes `seen` or a [`Breach`].
//!
//! **Orderings.** An index is stored with release after its entries are written (or read), and loaded with acquire
//! before the entries are read (or written). Nothing else is needed: entries are relaxed atomics, and no entry is
//! used by both ends at once.
//!
//! The other's index is loaded only when what was seen of it is used up, so in a busy ring its cache line moves once
//! a batch and not once a record.

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

/// What both ends are made of.
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
    /// The consumer's index.
    seen: u32,
}

impl Producer {
    /// The producing end of a ring that stands at this index: 0, but in tests.
    pub(crate) fn new(ends: Ends, at: u32) -> Producer {
        Producer {
            ends,
            next: at,
            shown: at,
            seen: at,
        }
    }

    /// True if so many entries are free. Looks at the consumer's index only if they were not.
    #[inline]
    pub(crate) fn has_room(&mut self, entries: u32) -> Result<bool, Breach> {
        if self.free() < entries {
            self.look()?;
        }
        Ok(self.free() >= entries)
    }

    /// True if the consumer has moved since it was last looked at.
    pub(crate) fn moved(&mut self) -> Result<bool, Breach> {
        let before = self.seen;
        self.look()?;
        Ok(self.seen != before)
    }

    /// Something is pushed and shown soon.
    #[inline]
    pub(crate) fn soon(&self) {
        self.ends.slots.soon(self.next);
        self.ends.producer.soon();
    }

    /// Writes a record, which is shown by the next [`Producer::show`].
    ///
    /// # Panics
    /// If there is no room: ask [`Producer::has_room`] first.
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

    /// Shows the other side what was written. True if there was something.
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

    /// Reads how far the consumer is. Only what was shown to it can have been consumed.
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
    /// The producer's index.
    seen: u32,
}

/// What [`Consumer::pop`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped {
    Record(Record),
    Empty,
    /// There is a record, and the caller did not want it now.
    Left,
}

impl Consumer {
    /// The consuming end of a ring that stands at this index: 0, but in tests.
    pub(crate) fn new(ends: Ends, judge: Judge, at: u32) -> Consumer {
        Consumer {
            ends,
            judge,
            next: at,
            shown: at,
            seen: at,
        }
    }

    /// True if the producer has moved since it was last looked at.
    pub(crate) fn moved(&mut self) -> Result<bool, Breach> {
        let before = self.seen;
        self.look()?;
        Ok(self.seen != before)
    }

    /// Something is popped and shown soon.
    #[inline]
    pub(crate) fn soon(&self) {
        if self.waiting() == 0 {
            self.ends.producer.soon();
        }
        self.ends.slots.soon(self.next);
        self.ends.consumer.soon();
    }

    /// Takes the next record out, if the caller wants one of so many entries. Its entries are the producer's again
    /// with the next [`Consumer::show`].
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
        // A producer shows whole records: what was seen ends where a record ends.
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

    /// Shows the other side what was taken out. True if there was something.
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

    /// A breach seen in this ring.
    pub(crate) fn breach(&self, rule: Rule) -> Breach {
        self.ends.breach(rule)
    }

    fn waiting(&self) -> u32 {
        self.seen.wrapping_sub(self.next)
    }

    /// Reads how far the producer is. It can have filled only what was shown to be free.
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
    /// The ring of a flow, where its plan says that it lies.
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

/// An advance of more than half of all numbers is a step back; only the name of the breach depends on it.
fn is_back(advance: u32) -> bool {
    advance > u32::MAX / 2
}

#[cfg(all(test, not(loom)))]
mod tests;
