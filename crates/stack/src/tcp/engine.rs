//! The engine of a client's connection or of a listener: carries segments between the state machine
//! (`netnice-tcp`) and the rings of its flows.
//!
//! ```text
//!            write ─▶ buffer ─▶ Endpoint ─▶ headers ─▶ submit ring ─▶ driver
//!   program                       │  ▲                 reclaim ring ◀─┘ (departures)
//!            read ◀── buffer ◀────┘  └── parse ◀────── deliver ring ◀── driver
//! ```
//! A call of the program and the service thread enter the engine one after the other. Each time the
//! engine does everything that can be done now: departures first, so that an acknowledgement finds
//! the time of what it acknowledges; then received segments, [`BATCH`] at most before the
//! acknowledgements for them leave; timeouts; segments, as long as the submit ring may take some.
//!
//! Connection requests of a listener come by a flow of their own, and are answered by it, so a
//! flood of them takes neither buffers nor the contract of the connections.
//!
//! The engine fails with a [`StackError`] when one of its flows has ended. Then all connections
//! have.

use std::collections::HashMap;
use std::net::SocketAddr;

use netnice_ring::Status;
use netnice_ring::program::Chunk;
use netnice_tcp::buffer::{Handle, Slice};
use netnice_tcp::config::Config;
use netnice_tcp::connection::{Connection, Transmit};
use netnice_tcp::endpoint::{ConnectionId, Endpoint};
use netnice_tcp::header::{Flags, Seq};
use netnice_tcp::time::Instant;
use rustix::time::{ClockId, clock_gettime};

use super::flow_buffers::{Content, FlowBuffers};
use super::frame::{self, Layout};
use crate::DeliveryFailure;
use crate::error::StackError;
use crate::headers::{FlowAddress, Headers};
use crate::segments::SegmentFlow;

/// The engine. See the module.
pub(super) struct Engine {
    pub(super) endpoint: Endpoint,
    layout: Layout,
    main: FlowBuffers,
    /// The flow of connection requests.
    requests: Option<FlowBuffers>,
    /// The headers to the peer of a client's connection.
    headers: Option<Headers>,
    /// The headers to the peer of each connection of a listener.
    peers: Vec<Option<(SocketAddr, Headers)>>,
    /// Those to hosts whose last segment belongs to no connection.
    strangers: HashMap<SocketAddr, Headers>,
    hops: u8,
    mtu: u32,
    failed: bool,
    /// Something has changed that a call may wait for.
    changed: bool,
    counters: FlowCounters,
}

/// What an engine has counted, besides its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    /// Received frames that were no segment for the flow.
    pub foreign: u64,
    /// Received segments with a wrong checksum.
    pub wrong_checksum: u64,
    /// Received segments whose checksum was that of the pseudo header alone, as kernels on the same
    /// host send them.
    pub partial_checksum: u64,
    /// Payloads that were copied to be sent again, because their packet had been too long.
    pub copied: u64,
}

/// Which of the two flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Main,
    Requests,
}

impl Engine {
    /// The engine of a client's connection or of a listener. `receiving`: the numbers of buffers
    /// for receiving of the two flows.
    pub(super) fn new(
        main: SegmentFlow,
        requests: Option<SegmentFlow>,
        receiving: [u32; 2],
        remote: Option<SocketAddr>,
        hops: u8,
    ) -> Result<Engine, StackError> {
        let local = main.local();
        let mtu = main.mtu();
        let layout = Layout::new(local.ip());
        let packet = layout.payload + (mtu - layout.fixed().min(mtu)) as usize;
        let chunk = main.rings.location().shape.chunk_bytes;
        if packet > chunk as usize {
            return Err(StackError::SmallBuffers { chunk, packet });
        }
        let mut engine = Engine {
            endpoint: Endpoint::new(local, main.key()),
            layout,
            main: FlowBuffers::new(main, receiving[0]),
            requests: requests.map(|flow| FlowBuffers::new(flow, receiving[1])),
            headers: None,
            peers: Vec::new(),
            strangers: HashMap::new(),
            hops,
            mtu,
            failed: false,
            changed: false,
            counters: FlowCounters::default(),
        };
        if let Some(remote) = remote {
            // The driver writes the next hop into each frame.
            let next_hop = engine.main.flow.next_hop().unwrap_or_default();
            engine.headers = Some(engine.headers_to(remote, next_hop)?);
        }
        Ok(engine)
    }

    /// The slots of the engine's flows.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        let flows = [Some(&self.main), self.requests.as_ref()];
        let slots = flows.map(|buffers| buffers.map(|buffers| buffers.flow.rings.location().slot));
        slots.into_iter().flatten()
    }

    /// What the engine has counted.
    pub(super) fn counters(&self) -> FlowCounters {
        self.counters
    }

    /// Completes the parameters of a connection: the MSS, and the windows for the buffers.
    pub(super) fn complete(&self, config: &Config) -> Config {
        let mss = self.mtu.saturating_sub(self.layout.fixed()).max(1);
        let bytes = u64::from(self.main.room()) * u64::from(mss);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(LARGEST_WINDOW);
        Config {
            mss,
            room: bytes,
            largest_window: bytes,
            padding: PADDING,
            ..*config
        }
    }

    /// Does everything that can be done now. Fails if a flow has ended.
    pub(super) fn work(&mut self) -> Result<(), StackError> {
        let result = self.work_once();
        if result.is_err() && !self.failed {
            self.fail();
        }
        result
    }

    /// Ends all connections: their flow has ended.
    fn fail(&mut self) {
        self.failed = true;
        self.changed = true;
        let ids: Vec<_> = self.endpoint.ids().collect();
        for id in ids {
            self.endpoint.update(id, Connection::cut_off);
        }
    }

    fn work_once(&mut self) -> Result<(), StackError> {
        let mut now = monotonic();
        self.follow_reports();
        for _ in 0..MOST_BATCHES {
            self.reclaim(Which::Main, now)?;
            self.reclaim(Which::Requests, now)?;
            let received = self.receive(Which::Requests, now)? + self.receive(Which::Main, now)?;
            self.endpoint.handle_timeout(now);
            self.transmit(now)?;
            self.take_released()?;
            self.publish();
            if received < BATCH {
                break;
            }
            now = monotonic();
        }
        while self.endpoint.poll_changed().is_some() {
            self.changed = true;
        }
        // The indices of a ring that is closed and never moved look like those of an idle one.
        let open = self
            .flow_of(Which::Main)
            .is_none_or(|buffers| buffers.flow.rings.is_open());
        match open {
            true => Ok(()),
            false => Err(self.end_reason()),
        }
    }

    /// Why the flow has ended.
    pub(super) fn end_reason(&self) -> StackError {
        let closed = netnice_ring::program::FlowError::Closed;
        self.main.flow.flow_error(closed)
    }

    /// True if no connection is left, and the driver has sent what was queued: closing the flows
    /// would drop it.
    pub(super) fn is_idle(&self) -> bool {
        let flows = [Some(&self.main), self.requests.as_ref()];
        let queued = flows.into_iter().flatten().any(FlowBuffers::has_queued);
        self.endpoint.is_empty() && !queued
    }

    /// True if something has changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// True if a flow has ended.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Takes back what the driver has sent.
    fn reclaim(&mut self, which: Which, now: Instant) -> Result<(), StackError> {
        loop {
            let Some(buffers) = self.flow_of(which) else {
                return Ok(());
            };
            let Some(departure) = buffers.reclaim()? else {
                return Ok(());
            };
            let (id, token) = departure.token;
            match departure.status {
                Status::DONE => self.endpoint.handle_departure(id, token, departure.at),
                // The link is down, or the path's MTU has become smaller: as lost on the way.
                _ => self.endpoint.handle_unsent(id, token, now, false),
            }
        }
    }

    /// Handles received segments, [`BATCH`] at most. Returns their number.
    fn receive(&mut self, which: Which, now: Instant) -> Result<usize, StackError> {
        for count in 0..BATCH {
            let Some(buffers) = self.flow_of(which) else {
                return Ok(0);
            };
            let Some((chunk, record)) = buffers.receive()? else {
                return Ok(count);
            };
            let length = record.pairs()[0].length as usize;
            let kept =
                record.status() == Status::DONE && self.handle_frame(which, chunk, length, now);
            let Some(buffers) = self.flow_of(which) else {
                return Ok(0);
            };
            match kept {
                true => buffers.keep(chunk),
                false => buffers.prime(chunk)?,
            }
            self.take_released()?;
        }
        Ok(BATCH)
    }

    /// Handles a received frame. Returns true if a connection keeps its payload.
    fn handle_frame(&mut self, which: Which, chunk: Chunk, length: usize, now: Instant) -> bool {
        let local = self.endpoint.local();
        let Some(buffers) = self.flow_of(which) else {
            return false;
        };
        let bytes = buffers.bytes(chunk);
        let bytes = &bytes[..length.min(bytes.len())];
        let mut source = [0; 6];
        if let Some(from) = bytes.get(6..12) {
            source.copy_from_slice(from);
        }
        let segment = match frame::parse(bytes) {
            Ok(segment) => segment,
            Err(crate::datagram::ParseError::Checksum) => {
                self.counters.wrong_checksum += 1;
                return false;
            }
            Err(_) => {
                self.counters.foreign += 1;
                return false;
            }
        };
        // A link-local socket address contains a scope id, which a packet does not.
        if (segment.to.ip(), segment.to.port()) != (local.ip(), local.port()) {
            self.counters.foreign += 1;
            return false;
        }
        self.counters.partial_checksum += u64::from(segment.is_partial);
        // The flow of requests has few buffers, and the last ones of the other flow are for
        // segments without payload: no payload is kept there, and the peer sends it again.
        let keeps = which == Which::Main && self.main.room() > 0;
        let payload = (!segment.payload.is_empty() && keeps).then_some(Slice {
            handle: Handle(chunk.0),
            // Offsets in a buffer fit into 32 bits.
            offset: segment.payload.start as u32,
            length: segment.payload.len() as u32,
        });
        let known = self.endpoint.find(segment.from);
        match known {
            Some(id) => self.offer_room(id),
            None if self.headers.is_none() => self.remember(segment.from, source),
            None => {}
        }
        let (mut header, marked) = (segment.header, segment.marked);
        if payload.is_none() && !segment.payload.is_empty() {
            // Without the payload the end has another place.
            header.flags.0 &= !Flags::FIN.0;
        }
        let header = &header;
        let kept = self
            .endpoint
            .handle_segment(now, segment.from, header, payload, marked);
        let short = segment.payload.len() < self.main.chunk_bytes() as usize / 2;
        if let (true, true, Some(id)) = (kept, short, known) {
            self.merge(id);
        }
        kept
    }

    /// Moves a short payload behind the one before, so that short segments do not use up the
    /// buffers.
    fn merge(&mut self, id: ConnectionId) {
        let capacity = self.main.chunk_bytes();
        let merged = self
            .endpoint
            .update(id, |connection| connection.merge_last(capacity));
        if let Some(Some((to, from))) = merged {
            let bytes = self.main.bytes(Chunk(from.handle.0));
            let part = bytes[from.offset as usize..from.end() as usize].to_vec();
            let end = to.end() as usize;
            let bytes = self.main.bytes_mut(Chunk(to.handle.0));
            bytes[end..end + part.len()].copy_from_slice(&part);
        }
    }

    /// Keeps the way back to a host that is no peer yet: the frame came from there.
    fn remember(&mut self, remote: SocketAddr, next_hop: [u8; 6]) {
        if self.strangers.len() < MOST_STRANGERS
            && let Ok(headers) = self.headers_to(remote, next_hop)
        {
            self.strangers.insert(remote, headers);
        }
    }

    fn headers_to(&self, remote: SocketAddr, next_hop: [u8; 6]) -> Result<Headers, StackError> {
        let address = FlowAddress {
            local: self.endpoint.local(),
            remote,
            local_mac: self.main.flow.mac(),
            next_hop,
            mtu: u16::try_from(self.mtu).unwrap_or(u16::MAX),
            hops: self.hops,
        };
        Ok(Headers::ip(&address, TCP)?)
    }

    /// Tells a connection how much it may receive: a share of the empty buffers. The shares of many
    /// connections together exceed the buffers, since few of them receive at the same time.
    fn offer_room(&mut self, id: ConnectionId) {
        let sharers = self.endpoint.len().clamp(1, MOST_SHARERS) as u32;
        let free = self.main.room();
        let buffers = (free / sharers).max(LEAST_SHARE.min(free));
        let mss = self.mtu.saturating_sub(self.layout.fixed());
        let room = u64::from(buffers) * u64::from(mss);
        // A buffer stays free for the segment that fills the first gap.
        let early = (free / sharers / 2).max(1) as usize;
        self.endpoint.update(id, |connection| {
            connection.set_longest_early(early);
            connection.set_room(room);
        });
    }

    /// Queues segments, as long as there are some and the ring may take them.
    fn transmit(&mut self, now: Instant) -> Result<(), StackError> {
        while self.main.has_room() {
            let Some((id, remote, transmit)) = self.endpoint.poll_transmit(now) else {
                self.strangers.clear();
                return Ok(());
            };
            self.send(id, remote, &transmit, now)?;
        }
        Ok(())
    }

    fn send(
        &mut self,
        id: Option<ConnectionId>,
        remote: SocketAddr,
        transmit: &Transmit,
        now: Instant,
    ) -> Result<(), StackError> {
        let token = id.zip(transmit.token);
        let Some(headers) = self.headers_of(id, remote) else {
            self.give_up(token, now);
            return Ok(());
        };
        let answers = transmit.header.flags.has(Flags::SYN);
        let layout = self.layout;
        let buffers = match (&mut self.requests, answers) {
            (Some(requests), true) if requests.has_room() => requests,
            (Some(_), true) => {
                self.give_up(token, now);
                return Ok(());
            }
            _ => &mut self.main,
        };
        let length = transmit
            .payload
            .map_or(0, |payload| payload.length as usize);
        let own = transmit.payload.map(|payload| Chunk(payload.handle.0));
        let whole = transmit.payload.is_some_and(|payload| payload.offset == 0);
        let in_place = own.filter(|chunk| whole && !buffers.is_with_driver(*chunk));
        let chunk = match in_place {
            Some(chunk) => chunk,
            None => {
                let Some(chunk) = buffers.take(Content::Passing) else {
                    self.give_up(token, now);
                    return Ok(());
                };
                if let (Some(from), Some(payload)) = (own, transmit.payload) {
                    if buffers.is_with_driver(from) {
                        buffers.release(chunk)?;
                        self.give_up(token, now);
                        return Ok(());
                    }
                    let begin = layout.payload + payload.offset as usize;
                    let part = buffers.bytes(from)[begin..begin + length].to_vec();
                    let bytes = buffers.bytes_mut(chunk);
                    bytes[layout.payload..layout.payload + length].copy_from_slice(&part);
                    self.counters.copied += 1;
                }
                chunk
            }
        };
        let capable = transmit.ecn_capable;
        let frame = layout.write(
            buffers.bytes_mut(chunk),
            &headers,
            &transmit.header,
            length,
            capable,
        );
        buffers.submit(chunk, frame, token)
    }

    /// A segment cannot leave now: it counts as lost on the way.
    fn give_up(
        &mut self,
        token: Option<(ConnectionId, netnice_tcp::connection::Token)>,
        now: Instant,
    ) {
        if let Some((id, token)) = token {
            self.endpoint.handle_unsent(id, token, now, false);
        }
    }

    /// The headers to a peer.
    fn headers_of(&mut self, id: Option<ConnectionId>, remote: SocketAddr) -> Option<Headers> {
        if let Some(headers) = &self.headers {
            return Some(headers.clone());
        }
        let Some(ConnectionId(index)) = id else {
            return self.strangers.get(&remote).cloned();
        };
        let index = index as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        let place = &mut self.peers[index];
        if place.as_ref().is_none_or(|(of, _)| *of != remote) {
            *place = self
                .strangers
                .get(&remote)
                .map(|headers| (remote, headers.clone()));
        }
        place.as_ref().map(|(_, headers)| headers.clone())
    }

    /// Takes back the buffers that connections do not need any more.
    fn take_released(&mut self) -> Result<(), StackError> {
        while let Some(handle) = self.endpoint.poll_released() {
            self.main.release(Chunk(handle.0))?;
        }
        Ok(())
    }

    /// Shows the driver what has changed. Wakes it only if an index has moved: it throttles a
    /// program that wakes it in vain (`docs/reference/ring.md`, section 6).
    fn publish(&mut self) {
        let mut moved = self.main.flow.rings.publish();
        if let Some(requests) = &mut self.requests {
            moved |= requests.flow.rings.publish();
        }
        if moved {
            self.main.flow.shared.notify();
        }
    }

    /// Follows the MTU of the route, and what routers report.
    fn follow_reports(&mut self) {
        let mtu = self.main.flow.mtu();
        if mtu != self.mtu && mtu > 0 {
            self.mtu = mtu;
            let ids: Vec<_> = self.endpoint.ids().collect();
            let mss = mtu.saturating_sub(self.layout.fixed());
            for id in ids {
                self.endpoint
                    .update(id, |connection| connection.set_path_mss(mss));
            }
        }
        let Some(report) = self.main.flow.status.reports.take() else {
            return;
        };
        let (Some(id), Some(seq)) = (self.endpoint.find(report.to), report.sequence) else {
            return;
        };
        let fixed = self.layout.fixed();
        self.endpoint
            .update(id, |connection| match (report.why, report.mtu) {
                (DeliveryFailure::TooLong, Some(mtu)) if connection.is_in_flight(Seq(seq)) => {
                    let mss = mtu.saturating_sub(fixed).max(LEAST_MSS);
                    if mss < connection.config().mss {
                        connection.set_path_mss(mss);
                    }
                }
                (DeliveryFailure::TooLong, _) => {}
                _ => connection.handle_unreachable(Seq(seq)),
            });
    }

    fn flow_of(&mut self, which: Which) -> Option<&mut FlowBuffers> {
        match which {
            Which::Main => Some(&mut self.main),
            Which::Requests => self.requests.as_mut(),
        }
    }

    /// Copies bytes into buffers of a connection, as many as fit. Returns their number.
    pub(super) fn write(&mut self, id: ConnectionId, bytes: &[u8]) -> Result<usize, WriteFailure> {
        let mut written = 0;
        let at = self.layout.payload;
        while written < bytes.len() {
            let rest = &bytes[written..];
            let connection = self.endpoint.connection(id).ok_or(WriteFailure::Gone)?;
            let mss = connection.mss() as usize;
            let (chunk, begin, length) = match connection.last_unsent() {
                Some(last) if !self.main.is_with_driver(Chunk(last.handle.0)) => {
                    let room = mss - last.length as usize;
                    (
                        Chunk(last.handle.0),
                        last.end() as usize,
                        rest.len().min(room),
                    )
                }
                _ => {
                    let most = self.send_share();
                    let free = self.main.free() > RESERVED;
                    if connection.send_buffers() >= most || !free {
                        break;
                    }
                    let Some(chunk) = self.main.take(Content::Written) else {
                        break;
                    };
                    (chunk, 0, rest.len().min(mss))
                }
            };
            let place = &mut self.main.bytes_mut(chunk)[at + begin..at + begin + length];
            place.copy_from_slice(&rest[..length]);
            // At most the MSS, which has 32 bits.
            let count = length as u32;
            let accepted = self.endpoint.update(id, |connection| match begin {
                0 => connection.write(Handle(chunk.0), count),
                _ => connection.extend(count),
            });
            if let Some(Err(error)) = accepted {
                if begin == 0 {
                    let _ = self.main.release(chunk);
                }
                return Err(WriteFailure::Connection(error));
            }
            written += length;
        }
        Ok(written)
    }

    /// Number of buffers for sending that one connection may use: a share of them, while there are
    /// others.
    fn send_share(&self) -> usize {
        let sharers = self.endpoint.len().clamp(1, MOST_SHARERS) as u32;
        (self.main.sending() / sharers).max(LEAST_SHARE) as usize
    }

    /// Copies received bytes of a connection. Returns their number.
    pub(super) fn read(&mut self, id: ConnectionId, into: &mut [u8]) -> Result<usize, StackError> {
        let mut read = 0;
        while read < into.len() {
            let Some(part) = self.endpoint.connection(id).and_then(Connection::front) else {
                break;
            };
            let length = (part.length as usize).min(into.len() - read);
            let bytes = self.main.bytes(Chunk(part.handle.0));
            let begin = part.offset as usize;
            into[read..read + length].copy_from_slice(&bytes[begin..begin + length]);
            read += length;
            self.endpoint
                .update(id, |connection| connection.consume(length as u32));
            self.take_released()?;
        }
        if read > 0 {
            self.offer_room(id);
        }
        Ok(read)
    }
}

/// Why bytes were not written.
#[derive(Debug)]
pub(super) enum WriteFailure {
    /// The connection does not exist any more.
    Gone,
    Connection(netnice_tcp::connection::WriteError),
}

/// The present time, from the clock that the driver stamps with.
pub(super) fn monotonic() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is negative.
    Instant::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Segments that are received before those that answer them leave.
const BATCH: usize = 32;
/// Batches in one call: a call ends although more arrives.
const MOST_BATCHES: usize = 8;
/// Buffers for sending that payload does not take: acknowledgements and resets leave by them.
const RESERVED: u32 = 4;
/// A connection gets this many buffers whatever the others have.
const LEAST_SHARE: u32 = 8;
/// Connections that are expected to use buffers at the same time.
const MOST_SHARERS: usize = 16;
/// Hosts that wait for an answer without memory.
const MOST_STRANGERS: usize = 1024;
/// Without timestamps, so much padding keeps payload aligned: see `frame`.
const PADDING: u8 = 4;
/// RFC 7323, section 2.3: a window of 2^30 bytes.
const LARGEST_WINDOW: u32 = 1 << 30;
/// A report of a smaller MTU than 576 is a forgery, or not worth following (RFC 5927, section 7.3).
const LEAST_MSS: u32 = 536;
/// Protocol number of TCP.
const TCP: u8 = 6;
