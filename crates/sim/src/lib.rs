//! Answers: what a link, a processor and an adapter do over time under `netnice-core`'s scheduler.
//! May touch: its arguments only; time and random numbers come from them.
//! Must never: read a clock, do I/O, or contain a scheduler of its own.
//!
//! # What is simulated
//! For each flow:
//! ```text
//!  Source ─messages─▶ queue ─▶ [processor] ─packets─▶ queue ─▶ link ─▶ policer, deadlines, counts
//! ```
//! The first queue drops the messages that find it full, or an overload policy decides on them. The
//! second queue is unlimited. Without a processor, messages become packets at once.
//!
//! A [`Simulation`] is a link, optionally a processor before it, and flows. [`Simulation::run`]
//! proceeds from event to event and returns a [`Report`]; it fails with [`SimulationError`] if the
//! simulation is invalid. The link is a [`netnice_core::sched::Scheduler`], and so is the
//! processor: a processor is a link that carries blocks of packets, and a block's length is its
//! processing time (one byte is one nanosecond). Channels are processed by deadline, and the other
//! flows share the rest of the processor (paper RTC, section 3.1; `netnice-core` lists the papers).
//! The output is checked without the scheduler's results: by [`netnice_core::policer`], and by
//! deadlines that are computed from the arrival times of messages (with an overload policy: from
//! the logical arrivals of [`netnice_core::sched::MessageGate`]).
//!
//! The same seed gives the same run: random numbers come from [`Random`], and no order depends on a
//! hash. A simulation can also be read from text ([`scenario`]). [`chain`] simulates channels over
//! several hosts. [`adapter`] is a separate simulation: a network adapter that sends packets of one
//! size (cells), and fetches them from the host's memory.

#![forbid(unsafe_code)]

pub mod adapter;
mod admission;
pub mod chain;
mod error;
mod queueing;
mod random;
mod report;
pub mod scenario;
mod simulation;
mod source;
mod validate;

pub use error::SimulationError;
pub use queueing::OverbookedSlice;
pub use random::Random;
pub use report::{FlowReport, Report};
pub use simulation::{EarlyProcessing, SentPacket, SimFlow, Simulation};
pub use source::Source;

#[cfg(test)]
mod tests;
