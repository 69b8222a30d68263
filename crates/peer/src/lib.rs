//! Answers: which hosts promise a real-time channel together, and which bound each of them keeps.
//! May touch: its arguments only. The caller passes the time and the events, and acts.
//! Must never: hold a bound that no channel needs, or let one neighbour touch another's channels.
//!
//! # Between hosts
//! A real-time channel (paper RTC) passes several hosts. Its deadline is the sum of the bounds that
//! the hosts promise. Neighbours exchange [`message`]s, version 1, to establish a channel, to keep
//! it, and to end it. docs/reference/peer.md specifies them.
#![forbid(unsafe_code)]

#[cfg(any(test, fuzzing))]
pub mod hostile;
pub mod message;
pub mod signalling;
