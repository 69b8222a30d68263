//! The protocols that a flow can use, and those that are refused.
//!
//! UDP and TCP have ports, which identify a flow. A flow can also use another IP protocol or
//! another EtherType: all packets, or those that match a `pattern`. Two kinds of protocols are
//! refused with [`NotForFlows`]: protocols of the host itself (with ICMPv6 or ARP a program could
//! take over its neighbours' addresses), and protocols that carry other packets (in a tunnel or
//! behind a VLAN tag a program could write headers that no template checks).

use std::net::IpAddr;

use crate::frame::{self, Family};

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// UDP (RFC 768).
    Udp,
    /// TCP (RFC 9293).
    Tcp,
}

impl Transport {
    /// The protocol's number in the IP header.
    pub(crate) fn number(self) -> u8 {
        match self {
            Transport::Udp => frame::UDP,
            Transport::Tcp => frame::TCP,
        }
    }

    /// The least length of the header of the protocol, in bytes.
    pub(crate) fn header(self) -> usize {
        match self {
            Transport::Udp => 8,
            Transport::Tcp => 20,
        }
    }

    /// The transport with this number in the IP header; `None` for another protocol.
    pub(crate) fn of(number: u8) -> Option<Transport> {
        match number {
            frame::UDP => Some(Transport::Udp),
            frame::TCP => Some(Transport::Tcp),
            _ => None,
        }
    }
}

/// An IP protocol, other than UDP and TCP, that a flow can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpProtocol(u8);

/// An EtherType that a flow can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(u16);

/// The error of a protocol that flows cannot use; it holds the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotForFlows {
    /// An IP protocol.
    #[error(
        "a flow cannot use IP protocol {0}: the host itself uses that protocol, or the protocol \
         carries other packets"
    )]
    Protocol(u8),
    /// An EtherType.
    #[error(
        "a flow cannot use EtherType {0:#06x}: the host itself uses that EtherType, or the \
         EtherType carries other packets"
    )]
    EtherType(u16),
}

impl IpProtocol {
    /// The protocol with this number in the IP header.
    ///
    /// # Errors
    /// [`NotForFlows::Protocol`] if the host itself uses it, it carries other packets, or it is UDP
    /// or TCP.
    pub(crate) fn new(number: u8) -> Result<IpProtocol, NotForFlows> {
        match HOSTS_PROTOCOLS.contains(&number) {
            true => Err(NotForFlows::Protocol(number)),
            false => Ok(IpProtocol(number)),
        }
    }

    /// The number in the IP header.
    pub(crate) fn number(self) -> u8 {
        self.0
    }
}

impl EtherType {
    /// The EtherType with this number.
    ///
    /// # Errors
    /// [`NotForFlows::EtherType`] if the host uses it itself, it carries other packets, or the
    /// number is below 0x600 and thus a length.
    pub fn new(number: u16) -> Result<EtherType, NotForFlows> {
        match number < FIRST_ETHERTYPE || HOSTS_ETHERTYPES.contains(&number) {
            true => Err(NotForFlows::EtherType(number)),
            false => Ok(EtherType(number)),
        }
    }

    /// The number in the Ethernet header.
    pub(crate) fn number(self) -> u16 {
        self.0
    }
}

/// An address as a number, in the form of [`crate::frame::Ip`].
pub(crate) fn number_of(address: IpAddr) -> (Family, u128) {
    match address {
        IpAddr::V4(v4) => (Family::V4, u128::from(v4.to_bits())),
        IpAddr::V6(v6) => (Family::V6, v6.to_bits()),
    }
}

/// Whether the address can be that of one host on a link: not unspecified, loopback, multicast,
/// reserved or broadcast, and no IPv4 address in IPv6 form. (A network's own broadcast address
/// cannot be recognised here, since the prefix is unknown.)
#[inline(always)]
pub(crate) fn is_one_host(address: IpAddr) -> bool {
    match address {
        // 0/8, 127/8, 224/4, 240/4.
        IpAddr::V4(v4) => !matches!(v4.octets()[0], 0 | 127 | 224..),
        // ::/96 contains ::, ::1 and the old form of IPv4 addresses; ::ffff:0:0/96 is their present
        // form.
        IpAddr::V6(v6) => match v6.segments() {
            [0, 0, 0, 0, 0, 0 | 0xffff, ..] => false,
            [first, ..] => first >> 8 != 0xff,
        },
    }
}

/// The smallest EtherType: smaller numbers are lengths (IEEE 802.3).
const FIRST_ETHERTYPE: u16 = 0x600;

/// Protocols that flows cannot use: hop-by-hop, ICMP, IGMP, IP in IP, TCP and UDP (they have
/// ports), IPv6 in IP, routing, fragment, GRE, ESP, AH, ICMPv6, no next header, destination
/// options, PIM, IPComp, mobility, HIP, shim6, Ethernet in IPv6.
const HOSTS_PROTOCOLS: [u8; 21] = [
    0, 1, 2, 4, 6, 17, 41, 43, 44, 47, 50, 51, 58, 59, 60, 103, 108, 135, 139, 140, 143,
];

/// EtherTypes that flows cannot use: IPv4, ARP, reverse ARP, VLAN tags, IPv6, flow control, slow
/// protocols, MPLS, PPPoE, EAPOL, provider tags, MACsec, LLDP, time synchronisation, old tags.
const HOSTS_ETHERTYPES: [u16; 17] = [
    0x0800, 0x0806, 0x8035, 0x8100, 0x86dd, 0x8808, 0x8809, 0x8847, 0x8848, 0x8863, 0x8864, 0x888e,
    0x88a8, 0x88cc, 0x88e5, 0x88f7, 0x9100,
];
