//! Answers: what a link, a processor and an adapter do over time under `netnice-core`'s scheduler.
//! May touch: its arguments only; time and random numbers come from them.
//! Must never: read a clock, do I/O, or contain a scheduler of its own.
//!
//! # What is simulated
//! ```text
//!  Source ──▶ message queue ──▶ [processor] ──▶ packet queue ──▶ link ──▶ policer, laxity, counts
//!             overflow drops     blocks of P     overflow drops
//! ```
//! A [`Simulation`] is a link, optionally a processor before it, and flows. [`Simulation::run`]
//! proceeds from event to event and returns a [`Report`]; it fails with [`SimulationError`] if the
//! simulation is invalid. The link is a [`netnice_core::sched::Scheduler`], and so is the
//! processor: a processor is a link on which a block's length is its processing time (one byte is
//! one nanosecond). Handlers of channels are scheduled by deadline, and the handlers of other flows
//! share the rest (paper RTC, section 3.1). The output is checked independently: by
//! [`netnice_core::policer`], and by deadlines that this crate computes from the arrivals alone.
//!
//! The same seed gives the same run on every machine: random numbers come from [`Random`], and no
//! order depends on a hash. A simulation can also be read from text ([`scenario`]). [`adapter`] is
//! a separate simulation, of an adapter that fetches its cells from the host's memory.

#![forbid(unsafe_code)]

pub mod adapter;
mod admission;
mod queueing;
mod random;
mod report;
pub mod scenario;
mod simulation;
mod source;
mod validate;

pub use random::Random;
pub use report::{FlowReport, Report};
pub use simulation::{OverbookedSlice, SentPacket, SimFlow, Simulation};
pub use source::Source;
pub use validate::SimulationError;

#[cfg(test)]
mod tests;
