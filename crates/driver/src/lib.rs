//! Answers: which packet of which flow a network card sends next, and to which flow a received one belongs.
//! May touch: a network card's packet sockets, the memory that it shares with programs, and the eBPF programs of the kernel room.
//! Must never: send what a flow's template forbids, let one flow's traffic cost another, or believe what a program wrote twice.
//!
//! # The pure parts
//! They do no input or output and read no clock: a caller passes bytes and the time.
//!
//! - [`frame`] reads the headers of a received frame, strictly and once.
//! - [`template`] is what a flow may send: a compare and a mask over the headers of the driver's own copy.
//! - [`demux`] finds the flow of a received frame: exactly, by port, by fragment, by group, by the pattern of another
//!   protocol; and says why a frame is nobody's or is discarded.
//! - [`protocol`]: what a flow can be of.
//! - [`pattern`] is the description of another protocol's packets, compiled into few masks and looked up by hash.
//! - [`share`] is how much of the driver's time one flow's received packets may take.
//! - [`turn`] puts these together: rings, scheduler, copy and check, card; and back.
//! - [`frames`] knows who holds each frame of the driver's memory.
//!
//! # The interface
//! [`link`] sends and receives frames by AF_XDP, or by AF_PACKET where that is refused; [`serve`] is the loop around the
//! turn and the link.
//!
//! # The process
//! `netnice-driver` has three threads: the one that runs the loop; [`control`], which hears the daemon, knows the programs and
//! prepares what takes long ([`setup`] reads what flows are to be); and one that wakes programs to wake whom takes long ([`bells`]). [`orders`] is what passes between them, and [`run`]
//! starts all. [`confine`] is what they may do.

pub mod bells;
pub mod confine;
pub mod control;
pub mod demux;
pub mod frame;
pub mod frames;
#[cfg(test)]
mod fuzz;
pub mod link;
pub mod orders;
pub mod pattern;
pub mod protocol;
pub mod run;
pub mod serve;
pub mod setup;
pub mod share;
#[cfg(any(test, fuzzing))]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "the targets of fuzz/ use a part of it")
)]
mod story;
pub mod template;
pub mod turn;

/// What the targets of `fuzz/` call.
#[cfg(fuzzing)]
pub mod hostile {
    pub use crate::control::hostile as connection;
    pub use crate::demux::hostile as receive;
    pub use crate::template::hostile as transmit;
}
