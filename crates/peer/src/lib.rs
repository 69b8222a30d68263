//! Answers: which hosts promise a real-time channel together, and which bound each of them keeps.
//! May touch: sockets, certificate files, the resolver, flows of `netnice-stack` for relays.
//! Must never: hold a bound that no channel needs, let one neighbour touch another's channels, or
//! use unsafe code outside `kernel_clock`.
//!
//! # Between hosts
//! A real-time channel (paper RTC) passes several hosts. Its deadline is the sum of the bounds that
//! the hosts promise. Neighbours exchange [`message`]s, version 1, to establish a channel, to keep
//! it, and to end it. docs/reference/peer.md specifies them. [`signalling`] decides, without I/O or
//! clock; [`transport`] carries the messages over TLS; [`relay`] passes the messages of channels
//! on; [`programs`] has the connections of this host's programs; [`host`] joins all of them in the
//! program `netnice-peer`. [`policy`] reads what the administrator permits neighbours and declares
//! about the ports before this host. [`issue`] makes certificates for laboratories.
#![deny(unsafe_code)]

pub mod host;
#[cfg(any(test, fuzzing))]
pub mod hostile;
pub mod issue;
mod kernel_clock;
pub mod message;
pub mod names;
pub mod policy;
pub mod programs;
pub mod relay;
pub mod signalling;
pub mod transport;
