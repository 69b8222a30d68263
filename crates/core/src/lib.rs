//! Answers: what may be asked of a host's network (units, contracts, targets as text and types) and does it fit (admission).
//! May touch: its arguments only; no_std + alloc, the caller passes the time.
//! Must never: do I/O, read a clock, start a thread, or use unsafe code outside `prefetch`.
//!
//! # The way of a request
//! ```text
//!  text ──parse──▶ Change ──apply──▶ Claims ──effective──▶ Contract ──admit──▶ Grant | Refusal
//! ```
//! [`units`] reads and writes quantities, [`target`] says who is meant, [`contract`] what is
//! asked, [`claims`] what holds when several people ask, [`link`] and [`admission`] whether it
//! fits, [`police`] whether traffic kept to it, [`meter`] what every counter means. Each type is valid from the moment it exists: a
//! stage takes only what the stage before it made. Beside it, [`sched`] is the scheduler of one
//! link: who sends next, packet by packet, for every contract at once.
#![no_std]
#![deny(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod admission;
pub mod claims;
pub mod contract;
#[cfg(test)]
mod fuzz;
pub mod link;
pub mod meter;
pub mod police;
pub mod prefetch;
mod quoted;
pub mod sched;
pub mod target;
pub mod units;

pub use quoted::Quoted;
