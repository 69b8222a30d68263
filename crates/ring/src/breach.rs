//! Protocol violations that the other side can detect. Each [`Rule`] is a MUST of
//! `docs/reference/ring.md`, with its number. A violation ends the connection: the driver
//! disconnects the program, and a program gives up its flow.

use crate::layout::Ring;

/// A protocol violation: the rule that was broken, and the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ring} ring: {rule}")]
pub struct Breach {
    /// The ring in which the violation was detected.
    pub ring: Ring,
    /// The rule that was broken.
    pub rule: Rule,
}

impl Breach {
    /// The number of the rule in `docs/reference/ring.md`.
    pub fn must(&self) -> u32 {
        self.rule.must()
    }
}

/// A rule of `docs/reference/ring.md`, with the value that was found and the allowed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// A producer index moved back (R20).
    #[error("R{must}: the producer index went back from {last} to {seen}", must = self.must())]
    ProducerBack {
        /// The previous value.
        last: u32,
        /// The new value.
        seen: u32,
    },
    /// A producer index advanced by more entries than were free (R21).
    #[error("R{must}: the producer index advanced by {advance}, and only {room} entries were free", must = self.must())]
    ProducerPast {
        /// The advance, in entries.
        advance: u32,
        /// The free entries.
        room: u32,
    },
    /// A consumer index moved back (R22).
    #[error("R{must}: the consumer index went back from {last} to {seen}", must = self.must())]
    ConsumerBack {
        /// The previous value.
        last: u32,
        /// The new value.
        seen: u32,
    },
    /// A consumer index moved past the published producer index (R23).
    #[error("R{must}: the consumer index advanced by {advance}, and only {waiting} entries were waiting", must = self.must())]
    ConsumerPast {
        /// The advance, in entries.
        advance: u32,
        /// The entries that were waiting.
        waiting: u32,
    },
    /// A record with no pair or with more than 8 pairs (R30).
    #[error("R{must}: a record of {count} pairs, 1 to {most} are allowed", must = self.must(), most = crate::record::MAX_PAIRS)]
    Count {
        /// The count in the record's head.
        count: u32,
    },
    /// A record that was only partly published (R31).
    #[error("R{must}: a record of {entries} entries, of which {published} were published", must = self.must())]
    Partial {
        /// Entries of the record according to its head.
        entries: u32,
        /// Entries that were published.
        published: u32,
    },
    /// A reserved field or bit is not 0 (R32).
    #[error("R{must}: the reserved field {field} holds {seen:#x}, not 0", must = self.must())]
    Reserved {
        /// The field.
        field: &'static str,
        /// The value of the field.
        seen: u64,
    },
    /// A base that is not aligned (R40).
    #[error("R{must}: base {base:#x} is not a multiple of {align}", must = self.must(), align = crate::layout::ALIGN)]
    Alignment {
        /// The base.
        base: u64,
    },
    /// A pair of length 0 from the program (R41).
    #[error("R{must}: the pair at base {base:#x} has length 0", must = self.must())]
    Empty {
        /// The base.
        base: u64,
    },
    /// A pair that is not inside the flow's data area (R42).
    #[error("R{must}: base {base:#x} and length {length} are not inside the data area of {area} bytes", must = self.must())]
    Foreign {
        /// The base.
        base: u64,
        /// The length.
        length: u32,
        /// Bytes of the flow's data area.
        area: u64,
    },
    /// A pair that crosses a chunk boundary (R43).
    #[error("R{must}: base {base:#x} and length {length} cross the end of a chunk of {chunk} bytes", must = self.must())]
    Crossing {
        /// The base.
        base: u64,
        /// The length.
        length: u32,
        /// Bytes of a chunk.
        chunk: u32,
    },
    /// A side handed over a chunk that it does not own (R44).
    #[error("R{must}: chunk {chunk} was handed over, and was not the sender's to give", must = self.must())]
    NotYours {
        /// The chunk's number in the flow's data area.
        chunk: u32,
    },
}

impl Rule {
    /// The number of the rule in `docs/reference/ring.md`.
    pub fn must(&self) -> u32 {
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
            Rule::Foreign { .. } => 42,
            Rule::Crossing { .. } => 43,
            Rule::NotYours { .. } => 44,
        }
    }
}
