//! Makes sockets of flows: of a flow that the daemon opens ([`Program::open_udp`]), or of one that
//! the driver opened without a daemon ([`Program::udp`]). Both calls fail with a [`StackError`] if
//! the addresses, the location or the buffers are invalid, and the former also if the daemon does
//! not open the flow.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use netnice_api::direct::{Endpoint, FlowOpened, OpenFlow};
use netnice_ring::{FlowLocation, Shape};

use super::{Carried, RemoteHeaders, Settings, Socket, UdpOptions};
use crate::address::without_port;
use crate::control::FlowStatus;
use crate::datagram::Checks;
use crate::error::StackError;
use crate::headers::FlowAddress;
use crate::program::Program;

impl Program {
    /// Requests a UDP flow from the daemon, and makes a socket of it.
    ///
    /// # Errors
    /// If the options are invalid, there is no connection to the daemon, the daemon does not grant
    /// the flow, or a buffer is smaller than a packet of the path to the remote endpoint.
    pub fn open_udp(&self, options: &UdpOptions) -> Result<Socket, StackError> {
        let (open, shape) = options.request()?;
        let settings = Settings {
            hops: options.hops,
            checks: options.checks,
            receiving: options.buffers.receiving,
            errors: options.errors,
        };
        self.open_flow(open, shape, settings)
    }

    /// Requests a flow from the daemon, and makes a socket of it.
    ///
    /// # Errors
    /// As [`Program::open_udp`].
    pub(crate) fn open_flow(
        &self,
        open: OpenFlow,
        shape: Shape,
        settings: Settings,
    ) -> Result<Socket, StackError> {
        let (rings, opened, status) = self.open_rings(open, shape)?;
        let parameters = SocketParameters::granted(settings, opened, status);
        let number = parameters.id;
        Socket::new(self.shared.clone(), rings, parameters)
            .inspect_err(|_| number.map_or((), |number| self.shared.close(number)))
    }

    /// Makes a socket of a UDP flow with one remote endpoint that the driver opened without a
    /// daemon. Half of its buffers receive, or fewer if the receive rings are too short for them.
    ///
    /// # Errors
    /// If the addresses, the location or the buffers are invalid.
    pub fn udp(
        &self,
        location: FlowLocation,
        address: &FlowAddress,
        checks: Checks,
    ) -> Result<Socket, StackError> {
        let flow = self.shared.attachment.flow(location)?;
        let parameters = SocketParameters::without_daemon(address, &location.shape, checks);
        Socket::new(self.shared.clone(), flow, parameters)
    }
}

/// The parameters of a new socket.
pub(super) struct SocketParameters {
    pub(super) id: Option<u32>,
    pub(super) endpoint: Endpoint,
    pub(super) mac: [u8; 6],
    pub(super) next_hop: [u8; 6],
    pub(super) hops: u8,
    pub(super) status: Arc<FlowStatus>,
    pub(super) contract: String,
    pub(super) checks: Checks,
    pub(super) receiving: u32,
    pub(super) errors: bool,
}

impl SocketParameters {
    /// The parameters of a flow that a daemon granted.
    pub(super) fn granted(
        settings: Settings,
        opened: FlowOpened,
        status: Arc<FlowStatus>,
    ) -> SocketParameters {
        SocketParameters {
            id: Some(opened.flow),
            endpoint: opened.endpoint,
            mac: opened.mac,
            // On a flow to one host or group the driver overwrites the destination in each frame.
            next_hop: opened.next_hop.unwrap_or_default(),
            hops: settings.hops,
            status,
            contract: opened.contract,
            checks: settings.checks,
            receiving: settings.receiving,
            errors: settings.errors,
        }
    }

    /// The parameters of a flow that no daemon opened.
    pub(super) fn without_daemon(
        address: &FlowAddress,
        shape: &Shape,
        checks: Checks,
    ) -> SocketParameters {
        SocketParameters {
            id: None,
            endpoint: Endpoint::Udp {
                local: address.local,
                remote: Some(address.remote),
            },
            mac: address.local_mac,
            next_hop: address.next_hop,
            hops: address.hops,
            status: FlowStatus::new(address.mtu.into()),
            contract: String::new(),
            checks,
            // A record of one pair takes two entries.
            receiving: (shape.chunks / 2).min(shape.receive_entries / 2),
            errors: false,
        }
    }

    /// What the flow carries.
    pub(super) fn carried(&self) -> Carried {
        match self.endpoint {
            Endpoint::Udp { .. } | Endpoint::Group { .. } => Carried::Udp,
            Endpoint::Tcp { .. } | Endpoint::TcpSyn { .. } | Endpoint::TcpListener { .. } => {
                Carried::Ip(TCP)
            }
            Endpoint::Protocol { number, .. } => Carried::Ip(number),
            Endpoint::EtherType { number, .. } => Carried::Ether(number),
        }
    }

    /// The local endpoint, the remote endpoint or endpoints, and the bytes of all headers.
    pub(super) fn endpoints(&self) -> Result<(SocketAddr, RemoteHeaders, usize), StackError> {
        let carried = self.carried();
        let headers = |local, remote| {
            let mtu = u16::try_from(self.status.mtu()).unwrap_or(u16::MAX);
            carried.headers(&FlowAddress {
                local,
                remote,
                local_mac: self.mac,
                next_hop: self.next_hop,
                mtu,
                hops: self.hops,
            })
        };
        let one = |local, remote| -> Result<_, StackError> {
            let headers = headers(local, remote)?;
            let headroom = headers.headroom();
            Ok((local, RemoteHeaders::One { remote, headers }, headroom))
        };
        let any = |local| -> Result<_, StackError> {
            // All headers of one address family have the same length.
            let headroom = headers(local, local)?.headroom();
            let routes = HashMap::new();
            Ok((local, RemoteHeaders::Any { routes }, headroom))
        };
        match self.endpoint {
            Endpoint::Udp {
                local,
                remote: Some(remote),
            } => one(local, remote),
            Endpoint::Udp {
                local,
                remote: None,
            } => any(local),
            // No socket is made of a flow of TCP; see the module `segments`.
            Endpoint::Tcp { local, remote } => {
                one(without_port(local.ip()), without_port(remote.ip()))
            }
            Endpoint::TcpSyn { local } | Endpoint::TcpListener { local } => {
                any(without_port(local.ip()))
            }
            Endpoint::Group { local, group } => {
                let headers = headers(local, group)?;
                let headroom = headers.headroom();
                Ok((local, RemoteHeaders::Group { group, headers }, headroom))
            }
            Endpoint::Protocol { local, remote, .. } => match remote {
                Some(remote) => one(without_port(local), without_port(remote)),
                None => any(without_port(local)),
            },
            Endpoint::EtherType { .. } => {
                let none = without_port(IpAddr::from([0; 4]));
                let headers = headers(none, none)?;
                let headroom = headers.headroom();
                Ok((none, RemoteHeaders::Stations { headers }, headroom))
            }
        }
    }
}

/// The protocol number of TCP.
const TCP: u8 = 6;
