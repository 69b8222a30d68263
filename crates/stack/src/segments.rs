//! Flows of TCP at the level of segments ([`SegmentFlow`]): the program makes and reads whole
//! frames. A TCP on top of it keeps the connections.
//!
//! A client opens a [`SegmentEndpoint::Connection`]. A server opens two flows: the one of
//! [`SegmentEndpoint::ConnectionRequests`] gets the SYNs of its port, and the one of
//! [`SegmentEndpoint::Listener`] all other segments of the port, from any host. So a flood of
//! requests takes the buffers and the receive budget of the first one only. A server without the
//! first one gets the requests by the second one. Afterwards the server may open a
//! [`SegmentEndpoint::Connection`] from its port for any peer: from then on the segments of that
//! peer go there.
//!
//! The driver checks each sent frame: the flow's addresses and ports, the lengths, the checksum of
//! the IPv4 header. The program computes the checksum of TCP. When a connection's flow ends and the
//! program has not closed it ([`SegmentFlow::close`], or dropping it), the driver resets the
//! connection. When a server's flow ends so, the kernel answers RST to the segments that follow.
//!
//! Calls fail with a [`StackError`] if there is no daemon, the daemon refuses, the driver closed
//! the flow, or an argument is invalid.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netnice_api::direct::{Endpoint, FlowOpened};
use netnice_ring::connections::{ConnectionList, ENTRY_BYTES};
use netnice_ring::program::{Chunk, FlowError, Piece, ProgramRings, RecordError};
use netnice_ring::{SetupError, Status};

use crate::control::FlowStatus;
use crate::error::StackError;
use crate::program::{Program, Shared};
use crate::udp::{Buffers, open_request};

/// The endpoint of a flow of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentEndpoint {
    /// One connection. The daemon chooses an unspecified local address, and a port for port 0.
    Connection {
        /// The local address and port.
        local: SocketAddr,
        /// The remote address and port.
        remote: SocketAddr,
    },
    /// The connection requests of a port: segments with SYN and without ACK, from any host.
    ConnectionRequests {
        /// The local address, which is specified, and the port; the daemon chooses one for port 0.
        local: SocketAddr,
    },
    /// All segments of a port that no other flow gets, from any host.
    Listener {
        /// As in [`SegmentEndpoint::ConnectionRequests`].
        local: SocketAddr,
    },
}

/// A flow of TCP. Dropping it closes the flow, without a reset.
pub struct SegmentFlow {
    pub(crate) shared: Arc<Shared>,
    pub(crate) rings: ProgramRings,
    opened: FlowOpened,
    pub(crate) status: Arc<FlowStatus>,
}

impl Program {
    /// Requests a flow of TCP from the daemon. `contract` is the contract as text; `None` is best
    /// effort.
    ///
    /// # Errors
    /// If the buffers are invalid, there is no connection to the daemon, or the daemon does not
    /// grant the flow: for example, the port is in use, or the contract does not fit.
    pub fn open_segments(
        &self,
        endpoint: SegmentEndpoint,
        contract: Option<&str>,
        buffers: Buffers,
    ) -> Result<SegmentFlow, StackError> {
        let mut flow = self.open_unprimed(endpoint, contract, buffers)?;
        flow.prime_free(buffers.receiving)?;
        Ok(flow)
    }

    /// [`Program::open_segments`], but no buffer is primed: the flow receives nothing before
    /// [`SegmentFlow::prime_free`], and a listener of its port gets the segments of its connection.
    pub(crate) fn open_unprimed(
        &self,
        endpoint: SegmentEndpoint,
        contract: Option<&str>,
        buffers: Buffers,
    ) -> Result<SegmentFlow, StackError> {
        Ok(self.open_with_list(endpoint, contract, (buffers, 0))?.0)
    }

    /// As [`Program::open_segments`], with a list of that many connections in further buffers.
    pub(crate) fn open_listing(
        &self,
        endpoint: SegmentEndpoint,
        contract: Option<&str>,
        (buffers, listed): (Buffers, u32),
    ) -> Result<(SegmentFlow, Option<ConnectionList>), StackError> {
        let (mut flow, list) = self.open_with_list(endpoint, contract, (buffers, listed))?;
        flow.prime_free(buffers.receiving)?;
        Ok((flow, list))
    }

    /// Opens a flow without primed buffers, and makes the list.
    fn open_with_list(
        &self,
        endpoint: SegmentEndpoint,
        contract: Option<&str>,
        (buffers, listed): (Buffers, u32),
    ) -> Result<(SegmentFlow, Option<ConnectionList>), StackError> {
        let endpoint = match endpoint {
            SegmentEndpoint::Connection { local, remote } => Endpoint::Tcp { local, remote },
            SegmentEndpoint::ConnectionRequests { local } => Endpoint::TcpSyn { local },
            SegmentEndpoint::Listener { local } => Endpoint::TcpListener { local },
        };
        let contract = contract.map(str::to_string);
        let (mut open, mut shape) = open_request(endpoint, contract, buffers, false)?;
        shape.chunks += listing_buffers(buffers.bytes, listed);
        open.shape.chunks = shape.chunks;
        shape.plan().map_err(SetupError::from)?;
        let (rings, opened, status) = self.open_rings(open, shape)?;
        let mut flow = SegmentFlow {
            shared: self.shared.clone(),
            rings,
            opened,
            status,
        };
        let list = match listed {
            0 => None,
            _ => flow.rings.list_connections(listed),
        };
        Ok((flow, list))
    }
}

/// Number of buffers of this many bytes that hold a list of so many connections.
pub(crate) fn listing_buffers(bytes: u32, listed: u32) -> u32 {
    let list = u64::from(listed) * ENTRY_BYTES;
    // Less than 2^32: an entry has 32 bytes, and a valid buffer at least 64.
    list.div_ceil(bytes.max(64).into()) as u32
}

impl SegmentFlow {
    /// The daemon's number of the flow.
    pub fn number(&self) -> u32 {
        self.status.number()
    }

    /// The local address and port.
    pub fn local(&self) -> SocketAddr {
        match self.opened.endpoint {
            Endpoint::Tcp { local, .. }
            | Endpoint::TcpSyn { local }
            | Endpoint::TcpListener { local } => local,
            // `open_segments` asks for no other endpoint, and the daemon changes none.
            _ => SocketAddr::from(([0; 4], 0)),
        }
    }

    /// The key of the local endpoint, from which initial sequence numbers (RFC 6528) and SYN
    /// cookies (RFC 4987) are derived. It is the same for all flows of the local address and port,
    /// also after a restart of the program, and other users cannot compute it.
    pub fn key(&self) -> [u8; 16] {
        self.opened.key.unwrap_or_default()
    }

    /// The Ethernet address of the link, the source address of sent frames.
    pub fn mac(&self) -> [u8; 6] {
        self.opened.mac
    }

    /// The Ethernet address of the next hop of a connection, which the driver writes into each
    /// frame. `None` for the flows of a server: the program writes the destination, for example the
    /// source of the frame that it answers.
    pub fn next_hop(&self) -> Option<[u8; 6]> {
        self.opened.next_hop
    }

    /// The largest IP packet that the driver sends, in bytes; 0 after the end of the flow.
    pub fn mtu(&self) -> u32 {
        self.status.mtu()
    }

    /// Why the flow ended, if the daemon gave a reason.
    pub fn end_reason(&self) -> Option<&str> {
        self.status.end_reason()
    }

    /// Sends a frame, from its Ethernet header on.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if no buffer is free, [`StackError::TooLong`] if the frame is
    /// longer than a buffer. Another error if the flow has ended.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), StackError> {
        self.reclaim()?;
        let longest = self.rings.location().shape.chunk_bytes as usize;
        if frame.is_empty() || frame.len() > longest {
            return Err(StackError::TooLong {
                length: frame.len(),
                longest,
            });
        }
        let chunk = self.rings.chunk().ok_or(StackError::WouldBlock)?;
        let bytes = self.rings.bytes_mut(chunk).map_err(StackError::Buffer)?;
        bytes[..frame.len()].copy_from_slice(frame);
        let piece = Piece {
            chunk,
            start: 0,
            length: frame.len() as u32,
        };
        if let Err(error) = self.rings.submit(&[piece], false) {
            let _ = self.rings.free(chunk);
            return Err(self.record_error(error));
        }
        self.publish();
        Ok(())
    }

    /// Takes back the buffers of sent frames, and returns the statuses of those that were not sent.
    ///
    /// # Errors
    /// If the flow has ended.
    pub fn reclaim(&mut self) -> Result<Vec<Status>, StackError> {
        let mut unsent = Vec::new();
        loop {
            match self.rings.reclaim() {
                Ok(Some(record)) => {
                    if record.status() != Status::DONE {
                        unsent.push(record.status());
                    }
                    self.rings.free_all(&record).map_err(StackError::Buffer)?;
                }
                Ok(None) => return Ok(unsent),
                Err(error) => return Err(self.flow_error(error)),
            }
        }
    }

    /// Copies the next received frame, from its Ethernet header on.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if no frame has arrived. Another error if the flow has ended.
    pub fn try_recv(&mut self) -> Result<Vec<u8>, StackError> {
        loop {
            let record = match self.rings.receive() {
                Ok(Some(record)) => record,
                Ok(None) if self.rings.is_open() => return Err(StackError::WouldBlock),
                Ok(None) => return Err(self.flow_error(FlowError::Closed)),
                Err(error) => return Err(self.flow_error(error)),
            };
            let mut frame = Vec::new();
            for pair in record.pairs() {
                let piece = self.rings.piece(pair);
                let (start, length) = (piece.start as usize, piece.length as usize);
                let bytes = self.rings.bytes(piece.chunk).map_err(StackError::Buffer)?;
                frame.extend_from_slice(&bytes[start..start + length]);
                self.prime(piece.chunk)?;
            }
            self.publish();
            if record.status() == Status::DONE {
                return Ok(frame);
            }
        }
    }

    /// As [`SegmentFlow::try_recv`], but waits for a frame for up to `timeout`; `None` is without
    /// limit.
    ///
    /// # Errors
    /// As [`SegmentFlow::try_recv`], and if waiting fails.
    pub fn recv(&mut self, timeout: Option<Duration>) -> Result<Vec<u8>, StackError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let slot = self.rings.location().slot;
        loop {
            match self.try_recv() {
                Err(StackError::WouldBlock) => {}
                done => return done,
            }
            if !self.shared.wait(slot, deadline)? {
                return Err(StackError::WouldBlock);
            }
        }
    }

    /// Closes the flow. The driver does not reset its connection: the program has closed it, or has
    /// sent an RST.
    pub fn close(self) {}

    /// Primes so many free buffers, and shows them to the driver. Fails if the flow has ended.
    pub(crate) fn prime_free(&mut self, count: u32) -> Result<(), StackError> {
        for _ in 0..count {
            if let Some(chunk) = self.rings.chunk() {
                self.prime(chunk)?;
            }
        }
        self.publish();
        Ok(())
    }

    pub(crate) fn prime(&mut self, chunk: Chunk) -> Result<(), StackError> {
        let piece = Piece {
            chunk,
            start: 0,
            length: self.rings.location().shape.chunk_bytes,
        };
        let primed = self.rings.prime(&[piece]);
        primed.map_err(|error| self.record_error(error))
    }

    pub(crate) fn publish(&mut self) {
        if self.rings.publish() {
            self.shared.notify();
        }
    }

    pub(crate) fn record_error(&self, error: RecordError) -> StackError {
        match error {
            RecordError::Flow(error) => self.flow_error(error),
            RecordError::Full => StackError::WouldBlock,
            other => StackError::Buffer(other),
        }
    }

    pub(crate) fn flow_error(&self, error: FlowError) -> StackError {
        if let Some(rule) = self.shared.broken_rule() {
            return StackError::Disconnected(rule);
        }
        match (error, self.shared.flows.end_reason()) {
            (FlowError::Closed, Some(why)) => StackError::Ended(why.to_string()),
            (FlowError::Closed, None) => StackError::Closed(self.end_reason().map(str::to_string)),
            (violation, _) => StackError::Driver(violation),
        }
    }
}

impl Drop for SegmentFlow {
    fn drop(&mut self) {
        self.shared.close(self.number());
    }
}

#[cfg(test)]
mod tests;
