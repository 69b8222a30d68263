//! I/O records: what lies in a ring, and what was made of it.
//!
//! Outside, in shared memory, a record is a run of entries of 16 bytes: a [`Head`] with the count, then so many
//! [`Slot`]s of base and length. (VERT: "an iorec includes a header indicating the number of such pairs which follow
//! it; the header is padded to make it the same size as a pair". The padding carries a note and a time here.)
//! Inside is [`Record`], a private copy whose every pair was judged by [`Judge`]; there is no way from outside to
//! inside but through it.

use crate::breach::Rule;
use crate::layout::{ALIGN, Shape};

/// A record outside: its first entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// How many slots follow, 1 to [`MAX_PAIRS`].
    pub count: u32,
    /// To the driver [`GOES_ON`] or 0, to the program a [`Status`].
    pub note: u32,
    /// To the driver 0, to the program a time in ns.
    pub stamp: u64,
}

/// A record outside: one pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Bytes from the begin of the flow's data area.
    pub base: u64,
    /// Bytes of the buffer, or that it holds.
    pub length: u32,
    /// 0.
    pub reserved: u32,
}

impl Head {
    pub(crate) fn load([first, second]: [u64; 2]) -> Head {
        let (count, note) = halves(first);
        Head {
            count,
            note,
            stamp: second,
        }
    }

    pub(crate) fn store(self) -> [u64; 2] {
        [word(self.count, self.note), self.stamp]
    }
}

impl Slot {
    pub(crate) fn load([first, second]: [u64; 2]) -> Slot {
        let (length, reserved) = halves(second);
        Slot {
            base: first,
            length,
            reserved,
        }
    }

    pub(crate) fn store(self) -> [u64; 2] {
        [self.base, word(self.length, self.reserved)]
    }
}

/// The two halves of a word of memory, the one at the lower address first.
fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
    )
}

fn word(low: u32, high: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (low.to_ne_bytes(), high.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// A part of one chunk, in bytes from the begin of the flow's data area. Inside the area, where it was judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Where it begins.
    pub base: u32,
    /// How long it is.
    pub length: u32,
}

/// A record, judged, in private memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub(crate) count: u8,
    pub(crate) note: u32,
    pub(crate) stamp: u64,
    pub(crate) pairs: [Pair; MAX_PAIRS],
}

impl Record {
    /// Its parts, in order.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs[..usize::from(self.count)]
    }

    /// The sum of their lengths.
    pub fn bytes(&self) -> usize {
        self.pairs().iter().map(|pair| pair.length as usize).sum()
    }

    /// Of a record from the program: a message of a real-time channel begins with it, which is so unless the
    /// program says that it goes on with the one before.
    pub fn begins_message(&self) -> bool {
        self.note & GOES_ON == 0
    }

    /// Of a record from the driver: what became of it.
    pub fn status(&self) -> Status {
        Status(self.note)
    }

    /// Of a record from the driver: when it was sent or came, in ns of `CLOCK_MONOTONIC`; 0 if neither.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    pub(crate) fn entries(&self) -> u32 {
        1 + u32::from(self.count)
    }
}

/// What became of a record, as a number in shared memory. Numbers that are not named here mean that it was not
/// sent, or that it holds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Sent, or holds a whole packet.
    pub const DONE: Status = Status(0);
    /// Not sent: the flow may not send such a packet.
    pub const FORBIDDEN: Status = Status(1);
    /// Not sent: longer than the link carries.
    pub const TOO_LONG: Status = Status(2);
    /// Not sent: the link is down, or the flow's next hop does not answer.
    pub const NO_LINK: Status = Status(3);
    /// Returned as it came, empty: the packet was longer.
    pub const UNUSED: Status = Status(5);
}

/// What a record from outside is judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judge {
    area: u64,
    chunk_shift: u32,
    from: From,
}

/// Who wrote the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Program,
    Driver,
}

impl Judge {
    pub(crate) fn new(shape: &Shape, from: From) -> Judge {
        Judge {
            area: shape.area_bytes(),
            chunk_shift: shape.chunk_bytes.trailing_zeros(),
            from,
        }
    }

    /// Judges a header. What follows it is not looked at.
    #[inline]
    pub(crate) fn head(&self, head: &Head) -> Result<(), Rule> {
        if head.count == 0 || head.count as usize > MAX_PAIRS {
            return Err(Rule::Count { count: head.count });
        }
        if self.from == From::Program {
            if head.note & !GOES_ON != 0 {
                return Err(reserved("note", head.note.into()));
            }
            if head.stamp != 0 {
                return Err(reserved("stamp", head.stamp));
            }
        }
        Ok(())
    }

    /// Judges a pair.
    #[inline]
    pub(crate) fn pair(&self, slot: &Slot) -> Result<Pair, Rule> {
        let Slot { base, length, .. } = *slot;
        if slot.reserved != 0 {
            return Err(reserved("reserved", slot.reserved.into()));
        }
        if base % ALIGN != 0 {
            return Err(Rule::Alignment { base });
        }
        if length == 0 && self.from == From::Program {
            return Err(Rule::Empty { base });
        }
        // A pair of no bytes (from the driver) must have a base inside too: it names a chunk.
        let end = base.checked_add(u64::from(length.max(1)));
        let area = self.area;
        let Some(end) = end.filter(|end| *end <= area) else {
            return Err(Rule::Foreign { base, length, area });
        };
        if base >> self.chunk_shift != (end - 1) >> self.chunk_shift {
            let chunk = 1 << self.chunk_shift;
            return Err(Rule::Crossing {
                base,
                length,
                chunk,
            });
        }
        // The area has at most 2^32 bytes, and the base is below its end.
        Ok(Pair {
            base: base as u32,
            length,
        })
    }

    /// The chunk in which a judged pair lies.
    #[inline]
    pub(crate) fn chunk(&self, pair: &Pair) -> u32 {
        pair.base >> self.chunk_shift
    }
}

fn reserved(field: &'static str, seen: u64) -> Rule {
    Rule::Reserved { field, seen }
}

/// Pairs of a record at most.
pub const MAX_PAIRS: usize = 8;
/// The only bit of a note to the driver: the message goes on.
pub(crate) const GOES_ON: u32 = 1;

#[cfg(all(test, not(loom)))]
mod tests;
