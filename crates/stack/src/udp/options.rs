//! The parameters of a UDP flow ([`UdpOptions`]) and the sizes of its buffers ([`Buffers`]), and
//! the request to the daemon that is made of them. A request or a size of memory fails with a
//! [`SetupError`] if the number or the size of the buffers is invalid.

use std::net::SocketAddr;

use netnice_api::direct::{Endpoint, OpenFlow, ShapeDoc};
use netnice_ring::Shape;
use netnice_ring::layout::{MAX_ENTRIES, SetupError, ShapeError};

use crate::datagram::Checks;

/// The parameters of a UDP flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// The local endpoint. The daemon replaces an unspecified address (`0.0.0.0`, `::`) by the
    /// source address of the route to the remote endpoint, so a flow to any host must name its
    /// address. The daemon chooses a port for port 0.
    pub local: SocketAddr,
    /// The remote endpoint or endpoints.
    pub remote: Remote,
    /// The contract as text, for example `slice 3ms/20ms`. `None` is best effort.
    pub contract: Option<String>,
    /// The buffers of the flow.
    pub buffers: Buffers,
    /// Validation of received checksums.
    pub checks: Checks,
    /// TTL or hop limit of sent packets.
    pub hops: u8,
    /// If true, the driver delivers the fragments of a datagram only up to the first gap: it treats
    /// a fragment that is missing as lost, so the others are useless (paper VERT, section 4.3).
    pub in_order: bool,
    /// If true, calls fail once with each report that a packet was not delivered
    /// ([`StackError::Undelivered`](crate::StackError::Undelivered)), as on a connected socket.
    pub errors: bool,
    /// The number of a promise that the program holds ([`HeldPromise`](crate::HeldPromise)), whose
    /// place the flow's contract takes. A flow with the held contract or with a longer deadline in
    /// it fits, unless the link has a horizon or the channel a limit. Keep the held promise until
    /// the flow is open: if it is not opened, the promise stays held.
    pub hold: Option<u32>,
}

/// The remote endpoints of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// One remote endpoint.
    One(SocketAddr),
    /// Any host. Each call that sends names the destination, which is not a group.
    Any,
    /// A multicast group and its port. The flow receives what any host sends to the group, and
    /// sends only to the group.
    Group(SocketAddr),
}

/// The buffers of a flow. Each holds one packet with its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Size of each buffer in bytes: a power of two, 64 to 65,536, at least the path MTU + 14.
    /// Received packets that are longer are lost.
    pub bytes: u32,
    /// Number of buffers for sending, 1 to 16,384. A packet occupies one until the driver has
    /// returned it.
    pub sending: u32,
    /// Number of buffers for receiving, 0 to 16,384. 0 for a flow that does not receive.
    pub receiving: u32,
}

impl UdpOptions {
    /// A flow with one remote endpoint: best effort, with a local address and port that the daemon
    /// chooses, the default buffers, a TTL of 64 and [`Checks::Partial`].
    pub fn to(remote: SocketAddr) -> UdpOptions {
        let local = match remote {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
        };
        UdpOptions {
            remote: Remote::One(remote),
            ..UdpOptions::at(local)
        }
    }

    /// A flow from `local` to any host: best effort, with the default buffers, a TTL of 64 and
    /// [`Checks::Partial`].
    pub fn at(local: SocketAddr) -> UdpOptions {
        UdpOptions {
            local,
            remote: Remote::Any,
            contract: None,
            buffers: Buffers::default(),
            checks: Checks::Partial,
            hops: 64,
            in_order: false,
            errors: false,
            hold: None,
        }
    }

    /// A member of a group, with the local endpoint `local`. Sent packets have a TTL of 1, as on
    /// sockets (RFC 1112, section 6.1).
    pub fn member(local: SocketAddr, group: SocketAddr) -> UdpOptions {
        UdpOptions {
            remote: Remote::Group(group),
            hops: 1,
            ..UdpOptions::at(local)
        }
    }

    /// The request to the daemon, and the shape of the flow. Fails if the number or the size of the
    /// buffers is invalid.
    pub(crate) fn request(&self) -> Result<(OpenFlow, Shape), SetupError> {
        let local = self.local;
        let endpoint = match self.remote {
            Remote::One(remote) => Endpoint::Udp {
                local,
                remote: Some(remote),
            },
            Remote::Any => Endpoint::Udp {
                local,
                remote: None,
            },
            Remote::Group(group) => Endpoint::Group { local, group },
        };
        let contract = self.contract.clone();
        let (open, shape) = open_request(endpoint, contract, self.buffers, self.in_order)?;
        let hold = self.hold;
        Ok((OpenFlow { hold, ..open }, shape))
    }
}

impl Buffers {
    /// The largest number of buffers for sending, and of those for receiving.
    pub const MOST: u32 = MAX_ENTRIES as u32 / 2;

    /// Number of bytes of a program's memory file that a flow with these buffers uses.
    /// [`Program::attach`](crate::Program::attach) needs the sum over all flows.
    ///
    /// # Errors
    /// If the number or the size of the buffers is invalid.
    pub fn region_bytes(&self) -> Result<u64, SetupError> {
        Ok(self.shape()?.plan()?.bytes())
    }

    /// The shape of a flow with these buffers. Fails if their number or size is invalid.
    pub(crate) fn shape(&self) -> Result<Shape, ShapeError> {
        let within = |what, value: u32, least| match (least..=Buffers::MOST).contains(&value) {
            true => Ok(value),
            false => Err(ShapeError::Bounds {
                what,
                value: value.into(),
                least: least.into(),
                most: Buffers::MOST.into(),
            }),
        };
        let sending = within("buffers for sending", self.sending, 1)?;
        let receiving = within("buffers for receiving", self.receiving, 0)?;
        // A record of one pair takes two entries.
        let entries = |records: u32| (2 * records).max(16).next_power_of_two();
        let shape = Shape {
            chunk_bytes: self.bytes,
            chunks: sending + receiving,
            transmit_entries: entries(sending),
            receive_entries: entries(receiving),
        };
        shape.plan()?;
        Ok(shape)
    }
}

/// The request to the daemon, and the shape of the flow. Fails if the number or the size of the
/// buffers is invalid.
pub(crate) fn open_request(
    endpoint: Endpoint,
    contract: Option<String>,
    buffers: Buffers,
    in_order: bool,
) -> Result<(OpenFlow, Shape), SetupError> {
    let shape = buffers.shape()?;
    let open = OpenFlow {
        endpoint,
        contract,
        shape: ShapeDoc {
            chunk_bytes: shape.chunk_bytes,
            chunks: shape.chunks,
            transmit_entries: shape.transmit_entries,
            receive_entries: shape.receive_entries,
        },
        in_order,
        hold: None,
    };
    Ok((open, shape))
}

impl Default for Buffers {
    /// For an MTU of 1500: 64 buffers of 2048 bytes in each direction.
    fn default() -> Buffers {
        Buffers {
            bytes: 2048,
            sending: 64,
            receiving: 64,
        }
    }
}
