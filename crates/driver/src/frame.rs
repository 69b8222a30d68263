//! Reads the headers of one received frame, strictly and in one pass.
//!
//! The result is a `Frame`: an IP packet whose headers are complete and consistent, or a frame of
//! another EtherType. For a frame with incomplete or inconsistent headers, reading fails with
//! `Malformed`, which has the reason.
//!
//! # What is read
//! - IPv4 with options, which are skipped; the header's checksum must be right.
//! - IPv6, and behind its fixed header a fragment header. Other extension headers are not walked:
//!   the packet's protocol is then the number of that header. No flow can be registered for it, so
//!   the packet is the kernel's.
//! - Bytes after the IP packet are padding and not part of it (`Ip::end`).
//! - A VLAN tag is an EtherType as any other: tagged frames belong to the kernel's VLAN devices.
//!
//! The checksum of UDP or TCP is not read. The receiver checks it, and frames on a virtual cable
//! (veth) may not have one yet.

use std::fmt;
use std::net::IpAddr;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether the address stands for several receivers, broadcast included.
    pub(crate) fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The version of an address.
    pub(crate) fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Offset of the first byte behind an IP header without options or extensions, in a frame.
    pub(crate) fn headers_end(self) -> usize {
        ETHERNET
            + match self {
                Family::V4 => V4_HEADER,
                Family::V6 => V6_HEADER,
            }
    }
}

/// A frame with complete headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// An IP packet.
    Ip(Ip),
    /// A frame of another EtherType (below 0x600: a length). Its payload begins at [`ETHERNET`].
    Other(u16),
}

/// An IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    /// The IP version.
    pub(crate) family: Family,
    /// The source address as a number of 32 or 128 bits. The sender can forge it.
    pub(crate) source: u128,
    /// The destination address, likewise.
    pub(crate) destination: u128,
    /// The payload's protocol, from the last header that was read.
    pub(crate) protocol: u8,
    /// Where the payload begins in the frame.
    pub(crate) payload: usize,
    /// Where the packet ends in the frame; at least `payload`.
    pub(crate) end: usize,
    /// `Some` for a fragment.
    pub(crate) fragment: Option<Fragment>,
}

/// The place of a fragment in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// The datagram's identification, chosen by its sender.
    pub(crate) id: u32,
    /// Offset of this fragment's payload in the datagram's, in bytes.
    pub(crate) offset: u32,
    /// Whether fragments follow. All but the last are multiples of eight bytes long.
    pub(crate) more: bool,
}

/// Why a frame cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(crate) enum Malformed {
    /// The frame or its IP packet ends inside the headers.
    #[error("the frame ends inside its headers")]
    Short,
    /// EtherType and IP version differ.
    #[error("the IP version contradicts the EtherType")]
    Version,
    /// The lengths contradict each other or the frame's length.
    #[error("the lengths of the IP packet contradict each other")]
    Length,
    /// The checksum of the IPv4 header is wrong.
    #[error("the checksum of the IPv4 header is wrong")]
    Checksum,
    /// An empty fragment, one that is no multiple of eight bytes and not the last, or one that ends
    /// beyond byte 65,535 of its datagram.
    #[error("an impossible fragment")]
    Fragment,
}

/// Reads the headers of a frame. Fails with the reason if they are incomplete or inconsistent.
#[inline]
pub(crate) fn read(frame: &[u8]) -> Result<Frame, Malformed> {
    if frame.len() < ETHERNET {
        return Err(Malformed::Short);
    }
    match be16(frame, ETHERTYPE_AT) {
        IPV4 => read_v4(frame).map(Frame::Ip),
        IPV6 => read_v6(frame).map(Frame::Ip),
        other => Ok(Frame::Other(other)),
    }
}

/// (destination, source) of the Ethernet header, or `None` if the frame is too short.
pub(crate) fn macs(frame: &[u8]) -> Option<(Mac, Mac)> {
    let destination = frame.first_chunk()?;
    let source = frame.get(6..)?.first_chunk()?;
    Some((Mac(*destination), Mac(*source)))
}

fn read_v4(frame: &[u8]) -> Result<Ip, Malformed> {
    let packet = &frame[ETHERNET..];
    if packet.len() < V4_HEADER {
        return Err(Malformed::Short);
    }
    if packet[0] >> 4 != 4 {
        return Err(Malformed::Version);
    }
    let header = usize::from(packet[0] & 15) * 4;
    let total = usize::from(be16(packet, 2));
    if header < V4_HEADER || total < header {
        return Err(Malformed::Length);
    }
    if header > packet.len() {
        return Err(Malformed::Short);
    }
    if total > packet.len() {
        return Err(Malformed::Length);
    }
    if checksum(&packet[..header]) != 0 {
        return Err(Malformed::Checksum);
    }
    let flags = be16(packet, 6);
    let fragment = Fragment {
        id: u32::from(be16(packet, 4)),
        offset: u32::from(flags & 0x1fff) * 8,
        more: flags & 0x2000 != 0,
    };
    Ok(Ip {
        family: Family::V4,
        source: u128::from(be32(packet, 12)),
        destination: u128::from(be32(packet, 16)),
        protocol: packet[9],
        payload: ETHERNET + header,
        end: ETHERNET + total,
        fragment: fragment.checked(total - header, header)?,
    })
}

fn read_v6(frame: &[u8]) -> Result<Ip, Malformed> {
    let packet = &frame[ETHERNET..];
    if packet.len() < V6_HEADER {
        return Err(Malformed::Short);
    }
    if packet[0] >> 4 != 6 {
        return Err(Malformed::Version);
    }
    let total = V6_HEADER + usize::from(be16(packet, 4));
    if total > packet.len() {
        return Err(Malformed::Length);
    }
    let mut ip = Ip {
        family: Family::V6,
        source: be128(packet, 8),
        destination: be128(packet, 24),
        protocol: packet[6],
        payload: ETHERNET + V6_HEADER,
        end: ETHERNET + total,
        fragment: None,
    };
    if ip.protocol == FRAGMENT_HEADER {
        if total < V6_HEADER + V6_FRAGMENT {
            return Err(Malformed::Short);
        }
        let header = &packet[V6_HEADER..V6_HEADER + V6_FRAGMENT];
        let field = be16(header, 2);
        let fragment = Fragment {
            id: be32(header, 4),
            offset: u32::from(field & 0xfff8),
            more: field & 1 != 0,
        };
        ip.protocol = header[0];
        ip.payload += V6_FRAGMENT;
        ip.fragment = fragment.checked(ip.end - ip.payload, 0)?;
    }
    Ok(ip)
}

impl Fragment {
    /// `None` for a whole datagram. `length` is the payload's; `header` is the header's share of
    /// the datagram's 65,535 bytes.
    fn checked(self, length: usize, header: usize) -> Result<Option<Fragment>, Malformed> {
        if self.offset == 0 && !self.more {
            return Ok(None);
        }
        let fits = self.offset as usize + length + header <= usize::from(u16::MAX);
        let is_possible = length > 0 && (!self.more || length.is_multiple_of(8));
        match fits && is_possible {
            true => Ok(Some(self)),
            false => Err(Malformed::Fragment),
        }
    }
}

/// The checksum of RFC 1071 over a header: zero if the checksum field is right; if that field is
/// zero, the value that belongs there.
#[inline]
pub(crate) fn checksum(header: &[u8]) -> u16 {
    let (words, rest) = header.as_chunks::<2>();
    let mut sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    if let [last] = rest {
        sum += u32::from(*last) << 8;
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// Whether a segment of TCP has SYN and no ACK: it requests a connection.
///
/// # Panics
/// If the segment is shorter than a header of TCP.
#[inline]
pub(crate) fn is_syn(segment: &[u8]) -> bool {
    segment[TCP_FLAGS_AT] & (TCP_SYN | TCP_ACK) == TCP_SYN
}

/// The big-endian number of two bytes at `at`.
///
/// # Panics
/// If the bytes end before.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The big-endian number of four bytes at `at`.
///
/// # Panics
/// If the bytes end before.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

fn be128(bytes: &[u8], at: usize) -> u128 {
    (0..4).fold(0, |sum, word| {
        sum << 32 | u128::from(be32(bytes, at + 4 * word))
    })
}

/// Length of an Ethernet header without a tag, in bytes.
pub(crate) const ETHERNET: usize = 14;
/// Offset of the EtherType in a frame.
pub(crate) const ETHERTYPE_AT: usize = 12;
/// The EtherType of IPv4.
pub(crate) const IPV4: u16 = 0x0800;
/// The EtherType of IPv6.
pub(crate) const IPV6: u16 = 0x86dd;
/// IP's protocol number of TCP.
pub(crate) const TCP: u8 = 6;
/// Offset of the sequence number in a header of TCP (RFC 9293, section 3.1).
pub(crate) const TCP_SEQUENCE_AT: usize = 4;
/// Offset of the acknowledgment number.
pub(crate) const TCP_ACK_AT: usize = 8;
/// Offset of the byte whose upper half is the length of the header, in words of 4 bytes.
pub(crate) const TCP_OFFSET_AT: usize = 12;
/// Offset of the flags.
pub(crate) const TCP_FLAGS_AT: usize = 13;
/// The flags.
pub(crate) const TCP_FIN: u8 = 0x01;
pub(crate) const TCP_SYN: u8 = 0x02;
pub(crate) const TCP_RST: u8 = 0x04;
pub(crate) const TCP_PSH: u8 = 0x08;
pub(crate) const TCP_ACK: u8 = 0x10;
pub(crate) const TCP_URG: u8 = 0x20;
/// The congestion window was reduced (RFC 3168).
pub(crate) const TCP_CWR: u8 = 0x80;
/// IP's protocol number of UDP.
pub(crate) const UDP: u8 = 17;
/// IP's protocol number of IPv6's fragment header.
pub(crate) const FRAGMENT_HEADER: u8 = 44;
/// Length of an IPv4 header without options, in bytes.
pub(crate) const V4_HEADER: usize = 20;
/// Length of IPv6's fixed header, in bytes.
pub(crate) const V6_HEADER: usize = 40;
const V6_FRAGMENT: usize = 8;

#[cfg(test)]
mod tests;
