//! Resolves the endpoint of a requested flow: chooses addresses, ports and the next hop, and
//! refuses endpoints that direct flows do not support.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use netnice_api::direct::{Endpoint, PATTERN_TERMS, Term};
use netnice_core::contract::IfName;
use netnice_kernel::routes::{self, HostKind, RouteEntry};

use super::network::{Network, Nic};
use super::ports::Want;
use super::{Flows, Station};
use crate::denied::Denied;
use crate::peer::Peer;

/// A resolved endpoint.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub endpoint: Endpoint,
    pub ports: Vec<SocketAddr>,
    pub station: Station,
    pub mtu: u32,
}

impl<N: Network> Flows<N> {
    /// Resolves an endpoint, and holds its ports.
    pub(super) fn choose(
        &mut self,
        peer: &Peer,
        link: &IfName,
        nic: Nic,
        endpoint: &Endpoint,
    ) -> Result<Chosen, Denied> {
        match endpoint {
            Endpoint::Udp {
                local,
                remote: Some(remote),
            } => self.choose_pair(peer, link, nic, *local, *remote),
            Endpoint::Udp {
                local,
                remote: None,
            } => {
                if local.ip().is_multicast() {
                    return Err(Denied::BadUsage(format!(
                        "{} is a group: a flow of a group receives from it",
                        local.ip()
                    )));
                }
                sends_from(local.ip(), link)?;
                let want = Want {
                    at: scoped(*local, nic),
                    end: None,
                    group: false,
                };
                let local = self.hold(peer, want, nic.index)?;
                Ok(Chosen {
                    endpoint: Endpoint::Udp {
                        local,
                        remote: None,
                    },
                    ports: vec![local],
                    station: Station::Any,
                    mtu: nic.mtu,
                })
            }
            Endpoint::Group { local, group } => self.choose_group(peer, link, nic, *local, *group),
            Endpoint::Protocol { .. } | Endpoint::EtherType { .. } if !peer.privileged => {
                Err(Denied::NotPermitted(
                    "flows of other protocols than UDP are for root and the group netnice"
                        .to_owned(),
                ))
            }
            Endpoint::Protocol {
                number,
                local,
                remote,
                pattern,
            } => {
                few_enough(pattern)?;
                self.choose_protocol(link, nic, endpoint, (*number, *local, *remote))
            }
            Endpoint::EtherType { number, pattern } => {
                few_enough(pattern)?;
                if *number < FIRST_TYPE || KERNEL_TYPES.contains(number) {
                    return Err(Denied::BadUsage(format!(
                        "EtherType {number:#06x} is not for direct flows: the kernel speaks it, or it is a length"
                    )));
                }
                Ok(Chosen {
                    endpoint: endpoint.clone(),
                    ports: Vec::new(),
                    station: Station::Any,
                    mtu: nic.mtu,
                })
            }
        }
    }

    fn choose_protocol(
        &mut self,
        link: &IfName,
        nic: Nic,
        endpoint: &Endpoint,
        (number, local, remote): (u8, IpAddr, Option<IpAddr>),
    ) -> Result<Chosen, Denied> {
        if let Some(name) = of_the_kernel(number) {
            return Err(Denied::BadUsage(format!(
                "protocol {number} ({name}) stays with the kernel: a direct flow of it would take it from all programs"
            )));
        }
        let (from, station, mtu) = match remote {
            Some(remote) => {
                let way = self.way(link, nic, remote, named(local))?;
                let from = own(local, &way, remote)?;
                (from, toward(remote, from, &way), mtu(&way, nic))
            }
            None => {
                sends_from(local, link)?;
                (local, Station::Any, nic.mtu)
            }
        };
        let mut endpoint = endpoint.clone();
        if let Endpoint::Protocol { local, .. } = &mut endpoint {
            *local = from;
        }
        Ok(Chosen {
            endpoint,
            ports: Vec::new(),
            station,
            mtu,
        })
    }

    fn choose_pair(
        &mut self,
        peer: &Peer,
        link: &IfName,
        nic: Nic,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Chosen, Denied> {
        if remote.port() == 0 || remote.ip().is_unspecified() {
            return Err(Denied::BadUsage(format!(
                "{remote} is no other end of a flow"
            )));
        }
        same_family(local.ip(), remote.ip())?;
        let way = self.way(link, nic, remote.ip(), named(local.ip()))?;
        let from = own(local.ip(), &way, remote.ip())?;
        let want = Want {
            at: scoped(SocketAddr::new(from, local.port()), nic),
            end: Some(remote),
            group: false,
        };
        let local = self.hold(peer, want, nic.index)?;
        Ok(Chosen {
            endpoint: Endpoint::Udp {
                local,
                remote: Some(remote),
            },
            ports: vec![local],
            station: toward(remote.ip(), from, &way),
            mtu: mtu(&way, nic),
        })
    }

    fn choose_group(
        &mut self,
        peer: &Peer,
        link: &IfName,
        nic: Nic,
        local: SocketAddr,
        group: SocketAddr,
    ) -> Result<Chosen, Denied> {
        let Some(station) = routes::multicast_mac(group.ip()) else {
            return Err(Denied::BadUsage(format!("{} is not a group", group.ip())));
        };
        if group.port() == 0 {
            return Err(Denied::BadUsage(format!("{group} has no port")));
        }
        same_family(local.ip(), group.ip())?;
        let from = match named(local.ip()) {
            Some(from) => from,
            None => {
                let way = self.network.way(group.ip(), None, Some(nic.index))?;
                way.and_then(|way| way.source).ok_or_else(|| {
                    Denied::Failed(format!("no address of {link} can be sent from to {group}"))
                })?
            }
        };
        let want = Want {
            at: scoped(SocketAddr::new(from, local.port()), nic),
            end: Some(group),
            group: false,
        };
        let local = self.hold(peer, want, nic.index)?;
        let want = Want {
            at: scoped(group, nic),
            end: None,
            group: true,
        };
        let group_port = match self.hold(peer, want, nic.index) {
            Ok(held) => held,
            Err(denied) => {
                self.give_back(&[local], Some(group));
                return Err(denied);
            }
        };
        Ok(Chosen {
            endpoint: Endpoint::Group { local, group },
            ports: vec![local, group_port],
            station: Station::Group(station),
            mtu: nic.mtu,
        })
    }

    /// The route to a host. It must lead over the link.
    pub(super) fn way(
        &mut self,
        link: &IfName,
        nic: Nic,
        to: IpAddr,
        from: Option<IpAddr>,
    ) -> Result<RouteEntry, Denied> {
        // A link-local address is looked up on this link.
        let over = is_link_local(to).then_some(nic.index);
        let Some(way) = self.network.way(to, from, over)? else {
            let from = from.map_or_else(String::new, |from| format!(" from {from}"));
            return Err(Denied::Failed(format!("there is no way to {to}{from}")));
        };
        match way.kind {
            HostKind::Unicast if way.index == nic.index => Ok(way),
            HostKind::Unicast => {
                let other = self.network.name(way.index)?.unwrap_or_default();
                Err(Denied::Failed(format!(
                    "the way to {to} leads over {other}, not over {link}: attach there"
                )))
            }
            HostKind::Local => Err(Denied::BadUsage(format!(
                "{to} is this host itself: direct flows are between hosts"
            ))),
            HostKind::Multicast => Err(Denied::BadUsage(format!(
                "{to} is a group: ask for a flow of a group"
            ))),
            HostKind::Other => Err(Denied::BadUsage(format!(
                "{to} is not the address of one host"
            ))),
        }
    }
}

/// The MTU of a route.
pub(super) fn mtu(way: &RouteEntry, nic: Nic) -> u32 {
    way.mtu.map_or(nic.mtu, |mtu| mtu.min(nic.mtu))
}

fn toward(host: IpAddr, from: IpAddr, way: &RouteEntry) -> Station {
    Station::Toward {
        host,
        from,
        via: way.next_hop,
        mac: None,
    }
}

fn named(address: IpAddr) -> Option<IpAddr> {
    (!address.is_unspecified()).then_some(address)
}

/// Checks that a flow to any host names its local address: without a remote host there is no route
/// to take it from.
fn sends_from(local: IpAddr, link: &IfName) -> Result<(), Denied> {
    match named(local) {
        Some(_) => Ok(()),
        None => Err(Denied::BadUsage(format!(
            "a flow to any host needs the address that it sends from, and {local} names none; \
             `ip address show dev {link}` lists those of {link}"
        ))),
    }
}

/// The local address: the named one, else the source address of the route.
fn own(local: IpAddr, way: &RouteEntry, to: IpAddr) -> Result<IpAddr, Denied> {
    named(local)
        .or(way.source)
        .ok_or_else(|| Denied::Failed(format!("this host has no address to send from to {to}")))
}

/// Checks the length of a pattern, because the request is forwarded. The driver checks its meaning.
fn few_enough(pattern: &[Term]) -> Result<(), Denied> {
    match pattern.len() > usize::from(PATTERN_TERMS) {
        false => Ok(()),
        true => Err(Denied::BadUsage(format!(
            "{} terms in one pattern; {PATTERN_TERMS} are allowed, and two of one byte can be one",
            pattern.len()
        ))),
    }
}

fn same_family(one: IpAddr, other: IpAddr) -> Result<(), Denied> {
    match one.is_ipv4() == other.is_ipv4() {
        true => Ok(()),
        false => Err(Denied::BadUsage(format!(
            "{one} and {other} are of two families of addresses"
        ))),
    }
}

pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Adds this link's scope to a link-local address.
fn scoped(at: SocketAddr, nic: Nic) -> SocketAddr {
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

fn of_the_kernel(protocol: u8) -> Option<&'static str> {
    Some(match protocol {
        1 => "ICMP",
        2 => "IGMP",
        6 => "TCP",
        17 => "UDP: ask for a flow of UDP",
        58 => "ICMPv6",
        _ => return None,
    })
}

/// Smaller numbers are lengths, not EtherTypes.
const FIRST_TYPE: u16 = 0x600;
/// IPv4, ARP, IPv6, and VLAN tags.
const KERNEL_TYPES: [u16; 5] = [0x0800, 0x0806, 0x86dd, 0x8100, 0x88a8];
