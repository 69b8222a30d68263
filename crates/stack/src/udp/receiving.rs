//! Receiving: the datagram in a delivered record, and its buffer back to the driver.

use super::*;
use crate::datagram::{self, Unreadable};

/// What a place got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that there was room for.
    pub bytes: usize,
    /// Bytes that the datagram had.
    pub whole: usize,
    /// Who sent it.
    pub from: SocketAddr,
    /// When the driver had it, in ns of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

impl Socket {
    /// The next datagram, in its buffer.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if none has come.
    #[inline]
    pub fn receive(&mut self) -> Result<Datagram, StackError> {
        loop {
            let record = match self.flow.receive() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    // What was dropped on the way is primed again, and the driver must see it.
                    self.flush();
                    return Err(self.nothing());
                }
                Err(error) => return Err(self.over(error)),
            };
            let pair = record.pairs()[0];
            let chunk = self.flow.piece(&pair).chunk;
            if record.status() != Status::DONE {
                // A packet that did not fit, which the driver has counted.
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

    /// The bytes of a datagram.
    ///
    /// # Errors
    /// If it is of another socket.
    #[inline]
    pub fn payload<'a>(&'a self, datagram: &'a Datagram) -> Result<&'a [u8], StackError> {
        let bytes = match &datagram.lies {
            Lies::Chunk(chunk) => self.flow.bytes(*chunk).map_err(fault)?,
            Lies::Apart(bytes) => bytes,
        };
        Ok(&bytes[datagram.found.payload.clone()])
    }

    /// Primes the buffer of a datagram again; the driver sees it with the next [`flush`](Socket::flush).
    ///
    /// # Errors
    /// If it is of another socket.
    #[inline]
    pub fn release(&mut self, datagram: Datagram) -> Result<(), StackError> {
        match datagram.lies {
            Lies::Chunk(chunk) => self.prime(chunk),
            Lies::Apart(_) => Ok(()),
        }
    }

    /// Copies the next datagram's payload; says how many bytes there were room for, and from whom it is.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if none has come.
    pub fn try_recv(&mut self, into: &mut [u8]) -> Result<Received, StackError> {
        let received = self.copy_out(into)?;
        self.flush();
        Ok(received)
    }

    /// Copies as many datagrams as have come and as there are places for; says what each place got.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if none has come.
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

    /// Copies the next datagram's payload; waits for it so long, or for ever.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if the time is over.
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

    /// A part has come: the datagram, if it is whole now.
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
        // An address of one link alone has its number beside it here, and not in a packet.
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
