//! Parses a received frame: finds the payload and the sender of its datagram, or the fragment of a
//! datagram in it. Fails with the reason ([`ParseError`]) for any other frame, so that the caller
//! can count the frame.
//!
//! The driver has parsed the headers already to find the flow. The driver does not validate the
//! checksum of the datagram: the stack does that on the receiving program's CPU time, as far as the
//! socket demands it ([`Checks`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use netnice_ring::program::Attachment;

use crate::address::without_port;
use crate::checksum::Sum;
use crate::headers::{ETHERNET, UDP, pseudo};

/// A datagram in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedDatagram {
    /// The byte range of the payload in the frame.
    pub payload: Range<usize>,
    /// The sender.
    pub from: SocketAddr,
    /// The destination.
    pub to: SocketAddr,
}

/// Why a frame contains no readable datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The frame is shorter than its headers or than its headers state, or a length in a header is
    /// shorter than the header.
    #[error("the frame is shorter than its headers state")]
    Short,
    /// The frame is neither IPv4 nor IPv6, or of another protocol than the flow.
    #[error("the frame is not of the flow's protocol")]
    Protocol,
    /// The frame contains a fragment of a datagram.
    #[error("the frame contains a fragment of a datagram")]
    Fragment,
    /// The checksum of the IPv4 header or of UDP is wrong, or the UDP checksum is missing in IPv6.
    #[error("a checksum of the frame is wrong")]
    Checksum,
}

/// Validation of the UDP checksum of received datagrams. The checksum of an IPv4 header is always
/// validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// Accepts only a valid checksum (in IPv4 also a missing one).
    Verify,
    /// Like `Verify`, but also accepts a partial checksum, which is the sum of the pseudo header
    /// alone. The kernel of a sender on this machine leaves the rest to the NIC, and there is no
    /// NIC on the path. A packet that is damaged on a wire matches a partial checksum with a
    /// probability of 1 in 65,536, so a socket accepts them only on a virtual interface.
    Partial,
    /// Does not validate the checksum; in IPv6 a missing one is refused all the same.
    Trust,
}

impl Checks {
    /// The checks on the interface of an attachment.
    pub(crate) fn on(self, attachment: &Attachment) -> Checks {
        match self {
            Checks::Partial if !attachment.partial_checksums() => Checks::Verify,
            other => other,
        }
    }
}

/// A fragment of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The fields that all fragments of a datagram share.
    pub key: FragmentKey,
    /// Offset of the fragment in the datagram, in bytes.
    pub offset: u32,
    /// True if more fragments follow.
    pub more: bool,
    /// The byte range of the fragment in the frame.
    pub bytes: Range<usize>,
}

/// The fields that all fragments of a datagram share (RFC 791; RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentKey {
    /// The sender.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// The sender's identification of the datagram.
    pub id: u32,
}

/// Finds the datagram in a frame.
///
/// # Errors
/// If the frame contains no valid datagram, or only a fragment ([`ParseError::Fragment`]).
pub fn parse(frame: &[u8], checks: Checks) -> Result<ParsedDatagram, ParseError> {
    let ip = network(frame, UDP)?;
    match ip.fragment {
        Some(_) => Err(ParseError::Fragment),
        None => datagram(frame, ip.payload, (ip.from, ip.to), checks),
    }
}

/// Finds the payload of another IP protocol in a frame. The ports of the result are 0.
///
/// # Errors
/// If the frame contains no packet of this protocol, or only a fragment ([`ParseError::Fragment`]).
pub(crate) fn parse_ip(frame: &[u8], protocol: u8) -> Result<ParsedDatagram, ParseError> {
    let ip = network(frame, protocol)?;
    match ip.fragment {
        Some(_) => Err(ParseError::Fragment),
        None => Ok(ParsedDatagram {
            payload: ip.payload,
            from: without_port(ip.from),
            to: without_port(ip.to),
        }),
    }
}

/// The payload of another IP protocol that was reassembled from its fragments.
pub(crate) fn reassembled_ip(bytes: &[u8], key: &FragmentKey) -> ParsedDatagram {
    ParsedDatagram {
        payload: 0..bytes.len(),
        from: without_port(key.from),
        to: without_port(key.to),
    }
}

/// Finds the payload of an EtherType in a frame. The addresses of the result are unspecified.
///
/// # Errors
/// If the frame is shorter than its header, or of another EtherType.
pub(crate) fn parse_ethernet(frame: &[u8], number: u16) -> Result<ParsedDatagram, ParseError> {
    let kind = frame.get(12..ETHERNET).ok_or(ParseError::Short)?;
    if kind != number.to_be_bytes() {
        return Err(ParseError::Protocol);
    }
    let none = without_port(Ipv4Addr::UNSPECIFIED.into());
    Ok(ParsedDatagram {
        payload: ETHERNET..frame.len(),
        from: none,
        to: none,
    })
}

/// Finds the datagram in `bytes`, which were reassembled from its fragments. The range of the
/// payload is relative to `bytes`.
///
/// # Errors
/// If the bytes are not a valid datagram.
pub fn parse_reassembled(
    bytes: &[u8],
    key: &FragmentKey,
    checks: Checks,
) -> Result<ParsedDatagram, ParseError> {
    datagram(bytes, 0..bytes.len(), (key.from, key.to), checks)
}

/// The fragment in a frame for which [`parse`] returned [`ParseError::Fragment`].
///
/// # Errors
/// If the frame contains no fragment of a UDP datagram.
pub fn parse_fragment(frame: &[u8]) -> Result<Fragment, ParseError> {
    parse_fragment_of(frame, UDP)
}

/// As [`parse_fragment`], for another protocol.
///
/// # Errors
/// If the frame contains no fragment of this protocol.
pub(crate) fn parse_fragment_of(frame: &[u8], protocol: u8) -> Result<Fragment, ParseError> {
    let ip = network(frame, protocol)?;
    let (id, offset, more) = ip.fragment.ok_or(ParseError::Protocol)?;
    Ok(Fragment {
        key: FragmentKey {
            from: ip.from,
            to: ip.to,
            id,
        },
        offset,
        more,
        bytes: ip.payload,
    })
}

/// The network header of a frame.
pub(crate) struct Network {
    /// The byte range of the IP payload in the frame.
    pub(crate) payload: Range<usize>,
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    /// For a fragment: the identification, the offset in bytes, and whether more fragments follow.
    pub(crate) fragment: Option<(u32, u32, bool)>,
}

/// The network header of a frame that carries `protocol`. Fails if there is none, or it is invalid.
pub(crate) fn network(frame: &[u8], protocol: u8) -> Result<Network, ParseError> {
    let kind = frame.get(12..14).ok_or(ParseError::Short)?;
    let packet = &frame[ETHERNET..];
    let mut ip = match kind {
        [0x08, 0x00] => ipv4(packet, protocol)?,
        [0x86, 0xdd] => ipv6(packet, protocol)?,
        _ => return Err(ParseError::Protocol),
    };
    // Padding of the link may follow the packet.
    packet.get(ip.payload.clone()).ok_or(ParseError::Short)?;
    ip.payload.start += ETHERNET;
    ip.payload.end += ETHERNET;
    Ok(ip)
}

/// The datagram in the range `at` of `bytes`.
fn datagram(
    bytes: &[u8],
    at: Range<usize>,
    (from, to): (IpAddr, IpAddr),
    checks: Checks,
) -> Result<ParsedDatagram, ParseError> {
    let begin = at.start + 8;
    let datagram = bytes.get(at).ok_or(ParseError::Short)?;
    let &[f0, f1, t0, t1, l0, l1, c0, c1, ..] = datagram else {
        return Err(ParseError::Short);
    };
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    let datagram = datagram.get(..length).filter(|_| length >= 8);
    let datagram = datagram.ok_or(ParseError::Short)?;
    let has_checksum = [c0, c1] != [0, 0];
    if !has_checksum && from.is_ipv6() {
        return Err(ParseError::Checksum);
    }
    if checks != Checks::Trust && has_checksum {
        let sum = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => pseudo(&from.octets(), &to.octets()),
            (IpAddr::V6(from), IpAddr::V6(to)) => pseudo(&from.octets(), &to.octets()),
            _ => return Err(ParseError::Protocol),
        };
        let sum = sum.word(length as u16);
        let is_partial =
            || checks == Checks::Partial && u16::from_be_bytes([c0, c1]) == sum.folded();
        if !sum.add(datagram).is_valid() && !is_partial() {
            return Err(ParseError::Checksum);
        }
    }
    Ok(ParsedDatagram {
        payload: begin..begin + length - 8,
        from: SocketAddr::new(from, u16::from_be_bytes([f0, f1])),
        to: SocketAddr::new(to, u16::from_be_bytes([t0, t1])),
    })
}

fn ipv4(packet: &[u8], protocol: u8) -> Result<Network, ParseError> {
    let fixed: &[u8; 20] = packet.first_chunk().ok_or(ParseError::Short)?;
    if fixed[0] >> 4 != 4 {
        return Err(ParseError::Protocol);
    }
    let header = 4 * usize::from(fixed[0] & 0xf);
    let options = packet.get(..header).filter(|_| header >= 20);
    let sum = Sum::default().add(options.ok_or(ParseError::Short)?);
    if !sum.is_valid() {
        return Err(ParseError::Checksum);
    }
    let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    // The bit "more fragments", and the fragment offset in units of eight bytes.
    let cut = word(6) & 0x3fff;
    let fragment =
        (cut != 0).then(|| (word(4).into(), u32::from(cut & 0x1fff) * 8, cut >> 13 == 1));
    if fixed[9] != protocol {
        return Err(ParseError::Protocol);
    }
    let address = |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
    Ok(Network {
        payload: header..usize::from(word(2)),
        from: address(12).into(),
        to: address(16).into(),
        fragment,
    })
}

fn ipv6(packet: &[u8], protocol: u8) -> Result<Network, ParseError> {
    let header: &[u8; 40] = packet.first_chunk().ok_or(ParseError::Short)?;
    if header[0] >> 4 != 6 {
        return Err(ParseError::Protocol);
    }
    let length = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let address = |at: usize| {
        let bytes: [u8; 16] = header[at..at + 16].try_into().expect("16 of 40 bytes");
        Ipv6Addr::from(bytes)
    };
    let (payload, fragment) = match header[6] {
        next if next == protocol => (40..length, None),
        // The fragment header (RFC 8200, section 4.5).
        44 => {
            let rest = packet.get(40..).and_then(|rest| rest.first_chunk::<8>());
            let &[next, _, o0, o1, a, b, c, d] = rest.ok_or(ParseError::Short)?;
            if next != protocol {
                return Err(ParseError::Protocol);
            }
            // The fragment offset in bytes, two reserved bits, and the bit "more fragments".
            let cut = u16::from_be_bytes([o0, o1]) & 0xfff9;
            let id = u32::from_be_bytes([a, b, c, d]);
            // With `cut` 0 the fragment is a whole datagram, which needs no reassembly.
            let fragment = (cut != 0).then(|| (id, u32::from(cut & 0xfff8), cut & 1 == 1));
            (48..length, fragment)
        }
        _ => return Err(ParseError::Protocol),
    };
    Ok(Network {
        payload,
        from: address(8).into(),
        to: address(24).into(),
        fragment,
    })
}

#[cfg(test)]
mod tests;
