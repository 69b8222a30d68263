//! Why a call did nothing.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netnice_api::{ClientError, Gate};
use netnice_ring::layout::SetupError;
use netnice_ring::program::{Fault, Refused};

use crate::headers::AddressError;

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// Nothing can be done now: no buffer is free, or nothing has come.
    #[error("not now")]
    NotNow,
    /// The payload is longer than the way to the other end carries in one packet.
    #[error("a payload of {length} bytes; the link carries {longest} in one packet")]
    TooLong {
        /// Its length.
        length: usize,
        /// The most that there can be.
        longest: usize,
    },
    /// A message of more packets than the flow has buffers and room for.
    #[error("a message of {parts} packets; the flow has room for {most} at a time")]
    TooMany {
        /// Its packets.
        parts: usize,
        /// The most that there can be.
        most: usize,
    },
    /// A flow to any host was not told to which one.
    #[error("the flow sends to any host, and the call names none")]
    NoRemote,
    /// A flow to one host, or to a group, was told another.
    #[error("the flow sends to {0} and to nobody else")]
    OneRemote(SocketAddr),
    /// It is not known, or not any more, through which station a host is reached.
    #[error("through which station {0} is reached has to be asked for first")]
    NoHop(IpAddr),
    /// The flow is closed.
    #[error("the flow is closed{}", because(.0))]
    Closed(Option<String>),
    /// The driver ended, and all flows with it.
    #[error("the direct path ended: {0}")]
    Ended(String),
    /// The driver expelled the program.
    #[error("the driver expelled this program for breaking rule R{0} of docs/reference/ring.md")]
    Expelled(u32),
    /// The driver broke a rule.
    #[error(transparent)]
    Driver(Fault),
    /// A buffer that is not this socket's.
    #[error("{0}")]
    Buffer(Refused),
    /// The addresses make no flow.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A buffer is too small.
    #[error("buffers of {chunk} bytes do not hold a packet of {packet} bytes")]
    Chunk {
        /// Bytes of a buffer.
        chunk: u32,
        /// Bytes of the longest frame.
        packet: usize,
    },
    /// The memory file does not have it.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The doorbell cannot be waited for.
    #[error("waiting for the driver: {0}")]
    Wait(#[from] io::Error),
    /// The daemon cannot be asked. Flows that are open go on.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// The connection to the daemon was lost before. Flows that are open go on.
    #[error("the connection to the daemon was lost: open flows go on, but cannot be changed")]
    Alone,
    /// The daemon understood, and does not grant it.
    #[error("{text}")]
    Refused {
        /// Who refuses.
        by: Gate,
        /// Why, and what would be granted; may have several lines.
        text: String,
    },
    /// The daemon did not understand, or it is not possible.
    #[error("{text}")]
    Failed {
        /// Why, and what to try.
        text: String,
        /// Whether the request itself makes no sense.
        bad_usage: bool,
    },
    /// The daemon answered something else.
    #[error("the daemon gave another answer than one to `{0}`")]
    Answer(&'static str),
}

fn because(why: &Option<String>) -> String {
    match why {
        Some(why) => format!(": {why}"),
        None => String::new(),
    }
}
