//! The two ends of a ring: a [`Producer`] writes records, a [`Consumer`] reads and validates them.
//! A call fails with a [`ProtocolViolation`] if the other side's index or a record breaks a rule of
//! `docs/reference/ring.md`.
//!
//! ```text
//!        consumer index          producer index
//!              │                       │
//!   ───────────▼───────────────────────▼──────────────  indices count entries and wrap at 2^32
//!     free     │  waiting              │   free       entry i lies at i modulo the ring's entries
//! ```
//! Each end has three numbers in private memory: `next` is its own index; `published` is the value
//! of that index which it last wrote to shared memory; `seen` is the last valid value of the other
//! side's index. An end never reads its own index back from shared memory, so the other side cannot
//! change it. An end reads the other side's index once, validates it, and then stores it in `seen`
//! or returns a [`ProtocolViolation`].
//!
//! **Memory ordering.** An end stores an index with release after it wrote (or read) the entries.
//! The other end loads the index with acquire before it reads (or writes) the entries. No other
//! ordering is necessary: entries are relaxed atomics, and two ends that keep the rules do not use
//! an entry at the same time.
//!
//! [`Producer::has_room`] and [`Consumer::pop`] load the other side's index only when `seen` allows
//! no further progress. So in a busy ring the cache line of the index moves once per batch and not
//! once per record.

use crate::layout::{Head, RawPair};
use crate::record::{Pair, Record, Validator};
use crate::violation::{ProtocolViolation, Rule};
use crate::words::{Ordering, SharedRing};

/// The end of a ring that writes records.
pub(crate) struct Producer {
    shared: SharedRing,
    next: u32,
    published: u32,
    /// The last valid value of the consumer index.
    seen: u32,
}

impl Producer {
    /// The producer end of a ring whose indices are `at`: 0 except in tests.
    pub(crate) fn new(shared: SharedRing, at: u32) -> Producer {
        Producer {
            shared,
            next: at,
            published: at,
            seen: at,
        }
    }

    /// True if `entries` entries are free. Loads the consumer index only if `seen` allows too few.
    /// Fails if that index breaks a rule.
    #[inline]
    pub(crate) fn has_room(&mut self, entries: u32) -> Result<bool, ProtocolViolation> {
        if self.free() < entries {
            self.load_consumer_index()?;
        }
        Ok(self.free() >= entries)
    }

    /// Loads the consumer index. True if it has moved since the last load. Fails if the index
    /// breaks a rule.
    pub(crate) fn moved(&mut self) -> Result<bool, ProtocolViolation> {
        let before = self.seen;
        self.load_consumer_index()?;
        Ok(self.seen != before)
    }

    /// Prefetches what the next `push` and `publish` use.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.shared.prefetch_entry(self.next);
        self.shared.prefetch_producer();
    }

    /// Writes a record. The next [`Producer::publish`] publishes it.
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
        self.shared.write(self.next, head.store());
        for (index, pair) in (1..).zip(pairs) {
            let raw = RawPair {
                base: pair.base.into(),
                length: pair.length,
                reserved: 0,
            };
            self.shared
                .write(self.next.wrapping_add(index), raw.store());
        }
        self.next = self.next.wrapping_add(1 + count);
    }

    /// Publishes the records written since the last call. True if there were any.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let moved = self.published != self.next;
        if moved {
            self.shared.producer().store(self.next, Ordering::Release);
            self.published = self.next;
        }
        moved
    }

    fn free(&self) -> u32 {
        self.shared.count() - self.next.wrapping_sub(self.seen)
    }

    /// Loads the consumer index. It may only advance to `published`.
    fn load_consumer_index(&mut self) -> Result<(), ProtocolViolation> {
        let now = self.shared.consumer().load(Ordering::Acquire);
        let advance = now.wrapping_sub(self.seen);
        let waiting = self.published.wrapping_sub(self.seen);
        if advance > waiting {
            let rule = match is_back(advance) {
                true => Rule::ConsumerBack {
                    last: self.seen,
                    seen: now,
                },
                false => Rule::ConsumerPast { advance, waiting },
            };
            return Err(self.shared.violation(rule));
        }
        self.seen = now;
        Ok(())
    }
}

/// The end of a ring that reads records.
pub(crate) struct Consumer {
    shared: SharedRing,
    validator: Validator,
    next: u32,
    published: u32,
    /// The last valid value of the producer index.
    seen: u32,
}

/// The result of [`Consumer::pop`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped {
    /// The record was taken out.
    Record,
    Empty,
    /// There is a record, and `wanted` returned false for it. The record stays in the ring.
    Rejected,
}

impl Consumer {
    /// The consumer end of a ring whose indices are `at`: 0 except in tests.
    pub(crate) fn new(shared: SharedRing, validator: Validator, at: u32) -> Consumer {
        Consumer {
            shared,
            validator,
            next: at,
            published: at,
            seen: at,
        }
    }

    /// Loads the producer index. True if it has moved since the last load. Fails if the index
    /// breaks a rule.
    pub(crate) fn moved(&mut self) -> Result<bool, ProtocolViolation> {
        let before = self.seen;
        self.load_producer_index()?;
        Ok(self.seen != before)
    }

    /// Prefetches what the next `pop` and `publish` use.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if self.waiting() == 0 {
            self.shared.prefetch_producer();
        }
        self.shared.prefetch_entry(self.next);
        self.shared.prefetch_consumer();
    }

    /// Takes the next record out into `record` if `wanted` accepts its number of entries. The next
    /// [`Consumer::publish`] returns the entries to the producer. Fails if the producer index or
    /// the record breaks a rule, or if `wanted` fails. If it takes none, `record` has no pairs.
    #[inline]
    pub(crate) fn pop(
        &mut self,
        record: &mut Record,
        wanted: impl FnOnce(u32) -> Result<bool, ProtocolViolation>,
    ) -> Result<Popped, ProtocolViolation> {
        record.count = 0;
        if self.waiting() == 0 {
            self.load_producer_index()?;
            if self.waiting() == 0 {
                return Ok(Popped::Empty);
            }
        }
        let head = Head::load(self.shared.read(self.next));
        self.validator
            .head(&head)
            .map_err(|rule| self.shared.violation(rule))?;
        let entries = 1 + head.count;
        // A producer publishes whole records, so the published entries end at the end of a record.
        let published = self.waiting();
        if entries > published {
            return Err(self.shared.violation(Rule::Partial { entries, published }));
        }
        if !wanted(entries)? {
            return Ok(Popped::Rejected);
        }
        for (index, pair) in (1..entries).zip(&mut record.pairs) {
            let raw = RawPair::load(self.shared.read(self.next.wrapping_add(index)));
            *pair = self
                .validator
                .pair(&raw)
                .map_err(|rule| self.shared.violation(rule))?;
        }
        self.next = self.next.wrapping_add(entries);
        (record.stamp, record.note, record.count) = (head.stamp, head.note, head.count);
        Ok(Popped::Record)
    }

    /// Publishes that the records taken since the last call are consumed. True if there were any.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let moved = self.published != self.next;
        if moved {
            self.shared.consumer().store(self.next, Ordering::Release);
            self.published = self.next;
        }
        moved
    }

    /// The validator of the records of this ring.
    pub(crate) fn validator(&self) -> &Validator {
        &self.validator
    }

    /// A protocol violation in this ring.
    pub(crate) fn violation(&self, rule: Rule) -> ProtocolViolation {
        self.shared.violation(rule)
    }

    fn waiting(&self) -> u32 {
        self.seen.wrapping_sub(self.next)
    }

    /// Loads the producer index. It may only advance into entries that `published` released.
    fn load_producer_index(&mut self) -> Result<(), ProtocolViolation> {
        let now = self.shared.producer().load(Ordering::Acquire);
        let advance = now.wrapping_sub(self.seen);
        let room = self.shared.count() - self.seen.wrapping_sub(self.published);
        if advance > room {
            let rule = match is_back(advance) {
                true => Rule::ProducerBack {
                    last: self.seen,
                    seen: now,
                },
                false => Rule::ProducerPast { advance, room },
            };
            return Err(self.shared.violation(rule));
        }
        self.seen = now;
        Ok(())
    }
}

impl SharedRing {
    fn violation(&self, rule: Rule) -> ProtocolViolation {
        ProtocolViolation {
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
