//! Answers: how packets pass between a program and the driver process through shared memory (rings, frame pools, doorbells).
//! May touch: memfd, mmap, eventfd, epoll, and the memory that it mapped; it is the only cross-process unsafe.
//! Must never: know a contract or a header, read a shared field twice, or trust a value that the other side can write.
//!
//! # The shape of it
//! ```text
//!  memory file of one program (sealed)                    doorbells, one per direction
//!  ┌────────┬──────────────────────────┬───────────────┬───
//!  │ header │ region of flow 0         │ region of 1   │ …      program ──eventfd──▶ driver
//!  │ notices│ indices, 4 rings │ chunks│               │        program ◀──epoll──── driver
//!  └────────┴──────────────────────────┴───────────────┴───
//!
//!  transmit channel:  program ──submit──▶ driver ──reclaim──▶ program     full buffers, then used ones
//!  receive channel:   program ──prime───▶ driver ──deliver──▶ program     empty buffers, then filled ones
//! ```
//! This is the Rbuf channel of paper VERT, section 2.2: a *data area* of buffers, and two *control areas* for each
//! simplex channel, which are single-producer single-consumer rings of *I/O records* (a count, then pairs of
//! base and length). On both channels it is the program that chooses the addresses. Everything has a fixed size, so a
//! full ring pushes back, and nobody waits for a buffer of somebody else.
//!
//! `docs/reference/ring.md` is the specification of every byte, with numbered rules for both sides; a program in another
//! language needs nothing else. [`Breach`] names the rule that was broken.
//!
//! # Who believes whom
//! The program's side is hostile until shown otherwise. So `driver` reads each shared field once, into private
//! state, judges it there, and never looks again; indices of its own live in private memory and are only *shown* to
//! the program. The side of the `program` is built of the same cursors and judges the driver alike.
//!
//! | module | what |
//! |---|---|
//! | [`layout`] | where everything lies; the shape of a flow, checked once |
//! | [`breach`] | the rules that can be broken, by number |
//! | [`record`] | I/O records, outside and inside |
//! | `cursor` | the two ends of a ring |
//! | [`ledger`] | who has which buffer; frame pools |
//! | [`bell`] | sleeping, notices and doorbells |
//! | `words` | atomics in shared memory, which loom can take the place of |
//! | `region` | memory files and their mappings |
//! | `driver`, `program` | the two sides |

// Under loom only what loom tries: the cursors, the sleeping flag and the notices.
#![cfg_attr(loom, allow(dead_code))]

pub mod bell;
pub mod breach;
mod cursor;
#[cfg(not(loom))]
pub mod driver;
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
mod story;
mod words;

pub use breach::{Breach, Rule};
pub use layout::{Budget, Place, Ring, SetupError, Shape, ShapeError};
pub use ledger::{Balance, Pool, PoolError};
pub use record::{Pair, Record, Status};

/// What the target `ring` of `fuzz/` calls.
#[cfg(fuzzing)]
pub use story::hostile;
