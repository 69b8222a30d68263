//! An endpoint that listens and connects, and segments near the edges of its connections, from
//! their peers and from strangers. An oracle says which segments may end a connection.
//!
//! An input is a sequence of operations of [`OPERATION`] bytes each. The first byte says what
//! happens, the others are its numbers.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::buffer::{Handle, Slice};
use crate::config::Config;
use crate::connection::{Edges, State, Token};
use crate::endpoint::{ConnectionId, Endpoint};
use crate::header::{Flags, Header, SackBlock, Seq, Timestamps};
use crate::time::Instant;

/// Runs an input. Returns what the endpoint came to: `replaced` if a SYN took the place of a
/// connection in TIME_WAIT, `cookie` if a cookie opened a connection, `reset` if a segment ended
/// one, `open` if connections are left, `stray` if segments of no connection came, else `nothing`.
///
/// # Panics
/// If a connection ends, or does not end, against RFC 9293 and RFC 5961; if a buffer is released
/// twice or never; if a segment lets more leave than the connections have to send.
pub fn outcome_of(bytes: &[u8]) -> String {
    let mut trial = Trial::new(bytes.first().copied().unwrap_or(0));
    for operation in bytes.chunks_exact(OPERATION).take(LONGEST) {
        trial.operate(operation);
    }
    trial.end().to_owned()
}

/// What happened in a trial, or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments that were received.
    pub received: u64,
    /// Connections that both ends opened.
    pub opened: u64,
    /// Connections that were opened by a cookie.
    pub cookies: u64,
    /// Connections that a segment ended.
    pub ended: u64,
    /// Connections in TIME_WAIT that a SYN replaced.
    pub replaced: u64,
    /// Segments that the endpoint sent.
    pub sent: u64,
}

/// An endpoint, its program, and its driver.
pub struct Trial {
    now: Instant,
    endpoint: Endpoint,
    next_handle: u32,
    held: HashSet<Handle>,
    tokens: Vec<(ConnectionId, Token)>,
    /// The connections that the program has.
    taken: Vec<ConnectionId>,
    /// The last acknowledgement that the endpoint expects from each peer.
    last_sent: Vec<Seq>,
    counts: Counts,
}

/// A segment, and where its peer's connection stood before it came.
struct Arrival<'a> {
    header: &'a Header,
    length: u32,
    before: Edges,
}

impl Trial {
    /// A trial. The bits of `how` select the options of the connections.
    pub fn new(how: u8) -> Trial {
        let bit = |at: u8| how >> at & 1 == 1;
        let config = Config {
            sack: !bit(0),
            timestamps: !bit(1),
            window_scaling: !bit(2),
            ecn: bit(3),
            no_delay: bit(4),
            quick: bit(5),
            mss: if bit(6) { 536 } else { 1460 },
            room: if bit(7) { 4000 } else { 60_000 },
            ..Config::default()
        };
        let mut endpoint = Endpoint::new(LOCAL, [7; 16]);
        endpoint.listen(BACKLOG, config);
        Trial {
            now: Instant::from_nanos(1_000_000_000_000),
            endpoint,
            next_handle: 0,
            held: HashSet::new(),
            tokens: Vec::new(),
            taken: Vec::new(),
            last_sent: vec![Seq(0); PEERS],
            counts: Counts::default(),
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Does one operation, which has [`OPERATION`] bytes.
    pub fn operate(&mut self, operation: &[u8]) {
        let number = u16::from_be_bytes([operation[4], operation[5]]);
        let peer = usize::from(operation[1]) % PEERS;
        match operation[0] % 32 {
            0..=21 => self.receive_near(peer, operation),
            22 | 23 => self.open(peer, operation),
            24 | 25 => self.write(operation),
            26 => self.read(operation),
            27 => self.program(peer, operation),
            28 => self.transmit(usize::from(operation[2] % 8)),
            29 => self.now = self.now + Duration::from_micros(u64::from(number) * 10),
            30 => {
                let next = self.endpoint.poll_timeout().unwrap_or(self.now);
                self.now = self.now.max(next);
            }
            _ => self.now = self.now + Duration::from_micros(u64::from(number)),
        }
        self.endpoint.handle_timeout(self.now);
        if operation[0] & 128 == 0 {
            self.transmit(0);
        }
        self.take_released();
    }

    /// Ends all connections, and says what happened.
    pub fn end(&mut self) -> &'static str {
        let ids: Vec<_> = self.endpoint.ids().collect();
        let any = !ids.is_empty();
        for id in ids {
            self.endpoint.update(id, |connection| connection.abort());
            self.endpoint.remove(id);
        }
        self.transmit(0);
        self.take_released();
        assert!(self.held.is_empty(), "buffers are left: {:?}", self.held);
        match self.counts {
            Counts { replaced: 1.., .. } => "replaced",
            Counts { cookies: 1.., .. } => "cookie",
            Counts { ended: 1.., .. } => "reset",
            _ if any => "open",
            Counts { received: 1.., .. } => "stray",
            _ => "nothing",
        }
    }

    fn edges(&self, remote: SocketAddr) -> Option<(ConnectionId, Edges)> {
        let id = self.endpoint.find(remote)?;
        Some((id, self.endpoint.connection(id)?.all_edges(self.now)))
    }

    /// A segment whose numbers are near those of the peer's connection, if it has one.
    fn receive_near(&mut self, peer: usize, operation: &[u8]) {
        let be16 = |at: usize| u32::from(u16::from_be_bytes([operation[at], operation[at + 1]]));
        let remote = address(peer);
        let edges = self.edges(remote).map(|(_, edges)| edges);
        let edges = edges.unwrap_or(Edges {
            una: self.last_sent[peer],
            sent: self.last_sent[peer],
            ..Edges::default()
        });
        let theirs = [edges.next, edges.edge, edges.next, edges.edge];
        let ours = [edges.una, edges.sent, edges.end, edges.una];
        let options = operation[9];
        let mut header = Header {
            source: remote.port(),
            destination: LOCAL.port(),
            flags: flags(operation[2]),
            seq: near(theirs, operation[3], be16(4)),
            ack: near(ours, operation[6], be16(7)),
            window: u16::from_be_bytes([operation[12], operation[13]]),
            ..Header::default()
        };
        if options & 3 != 3 {
            let change = match operation[10] {
                small if options & 4 == 0 => i32::from(small as i8) / 16,
                large => i32::from(large as i8) << 24,
            };
            header.options.timestamps = Some(Timestamps {
                value: edges.peer_clock.wrapping_add(change as u32),
                echo: edges.own_clock.wrapping_add(u32::from(operation[11]) << 20),
            });
        }
        for block in 0..usize::from(options >> 3 & 3) {
            let left = near(
                ours,
                operation[11].rotate_left(2 * block as u32),
                be16(7 + block),
            );
            let right = left.add(u32::from(operation[12]) * 16 * (block as u32 + 1));
            header.options.sack.push(SackBlock { left, right });
        }
        if header.flags.has(Flags::SYN) {
            header.options.mss = (options & 32 == 32).then_some(u16::from(operation[11]) * 8);
            header.options.window_scale = (options & 64 == 64).then_some(operation[10] & 15);
            header.options.sack_permitted = options & 128 == 128;
        }
        let length = match operation[14] {
            0..=99 => 0,
            short @ 100..=149 => u32::from(short) - 99,
            long => u32::from(long) * 6,
        };
        self.receive(peer, &header, length, operation[15] & 1 == 1);
    }

    /// Hands a segment to the endpoint, and compares what follows with the oracle.
    fn receive(&mut self, peer: usize, header: &Header, length: u32, marked: bool) {
        let remote = address(peer);
        let before = self.edges(remote);
        let handle = self.handle();
        let payload = (length > 0).then_some(Slice {
            handle,
            offset: 0,
            length,
        });
        let accepted = self.endpoint.counters().cookies_accepted;
        let kept = self
            .endpoint
            .handle_segment(self.now, remote, header, payload, marked);
        if kept {
            assert!(length > 0, "a segment without payload is kept");
            self.held.insert(handle);
        }
        self.counts.received += 1;
        self.counts.cookies += self.endpoint.counters().cookies_accepted - accepted;
        let Some((id, before)) = before else { return };
        let arrival = Arrival {
            header,
            length,
            before,
        };
        let after = self
            .endpoint
            .connection(id)
            .map(|connection| connection.all_edges(self.now));
        let was = before.state;
        let ended = after.is_none_or(|after| match was {
            // The next connection can have the same number.
            State::TimeWait => after.state != State::TimeWait,
            _ => after.state == State::Closed,
        });
        assert!(
            !ended || arrival.may_end(),
            "{was:?} ended by {header:?} with {length} bytes; before: {before:?}"
        );
        assert!(
            ended || !arrival.must_end(),
            "{was:?} not ended by {header:?} with {length} bytes; before: {before:?}"
        );
        self.counts.ended += u64::from(ended);
        self.counts.replaced += u64::from(ended && was == State::TimeWait);
        if let Some(after) = after.filter(|_| !ended) {
            arrival.check_edges(&after);
        }
    }

    /// An honest peer opens a connection, and the program takes it.
    fn open(&mut self, peer: usize, operation: &[u8]) {
        let remote = address(peer);
        if self.edges(remote).is_some() {
            return;
        }
        let first = Seq(u32::from_be_bytes([
            operation[4],
            operation[5],
            operation[6],
            operation[7],
        ]));
        let mut header = Header {
            source: remote.port(),
            destination: LOCAL.port(),
            flags: Flags::SYN,
            seq: first,
            window: 60_000,
            ..Header::default()
        };
        header.options.mss = Some(1460);
        header.options.sack_permitted = operation[8] & 3 != 3;
        header.options.window_scale = (operation[8] & 4 == 0).then_some(operation[8] >> 4);
        header.options.timestamps = (operation[8] & 8 == 0).then_some(Timestamps {
            value: u32::from(operation[9]) << 24,
            echo: 0,
        });
        if operation[10] & 7 == 7 {
            // The program opens it, and the peer does at the same time.
            let config = Config::default();
            if let Some(id) = self.endpoint.connect(self.now, remote, config) {
                self.taken.push(id);
                self.transmit(0);
            }
        }
        self.receive(peer, &header, 0, false);
        self.transmit(0);
        header.seq = first.add(1);
        header.ack = self.last_sent[peer];
        header.flags = Flags::ACK;
        header.options.mss = None;
        header.options.window_scale = None;
        header.options.sack_permitted = false;
        if let Some(stamps) = &mut header.options.timestamps {
            stamps.echo = self.edges(remote).map_or(0, |(_, edges)| edges.own_clock);
        }
        self.receive(peer, &header, 0, false);
        while let Some((id, _)) = self.endpoint.accept() {
            self.counts.opened += 1;
            self.taken.push(id);
        }
    }

    /// A connection of the program; `None` if it has none.
    fn taken(&mut self, which: u8) -> Option<ConnectionId> {
        let at = usize::from(which) % self.taken.len().max(1);
        let id = *self.taken.get(at)?;
        if self
            .endpoint
            .connection(id)
            .is_none_or(|one| one.is_closed())
        {
            self.endpoint.remove(id);
            self.taken.swap_remove(at);
            return None;
        }
        Some(id)
    }

    fn write(&mut self, operation: &[u8]) {
        let Some(id) = self.taken(operation[1]) else {
            return;
        };
        for at in 0..operation[2] % 16 {
            let handle = self.handle();
            let written = self.endpoint.update(id, |connection| {
                let length = (u32::from(operation[3]) * 8 + u32::from(at)) % connection.mss() + 1;
                let full = connection.send_buffers() >= MOST_WRITTEN;
                !full && connection.write(handle, length).is_ok()
            });
            if written == Some(true) {
                self.held.insert(handle);
            }
        }
    }

    fn read(&mut self, operation: &[u8]) {
        let Some(id) = self.taken(operation[1]) else {
            return;
        };
        self.endpoint.update(id, |connection| {
            while let Some(part) = connection.front() {
                connection.consume(part.length);
            }
            connection.set_room(u64::from(operation[2]) * 400);
        });
    }

    fn program(&mut self, peer: usize, operation: &[u8]) {
        let (what, now) = (operation[2] % 8, self.now);
        if what == 0 && self.edges(address(peer)).is_none() {
            let config = Config::default();
            if let Some(id) = self.endpoint.connect(now, address(peer), config) {
                self.taken.push(id);
            }
            return;
        }
        let Some(id) = self.taken(operation[1]) else {
            return;
        };
        match what {
            1 | 2 => {
                self.endpoint
                    .update(id, |connection| connection.shut_down());
            }
            3 | 4 => {
                self.taken.retain(|other| *other != id);
                self.endpoint.abandon(now, id);
            }
            5 => {
                let mss = u32::from(operation[3]) * 8 + 100;
                self.endpoint
                    .update(id, |connection| connection.set_path_mss(mss));
            }
            6 => {
                let seq = self.endpoint.connection(id).map(|one| one.edges().1);
                let seq = seq.unwrap_or_default().add(u32::from(operation[3]));
                self.endpoint
                    .update(id, |connection| connection.handle_unreachable(seq));
            }
            _ => {}
        }
    }

    /// The driver takes everything that may leave. Of the last `keeps` segments it does not report
    /// the departure yet.
    fn transmit(&mut self, keeps: usize) {
        let mut count = 0;
        while let Some((id, remote, transmit)) = self.endpoint.poll_transmit(self.now) {
            count += 1;
            assert!(count <= MOST_SEGMENTS, "segments without end");
            if let Some(part) = transmit.payload {
                assert!(
                    self.held.contains(&part.handle),
                    "a released buffer is sent"
                );
            }
            let peer = usize::from(remote.port() - FIRST_PORT);
            let header = transmit.header;
            if header.flags.has(Flags::SYN) {
                self.last_sent[peer] = header.seq.add(1);
            }
            self.tokens.extend(id.zip(transmit.token));
        }
        self.counts.sent += count;
        while self.tokens.len() > keeps {
            let (id, token) = self.tokens.remove(0);
            self.endpoint.handle_departures(id, &[token], self.now);
        }
    }

    fn take_released(&mut self) {
        while let Some(handle) = self.endpoint.poll_released() {
            assert!(self.held.remove(&handle), "{handle:?} is released twice");
        }
        while self.endpoint.poll_changed().is_some() {}
    }

    fn handle(&mut self) -> Handle {
        self.next_handle = self.next_handle.wrapping_add(1);
        Handle(self.next_handle)
    }
}

impl Arrival<'_> {
    /// Numbers from the next one that is expected of the peer.
    fn start(&self) -> i32 {
        self.header.seq.distance_from(self.before.next)
    }

    /// True if the segment may end the connection.
    fn may_end(&self) -> bool {
        let (header, before) = (self.header, &self.before);
        let flags = header.flags;
        match before.state {
            State::Closed => true,
            // RFC 9293, section 3.10.7.3: a reset that acknowledges the SYN.
            State::SynSent => flags.has(Flags::RST | Flags::ACK) && header.ack == before.sent,
            // RFC 6191: a SYN with a later number or timestamp.
            State::TimeWait => {
                let later = header.options.timestamps.is_some() || self.start() > 0;
                flags.has(Flags::SYN) && !flags.has(Flags::ACK) && later
            }
            // RFC 5961, section 3: the exact number.
            _ if flags.has(Flags::RST) => self.start() == 0,
            // The last acknowledgement.
            State::LastAck if flags.has(Flags::ACK) && header.ack == before.end => true,
            // RFC 2525, section 2.17: this data would not be read.
            _ if before.closed && flags.has(Flags::ACK) => {
                let end = i64::from(self.start()) + i64::from(self.length);
                self.length > 0 && end > 0
            }
            _ => false,
        }
    }

    /// True if the segment has to end the connection: a reset with the exact number.
    fn must_end(&self) -> bool {
        let ends = !matches!(
            self.before.state,
            State::Closed | State::SynSent | State::TimeWait
        );
        ends && self.header.flags.has(Flags::RST) && self.start() == 0 && self.length == 0
    }

    /// Checks that the connection took over only what is acceptable.
    fn check_edges(&self, after: &Edges) {
        let (header, before) = (self.header, &self.before);
        let acknowledged = after.una.distance_from(before.una);
        let most = before.sent.distance_from(before.una);
        assert!((0..=most).contains(&acknowledged), "{before:?}, {after:?}");
        if acknowledged > 0 {
            assert!(header.flags.has(Flags::ACK), "{before:?}, {header:?}");
            assert_eq!(after.una, header.ack, "{before:?}");
        }
        if before.state == State::SynSent {
            return;
        }
        let received = after.next.distance_from(before.next);
        let window = before.edge.distance_from(before.next);
        // A FIN has room at a closed window.
        assert!(
            (0..=window + 1).contains(&received),
            "{before:?}, {after:?}"
        );
        let promised = after.edge.distance_from(before.edge);
        assert!(promised >= 0, "the window shrank: {before:?}, {after:?}");
        if header.flags.has(Flags::RST) || !header.flags.has(Flags::ACK) {
            assert_eq!((received, acknowledged), (0, 0), "{header:?}");
        }
    }
}

fn address(peer: usize) -> SocketAddr {
    SocketAddr::new(
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        FIRST_PORT + peer as u16,
    )
}

/// Mostly the flags that real segments have, else any.
fn flags(byte: u8) -> Flags {
    match byte {
        0..=99 => Flags::ACK,
        100..=119 => Flags::ACK | Flags::PSH,
        120..=134 => Flags::RST,
        135..=144 => Flags::RST | Flags::ACK,
        145..=159 => Flags::ACK | Flags::FIN,
        160..=174 => Flags::SYN,
        175..=184 => Flags::SYN | Flags::ACK,
        other => Flags(other.wrapping_mul(37)),
    }
}

/// A sequence number at one of four edges, near it, or far away.
fn near(edges: [Seq; 4], how: u8, number: u32) -> Seq {
    let edge = edges[usize::from(how & 3)];
    match how >> 2 & 15 {
        0..=4 => edge,
        5..=7 => edge.add(number & 3),
        8 | 9 => edge.add((number & 3).wrapping_neg()),
        10 => edge.add(number & 4095),
        11 => edge.add((number & 4095).wrapping_neg()),
        12 => edge.add(number),
        13 => edge.add(number.wrapping_neg()),
        14 => edge.add(1 << 31).add(number & 3).add(u32::MAX),
        _ => Seq(number << 16),
    }
}

/// Bytes of an operation.
pub const OPERATION: usize = 16;
/// Operations of an input; later ones are ignored.
const LONGEST: usize = 2000;
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 80);
const FIRST_PORT: u16 = 3000;
/// Two more than the backlog, so that some SYNs are answered with cookies.
const PEERS: usize = 10;
const BACKLOG: usize = 8;
/// Buffers that a connection has at most.
const MOST_WRITTEN: usize = 64;
/// More segments than all connections can have to send at once, each of them cut in pieces of 48
/// bytes.
const MOST_SEGMENTS: u64 = (PEERS * MOST_WRITTEN * 32) as u64;
