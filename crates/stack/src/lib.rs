//! Answers: how a program on the direct path sends and receives UDP datagrams by itself, on its own processor time.
//! May touch: the program's own rings (`netnice-ring`) and their doorbells.
//! Must never: open a socket of the kernel, or decide what may leave; the driver checks every frame anyway.
//!
//! # A flow's stack
//! ```text
//!   Program ── one memory file, one pair of doorbells; who waits for what
//!     └── udp::Socket ── one flow: buffers, rings and headers of its own
//!           send:     payload written behind the header room ─▶ headers ─▶ submit ring
//!           receive:  deliver ring ─▶ datagram::read ─▶ payload in place ─▶ primed again
//! ```
//! After paper VERT, section 4.2: the layers of a flow are composed once, so the room for all headers is known, the
//! payload is written behind it, and a packet is one record of one pair; nothing is prepended and nothing allocated. Flows
//! share nothing, so one that is slow holds up no other.
//!
//! Three ways to wait: not at all (`try_…`), blocked with a time limit, or in a loop of one's own that polls
//! [`Program::as_fd`](std::os::fd::AsFd).
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use netnice_ring::{Place, program::Attachment};
//! use netnice_stack::{FlowAddress, Program, StackError, udp::Checks};
//!
//! fn ask(driver: Attachment, place: Place, address: FlowAddress) -> Result<(), StackError> {
//!     let mut socket = Program::new(driver).udp(place, &address, Checks::Verify)?;
//!     socket.send(b"what time is it?", None)?;
//!     let mut answer = [0; 1500];
//!     let received = socket.recv(&mut answer, Some(Duration::from_secs(1)))?;
//!     println!("{:?}", &answer[..received.bytes]);
//!
//!     // Without a copy: written where the driver takes it from.
//!     let packet = socket.packet()?;
//!     socket.payload_mut(&packet)?[..4].copy_from_slice(b"bye!");
//!     socket.queue(packet, 4).map_err(|(_, error)| error)?;
//!     socket.flush();
//!     Ok(())
//! }
//! ```
#![forbid(unsafe_code)]

mod checksum;
pub mod datagram;
pub mod headers;
mod program;
pub mod udp;

pub use headers::{FlowAddress, Headers};
pub use program::{Program, StackError};
pub use udp::{Datagram, Outcome, Packet, Socket};
