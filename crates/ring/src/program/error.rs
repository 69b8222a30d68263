//! Why a call on a flow fails.

use super::Chunk;
use crate::layout::{ALIGN, MAX_PAIRS};
use crate::violation::ProtocolViolation;

/// Why a record or a chunk was not accepted. The flow has not changed, except after a failed
/// [`ProgramRings::free_all`].
///
/// [`ProgramRings::free_all`]: super::ProgramRings::free_all
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The ring is full: collect returned records, or wait for the driver.
    #[error("the ring is full")]
    Full,
    /// The number of pieces is 0 or more than [`MAX_PAIRS`].
    #[error("a record of {0} pieces, 1 to {MAX_PAIRS} are allowed")]
    Count(usize),
    /// The chunk is not held: it is free, it does not exist, the driver has it, or the record names
    /// it twice.
    #[error("chunk {} is not held", .0.0)]
    NotHeld(Chunk),
    /// The piece is empty, not aligned or not inside its chunk.
    #[error(
        "invalid piece of {length} bytes at {start}: it must have 1 byte or more, begin at a \
         multiple of {ALIGN} and lie inside a chunk of {chunk_bytes} bytes"
    )]
    Piece {
        /// Offset of the piece in its chunk, in bytes.
        start: u32,
        /// Length in bytes.
        length: u32,
        /// Bytes of a chunk.
        chunk_bytes: u32,
    },
    /// The driver closed the flow or broke a rule.
    #[error(transparent)]
    Flow(#[from] FlowError),
}

/// Why a flow cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// The driver closed the flow.
    #[error("the flow is closed")]
    Closed,
    /// The driver broke a rule of `docs/reference/ring.md`.
    #[error("the driver broke a rule of the ring: {0}")]
    Violation(#[from] ProtocolViolation),
}
