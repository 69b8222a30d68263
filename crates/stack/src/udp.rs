//! A UDP socket: one flow, its buffers and its headers.
//!
//! ```text
//!   packet() ──▶ payload_mut() ──▶ queue() ──┐                       ┌──▶ receive() ──▶ payload() ──▶ release()
//!                  (written in place)        flush() ──▶ driver ─────┘     (read in place)        (primed again)
//! ```
//! `try_send`, `send`, `try_recv` and `recv` are the same with a copy of the payload. A part of the buffers is primed for
//! receiving from the begin, the rest sends. What was sent comes back with what became of it ([`Socket::outcome`]);
//! who does not ask still gets the buffers back.
//!
//! | with | sends by | receives |
//! |---|---|---|
//! | one other end | `send`, … | from it alone |
//! | any host | `send_to`, …: to whomever the call names | from anybody |
//! | a group | `send`, …: to the group | what anybody sends to the group |
//!
//! The way to any host begins at a station whose address is asked of the daemon, once for each host
//! ([`Program::next_hop`]). In the other two cases the driver writes it into each frame, so nothing changes here when it does.
//!
//! # What becomes of a packet
//! | status | |
//! |---|---|
//! | [`DONE`](netnice_ring::Status::DONE) | it was handed to the card; the stamp is when |
//! | [`NO_LINK`](netnice_ring::Status::NO_LINK) | the link is down, or the next station does not answer: [`FlowNews`](netnice_api::direct::FlowNews) `Link` and `NextHop` say so, and when it is over |
//! | [`TOO_LONG`](netnice_ring::Status::TOO_LONG) | the MTU became less ([`Socket::longest`] has followed), or the contract never lets so long a packet go |
//! | [`FORBIDDEN`](netnice_ring::Status::FORBIDDEN) | to an address that no flow may send to: a group, where it sends to any single host |

mod options;
mod receiving;
mod sending;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
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

/// A flow of UDP. It is closed when it is dropped; what waits in it then is not sent ([`Socket::drain`] waits for that).
pub struct Socket {
    shared: Arc<Shared>,
    flow: Flow,
    id: Option<u32>,
    local: SocketAddr,
    local_mac: [u8; 6],
    hops: u8,
    peer: Peer,
    /// Bytes in front of a payload.
    room: usize,
    /// Bytes of an IP packet that a buffer holds.
    holds: u32,
    terms: Arc<Terms>,
    contract: String,
    checks: Checks,
    /// Buffers that are there to send from.
    sending: u32,
    /// The number of the packet that each buffer carries.
    carried: Box<[u64]>,
    next: u64,
    /// Packets that came back.
    back: u64,
    outcomes: VecDeque<Outcome>,
    dropped: Dropped,
    parts: Parts,
}

/// With whom it speaks, and by which headers.
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

/// How a host is reached, as long as that is believed.
struct Way {
    headers: Headers,
    mtu: u32,
    until: Instant,
}

/// What a socket is made with.
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

/// A buffer to be sent. One that is dropped is lost to its socket: [`queue`](Socket::queue) or
/// [`discard`](Socket::discard) it.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Packet {
    chunk: Chunk,
}

/// A received datagram, in its buffer (or in memory of its own, if it came in parts). One that is dropped is lost to its socket: [`release`](Socket::release) it.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Datagram {
    lies: Lies,
    found: Found,
    /// When the driver had it, in ns of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

/// Where a received datagram lies.
#[derive(Debug, PartialEq, Eq)]
enum Lies {
    /// In the buffer that it came in.
    Chunk(Chunk),
    /// It came in parts, and was put together here.
    Apart(Vec<u8>),
}

impl Datagram {
    /// Who sent it.
    pub fn from(&self) -> SocketAddr {
        self.found.from
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The number that it got when it was queued.
    pub number: u64,
    /// Sent, or why not.
    pub status: Status,
    /// When it was sent, in ns of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

/// Frames that were received and held no datagram for this socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Shorter than their headers say, or cut because the buffer was too small.
    pub short: u64,
    /// Not UDP, or of another flow.
    pub foreign: u64,
    /// Parts of datagrams that did not become whole.
    pub fragment: u64,
    /// Wrong checksums.
    pub checksum: u64,
}

impl Opening {
    /// As a daemon granted it.
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
            // To one end the driver writes the station into each frame, whatever is there.
            next_hop: opened.next_hop.unwrap_or_default(),
            hops: options.hops,
            terms,
            contract: opened.contract,
            checks: options.checks,
            receiving: options.buffers.receiving,
        })
    }

    /// Of a flow that no daemon knows.
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

    /// With whom, and how many bytes of headers that takes.
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
                // Headers to oneself are as long as those to anybody.
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

    /// The own end, with what was chosen filled in.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The other end, or the group; none if it is any host.
    pub fn remote(&self) -> Option<SocketAddr> {
        match &self.peer {
            Peer::One { remote, .. } => Some(*remote),
            Peer::Group { group, .. } => Some(*group),
            Peer::Any { .. } => None,
        }
    }

    /// The number by which the daemon knows it, and by which news name it; none if no daemon does.
    pub fn id(&self) -> Option<u32> {
        self.id
    }

    /// Its slot in the memory file: what [`Program::hear`] names.
    pub fn slot(&self) -> u32 {
        self.flow.place().slot
    }

    /// Bytes of payload at most, now: less after the MTU on the way became less. On the way to some hosts it may be less
    /// still ([`Program::next_hop`]).
    #[inline]
    pub fn longest(&self) -> usize {
        self.payload_of(self.terms.mtu())
    }

    /// Its contract, as granted last.
    pub fn contract(&self) -> &str {
        &self.contract
    }

    /// Asks for another contract; the old one stays if it is refused.
    ///
    /// # Errors
    /// If the daemon does not grant it.
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

    /// Shows the driver what was queued and released, and wakes it if it sleeps.
    #[inline]
    pub fn flush(&mut self) {
        if self.flow.publish() {
            self.shared.ring();
        }
    }

    /// Frames that came and held no datagram for this socket.
    pub fn dropped(&self) -> Dropped {
        let fragment = self.dropped.fragment + self.parts.given_up();
        Dropped {
            fragment,
            ..self.dropped
        }
    }

    /// Datagrams that came and did not reach this socket, as the driver counts them: for want of a buffer, say.
    pub fn lost(&self, why: Loss) -> u64 {
        self.flow.lost(why)
    }

    /// All of those.
    pub fn lost_in_all(&self) -> u64 {
        [Loss::NoBuffer, Loss::OverShare, Loss::TooLong]
            .iter()
            .map(|why| self.lost(*why))
            .sum()
    }

    /// Bytes of payload in an IP packet of so many bytes, as far as a buffer holds it.
    #[inline]
    fn payload_of(&self, mtu: u32) -> usize {
        (mtu.min(self.holds) as usize).saturating_sub(self.room - ETHERNET)
    }

    /// Tries until it is done, or the time is over.
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
            // What was collected on the way is to be seen before anybody sleeps.
            self.flush();
            if !self.shared.wait(self.flow.place().slot, deadline)? {
                return attempt(self);
            }
        }
    }

    /// Why there is nothing: perhaps there never will be.
    fn nothing(&self) -> StackError {
        self.end().unwrap_or(StackError::NotNow)
    }

    /// Why the flow is over, if it is.
    fn end(&self) -> Option<StackError> {
        if let Some(must) = self.shared.ended() {
            return Some(StackError::Expelled(must));
        }
        if let Some(why) = self.shared.flows.end() {
            return Some(StackError::Ended(why.to_string()));
        }
        let why = self.terms.end();
        let over = why.is_some() || !self.flow.is_open();
        over.then(|| StackError::Closed(why.map(str::to_string)))
    }

    fn over(&self, error: Fault) -> StackError {
        match (self.end(), error) {
            (Some(end), _) => end,
            (None, Fault::Closed) => StackError::Closed(None),
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

/// The whole of a chunk.
fn whole(chunk: Chunk, shape: &Shape) -> Piece {
    Piece {
        chunk,
        start: 0,
        length: shape.chunk_bytes,
    }
}

#[cfg(test)]
mod tests;
