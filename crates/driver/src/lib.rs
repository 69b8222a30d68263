//! Answers: which packet of which flow a NIC sends next, and to which flow a received one belongs.
//! May touch: packet sockets, programs' memory, runtime folder, inotify, seccomp, `netnice_kernel`.
//! Must never: send what a template forbids, charge one flow for another, or read ring data twice.
//!
//! # The pure parts
//! They do no input or output and read no clock: the caller passes bytes and the time. (Only
//! [`datapath`] reads and writes the memory shared with programs, and writes the programs'
//! doorbells and times these writes.)
//!
//! - [`frame`] reads the headers of a received frame, strictly and once.
//! - [`template`] restricts what a flow may send: it compares the headers of each packet, in the
//!   driver's own copy, under a mask.
//! - [`segments`] cuts received packets that are longer than those of the wire.
//! - [`demux`] finds the flow of a received frame by endpoints, port, group, the first fragment of
//!   its datagram, or the pattern of another protocol. Other frames are the kernel's, or are
//!   discarded with a reason.
//! - [`protocol`] lists the protocols that a flow can use.
//! - `pattern` compiles the descriptions of another protocol's packets into few masks and values,
//!   which are looked up by hash.
//! - [`receive_budget`] limits the driver's time for received packets, of one flow and of all.
//! - [`datapath`] takes packets from the rings in the scheduler's order, copies and checks them,
//!   and gives them to the NIC. It gives received frames to the rings of their flows.
//! - [`frames`] tracks which side, the driver or the kernel, holds each frame of packet memory.
//!
//! # The interface
//! [`link`] sends and receives frames by AF_XDP, or by AF_PACKET on request or where AF_XDP is
//! refused. [`event_loop`] runs the iterations around the datapath and the link. [`path_counter`]
//! reads what the kernel's own path was given to send on the link. `mapping` maps memory.
//!
//! # The process
//! `netnice-driver` has three threads: the packet thread runs the event loop; the control thread
//! (`control`) serves the daemon, keeps the list of programs and does the slow work (`setup`
//! parses the daemon's requests); a third thread writes the doorbells that take long
//! (`doorbells`). [`commands`] carries commands and reports between the first two threads, [`run`]
//! starts all threads, and `confine` restricts their rights. [`run::run`] fails with
//! [`run::RunError`] if set-up fails, the interface is lost, or a thread ends unexpectedly.

pub(crate) mod clock;
pub(crate) mod code_points;
pub mod commands;
pub(crate) mod confine;
pub(crate) mod control;
#[cfg(test)]
mod damage;
pub mod datapath;
pub mod demux;
pub(crate) mod doorbells;
pub mod event_loop;
pub mod frame;
pub mod frames;
pub mod link;
pub(crate) mod mapping;
pub mod path_counter;
pub(crate) mod pattern;
pub mod protocol;
pub mod receive_budget;
pub mod redirect_map;
pub mod run;
pub mod segments;
pub(crate) mod setup;
pub(crate) mod stop_file;
pub mod template;
#[cfg(any(test, fuzzing))]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "the targets of fuzz/ use a part of it")
)]
mod test_frames;

/// Entry points of the fuzz targets.
#[cfg(fuzzing)]
pub mod hostile {
    pub use crate::control::hostile as connection;
    pub use crate::demux::hostile as receive;
    pub use crate::segments::hostile as cut;
    pub use crate::template::hostile as transmit;
}
