//! Answers: which hosts promise a real-time channel together, and which bound each of them keeps.
//! May touch: sockets and certificate files, in `transport` and `issue` only.
//! Must never: hold a bound that no channel needs, or let one neighbour touch another's channels.
//!
//! # Between hosts
//! A real-time channel (paper RTC) passes several hosts. Its deadline is the sum of the bounds that
//! the hosts promise. Neighbours exchange [`message`]s, version 1, to establish a channel, to keep
//! it, and to end it. docs/reference/peer.md specifies them. [`signalling`] decides, without I/O or
//! clock; [`transport`] carries the messages over TLS; [`issue`] makes certificates for
//! laboratories.
#![forbid(unsafe_code)]

#[cfg(any(test, fuzzing))]
pub mod hostile;
pub mod issue;
pub mod message;
pub mod signalling;
pub mod transport;
