//! A UDP socket: one flow with its buffers and its headers.
//!
//! ```text
//!  send:     packet() ─▶ payload_mut() (in place) ─▶ queue() ─▶ flush() ─▶ driver
//!  receive:  driver ─▶ receive() ─▶ payload() (in place) ─▶ release() (primed again)
//! ```
//! `try_send`, `send`, `try_recv` and `recv` do the same with a copy of the payload. A part of the
//! buffers is primed for receiving when the socket opens; the rest sends. A sent packet comes back
//! with its result ([`Socket::outcome`]). A program that does not ask for results still gets the
//! buffers back.
//!
//! | flow with | sends by | receives |
//! |---|---|---|
//! | one host | `send`, … | from that host only |
//! | any host | `send_to`, …: to the host that the call names | from any host |
//! | a group | `send`, …: to the group | everything that is sent to the group |
//!
//! On a flow to any host the socket needs the next hop of each host. It asks the daemon once for
//! each host ([`Program::next_hop`]). On the other two kinds of flow the driver writes the next hop
//! into each frame, so a change of the next hop changes nothing here.
//!
//! # Result of a packet
//!
//! - [`DONE`](netnice_ring::Status::DONE): the driver handed it to the NIC. The stamp is the time.
//! - [`NO_LINK`](netnice_ring::Status::NO_LINK): the link is down, or the next hop does not answer.
//!   The [`FlowNews`](netnice_api::direct::FlowNews) `Link` and `NextHop` report when this state
//!   begins and ends.
//! - [`TOO_LONG`](netnice_ring::Status::TOO_LONG): the MTU decreased ([`Socket::longest`] has
//!   followed), or the contract never permits a packet of this length.
//! - [`FORBIDDEN`](netnice_ring::Status::FORBIDDEN): the flow may not send to the address, which is
//!   a group on a flow to any single host.

mod options;
mod receiving;
mod sending;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use netnice_api::direct::{ChangeFlow, DirectRequest, FlowOpened, Speaks};
use netnice_api::{Client, Response};
use netnice_ring::driver::Loss;
use netnice_ring::program::{Chunk, Fault, Flow, Piece, Refused};
use netnice_ring::{Shape, Status};

use crate::control::{Terms, unhoped};
pub use crate::datagram::Checks;
use crate::datagram::Found;
use crate::error::StackError;
use crate::headers::{ETHERNET, FlowAddress, Headers};
use crate::parts::Parts;
#[cfg(doc)]
use crate::program::Program;
use crate::program::Shared;
pub use options::{Buffers, UdpOptions, With};
pub use receiving::Received;
pub use sending::OUTCOMES;

/// Longest time for which a closed flow counts as one that cannot do anything now, until the daemon's
/// message with the reason arrives.
const REASON: Duration = Duration::from_secs(1);

/// A UDP flow. Dropping it closes the flow. Queued packets are then not sent ([`Socket::drain`]
/// waits until they are).
pub struct Socket {
    shared: Arc<Shared>,
    flow: Flow,
    id: Option<u32>,
    local: SocketAddr,
    local_mac: [u8; 6],
    hops: u8,
    peer: Peer,
    /// Bytes of the headers in front of a payload.
    room: usize,
    /// Bytes of the longest IP packet that a buffer holds.
    holds: u32,
    terms: Arc<Terms>,
    /// When the socket saw that the ring is closed and did not have the reason yet.
    closed: OnceLock<Instant>,
    contract: String,
    checks: Checks,
    /// Number of buffers for sending.
    sending: u32,
    /// The number of the packet in each buffer.
    carried: Box<[u64]>,
    next: u64,
    /// Number of packets that the driver has returned.
    back: u64,
    outcomes: VecDeque<Outcome>,
    dropped: Dropped,
    parts: Parts,
}

/// The remote endpoint or endpoints, with their headers.
enum Peer {
    One {
        remote: SocketAddr,
        headers: Headers,
    },
    Group {
        group: SocketAddr,
        headers: Headers,
    },
    Any {
        ways: HashMap<SocketAddr, Way>,
    },
}

/// The route to a host, and the end of its validity.
struct Way {
    headers: Headers,
    mtu: u32,
    until: Instant,
}

/// The parameters of a new socket.
pub(crate) struct Opening {
    id: Option<u32>,
    speaks: Speaks,
    mac: [u8; 6],
    next_hop: [u8; 6],
    hops: u8,
    terms: Arc<Terms>,
    contract: String,
    checks: Checks,
    receiving: u32,
}

/// A buffer for sending. A dropped packet is lost to its socket until the socket closes: pass it to
/// [`queue`](Socket::queue) or [`discard`](Socket::discard).
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Packet {
    chunk: Chunk,
}

/// A received datagram in its buffer, or in heap memory if it arrived in fragments. A dropped
/// datagram is lost to its socket until the socket closes: pass it to [`release`](Socket::release).
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Datagram {
    lies: Lies,
    found: Found,
    /// The time at which the driver received it, in ns of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

/// The memory of a received datagram.
#[derive(Debug, PartialEq, Eq)]
enum Lies {
    /// The buffer in which it arrived.
    Chunk(Chunk),
    /// Heap memory, after reassembly from fragments.
    Apart(Vec<u8>),
}

impl Datagram {
    /// The sender.
    pub fn from(&self) -> SocketAddr {
        self.found.from
    }
}

/// The result of a sent packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The number that the socket assigned when the packet was queued.
    pub number: u64,
    /// Sent, or why not.
    pub status: Status,
    /// The time of sending, in ns of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

/// Numbers of received frames that contained no datagram for this socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Frames shorter than their headers state, or truncated because the buffer was too small.
    pub short: u64,
    /// Frames that are not UDP, or that belong to another flow.
    pub foreign: u64,
    /// Fragments of datagrams that were not completed.
    pub fragment: u64,
    /// Frames with a wrong checksum.
    pub checksum: u64,
}

impl Opening {
    /// The parameters of a flow that a daemon granted.
    pub(crate) fn granted(
        options: &UdpOptions,
        opened: FlowOpened,
        terms: Arc<Terms>,
    ) -> Result<Opening, StackError> {
        if !matches!(opened.speaks, Speaks::Udp { .. } | Speaks::Group { .. }) {
            return Err(StackError::Answer("open"));
        }
        Ok(Opening {
            id: Some(opened.flow),
            speaks: opened.speaks,
            mac: opened.mac,
            // On a flow to one host or group the driver overwrites the destination in each frame.
            next_hop: opened.next_hop.unwrap_or_default(),
            hops: options.hops,
            terms,
            contract: opened.contract,
            checks: options.checks,
            receiving: options.buffers.receiving,
        })
    }

    /// The parameters of a flow that no daemon opened.
    pub(crate) fn by_hand(address: &FlowAddress, shape: &Shape, checks: Checks) -> Opening {
        Opening {
            id: None,
            speaks: Speaks::Udp {
                local: address.local,
                remote: Some(address.remote),
            },
            mac: address.local_mac,
            next_hop: address.next_hop,
            hops: address.hops,
            terms: Terms::new(address.mtu.into()),
            contract: String::new(),
            checks,
            // A record of one pair takes two entries.
            receiving: (shape.chunks / 2).min(shape.receive_entries / 2),
        }
    }

    /// The local endpoint, the remote peer, and the bytes of the headers.
    fn peer(&self) -> Result<(SocketAddr, Peer, usize), StackError> {
        let headers = |local, remote| {
            let mtu = u16::try_from(self.terms.mtu()).unwrap_or(u16::MAX);
            Headers::udp(&FlowAddress {
                local,
                remote,
                local_mac: self.mac,
                next_hop: self.next_hop,
                mtu,
                hops: self.hops,
            })
        };
        match self.speaks {
            Speaks::Udp {
                local,
                remote: Some(remote),
            } => {
                let headers = headers(local, remote)?;
                let room = headers.room();
                Ok((local, Peer::One { remote, headers }, room))
            }
            Speaks::Group { local, group } => {
                let headers = headers(local, group)?;
                let room = headers.room();
                Ok((local, Peer::Group { group, headers }, room))
            }
            Speaks::Udp {
                local,
                remote: None,
            } => {
                // All headers of one address family have the same length.
                let room = headers(local, local)?.room();
                let ways = HashMap::new();
                Ok((local, Peer::Any { ways }, room))
            }
            Speaks::Protocol { .. } | Speaks::EtherType { .. } => Err(StackError::Answer("open")),
        }
    }
}

impl Socket {
    pub(crate) fn new(
        shared: Arc<Shared>,
        flow: Flow,
        opening: Opening,
    ) -> Result<Socket, StackError> {
        let (local, peer, room) = opening.peer()?;
        let shape = flow.place().shape;
        let packet = ETHERNET + (opening.terms.mtu() as usize).min(u16::MAX.into());
        if packet > shape.chunk_bytes as usize {
            let chunk = shape.chunk_bytes;
            return Err(StackError::Chunk { chunk, packet });
        }
        let mut socket = Socket {
            shared,
            flow,
            id: opening.id,
            local,
            local_mac: opening.mac,
            hops: opening.hops,
            peer,
            room,
            holds: (shape.chunk_bytes - ETHERNET as u32).min(u16::MAX.into()),
            terms: opening.terms,
            closed: OnceLock::new(),
            contract: opening.contract,
            checks: opening.checks,
            sending: shape.chunks - opening.receiving,
            carried: vec![0; shape.chunks as usize].into_boxed_slice(),
            next: 0,
            back: 0,
            outcomes: VecDeque::new(),
            dropped: Dropped::default(),
            parts: Parts::default(),
        };
        for _ in 0..opening.receiving {
            let Some(chunk) = socket.flow.chunk() else {
                break;
            };
            socket.prime(chunk)?;
        }
        socket.flush();
        Ok(socket)
    }

    /// The local endpoint, with the address and port that the daemon chose.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The remote endpoint or the group; `None` on a flow to any host.
    pub fn remote(&self) -> Option<SocketAddr> {
        match &self.peer {
            Peer::One { remote, .. } => Some(*remote),
            Peer::Group { group, .. } => Some(*group),
            Peer::Any { .. } => None,
        }
    }

    /// The daemon's number of the flow, which `netnice_api::FlowNews` uses; `None` if no daemon
    /// opened the flow.
    pub fn id(&self) -> Option<u32> {
        self.id
    }

    /// The slot of the flow in the memory file, which [`Program::hear`] reports.
    pub fn slot(&self) -> u32 {
        self.flow.place().slot
    }

    /// Current largest payload in bytes. It decreases when the path MTU decreases. The path to some
    /// hosts can carry less ([`Program::next_hop`]).
    #[inline]
    pub fn longest(&self) -> usize {
        self.payload_of(self.terms.mtu())
    }

    /// The contract that the daemon granted last.
    pub fn contract(&self) -> &str {
        &self.contract
    }

    /// Requests another contract. If the daemon refuses it, the old one stays.
    ///
    /// # Errors
    /// If the daemon does not grant it, or there is no connection to the daemon.
    pub fn change(&mut self, change: &str) -> Result<(), StackError> {
        let flow = self.id.ok_or(StackError::Alone)?;
        let ask = DirectRequest::Change(ChangeFlow {
            flow,
            change: change.to_string(),
        });
        let control = self.shared.control()?;
        let done = control.ask(
            &self.shared.flows,
            ask,
            Client::TIMEOUT,
            |answer| match answer {
                Response::Done(done) => Ok(done),
                other => Err(unhoped(other, "change")),
            },
        )?;
        if let Some(contract) = done.contract {
            self.contract = contract;
        }
        Ok(())
    }

    /// Publishes what was queued and released, and notifies the driver if it sleeps.
    #[inline]
    pub fn flush(&mut self) {
        if self.flow.publish() {
            self.shared.ring();
        }
    }

    /// Numbers of received frames that contained no datagram for this socket.
    pub fn dropped(&self) -> Dropped {
        let fragment = self.dropped.fragment + self.parts.given_up();
        Dropped {
            fragment,
            ..self.dropped
        }
    }

    /// Number of datagrams that the driver did not deliver to this socket for the reason `why`, for
    /// example because no buffer was primed.
    pub fn lost(&self, why: Loss) -> u64 {
        self.flow.lost(why)
    }

    /// Number of datagrams that the driver did not deliver to this socket, for all reasons.
    pub fn lost_in_all(&self) -> u64 {
        [Loss::NoBuffer, Loss::OverShare, Loss::TooLong]
            .iter()
            .map(|why| self.lost(*why))
            .sum()
    }

    /// Payload bytes of an IP packet of `mtu` bytes, limited by the size of a buffer.
    #[inline]
    fn payload_of(&self, mtu: u32) -> usize {
        (mtu.min(self.holds) as usize).saturating_sub(self.room - ETHERNET)
    }

    /// Repeats `attempt` until it succeeds, fails or the timeout expires.
    fn blocked<T>(
        &mut self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut Socket) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            match attempt(self) {
                Err(StackError::NotNow) => {}
                other => return other,
            }
            // The driver must see what the attempt collected before this thread sleeps.
            self.flush();
            let reason = self.closed.get().map(|closed| *closed + REASON);
            let until = deadline.into_iter().chain(reason).min();
            if !self.shared.wait(self.flow.place().slot, until)? {
                return attempt(self);
            }
        }
    }

    /// The error for a call that would block: the reason why the flow has ended, if it has.
    fn nothing(&self) -> StackError {
        self.end().unwrap_or(StackError::NotNow)
    }

    /// The reason why the flow has ended, if it has and the reason is known or does not come.
    fn end(&self) -> Option<StackError> {
        // The ring shows the end at once. The daemon's message with the reason can be later, and a
        // program that never sleeps has not read it.
        let closed = !self.flow.is_open();
        let reason_follows = closed && self.shared.refresh();
        if let Some(must) = self.shared.ended() {
            return Some(StackError::Expelled(must));
        }
        if let Some(why) = self.shared.flows.end() {
            return Some(StackError::Ended(why.to_string()));
        }
        if let Some(why) = self.terms.end() {
            return Some(StackError::Closed(Some(why.to_string())));
        }
        let waits = reason_follows && self.closed.get_or_init(Instant::now).elapsed() < REASON;
        (closed && !waits).then_some(StackError::Closed(None))
    }

    fn over(&self, error: Fault) -> StackError {
        match (self.end(), error) {
            (Some(end), _) => end,
            (None, Fault::Closed) => StackError::NotNow,
            (None, breach) => StackError::Driver(breach),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(flow) = self.id {
            self.shared.close(flow);
        }
    }
}

fn fault(refused: Refused) -> StackError {
    StackError::Buffer(refused)
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
