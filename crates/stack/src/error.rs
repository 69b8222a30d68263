//! The error type of the crate ([`StackError`]): why a call failed. No function of this module
//! fails.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netnice_api::direct::{DeliveryFailure, PATTERN_REACH, Term, Undelivered};
use netnice_api::{ClientError, FailureCause, RefusedBy};
use netnice_ring::layout::SetupError;
use netnice_ring::program::{FlowError, RecordError};

use crate::address::Address;
use crate::headers::AddressError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// The call would block, or its timeout expired: no buffer is free, the ring is full, the
    /// overload policy of a `channel` contract makes the message wait, no datagram has arrived, or
    /// the driver has not returned all packets.
    #[error("the call would block: no buffer is free, or no packet has arrived")]
    WouldBlock,
    /// The payload is longer than a buffer holds or than a packet on the path to the destination
    /// can carry.
    #[error("a payload of {length} bytes; the link carries {longest} in one packet")]
    TooLong {
        /// Bytes of the payload.
        length: usize,
        /// Largest payload in bytes.
        longest: usize,
    },
    /// The message is longer than the contract of the flow permits: its frames, headers included,
    /// have more bytes than `mmax` of the `channel` contract.
    #[error(
        "a message of {bytes} bytes with the headers of its packets; the contract's mmax, which \
         counts the headers, is {mmax} bytes"
    )]
    MessageTooLong {
        /// Bytes of the frames of the message.
        bytes: u64,
        /// The longest message.
        mmax: u64,
    },
    /// The overload policy of the flow's `channel` contract (`overload=drop`) dropped the message:
    /// as many messages wait as the contract permits.
    #[error("the message is dropped: {bmax} messages wait already, which is the contract's bmax")]
    MessageDropped {
        /// The largest number of waiting messages.
        bmax: u32,
    },
    /// The message has more packets than the flow has sending buffers, or none.
    #[error("a message of {parts} packets; the flow has room for {most} at a time")]
    TooManyPackets {
        /// Number of packets of the message.
        parts: usize,
        /// Largest number of packets: the number of sending buffers.
        most: usize,
    },
    /// A call on a flow to any host did not name a destination.
    #[error("the flow sends to any host: the call must name a destination")]
    NoRemote,
    /// A call on a flow to one host or group named a destination.
    #[error("the flow sends only to {0}: the call must not name a destination")]
    FixedRemote(SocketAddr),
    /// The destination is an IP address on a flow of an EtherType, or an Ethernet address on
    /// another flow.
    #[error(
        "the flow cannot send to {0}: a flow of an EtherType sends to Ethernet addresses, every \
             other flow to IP addresses"
    )]
    OtherAddress(Address),
    /// A term of a pattern matches no packet: its offset is too large, or its value has bits
    /// outside its mask.
    #[error(
        "no byte can have value {:#04x} under mask {:#04x} at offset {}; offsets are below {}, \
         and a value has only bits of its mask",
        .0.value, .0.mask, .0.offset, PATTERN_REACH
    )]
    Pattern(Term),
    /// A TCP connection has failed or ended, or was shut down.
    #[error(transparent)]
    Connection(netnice_tcp::connection::WriteError),
    /// A listener has room for no connection.
    #[error("a backlog of 0: a listener needs room for 1 connection at least")]
    Backlog,
    /// A connection of TCP cannot get a flow of its own.
    #[error(transparent)]
    Promote(PromoteError),
    /// A flow of TCP has too few buffers.
    #[error(
        "{sending} buffers for sending and {receiving} for receiving: a flow of TCP needs {} and \
         {} at least, for two segments each way and for acknowledgements", .least.0, .least.1
    )]
    FewBuffers {
        /// Number of buffers for sending.
        sending: u32,
        /// Number of buffers for receiving.
        receiving: u32,
        /// The least of both numbers.
        least: (u32, u32),
    },
    /// A router or the remote host reported that an earlier packet was not delivered; only on a
    /// flow that was opened with [`UdpOptions::errors`](crate::udp::UdpOptions::errors).
    #[error("{} was not reached: {}", .0.to, reason(.0))]
    Undelivered(Undelivered),
    /// The next hop to the host is unknown, or its entry has expired.
    #[error("the next hop to {0} is unknown: request it first")]
    UnknownNextHop(IpAddr),
    /// The flow is closed, with the reason if the daemon gave one. Before the daemon's message with
    /// the reason arrives, calls on a [`Socket`](crate::Socket) fail with
    /// [`WouldBlock`](StackError::WouldBlock) for at most a second. On a connection of TCP, calls
    /// that may wait do so for it, at most for a second; other calls fail without the reason.
    #[error("the flow is closed{}", with_reason(.0))]
    Closed(Option<String>),
    /// All flows have ended, with the reason that the daemon gave: the driver ended, or it
    /// disconnected the program.
    #[error("the direct path ended: {0}")]
    Ended(String),
    /// The driver disconnected the program for breaking the rule with this number.
    #[error("the driver disconnected this program: it broke rule R{0} of docs/reference/ring.md")]
    Disconnected(u32),
    /// The driver broke a rule of `docs/reference/ring.md`.
    #[error(transparent)]
    Driver(FlowError),
    /// The buffer does not belong to this socket, or the program does not hold it.
    #[error("{0}")]
    Buffer(RecordError),
    /// The addresses of the flow have different families, or its MTU is too small for a payload.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A buffer is smaller than a packet of the link.
    #[error("buffers of {chunk} bytes do not hold a packet of {packet} bytes")]
    SmallBuffers {
        /// Size of a buffer, in bytes.
        chunk: u32,
        /// Length of the longest frame, in bytes.
        packet: usize,
    },
    /// The number or the size of the buffers, the memory file, or the flow's location in the file
    /// is invalid; or the file cannot be mapped.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A system call failed: waiting for the driver and the daemon, or creating a descriptor when
    /// the program attached.
    #[error("cannot wait for the driver: {0}")]
    Wait(#[from] io::Error),
    /// Communication with the daemon failed. Flows that are open continue.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// There is no connection to the daemon, or it was lost earlier. Flows that are open continue.
    #[error("there is no connection to the daemon: open flows continue, but cannot be changed")]
    NoDaemon,
    /// The daemon refused the request.
    #[error("{text}")]
    Refused {
        /// The part of the daemon that refused.
        by: RefusedBy,
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
        /// The cause, if it is one for which the socket calls have an errno.
        cause: Option<FailureCause>,
    },
    /// The daemon's response does not have the type or the contents that the request calls for.
    #[error("the response of the daemon does not fit the request `{0}`")]
    UnexpectedResponse(&'static str),
}

/// Why a connection cannot get a flow of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromoteError {
    /// The program opened the connection.
    #[error(
        "the program opened this connection, which has a flow of its own since then: promotion is \
         for connections that a listener accepted"
    )]
    Opened,
    /// The connection was promoted before.
    #[error("the connection was promoted before, and has a flow of its own")]
    Promoted,
    /// Both ends have shut down.
    #[error("both ends of the connection have shut down: it needs no flow of its own")]
    Ended,
}

/// A report in words.
fn reason(report: &Undelivered) -> String {
    let by = report.by;
    match (report.why, report.mtu) {
        (DeliveryFailure::NoNetwork, _) => format!("{by} has no route to its network"),
        (DeliveryFailure::NoHost, _) => format!("{by} cannot reach the host"),
        (DeliveryFailure::NoPort, _) => format!("{by} has no socket at the port"),
        (DeliveryFailure::Forbidden, _) => format!("{by} forbids the packet"),
        (DeliveryFailure::Expired, _) => format!("the hop limit was used up at {by}"),
        (DeliveryFailure::TooLong, Some(mtu)) => {
            format!("the packet is longer than the path MTU behind {by}, {mtu} bytes")
        }
        (DeliveryFailure::TooLong, None) => {
            format!("the packet is longer than the path MTU behind {by}")
        }
    }
}

fn with_reason(why: &Option<String>) -> String {
    match why {
        Some(why) => format!(": {why}"),
        None => String::new(),
    }
}
