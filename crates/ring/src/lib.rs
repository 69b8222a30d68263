//! Answers: how packets pass between a program and the driver process through shared memory.
//! May touch: memfd, mmap, eventfd, epoll, pipes, mapped memory; the only shared unsafe code.
//! Must never: interpret a contract or header, or use a peer's index or entry before validating it.
//!
//! # Layout
//! ```text
//!  memory file of one program (sealed)                    doorbells, one per direction
//!  ┌────────┬──────────────────────────┬───────────────┬───
//!  │ header │ region of flow 0         │ region of 1   │ …      program ──eventfd──▶ driver
//!  │ notices│ indices, 4 rings │ chunks│               │        program ◀──epoll──── driver
//!  └────────┴──────────────────────────┴───────────────┴───
//!
//!  transmit channel:  program ──submit──▶ driver ──reclaim──▶ program   full buffers, then used
//!  receive channel:   program ──prime───▶ driver ──deliver──▶ program   empty buffers, then filled
//! ```
//! A flow has two Rbuf channels (paper VERT, section 2.2), one in each direction, over one *data
//! area* of buffers, the *chunks*. Each channel has two *control areas*, which are single-producer
//! single-consumer rings of *I/O records* (a count, then pairs of base and length). The program
//! chooses the buffer addresses on both channels. Every ring and every data area has a fixed size,
//! so a full ring applies back-pressure to its own flow only, and no flow waits for a buffer of
//! another flow.
//!
//! `docs/reference/ring.md` specifies every byte, with numbered rules for both sides. A program in
//! another language needs no other document. A call that creates, seals or maps a memory file, or
//! that creates a flow or an attachment, can fail with a [`SetupError`]. A call that detects a
//! broken rule fails with a [`ProtocolViolation`], which names the rule. Calls of the `program`
//! module on an open flow fail with its own errors, and calls of a [`Pool`] with a [`PoolError`].
//!
//! # Trust
//! The driver treats the program's side as hostile. The `driver` module copies an index, or each
//! half of an entry, into private memory, validates the copy, and uses only the copy. The
//! driver keeps its own indices in private memory and only writes them to shared memory. The
//! `program` module uses the same cursors and validates the driver's values in the same way.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | offsets in the memory file; the shape (sizes) of a flow and its validation |
//! | [`violation`] | the numbered rules whose violation a side can detect |
//! | [`record`] | I/O records, in shared memory and validated |
//! | [`connections`] | which connections of TCP a driver resets when their program ends |
//! | `cursor` | the producer end and the consumer end of a ring |
//! | [`ledger`] | ownership of buffers; frame pools |
//! | [`doorbell`] | sleeping flags, notices and doorbells |
//! | `words` | atomics in shared memory, which loom can replace |
//! | `region` | memory files and their mappings |
//! | `file_pages` | the pages of a memory file: allocated early, huge where possible, not moved |
//! | `file_header` | the header of a memory file, as atomics |
//! | `driver`, `program` | the two sides |

// Under loom the crate omits the modules that map memory, and uses only parts of the others: loom
// tests the cursors, the sleeping flag and the notices.
#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(loom))]
pub mod connections;
mod cursor;
pub mod doorbell;
#[cfg(not(loom))]
pub mod driver;
#[cfg(not(loom))]
mod file_header;
#[cfg(not(loom))]
mod file_pages;
pub mod layout;
pub mod ledger;
#[cfg(all(test, loom))]
mod model;
#[cfg(not(loom))]
pub mod program;
pub mod record;
#[cfg(not(loom))]
mod region;
#[cfg(all(any(test, fuzzing), not(loom)))]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "the targets of fuzz/ use a part of it")
)]
mod scenario;
pub mod violation;
mod words;

pub use layout::{Budget, FlowLocation, Ring, SetupError, Shape, ShapeError};
pub use ledger::{Balance, Pool, PoolError};
pub use record::{MessagePart, Pair, Record, Status};
pub use violation::{ProtocolViolation, Rule};

/// The fuzz target `ring` of `fuzz/` calls this module.
#[cfg(fuzzing)]
pub use scenario::hostile;

/// The examples of README.md, which are tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;
