//! The rules that a side can break in a way that the other side sees. Each is a MUST of `docs/reference/ring.md`, with its
//! number; breaking one ends the relation: the driver expels the program, a program gives up its flow.

use crate::layout::Ring;

/// A broken rule, and in which ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ring} ring: {rule}")]
pub struct Breach {
    /// The ring in which it was seen.
    pub ring: Ring,
    /// What was broken.
    pub rule: Rule,
}

impl Breach {
    /// The number of the MUST in `docs/reference/ring.md`.
    pub fn must(&self) -> u32 {
        self.rule.must()
    }
}

/// A rule of `docs/reference/ring.md`, with what was seen and what is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// A producer index moved against its direction.
    #[error("R{must}: the producer index went back from {last} to {seen}", must = self.must())]
    ProducerBack {
        /// The value before.
        last: u32,
        /// The value now.
        seen: u32,
    },
    /// A producer index moved further than the ring has room.
    #[error("R{must}: the producer index advanced by {advance}, and only {room} entries were free", must = self.must())]
    ProducerPast {
        /// By how many entries.
        advance: u32,
        /// How many were free.
        room: u32,
    },
    /// A consumer index moved against its direction.
    #[error("R{must}: the consumer index went back from {last} to {seen}", must = self.must())]
    ConsumerBack {
        /// The value before.
        last: u32,
        /// The value now.
        seen: u32,
    },
    /// A consumer index moved past what was produced.
    #[error("R{must}: the consumer index advanced by {advance}, and only {waiting} entries were waiting", must = self.must())]
    ConsumerPast {
        /// By how many entries.
        advance: u32,
        /// How many were waiting.
        waiting: u32,
    },
    /// A record with no pair, or with too many.
    #[error("R{must}: a record of {count} pairs, 1 to {most} are allowed", must = self.must(), most = crate::record::MAX_PAIRS)]
    Count {
        /// The count in its header.
        count: u32,
    },
    /// A record of which only a part was published.
    #[error("R{must}: a record of {entries} entries, of which {published} were published", must = self.must())]
    Partial {
        /// How many entries it has by its header.
        entries: u32,
        /// How many there are.
        published: u32,
    },
    /// A bit that means nothing is set in a record from the program.
    #[error("R{must}: the reserved field {field} holds {seen:#x}, not 0", must = self.must())]
    Reserved {
        /// Which field.
        field: &'static str,
        /// What is in it.
        seen: u64,
    },
    /// A base that is not aligned.
    #[error("R{must}: base {base:#x} is not a multiple of {align}", must = self.must(), align = crate::layout::ALIGN)]
    Alignment {
        /// The base.
        base: u64,
    },
    /// A pair of no bytes, from the program.
    #[error("R{must}: the pair at base {base:#x} has length 0", must = self.must())]
    Empty {
        /// The base.
        base: u64,
    },
    /// A pair that is not inside the flow's data area.
    #[error("R{must}: base {base:#x} and length {length} are not inside the data area of {area} bytes", must = self.must())]
    Foreign {
        /// The base.
        base: u64,
        /// The length.
        length: u32,
        /// Bytes of the flow's data area.
        area: u64,
    },
    /// A pair that crosses from one chunk into the next.
    #[error("R{must}: base {base:#x} and length {length} cross the end of a chunk of {chunk} bytes", must = self.must())]
    Crossing {
        /// The base.
        base: u64,
        /// The length.
        length: u32,
        /// Bytes of a chunk.
        chunk: u32,
    },
    /// A chunk that was handed over while it was the other side's already.
    #[error("R{must}: chunk {chunk} was handed over, and was not the sender's to give", must = self.must())]
    NotYours {
        /// The chunk's number in the flow's data area.
        chunk: u32,
    },
}

impl Rule {
    /// The number of the MUST in `docs/reference/ring.md`.
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
