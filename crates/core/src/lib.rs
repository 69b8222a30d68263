//! Answers: which contracts can a host's network be asked for, and do they fit on its links.
//! May touch: its arguments only. It is `no_std` with `alloc`, and the caller passes the time.
//! Must never: do I/O, read a clock, start a thread, or use unsafe code outside `prefetch`.
//!
//! # The path of a request
//! ```text
//!  text ──parse──▶ Change ──apply──▶ Claims ──effective──▶ Contract ──admit──▶ Grant | Refusal
//! ```
//! - [`units`] parses and prints quantities.
//! - [`target`] names the owner of packets that a contract is for.
//! - [`contract`] parses and prints contracts and changes to them.
//! - [`claims`] merges the requests of several users for one target.
//! - [`link`] describes links, and [`admission`] decides whether a contract fits on them.
//! - [`policer`] checks whether traffic kept to a contract.
//! - [`meter`] declares every counter and its meaning.
//! - [`sched`] is the packet scheduler of one link, for flows with different kinds of contracts.
//! - [`Escaped`] prints foreign text in messages. [`prefetch`] gives hints to the processor.
//!
//! Each step takes the type that the step before it returns. A [`contract::Contract`] never
//! contradicts itself, and only [`admission`] makes an [`admission::Grant`].
//!
//! # For programs outside netnice
//! Three parts work without the rest of netnice. Each is a state machine: the caller passes the
//! time and asks for the next action.
//!
//! - [`sched::Pacer`] paces many flows, each with a rate and a burst, from one timer. A QUIC stack
//!   or a media server can use it. Begin with `examples/pace_udp.rs`.
//! - [`sched::Scheduler`] orders the packets on one link by rates, slices, deadlines and weights.
//!   Its owner reports the first packet of a queue, and [`sched::Scheduler::next`] returns the
//!   packet to send or the time of the next call. Begin with [`sched`].
//! - [`policer::Policer`] checks whether traffic kept to a contract, and reports the excess of each
//!   packet. Begin with `examples/conformance.rs`.
//!
//! ```
//! use netnice_core::contract::Contract;
//! use netnice_core::policer::{Policer, Observation};
//! use netnice_core::sched::{Next, Packet, Scheduler, Service, Wire};
//! use netnice_core::units::{Bytes, Instant, Rate};
//!
//! let contract: Contract = "cell pcr=1mbit,cdvt=1ms".parse()?;
//! let mut link = Scheduler::new(Wire::new(Rate::new(100_000_000).unwrap()))?;
//! let flow = link.insert(Service::of(&contract)?, Instant(0))?;
//! let mut policer = Policer::contract(&contract)?;
//! // The queue never ends. The scheduler stores the head only, and asks for the next packet.
//! link.handle_head(flow, Packet::new(Bytes(1250)), Instant(0))?;
//! let (mut now, mut sent) = (Instant(0), 0);
//! while now < Instant(1_000_000_000) {
//!     match link.next(now, |_| Some(Packet::new(Bytes(1250)))) {
//!         Next::Send(packet) => {
//!             policer.handle(Observation { at: packet.start, length: packet.length })?;
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
mod escaped;
pub mod link;
pub mod meter;
pub mod policer;
pub mod prefetch;
pub mod sched;
pub mod target;
pub mod units;

pub use escaped::Escaped;
