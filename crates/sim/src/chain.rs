//! Simulates real-time channels over several hosts (paper RTC, section 2.2), in virtual time.
//!
//! ```text
//!            station                                    station
//!  source ─▶ [handlers] ─▶ link ═══ cable ═══▶ relay ─▶ [handlers] ─▶ link ═══ cable ═══▶ sink
//! ```
//! A [`Station`] is a host on the way: optionally a processor whose handlers cut messages into
//! packets, then a link with its [`netnice_core::sched::Scheduler`], then a [`Cable`] with a
//! constant delay, random jitter and random losses. The machine may stop the sender of a link for
//! some time ([`Standstills`]), and a processor may be a reservation that gives its time as late as
//! it may. A [`RoutedChannel`] passes stations in the order of its hops. [`Chain::run`] returns a
//! [`ChainReport`]; it fails with [`ChainError`] if the chain is invalid.
//!
//! # A hop
//! A *hop* is a station on the way of a channel. A relay passes whole messages: a message of which
//! a packet was lost ends at the relay, and is counted. Each hop spaces messages by 1/Rmax anew.
//! The *logical arrival* of a message at a hop is the arrival of its last packet there, or 1/Rmax
//! after the logical arrival of the message before it, whichever is later. Its local deadline is
//! its logical arrival plus the bound of the hop. No clock of another host is needed.
//!
//! # The deadline
//! The deadline of a channel covers the hops: from the logical arrival at the source until the last
//! packet is at the sink, less the delay and the largest jitter of each cable on the way. The
//! cables are declared, and their time adds to the deadline. [`ChainReport`] judges it from the
//! arrivals at the source and at the sink alone, without the schedulers and without the times of
//! the hops between. docs/reference/contracts.md has the proofs: theorem 5, that a hop can always
//! be relaxed to a longer bound; theorem 6, that bounds of hops sum to a bound of the path; theorem
//! 7, that a hop needs room for a number of messages, and no more.
//!
//! # Reservations
//! [`PathLedger`] reserves a channel as the hosts would do it: forward, each hop holds the least
//! bound that it can keep; backward, the slack is handed out in equal parts. A channel that does
//! not fit is refused with a [`PathRefusal`].
//!
//! # Limits
//! A station has one link, and a channel passes a station once. Packets keep their order on a
//! cable. The sink has no handlers.

mod error;
mod report;
mod reservations;
mod run;
mod station;
mod supply;
mod topology;

pub use error::ChainError;
pub use report::{ChainReport, HopReport, RoutedReport};
pub use reservations::{PathLedger, PathRefusal, Reserved};
pub use supply::Standstills;
pub use topology::{Cable, Chain, HandlerTime, Hop, RoutedChannel, Station, StationProcessor};

#[cfg(test)]
mod tests;
