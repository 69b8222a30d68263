//! Answers: how a program on the direct path sends and receives packets on its own CPU time.
//! May touch: the program's own rings (`netnice-ring`), their doorbells, and the daemon's socket.
//! Must never: open a network socket, or decide what may leave; the driver checks every frame.
//!
//! # A flow's stack
//! ```text
//!   Program ── one memory file, one pair of doorbells; waiting and waking of its threads
//!     └── udp::Socket ── one of its flows, with own buffers, rings and headers
//!           send:     payload written behind the headroom ─▶ headers ─▶ submit ring
//!           receive:  deliver ring ─▶ datagram::parse ─▶ payload in place ─▶ primed again
//! ```
//! The design follows paper VERT, section 4.2: the layers of a flow are composed once, so the size
//! of all headers is known and the program writes the payload behind that headroom. A packet is one
//! record of one pair. The stack never moves a payload to make space for headers, and allocates no
//! memory for a packet, except to reassemble fragments. Flows share no buffers, rings or headers,
//! so a slow flow delays no other flow.
//!
//! The `try_…` calls of a socket return at once. Calls with the parameter `timeout` wait up to it,
//! and requests to the daemon wait for its response. Calls fail with a [`StackError`], which has a
//! variant for each cause. A program with its own event loop polls
//! [`Program::as_fd`](std::os::fd::AsFd).
//!
//! ```no_run
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use netnice_stack::udp::{Buffers, UdpOptions};
//! use netnice_stack::{Program, RuntimeDir, StackError};
//!
//! fn ask(dir: &RuntimeDir, server: SocketAddr) -> Result<(), StackError> {
//!     let buffers = Buffers::default();
//!     let program = Program::attach(dir, Some("eth0"), 1, buffers.region_bytes()?)?;
//!     let mut socket = program.open_udp(&UdpOptions {
//!         contract: Some("slice 2ms/20ms".into()),
//!         buffers,
//!         ..UdpOptions::to(server)
//!     })?;
//!     socket.send(b"what time is it?", None)?;
//!     let mut reply = [0; 1500];
//!     let received = socket.recv(&mut reply, Some(Duration::from_secs(1)))?;
//!     println!("{:?}", &reply[..received.bytes]);
//!
//!     // Without a copy: the payload is written into the buffer that the driver reads.
//!     let packet = socket.packet()?;
//!     socket.payload_mut(&packet)?[..4].copy_from_slice(b"bye!");
//!     socket.queue(packet, 4).map_err(|(_, error)| error)?;
//!     socket.drain(Some(Duration::from_secs(1)))
//! }
//! ```
//!
//! # In an event loop
//! A program has one descriptor for all of its flows and for notifications from the daemon. In this
//! example tokio waits for it. Any loop over poll(2) or epoll(7) takes the same three steps:
//! [`Program::arm`], wait, [`Program::poll`].
//!
//! ```no_run
//! use netnice_stack::{Program, Socket, StackError};
//! use tokio::io::unix::AsyncFd;
//!
//! async fn echo(program: Program, mut socket: Socket) -> Result<(), StackError> {
//!     let descriptor = AsyncFd::new(program.clone())?;
//!     let mut bytes = [0; 2048];
//!     loop {
//!         match socket.try_recv(&mut bytes) {
//!             Ok(received) => match socket.try_send(&bytes[..received.bytes]) {
//!                 // If all buffers are in use, this reply is not sent, as UDP permits.
//!                 Ok(_) | Err(StackError::WouldBlock) => continue,
//!                 Err(error) => return Err(error),
//!             },
//!             Err(StackError::WouldBlock) => {}
//!             Err(error) => return Err(error),
//!         }
//!         // Request a doorbell notification, wait unless something has arrived, then read it.
//!         if program.arm() {
//!             descriptor.readable().await?.clear_ready();
//!         }
//!         program.poll(|_slot| {});
//!         while let Some(notification) = program.next_notification() {
//!             println!("{notification:?}");
//!         }
//!     }
//! }
//! ```
#![forbid(unsafe_code)]

mod address;
mod checksum;
mod clock;
mod control;
pub mod datagram;
mod error;
// The tests of the C library include the same fake daemon, which refers to this crate by its name.
#[cfg(test)]
extern crate self as netnice_stack;
#[cfg(test)]
mod fake_daemon;
mod fragments;
pub mod headers;
mod holds;
mod moving;
pub mod own;
mod program;
pub mod protocol;
mod readable;
mod reports;
pub mod segments;
mod service;
mod sleeper;
pub mod tcp;
pub mod udp;

pub use address::Address;
pub use clock::monotonic_ns;
pub use error::StackError;
pub use headers::{FlowAddress, Headers};
pub use holds::{HeldPromise, route_to};
pub use netnice_api::direct::{
    DeliveryFailure, FlowNotification, ResolvedNextHop, RouteToHost, Undelivered,
};
pub use netnice_api::{FailureCause, RuntimeDir};
pub use netnice_ring::Status;
pub use netnice_ring::driver::Loss;
pub use program::Program;
pub use protocol::{EtherOptions, IpOptions, Term};
pub use sleeper::Sleeper;
pub use udp::{Datagram, MessageCounts, Outcome, Packet, Socket};

/// The examples of README.md, which are tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;
