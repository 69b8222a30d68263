//! Payload in place: a buffer to be filled and sent ([`Reserved`]), and a buffer that was received
//! ([`Received`]). Nothing is copied.
//!
//! The bytes are reached in a closure, during which the engine of the stream is locked: other calls
//! on connections of the same flow wait, and it must not make one.

use std::ops::Range;
use std::sync::Arc;

use netnice_ring::program::Chunk;
use netnice_tcp::connection::WriteError;
use netnice_tcp::endpoint::ConnectionId;

use super::engine::Front;
use super::engine_cell::EngineCell;
use super::place::{Place, StreamPlace};
use super::stream::writing;
use crate::error::StackError;

/// A buffer for payload of one segment, which the program fills
/// ([`Stream::reserve`](super::Stream::reserve)). Dropping it gives the buffer back, unsent.
pub struct Reserved {
    /// The engine that has the buffer.
    cell: Arc<EngineCell>,
    /// The connection there, and the number of its stream.
    owner: (ConnectionId, u64),
    /// Where the connection is now.
    place: Arc<StreamPlace>,
    /// `None` once it is handed over.
    chunk: Option<Chunk>,
    capacity: usize,
}

/// A buffer with received payload ([`Stream::receive`](super::Stream::receive)). Dropping it gives
/// the buffer back, so that more can be received.
pub struct Received {
    bytes: Bytes,
    range: Range<usize>,
}

/// Where the bytes are.
enum Bytes {
    /// In a buffer of this engine.
    Buffer(Arc<EngineCell>, Chunk),
    /// In a copy, of a connection that has moved.
    Copy(Vec<u8>),
}

impl Reserved {
    pub(super) fn new(
        place: &Arc<StreamPlace>,
        at: &Place,
        chunk: Chunk,
        capacity: usize,
    ) -> Reserved {
        Reserved {
            cell: at.cell.clone(),
            owner: (at.id, at.number),
            place: place.clone(),
            chunk: Some(chunk),
            capacity,
        }
    }

    /// The largest payload in bytes: the MSS of the connection.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Calls `fill` with the bytes of the buffer, as many as the capacity. They hold anything
    /// before. `fill` must not call functions of streams or listeners. The address of the bytes
    /// does not change while the buffer is reserved.
    pub fn fill<T>(&mut self, fill: impl FnOnce(&mut [u8]) -> T) -> T {
        let (chunk, capacity) = (self.chunk, self.capacity);
        self.cell.look(|engine| match chunk {
            Some(chunk) => fill(engine.reserved(chunk, capacity)),
            None => fill(&mut []),
        })
    }

    /// Sends the first `length` bytes of the buffer, behind everything that was written or
    /// committed before. If the connection has got a flow of its own since the buffer was reserved
    /// ([`Stream::promote`](super::Stream::promote)), the bytes are copied to a buffer of it.
    ///
    /// # Errors
    /// [`StackError::Connection`] if the length is 0 or more than the MSS of the connection, which
    /// can become smaller than the capacity, or if the connection has failed or was shut down;
    /// [`StackError::WouldBlock`] if no buffer of the new flow is free; another error if its flow
    /// has ended. The buffer comes back with the error.
    pub fn commit(mut self, length: usize) -> Result<(), (Reserved, StackError)> {
        let committed = self.try_commit(length);
        committed.map_err(|error| (self, error))
    }

    fn try_commit(&mut self, length: usize) -> Result<(), StackError> {
        let Some(chunk) = self.chunk else {
            return Ok(());
        };
        let place = self.place.read();
        let has_moved = !Arc::ptr_eq(&place.cell, &self.cell);
        let copy = has_moved.then(|| {
            let capacity = self.capacity;
            let copy = |bytes: &mut [u8]| bytes[..length.min(capacity)].to_vec();
            self.cell
                .look(|engine| copy(engine.reserved(chunk, capacity)))
        });
        let (id, stream) = match has_moved {
            true => (place.id, place.number),
            false => self.owner,
        };
        let (committed, woken) = place.cell.enter(|engine| {
            if !engine.watches.is_open(id, stream) {
                return Err(StackError::Connection(WriteError::ShutDown));
            }
            match &copy {
                Some(bytes) if bytes.len() == length => {
                    match writing(engine, |engine| engine.commit_copy(id, bytes))? {
                        true => Ok(()),
                        false => Err(StackError::WouldBlock),
                    }
                }
                // Too long in any case, if it does not fit.
                _ => {
                    let length = u32::try_from(length).unwrap_or(u32::MAX);
                    writing(engine, |engine| engine.commit(id, chunk, length))
                }
            }
        });
        drop(place);
        drop(woken);
        committed?;
        if !has_moved {
            self.chunk = None;
        }
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some(chunk) = self.chunk else {
            return;
        };
        let (id, stream) = self.owner;
        let ((), woken) = self.cell.enter(|engine| {
            engine.return_reserved(chunk);
            if engine.watches.is_open(id, stream) {
                engine.count_returned(id);
            }
        });
        drop(woken);
    }
}

impl Received {
    pub(super) fn new(cell: &Arc<EngineCell>, front: Front) -> Received {
        let (bytes, range) = match front {
            Front::Buffer(chunk, range) => (Bytes::Buffer(cell.clone(), chunk), range),
            Front::Copy(bytes, range) => (Bytes::Copy(bytes), range),
        };
        Received { bytes, range }
    }

    /// Number of bytes, at least 1.
    pub fn length(&self) -> usize {
        self.range.len()
    }

    /// Calls `read` with the bytes. It must not call functions of streams or listeners. The address
    /// of the bytes does not change.
    pub fn with<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        let range = self.range.clone();
        match &self.bytes {
            Bytes::Buffer(cell, chunk) => cell.look(|engine| read(engine.taken(*chunk, range))),
            Bytes::Copy(bytes) => read(bytes.get(range).unwrap_or_default()),
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Bytes::Buffer(cell, chunk) = &self.bytes {
            let ((), woken) = cell.enter(|engine| engine.return_taken(*chunk));
            drop(woken);
        }
    }
}
