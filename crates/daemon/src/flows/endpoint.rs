//! Resolves the endpoint of a requested flow ([`ResolvedEndpoint`]): chooses the local address,
//! holds the ports, and looks up the IP address of the next hop and the MTU of the route. Refuses
//! endpoints that direct flows do not support, for which the peer has no permission, whose ports
//! cannot be held, or whose route does not lead over the link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use netnice_api::FailureCause;
use netnice_api::direct::{Endpoint, PATTERN_TERMS, Term};
use netnice_core::contract::IfName;
use netnice_kernel::routes::{self, HostKind, RouteEntry};

use super::network::{Network, Nic};
use super::ports::{FlowPort, PortOwner, PortRequest, PortUse, foreign};
use super::{Flows, NextHop};
use crate::error::RequestError;

/// A resolved endpoint: the endpoint with its addresses and ports chosen, the ports that are held
/// for it, its next hop, and the MTU in bytes: of the route, or of the interface if the flow has no
/// remote host.
#[derive(Clone, Debug)]
pub(super) struct ResolvedEndpoint {
    pub endpoint: Endpoint,
    pub ports: Vec<FlowPort>,
    pub next_hop: NextHop,
    pub mtu: u32,
}

impl<N: Network> Flows<N> {
    /// Resolves an endpoint, and holds its ports.
    ///
    /// # Errors
    /// For the reasons in the module's documentation; then no port is held.
    pub(super) fn resolve_endpoint(
        &mut self,
        owner: PortOwner,
        link: &IfName,
        nic: Nic,
        requested: &Endpoint,
    ) -> Result<ResolvedEndpoint, RequestError> {
        match requested {
            Endpoint::Udp {
                local,
                remote: Some(remote),
            } => {
                let usage = PortUse::Udp(Some(*remote));
                self.resolve_pair(owner, link, nic, (*local, *remote), usage)
            }
            Endpoint::Tcp { local, remote } => {
                let usage = PortUse::Connection(*remote);
                self.resolve_pair(owner, link, nic, (*local, *remote), usage)
            }
            Endpoint::TcpSyn { local } => {
                self.resolve_server(owner, link, nic, *local, PortUse::ConnectionRequests)
            }
            Endpoint::TcpListener { local } => {
                self.resolve_server(owner, link, nic, *local, PortUse::Listener)
            }
            Endpoint::Udp {
                local,
                remote: None,
            } => {
                if local.ip().is_multicast() {
                    return Err(RequestError::BadUsage(format!(
                        "{} is a multicast group, which nothing sends from: open a flow of the \
                         group",
                        local.ip()
                    )));
                }
                self.resolve_any_host(owner, link, nic, *local, PortUse::Udp(None))
            }
            Endpoint::Group { local, group } => {
                self.resolve_multicast(owner, link, nic, *local, *group)
            }
            Endpoint::Protocol { .. } | Endpoint::EtherType { .. } if !owner.privileged => {
                Err(RequestError::NotPermitted(
                    "flows of other protocols than UDP and TCP are for root and the group netnice"
                        .to_owned(),
                ))
            }
            Endpoint::Protocol {
                number,
                local,
                remote,
                pattern,
            } => {
                check_pattern_length(pattern)?;
                self.resolve_protocol(link, nic, requested, (*number, *local, *remote))
            }
            Endpoint::EtherType { number, pattern } => {
                check_pattern_length(pattern)?;
                if *number < FIRST_TYPE || KERNEL_TYPES.contains(number) {
                    return Err(RequestError::BadUsage(format!(
                        "EtherType {number:#06x} is not for direct flows: the kernel uses it, or \
                         it is a length"
                    )));
                }
                Ok(ResolvedEndpoint {
                    endpoint: requested.clone(),
                    ports: Vec::new(),
                    next_hop: NextHop::Any,
                    mtu: nic.mtu,
                })
            }
        }
    }

    fn resolve_protocol(
        &mut self,
        link: &IfName,
        nic: Nic,
        requested: &Endpoint,
        (number, local, remote): (u8, IpAddr, Option<IpAddr>),
    ) -> Result<ResolvedEndpoint, RequestError> {
        if let Some(name) = kernel_protocol(number) {
            return Err(RequestError::BadUsage(format!(
                "protocol {number} ({name}) stays with the kernel: a direct flow of it would take \
                 it from all programs"
            )));
        }
        let (from, next_hop, mtu) = match remote {
            Some(remote) => {
                let route = self.route_over(link, nic, remote, specified(local))?;
                let from = local_address(local, &route, remote)?;
                (from, toward(remote, from, &route), route_mtu(&route, nic))
            }
            None => {
                check_local_address(local, link)?;
                (local, NextHop::Any, nic.mtu)
            }
        };
        let mut endpoint = requested.clone();
        if let Endpoint::Protocol { local, .. } = &mut endpoint {
            *local = from;
        }
        Ok(ResolvedEndpoint {
            endpoint,
            ports: Vec::new(),
            next_hop,
            mtu,
        })
    }

    /// Resolves the endpoint of a flow with one remote end.
    fn resolve_pair(
        &mut self,
        owner: PortOwner,
        link: &IfName,
        nic: Nic,
        (local, remote): (SocketAddr, SocketAddr),
        usage: PortUse,
    ) -> Result<ResolvedEndpoint, RequestError> {
        if remote.port() == 0 || remote.ip().is_unspecified() {
            return Err(RequestError::BadUsage(format!(
                "{remote} cannot be the remote end of a flow: it needs an address and a port"
            )));
        }
        same_family(local.ip(), remote.ip())?;
        let route = self.route_over(link, nic, remote.ip(), specified(local.ip()))?;
        let from = local_address(local.ip(), &route, remote.ip())?;
        let want = PortRequest {
            at: with_scope(SocketAddr::new(from, local.port()), nic),
            usage,
        };
        let port = self.hold_port(owner, want)?;
        Ok(ResolvedEndpoint {
            endpoint: endpoint_of(port.at, usage),
            ports: vec![port],
            next_hop: toward(remote.ip(), from, &route),
            mtu: route_mtu(&route, nic),
        })
    }

    /// Resolves the endpoint of one of the two flows of a server, whose address must be of this
    /// link: connections arrive over it.
    fn resolve_server(
        &mut self,
        owner: PortOwner,
        link: &IfName,
        nic: Nic,
        local: SocketAddr,
        usage: PortUse,
    ) -> Result<ResolvedEndpoint, RequestError> {
        if local.ip().is_multicast() {
            return Err(RequestError::BadUsage(format!(
                "{} is a multicast group, and TCP is between two hosts",
                local.ip()
            )));
        }
        check_local_address(local.ip(), link)?;
        let having = self.network.interfaces_with(local.ip())?;
        // An address of lo is one of the whole host.
        let is_here = having.iter().any(|index| [nic.index, LO].contains(index));
        if let Some(other) = having.first().filter(|_| !is_here) {
            let other = self.network.name(*other)?.unwrap_or_default();
            let text = format!(
                "{} is the address of {other}, not of {link}: attach to {other}",
                local.ip()
            );
            return Err(RequestError::FailedFor(FailureCause::ForeignAddress, text));
        }
        self.resolve_any_host(owner, link, nic, local, usage)
    }

    /// Resolves the endpoint of a flow to any host.
    fn resolve_any_host(
        &mut self,
        owner: PortOwner,
        link: &IfName,
        nic: Nic,
        local: SocketAddr,
        usage: PortUse,
    ) -> Result<ResolvedEndpoint, RequestError> {
        check_local_address(local.ip(), link)?;
        let want = PortRequest {
            at: with_scope(local, nic),
            usage,
        };
        let port = self.hold_port(owner, want)?;
        Ok(ResolvedEndpoint {
            endpoint: endpoint_of(port.at, usage),
            ports: vec![port],
            next_hop: NextHop::Any,
            mtu: nic.mtu,
        })
    }

    fn resolve_multicast(
        &mut self,
        owner: PortOwner,
        link: &IfName,
        nic: Nic,
        local: SocketAddr,
        group: SocketAddr,
    ) -> Result<ResolvedEndpoint, RequestError> {
        let Some(mac) = routes::multicast_mac(group.ip()) else {
            return Err(RequestError::BadUsage(format!(
                "{} is not a multicast group",
                group.ip()
            )));
        };
        if group.port() == 0 {
            return Err(RequestError::BadUsage(format!(
                "the group {group} needs a port"
            )));
        }
        same_family(local.ip(), group.ip())?;
        let from = match specified(local.ip()) {
            Some(from) => from,
            None => {
                let route = self.network.route(group.ip(), None, Some(nic.index))?;
                route.and_then(|route| route.source).ok_or_else(|| {
                    let text = format!("{link} has no address to send from to {group}");
                    RequestError::FailedFor(FailureCause::ForeignAddress, text)
                })?
            }
        };
        let want = PortRequest {
            at: with_scope(SocketAddr::new(from, local.port()), nic),
            usage: PortUse::Udp(Some(group)),
        };
        let port = self.hold_port(owner, want)?;
        let want = PortRequest {
            at: with_scope(group, nic),
            usage: PortUse::Group,
        };
        let group_port = match self.hold_port(owner, want) {
            Ok(held) => held,
            Err(error) => {
                self.release_ports(&[port], None);
                return Err(error);
            }
        };
        Ok(ResolvedEndpoint {
            endpoint: Endpoint::Group {
                local: port.at,
                group,
            },
            ports: vec![port, group_port],
            next_hop: NextHop::Group(mac),
            mtu: nic.mtu,
        })
    }

    /// The route to a host.
    ///
    /// # Errors
    /// If there is none, if it does not lead over the link, or if `to` is not one other host.
    pub(super) fn route_over(
        &mut self,
        link: &IfName,
        nic: Nic,
        to: IpAddr,
        from: Option<IpAddr>,
    ) -> Result<RouteEntry, RequestError> {
        // A link-local address is looked up on this link.
        let over = is_link_local(to).then_some(nic.index);
        let found = self.network.route(to, from, over);
        if let (Some(from), Err(_) | Ok(None)) = (from, &found)
            && !self.is_local(from, nic)
        {
            return Err(foreign(from));
        }
        let Some(route) = found? else {
            let from = from.map_or_else(String::new, |from| format!(" from {from}"));
            let text = format!("there is no route to {to}{from}");
            return Err(RequestError::FailedFor(FailureCause::NoRoute, text));
        };
        match route.kind {
            HostKind::Unicast if route.index == nic.index => Ok(route),
            HostKind::Unicast => {
                let other = self.network.name(route.index)?.unwrap_or_default();
                let text = format!(
                    "the route to {to} leads over {other}, not over {link}: attach to {other}"
                );
                Err(RequestError::FailedFor(FailureCause::NoRoute, text))
            }
            HostKind::Local => Err(RequestError::BadUsage(format!(
                "{to} is this host itself: direct flows are between hosts"
            ))),
            HostKind::Multicast => Err(RequestError::BadUsage(format!(
                "{to} is a multicast group: ask for a flow of a group"
            ))),
            HostKind::Other => Err(RequestError::BadUsage(format!(
                "{to} is not the address of one host"
            ))),
        }
    }
}

impl<N: Network> Flows<N> {
    /// True if this is an address of this host, as far as the kernel's routes show it.
    fn is_local(&mut self, address: IpAddr, nic: Nic) -> bool {
        let over = is_link_local(address).then_some(nic.index);
        let route = self.network.route(address, None, over);
        matches!(route, Ok(Some(route)) if route.kind == HostKind::Local)
    }
}

/// The endpoint of a flow that uses its port so.
fn endpoint_of(local: SocketAddr, usage: PortUse) -> Endpoint {
    match usage {
        PortUse::Udp(remote) => Endpoint::Udp { local, remote },
        PortUse::Group => Endpoint::Udp {
            local,
            remote: None,
        },
        PortUse::Connection(remote) => Endpoint::Tcp { local, remote },
        PortUse::ConnectionRequests => Endpoint::TcpSyn { local },
        PortUse::Listener => Endpoint::TcpListener { local },
    }
}

/// The MTU of a route over this interface, in bytes.
pub(super) fn route_mtu(route: &RouteEntry, nic: Nic) -> u32 {
    route.mtu.map_or(nic.mtu, |mtu| mtu.min(nic.mtu))
}

fn toward(host: IpAddr, from: IpAddr, route: &RouteEntry) -> NextHop {
    NextHop::Toward {
        host,
        from,
        via: route.next_hop,
        mac: None,
    }
}

fn specified(address: IpAddr) -> Option<IpAddr> {
    (!address.is_unspecified()).then_some(address)
}

/// The unspecified address of the family of a host.
pub(super) fn unspecified(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Checks that a flow to any host names its local address: without a remote host there is no route
/// to take it from.
fn check_local_address(local: IpAddr, link: &IfName) -> Result<(), RequestError> {
    match specified(local) {
        Some(_) => Ok(()),
        None => Err(RequestError::BadUsage(format!(
            "a flow to any host needs the address that it sends from, and {local} names none; \
             `ip address show dev {link}` lists those of {link}"
        ))),
    }
}

/// The local address: the named one, else the source address of the route.
pub(super) fn local_address(
    local: IpAddr,
    route: &RouteEntry,
    to: IpAddr,
) -> Result<IpAddr, RequestError> {
    specified(local).or(route.source).ok_or_else(|| {
        let text = format!("this host has no address to send from to {to}");
        RequestError::FailedFor(FailureCause::ForeignAddress, text)
    })
}

/// Checks the length of a pattern, because the request is forwarded. The driver checks its meaning.
fn check_pattern_length(pattern: &[Term]) -> Result<(), RequestError> {
    match pattern.len() > usize::from(PATTERN_TERMS) {
        false => Ok(()),
        true => Err(RequestError::BadUsage(format!(
            "{} terms in one pattern; {PATTERN_TERMS} are allowed; combine those of the same byte",
            pattern.len()
        ))),
    }
}

fn same_family(one: IpAddr, other: IpAddr) -> Result<(), RequestError> {
    match one.is_ipv4() == other.is_ipv4() {
        true => Ok(()),
        false => Err(RequestError::BadUsage(format!(
            "{one} and {other} are of different address families"
        ))),
    }
}

/// True for an IPv6 link-local unicast address.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Adds this link's scope to a link-local address.
fn with_scope(at: SocketAddr, nic: Nic) -> SocketAddr {
    match at {
        SocketAddr::V6(v6) if is_link_local(at.ip()) || is_link_group(*v6.ip()) => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, nic.index).into()
        }
        other => other,
    }
}

fn is_link_group(address: Ipv6Addr) -> bool {
    address.is_multicast() && address.segments()[0] & 0xf == 2
}

fn kernel_protocol(protocol: u8) -> Option<&'static str> {
    Some(match protocol {
        1 => "ICMP",
        2 => "IGMP",
        6 => "TCP: ask for a flow of TCP",
        17 => "UDP: ask for a flow of UDP",
        58 => "ICMPv6",
        _ => return None,
    })
}

/// The index of lo.
const LO: u32 = 1;
/// Smaller numbers are lengths, not EtherTypes.
const FIRST_TYPE: u16 = 0x600;
/// IPv4, ARP, IPv6, and VLAN tags.
const KERNEL_TYPES: [u16; 5] = [0x0800, 0x0806, 0x86dd, 0x8100, 0x88a8];
