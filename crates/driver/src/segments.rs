//! Cuts a long received packet into segments, and completes partial checksums.
//!
//! A kernel passes packets of up to 64 KiB on as they are to an interface that leaves the cutting
//! to the hardware (TSO, GSO), and over a virtual cable they arrive so. The receiving kernel merges
//! segments into such packets too (GRO). They do not fit into a program's records. [`cut`] makes
//! the segments that the wire would have carried:
//!
//! | header | field | segment |
//! |---|---|---|
//! | IPv4, IPv6 | length | that of the segment |
//! | IPv4 | identification | one more for each segment |
//! | TCP | sequence number | advanced by the payload before the segment |
//! | TCP | FIN, PSH | only in the last segment |
//! | TCP | CWR (RFC 3168) | only in the first segment |
//! | UDP | length | that of the segment |
//! | IPv4, TCP, UDP | checksum | computed (UDP of IPv4 without a checksum stays without one) |
//!
//! Everything else of the headers is copied. The segments are made in place: each header is written
//! in front of its payload, over payload that was handed over before. So a segment costs a header
//! and the sum over its payload, and no copy.
//!
//! The bytes of a packet are hostile, and [`Offload`] is the kernel's statement. A packet whose
//! checksum the kernel did not validate is cut only if its checksum is right, or is the partial one
//! of a sender on this machine. So a damaged packet does not become valid segments. A packet
//! becomes at most [`MAX_SEGMENTS`] segments, or [`MAX_DATAGRAMS`] datagrams.

use crate::frame::{
    self, ETHERNET, Family, Frame, Ip, TCP_CWR, TCP_FIN, TCP_FLAGS_AT, TCP_OFFSET_AT, TCP_PSH,
    TCP_RST, TCP_SEQUENCE_AT, TCP_SYN, TCP_URG, V4_HEADER, V6_HEADER, be16, be32, checksum,
};
use crate::protocol::Transport;

/// What the kernel states about a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Whether the frame stands for several segments.
    pub merged: Merged,
    /// The state of the checksum of UDP or TCP.
    pub checksum: Checksum,
}

/// Whether a frame stands for several segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merged {
    /// The frame is what the wire carried.
    #[default]
    No,
    /// Segments of TCP with this many bytes of payload; the last may be shorter.
    Tcp(u16),
    /// Datagrams of UDP with this many bytes of payload; the last may be shorter.
    Udp(u16),
    /// The frame is longer than any packet of the link; the kernel does not state the rest.
    Unknown,
}

/// The state of the checksum of a received packet of UDP or TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The kernel did not validate it. It can be right, wrong, or partial.
    #[default]
    Unknown,
    /// The packet is right, and the field has only the sum of the pseudo header.
    Partial {
        /// Offset in the frame of the header of UDP or TCP to which this applies: there can be
        /// another one in front of it, that of a tunnel.
        start: u16,
    },
    /// The kernel validated the packet. The field can have any value.
    Valid,
}

/// Why a packet cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// The headers are incomplete or contradict each other, or the packet is a fragment.
    #[error("the headers of the packet are incomplete, or it is a fragment")]
    Headers,
    /// The packet is not of the protocol that the kernel states, or is a tunnel's.
    #[error("the packet is not of the protocol of its segments")]
    Protocol,
    /// The packet has a flag that segments cannot share: SYN, RST or URG.
    #[error("the packet has a flag that several segments cannot have")]
    Flags,
    /// The length of the segments is unknown or 0, or there would be more than [`MAX_SEGMENTS`], or
    /// [`MAX_DATAGRAMS`] of UDP.
    #[error("the length of the segments is not known, or too short")]
    Size,
    /// The checksum of UDP or TCP is wrong.
    #[error("the checksum of the packet is wrong")]
    Checksum,
}

impl Offload {
    /// Whether the frame needs [`cut`] or [`complete`].
    #[inline]
    pub(crate) fn is_unfinished(&self) -> bool {
        self.merged != Merged::No || matches!(self.checksum, Checksum::Partial { .. })
    }
}

/// Cuts the packet in `frame` into segments, and passes each to `each`, in order. A segment of TCP
/// has at most `longest` bytes with its Ethernet header; but at least [`LEAST_PAYLOAD`] bytes of
/// payload, except the last. Of a size that the kernel states, several segments may be one, if they
/// are shorter than [`SHORT_PAYLOAD`]. Returns the number of segments. The frame's bytes are lost.
///
/// # Errors
/// If the packet cannot be cut; nothing was passed to `each` then.
pub fn cut(
    frame: &mut [u8],
    offload: &Offload,
    longest: usize,
    mut each: impl FnMut(&[u8]),
) -> Result<usize, CutError> {
    let packet = Packet::read(frame)?;
    let size = packet.segment_size(offload.merged, longest)?;
    let count = packet.payload().div_ceil(size).max(1);
    if count > packet.most_segments() {
        return Err(CutError::Size);
    }
    if count > 1 && packet.has_lone_flag(frame) {
        return Err(CutError::Flags);
    }
    packet.validate(frame, offload.checksum)?;
    let mut head = [0; MAX_HEAD];
    let head = &mut head[..packet.head];
    head.copy_from_slice(&frame[..packet.head]);
    for number in 0..count {
        let offset = number * size;
        let end = packet.head + packet.payload().min(offset + size);
        let segment = &mut frame[offset..end];
        segment[..packet.head].copy_from_slice(head);
        packet.write(segment, offset, number, number + 1 == count);
        each(segment);
    }
    Ok(count)
}

/// Writes the checksum of UDP or TCP into a frame whose checksum is partial. Changes nothing if
/// it is not partial, or if the frame is no whole packet of these protocols. Returns true if it has
/// written one.
pub(crate) fn complete(frame: &mut [u8], checksum: Checksum) -> bool {
    let Ok(packet) = Packet::read(frame) else {
        return false;
    };
    let is_partial =
        matches!(checksum, Checksum::Partial { start } if usize::from(start) == packet.ip.payload);
    if is_partial {
        packet.write_checksum(&mut frame[..packet.ip.end]);
    }
    is_partial
}

/// The headers of a packet of UDP or TCP.
struct Packet {
    ip: Ip,
    transport: Transport,
    /// Length of all headers, with the Ethernet header.
    head: usize,
}

impl Packet {
    fn read(frame: &[u8]) -> Result<Packet, CutError> {
        let ip = match frame::read(frame) {
            Ok(Frame::Ip(ip)) if ip.fragment.is_none() => ip,
            _ => return Err(CutError::Headers),
        };
        let transport = Transport::of(ip.protocol).ok_or(CutError::Protocol)?;
        let rest = &frame[ip.payload..ip.end];
        if rest.len() < transport.header() {
            return Err(CutError::Headers);
        }
        let header = match transport {
            Transport::Tcp => usize::from(rest[TCP_OFFSET_AT] >> 4) * 4,
            Transport::Udp => transport.header(),
        };
        let is_whole = transport == Transport::Tcp || usize::from(be16(rest, 4)) == rest.len();
        if !(transport.header()..=rest.len()).contains(&header) || !is_whole {
            return Err(CutError::Headers);
        }
        let head = ip.payload + header;
        Ok(Packet {
            ip,
            transport,
            head,
        })
    }

    /// Bytes behind the headers.
    fn payload(&self) -> usize {
        self.ip.end - self.head
    }

    /// Bytes of payload of each segment but the last.
    fn segment_size(&self, merged: Merged, longest: usize) -> Result<usize, CutError> {
        let fitting = longest.saturating_sub(self.head).max(LEAST_PAYLOAD);
        let stated = match (merged, self.transport) {
            (Merged::Tcp(size), Transport::Tcp) | (Merged::Udp(size), Transport::Udp) => size,
            (Merged::Unknown, Transport::Tcp) => return Ok(fitting),
            (Merged::Unknown, Transport::Udp) => return Err(CutError::Size),
            _ => return Err(CutError::Protocol),
        };
        match (usize::from(stated), self.transport) {
            (0, _) => Err(CutError::Size),
            // The borders between segments of TCP have no meaning, those of datagrams have one.
            (size, Transport::Tcp) => Ok(size.max(SHORT_PAYLOAD).min(fitting)),
            (size, Transport::Udp) => Ok(size),
        }
    }

    fn most_segments(&self) -> usize {
        match self.transport {
            Transport::Tcp => MAX_SEGMENTS,
            Transport::Udp => MAX_DATAGRAMS,
        }
    }

    fn has_lone_flag(&self, frame: &[u8]) -> bool {
        let lone = TCP_SYN | TCP_RST | TCP_URG;
        self.transport == Transport::Tcp && frame[self.ip.payload + TCP_FLAGS_AT] & lone != 0
    }

    /// Fails unless the packet's checksum is right or was validated by the kernel.
    fn validate(&self, frame: &[u8], checksum: Checksum) -> Result<(), CutError> {
        match checksum {
            Checksum::Valid => return Ok(()),
            Checksum::Partial { start } if usize::from(start) == self.ip.payload => return Ok(()),
            Checksum::Partial { .. } => return Err(CutError::Protocol),
            Checksum::Unknown => {}
        }
        let pseudo = self.pseudo_header(frame, self.ip.end - self.ip.payload);
        let field = be16(frame, self.ip.payload + self.checksum_at());
        let is_valid = || fold(pseudo + sum(&frame[self.ip.payload..self.ip.end])) == 0xffff;
        match self.has_no_checksum(field) || field == fold(pseudo) || is_valid() {
            true => Ok(()),
            false => Err(CutError::Checksum),
        }
    }

    /// UDP of IPv4 can be without a checksum (RFC 768).
    fn has_no_checksum(&self, field: u16) -> bool {
        field == 0 && self.transport == Transport::Udp && self.ip.family == Family::V4
    }

    fn checksum_at(&self) -> usize {
        match self.transport {
            Transport::Tcp => TCP_CHECKSUM_AT,
            Transport::Udp => UDP_CHECKSUM_AT,
        }
    }

    /// The sum of the pseudo header, for this length of the UDP or TCP header and payload.
    fn pseudo_header(&self, frame: &[u8], length: usize) -> u32 {
        let addresses = match self.ip.family {
            Family::V4 => &frame[ETHERNET + 12..ETHERNET + V4_HEADER],
            Family::V6 => &frame[ETHERNET + 8..ETHERNET + V6_HEADER],
        };
        sum(addresses) + u32::from(self.ip.protocol) + length as u32
    }

    /// Changes the headers of the packet, which `segment` begins with, to those of a segment whose
    /// payload begins at `offset`.
    fn write(&self, segment: &mut [u8], offset: usize, number: usize, is_last: bool) {
        let length = segment.len();
        let put16 = |segment: &mut [u8], at: usize, value: usize| {
            segment[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
        };
        match self.ip.family {
            Family::V4 => {
                let header = ETHERNET..ETHERNET + usize::from(segment[ETHERNET] & 15) * 4;
                let id = usize::from(be16(segment, ETHERNET + 4)) + number;
                put16(segment, ETHERNET + 2, length - ETHERNET);
                put16(segment, ETHERNET + 4, id);
                put16(segment, ETHERNET + 10, 0);
                let checksum = checksum(&segment[header]);
                put16(segment, ETHERNET + 10, checksum.into());
            }
            Family::V6 => put16(segment, ETHERNET + 4, length - ETHERNET - V6_HEADER),
        }
        let at = self.ip.payload;
        match self.transport {
            Transport::Tcp => {
                let sequence = be32(segment, at + TCP_SEQUENCE_AT).wrapping_add(offset as u32);
                segment[at + TCP_SEQUENCE_AT..][..4].copy_from_slice(&sequence.to_be_bytes());
                let flags = &mut segment[at + TCP_FLAGS_AT];
                if !is_last {
                    *flags &= !(TCP_FIN | TCP_PSH);
                }
                if number > 0 {
                    *flags &= !TCP_CWR;
                }
            }
            Transport::Udp => put16(segment, at + 4, length - at),
        }
        if !self.has_no_checksum(be16(segment, at + self.checksum_at())) {
            self.write_checksum(segment);
        }
    }

    /// Writes the checksum of UDP or TCP of a packet or segment that ends with `segment`.
    fn write_checksum(&self, segment: &mut [u8]) {
        let field = self.ip.payload + self.checksum_at();
        segment[field..field + 2].fill(0);
        let own = &segment[self.ip.payload..];
        let checksum = !fold(self.pseudo_header(segment, own.len()) + sum(own));
        // UDP: 0 stands for no checksum, and 0xffff is the same number.
        let checksum = match (self.transport, checksum) {
            (Transport::Udp, 0) => 0xffff,
            _ => checksum,
        };
        segment[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The sum of the bytes as numbers of 16 bits (RFC 1071). At most 64 KiB do not overflow it.
#[inline]
fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    sum + rest.first().map_or(0, |last| u32::from(*last) << 8)
}

/// A sum in 16 bits, with the carries added.
fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The most segments of a packet of TCP.
pub const MAX_SEGMENTS: usize = 65_536 / LEAST_PAYLOAD;
/// The most datagrams of a packet of UDP: the kernel's bound, `UDP_MAX_SEGMENTS`.
pub const MAX_DATAGRAMS: usize = 128;
/// The least payload of a segment of TCP that is not the last, in bytes, whatever the MTU is.
pub const LEAST_PAYLOAD: usize = 64;
/// Segments with less payload than this become longer ones: every host takes so much (RFC 9293,
/// section 3.7.1).
pub const SHORT_PAYLOAD: usize = 536;
/// The longest packet with its Ethernet header.
pub(crate) const LONGEST: usize = ETHERNET + V6_HEADER + 65_535;
/// The longest headers: Ethernet's, and those of IPv4 and TCP with all options.
const MAX_HEAD: usize = ETHERNET + 60 + 60;
/// Offsets of the checksum in the headers of TCP and UDP.
const TCP_CHECKSUM_AT: usize = 16;
const UDP_CHECKSUM_AT: usize = 6;

#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(test)]
mod tests;
