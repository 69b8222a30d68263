//! A UDP socket: one flow with one remote, its buffers and its headers.
//!
//! ```text
//!   packet() ──▶ payload_mut() ──▶ queue() ──┐                       ┌──▶ receive() ──▶ payload() ──▶ release()
//!                  (written in place)        flush() ──▶ driver ─────┘     (read in place)        (primed again)
//! ```
//! `try_send`, `send`, `try_recv` and `recv` are the same with a copy of the payload. A part of the buffers is primed for
//! receiving from the begin, the rest sends. What was sent comes back with what became of it ([`Socket::outcome`]);
//! who does not ask still gets the buffers back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netnice_ring::driver::Loss;
use netnice_ring::program::{Chunk, Fault, Flow, Piece, Refused};
use netnice_ring::{Record, Status};

use crate::datagram::{self, Found, Unreadable};
use crate::headers::{ETHERNET, FlowAddress, Headers};
use crate::program::{Shared, StackError};

/// Whether received checksums of UDP are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// A datagram with a wrong one is dropped.
    Verify,
    /// They are not looked at: for links inside one machine, whose senders leave them to a card that is not there.
    Trust,
}

/// A flow of UDP.
pub struct Socket {
    shared: Arc<Shared>,
    flow: Flow,
    headers: Headers,
    address: FlowAddress,
    checks: Checks,
    /// The number of the packet that each buffer carries.
    carried: Box<[u64]>,
    next: u64,
    outcomes: VecDeque<Outcome>,
    dropped: Dropped,
}

/// A buffer to be sent. One that is dropped is lost to its socket: [`queue`](Socket::queue) or
/// [`discard`](Socket::discard) it.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Packet {
    chunk: Chunk,
}

/// A received datagram, in its buffer. One that is dropped is lost to its socket: [`release`](Socket::release) it.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Datagram {
    chunk: Chunk,
    found: Found,
    /// When the driver had it, in ns of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

impl Datagram {
    /// Who sent it.
    pub fn from(&self) -> std::net::SocketAddr {
        self.found.from
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The number that it got when it was queued.
    pub number: u64,
    /// Sent, or why not.
    pub status: Status,
    /// When it was sent, in ns of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

/// Frames that were received and held no datagram for this socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Shorter than their headers say, or cut because the buffer was too small.
    pub short: u64,
    /// Not UDP, or of another flow.
    pub foreign: u64,
    /// Fragments.
    pub fragment: u64,
    /// Wrong checksums.
    pub checksum: u64,
}

impl Socket {
    pub(crate) fn new(
        shared: Arc<Shared>,
        flow: Flow,
        address: &FlowAddress,
        checks: Checks,
    ) -> Result<Socket, StackError> {
        let headers = Headers::udp(address)?;
        let shape = flow.place().shape;
        let packet = ETHERNET + usize::from(address.mtu);
        if packet > shape.chunk_bytes as usize {
            let chunk = shape.chunk_bytes;
            return Err(StackError::Chunk { chunk, packet });
        }
        let mut socket = Socket {
            shared,
            flow,
            headers,
            address: *address,
            checks,
            carried: vec![0; shape.chunks as usize].into_boxed_slice(),
            next: 0,
            outcomes: VecDeque::new(),
            dropped: Dropped::default(),
        };
        // A record of one pair takes two entries.
        let primed = (shape.chunks / 2).min(shape.receive_entries / 2);
        for _ in 0..primed {
            let Some(chunk) = socket.flow.chunk() else {
                break;
            };
            socket.prime(chunk)?;
        }
        socket.flush();
        Ok(socket)
    }

    /// Bytes of payload at most.
    pub fn longest(&self) -> usize {
        self.headers.longest()
    }

    /// The flow's addresses.
    pub fn address(&self) -> &FlowAddress {
        &self.address
    }

    /// A free buffer.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if all are under way.
    #[inline]
    pub fn packet(&mut self) -> Result<Packet, StackError> {
        let chunk = match self.flow.chunk() {
            Some(chunk) => chunk,
            None => {
                self.reclaim()?;
                self.flow.chunk().ok_or(StackError::NotNow)?
            }
        };
        Ok(Packet { chunk })
    }

    /// Where the payload is to be written: as much as a packet can carry.
    ///
    /// # Errors
    /// If the packet is of another socket.
    #[inline]
    pub fn payload_mut(&mut self, packet: &Packet) -> Result<&mut [u8], StackError> {
        let (room, longest) = (self.headers.room(), self.headers.longest());
        let bytes = self.flow.bytes_mut(packet.chunk).map_err(fault)?;
        Ok(&mut bytes[room..room + longest])
    }

    /// Puts the headers before the first `length` bytes of the payload, and hands the packet over; it goes with the next
    /// [`flush`](Socket::flush). Says its number.
    ///
    /// # Errors
    /// The packet comes back with them.
    #[inline]
    pub fn queue(&mut self, packet: Packet, length: usize) -> Result<u64, (Packet, StackError)> {
        match self.hand_over(packet.chunk, length) {
            Ok(number) => Ok(number),
            Err(error) => Err((packet, error)),
        }
    }

    /// Gives a buffer back unsent.
    pub fn discard(&mut self, packet: Packet) {
        // It was held since it was taken; if it is of another socket there is nothing to give back here.
        let _ = self.flow.free(packet.chunk);
    }

    /// Shows the driver what was queued and released, and wakes it if it sleeps.
    #[inline]
    pub fn flush(&mut self) {
        if self.flow.publish() {
            self.shared.ring();
        }
    }

    /// Sends one datagram, if there is a buffer.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if there is none.
    pub fn try_send(&mut self, payload: &[u8]) -> Result<u64, StackError> {
        let number = self.queue_copy(payload)?;
        self.flush();
        Ok(number)
    }

    /// Sends as many of these datagrams as there are buffers for, all with one look of the driver; says how many.
    ///
    /// # Errors
    /// If the first cannot be sent.
    pub fn try_send_batch(&mut self, payloads: &[&[u8]]) -> Result<usize, StackError> {
        let mut sent = 0;
        for payload in payloads {
            match self.queue_copy(payload) {
                Ok(_) => sent += 1,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.flush();
        Ok(sent)
    }

    /// Sends one datagram; waits for a buffer so long, or for ever.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if the time is over.
    pub fn send(&mut self, payload: &[u8], timeout: Option<Duration>) -> Result<u64, StackError> {
        self.blocked(timeout, |socket| socket.try_send(payload))
    }

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
            match self.find(&record, chunk, pair.length as usize) {
                Ok(found) => {
                    let stamp = record.stamp();
                    return Ok(Datagram {
                        chunk,
                        found,
                        stamp,
                    });
                }
                Err(why) => {
                    *why += 1;
                    self.prime(chunk)?;
                }
            }
        }
    }

    /// The bytes of a datagram.
    ///
    /// # Errors
    /// If it is of another socket.
    #[inline]
    pub fn payload(&self, datagram: &Datagram) -> Result<&[u8], StackError> {
        let bytes = self.flow.bytes(datagram.chunk).map_err(fault)?;
        Ok(&bytes[datagram.found.payload.clone()])
    }

    /// Primes the buffer of a datagram again; the driver sees it with the next [`flush`](Socket::flush).
    ///
    /// # Errors
    /// If it is of another socket.
    #[inline]
    pub fn release(&mut self, datagram: Datagram) -> Result<(), StackError> {
        self.prime(datagram.chunk)
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

    /// What became of a packet that was sent; each is told once, in the order in which the driver gave them back. The
    /// last [`OUTCOMES`] are kept.
    ///
    /// # Errors
    /// If the flow is over.
    pub fn outcome(&mut self) -> Result<Option<Outcome>, StackError> {
        if self.outcomes.is_empty() {
            self.reclaim()?;
            self.flush();
        }
        Ok(self.outcomes.pop_front())
    }

    /// Frames that came and held no datagram for this socket.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Datagrams that came and did not reach this socket, as the driver counts them: for want of a buffer, say.
    pub fn lost(&self, why: Loss) -> u64 {
        self.flow.lost(why)
    }

    fn queue_copy(&mut self, payload: &[u8]) -> Result<u64, StackError> {
        self.fits(payload.len())?;
        let packet = self.packet()?;
        self.payload_mut(&packet)?[..payload.len()].copy_from_slice(payload);
        self.queue(packet, payload.len())
            .map_err(|(packet, error)| {
                self.discard(packet);
                error
            })
    }

    #[inline]
    fn hand_over(&mut self, chunk: Chunk, length: usize) -> Result<u64, StackError> {
        self.fits(length)?;
        let whole = self.headers.room() + length;
        let bytes = self.flow.bytes_mut(chunk).map_err(fault)?;
        self.headers.write(&mut bytes[..whole]);
        let piece = Piece {
            chunk,
            start: 0,
            // An MTU and an Ethernet header.
            length: whole as u32,
        };
        match self.flow.submit(&[piece], false) {
            Ok(()) => {}
            Err(Refused::Full) => {
                self.reclaim()?;
                return Err(StackError::NotNow);
            }
            Err(Refused::Fault(error)) => return Err(self.over(error)),
            Err(refused) => return Err(fault(refused)),
        }
        let number = self.next;
        self.carried[chunk.0 as usize] = number;
        self.next += 1;
        Ok(number)
    }

    fn fits(&self, length: usize) -> Result<(), StackError> {
        let longest = self.headers.longest();
        match length <= longest {
            true => Ok(()),
            false => Err(StackError::TooLong { length, longest }),
        }
    }

    /// Collects what was sent.
    fn reclaim(&mut self) -> Result<(), StackError> {
        loop {
            let record = match self.flow.reclaim() {
                Ok(Some(record)) => record,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.over(error)),
            };
            let chunk = self.flow.piece(&record.pairs()[0]).chunk;
            if self.outcomes.len() == OUTCOMES {
                self.outcomes.pop_front();
            }
            self.outcomes.push_back(Outcome {
                number: self.carried[chunk.0 as usize],
                status: record.status(),
                stamp: record.stamp(),
            });
            self.flow.free_all(&record).map_err(fault)?;
        }
    }

    fn prime(&mut self, chunk: Chunk) -> Result<(), StackError> {
        let whole = Piece {
            chunk,
            start: 0,
            length: self.flow.place().shape.chunk_bytes,
        };
        match self.flow.prime(&[whole]) {
            Ok(()) => Ok(()),
            Err(Refused::Fault(error)) => Err(self.over(error)),
            Err(refused) => Err(fault(refused)),
        }
    }

    /// The datagram in a record, or the counter of why there is none.
    fn find(&mut self, record: &Record, chunk: Chunk, length: usize) -> Result<Found, &mut u64> {
        if record.status() != Status::DONE {
            return Err(&mut self.dropped.short);
        }
        let verify = self.checks == Checks::Verify;
        let frame = self.flow.bytes(chunk).map(|bytes| &bytes[..length]);
        let read = frame.map_or(Err(Unreadable::Short), |frame| {
            datagram::read(frame, verify)
        });
        match read {
            Ok(found) if found.to == self.address.local && found.from == self.address.remote => {
                Ok(found)
            }
            Ok(_) | Err(Unreadable::Protocol) => Err(&mut self.dropped.foreign),
            Err(Unreadable::Short) => Err(&mut self.dropped.short),
            Err(Unreadable::Fragment) => Err(&mut self.dropped.fragment),
            Err(Unreadable::Checksum) => Err(&mut self.dropped.checksum),
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

    /// Tries until it is done, or the time is over.
    fn blocked<T>(
        &mut self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut Socket) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            match attempt(self) {
                Err(StackError::NotNow) => {}
                other => return other,
            }
            // What was collected on the way is to be seen before anybody sleeps.
            self.flush();
            if !self.shared.wait(self.flow.place().slot, deadline)? {
                return attempt(self);
            }
        }
    }

    /// Why there is nothing: perhaps there never will be.
    fn nothing(&self) -> StackError {
        match (self.shared.ended(), self.flow.is_open()) {
            (Some(must), _) => StackError::Expelled(must),
            (None, false) => StackError::Closed,
            (None, true) => StackError::NotNow,
        }
    }

    fn over(&self, error: Fault) -> StackError {
        match (self.shared.ended(), error) {
            (Some(must), _) => StackError::Expelled(must),
            (None, Fault::Closed) => StackError::Closed,
            (None, breach) => StackError::Driver(breach),
        }
    }
}

/// What a place got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that there was room for.
    pub bytes: usize,
    /// Bytes that the datagram had.
    pub whole: usize,
    /// Who sent it.
    pub from: std::net::SocketAddr,
    /// When the driver had it, in ns of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

fn fault(refused: Refused) -> StackError {
    StackError::Buffer(refused)
}

/// So many outcomes are kept for who asks late.
pub const OUTCOMES: usize = 1024;

#[cfg(test)]
mod tests;
