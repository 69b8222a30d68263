//! Looks up the route to a host ([`lookup`]): the interface, the next hop and the path MTU; and the
//! layer 2 address of a next hop ([`neighbour`]); and the interfaces that have an address.
//!
//! The kernel's tables decide, including rules and path MTUs; this module caches nothing. If the
//! kernel does not have the layer 2 address of a next hop, [`resolve_neighbour`] makes the kernel
//! resolve the address, as for a packet of its own. [`RouteListener`] then reports the result, and
//! also changes of routes, addresses and interfaces. A failed request is a [`NetlinkError`]; a
//! missing route is `None`. Opening a [`RouteListener`] fails if there is no netlink socket, and
//! reading it with `WouldBlock` if nothing has changed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::{
    Attributes, Listener, Message, NetlinkClient, NetlinkError, Request, attributes, find, number,
};

#[cfg(test)]
mod tests;

/// A route to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// The kind of host.
    pub kind: HostKind,
    /// The index of the interface.
    pub index: u32,
    /// The local address for packets to this host; `None` if the kernel names none.
    pub source: Option<IpAddr>,
    /// The next hop: a gateway, or the host itself.
    pub next_hop: IpAddr,
    /// The route's own MTU in bytes: the path MTU that the kernel discovered, or one that was set
    /// for the route. `None`: the interface's MTU applies.
    pub mtu: Option<u32>,
}

/// The kind of host at the end of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// Another host (unicast).
    Unicast,
    /// This host.
    Local,
    /// A multicast group.
    Multicast,
    /// All other route types, for example broadcast.
    Other,
}

/// The kernel's neighbour state of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// The layer 2 address of the next hop is known.
    Known([u8; 6]),
    /// Resolution is in progress.
    Resolving,
    /// Resolution failed: the next hop did not reply.
    Failed,
    /// The kernel has no usable entry.
    Unknown,
}

/// Looks up the route to a host, with this local address and over the interface with this index, if
/// given. Returns `None` if there is no such route, address or interface, or if the route forbids
/// packets to the host.
///
/// # Errors
/// If the request fails for another reason.
pub fn lookup(
    netlink: &mut NetlinkClient,
    to: IpAddr,
    from: Option<IpAddr>,
    over: Option<u32>,
) -> Result<Option<RouteEntry>, NetlinkError> {
    let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
    let mut head = [0; ROUTE_HEAD];
    head[0] = family(to);
    head[1] = bits(to);
    let mut criteria = Attributes::new().bytes(libc::RTA_DST, &octets(to));
    if let Some(from) = from {
        head[2] = bits(from);
        criteria = criteria.bytes(libc::RTA_SRC, &octets(from));
    }
    if let Some(over) = over {
        criteria = criteria.u32(libc::RTA_OIF, over);
    }
    let request = Request::new(libc::RTM_GETROUTE, 0, &head).with(&criteria);
    let replies = match netlink.query(&format!("look up the route to {to}"), request) {
        Ok(replies) => replies,
        Err(error) => return unreachable_is_none(error),
    };
    Ok(replies.iter().find_map(|reply| parse_route(reply, to)))
}

/// True if packets to a host leave over the interface with this index, by a router or over a
/// point-to-point link.
///
/// # Errors
/// As [`lookup`].
pub fn leads_over(
    netlink: &mut NetlinkClient,
    to: IpAddr,
    over: u32,
) -> Result<bool, NetlinkError> {
    // For a route over a given interface the kernel assumes a neighbour if it has none.
    let by_router = lookup(netlink, to, None, Some(over))?;
    if by_router.is_some_and(|route| route.next_hop != to) {
        return Ok(true);
    }
    let by_default = lookup(netlink, to, None, None)?;
    Ok(by_default.is_some_and(|route| route.index == over))
}

/// Converts an error that means "unreachable" to `None`.
fn unreachable_is_none(error: NetlinkError) -> Result<Option<RouteEntry>, NetlinkError> {
    match error.source.raw_os_error() {
        Some(
            libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::EACCES
            | libc::EINVAL
            | libc::ENODEV
            | libc::EADDRNOTAVAIL,
        ) => Ok(None),
        _ => Err(error),
    }
}

fn parse_route(message: &Message, to: IpAddr) -> Option<RouteEntry> {
    let head = message.head::<ROUTE_HEAD>()?;
    let row = message.attributes(ROUTE_HEAD);
    let kind = match head[7] {
        libc::RTN_UNICAST => HostKind::Unicast,
        libc::RTN_LOCAL => HostKind::Local,
        libc::RTN_MULTICAST => HostKind::Multicast,
        _ => HostKind::Other,
    };
    let via = find(&row, RTA_VIA).and_then(|via| address(via.get(2..)?));
    let gateway = find(&row, libc::RTA_GATEWAY).and_then(address).or(via);
    let metrics = find(&row, libc::RTA_METRICS).map(attributes);
    let mtu = metrics.and_then(|row| find(&row, RTAX_MTU).and_then(number));
    Some(RouteEntry {
        kind,
        index: find(&row, libc::RTA_OIF).and_then(number)?,
        source: find(&row, libc::RTA_PREFSRC).and_then(address),
        next_hop: gateway.unwrap_or(to),
        mtu: mtu.filter(|mtu| *mtu > 0),
    })
}

/// The indices of the interfaces that have this address; empty if it is no address of this host.
///
/// # Errors
/// If the kernel does not list the addresses.
pub fn interfaces_with(
    netlink: &mut NetlinkClient,
    wanted: IpAddr,
) -> Result<Vec<u32>, NetlinkError> {
    let mut head = [0; ADDRESS_HEAD];
    head[0] = family(wanted);
    let replies = netlink.dump(
        "list the addresses",
        Request::new(libc::RTM_GETADDR, 0, &head),
    )?;
    let with = replies.iter().filter_map(|reply| {
        let row = reply.attributes(ADDRESS_HEAD);
        // Of a point-to-point link, IFA_ADDRESS is the address of the other end.
        let local = find(&row, libc::IFA_LOCAL).or_else(|| find(&row, libc::IFA_ADDRESS));
        let index = number(reply.head::<ADDRESS_HEAD>()?.get(4..8)?)?;
        (local.and_then(address) == Some(wanted)).then_some(index)
    });
    Ok(with.collect())
}

/// The kernel's neighbour state of a next hop on an interface.
///
/// # Errors
/// If the request fails for another reason than a missing entry or interface.
pub fn neighbour(
    netlink: &mut NetlinkClient,
    index: u32,
    next_hop: IpAddr,
) -> Result<Neighbour, NetlinkError> {
    let replies = neighbour_messages(netlink, index, next_hop)?;
    let known = replies.iter().find_map(parse_neighbour);
    Ok(known.map_or(Neighbour::Unknown, |(_, _, neighbour)| neighbour))
}

/// The kernel's entry of a next hop; empty if there is no entry or no such interface.
fn neighbour_messages(
    netlink: &mut NetlinkClient,
    index: u32,
    next_hop: IpAddr,
) -> Result<Vec<Message>, NetlinkError> {
    let request = Request::new(libc::RTM_GETNEIGH, 0, &neighbour_head(index, next_hop, 0))
        .with(&Attributes::new().bytes(libc::NDA_DST, &octets(next_hop)));
    match netlink.query(&format!("look up the neighbour {next_hop}"), request) {
        Err(error) if error.is_gone() => Ok(Vec::new()),
        replies => replies,
    }
}

/// Makes the kernel resolve the layer 2 address of a next hop if the address is unknown, and
/// confirm the address if it is stale. Does not wait for the result. An address that the
/// administrator has set (`ip neigh add … nud permanent`) stays as it is.
///
/// # Errors
/// If there is no such interface, or the kernel refuses the request.
pub fn resolve_neighbour(
    netlink: &mut NetlinkClient,
    index: u32,
    next_hop: IpAddr,
) -> Result<(), NetlinkError> {
    // NTF_USE takes NUD_PERMANENT from an entry: its address would be resolved anew.
    let entries = neighbour_messages(netlink, index, next_hop)?;
    if entries.iter().any(is_fixed) {
        return Ok(());
    }
    let head = neighbour_head(index, next_hop, libc::NTF_USE);
    let request = Request::new(libc::RTM_NEWNEIGH, NLM_F_CREATE, &head)
        .with(&Attributes::new().bytes(libc::NDA_DST, &octets(next_hop)));
    netlink.execute(&format!("resolve the neighbour {next_hop}"), request)
}

/// The layer 2 address of a multicast group (RFC 1112, RFC 2464), which needs no resolution. `None`
/// for other addresses.
pub fn multicast_mac(group: IpAddr) -> Option<[u8; 6]> {
    match group {
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, b, c, d] = group.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(group) if group.is_multicast() => {
            let octets = group.octets();
            Some([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]])
        }
        _ => None,
    }
}

/// A change that [`RouteListener::read`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// The state of a next hop changed.
    Neighbour {
        /// The index of the interface.
        index: u32,
        /// The next hop's address.
        next_hop: IpAddr,
    },
    /// A route, an address or an interface changed, or notifications were lost: every route may
    /// have changed.
    Routes,
}

/// A listener for changes of routes, addresses, interfaces and next hops. Reading does not block.
pub struct RouteListener(Listener);

impl RouteListener {
    /// Starts to listen.
    ///
    /// # Errors
    /// The netlink socket cannot be opened.
    pub fn open() -> io::Result<RouteListener> {
        Listener::open(&[
            RTNLGRP_LINK,
            RTNLGRP_NEIGH,
            RTNLGRP_IPV4_IFADDR,
            RTNLGRP_IPV4_ROUTE,
            RTNLGRP_IPV6_IFADDR,
            RTNLGRP_IPV6_ROUTE,
        ])
        .map(RouteListener)
    }

    /// The next changes: those of one datagram of the kernel. More may be waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no change, else the error of recvmsg(2).
    pub fn read(&mut self) -> io::Result<Vec<RouteChange>> {
        let messages = match self.0.read() {
            Ok(messages) => messages,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                return Ok(vec![RouteChange::Routes]);
            }
            Err(error) => return Err(error),
        };
        let change = |message: &Message| match message.kind {
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => parse_neighbour(message)
                .map(|(index, next_hop, _)| RouteChange::Neighbour { index, next_hop }),
            _ => Some(RouteChange::Routes),
        };
        Ok(messages.iter().filter_map(change).collect())
    }
}

impl std::os::fd::AsRawFd for RouteListener {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

/// Parses a neighbour message: the interface index, the address and the state.
fn parse_neighbour(message: &Message) -> Option<(u32, IpAddr, Neighbour)> {
    let head = message.head::<NEIGHBOUR_HEAD>()?;
    let index = u32::from_ne_bytes(*head[4..].first_chunk()?);
    let state = u16::from_ne_bytes(*head[8..].first_chunk()?);
    let row = message.attributes(NEIGHBOUR_HEAD);
    let next_hop = find(&row, libc::NDA_DST).and_then(address)?;
    let mac = find(&row, libc::NDA_LLADDR).and_then(|mac| mac.first_chunk().copied());
    let known = match mac {
        Some(mac) if state & VALID != 0 => Neighbour::Known(mac),
        _ if state & libc::NUD_INCOMPLETE != 0 => Neighbour::Resolving,
        _ if state & libc::NUD_FAILED != 0 => Neighbour::Failed,
        _ => Neighbour::Unknown,
    };
    Some((index, next_hop, known))
}

/// Whether a neighbour message has an address that the kernel does not resolve.
fn is_fixed(message: &Message) -> bool {
    let head = message.head::<NEIGHBOUR_HEAD>();
    let state = head.and_then(|head| head[8..].first_chunk().copied());
    state.is_some_and(|state| {
        u16::from_ne_bytes(state) & (libc::NUD_PERMANENT | libc::NUD_NOARP) != 0
    })
}

/// `struct ndmsg`.
fn neighbour_head(index: u32, next_hop: IpAddr, flags: u8) -> [u8; NEIGHBOUR_HEAD] {
    let mut head = [0; NEIGHBOUR_HEAD];
    head[0] = family(next_hop);
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[10] = flags;
    head
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
        16 => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// Size of `struct rtmsg` in bytes; its type is at offset 7.
const ROUTE_HEAD: usize = 12;
/// Size of `struct ifaddrmsg` in bytes; the index is at offset 4.
const ADDRESS_HEAD: usize = 8;
/// Size of `struct ndmsg` in bytes.
const NEIGHBOUR_HEAD: usize = 12;
/// States with a usable address.
const VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const NLM_F_CREATE: u16 = 0x400;
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_NEIGH: u32 = 3;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
const RTNLGRP_IPV6_ROUTE: u32 = 11;
