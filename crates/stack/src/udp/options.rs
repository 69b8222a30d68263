//! What a flow of UDP is opened with.

use std::net::SocketAddr;

use netnice_api::direct::{OpenFlow, ShapeDoc, Speaks};
use netnice_ring::Shape;
use netnice_ring::layout::{SetupError, ShapeError};

use crate::datagram::Checks;

/// What a flow of UDP is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// The own end. An unspecified address (`0.0.0.0`, `::`) is chosen by the route to the other end, so a flow to any host has
    /// to name its own. Port 0 is chosen.
    pub local: SocketAddr,
    /// With whom.
    pub with: With,
    /// Its contract, as text: `slice 3ms/20ms`. None: best effort.
    pub contract: Option<String>,
    /// Its buffers.
    pub buffers: Buffers,
    /// Which received checksums are wrong.
    pub checks: Checks,
    /// TTL, or hop limit, of what is sent.
    pub hops: u8,
    /// Of a datagram that comes in parts, the driver hands over none behind a gap: where order fails, something was lost,
    /// and the rest would be of no use (VERT 4.3).
    pub in_order: bool,
}

/// With whom a flow speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    /// One other end.
    One(SocketAddr),
    /// Any single host: each datagram is told to whom it goes.
    Any,
    /// A group and its port: what is sent to it is received, whoever sent it, and nothing but to it is sent.
    Group(SocketAddr),
}

/// The buffers of a flow. Each holds one packet, headers too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes of each: a power of two, at least 14 more than the link's MTU.
    pub bytes: u32,
    /// How many there are to send from, 1 at least. What waits for its time is in one of them.
    pub sending: u32,
    /// How many there are to receive into. A flow that receives nothing needs none.
    pub receiving: u32,
}

impl UdpOptions {
    /// A flow with one other end: best effort, chosen port, usual buffers.
    pub fn to(remote: SocketAddr) -> UdpOptions {
        let local = match remote {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
        };
        UdpOptions {
            with: With::One(remote),
            ..UdpOptions::at(local)
        }
    }

    /// A flow with any host, at this own end.
    pub fn at(local: SocketAddr) -> UdpOptions {
        UdpOptions {
            local,
            with: With::Any,
            contract: None,
            buffers: Buffers::default(),
            checks: Checks::Partial,
            hops: 64,
            in_order: false,
        }
    }

    /// A member of a group, with this own end. What it sends stays on the link, as of sockets (RFC 1112, section 6.1).
    pub fn member(local: SocketAddr, group: SocketAddr) -> UdpOptions {
        UdpOptions {
            with: With::Group(group),
            hops: 1,
            ..UdpOptions::at(local)
        }
    }

    /// The request for it.
    pub(crate) fn request(&self) -> Result<(OpenFlow, Shape), SetupError> {
        let shape = self.buffers.shape()?;
        let local = self.local;
        let speaks = match self.with {
            With::One(remote) => Speaks::Udp {
                local,
                remote: Some(remote),
            },
            With::Any => Speaks::Udp {
                local,
                remote: None,
            },
            With::Group(group) => Speaks::Group { local, group },
        };
        let open = OpenFlow {
            speaks,
            contract: self.contract.clone(),
            shape: ShapeDoc {
                chunk_bytes: shape.chunk_bytes,
                chunks: shape.chunks,
                transmit_entries: shape.transmit_entries,
                receive_entries: shape.receive_entries,
            },
            in_order: self.in_order,
        };
        Ok((open, shape))
    }
}

impl Buffers {
    /// Bytes of a program's memory file that a flow with these buffers takes: what to add up for
    /// [`Program::attach`](crate::Program::attach).
    ///
    /// # Errors
    /// If there can be no such buffers.
    pub fn region_bytes(&self) -> Result<u64, SetupError> {
        Ok(self.shape()?.plan()?.bytes())
    }

    fn shape(&self) -> Result<Shape, ShapeError> {
        if self.sending == 0 {
            return Err(ShapeError::Bounds {
                what: "buffers to send from",
                value: 0,
                least: 1,
                most: 65_536,
            });
        }
        // A record of one pair takes two entries.
        let entries = |records: u32| {
            let entries = records.saturating_mul(2).max(16);
            entries.checked_next_power_of_two().unwrap_or(u32::MAX)
        };
        let shape = Shape {
            chunk_bytes: self.bytes,
            chunks: self.sending.saturating_add(self.receiving),
            transmit_entries: entries(self.sending),
            receive_entries: entries(self.receiving),
        };
        shape.plan()?;
        Ok(shape)
    }
}

impl Default for Buffers {
    /// For an MTU of 1500: 64 of 2048 bytes each way.
    fn default() -> Buffers {
        Buffers {
            bytes: 2048,
            sending: 64,
            receiving: 64,
        }
    }
}
