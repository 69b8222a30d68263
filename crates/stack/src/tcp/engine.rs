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

mod moving;
mod payload;
mod peer;

use std::net::SocketAddr;

use netnice_ring::Status;
use netnice_ring::program::Chunk;
use netnice_tcp::buffer::{Handle, Slice};
use netnice_tcp::config::Config;
use netnice_tcp::connection::{Connection, Transmit};
use netnice_tcp::endpoint::{ConnectionId, Endpoint};
use netnice_tcp::header::{Flags, Seq};
use netnice_tcp::time::Instant;

use super::copies::Copies;
use super::flow_buffers::{Content, FlowBuffers, Run};
use super::frame::{self, Layout, Segment, Sums};
use super::peer_list::PeerList;
use super::receive_shares::{ReceiveShares, first_share};
use super::watches::Watches;
use crate::DeliveryFailure;
use crate::clock::monotonic_ns;
use crate::error::StackError;
use crate::headers::{FlowAddress, Headers};
use crate::segments::SegmentFlow;
use moving::Movement;
pub(super) use moving::{OWN_FLOW_TIME_WAIT, Origin};
pub(super) use payload::{Front, WriteFailure};
use peer::Peers;

/// The engine. See the module.
pub(super) struct Engine {
    pub(super) endpoint: Endpoint,
    layout: Layout,
    main: FlowBuffers,
    /// The flow of connection requests.
    requests: Option<FlowBuffers>,
    peers: Peers,
    listed: PeerList,
    shares: ReceiveShares,
    hops: u8,
    mtu: u32,
    failed: bool,
    /// The driver knows that the connection of the flow is over.
    is_over: bool,
    /// This end has reset the connection of the flow.
    was_reset: bool,
    /// Peers that may have moved to another Ethernet address.
    silent: Vec<ConnectionId>,
    /// The last round of work left received segments in the rings.
    unfinished: bool,
    /// What waits for changes of the connections.
    pub(super) watches: Watches,
    /// Payload of a connection that came from a listener.
    copies: Copies,
    movement: Movement,
    counters: FlowCounters,
}

/// What an engine has counted, besides its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    /// Received frames that were no segment for the flow.
    pub foreign: u64,
    /// Received segments with a wrong checksum, also those with a partial one on an interface where
    /// none is right.
    pub wrong_checksum: u64,
    /// Received segments whose checksum was that of the pseudo header alone, as kernels on the same
    /// host send them. In the fallback mode the driver has completed them.
    pub partial_checksum: u64,
    /// Payloads that were copied to be sent again, because their packet had been too long.
    pub copied: u64,
    /// Segments that were handed to the driver together with the one before them.
    pub joined: u64,
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
            requests: requests.map(|flow| FlowBuffers::of_requests(flow, receiving[1])),
            peers: Peers::default(),
            listed: PeerList::default(),
            shares: ReceiveShares::default(),
            hops,
            mtu,
            failed: false,
            is_over: false,
            was_reset: false,
            silent: Vec::new(),
            unfinished: false,
            watches: Watches::default(),
            copies: Copies::default(),
            movement: Movement::default(),
            counters: FlowCounters::default(),
        };
        if let Some(remote) = remote {
            // The driver writes the next hop into each frame.
            let next_hop = engine.main.flow.next_hop().unwrap_or_default();
            engine.peers.only = Some(engine.headers_to(remote, next_hop)?);
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
        let mut counters = self.counters;
        let flows = [Some(&self.main), self.requests.as_ref()];
        let completed = flows.into_iter().flatten();
        counters.partial_checksum += completed.map(|one| one.flow.rings.completed()).sum::<u64>();
        counters
    }

    /// Completes the parameters of a connection: the MSS, and the windows for the buffers. A
    /// listener's connections share the buffers.
    pub(super) fn complete(&self, config: &Config) -> Config {
        let empty = self.main.room();
        let first = match self.peers.only {
            Some(_) => empty,
            None => first_share(empty),
        };
        Config {
            mss: self.largest_mss(),
            room: self.window(first),
            largest_window: self.window(empty),
            padding: PADDING,
            ..*config
        }
    }

    /// Bytes that so many empty buffers take, as a window.
    fn window(&self, buffers: u32) -> u32 {
        let bytes = u64::from(buffers) * u64::from(self.largest_mss());
        u32::try_from(bytes).unwrap_or(u32::MAX).min(LARGEST_WINDOW)
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
        let _ = self.reclaim(Which::Main, monotonic());
        self.main.give_up_moved(monotonic());
        let ids: Vec<_> = self.endpoint.ids().collect();
        for id in ids {
            self.endpoint.update(id, Connection::cut_off);
        }
    }

    fn work_once(&mut self) -> Result<(), StackError> {
        let mut now = monotonic();
        self.follow_reports();
        self.handle_late(now)?;
        // Requests may come without end: one batch of them, so that no connection waits for them.
        let requests = self.receive(Which::Requests, now)?;
        for batch in 1..=MOST_BATCHES {
            self.reclaim(Which::Main, now)?;
            self.reclaim(Which::Requests, now)?;
            let received = self.receive(Which::Main, now)?;
            self.unfinished = requests == BATCH || (received == BATCH && batch == MOST_BATCHES);
            self.endpoint.handle_timeout(now);
            self.transmit(now)?;
            self.take_released()?;
            self.publish();
            if received < BATCH {
                break;
            }
            now = monotonic();
        }
        // The indices of a ring that is closed and never moved look like those of an idle one.
        let flows = [Some(&self.main), self.requests.as_ref()];
        let mut closed = flows
            .into_iter()
            .flatten()
            .filter(|one| !one.flow.rings.is_open());
        match closed.next() {
            None => Ok(()),
            Some(_) => Err(self.end_reason()),
        }
    }

    /// Why the flow has ended.
    pub(super) fn end_reason(&self) -> StackError {
        let closed = netnice_ring::program::FlowError::Closed;
        self.main.flow.flow_error(closed)
    }

    /// Number of buffers that hold data, or packets that have not left.
    pub(super) fn buffers_in_use(&self) -> u32 {
        let flows = [Some(&self.main), self.requests.as_ref()];
        let in_use: u32 = flows.into_iter().flatten().map(FlowBuffers::in_use).sum();
        in_use + self.copies.len()
    }

    /// True if no connection is left, and the driver has sent what was queued: closing the flows
    /// would drop it.
    pub(super) fn is_idle(&self) -> bool {
        let flows = [Some(&self.main), self.requests.as_ref()];
        let queued = flows.into_iter().flatten().any(FlowBuffers::has_queued);
        self.endpoint.is_empty() && !queued
    }

    /// When the engine has something to do next.
    pub(super) fn due(&mut self) -> Option<Instant> {
        let now = self.unfinished.then_some(Instant::ZERO);
        now.or_else(|| self.endpoint.poll_timeout())
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
            let (id, tokens) = (departure.id, departure.tokens());
            let at = match departure.status {
                Status::DONE => departure.at,
                // The link is down, or the path's MTU has become smaller: as lost on the way.
                _ => now,
            };
            self.endpoint.handle_departures(id, tokens, at);
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
        if segment.is_partial {
            if !self.main.flow.shared.attachment.partial_checksums() {
                self.counters.wrong_checksum += 1;
                return false;
            }
            self.counters.partial_checksum += 1;
        }
        if self.forward(which, chunk, length, segment.from) {
            return false;
        }
        if which == Which::Main && !segment.payload.is_empty() && self.main.room() == 0 {
            self.compact(segment.from);
        }
        // The flow of requests has few buffers, and the last ones of the other flow are for
        // segments without payload: no payload is kept there, and the peer sends it again.
        let keeps = which == Which::Main && self.main.room() > 0;
        self.handle_segment(&segment, keeps.then_some(Handle(chunk.0)), source, now)
    }

    /// Handles a segment whose frame lies in this buffer; `None`: its payload cannot be kept.
    /// Returns true if a connection keeps the payload. `source` is the frame's Ethernet source.
    fn handle_segment(
        &mut self,
        segment: &Segment,
        buffer: Option<Handle>,
        source: [u8; 6],
        now: Instant,
    ) -> bool {
        let buffer = buffer.filter(|_| !segment.payload.is_empty());
        let payload = buffer.map(|handle| Slice {
            handle,
            // Offsets in a buffer fit into 32 bits.
            offset: segment.payload.start as u32,
            length: segment.payload.len() as u32,
        });
        let known = self.endpoint.find(segment.from);
        match known {
            Some(id) => {
                self.follow_source(id, segment.from, segment.header.seq, source);
                if !segment.payload.is_empty() {
                    self.shares.received(id, now);
                    self.offer_room(id);
                }
            }
            None if self.peers.only.is_none() => self.remember(segment.from, source),
            None => {}
        }
        let mut header = segment.header;
        if payload.is_none() && !segment.payload.is_empty() {
            // Without the payload the end has another place.
            header.flags.0 &= !Flags::FIN.0;
        }
        let header = &header;
        let kept = self
            .endpoint
            .handle_segment(now, segment.from, header, payload, segment.marked);
        if let (true, Some(id)) = (payload.is_none() && !segment.payload.is_empty(), known) {
            self.endpoint.update(id, Connection::refuse_payload);
        }
        if known.is_none() || header.flags.has(Flags::SYN) {
            self.remember_peer(segment.from, source);
        }
        let short = segment.payload.len() < self.main.chunk_bytes() as usize / 2;
        if let (true, true, Some(id)) = (kept, short, known) {
            self.merge(id);
        }
        kept
    }

    /// Keeps the way back to a host that is no peer yet: the frame came from there.
    fn remember(&mut self, remote: SocketAddr, next_hop: [u8; 6]) {
        if self.peers.strangers.len() >= MOST_STRANGERS {
            // While a flow has always something to send, answers never run out, and hosts that
            // were answered stay here.
            self.peers.strangers.clear();
        }
        if let Ok(headers) = self.headers_to(remote, next_hop) {
            self.peers.strangers.insert(remote, headers);
        }
    }

    /// Keeps the way back to the peer of a connection that the frame has opened. The connection
    /// may have nothing to send yet.
    fn remember_peer(&mut self, remote: SocketAddr, next_hop: [u8; 6]) {
        if self.peers.only.is_none()
            && let Some(id) = self.endpoint.find(remote)
            && let Ok(headers) = self.headers_to(remote, next_hop)
            && self.peers.set(id, remote, headers)
        {
            self.listed.replace(id);
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

    /// Tells a connection how much it may receive.
    fn offer_room(&mut self, id: ConnectionId) {
        let buffers = self.shares.share(id, self.main.room());
        let room = u64::from(buffers) * u64::from(self.largest_mss());
        // A buffer stays free for the segment that fills the first gap.
        let early = (buffers / 2).max(1) as usize;
        self.endpoint.update(id, |connection| {
            connection.set_longest_early(early);
            connection.set_room(room);
        });
    }

    /// Offers room to starved connections, as far as buffers are empty.
    fn offer_room_to_starved(&mut self) {
        for _ in 0..self.main.room() {
            let Some(id) = self.shares.take_starved() else {
                return;
            };
            self.offer_room(id);
        }
    }

    /// The MSS of this link.
    fn largest_mss(&self) -> u32 {
        self.mtu.saturating_sub(self.layout.fixed()).max(1)
    }

    /// Queues segments, as long as there are some and the ring may take them.
    fn transmit(&mut self, now: Instant) -> Result<(), StackError> {
        while self.main.has_room() {
            let Some((id, remote, mut transmit)) = self.endpoint.poll_transmit(now) else {
                self.peers.strangers.clear();
                return Ok(());
            };
            self.send(id, remote, &mut transmit, now)?;
        }
        if self.endpoint.could_send_new() {
            self.main.note_full();
        }
        Ok(())
    }

    /// Queues a segment, and with it those that follow and may leave in one packet with it. One
    /// that cannot leave now counts as lost on the way.
    fn send(
        &mut self,
        id: Option<ConnectionId>,
        remote: SocketAddr,
        transmit: &mut Transmit,
        now: Instant,
    ) -> Result<(), StackError> {
        let token = id.zip(transmit.token);
        if self.queue(id, remote, transmit, now)? == Queued::No
            && let Some((id, token)) = token
        {
            self.endpoint.handle_unsent(id, token, now, false);
        }
        Ok(())
    }

    fn queue(
        &mut self,
        id: Option<ConnectionId>,
        remote: SocketAddr,
        transmit: &mut Transmit,
        now: Instant,
    ) -> Result<Queued, StackError> {
        let Some(headers) = self.peers.headers_to(id, remote) else {
            return Ok(Queued::No);
        };
        let buffers = match (&mut self.requests, transmit.header.flags.has(Flags::SYN)) {
            (Some(requests), true) if requests.has_room() => requests,
            (Some(_), true) => return Ok(Queued::No),
            _ => &mut self.main,
        };
        let layout = self.layout;
        let length = transmit.payload.map_or(0, |own| own.length as usize);
        let chunk = match transmit.payload {
            Some(own) if Copies::holds(own.handle) => {
                let Some(chunk) = buffers.take(Content::Passing) else {
                    return Ok(Queued::No);
                };
                buffers.bytes_mut(chunk)[layout.payload..layout.payload + length]
                    .copy_from_slice(self.copies.bytes(own));
                chunk
            }
            // The payload is in its place, behind the room for headers.
            Some(own) if own.offset == 0 && !buffers.is_with_driver(Chunk(own.handle.0)) => {
                Chunk(own.handle.0)
            }
            Some(own) => {
                let from = Chunk(own.handle.0);
                if buffers.is_with_driver(from) {
                    return Ok(Queued::No);
                }
                let Some(chunk) = buffers.take(Content::Passing) else {
                    return Ok(Queued::No);
                };
                let begin = layout.payload + own.offset as usize;
                let part = buffers.bytes(from)[begin..begin + length].to_vec();
                let place = layout.payload..layout.payload + length;
                buffers.bytes_mut(chunk)[place].copy_from_slice(&part);
                self.counters.copied += 1;
                chunk
            }
            None => match buffers.take(Content::Passing) {
                Some(chunk) => chunk,
                None => return Ok(Queued::No),
            },
        };
        let mut run = Run::new(
            chunk,
            &layout.frame(&transmit.header, length),
            transmit.token,
        );
        let in_place = transmit.payload.filter(|own| own.handle == Handle(chunk.0));
        if let (Some(id), Some(own), Some(token)) = (id, in_place, transmit.token) {
            let room = buffers.room_for_run();
            let mut last = (own, token);
            let joins = |handle| !Copies::holds(handle);
            while run.len() < room
                && let Some(next) = self.endpoint.poll_following(id, now, transmit, last, joins)
            {
                let headers = layout.headers(&transmit.header) as u32;
                run.push(Chunk(next.0.handle.0), headers, next.0.length, next.1);
                last = next;
            }
        }
        self.counters.joined += run.len() as u64 - 1;
        // The interface computes the checksums of several segments.
        let sums = match run.len() {
            1 => Sums::Written,
            _ => Sums::Left,
        };
        let (header, capable) = (&transmit.header, transmit.ecn_capable);
        let bytes = buffers.bytes_mut(chunk);
        layout.write(bytes, headers, header, (length, capable), sums);
        buffers.submit(&run, id)?;
        if let Some(id) = id {
            self.was_reset |= header.flags.has(Flags::RST);
            let segments = (header, run.bytes(layout.headers(header)));
            let next_hop = || headers.next_hop();
            self.listed.note_queued(id, remote, segments, next_hop);
        }
        Ok(Queued::Yes)
    }

    /// Takes back the buffers that connections do not need any more.
    fn take_released(&mut self) -> Result<(), StackError> {
        while let Some(handle) = self.endpoint.poll_released() {
            match Copies::holds(handle) {
                true => drop(self.copies.remove(handle)),
                false => self.main.release(Chunk(handle.0))?,
            }
        }
        self.offer_room_to_starved();
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
}

/// Whether a segment is in the submit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queued {
    Yes,
    No,
}

/// The present time, from the clock that the driver stamps with.
pub(super) fn monotonic() -> Instant {
    Instant::from_nanos(monotonic_ns())
}

/// Segments that are received before those that answer them leave.
const BATCH: usize = 32;
/// Batches in one call: a call ends although more arrives.
const MOST_BATCHES: usize = 8;
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
