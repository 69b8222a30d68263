//! Where the packets of a channel go, and how long they are: [`check_packet`] and
//! [`check_addresses`] decide whether the values in a message, or those of a program, can be used.
//! Both fail with [`AddressFault`].

use std::net::IpAddr;

use netnice_channel::PacketHeader;
use netnice_core::units::Bytes;

/// The shortest packet length of a channel, in bytes with the header of the packet
/// ([`PacketHeader::LENGTH`]).
pub const LEAST_PACKET: u16 = 64;

/// The longest packet length of a channel, in bytes with the header of the packet: what a datagram
/// of UDP holds over IPv4.
pub const MOST_PACKET: u16 = 65_507;

/// The largest number of parts of a message (rule C9 of docs/reference/channels.md).
pub const MOST_PARTS: u64 = 65_535;

/// Why a channel cannot have a packet length or an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressFault {
    #[error("a packet is {LEAST_PACKET} to {MOST_PACKET} bytes long, not {0}")]
    Packet(u16),
    #[error(
        "a message has at most {MOST_PARTS} parts, and one of {mmax} in packets of {packet} bytes \
         has {parts}"
    )]
    Parts {
        mmax: Bytes,
        packet: u16,
        parts: u64,
    },
    #[error("{what} {address} is {is}: packets cannot be sent to or from it")]
    Unusable {
        what: &'static str,
        address: IpAddr,
        is: &'static str,
    },
    #[error("the addresses {0}, {1} and {2} are not all of one family")]
    Families(IpAddr, IpAddr, IpAddr),
}

/// The number of packets of a message whose parts have this many bytes together: one at least.
/// `packet` is the longest packet with its header, and above the length of the header.
pub(crate) fn parts_of(mmax: Bytes, packet: u16) -> u64 {
    let payload = u64::from(packet).saturating_sub(PacketHeader::LENGTH as u64);
    mmax.0.div_ceil(payload.max(1)).max(1)
}

/// Bytes of the IP and the UDP header of a packet to a host.
pub(crate) fn ip_headers(to: IpAddr) -> u64 {
    match to {
        IpAddr::V4(_) => 28,
        IpAddr::V6(_) => 48,
    }
}

/// Checks that messages of `mmax` can be sent in packets of at most this length.
pub(crate) fn check_packet(mmax: Bytes, packet: u16) -> Result<(), AddressFault> {
    if !(LEAST_PACKET..=MOST_PACKET).contains(&packet) {
        return Err(AddressFault::Packet(packet));
    }
    let parts = parts_of(mmax, packet);
    match parts <= MOST_PARTS {
        true => Ok(()),
        false => Err(AddressFault::Parts {
            mmax,
            packet,
            parts,
        }),
    }
}

/// Checks the address of the sink, and the two addresses between which one hop sends its packets.
pub(crate) fn check_addresses(sink: IpAddr, from: IpAddr, to: IpAddr) -> Result<(), AddressFault> {
    check_address("sink_address", sink)?;
    check_address("from", from)?;
    check_address("to", to)?;
    match sink.is_ipv4() == from.is_ipv4() && sink.is_ipv4() == to.is_ipv4() {
        true => Ok(()),
        false => Err(AddressFault::Families(sink, from, to)),
    }
}

/// Checks that an address is one of one host in a network. `what` names the field.
pub(crate) fn check_address(what: &'static str, address: IpAddr) -> Result<(), AddressFault> {
    let is = match address {
        _ if address.is_unspecified() => "unspecified",
        _ if address.is_loopback() => "a loopback address",
        _ if address.is_multicast() => "a multicast address",
        IpAddr::V4(address) if address.is_broadcast() => "the broadcast address",
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => "an IPv4 address in IPv6",
        _ => return Ok(()),
    };
    Err(AddressFault::Unusable { what, address, is })
}
