//! Which protocols a flow can be of, and which it never can.
//!
//! UDP and TCP have ports, and a flow of them is known by these. A flow can also be of another IP protocol or of
//! another EtherType, whole or by a [`crate::pattern`]. What speaks for the host or carries other packets inside is
//! refused: with ICMPv6 or ARP a program could take over its neighbours' addresses, with a tunnel or a VLAN tag it
//! could write headers that no template looks at.

use std::net::IpAddr;

use crate::frame::{self, Family};

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// UDP (RFC 768).
    Udp,
    /// TCP (RFC 9293).
    Tcp,
}

impl Transport {
    /// Its number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Transport::Udp => frame::UDP,
            Transport::Tcp => frame::TCP,
        }
    }

    /// How long its header is at least.
    pub fn header(self) -> usize {
        match self {
            Transport::Udp => 8,
            Transport::Tcp => 20,
        }
    }

    pub(crate) fn of(number: u8) -> Option<Transport> {
        match number {
            frame::UDP => Some(Transport::Udp),
            frame::TCP => Some(Transport::Tcp),
            _ => None,
        }
    }
}

/// An IP protocol without ports that a flow can be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpProtocol(u8);

/// An EtherType that a flow can be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(u16);

/// A protocol that no flow can be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotForFlows {
    /// An IP protocol.
    #[error("IP protocol {0} is the host's own or carries other packets: no flow can be of it")]
    Protocol(u8),
    /// An EtherType.
    #[error("EtherType {0:#06x} is the host's own or carries other packets: no flow can be of it")]
    EtherType(u16),
}

impl IpProtocol {
    /// Checks a number.
    pub fn new(number: u8) -> Result<IpProtocol, NotForFlows> {
        match HOSTS_PROTOCOLS.contains(&number) {
            true => Err(NotForFlows::Protocol(number)),
            false => Ok(IpProtocol(number)),
        }
    }

    /// The number in the IP header.
    pub fn number(self) -> u8 {
        self.0
    }
}

impl EtherType {
    /// Checks a number.
    pub fn new(number: u16) -> Result<EtherType, NotForFlows> {
        match number < FIRST_ETHERTYPE || HOSTS_ETHERTYPES.contains(&number) {
            true => Err(NotForFlows::EtherType(number)),
            false => Ok(EtherType(number)),
        }
    }

    /// The number in the Ethernet header.
    pub fn number(self) -> u16 {
        self.0
    }
}

/// The number of an address, as [`crate::frame::Ip`] has it.
pub(crate) fn number_of(address: IpAddr) -> (Family, u128) {
    match address {
        IpAddr::V4(v4) => (Family::V4, u128::from(v4.to_bits())),
        IpAddr::V6(v6) => (Family::V6, v6.to_bits()),
    }
}

/// True for what one host answers for on a link: not unspecified, loopback, multicast, reserved or broadcast, and not an
/// IPv4 address in the clothes of IPv6. (A network's own broadcast address does not look like one; nobody is told it here.)
#[inline(always)]
pub(crate) fn is_one_host(address: IpAddr) -> bool {
    match address {
        // 0/8, 127/8, 224/4, 240/4.
        IpAddr::V4(v4) => !matches!(v4.octets()[0], 0 | 127 | 224..),
        // ::/96 has ::, ::1 and IPv4 addresses as they once were written, ::ffff:0:0/96 those that are written so now.
        IpAddr::V6(v6) => match v6.segments() {
            [0, 0, 0, 0, 0, 0 | 0xffff, ..] => false,
            [first, ..] => first >> 8 != 0xff,
        },
    }
}

/// Lengths stand below (IEEE 802.3).
const FIRST_ETHERTYPE: u16 = 0x600;

/// Hop-by-hop, ICMP, IGMP, IP in IP, TCP and UDP (they have ports), IPv6 in IP, routing, fragment, GRE, ESP, AH,
/// ICMPv6, no next header, destination options, PIM, IPComp, EtherIP, mobility, HIP, shim6, Ethernet in IPv6.
const HOSTS_PROTOCOLS: [u8; 21] = [
    0, 1, 2, 4, 6, 17, 41, 43, 44, 47, 50, 51, 58, 59, 60, 103, 108, 135, 139, 140, 143,
];

/// IPv4, ARP, reverse ARP, VLAN tags, IPv6, flow control, slow protocols, MPLS, PPPoE, EAPOL, provider
/// tags, MACsec, LLDP, time synchronisation, old tags.
const HOSTS_ETHERTYPES: [u16; 17] = [
    0x0800, 0x0806, 0x8035, 0x8100, 0x86dd, 0x8808, 0x8809, 0x8847, 0x8848, 0x8863, 0x8864, 0x888e,
    0x88a8, 0x88cc, 0x88e5, 0x88f7, 0x9100,
];
