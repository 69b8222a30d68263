//! A socket: one flow with its buffers and its headers. The text describes UDP flows;
//! [`crate::protocol`] has the differences of flows of other protocols.
//!
//! ```text
//!  send:     packet() ─▶ payload_mut() (in place) ─▶ queue() ─▶ flush() ─▶ driver
//!  receive:  driver ─▶ receive() ─▶ payload() (in place) ─▶ release() (primed again)
//! ```
//! `try_send`, `send`, `try_recv` and `recv` do the same with a copy of the payload. A part of the
//! buffers is primed for receiving when the socket opens; the others are for sending. A sent packet
//! comes back with its result ([`Socket::outcome`]). A program that does not ask for results still
//! gets the buffers back. A call fails with a [`StackError`] if it would block, if its payload,
//! destination or buffer is invalid, if the next hop is unknown, if the daemon cannot be reached or
//! refuses, if a system call fails, or if the flow has ended. `queue` then returns the packet too.
//!
//! | flow with | sends by | receives |
//! |---|---|---|
//! | one host | `send`, … | from that host only |
//! | any host | `send_to`, …: to the host that the call names | from any host |
//! | a group | `send`, …: to the group | everything that is sent to the group |
//!
//! On a flow to any host the socket needs the next hop to each host. [`Socket::send_to`] requests
//! it from the daemon; the other calls fail unless [`Program::next_hop`] has requested it. The
//! daemon's response is valid for 30 s. On the other two kinds of flow the driver writes the next
//! hop into each frame.
//!
//! # Errors from the network
//!
//! If a router or the remote host reports that it did not deliver a packet (ICMP), the program gets
//! the notification `Undelivered`, and [`Socket::take_error`] returns the report. With
//! [`UdpOptions::errors`] the next call that sends, or that would block, fails with it once, as a
//! connected socket does. A packet that was too long for the path lowers the path MTU:
//! [`Socket::longest`], or what fits to this host on a flow to any host. After 10 minutes longer
//! packets are tried again.
//!
//! # Result of a packet
//!
//! - [`DONE`](netnice_ring::Status::DONE): the driver handed the packet to the NIC, at the time of
//!   the stamp.
//! - [`NO_LINK`](netnice_ring::Status::NO_LINK): the link is down, or the next hop does not answer.
//!   The [`FlowNotification`](netnice_api::direct::FlowNotification) `Link` and `NextHop` report
//!   when this state begins and ends.
//! - [`TOO_LONG`](netnice_ring::Status::TOO_LONG): the MTU decreased after the packet was queued
//!   ([`Socket::longest`]), or the contract never permits a packet of this length.
//! - [`FORBIDDEN`](netnice_ring::Status::FORBIDDEN): the driver refuses the headers of the packet,
//!   for example because the destination on a flow to any host is not a single host.

mod messages;
mod moving;
mod open_flow;
mod options;
mod receiving;
mod sending;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use netnice_api::direct::{ChangeFlow, DirectRequest, Undelivered};
use netnice_api::{Client, Response};
use netnice_ring::driver::Loss;
use netnice_ring::program::{Chunk, FlowError, Piece, ProgramRings, RecordError};
use netnice_ring::{MessagePart, Shape, Status};

use crate::address::Address;
use crate::control::{FlowStatus, unexpected_response};
pub use crate::datagram::Checks;
use crate::datagram::ParsedDatagram;
use crate::error::StackError;
use crate::fragments::Reassembly;
use crate::headers::{AddressError, ETHERNET, FlowAddress, Headers};
#[cfg(doc)]
use crate::program::Program;
use crate::program::Shared;
pub use messages::MessageCounts;
use messages::Messages;
use open_flow::SocketParameters;
pub(crate) use options::open_request;
pub use options::{Buffers, Remote, UdpOptions};
pub use receiving::Received;
pub use sending::OUTCOMES;

/// Longest time for which calls on a closed flow wait or fail with [`StackError::WouldBlock`],
/// because the daemon's message with the reason has not arrived.
pub(crate) const REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// A flow with its buffers and headers. Dropping the socket closes the flow if a daemon opened
/// it, and waits up to 5 s for the daemon's response. Packets that wait in the rings are then not
/// sent: call [`Socket::drain`] before.
pub struct Socket {
    carried: Carried,
    /// The program's first attachment, on which the flow was opened.
    first: Arc<Shared>,
    /// The attachment to the link that has the flow, and its index.
    shared: Arc<Shared>,
    attachment: usize,
    /// The slot under which the program knows the flow.
    shown_slot: u32,
    flow: ProgramRings,
    id: Option<u32>,
    local: SocketAddr,
    local_mac: [u8; 6],
    hops: u8,
    remote: RemoteHeaders,
    /// Bytes of all headers in front of a payload.
    headroom: usize,
    /// Length of the longest IP packet that a buffer holds, in bytes.
    max_packet: u32,
    status: Arc<FlowStatus>,
    /// True if calls fail with reported errors.
    errors: bool,
    /// The time at which the socket found the ring closed without having the reason yet.
    closed: OnceLock<Instant>,
    contract: String,
    messages: Messages,
    accepts_arrivals: bool,
    checks: Checks,
    /// As the program has asked for them; the interface may not permit partial checksums.
    wanted_checks: Checks,
    /// Number of buffers for sending.
    sending: u32,
    /// The packet that is queued in each buffer.
    queued: Box<[QueuedPacket]>,
    /// Received datagrams that the socket took over from the link that had the flow before.
    taken_over: VecDeque<Datagram>,
    /// What [`Socket::lost`] counted there.
    lost_before: [u64; 3],
    next_number: u64,
    /// Number of packets that the driver has returned.
    returned: u64,
    outcomes: VecDeque<Outcome>,
    dropped: Dropped,
    reassembly: Reassembly,
}

/// The remote endpoint or endpoints, with their headers.
enum RemoteHeaders {
    One {
        remote: SocketAddr,
        headers: Headers,
    },
    Group {
        group: SocketAddr,
        headers: Headers,
    },
    Any {
        routes: HashMap<SocketAddr, Route>,
    },
    /// The stations of the link, on a flow of an EtherType. Each packet names its destination.
    Stations {
        headers: Headers,
    },
}

/// What the flow carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carried {
    /// UDP datagrams.
    Udp,
    /// Payloads of the IP protocol with this number.
    Ip(u8),
    /// Payloads of this EtherType.
    Ether(u16),
}

/// The settings of a socket that the daemon does not need.
pub(crate) struct Settings {
    /// TTL or hop limit.
    pub(crate) hops: u8,
    pub(crate) checks: Checks,
    /// Number of buffers for receiving.
    pub(crate) receiving: u32,
    /// True if calls fail with reported errors.
    pub(crate) errors: bool,
}

/// The route to a host, and the end of its validity.
struct Route {
    headers: Headers,
    mtu: u32,
    until: Instant,
}

impl Settings {
    /// The settings for a hop limit of 64.
    pub(crate) fn new(buffers: Buffers) -> Settings {
        Settings {
            hops: 64,
            checks: Checks::Partial,
            receiving: buffers.receiving,
            errors: false,
        }
    }
}

/// A buffer for sending. If the value is dropped, the socket cannot use the buffer any more: pass
/// the value to [`queue`](Socket::queue) or [`discard`](Socket::discard).
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Packet {
    chunk: Chunk,
}

/// A received datagram in its buffer, or in heap memory if it arrived in fragments. If the value is
/// dropped, the socket cannot use the buffer any more: pass the value to
/// [`release`](Socket::release).
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Datagram {
    storage: Storage,
    parsed: ParsedDatagram,
    /// The time at which the driver received the datagram, or the fragment that completed it, in ns
    /// of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

/// A packet that was queued and not returned.
#[derive(Clone, Copy, Debug)]
struct QueuedPacket {
    number: u64,
    /// Bytes of the frame; 0 if the buffer has no such packet.
    length: u32,
    part: MessagePart,
}

impl QueuedPacket {
    const NONE: QueuedPacket = QueuedPacket {
        number: 0,
        length: 0,
        part: MessagePart::Begins,
    };
}

/// The memory of a received datagram.
#[derive(Debug, PartialEq, Eq)]
enum Storage {
    /// The buffer in which the datagram arrived.
    Chunk(Chunk),
    /// Heap memory, after reassembly from fragments.
    Heap(Vec<u8>),
}

impl Datagram {
    /// The address and port of the sender.
    pub fn from(&self) -> SocketAddr {
        self.parsed.from
    }
}

/// The result of a sent packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The number that the socket assigned when the packet was queued.
    pub number: u64,
    /// The result: sent, or the reason why the packet was not sent.
    pub status: Status,
    /// The time at which the driver handed the packet to the NIC, in ns of `CLOCK_MONOTONIC`; 0 if
    /// the packet was not sent.
    pub stamp: u64,
}

/// Numbers of received frames that contained no datagram for this socket, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Frames shorter than their headers state. Packets longer than a buffer are not among them:
    /// the driver counts these ([`Socket::lost`]).
    pub short: u64,
    /// Frames of another protocol, or that belong to another flow.
    pub foreign: u64,
    /// Malformed fragments, and fragments of datagrams that were not completed.
    pub fragment: u64,
    /// Frames with a wrong checksum, or without a UDP checksum in IPv6.
    pub checksum: u64,
}

impl Carried {
    /// The headers of the flow. Fails if the addresses or the MTU do not fit.
    fn headers(self, address: &FlowAddress) -> Result<Headers, AddressError> {
        match self {
            Carried::Udp => Headers::udp(address),
            Carried::Ip(protocol) => Headers::ip(address, protocol),
            Carried::Ether(number) => Ok(Headers::ethernet(address, number)),
        }
    }
}

impl Socket {
    /// Makes the socket of an open flow, and primes its receive buffers. Fails if the endpoint, the
    /// addresses or the MTU do not fit the protocol, if a buffer is smaller than a packet, or if
    /// the flow has ended.
    fn new(
        shared: Arc<Shared>,
        flow: ProgramRings,
        parameters: SocketParameters,
    ) -> Result<Socket, StackError> {
        let (local, remote, headroom) = parameters.endpoints()?;
        let shape = flow.location().shape;
        let packet = ETHERNET + (parameters.status.mtu() as usize).min(u16::MAX.into());
        if packet > shape.chunk_bytes as usize {
            let chunk = shape.chunk_bytes;
            return Err(StackError::SmallBuffers { chunk, packet });
        }
        let mut socket = Socket {
            accepts_arrivals: shared.attachment.accepts_arrivals(),
            carried: parameters.carried(),
            shown_slot: shared.moved.show_new(flow.location().slot),
            first: shared.clone(),
            attachment: 0,
            flow,
            id: parameters.id,
            local,
            local_mac: parameters.mac,
            hops: parameters.hops,
            remote,
            headroom,
            max_packet: (shape.chunk_bytes - ETHERNET as u32).min(u16::MAX.into()),
            status: parameters.status,
            errors: parameters.errors,
            closed: OnceLock::new(),
            messages: Messages::new(&parameters.contract),
            contract: parameters.contract,
            checks: parameters.checks.on(&shared.attachment),
            wanted_checks: parameters.checks,
            shared,
            sending: shape.chunks - parameters.receiving,
            queued: vec![QueuedPacket::NONE; shape.chunks as usize].into_boxed_slice(),
            taken_over: VecDeque::new(),
            lost_before: [0; 3],
            next_number: 0,
            returned: 0,
            outcomes: VecDeque::new(),
            dropped: Dropped::default(),
            reassembly: Reassembly::default(),
        };
        socket.prime_all()?;
        socket.flush();
        Ok(socket)
    }

    /// Primes all buffers for receiving, of a ring that has none yet. Fails if the flow has ended.
    fn prime_all(&mut self) -> Result<(), StackError> {
        for _ in 0..self.flow.location().shape.chunks - self.sending {
            let Some(chunk) = self.flow.chunk() else {
                break;
            };
            self.prime(chunk)?;
        }
        Ok(())
    }

    /// The local endpoint, with the address and port that the daemon chose. The port is 0 for an IP
    /// protocol other than UDP; the address is `0.0.0.0` for an EtherType.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The remote endpoint or the group; `None` on a flow to any host, or of an EtherType.
    pub fn remote(&self) -> Option<SocketAddr> {
        match &self.remote {
            RemoteHeaders::One { remote, .. } => Some(*remote),
            RemoteHeaders::Group { group, .. } => Some(*group),
            RemoteHeaders::Any { .. } | RemoteHeaders::Stations { .. } => None,
        }
    }

    /// The EtherType of the flow; `None` on a flow of an IP protocol.
    pub fn ether_type(&self) -> Option<u16> {
        match self.carried {
            Carried::Ether(number) => Some(number),
            Carried::Udp | Carried::Ip(_) => None,
        }
    }

    /// The interface that carries the flow now: a flow whose route moves goes to another one.
    /// `None` without a daemon.
    pub fn iface(&self) -> Option<&str> {
        self.shared.iface()
    }

    /// The Ethernet address of the link when the flow was opened, or moved to it.
    pub fn local_mac(&self) -> [u8; 6] {
        self.local_mac
    }

    /// The daemon's number of the flow, which a
    /// [`FlowNotification`](netnice_api::direct::FlowNotification) contains; `None` if no daemon
    /// opened the flow.
    pub fn id(&self) -> Option<u32> {
        self.id.map(|_| self.status.number())
    }

    /// The number of the flow that [`Program::poll`] reports: its slot in the memory file of the
    /// program's first link, or a greater number than a slot. It does not change if the flow moves.
    pub fn slot(&self) -> u32 {
        self.shown_slot
    }

    /// Length of the longest payload at present, in bytes: what the path MTU leaves, and at most
    /// what a buffer holds. 0 after the daemon has reported the end of the flow. On a flow to any
    /// host, the path to some hosts can carry less ([`Program::next_hop`]).
    #[inline]
    pub fn longest(&self) -> usize {
        self.payload_of(self.status.mtu())
    }

    /// The longest message that a `channel` contract permits, in bytes: its `mmax`. It counts the
    /// whole frames of all packets of the message, from the Ethernet header on: 42 bytes of headers
    /// for each IPv4 datagram, and 62 for each IPv6 datagram. `None` for other contracts.
    pub fn longest_message(&self) -> Option<u64> {
        self.messages.longest()
    }

    /// The numbers of messages of a `channel` contract. Zero for other contracts.
    pub fn messages(&self) -> MessageCounts {
        self.messages.counts()
    }

    /// When the message that a call refused last with [`StackError::WouldBlock`] can be queued, if
    /// the overload policy spaces messages (`overload=space`) and only time has to pass. `None` if
    /// the driver must return packets first. Calls that wait take it into account.
    pub fn retry_at(&self) -> Option<Instant> {
        self.messages.retry_at()
    }

    /// Sets when the message that is queued next arrived, in ns of `CLOCK_MONOTONIC`; `None`: when
    /// it is queued. The deadline of a `channel` contract counts from there, if the message comes
    /// to the driver within the contract's `processing`. A stop of the driver does not count. A
    /// program whose messages are due at fixed times sets these times, so that a delay of the
    /// program does not move the deadline. A longer delay moves the deadlines of all later messages
    /// too, if the program sends exactly Rmax messages per second: give Rmax some room.
    pub fn set_arrival(&mut self, arrival: Option<u64>) {
        self.messages.set_arrival(arrival);
    }

    /// True if the driver has closed the flow.
    pub fn is_closed(&self) -> bool {
        !self.flow.is_open()
    }

    /// The contract that the daemon granted last, as text; empty if no daemon opened the flow.
    pub fn contract(&self) -> &str {
        &self.contract
    }

    /// Requests another contract: `change` is the text of the changed clauses. If the daemon
    /// refuses, the old contract stays.
    ///
    /// # Errors
    /// If the daemon does not grant it, there is no connection to the daemon, or the connection
    /// fails.
    pub fn change(&mut self, change: &str) -> Result<(), StackError> {
        let flow = self.id().ok_or(StackError::NoDaemon)?;
        let request = DirectRequest::Change(ChangeFlow {
            flow,
            change: change.to_string(),
        });
        let control = self.shared.control()?;
        let done =
            control.request(
                &self.shared.flows,
                request,
                Client::TIMEOUT,
                |response| match response {
                    Response::Done(done) => Ok(done),
                    other => Err(unexpected_response(other, "change")),
                },
            )?;
        if let Some(contract) = done.contract {
            self.set_contract(&contract);
        }
        Ok(())
    }

    /// Takes over a granted contract.
    fn set_contract(&mut self, contract: &str) {
        self.messages.set_contract(contract);
        contract.clone_into(&mut self.contract);
    }

    /// Publishes the queued packets and the released buffers. Notifies the driver if it sleeps,
    /// unless only the receiving direction changed.
    #[inline]
    pub fn flush(&mut self) {
        if self.flow.publish() {
            self.shared.notify();
        }
    }

    /// Numbers of received frames that contained no datagram for this socket.
    pub fn dropped(&self) -> Dropped {
        let fragment = self.dropped.fragment + self.reassembly.discarded();
        Dropped {
            fragment,
            ..self.dropped
        }
    }

    /// Number of received packets that the driver did not deliver to this socket for the reason
    /// `why`, for example because no buffer was primed.
    pub fn lost(&self, why: Loss) -> u64 {
        self.lost_before[why as usize] + self.flow.lost(why)
    }

    /// Number of received packets that the driver did not deliver to this socket, for all reasons.
    pub fn lost_total(&self) -> u64 {
        [Loss::NoBuffer, Loss::OverBudget, Loss::TooLong]
            .iter()
            .map(|why| self.lost(*why))
            .sum()
    }

    /// Payload bytes of an IP packet of `mtu` bytes, limited by the size of a buffer.
    #[inline]
    fn payload_of(&self, mtu: u32) -> usize {
        (mtu.min(self.max_packet) as usize).saturating_sub(self.headroom - ETHERNET)
    }

    /// Repeats `attempt` until it succeeds, fails or the timeout expires.
    fn block_on<T>(
        &mut self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut Socket) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            match attempt(self) {
                Err(StackError::WouldBlock) => {}
                other => return other,
            }
            // The driver must see the primed buffers before this thread sleeps.
            self.flush();
            let reason = self.closed.get().map(|closed| *closed + REASON_TIMEOUT);
            let ends = deadline.into_iter().chain(reason).min();
            let until = ends.into_iter().chain(self.messages.retry_at()).min();
            let is_notified = self.shared.wait(self.flow.location().slot, until)?;
            if !is_notified && ends.is_some_and(|ends| Instant::now() >= ends) {
                return attempt(self);
            }
        }
    }

    /// Removes and returns the latest report of a router or host that a packet was not delivered
    /// (`SO_ERROR` of socket(7)); `None` if there is no new one. The daemon notifies the program of
    /// each report ([`FlowNotification`](netnice_api::direct::FlowNotification)), which must have
    /// been read: by a call that sleeps, or by [`Program::poll`] or [`Program::next_notification`].
    /// Any host can forge a report.
    pub fn take_error(&self) -> Option<Undelivered> {
        self.status.reports.take()
    }

    /// The error for a call that would block: the reason why the flow has ended, if it has, or what
    /// was reported.
    fn would_block(&self) -> StackError {
        let ended = self.end_reason();
        ended
            .or_else(|| self.reported())
            .unwrap_or(StackError::WouldBlock)
    }

    /// A reported error that calls of this flow fail with.
    #[inline]
    fn reported(&self) -> Option<StackError> {
        let report = self.errors.then(|| self.status.reports.take())?;
        report.map(StackError::Undelivered)
    }

    /// The reason why the flow has ended, as the error of calls. `None` if the flow is open. Also
    /// `None`, for at most a second, if the daemon's message with the reason can still arrive
    /// ([`Socket::is_closed`]).
    pub fn end_reason(&self) -> Option<StackError> {
        if let Some(reason) = self.known_end_reason() {
            return Some(reason);
        }
        if self.flow.is_open() {
            return None;
        }
        // The ring shows the end at once. The daemon's message with the reason can be later, and a
        // program that never sleeps has not read it.
        let follows = self.shared.refresh();
        self.known_end_reason().or_else(|| {
            let since = self.closed.get_or_init(Instant::now);
            let waits = follows && since.elapsed() < REASON_TIMEOUT;
            (!waits).then_some(StackError::Closed(None))
        })
    }

    /// The reason why the flow has ended, from what was read so far.
    fn known_end_reason(&self) -> Option<StackError> {
        if let Some(rule) = self.shared.broken_rule() {
            return Some(StackError::Disconnected(rule));
        }
        if let Some(why) = self.shared.flows.end_reason() {
            return Some(StackError::Ended(why.to_string()));
        }
        let why = self.status.end_reason()?;
        Some(StackError::Closed(Some(why.to_string())))
    }

    fn flow_error(&self, error: FlowError) -> StackError {
        match (self.end_reason(), error) {
            (Some(end), _) => end,
            (None, FlowError::Closed) => StackError::WouldBlock,
            (None, violation) => StackError::Driver(violation),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(flow) = self.id() {
            self.shared.close(flow);
        }
        self.first.moved.closed(self.shown_slot, self.place());
    }
}

fn buffer_error(error: RecordError) -> StackError {
    StackError::Buffer(error)
}

/// The piece that covers a whole chunk.
fn whole(chunk: Chunk, shape: &Shape) -> Piece {
    Piece {
        chunk,
        start: 0,
        length: shape.chunk_bytes,
    }
}

#[cfg(test)]
mod tests;
