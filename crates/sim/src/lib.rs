//! Answers: what a link, a processor and an adapter do over time, if the real scheduler of `netnice-core` runs them.
//! May touch: its arguments only; time and chance are numbers that it is given.
//! Must never: read a clock, do I/O, or hold a scheduler of its own.
//!
//! # What is simulated
//! ```text
//!  Source ──▶ message queue ──▶ [processor] ──▶ packet queue ──▶ link ──▶ judge, laxity, counts
//!             overflow drops     blocks of P     overflow drops
//! ```
//! A [`World`] is a link, perhaps a processor before it, and flows; [`World::run`] plays it from
//! event to event. The link is a [`netnice_core::sched::Scheduler`], and so is the processor: a
//! processor is a link on which a block's length is the time that it takes (one byte is one
//! nanosecond), and channel handlers are scheduled in the same three classes (paper RTC, section
//! 3.1). What comes out is judged from outside, by [`netnice_core::police`] and by deadlines that
//! are worked out here from the arrivals alone.
//!
//! The same seed gives the same run, on every machine: chance is [`Random`], and no order depends
//! on a hash. A world may also be written down ([`scenario`]). What an adapter does that fetches what
//! it sends from the host's memory is another world ([`adapter`]).

#![forbid(unsafe_code)]

pub mod adapter;
mod entry;
mod random;
mod report;
pub mod scenario;
mod sound;
mod source;
mod station;
mod world;

pub use random::Random;
pub use report::{FlowReport, Report};
pub use sound::WorldError;
pub use source::Source;
pub use world::{Flow, Overbooked, Sent, World};

#[cfg(test)]
mod tests;
