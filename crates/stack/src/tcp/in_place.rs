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

use super::engine_cell::EngineCell;
use super::stream::writing;
use crate::error::StackError;

/// A buffer for payload of one segment, which the program fills
/// ([`Stream::reserve`](super::Stream::reserve)). Dropping it gives the buffer back, unsent.
pub struct Reserved {
    cell: Arc<EngineCell>,
    /// The connection, and the number of its stream.
    place: (ConnectionId, u64),
    /// `None` once it is handed over.
    chunk: Option<Chunk>,
    capacity: usize,
}

/// A buffer with received payload ([`Stream::receive`](super::Stream::receive)). Dropping it gives
/// the buffer back, so that more can be received.
pub struct Received {
    cell: Arc<EngineCell>,
    chunk: Chunk,
    range: Range<usize>,
}

impl Reserved {
    pub(super) fn new(
        cell: Arc<EngineCell>,
        place: (ConnectionId, u64),
        chunk: Chunk,
        capacity: usize,
    ) -> Reserved {
        Reserved {
            cell,
            place,
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
    /// committed before.
    ///
    /// # Errors
    /// [`StackError::Connection`] if the length is 0 or more than the MSS of the connection, which
    /// can become smaller than the capacity, or if the connection has failed or was shut down;
    /// another error if its flow has ended. The buffer comes back with the error.
    pub fn commit(mut self, length: usize) -> Result<(), (Reserved, StackError)> {
        let (id, stream) = self.place;
        let Some(chunk) = self.chunk else {
            return Ok(());
        };
        // Too long in any case, if it does not fit.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let committed = self.cell.enter(|engine| {
            if !engine.watches.is_open(id, stream) {
                return Err(StackError::Connection(WriteError::ShutDown));
            }
            writing(engine, |engine| engine.commit(id, chunk, length))
        });
        match committed {
            Ok(()) => {
                self.chunk = None;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some(chunk) = self.chunk else {
            return;
        };
        let (id, stream) = self.place;
        self.cell.enter(|engine| {
            engine.return_reserved(chunk);
            if engine.watches.is_open(id, stream) {
                engine.count_returned(id);
            }
        });
    }
}

impl Received {
    pub(super) fn new(cell: Arc<EngineCell>, chunk: Chunk, range: Range<usize>) -> Received {
        Received { cell, chunk, range }
    }

    /// Number of bytes, at least 1.
    pub fn length(&self) -> usize {
        self.range.len()
    }

    /// Calls `read` with the bytes. It must not call functions of streams or listeners. The address
    /// of the bytes does not change.
    pub fn with<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        let range = self.range.clone();
        self.cell
            .look(|engine| read(engine.taken(self.chunk, range)))
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let chunk = self.chunk;
        self.cell.enter(|engine| engine.return_taken(chunk));
    }
}
