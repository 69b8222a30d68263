//! I/O records: their format in shared memory, and their validated form.
//!
//! In shared memory a record is a run of entries of 16 bytes (in `layout`): a `Head` with the
//! count, then that many `RawPair`s of base and length. The format is the iorec of paper VERT,
//! section 2.2, whose header is "padded to make it the same size as a pair"; here a note and a time
//! fill the padding. A [`Record`] is a validated copy in private memory. A `Validator` validates
//! the head and each pair of a record, and fails with the [`Rule`] that the record breaks.

use crate::layout::{ALIGN, Head, RawPair, Shape};
use crate::violation::Rule;

pub use crate::layout::MAX_PAIRS;

/// A part of one chunk: base and length. In a validated record it lies inside the flow's data area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Offset of the part from the start of the flow's data area, in bytes.
    pub base: u32,
    /// Length of the part in bytes; 0 if the driver did not need the chunk for a received packet.
    pub length: u32,
}

/// A validated record in private memory. The default has no pairs.
///
/// A value has 80 bytes, most of them unused. The functions of the driver's side therefore fill and
/// read it in place: a move of a value that was just written waits for those writes.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct Record {
    pub(crate) stamp: u64,
    pub(crate) note: u32,
    pub(crate) count: u32,
    pub(crate) pairs: [Pair; MAX_PAIRS],
}

impl Record {
    /// A record without pairs.
    pub const NONE: Record = Record {
        stamp: 0,
        note: 0,
        count: 0,
        pairs: [Pair { base: 0, length: 0 }; MAX_PAIRS],
    };
}

impl PartialEq for Record {
    fn eq(&self, other: &Record) -> bool {
        let all = |record: &Record| (record.stamp, record.note);
        all(self) == all(other) && self.pairs() == other.pairs()
    }
}

impl Eq for Record {}

impl Record {
    /// The pairs of the record, in order.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs[..self.count as usize]
    }

    /// Becomes a copy of `other`. Copies only the pairs that `other` has.
    #[inline]
    pub fn copy_from(&mut self, other: &Record) {
        (self.stamp, self.note, self.count) = (other.stamp, other.note, other.count);
        let pairs = other.pairs();
        self.pairs[..pairs.len()].copy_from_slice(pairs);
    }

    /// The sum of the lengths of the pairs, in bytes.
    pub fn bytes(&self) -> usize {
        self.pairs().iter().map(|pair| pair.length as usize).sum()
    }

    /// True if a record from the program begins a message of a real-time channel. False if the
    /// program marked the record as a continuation of the message before.
    pub fn begins_message(&self) -> bool {
        self.note & CONTINUES_MESSAGE == 0
    }

    /// The time at which the message arrived that a record from the program begins, in ns of
    /// `CLOCK_MONOTONIC`, as the program states it: any number. `None` if it states none.
    pub fn arrival(&self) -> Option<u64> {
        (self.note & STATES_ARRIVAL != 0).then_some(self.stamp)
    }

    /// True if each pair of a record from the program is a segment, and the first has the headers
    /// of all.
    #[inline]
    pub fn has_segments(&self) -> bool {
        self.note & SEGMENTS != 0
    }

    /// The status of a record from the driver.
    pub fn status(&self) -> Status {
        Status(self.note)
    }

    /// The time at which the driver sent or received the packet, in ns of `CLOCK_MONOTONIC`; 0 if
    /// it did neither. Only records from the driver have it.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The number of entries of the record in a ring: the head and the pairs.
    pub(crate) fn entries(&self) -> u32 {
        1 + self.count
    }
}

/// The result for a record, as a number in shared memory. A number without a name here means that
/// the record was not sent or contains nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Sent, or contains a whole packet.
    pub const DONE: Status = Status(0);
    /// Not sent: the flow is not permitted to send such a packet.
    pub const FORBIDDEN: Status = Status(1);
    /// Not sent: the packet is longer than the link carries or than the flow's contract permits.
    pub const TOO_LONG: Status = Status(2);
    /// Not sent: the link is down, or the flow's next hop does not answer.
    pub const NO_LINK: Status = Status(3);
    /// Returned empty: the received packet was longer than the record.
    pub const UNUSED: Status = Status(5);
}

/// How a record that the program sends belongs to the messages of a real-time channel. Other flows
/// do not distinguish messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePart {
    /// The record begins a message, which arrives when the driver finds it.
    Begins,
    /// The record begins a message that arrived at this time, in ns of `CLOCK_MONOTONIC`. Only for
    /// drivers that accept it: [`Attachment::accepts_arrivals`].
    ///
    /// [`Attachment::accepts_arrivals`]: crate::program::Attachment::accepts_arrivals
    Arrived(u64),
    /// The record continues the message before it.
    Continues,
}

impl MessagePart {
    pub(crate) fn of(continues: bool) -> MessagePart {
        match continues {
            true => MessagePart::Continues,
            false => MessagePart::Begins,
        }
    }

    /// The same part for a driver that does not accept arrivals.
    pub fn without_arrival(self) -> MessagePart {
        match self {
            MessagePart::Arrived(_) => MessagePart::Begins,
            part => part,
        }
    }

    pub(crate) fn note_and_stamp(self) -> (u32, u64) {
        match self {
            MessagePart::Begins => (0, 0),
            MessagePart::Arrived(at) => (STATES_ARRIVAL, at),
            MessagePart::Continues => (CONTINUES_MESSAGE, 0),
        }
    }
}

/// Validates records from shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validator {
    area: u64,
    chunk_shift: u32,
    writer: Writer,
}

/// The side that wrote the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    Program,
    Driver,
}

impl Validator {
    /// Validates records of a flow of this shape, which `writer` has written.
    pub(crate) fn new(shape: &Shape, writer: Writer) -> Validator {
        Validator {
            area: shape.area_bytes(),
            chunk_shift: shape.chunk_bytes.trailing_zeros(),
            writer,
        }
    }

    /// Validates a head. Does not read the pairs. Fails with the rule that it breaks.
    #[inline]
    pub(crate) fn head(&self, head: &Head) -> Result<(), Rule> {
        if head.count == 0 || head.count as usize > MAX_PAIRS {
            return Err(Rule::Count { count: head.count });
        }
        if self.writer == Writer::Program {
            // A record that continues a message has no arrival of its own, and segments are no
            // messages.
            if head.note > STATES_ARRIVAL && head.note != SEGMENTS {
                return Err(reserved("note", head.note.into()));
            }
            if head.stamp != 0 && head.note != STATES_ARRIVAL {
                return Err(reserved("stamp", head.stamp));
            }
        }
        Ok(())
    }

    /// Validates a pair. Fails with the rule that it breaks.
    #[inline]
    pub(crate) fn pair(&self, raw: &RawPair) -> Result<Pair, Rule> {
        let RawPair { base, length, .. } = *raw;
        if raw.reserved != 0 {
            return Err(reserved("reserved", raw.reserved.into()));
        }
        if base % ALIGN != 0 {
            return Err(Rule::Alignment { base });
        }
        if length == 0 && self.writer == Writer::Program {
            return Err(Rule::Empty { base });
        }
        // A pair of length 0 (from the driver) must have a base inside the area too, because it
        // names a chunk.
        let end = base.checked_add(u64::from(length.max(1)));
        let area = self.area;
        let Some(end) = end.filter(|end| *end <= area) else {
            return Err(Rule::OutsideArea { base, length, area });
        };
        if base >> self.chunk_shift != (end - 1) >> self.chunk_shift {
            let chunk = 1 << self.chunk_shift;
            return Err(Rule::Crossing {
                base,
                length,
                chunk,
            });
        }
        // The area has at most 2^32 bytes, and the base is below its end, so the base fits in a
        // `u32`.
        Ok(Pair {
            base: base as u32,
            length,
        })
    }

    /// The number of the chunk that contains a validated pair.
    #[inline]
    pub(crate) fn chunk(&self, pair: &Pair) -> u32 {
        pair.base >> self.chunk_shift
    }
}

fn reserved(field: &'static str, seen: u64) -> Rule {
    Rule::Reserved { field, seen }
}

/// A bit of a note to the driver: the stamp is the arrival time of the message that the record
/// begins. Not together with [`CONTINUES_MESSAGE`].
pub(crate) const STATES_ARRIVAL: u32 = 2;
/// A bit of a note to the driver: each pair is a segment of TCP, and the first has the headers of
/// all. Not together with another bit.
pub(crate) const SEGMENTS: u32 = 4;
/// A bit of a note to the driver: the record continues a message.
pub(crate) const CONTINUES_MESSAGE: u32 = 1;

#[cfg(all(test, not(loom)))]
mod tests;
