//! Parses the first bytes of a frame into its flow and its length on the wire, without input or
//! output. A truncated frame gives [`Transport::NotIp`] or ports of 0. IPv6 extension headers are
//! not followed: a packet with one is [`Transport::Other`]. No call fails.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A flow as a tap distinguishes it: direction, protocol, and both endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WireFlow {
    /// True if the tap's device received the packets, false if the device sent them.
    pub inbound: bool,
    /// The transport protocol.
    pub transport: Transport,
    /// Source address and port (0 if the transport has none).
    pub source: (IpAddr, u16),
    /// Destination address and port (0 if the transport has none).
    pub target: (IpAddr, u16),
}

/// The protocol of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP or ICMPv6.
    Icmp,
    /// Another protocol over IP, by number.
    Other(u8),
    /// ARP and all other frames that are not IP.
    NotIp,
}

/// A packet that passed a tap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Wall-clock time in ns.
    pub at_ns: u64,
    /// The flow of the packet.
    pub flow: WireFlow,
    /// Bytes on the wire, see [`crate::wire`].
    pub wire: u64,
    /// Packets on the wire: more than one if the packet was not segmented yet.
    pub segments: u64,
}

/// Parses a frame that passed a device at `at_ns` (wall clock); `inbound` means that the device
/// received it. `head` begins with the Ethernet header, and may be truncated after the transport
/// header. `len` is the length of the whole packet in the kernel in bytes. `segment` is the payload
/// size of each segment that the packet will become; 0 means one packet.
pub fn packet(at_ns: u64, inbound: bool, head: &[u8], len: u64, segment: u16) -> Packet {
    let (flow, header) = headers(inbound, head);
    let payload = len.saturating_sub(header);
    let segments = match segment {
        0 => 1,
        size => payload.div_ceil(u64::from(size)).max(1),
    };
    Packet {
        at_ns,
        flow,
        wire: len + (segments - 1) * header,
        segments,
    }
}

/// The flow, and the length of all headers through the transport's header.
fn headers(inbound: bool, head: &[u8]) -> (WireFlow, u64) {
    let nowhere = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let other = WireFlow {
        inbound,
        transport: Transport::NotIp,
        source: nowhere,
        target: nowhere,
    };
    let Some((source, target, protocol, at)) = internet(head) else {
        return (other, ETHERNET as u64);
    };
    let (transport, header) = match protocol {
        6 => {
            let words = head.get(at + 12).map_or(5, |b| usize::from(b >> 4));
            (Transport::Tcp, words * 4)
        }
        17 => (Transport::Udp, 8),
        1 | 58 => (Transport::Icmp, 8),
        n => (Transport::Other(n), 0),
    };
    let port = |at: usize| match (transport, head.get(at..at + 2)) {
        (Transport::Tcp | Transport::Udp, Some(b)) => u16::from_be_bytes([b[0], b[1]]),
        _ => 0,
    };
    let flow = WireFlow {
        inbound,
        transport,
        source: (source, port(at)),
        target: (target, port(at + 2)),
    };
    (flow, (at + header) as u64)
}

/// Addresses, protocol, and offset of the transport header; `None` if the frame is not IP or
/// truncated.
fn internet(head: &[u8]) -> Option<(IpAddr, IpAddr, u8, usize)> {
    let ip = head.get(ETHERNET..)?;
    match head.get(12..14)? {
        [0x08, 0x00] => {
            let length = usize::from(ip.first()? & 15) * 4;
            let address = |at: usize| -> Option<IpAddr> {
                let b: [u8; 4] = ip.get(at..at + 4)?.try_into().ok()?;
                Some(Ipv4Addr::from(b).into())
            };
            Some((address(12)?, address(16)?, *ip.get(9)?, ETHERNET + length))
        }
        [0x86, 0xdd] => {
            let address = |at: usize| -> Option<IpAddr> {
                let b: [u8; 16] = ip.get(at..at + 16)?.try_into().ok()?;
                Some(Ipv6Addr::from(b).into())
            };
            Some((address(8)?, address(24)?, *ip.get(6)?, ETHERNET + 40))
        }
        _ => None,
    }
}

const ETHERNET: usize = 14;

#[cfg(test)]
mod tests;
