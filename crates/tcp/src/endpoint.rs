//! The connections of one local address and port: a client's connection, or a listener with all
//! connections that it accepted.
//!
//! ```text
//!   received segment ──▶ connection of its sender? ──yes──▶ Connection
//!                              │ no
//!                              ├─ one in TIME_WAIT ──▶ an acknowledgement, or nothing
//!                              ├─ SYN, while listening ──▶ a new connection, or a SYN cookie
//!                              ├─ ACK with a valid cookie ──▶ a new connection
//!                              └─ else ──▶ RST, limited in rate
//! ```
//! A connection is found by the peer's address and port. The endpoint knows which connections may
//! have something to send, and when each has something to do, so a call looks only at these.
//!
//! A connection that the program has closed and that enters TIME_WAIT is replaced by a small entry
//! (`waiting`). There are at most 32,768 of these; then the oldest is forgotten for each new one.
//!
//! A listener keeps at most `backlog` connections that are not accepted yet, complete or not. While
//! half of that number are incomplete, further SYNs are answered with cookies, which take no memory
//! (RFC 4987, section 3.6). If as many complete connections wait as the backlog has, SYNs are not
//! answered at all, so peers try again.

mod cookies;
mod moving;
mod output;
mod waiting;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use crate::buffer::{Handle, Slice};
use crate::config::Config;
use crate::connection::{Connection, Identity, State, Transmit};
use crate::header::{Flags, Header, Seq};
use crate::time::Instant;
use cookies::Cookies;
use waiting::Waiting;

/// Names a connection of an endpoint. It can be reused after [`Endpoint::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// The connections of one local address and port. See the module.
#[derive(Debug)]
pub struct Endpoint {
    local: SocketAddr,
    cookies: Cookies,
    connections: Slab<Entry>,
    by_remote: HashMap<SocketAddr, ConnectionId>,
    listening: Option<Listening>,
    timeouts: BTreeSet<(Instant, ConnectionId)>,
    /// Connections whose entry in `timeouts` may be obsolete, each once.
    obsolete: Vec<ConnectionId>,
    /// Connections that may have something to send, each once.
    active: VecDeque<ConnectionId>,
    /// Connections whose state the caller has not seen ([`Endpoint::poll_changed`]), each once.
    changed: VecDeque<ConnectionId>,
    /// Abandoned connections in TIME_WAIT.
    waiting: Waiting,
    /// Segments without a connection: resets and cookies.
    stray: VecDeque<(SocketAddr, Transmit)>,
    released: Vec<Handle>,
    resets: Budget,
    counters: EndpointCounters,
}

#[derive(Debug)]
struct Entry {
    connection: Connection,
    remote: SocketAddr,
    timeout: Option<Instant>,
    /// `timeout` may have changed.
    is_obsolete: bool,
    is_active: bool,
    is_changed: bool,
    /// The listener's connection is not complete, or not accepted yet.
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Of a listener: the handshake is not complete.
    Incomplete,
    /// Of a listener: waits to be accepted.
    Ready,
    /// The program has it.
    Taken,
    /// The program has closed it: it is removed when it is over.
    Abandoned,
}

#[derive(Debug)]
struct Listening {
    backlog: usize,
    config: Arc<Config>,
    incomplete: usize,
    ready: VecDeque<ConnectionId>,
}

/// What an endpoint has counted, besides its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Connections that peers opened.
    pub accepted: u64,
    /// SYNs that were answered with a cookie.
    pub cookies_sent: u64,
    /// Connections that a cookie opened.
    pub cookies_accepted: u64,
    /// SYNs, and last segments of handshakes, that were dropped because the backlog was full.
    pub backlog_full: u64,
    /// Segments of no connection.
    pub without_connection: u64,
    /// Resets that were not sent because too many were.
    pub resets_saved: u64,
    /// Connections in TIME_WAIT that were forgotten early, because too many waited.
    pub forgotten: u64,
}

/// A bound on events in time: so many at once, and the same number for each second.
#[derive(Clone, Copy, Debug)]
struct Budget {
    left: u32,
    since: Instant,
}

impl Endpoint {
    /// An endpoint without connections. `key` must be secret: sequence numbers and cookies are made
    /// from it (RFC 6528; RFC 4987, section 3.6).
    pub fn new(local: SocketAddr, key: [u8; 16]) -> Endpoint {
        Endpoint {
            local,
            cookies: Cookies::new(key),
            connections: Slab::new(),
            by_remote: HashMap::new(),
            listening: None,
            timeouts: BTreeSet::new(),
            obsolete: Vec::new(),
            active: VecDeque::new(),
            changed: VecDeque::new(),
            waiting: Waiting::default(),
            stray: VecDeque::new(),
            released: Vec::new(),
            resets: Budget::default(),
            counters: EndpointCounters::default(),
        }
    }

    /// The local address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// What the endpoint has counted.
    pub fn counters(&self) -> EndpointCounters {
        self.counters
    }

    /// Accepts connections of peers from now on. `backlog`, at least 1, is the number of
    /// connections that may wait to be accepted.
    pub fn listen(&mut self, backlog: usize, config: Config) {
        self.listening = Some(Listening {
            backlog: backlog.max(1),
            config: config.into(),
            incomplete: 0,
            ready: VecDeque::new(),
        });
    }

    /// Accepts no further connections. Those that were not accepted are reset.
    pub fn stop_listening(&mut self) {
        self.listening = None;
        let waiting: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, entry)| matches!(entry.stage, Stage::Incomplete | Stage::Ready))
            .map(|(index, _)| id_of(index))
            .collect();
        for id in waiting {
            if let Some(entry) = self.connections.get_mut(id.0 as usize) {
                entry.stage = Stage::Abandoned;
                entry.connection.abort();
                self.settle(id);
            }
        }
    }

    /// Opens a connection to a peer; `None` if there is one to this peer already, or one that waits
    /// in TIME_WAIT.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        config: Config,
    ) -> Option<ConnectionId> {
        if self.by_remote.contains_key(&remote) || self.waiting.has(remote) {
            return None;
        }
        let identity = self.identity(now, remote);
        let connection = Connection::connect(now, identity, config);
        Some(self.insert(connection, remote, Stage::Taken))
    }

    /// The next connection that a peer has opened; `None` if none waits.
    pub fn accept(&mut self) -> Option<(ConnectionId, SocketAddr)> {
        let id = self.listening.as_mut()?.ready.pop_front()?;
        let entry = self.connections.get_mut(id.0 as usize)?;
        entry.stage = Stage::Taken;
        Some((id, entry.remote))
    }

    /// True if a connection waits to be accepted.
    pub fn has_ready(&self) -> bool {
        let listening = self.listening.as_ref();
        listening.is_some_and(|listening| !listening.ready.is_empty())
    }

    /// The connection `id`; `None` if there is none.
    pub fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        let entry = self.connections.get(id.0 as usize)?;
        Some(&entry.connection)
    }

    /// The peer of the connection `id`.
    pub fn remote(&self, id: ConnectionId) -> Option<SocketAddr> {
        let entry = self.connections.get(id.0 as usize)?;
        Some(entry.remote)
    }

    /// The connection with the peer `remote`, unless it has ended or was replaced in TIME_WAIT.
    pub fn find(&self, remote: SocketAddr) -> Option<ConnectionId> {
        self.by_remote.get(&remote).copied()
    }

    /// The identifiers of all connections.
    pub fn ids(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.iter().map(|(index, _)| id_of(index))
    }

    /// Number of connections, without those that were replaced in TIME_WAIT.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Number of connections in TIME_WAIT that the program has closed.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// True if there is no connection, also none in TIME_WAIT.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.waiting.len() == 0
    }

    /// Applies `change` to a connection, and takes over what follows from it. `None` if there is no
    /// such connection.
    pub fn update<T>(
        &mut self,
        id: ConnectionId,
        change: impl FnOnce(&mut Connection) -> T,
    ) -> Option<T> {
        let entry = self.connections.get_mut(id.0 as usize)?;
        let result = change(&mut entry.connection);
        self.settle(id);
        Some(result)
    }

    /// Closes a connection ([`Connection::close`]), and removes it when both ends have shut down,
    /// or it has failed.
    pub fn abandon(&mut self, now: Instant, id: ConnectionId) {
        if let Some(entry) = self.connections.get_mut(id.0 as usize) {
            entry.stage = Stage::Abandoned;
            entry.connection.close(now);
            self.settle(id);
        }
    }

    /// Removes a connection. A connection that is not closed disappears without a word; its peer is
    /// reset when it sends. Its buffers are released.
    pub fn remove(&mut self, id: ConnectionId) {
        let Some(entry) = self.connections.get_mut(id.0 as usize) else {
            return;
        };
        entry.connection.cut_off();
        self.settle(id);
        self.forget(id);
    }

    /// Handles a segment of the peer `remote`, whose checksum is right. Returns true if a
    /// connection keeps the payload's buffer; else the buffer is the caller's. The other arguments
    /// are those of [`Connection::handle_segment`].
    pub fn handle_segment(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        header: &Header,
        payload: Option<Slice>,
        marked: bool,
    ) -> bool {
        if let Some(&id) = self.by_remote.get(&remote) {
            if !self.opens_again(id, header) {
                let handle = |connection: &mut Connection| {
                    connection.handle_segment(now, header, payload, marked)
                };
                return self.update(id, handle).unwrap_or(false);
            }
            // RFC 6191: the new connection replaces one that only waits. The program may still have
            // that one, and its number must not become that of the new one.
            self.update(id, Connection::expire);
            self.forget_if_over(id);
        }
        if self.waiting.has(remote) {
            if !self.is_opening(header) || !self.waiting.permits(remote, header) {
                let length = payload.map_or(0, |payload| payload.length);
                let answer = self.waiting.handle_segment(now, remote, header, length);
                if let Some(answer) = answer {
                    self.push_stray(remote, bare(answer));
                }
                return false;
            }
            self.waiting.remove(remote);
        }
        let opens = Flags::SYN | Flags::ACK | Flags::RST;
        match header.flags.0 & opens.0 {
            bits if bits == Flags::SYN.0 && self.listening.is_some() => {
                self.handle_syn(now, remote, header);
                false
            }
            bits if bits == Flags::ACK.0 && self.listening.is_some() => {
                self.handle_cookie(now, remote, header, payload, marked)
            }
            _ => {
                self.refuse(now, remote, header, payload);
                false
            }
        }
    }

    /// True if a SYN may replace a connection in TIME_WAIT (RFC 6191, section 2; RFC 9293, section
    /// 3.6.1).
    fn opens_again(&self, id: ConnectionId, header: &Header) -> bool {
        let waits = || self.connection(id).and_then(Connection::time_wait);
        self.is_opening(header) && waits().is_some_and(|entry| entry.is_before(header))
    }

    /// True if the segment asks for a new connection, and the endpoint accepts some.
    fn is_opening(&self, header: &Header) -> bool {
        let is_syn = header.flags.has(Flags::SYN) && !header.flags.has(Flags::ACK);
        is_syn && self.listening.is_some()
    }

    fn handle_syn(&mut self, now: Instant, remote: SocketAddr, syn: &Header) {
        let identity = self.identity(now, remote);
        let Some(listening) = &mut self.listening else {
            return;
        };
        if listening.ready.len() >= listening.backlog {
            self.counters.backlog_full += 1;
            return;
        }
        let config = listening.config.clone();
        if listening.incomplete >= listening.backlog.div_ceil(2) {
            let answer = self.cookies.answer(now, self.local, remote, syn, &config);
            if self.push_stray(remote, answer) {
                self.counters.cookies_sent += 1;
            }
            return;
        }
        listening.incomplete += 1;
        let connection = Connection::accept(now, identity, config, syn);
        self.insert(connection, remote, Stage::Incomplete);
    }

    /// An acknowledgement of no connection: perhaps that of a cookie.
    fn handle_cookie(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        header: &Header,
        payload: Option<Slice>,
        marked: bool,
    ) -> bool {
        let Some(listening) = &self.listening else {
            return false;
        };
        let config = listening.config.clone();
        let full = listening.ready.len() >= listening.backlog;
        let opened = self.cookies.open(now, self.local, remote, header, &config);
        let Some(connection) = opened else {
            self.refuse(now, remote, header, payload);
            return false;
        };
        if full {
            // The peer sends the segment again.
            self.counters.backlog_full += 1;
            return false;
        }
        if let Some(listening) = &mut self.listening {
            listening.incomplete += 1;
        }
        self.counters.cookies_accepted += 1;
        let id = self.insert(connection, remote, Stage::Incomplete);
        self.update(id, |connection| {
            connection.handle_segment(now, header, payload, marked)
        })
        .unwrap_or(false)
    }

    /// Answers a segment of no connection with a reset, if it is none itself.
    fn refuse(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        header: &Header,
        payload: Option<Slice>,
    ) {
        self.counters.without_connection += 1;
        let length = payload.map_or(0, |payload| payload.length);
        let Some(reset) = reset_for(header, length) else {
            return;
        };
        if !self.resets.take(now) || !self.push_stray(remote, bare(reset)) {
            self.counters.resets_saved += 1;
        }
    }

    fn push_stray(&mut self, remote: SocketAddr, transmit: Transmit) -> bool {
        let fits = self.stray.len() < LONGEST_STRAY;
        if fits {
            self.stray.push_back((remote, transmit));
        }
        fits
    }

    /// The next time at which [`Endpoint::handle_timeout`] has something to do.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.settle_timeouts();
        let first = self.timeouts.first().map(|&(at, _)| at);
        first.into_iter().chain(self.waiting.first_end()).min()
    }

    /// Does what is due at the time `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.waiting.handle_timeout(now);
        self.settle_timeouts();
        while let Some(&(at, id)) = self.timeouts.first() {
            if at > now {
                break;
            }
            self.timeouts.pop_first();
            if let Some(entry) = self.connections.get_mut(id.0 as usize) {
                entry.timeout = None;
                entry.connection.handle_timeout(now);
                self.settle(id);
            }
        }
    }

    /// The next connection in which something happened that its program may wait for, or which the
    /// program should read the state of; `None` if there is none.
    pub fn poll_changed(&mut self) -> Option<ConnectionId> {
        let id = self.changed.pop_front()?;
        if let Some(entry) = self.connections.get_mut(id.0 as usize) {
            entry.is_changed = false;
        }
        Some(id)
    }

    /// A buffer that is free ([`Connection::poll_released`]).
    pub fn poll_released(&mut self) -> Option<Handle> {
        self.released.pop()
    }

    /// The identity of a new connection (RFC 6528).
    fn identity(&self, now: Instant, remote: SocketAddr) -> Identity {
        Identity {
            local_port: self.local.port(),
            remote_port: remote.port(),
            initial_seq: self.cookies.initial_seq(now, self.local, remote),
            timestamp_offset: self.cookies.timestamp_offset(self.local, remote),
        }
    }

    fn insert(&mut self, connection: Connection, remote: SocketAddr, stage: Stage) -> ConnectionId {
        let index = self.connections.insert(Entry {
            connection,
            remote,
            timeout: None,
            is_obsolete: false,
            is_active: false,
            is_changed: false,
            stage,
        });
        let id = id_of(index);
        self.by_remote.insert(remote, id);
        self.settle(id);
        id
    }

    /// Takes over what followed from a change of a connection.
    fn settle(&mut self, id: ConnectionId) {
        self.settle_without_output(id);
        self.activate(id);
    }

    fn activate(&mut self, id: ConnectionId) {
        if let Some(entry) = self.connections.get_mut(id.0 as usize)
            && !entry.is_active
        {
            entry.is_active = true;
            self.active.push_back(id);
        }
    }

    fn settle_without_output(&mut self, id: ConnectionId) {
        let Some(entry) = self.connections.get_mut(id.0 as usize) else {
            return;
        };
        while let Some(handle) = entry.connection.poll_released() {
            self.released.push(handle);
        }
        if !entry.is_obsolete {
            entry.is_obsolete = true;
            self.obsolete.push(id);
        }
        if !entry.is_changed {
            entry.is_changed = true;
            self.changed.push_back(id);
        }
        // What arrives for a connection that has ended belongs to none.
        let remote = entry.remote;
        if entry.connection.state() == State::Closed && self.by_remote.get(&remote) == Some(&id) {
            self.by_remote.remove(&remote);
        }
        if entry.stage == Stage::Incomplete && entry.connection.is_synchronized() {
            entry.stage = Stage::Ready;
            self.counters.accepted += 1;
            if let Some(listening) = &mut self.listening {
                listening.incomplete -= 1;
                listening.ready.push_back(id);
            }
        }
    }

    /// Finds the next timeouts of the connections that have changed.
    fn settle_timeouts(&mut self) {
        for id in self.obsolete.drain(..) {
            let Some(entry) = self.connections.get_mut(id.0 as usize) else {
                continue;
            };
            entry.is_obsolete = false;
            let timeout = entry.connection.poll_timeout();
            if timeout != entry.timeout {
                if let Some(old) = entry.timeout {
                    self.timeouts.remove(&(old, id));
                }
                if let Some(new) = timeout {
                    self.timeouts.insert((new, id));
                }
                entry.timeout = timeout;
            }
        }
    }

    /// Removes a connection that ended before the handshake was complete, or after the program
    /// closed it; it has nothing to send now. One that was reset while it waits to be accepted
    /// stays: the program finds it closed, as with the calls of POSIX.
    fn forget_if_over(&mut self, id: ConnectionId) {
        let Some(entry) = self.connections.get(id.0 as usize) else {
            return;
        };
        if matches!(entry.stage, Stage::Ready | Stage::Taken) {
            return;
        }
        let remote = entry.remote;
        if entry.connection.is_closed() {
            self.forget(id);
        } else if let Some(waiting) = entry.connection.time_wait() {
            self.forget(id);
            if !self.waiting.add(remote, waiting) {
                self.counters.forgotten += 1;
            }
        }
    }

    fn forget(&mut self, id: ConnectionId) {
        let Some(mut entry) = self.remove_entry(id) else {
            return;
        };
        // The program may not have read everything before the peer's reset.
        entry.connection.give_up_buffers();
        while let Some(handle) = entry.connection.poll_released() {
            self.released.push(handle);
        }
        if let Some(listening) = &mut self.listening {
            match entry.stage {
                Stage::Incomplete => listening.incomplete -= 1,
                Stage::Ready => listening.ready.retain(|other| *other != id),
                Stage::Taken | Stage::Abandoned => {}
            }
        }
    }
}

impl Budget {
    fn take(&mut self, now: Instant) -> bool {
        if now.since(self.since) >= Duration::from_secs(1) {
            *self = Budget {
                left: RESETS_PER_SECOND,
                since: now,
            };
        }
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            left: RESETS_PER_SECOND,
            since: Instant::ZERO,
        }
    }
}

/// The reset that answers a segment of no connection (RFC 9293, section 3.10.7.1); `None` if the
/// segment is a reset.
pub fn reset_for(header: &Header, payload_length: u32) -> Option<Header> {
    if header.flags.has(Flags::RST) {
        return None;
    }
    let mut reset = Header {
        source: header.destination,
        destination: header.source,
        flags: Flags::RST,
        ..Header::default()
    };
    if header.flags.has(Flags::ACK) {
        reset.seq = header.ack;
    } else {
        let controls =
            u32::from(header.flags.has(Flags::SYN)) + u32::from(header.flags.has(Flags::FIN));
        reset.seq = Seq(0);
        reset.ack = header.seq.add(payload_length.wrapping_add(controls));
        reset.flags |= Flags::ACK;
    }
    Some(reset)
}

fn bare(header: Header) -> Transmit {
    Transmit {
        header,
        payload: None,
        token: None,
        ecn_capable: false,
    }
}

fn id_of(index: usize) -> ConnectionId {
    // A connection takes more than one byte, so their number fits into 32 bits.
    ConnectionId(index as u32)
}

/// Resets and cookies that wait for room. More are dropped: peers send again.
const LONGEST_STRAY: usize = 256;
/// As the limit of Linux for the errors that it sends (`icmp_ratelimit`).
const RESETS_PER_SECOND: u32 = 1000;

#[cfg(test)]
mod tests;
