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
//!
//! # For programs outside netnice
//! Three parts are of use by themselves, each a value that is told the time and asked what to do:
//!
//! | | for | begin with |
//! |---|---|---|
//! | [`sched::Pacer`] | many flows, each to its rate and burst, from one timer: a QUIC stack, a media server | `examples/pace_udp.rs` |
//! | [`sched::Scheduler`] | one link and who sends on it next: rates, slices, deadlines, weights; [`sched::Scheduler::turn`] is all that an event loop calls | the module [`sched`] |
//! | [`police::Police`] | whether traffic kept to a contract, and which packet did not by how much | `examples/conformance.rs` |
//!
//! ```
//! use netnice_core::contract::Contract;
//! use netnice_core::police::{Police, Seen};
//! use netnice_core::sched::{Next, Packet, Scheduler, Service, Wire};
//! use netnice_core::units::{Bytes, Instant, Rate};
//!
//! let contract: Contract = "cell pcr=1mbit,cdvt=1ms".parse()?;
//! let mut link = Scheduler::new(Wire::new(Rate::new(100_000_000).unwrap()))?;
//! let flow = link.insert(Service::of(&contract)?, Instant(0))?;
//! let mut police = Police::contract(&contract)?;
//! // The queue never ends: the scheduler knows its head only, and asks what stands behind it.
//! link.handle_head(flow, Packet::new(Bytes(1250)), Instant(0))?;
//! let (mut now, mut sent) = (Instant(0), 0);
//! while now < Instant(1_000_000_000) {
//!     match link.turn(now, |_| Some(Packet::new(Bytes(1250)))) {
//!         Next::Send(packet) => {
//!             police.handle(Seen { at: packet.start, length: packet.length })?;
//!             sent += packet.length.0;
//!         }
//!         Next::Wait(until) => now = until,
//!         Next::Idle => unreachable!("there is always a packet"),
//!     }
//! }
//! assert_eq!(sent, 125_000); // A second at 1 Mbit/s.
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
#![no_std]
#![deny(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod admission;
pub mod claims;
pub mod contract;
pub mod link;
pub mod meter;
pub mod police;
pub mod prefetch;
mod quoted;
pub mod sched;
pub mod target;
pub mod units;

pub use quoted::Quoted;
