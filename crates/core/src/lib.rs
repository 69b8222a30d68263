//! Answers: what does a contract say, does it fit, which packet is next, did traffic conform.
//! May touch: its arguments only. The crate is `no_std` with `alloc`; the caller passes the time.
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
//! - [`link`] describes managed links: interfaces with a known capacity. [`admission`] decides
//!   whether a contract fits on them.
//! - [`policer`] checks whether traffic kept to a contract.
//! - [`meter`] declares the counters of a target and their meaning.
//! - [`sched`] is the packet scheduler of one link, for flows with different kinds of contracts.
//! - [`Escaped`] prints foreign text in messages. [`prefetch`] gives hints to the processor.
//!
//! Each step takes the result of the step before it, and fails with an error type of its module.
//! The clauses of a [`contract::Contract`] never contradict each other, and only [`admission`]
//! makes an [`admission::Grant`].
//!
//! # For programs outside netnice
//! Three parts work without the rest of netnice. Each is a state machine: the caller passes the
//! time and asks for the next action.
//!
//! - [`sched::Pacer`] paces many flows, each with a rate and a burst, from one timer. A QUIC stack
//!   or a media server can use it. Begin with `examples/pace_udp.rs`.
//! - [`sched::Scheduler`] orders the packets on one link by rates, slices, deadlines and weights.
//!   Its owner reports each packet that arrives at an empty queue, and [`sched::Scheduler::next`]
//!   returns the packet to send or the time of the next call. Begin with [`sched`].
//! - [`policer::Policer`] checks whether traffic kept to a contract, and reports each packet that
//!   does not conform, with the violated rule. Begin with `examples/conformance.rs`.
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
//!
//! # Papers
//! The comments cite five papers by short names:
//!
//! - NICE: Okumura, Moir, Mossé, *netnice: nice is not only for CPUs*;
//! - NTCP: a TCP with guaranteed transmit bandwidth, for the operating system Nemesis;
//! - VERT: Black, Barham, Donnelly, Stratford, *Protocol Implementation in a Vertically Structured
//!   Operating System*;
//! - CELL: Schiller, Gunningberg, *Feasibility of a Software-based ATM cell-level scheduler with
//!   advanced shaping*;
//! - RTC: Mehra, Indiresan, Shin, *Structuring Communication Software for Quality-of-Service
//!   Guarantees*.
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
pub mod stops;
pub mod target;
pub mod units;

pub use escaped::Escaped;
