//! Descriptions of the received packets that belong to a flow ([`Match`]), and the reasons why a
//! description is refused ([`MatchError`]). This module checks one description by itself; the
//! demultiplexer ([`super::Demux`]) checks it against those of other flows.

use std::net::{IpAddr, SocketAddr};

use super::{FlowKey, MAX_FLOWS, MAX_MATCHES, MAX_MEMBERS};
use crate::frame::Family;
use crate::pattern::{BadPattern, Pattern};
use crate::protocol::{EtherType, IpProtocol, Transport, is_one_host, number_of};

/// A class of received packets that belong to a flow. A flow may have several matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// Packets from one remote endpoint to one local endpoint.
    Connected {
        /// UDP or TCP.
        transport: Transport,
        /// The local endpoint.
        local: SocketAddr,
        /// The remote endpoint.
        remote: SocketAddr,
    },
    /// Packets to a local port, from any sender.
    Port {
        /// UDP or TCP.
        transport: Transport,
        /// The local endpoint; unspecified (`0.0.0.0`, `::`) stands for any single address of the
        /// family.
        local: SocketAddr,
    },
    /// TCP's connection requests to a local port, from any sender: segments with SYN and without
    /// ACK. They come before [`Match::Port`] and after [`Match::Connected`].
    Syn {
        /// The local endpoint.
        local: SocketAddr,
    },
    /// Packets to a port of a group. Each flow that has joined gets a copy.
    Group {
        /// UDP or TCP.
        transport: Transport,
        /// The multicast group, or IPv4's broadcast address, and the port.
        group: SocketAddr,
    },
    /// Packets of an IP protocol other than UDP and TCP.
    Protocol {
        /// The protocol.
        protocol: IpProtocol,
        /// The destination address.
        local: IpAddr,
        /// The bytes that the IP payload must have to belong to the flow.
        pattern: Pattern,
    },
    /// Frames of one EtherType.
    EtherType {
        /// The EtherType.
        kind: EtherType,
        /// The bytes that the frame's payload must have to belong to the flow.
        pattern: Pattern,
    },
}

/// Which fragments a flow gets (paper VERT, section 4.3, has both).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reassembly {
    /// Every fragment. Those that arrive before the first fragment follow it.
    #[default]
    Complete,
    /// A fragment only if all fragments before it arrived in order. After a lost fragment the flow
    /// gets no more of the datagram.
    InOrder,
}

/// The reason why a match of a flow cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// Another flow has these packets already, the flow has this match already, or the flow's
    /// number is in use.
    #[error("these packets belong to another flow already")]
    Taken,
    /// The address is not that of one host, or in a [`Match::Group`] not that of a group.
    #[error("{0} is not an address to which such packets can be sent")]
    Address(IpAddr),
    /// The endpoints differ in IP version.
    #[error("the endpoints {remote} and {local} differ: one is IPv4, the other IPv6")]
    Families {
        /// The local address.
        local: IpAddr,
        /// The remote address.
        remote: IpAddr,
    },
    /// The port is 0.
    #[error("a flow cannot have port 0")]
    Port,
    /// The group has 64 members already.
    #[error("{MAX_MEMBERS} flows have joined this group already; this is the limit")]
    Group,
    /// The flow has 64 matches already.
    #[error("the flow has {MAX_MATCHES} matches already; this is the limit")]
    Matches,
    /// Another flow has this pattern, or there are patterns over too many sets of bits.
    #[error(transparent)]
    Pattern(#[from] BadPattern),
    /// The flow's number is too large, or no flow with this number was added.
    #[error("flow number {0} is above the largest, {MAX_FLOWS}")]
    Number(u32),
}

impl Match {
    /// Checks addresses and ports, and fails with the first fault. The pattern was checked when it
    /// was made.
    pub(super) fn validate(&self) -> Result<(), MatchError> {
        let one_host = |address: IpAddr| match is_one_host(address) {
            true => Ok(()),
            false => Err(MatchError::Address(address)),
        };
        let has_port = |endpoint: &SocketAddr| match endpoint.port() {
            0 => Err(MatchError::Port),
            _ => Ok(()),
        };
        match self {
            Match::Connected { local, remote, .. } => {
                if Family::of(local.ip()) != Family::of(remote.ip()) {
                    let (local, remote) = (local.ip(), remote.ip());
                    return Err(MatchError::Families { local, remote });
                }
                one_host(local.ip()).and(one_host(remote.ip()))?;
                has_port(local).and(has_port(remote))
            }
            Match::Syn { local } => one_host(local.ip()).and(has_port(local)),
            Match::Port { local, .. } => {
                if !local.ip().is_unspecified() {
                    one_host(local.ip())?;
                }
                has_port(local)
            }
            Match::Group { group, .. } => {
                let (family, number) = number_of(group.ip());
                match is_group(family, number) {
                    true => has_port(group),
                    false => Err(MatchError::Address(group.ip())),
                }
            }
            Match::Protocol { local, .. } => one_host(*local),
            Match::EtherType { .. } => Ok(()),
        }
    }

    /// The key by which the table of flows finds it; `None` if its packets have no ports.
    pub(super) fn key(&self) -> Option<FlowKey> {
        let unspecified = |local: &SocketAddr| match local {
            SocketAddr::V4(_) => SocketAddr::from(([0_u8; 4], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0_u16; 8], 0)),
        };
        let (transport, local, remote) = match self {
            Match::Connected {
                transport,
                local,
                remote,
            } => (*transport, *local, *remote),
            Match::Port { transport, local } => (*transport, *local, unspecified(local)),
            Match::Syn { local } => (Transport::Tcp, *local, unspecified(local)),
            Match::Group { transport, group } => (*transport, *group, unspecified(group)),
            Match::Protocol { .. } | Match::EtherType { .. } => return None,
        };
        let (family, address) = number_of(local.ip());
        Some(FlowKey {
            local: address,
            remote: number_of(remote.ip()).1,
            ports: (local.port(), remote.port()),
            kind: (family, transport),
        })
    }
}

/// Whether the address stands for several hosts: multicast, or IPv4's broadcast.
pub(super) fn is_group(family: Family, address: u128) -> bool {
    match family {
        Family::V4 => address >> 28 == 0xe || address == u128::from(u32::MAX),
        Family::V6 => address >> 120 == 0xff,
    }
}
