//! Receiving: takes the datagram out of a delivered record, and primes the buffer again.

use super::*;
use crate::datagram::{self, Unreadable};

/// A datagram that was copied to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were copied.
    pub bytes: usize,
    /// Bytes of the datagram's payload.
    pub whole: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The time at which the driver received it, in ns of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

impl Socket {
    /// The next datagram, in its buffer.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if no datagram has arrived. Another error if the flow has ended.
    #[inline]
    pub fn receive(&mut self) -> Result<Datagram, StackError> {
        loop {
            let record = match self.flow.receive() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    // The driver must see the buffers of dropped frames, which are primed again.
                    self.flush();
                    return Err(self.nothing());
                }
                Err(error) => return Err(self.over(error)),
            };
            let pair = record.pairs()[0];
            let chunk = self.flow.piece(&pair).chunk;
            if record.status() != Status::DONE {
                // The packet did not fit into the buffer. The driver has counted it.
                self.prime(chunk)?;
                continue;
            }
            let (length, stamp) = (pair.length as usize, record.stamp());
            let whole = match self.find(chunk, length) {
                Ok(found) => {
                    return Ok(Datagram {
                        lies: Lies::Chunk(chunk),
                        found,
                        stamp,
                    });
                }
                Err(Unreadable::Fragment) => self.join(chunk, length, stamp),
                Err(why) => Err(why),
            };
            self.prime(chunk)?;
            match whole {
                Ok(Some((bytes, found))) => {
                    return Ok(Datagram {
                        lies: Lies::Apart(bytes),
                        found,
                        stamp,
                    });
                }
                Ok(None) => {}
                Err(why) => self.count(why),
            }
        }
    }

    /// The payload of a datagram.
    ///
    /// # Errors
    /// If the datagram belongs to another socket.
    #[inline]
    pub fn payload<'a>(&'a self, datagram: &'a Datagram) -> Result<&'a [u8], StackError> {
        let bytes = match &datagram.lies {
            Lies::Chunk(chunk) => self.flow.bytes(*chunk).map_err(fault)?,
            Lies::Apart(bytes) => bytes,
        };
        Ok(&bytes[datagram.found.payload.clone()])
    }

    /// Primes the buffer of a datagram again. The driver sees it after the next
    /// [`flush`](Socket::flush).
    ///
    /// # Errors
    /// If the datagram belongs to another socket, or the flow has ended.
    #[inline]
    pub fn release(&mut self, datagram: Datagram) -> Result<(), StackError> {
        match datagram.lies {
            Lies::Chunk(chunk) => self.prime(chunk),
            Lies::Apart(_) => Ok(()),
        }
    }

    /// Copies the payload of the next datagram to `into`, truncated to its length.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if no datagram has arrived. Another error if the flow has ended.
    pub fn try_recv(&mut self, into: &mut [u8]) -> Result<Received, StackError> {
        let received = self.copy_out(into)?;
        self.flush();
        Ok(received)
    }

    /// Copies the payloads of the datagrams that have arrived, one to each buffer of `into`.
    /// `received` describes each copy. Returns the number of copies.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if no datagram has arrived. Another error if the flow has ended.
    pub fn try_recv_batch(
        &mut self,
        into: &mut [&mut [u8]],
        received: &mut Vec<Received>,
    ) -> Result<usize, StackError> {
        received.clear();
        for place in into {
            match self.copy_out(place) {
                Ok(one) => received.push(one),
                Err(error) if received.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        self.flush();
        Ok(received.len())
    }

    /// Copies the payload of the next datagram to `into`, and waits for it up to `timeout` (`None`:
    /// without a limit).
    ///
    /// # Errors
    /// [`StackError::NotNow`] if the timeout expires. Another error if the flow has ended.
    pub fn recv(
        &mut self,
        into: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<Received, StackError> {
        self.blocked(timeout, |socket| socket.try_recv(into))
    }

    pub(super) fn prime(&mut self, chunk: Chunk) -> Result<(), StackError> {
        let piece = whole(chunk, &self.flow.place().shape);
        match self.flow.prime(&[piece]) {
            Ok(()) => Ok(()),
            Err(Refused::Fault(error)) => Err(self.over(error)),
            Err(refused) => Err(fault(refused)),
        }
    }

    /// The datagram in a record, or why there is none.
    fn find(&self, chunk: Chunk, length: usize) -> Result<Found, Unreadable> {
        let frame = self.flow.bytes(chunk).map(|bytes| &bytes[..length]);
        let found = datagram::read(frame.map_err(|_| Unreadable::Short)?, self.checks)?;
        self.is_for_us(&found)
            .then_some(found)
            .ok_or(Unreadable::Protocol)
    }

    /// Adds a fragment. Returns the datagram if it is complete.
    fn join(
        &mut self,
        chunk: Chunk,
        length: usize,
        now: u64,
    ) -> Result<Option<(Vec<u8>, Found)>, Unreadable> {
        let bytes = self.flow.bytes(chunk).map_err(|_| Unreadable::Short)?;
        let part = datagram::part(&bytes[..length])?;
        let Some(bytes) = self.parts.add(&part, &bytes[part.bytes.clone()], now) else {
            return Ok(None);
        };
        let found = datagram::read_whole(&bytes, &part.of, self.checks)?;
        match self.is_for_us(&found) {
            true => Ok(Some((bytes, found))),
            false => Err(Unreadable::Protocol),
        }
    }

    fn count(&mut self, why: Unreadable) {
        let counter = match why {
            Unreadable::Protocol => &mut self.dropped.foreign,
            Unreadable::Short => &mut self.dropped.short,
            Unreadable::Fragment => &mut self.dropped.fragment,
            Unreadable::Checksum => &mut self.dropped.checksum,
        };
        *counter += 1;
    }

    fn is_for_us(&self, found: &Found) -> bool {
        // A link-local socket address contains a scope id, which a packet does not.
        let same = |one: &SocketAddr, other: &SocketAddr| {
            (one.ip(), one.port()) == (other.ip(), other.port())
        };
        match &self.peer {
            Peer::One { remote, .. } => same(&found.to, &self.local) && same(&found.from, remote),
            Peer::Group { group, .. } => same(&found.to, group),
            Peer::Any { .. } => same(&found.to, &self.local),
        }
    }

    fn copy_out(&mut self, into: &mut [u8]) -> Result<Received, StackError> {
        let datagram = self.receive()?;
        let payload = self.payload(&datagram)?;
        let length = payload.len().min(into.len());
        into[..length].copy_from_slice(&payload[..length]);
        let received = Received {
            bytes: length,
            whole: payload.len(),
            from: datagram.from(),
            stamp: datagram.stamp,
        };
        self.release(datagram)?;
        Ok(received)
    }
}
