//! Receives datagrams on a [`Socket`]: finds the datagram in a record that the driver delivered,
//! reassembles fragments, and primes the buffer again when the program releases the datagram.
//! Frames without a datagram for the socket are dropped and counted ([`Socket::dropped`]). Calls
//! fail with [`StackError::WouldBlock`] if no datagram has arrived in time, with
//! [`StackError::Buffer`] for a datagram of another socket, and with another error if the flow has
//! ended or waiting fails.

use super::*;
use crate::datagram::{self, ParseError};
use crate::headers::UDP;

/// A datagram that was copied to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Number of bytes that were copied.
    pub bytes: usize,
    /// Length of the datagram's payload in bytes.
    pub whole: usize,
    /// The address and port of the sender; port 0 for an IP protocol other than UDP, and `0.0.0.0`
    /// for an EtherType.
    pub from: SocketAddr,
    /// The Ethernet address in the frame that the datagram arrived in; zeros if it arrived in
    /// fragments.
    pub from_mac: [u8; 6],
    /// The time at which the driver received the datagram, or the fragment that completed it, in ns
    /// of `CLOCK_MONOTONIC`.
    pub stamp: u64,
}

impl Socket {
    /// The next datagram, in its buffer, or in heap memory if it arrived in fragments. Pass it to
    /// [`release`](Socket::release) after use.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if no datagram has arrived. Another error if the flow has ended.
    #[inline]
    pub fn receive(&mut self) -> Result<Datagram, StackError> {
        self.follow_route();
        match self.taken_over.pop_front() {
            Some(datagram) => Ok(datagram),
            None => self.next_datagram(),
        }
    }

    /// The next datagram in the ring. Fails as [`Socket::receive`].
    #[inline]
    pub(super) fn next_datagram(&mut self) -> Result<Datagram, StackError> {
        loop {
            let record = match self.flow.receive() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    // The driver must see the buffers of dropped frames, which are primed again.
                    self.flush();
                    return Err(self.would_block());
                }
                Err(error) => return Err(self.flow_error(error)),
            };
            let pair = record.pairs()[0];
            let chunk = self.flow.piece(&pair).chunk;
            if record.status() != Status::DONE {
                // The packet did not fit into the buffer. The driver has counted it.
                self.prime(chunk)?;
                continue;
            }
            let (length, stamp) = (pair.length as usize, record.stamp());
            let reassembled = match self.parse(chunk, length) {
                Ok(parsed) => {
                    return Ok(Datagram {
                        storage: Storage::Chunk(chunk),
                        parsed,
                        stamp,
                    });
                }
                Err(ParseError::Fragment) => self.reassemble(chunk, length, stamp),
                Err(why) => Err(why),
            };
            self.prime(chunk)?;
            match reassembled {
                Ok(Some((bytes, parsed))) => {
                    return Ok(Datagram {
                        storage: Storage::Heap(bytes),
                        parsed,
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
    /// If the program does not hold the buffer, for example because the datagram is another
    /// socket's.
    #[inline]
    pub fn payload<'a>(&'a self, datagram: &'a Datagram) -> Result<&'a [u8], StackError> {
        let bytes = match &datagram.storage {
            Storage::Chunk(chunk) => self.flow.bytes(*chunk).map_err(buffer_error)?,
            Storage::Heap(bytes) => bytes,
        };
        Ok(&bytes[datagram.parsed.payload.clone()])
    }

    /// The Ethernet address in the frame that a datagram arrived in: the sender's on a flow of an
    /// EtherType, else that of the last router. Zeros if the datagram arrived in fragments.
    ///
    /// # Errors
    /// As [`payload`](Socket::payload).
    #[inline]
    pub fn sender_mac(&self, datagram: &Datagram) -> Result<[u8; 6], StackError> {
        let Storage::Chunk(chunk) = datagram.storage else {
            return Ok([0; 6]);
        };
        let bytes = self.flow.bytes(chunk).map_err(buffer_error)?;
        let mac = bytes.get(6..12).and_then(|mac| mac.try_into().ok());
        Ok(mac.unwrap_or_default())
    }

    /// Primes the buffer of a datagram again. The driver sees the buffer after the next
    /// [`flush`](Socket::flush).
    ///
    /// # Errors
    /// If the program does not hold the buffer, or the flow has ended.
    #[inline]
    pub fn release(&mut self, datagram: Datagram) -> Result<(), StackError> {
        match datagram.storage {
            Storage::Chunk(chunk) => self.prime(chunk),
            Storage::Heap(_) => Ok(()),
        }
    }

    /// Copies the payload of the next datagram to `into`. If `into` is shorter, the rest of the
    /// payload is lost, and [`Received::whole`] exceeds [`Received::bytes`].
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if no datagram has arrived. Another error if the flow has ended.
    pub fn try_recv(&mut self, into: &mut [u8]) -> Result<Received, StackError> {
        let received = self.copy_out(into)?;
        self.flush();
        Ok(received)
    }

    /// Copies the payloads of the datagrams that have arrived, one to each buffer of `into`, and
    /// replaces the content of `received` by a description of each. Returns the number of copied
    /// datagrams.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if no datagram has arrived. Another error if the flow has ended.
    pub fn try_recv_batch(
        &mut self,
        into: &mut [&mut [u8]],
        received: &mut Vec<Received>,
    ) -> Result<usize, StackError> {
        received.clear();
        for buffer in into {
            match self.copy_out(buffer) {
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
    /// [`StackError::WouldBlock`] if the timeout expires. Another error if the flow has ended or
    /// waiting fails.
    pub fn recv(
        &mut self,
        into: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<Received, StackError> {
        self.block_on(timeout, |socket| socket.try_recv(into))
    }

    /// Primes a buffer. Fails if the program does not hold the buffer, or the flow has ended.
    pub(super) fn prime(&mut self, chunk: Chunk) -> Result<(), StackError> {
        let piece = whole(chunk, &self.flow.location().shape);
        match self.flow.prime(&[piece]) {
            Ok(()) => Ok(()),
            Err(RecordError::Flow(error)) => Err(self.flow_error(error)),
            Err(error) => Err(buffer_error(error)),
        }
    }

    /// The datagram in a record, or why there is none.
    fn parse(&self, chunk: Chunk, length: usize) -> Result<ParsedDatagram, ParseError> {
        let frame = self.flow.bytes(chunk).map(|bytes| &bytes[..length]);
        let frame = frame.map_err(|_| ParseError::Short)?;
        let parsed = match self.carried {
            Carried::Udp => datagram::parse(frame, self.checks)?,
            Carried::Ip(protocol) => datagram::parse_ip(frame, protocol)?,
            Carried::Ether(number) => datagram::parse_ethernet(frame, number)?,
        };
        self.is_for_this_flow(&parsed)
            .then_some(parsed)
            .ok_or(ParseError::Protocol)
    }

    /// Adds a fragment. Returns the datagram if it is complete.
    fn reassemble(
        &mut self,
        chunk: Chunk,
        length: usize,
        now: u64,
    ) -> Result<Option<(Vec<u8>, ParsedDatagram)>, ParseError> {
        let bytes = self.flow.bytes(chunk).map_err(|_| ParseError::Short)?;
        let protocol = match self.carried {
            Carried::Ip(protocol) => protocol,
            _ => UDP,
        };
        let fragment = datagram::parse_fragment_of(&bytes[..length], protocol)?;
        let Some(bytes) = self
            .reassembly
            .add(&fragment, &bytes[fragment.bytes.clone()], now)
        else {
            return Ok(None);
        };
        let parsed = match self.carried {
            Carried::Udp => datagram::parse_reassembled(&bytes, &fragment.key, self.checks)?,
            _ => datagram::reassembled_ip(&bytes, &fragment.key),
        };
        match self.is_for_this_flow(&parsed) {
            true => Ok(Some((bytes, parsed))),
            false => Err(ParseError::Protocol),
        }
    }

    fn count(&mut self, why: ParseError) {
        let counter = match why {
            ParseError::Protocol => &mut self.dropped.foreign,
            ParseError::Short => &mut self.dropped.short,
            ParseError::Fragment => &mut self.dropped.fragment,
            ParseError::Checksum => &mut self.dropped.checksum,
        };
        *counter += 1;
    }

    fn is_for_this_flow(&self, parsed: &ParsedDatagram) -> bool {
        // A link-local socket address contains a scope id, which a packet does not.
        let same = |one: &SocketAddr, other: &SocketAddr| {
            (one.ip(), one.port()) == (other.ip(), other.port())
        };
        match &self.remote {
            RemoteHeaders::One { remote, .. } => {
                same(&parsed.to, &self.local) && same(&parsed.from, remote)
            }
            RemoteHeaders::Group { group, .. } => same(&parsed.to, group),
            RemoteHeaders::Any { .. } => same(&parsed.to, &self.local),
            // The driver has compared the EtherType and the pattern.
            RemoteHeaders::Stations { .. } => true,
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
            from_mac: self.sender_mac(&datagram)?,
            stamp: datagram.stamp,
        };
        self.release(datagram)?;
        Ok(received)
    }
}
