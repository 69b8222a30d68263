//! The error type of the crate: why a call had no effect.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netnice_api::{ClientError, Gate};
use netnice_ring::layout::SetupError;
use netnice_ring::program::{Fault, Refused};

use crate::headers::AddressError;

/// Why a call had no effect.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// The call would block: no buffer is free, or no packet has arrived.
    #[error("not now")]
    NotNow,
    /// The payload is longer than a packet on the path to the destination can carry.
    #[error("a payload of {length} bytes; the link carries {longest} in one packet")]
    TooLong {
        /// Bytes of the payload.
        length: usize,
        /// Largest payload in bytes.
        longest: usize,
    },
    /// The message has more packets than the flow has sending buffers.
    #[error("a message of {parts} packets; the flow has room for {most} at a time")]
    TooMany {
        /// Packets of the message.
        parts: usize,
        /// Largest number of packets.
        most: usize,
    },
    /// A call on a flow to any host did not name a destination.
    #[error("the flow sends to any host, and the call names none")]
    NoRemote,
    /// A call on a flow to one host or group named a destination.
    #[error("the flow sends to {0} and to nobody else")]
    OneRemote(SocketAddr),
    /// The next hop to the host is unknown, or its entry has expired.
    #[error("through which station {0} is reached has to be asked for first")]
    NoHop(IpAddr),
    /// The flow is closed, with the reason if the daemon gave one. A closed flow is
    /// [`NotNow`](StackError::NotNow) for at most a second until the daemon's message arrives.
    #[error("the flow is closed{}", because(.0))]
    Closed(Option<String>),
    /// The driver ended, and with it all flows.
    #[error("the direct path ended: {0}")]
    Ended(String),
    /// The driver disconnected the program for breaking the rule with this number.
    #[error("the driver expelled this program for breaking rule R{0} of docs/reference/ring.md")]
    Expelled(u32),
    /// The driver broke a rule of `docs/reference/ring.md`.
    #[error(transparent)]
    Driver(Fault),
    /// The buffer does not belong to this socket.
    #[error("{0}")]
    Buffer(Refused),
    /// The addresses are not valid for a flow.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A buffer is smaller than a packet of the link.
    #[error("buffers of {chunk} bytes do not hold a packet of {packet} bytes")]
    Chunk {
        /// Bytes of a buffer.
        chunk: u32,
        /// Bytes of the longest frame.
        packet: usize,
    },
    /// The memory file or the flow's place in it is invalid.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Waiting for the doorbell failed.
    #[error("waiting for the driver: {0}")]
    Wait(#[from] io::Error),
    /// Communication with the daemon failed. Open flows keep working.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// There is no connection to the daemon, or it was lost earlier. Open flows keep working.
    #[error("the connection to the daemon was lost: open flows go on, but cannot be changed")]
    Alone,
    /// The daemon refused the request.
    #[error("{text}")]
    Refused {
        /// The part of the daemon that refused.
        by: Gate,
        /// The reason, and what would be granted; may have several lines.
        text: String,
    },
    /// The daemon could not carry out the request.
    #[error("{text}")]
    Failed {
        /// The reason, and what to try.
        text: String,
        /// True if the request itself is invalid.
        bad_usage: bool,
    },
    /// The daemon sent a response of another type than the request calls for.
    #[error("the daemon gave another answer than one to `{0}`")]
    Answer(&'static str),
}

fn because(why: &Option<String>) -> String {
    match why {
        Some(why) => format!(": {why}"),
        None => String::new(),
    }
}
