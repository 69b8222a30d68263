//! Routes out of this namespace: the interface and the next hop by which a host is reached.
//!
//! The kernel's tables decide, including rules and path MTUs; this module caches nothing. If the
//! kernel does not have the layer 2 address of a next hop, [`use_neighbour`] makes it resolve the
//! address, as for a packet of its own. [`Heard`] then reports the result.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::{
    Answer, Attributes, Listener, Message, NetlinkError, Route, attributes, find, number,
};

#[cfg(test)]
mod tests;

/// A route to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The kind of host.
    pub kind: Kind,
    /// The index of the interface.
    pub index: u32,
    /// The local address for packets to this host.
    pub source: Option<IpAddr>,
    /// The next hop: a gateway, or the host itself.
    pub station: IpAddr,
    /// The path MTU in bytes, if it is known to be less than the interface's MTU.
    pub mtu: Option<u32>,
}

/// The kind of host at the end of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Another host (unicast).
    Single,
    /// This host.
    Local,
    /// A multicast group.
    Group,
    /// All other route types, for example broadcast.
    Other,
}

/// The kernel's neighbour state of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Its layer 2 address is known.
    Known([u8; 6]),
    /// Resolution is in progress.
    Asked,
    /// Resolution failed: the next hop did not reply.
    Silent,
    /// The kernel has no usable entry.
    Unknown,
}

/// Looks up the route to a host, with this local address and over this interface, if given. Returns
/// `None` if there is no route.
pub fn way(
    route: &mut Route,
    to: IpAddr,
    from: Option<IpAddr>,
    over: Option<u32>,
) -> Result<Option<Way>, NetlinkError> {
    let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
    let mut head = [0; ROUTE_HEAD];
    head[0] = family(to);
    head[1] = bits(to);
    let mut asked = Attributes::new().bytes(libc::RTA_DST, &octets(to));
    if let Some(from) = from {
        head[2] = bits(from);
        asked = asked.bytes(libc::RTA_SRC, &octets(from));
    }
    if let Some(over) = over {
        asked = asked.u32(libc::RTA_OIF, over);
    }
    let message = Message::new(libc::RTM_GETROUTE, 0, &head).with(&asked);
    let answers = match route.ask(&format!("ask for the way to {to}"), message) {
        Ok(answers) => answers,
        Err(error) => return no_way(error),
    };
    Ok(answers.iter().find_map(|answer| read_way(answer, to)))
}

/// Converts an error that means "unreachable" to `None`.
fn no_way(error: NetlinkError) -> Result<Option<Way>, NetlinkError> {
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

fn read_way(answer: &Answer, to: IpAddr) -> Option<Way> {
    let head = answer.head::<ROUTE_HEAD>()?;
    let row = answer.attributes(ROUTE_HEAD);
    let kind = match head[7] {
        libc::RTN_UNICAST => Kind::Single,
        libc::RTN_LOCAL => Kind::Local,
        libc::RTN_MULTICAST => Kind::Group,
        _ => Kind::Other,
    };
    let via = find(&row, RTA_VIA).and_then(|via| address(via.get(2..)?));
    let gateway = find(&row, libc::RTA_GATEWAY).and_then(address).or(via);
    let metrics = find(&row, libc::RTA_METRICS).map(attributes);
    let mtu = metrics.and_then(|row| find(&row, RTAX_MTU).and_then(number));
    Some(Way {
        kind,
        index: find(&row, libc::RTA_OIF).and_then(number)?,
        source: find(&row, libc::RTA_PREFSRC).and_then(address),
        station: gateway.unwrap_or(to),
        mtu: mtu.filter(|mtu| *mtu > 0),
    })
}

/// The kernel's neighbour state of a next hop on an interface.
pub fn neighbour(
    route: &mut Route,
    index: u32,
    station: IpAddr,
) -> Result<Neighbour, NetlinkError> {
    let message = Message::new(libc::RTM_GETNEIGH, 0, &neighbour_head(index, station, 0))
        .with(&Attributes::new().bytes(libc::NDA_DST, &octets(station)));
    match route.ask(&format!("ask for the station {station}"), message) {
        Ok(answers) => {
            let known = answers.iter().find_map(read_neighbour);
            Ok(known.map_or(Neighbour::Unknown, |(_, _, neighbour)| neighbour))
        }
        Err(error) if error.is_gone() => Ok(Neighbour::Unknown),
        Err(error) => Err(error),
    }
}

/// Makes the kernel resolve the layer 2 address of a next hop if it is unknown, and confirm it if
/// it is stale.
pub fn use_neighbour(route: &mut Route, index: u32, station: IpAddr) -> Result<(), NetlinkError> {
    let head = neighbour_head(index, station, libc::NTF_USE);
    let message = Message::new(libc::RTM_NEWNEIGH, NLM_F_CREATE, &head)
        .with(&Attributes::new().bytes(libc::NDA_DST, &octets(station)));
    route.act(&format!("ask for the station {station}"), message)
}

/// The layer 2 address of a multicast group (RFC 1112, RFC 2464), which needs no resolution. `None`
/// for other addresses.
pub fn group_station(group: IpAddr) -> Option<[u8; 6]> {
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

/// A change of routes or next hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The state of a next hop.
    Neighbour {
        /// The index of its interface.
        index: u32,
        /// The next hop's address.
        station: IpAddr,
    },
    /// A route or an interface, or changes that were lost.
    Ways,
}

/// A listener for changes.
pub struct Heard(Listener);

impl Heard {
    /// Starts to listen.
    ///
    /// # Errors
    /// The netlink socket cannot be opened.
    pub fn open() -> io::Result<Heard> {
        Listener::open(&[
            RTNLGRP_LINK,
            RTNLGRP_NEIGH,
            RTNLGRP_IPV4_IFADDR,
            RTNLGRP_IPV4_ROUTE,
            RTNLGRP_IPV6_IFADDR,
            RTNLGRP_IPV6_ROUTE,
        ])
        .map(Heard)
    }

    /// The changes since the last call.
    ///
    /// # Errors
    /// `WouldBlock` if there is no change.
    pub fn read(&mut self) -> io::Result<Vec<Change>> {
        let answers = match self.0.read() {
            Ok(answers) => answers,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                return Ok(vec![Change::Ways]);
            }
            Err(error) => return Err(error),
        };
        let change = |answer: &Answer| match answer.kind {
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => read_neighbour(answer)
                .map(|(index, station, _)| Change::Neighbour { index, station }),
            _ => Some(Change::Ways),
        };
        Ok(answers.iter().filter_map(change).collect())
    }
}

impl std::os::fd::AsRawFd for Heard {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

/// Parses a neighbour message: the interface index, the address and the state.
fn read_neighbour(answer: &Answer) -> Option<(u32, IpAddr, Neighbour)> {
    let head = answer.head::<NEIGHBOUR_HEAD>()?;
    let index = u32::from_ne_bytes(*head[4..].first_chunk()?);
    let state = u16::from_ne_bytes(*head[8..].first_chunk()?);
    let row = answer.attributes(NEIGHBOUR_HEAD);
    let station = find(&row, libc::NDA_DST).and_then(address)?;
    let mac = find(&row, libc::NDA_LLADDR).and_then(|mac| mac.first_chunk().copied());
    let known = match mac {
        Some(mac) if state & VALID != 0 => Neighbour::Known(mac),
        _ if state & libc::NUD_INCOMPLETE != 0 => Neighbour::Asked,
        _ if state & libc::NUD_FAILED != 0 => Neighbour::Silent,
        _ => Neighbour::Unknown,
    };
    Some((index, station, known))
}

/// `struct ndmsg`.
fn neighbour_head(index: u32, station: IpAddr, flags: u8) -> [u8; NEIGHBOUR_HEAD] {
    let mut head = [0; NEIGHBOUR_HEAD];
    head[0] = family(station);
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
