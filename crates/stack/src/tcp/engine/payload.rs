//! Payload of a connection: copied into and out of buffers, or filled and used in place.
//!
//! A buffer that the program fills, or uses, is the program's: no connection refers to it. Received
//! payload counts as read when the program takes its buffer.

use std::net::SocketAddr;
use std::ops::Range;

use netnice_ring::program::Chunk;
use netnice_tcp::buffer::{Handle, Slice};
use netnice_tcp::connection::{Connection, WriteError};
use netnice_tcp::endpoint::ConnectionId;

use super::Engine;
use crate::tcp::copies::Copies;
use crate::tcp::flow_buffers::{Content, FOR_CONTROL, FlowBuffers};

/// Why bytes were not written.
#[derive(Debug)]
pub(in crate::tcp) enum WriteFailure {
    /// The connection does not exist any more.
    Gone,
    Connection(WriteError),
}

/// Received payload that the program has taken.
#[derive(Debug)]
pub(in crate::tcp) enum Front {
    /// The bytes in this range of a buffer.
    Buffer(Chunk, Range<usize>),
    /// The bytes in this range of a copy, which is the program's.
    Copy(Vec<u8>, Range<usize>),
}

impl Engine {
    /// Copies bytes into buffers of a connection, as many as fit. Returns their number.
    pub(in crate::tcp) fn write(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
    ) -> Result<usize, WriteFailure> {
        if !bytes.is_empty() {
            self.writable(id)?;
        }
        let share = self.send_share();
        let reserved = self.watches.reserved(id) as usize;
        let (main, at) = (&mut self.main, self.layout.payload);
        let written = self.endpoint.update(id, |connection| {
            let has_room = |main: &FlowBuffers, used| used + reserved < share && spare(main) > 0;
            let mut written = 0;
            while written < bytes.len() {
                let rest = &bytes[written..];
                let mss = connection.mss() as usize;
                // A copy has no room behind its end.
                let last = connection.last_unsent();
                let last = last.filter(|last| !Copies::holds(last.handle));
                let (chunk, begin, length) = match last {
                    Some(last) => {
                        let room = mss - last.length as usize;
                        let begin = last.end() as usize;
                        (Chunk(last.handle.0), begin, rest.len().min(room))
                    }
                    None => {
                        if !has_room(main, connection.send_buffers()) {
                            break;
                        }
                        let Some(chunk) = main.take(Content::Written) else {
                            break;
                        };
                        (chunk, 0, rest.len().min(mss))
                    }
                };
                let place = &mut main.bytes_mut(chunk)[at + begin..at + begin + length];
                place.copy_from_slice(&rest[..length]);
                // At most the MSS, which has 32 bits.
                let count = length as u32;
                let accepted = match begin {
                    0 => connection.write(Handle(chunk.0), count),
                    _ => connection.extend(count),
                };
                if let Err(error) = accepted {
                    if begin == 0 {
                        let _ = main.release(chunk);
                    }
                    return Err(WriteFailure::Connection(error));
                }
                written += length;
            }
            Ok(written)
        });
        written.ok_or(WriteFailure::Gone)?
    }

    /// Number of buffers for sending that one connection may use: a share of them, while there are
    /// others.
    pub(in crate::tcp) fn send_share(&self) -> usize {
        let sharers = self.endpoint.len().clamp(1, MOST_SHARERS) as u32;
        (self.main.sending() / sharers).max(self.main.least_share()) as usize
    }

    /// Copies received bytes of a connection. Returns their number.
    pub(in crate::tcp) fn read(&mut self, id: ConnectionId, into: &mut [u8]) -> usize {
        let mut read = 0;
        while read < into.len() {
            let Some(part) = self.endpoint.connection(id).and_then(Connection::front) else {
                break;
            };
            let length = (part.length as usize).min(into.len() - read);
            into[read..read + length].copy_from_slice(&self.received(part)[..length]);
            read += length;
            self.endpoint
                .update(id, |connection| connection.consume(length as u32));
        }
        if read > 0 {
            // A flow that has ended is found by the next round of work.
            let _ = self.take_released();
            self.offer_room(id);
        }
        read
    }

    /// Moves a short payload behind the one before, so that short segments do not use up the
    /// buffers.
    pub(super) fn merge(&mut self, id: ConnectionId) {
        let capacity = self.main.chunk_bytes();
        let merged = self
            .endpoint
            .update(id, |connection| connection.merge_last(capacity));
        if let Some(Some((to, from))) = merged {
            append(&mut self.main, &mut self.copies, to, from);
        }
    }

    /// No buffer is free for a payload of this peer: moves together what its connection has
    /// received in order. Its window counts on full buffers, and its segments need not be full.
    /// What other connections of the flow have received stays as it is.
    pub(super) fn compact(&mut self, from: SocketAddr) {
        let Some(id) = self.endpoint.find(from) else {
            return;
        };
        let capacity = self.main.chunk_bytes();
        let (main, copies) = (&mut self.main, &mut self.copies);
        self.endpoint.update(id, |connection| {
            connection.compact(capacity, |to, from| append(main, copies, to, from));
        });
        // A flow that has ended is found by the next round of work.
        let _ = self.take_released();
    }

    /// The bytes of a received part.
    pub(super) fn received(&self, part: Slice) -> &[u8] {
        bytes(&self.main, &self.copies, part)
    }

    /// The connection, if it can be written to.
    fn writable(&self, id: ConnectionId) -> Result<&Connection, WriteFailure> {
        let connection = self.endpoint.connection(id).ok_or(WriteFailure::Gone)?;
        let checked = connection.check_writable();
        checked.map_err(WriteFailure::Connection)?;
        Ok(connection)
    }

    /// True if the connection may take a further buffer for sending.
    pub(in crate::tcp) fn has_room_for(&self, id: ConnectionId, connection: &Connection) -> bool {
        let used = connection.send_buffers() + self.watches.reserved(id) as usize;
        used < self.send_share() && self.spare_buffers() > 0
    }

    /// Number of free buffers for sending that payload may take.
    pub(in crate::tcp) fn spare_buffers(&self) -> u32 {
        spare(&self.main)
    }

    /// Takes a buffer for sending, which the program fills. Returns it with its capacity; `None` if
    /// there is none now.
    pub(in crate::tcp) fn reserve(
        &mut self,
        id: ConnectionId,
    ) -> Result<Option<(Chunk, usize)>, WriteFailure> {
        let connection = self.writable(id)?;
        let capacity = connection.mss() as usize;
        if !self.has_room_for(id, connection) {
            return Ok(None);
        }
        let Some(chunk) = self.main.take(Content::Written) else {
            return Ok(None);
        };
        let count = self.watches.reserved(id) + 1;
        self.watches.set_reserved(id, count);
        Ok(Some((chunk, capacity)))
    }

    /// The place for payload in a buffer that the program fills.
    pub(in crate::tcp) fn reserved(&mut self, chunk: Chunk, capacity: usize) -> &mut [u8] {
        let at = self.layout.payload;
        let bytes = self.main.bytes_mut(chunk);
        bytes.get_mut(at..at + capacity).unwrap_or_default()
    }

    /// Hands over a buffer that the program has filled. It stays the program's if that fails.
    pub(in crate::tcp) fn commit(
        &mut self,
        id: ConnectionId,
        chunk: Chunk,
        length: u32,
    ) -> Result<(), WriteFailure> {
        let write = |connection: &mut Connection| connection.write(Handle(chunk.0), length);
        let written = self.endpoint.update(id, write);
        written
            .ok_or(WriteFailure::Gone)?
            .map_err(WriteFailure::Connection)?;
        self.count_returned(id);
        Ok(())
    }

    /// Sends bytes that the program has filled into a buffer of another engine, as one segment.
    /// Returns false if no buffer is free now.
    pub(in crate::tcp) fn commit_copy(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
    ) -> Result<bool, WriteFailure> {
        let Some((chunk, capacity)) = self.reserve(id)? else {
            return Ok(false);
        };
        let length = bytes.len().min(capacity);
        self.reserved(chunk, capacity)[..length].copy_from_slice(&bytes[..length]);
        // One that does not fit fails by its length.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let committed = self.commit(id, chunk, length);
        if committed.is_err() {
            self.return_reserved(chunk);
            self.count_returned(id);
        }
        committed.map(|()| true)
    }

    /// Takes back a buffer for sending that the program does not use.
    pub(in crate::tcp) fn return_reserved(&mut self, chunk: Chunk) {
        // A flow that has ended is found by the next round of work.
        let _ = self.main.release(chunk);
    }

    /// The program fills one buffer less.
    pub(in crate::tcp) fn count_returned(&mut self, id: ConnectionId) {
        let count = self.watches.reserved(id).saturating_sub(1);
        self.watches.set_reserved(id, count);
    }

    /// Takes the first part that was received, with its buffer: it counts as read. `None` if
    /// nothing can be read.
    pub(in crate::tcp) fn take_front(&mut self, id: ConnectionId) -> Option<Front> {
        let part = self.endpoint.connection(id)?.front()?;
        let range = part.offset as usize..part.end() as usize;
        let front = match Copies::holds(part.handle) {
            true => Front::Copy(self.copies.remove(part.handle), range),
            false => {
                self.main.lend(Chunk(part.handle.0));
                Front::Buffer(Chunk(part.handle.0), range)
            }
        };
        self.endpoint
            .update(id, |connection| connection.consume(part.length));
        let _ = self.take_released();
        self.offer_room(id);
        Some(front)
    }

    /// The payload of a buffer that the program has taken.
    pub(in crate::tcp) fn taken(&self, chunk: Chunk, range: Range<usize>) -> &[u8] {
        self.main.bytes(chunk).get(range).unwrap_or_default()
    }

    /// Takes back a buffer with received payload.
    pub(in crate::tcp) fn return_taken(&mut self, chunk: Chunk) {
        let _ = self.main.prime(chunk);
        self.offer_room_to_starved();
    }
}

/// Number of free buffers for sending that payload may take.
fn spare(main: &FlowBuffers) -> u32 {
    main.free().saturating_sub(FOR_CONTROL)
}

/// The bytes of a received part.
fn bytes<'a>(main: &'a FlowBuffers, copies: &'a Copies, part: Slice) -> &'a [u8] {
    if Copies::holds(part.handle) {
        return copies.bytes(part);
    }
    let bytes = main.bytes(Chunk(part.handle.0));
    &bytes[part.offset as usize..part.end() as usize]
}

/// Copies received bytes behind the end of a part.
fn append(main: &mut FlowBuffers, copies: &mut Copies, to: Slice, from: Slice) {
    let part = bytes(main, copies, from).to_vec();
    if Copies::holds(to.handle) {
        copies.append(to, &part);
        return;
    }
    let end = to.end() as usize;
    main.bytes_mut(Chunk(to.handle.0))[end..end + part.len()].copy_from_slice(&part);
}

/// Connections that are expected to use buffers at the same time.
const MOST_SHARERS: usize = 16;
