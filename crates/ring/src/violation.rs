//! The rules of the ring whose violation the other side detects in the rings, and the error for a
//! violation ([`ProtocolViolation`]). Each [`Rule`] is a MUST of `docs/reference/ring.md`, with its
//! number there. The cursors and the two sides of the ring create the errors; nothing in this
//! module fails. After a violation the driver disconnects the whole program. A program that detects
//! one must close the flow.

use crate::layout::Ring;

/// A protocol violation: the rule that was broken, and the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ring} ring: R{}: {rule}", .rule.number())]
pub struct ProtocolViolation {
    /// The ring in which the violation was detected.
    pub ring: Ring,
    /// The rule that was broken.
    pub rule: Rule,
}

impl ProtocolViolation {
    /// The number of the rule in `docs/reference/ring.md`.
    pub fn rule_number(&self) -> u32 {
        self.rule.number()
    }
}

/// A rule of `docs/reference/ring.md`, with the value that was found and the allowed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// A producer index moved back (R20).
    #[error("the producer index went back from {last} to {seen}")]
    ProducerBack {
        /// The previous value.
        last: u32,
        /// The new value.
        seen: u32,
    },
    /// A producer index advanced by more entries than were free (R21).
    #[error("the producer index advanced by {advance}, and only {room} entries were free")]
    ProducerPast {
        /// The advance, in entries.
        advance: u32,
        /// The free entries.
        room: u32,
    },
    /// A consumer index moved back (R22).
    #[error("the consumer index went back from {last} to {seen}")]
    ConsumerBack {
        /// The previous value.
        last: u32,
        /// The new value.
        seen: u32,
    },
    /// A consumer index moved past the published producer index (R23).
    #[error("the consumer index advanced by {advance}, and only {waiting} entries were waiting")]
    ConsumerPast {
        /// The advance, in entries.
        advance: u32,
        /// The entries that were waiting.
        waiting: u32,
    },
    /// A record with no pair or with more than 8 pairs (R30).
    #[error("a record of {count} pairs, 1 to {most} are allowed", most = crate::layout::MAX_PAIRS)]
    Count {
        /// The count in the record's head.
        count: u32,
    },
    /// A record that was only partly published (R31).
    #[error("a record of {entries} entries, of which {published} were published")]
    Partial {
        /// Entries of the record according to its head.
        entries: u32,
        /// Entries that were published.
        published: u32,
    },
    /// A reserved field or bit is not 0 (R32).
    #[error("the reserved field {field} holds {seen:#x}, not 0")]
    Reserved {
        /// The field's name in `docs/reference/ring.md`.
        field: &'static str,
        /// The value of the field.
        seen: u64,
    },
    /// A base that is not aligned (R40).
    #[error("base {base:#x} is not a multiple of {align}", align = crate::layout::ALIGN)]
    Alignment {
        /// The base of the pair: its offset in the data area, in bytes.
        base: u64,
    },
    /// A pair of length 0 from the program (R41).
    #[error("the pair at base {base:#x} has length 0")]
    Empty {
        /// The base of the pair.
        base: u64,
    },
    /// A pair that is not inside the flow's data area (R42).
    #[error("base {base:#x} and length {length} are not inside the data area of {area} bytes")]
    OutsideArea {
        /// The base of the pair.
        base: u64,
        /// The length of the pair, in bytes.
        length: u32,
        /// Bytes of the flow's data area.
        area: u64,
    },
    /// A pair that crosses a chunk boundary (R43).
    #[error("base {base:#x} and length {length} cross the end of a chunk of {chunk} bytes")]
    Crossing {
        /// The base of the pair.
        base: u64,
        /// The length of the pair, in bytes.
        length: u32,
        /// Bytes of a chunk.
        chunk: u32,
    },
    /// A side handed over a chunk that it does not own (R44).
    #[error("chunk {chunk} was handed over, and its sender did not own it")]
    NotOwned {
        /// The chunk's number in the flow's data area.
        chunk: u32,
    },
}

impl Rule {
    /// The number of the rule in `docs/reference/ring.md`.
    pub fn number(&self) -> u32 {
        match self {
            Rule::ProducerBack { .. } => 20,
            Rule::ProducerPast { .. } => 21,
            Rule::ConsumerBack { .. } => 22,
            Rule::ConsumerPast { .. } => 23,
            Rule::Count { .. } => 30,
            Rule::Partial { .. } => 31,
            Rule::Reserved { .. } => 32,
            Rule::Alignment { .. } => 40,
            Rule::Empty { .. } => 41,
            Rule::OutsideArea { .. } => 42,
            Rule::Crossing { .. } => 43,
            Rule::NotOwned { .. } => 44,
        }
    }
}
