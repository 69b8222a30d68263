//! Moves a connection out of the engine of its listener into an engine of its own.
//!
//! ```text
//!   engine of the listener                         engine of the connection
//!     connection, watch ─────── take_out ─▶ adopt ──▶ connection, watch
//!     payload in buffers ────── copied ─────────────▶ copies
//!     in the submit ring ────── departures ─▶ inbox ▶ handle_late
//!     in the deliver ring ───── frames ─────▶ inbox ▶ handle_late
//! ```
//! The driver gives the peer's segments to the listener's flow until the first buffer of the new
//! flow is primed, and may still be writing some then. So the engine of the listener keeps a
//! reference to the inbox for as long as the other engine exists. The engines never lock each
//! other.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

use netnice_ring::Status;
use netnice_ring::program::Chunk;
use netnice_tcp::buffer::Handle;
use netnice_tcp::connection::Connection;
use netnice_tcp::endpoint::ConnectionId;
use netnice_tcp::time::Instant;

use super::{Engine, Which};
use crate::error::StackError;
use crate::tcp::copies::Copies;
use crate::tcp::frame;
use crate::tcp::inbox::{Inbox, Late};
use crate::tcp::watches::Watch;

/// What an engine keeps about connections that moved out of it or into it.
#[derive(Default)]
pub(super) struct Movement {
    /// The inboxes of the connections that moved out, by their peers.
    left: HashMap<SocketAddr, Weak<Inbox>>,
    /// Number of inboxes at which those of engines that are gone are dropped.
    crowded: usize,
    /// The inbox and the number of the connection that moved in.
    came: Option<(Arc<Inbox>, ConnectionId)>,
}

/// A connection between two engines.
pub(in crate::tcp) struct Moving {
    connection: Connection,
    remote: SocketAddr,
    copies: Copies,
    watch: Watch,
    inbox: Arc<Inbox>,
}

/// Where the connections of an engine come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Origin {
    /// The program has opened it: the flow is that of this connection.
    Opened,
    /// A listener accepted them; the flow is the listener's.
    Listener,
    /// A listener accepted it, and it has moved to a flow of its own.
    Moved,
}

impl Engine {
    /// Where the connections of the engine come from.
    pub(in crate::tcp) fn origin(&self) -> Origin {
        match (&self.movement.came, &self.peers.only) {
            (Some(_), _) => Origin::Moved,
            (None, Some(_)) => Origin::Opened,
            (None, None) => Origin::Listener,
        }
    }

    /// TTL or hop limit of sent packets.
    pub(in crate::tcp) fn hops(&self) -> u8 {
        self.hops
    }

    /// The daemon's number of the flow.
    #[cfg(test)]
    pub(in crate::tcp) fn flow_number(&self) -> u32 {
        self.main.flow.number()
    }

    /// Begins to receive: from now on the driver gives the connection's segments to this engine.
    /// Fails if the flow has ended.
    pub(in crate::tcp) fn prime(&mut self, receiving: u32) -> Result<(), StackError> {
        self.main.flow.prime_free(receiving)
    }

    /// Takes a connection and everything that it has out of the engine. What comes for it later
    /// goes to the inbox. Fails if the flow has ended; the connection has then, too.
    pub(in crate::tcp) fn take_out(
        &mut self,
        id: ConnectionId,
        inbox: &Arc<Inbox>,
    ) -> Result<Moving, StackError> {
        let connection = self.endpoint.connection(id);
        let (copies, names) = self.copy_payload(connection.ok_or_else(|| self.end_reason())?);
        // The driver overwrites the buffers of a flow after it has closed it.
        fence(Ordering::Acquire);
        if !self.main.flow.rings.is_open() {
            return Err(self.end_reason());
        }
        let remote = self.endpoint.remote(id);
        let connection = self.endpoint.take_out(id);
        let (Some(remote), Some(mut connection)) = (remote, connection) else {
            return Err(self.end_reason());
        };
        connection.rename_buffers(|old| names.get(&old).copied().unwrap_or(old));
        self.main.redirect(id, inbox);
        // The driver knows the connection by its own flow.
        self.listed.remove(id);
        for old in names.into_keys() {
            // A flow that has ended is found by the next round of work.
            let _ = self.main.release(Chunk(old.0));
        }
        self.movement.remember(remote, inbox);
        Ok(Moving {
            connection,
            remote,
            copies,
            watch: self.watches.take(id),
            inbox: inbox.clone(),
        })
    }

    /// Copies the payload of a connection. Also returns which copy is that of each buffer.
    fn copy_payload(&self, connection: &Connection) -> (Copies, HashMap<Handle, Handle>) {
        let mut places: HashMap<Handle, Range<u32>> = HashMap::new();
        // At most some hundred bytes.
        let begin = self.layout.payload as u32;
        for part in connection.written_parts() {
            let place = places.entry(part.handle).or_insert(begin..begin);
            place.end = place.end.max(begin + part.end());
        }
        let received = connection.received_parts();
        places.extend(received.map(|part| (part.handle, 0..part.end())));
        let mut copies = Copies::default();
        let copy = |(handle, place): (Handle, Range<u32>)| {
            (handle, copies.add(self.main.copy(Chunk(handle.0), place)))
        };
        let names = places.into_iter().map(copy).collect();
        (copies, names)
    }

    /// Goes on with a connection, which is the only one of this engine. Returns its number, and the
    /// number of its stream.
    pub(in crate::tcp) fn adopt(&mut self, moving: Moving) -> (ConnectionId, u64) {
        let Moving {
            mut connection,
            remote,
            copies,
            watch,
            inbox,
        } = moving;
        self.copies = copies;
        // The path of the connection may have been found to carry less than the route.
        let mss = self.largest_mss().min(connection.config().mss);
        connection.set_path_mss(mss);
        let window = self.window(self.main.room());
        connection.set_largest_window(window.min(connection.config().largest_window));
        let time_wait = connection.config().time_wait.min(OWN_FLOW_TIME_WAIT);
        connection.set_time_wait(time_wait);
        let id = self.endpoint.adopt(connection, remote);
        self.movement.came = Some((inbox, id));
        self.offer_room(id);
        (id, self.watches.put(id, watch))
    }

    /// Passes a frame on whose sender's connection has moved. Returns false if it has not.
    pub(super) fn forward(
        &mut self,
        which: Which,
        chunk: Chunk,
        length: usize,
        from: SocketAddr,
    ) -> bool {
        let Some(inbox) = self.movement.inbox_of(from) else {
            return false;
        };
        let buffers = match (which, &self.requests) {
            (Which::Requests, Some(requests)) => requests,
            _ => &self.main,
        };
        let bytes = buffers.bytes(chunk);
        inbox.post(Late::Frame(bytes[..length.min(bytes.len())].to_vec()));
        true
    }

    /// Handles what the engine of the listener has passed on. Fails if the flow has ended.
    pub(super) fn handle_late(&mut self, now: Instant) -> Result<(), StackError> {
        let Some((inbox, id)) = &self.movement.came else {
            return Ok(());
        };
        let id = *id;
        for late in inbox.take() {
            match late {
                Late::Frame(frame) => self.handle_late_frame(frame, now),
                Late::Departure { token, at, status } => match status {
                    Status::DONE => self.endpoint.handle_departures(id, &[token], at),
                    _ => self.endpoint.handle_unsent(id, token, now, false),
                },
            }
            self.take_released()?;
        }
        Ok(())
    }

    fn handle_late_frame(&mut self, bytes: Vec<u8>, now: Instant) {
        // The engine of the listener has checked it.
        let Ok(segment) = frame::parse(&bytes) else {
            return;
        };
        let copy = self.copies.add(bytes);
        // The sender's Ethernet address is of no use: the driver writes the next hop.
        if !self.handle_segment(&segment, Some(copy), [0; 6], now) {
            self.copies.remove(copy);
        }
    }
}

impl Movement {
    /// The connection with this peer has moved out.
    fn remember(&mut self, remote: SocketAddr, inbox: &Arc<Inbox>) {
        if self.left.len() >= self.crowded {
            self.left.retain(|_, inbox| inbox.strong_count() > 0);
            self.crowded = (2 * self.left.len()).max(LEAST_CROWDED);
        }
        self.left.insert(remote, Arc::downgrade(inbox));
    }

    /// The inbox of the connection with this peer, if it has moved out and its engine exists.
    fn inbox_of(&mut self, remote: SocketAddr) -> Option<Arc<Inbox>> {
        if self.left.is_empty() {
            return None;
        }
        let inbox = self.left.get(&remote)?.upgrade();
        if inbox.is_none() {
            self.left.remove(&remote);
        }
        inbox
    }
}

/// How long a connection with a flow of its own waits in TIME_WAIT: the flow's memory and its port
/// are held as long. Sequence numbers go on behind those of earlier connections, so a short time
/// does no harm.
pub(in crate::tcp) const OWN_FLOW_TIME_WAIT: Duration = Duration::from_secs(1);
/// Fewer inboxes are not worth looking through.
const LEAST_CROWDED: usize = 64;
