//! Frames that carry TCP segments: written in front of a payload, and parsed.
//!
//! A payload lies in its buffer behind [`Layout::payload`] bytes. The headers end there, so a
//! retransmission writes new headers in front of the same payload. A frame begins at a multiple of
//! 8 bytes (`docs/reference/ring.md`), which the length of the headers of all segments with payload
//! permits: with timestamps, or with padding in their place.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use netnice_ring::layout::ALIGN;
use netnice_tcp::header::{Header, Options};

use crate::checksum::Sum;
use crate::datagram::{self, ParseError};
use crate::headers::{ETHERNET, Headers, pseudo_of};

/// Where headers and payload lie in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of the Ethernet and IP headers.
    lower: usize,
    /// Offset of the payload.
    pub(super) payload: usize,
}

/// A received segment.
pub(super) struct Segment {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) header: Header,
    /// The byte range of the payload in the frame.
    pub(super) payload: Range<usize>,
    /// The IP header has a congestion mark (RFC 3168, section 5).
    pub(super) marked: bool,
    /// The checksum is that of the pseudo header alone.
    pub(super) is_partial: bool,
}

impl Layout {
    /// The layout for packets of the family of `address`.
    pub(super) fn new(address: IpAddr) -> Layout {
        let lower = ETHERNET + if address.is_ipv4() { 20 } else { 40 };
        // Segments with payload have headers of this length ...
        let usual = lower + Header::FIXED + Options::TIMESTAMPS_LENGTH;
        let longest = lower + Header::MAX_LENGTH;
        // ... and no segment has longer ones than this.
        let payload = usual + (longest - usual).next_multiple_of(ALIGN as usize);
        Layout { lower, payload }
    }

    /// Bytes of the headers of IP and TCP without options.
    pub(super) fn fixed(self) -> u32 {
        (self.lower - ETHERNET + Header::FIXED) as u32
    }

    /// Bytes of all headers of a segment.
    pub(super) fn headers(self, header: &Header) -> usize {
        self.lower + header.length()
    }

    /// The range of a segment's frame in a buffer; it begins at a multiple of 8.
    pub(super) fn frame(self, header: &Header, payload: usize) -> Range<usize> {
        let headers = self.headers(header);
        // A segment without payload can begin anywhere.
        let begin = match payload {
            0 => 0,
            _ => self.payload - headers,
        };
        begin..begin + headers + payload
    }

    /// Writes the headers of a segment in front of the payload, which the buffer `bytes` holds.
    /// Returns the range of the frame in the buffer. `headers` are those of Ethernet and IP.
    pub(super) fn write(
        self,
        bytes: &mut [u8],
        headers: &Headers,
        header: &Header,
        (payload, ecn_capable): (usize, bool),
        sums: Sums,
    ) -> Range<usize> {
        let length = header.length();
        let range = self.frame(header, payload);
        let frame = &mut bytes[range.clone()];
        header.write(&mut frame[self.lower..]);
        headers.write(frame);
        if ecn_capable {
            mark_capable(frame);
        }
        if sums == Sums::Written {
            let sum = pseudo_header(frame).word((length + payload) as u16);
            let checksum = sum.add(&frame[self.lower..]).checksum();
            let at = self.lower + CHECKSUM_AT;
            frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        range
    }
}

/// Whether the checksum of TCP is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// It is.
    Written,
    /// It is not: the driver or the interface writes it.
    Left,
}

/// Parses a frame. Fails if it is no whole segment of TCP, or its checksum is wrong. A checksum of
/// the pseudo header alone is *partial*: the kernel of a sender on this machine leaves the rest to
/// the interface. It is right only if the interface is a virtual one, which the caller must check.
pub(super) fn parse(frame: &[u8]) -> Result<Segment, ParseError> {
    let ip = datagram::network(frame, TCP)?;
    if ip.fragment.is_some() {
        return Err(ParseError::Fragment);
    }
    let at = ip.payload.clone();
    let segment = frame.get(at.clone()).ok_or(ParseError::Short)?;
    let length = u16::try_from(segment.len()).map_err(|_| ParseError::Short)?;
    let (header, offset) = Header::parse(segment).map_err(|_| ParseError::Short)?;
    let pseudo = pseudo_header(frame).word(length);
    let field = u16::from_be_bytes([segment[CHECKSUM_AT], segment[CHECKSUM_AT + 1]]);
    let is_valid = pseudo.add(segment).is_valid();
    let is_partial = !is_valid && field == pseudo.folded();
    if !is_valid && !is_partial {
        return Err(ParseError::Checksum);
    }
    let marked = match ip.from {
        IpAddr::V4(_) => frame[ETHERNET + 1] & 3 == 3,
        // The traffic class is the second half of the first byte and the first of the next.
        IpAddr::V6(_) => frame[ETHERNET + 1] >> 4 & 3 == 3,
    };
    Ok(Segment {
        from: SocketAddr::new(ip.from, header.source),
        to: SocketAddr::new(ip.to, header.destination),
        header,
        payload: at.start + offset..at.end,
        marked,
        is_partial,
    })
}

/// The sum of the pseudo header without the length.
fn pseudo_header(frame: &[u8]) -> Sum {
    let packet = &frame[ETHERNET..];
    match packet[0] >> 4 {
        4 => pseudo_of(&packet[12..16], &packet[16..20], TCP),
        _ => pseudo_of(&packet[8..24], &packet[24..40], TCP),
    }
}

/// Sets ECT(0) in the IP header (RFC 3168, section 5).
fn mark_capable(frame: &mut [u8]) {
    let packet = &mut frame[ETHERNET..];
    if packet[0] >> 4 == 4 {
        packet[1] |= 2;
        packet[10..12].fill(0);
        let checksum = Sum::default().add(&packet[..20]).checksum();
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        packet[1] |= 2 << 4;
    }
}

/// Protocol number of TCP.
const TCP: u8 = 6;
/// Offset of the checksum in the TCP header.
const CHECKSUM_AT: usize = 16;

#[cfg(test)]
mod tests;
