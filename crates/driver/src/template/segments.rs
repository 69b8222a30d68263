//! Checks a record of segments ([`SegmentRun`]): one header for several segments of a TCP
//! connection that follow each other, and their payloads, which stay in the program's memory.
//!
//! Only the headers are checked, in the driver's own copy. No check reads a payload, so it does not
//! matter that the program can change it until the kernel has copied it. The driver writes the
//! headers of all segments from the checked one, so they cannot differ from what the flow may send.

use netnice_core::contract::Dscp;
use netnice_ring::driver::SharedBytes;
use netnice_ring::record::Record;

use super::{
    Checked, DONT_FRAGMENT, Forbidden, Layout, Template, V4_CHECKSUM, V4_FLAGS, V4_LENGTH,
    V6_LENGTH,
};
use crate::frame::{
    ETHERNET, Family, TCP_CWR, TCP_FIN, TCP_FLAGS_AT, TCP_OFFSET_AT, TCP_PSH, TCP_RST,
    TCP_SEQUENCE_AT, TCP_SYN, TCP_URG, V4_HEADER, be16, be32, checksum,
};
use crate::protocol::Transport;
use crate::segments;

/// Segments of a TCP connection that follow each other, whose headers a template has checked.
#[derive(Debug)]
pub struct SegmentRun<'a> {
    /// The headers of the first segment. FIN and PSH are those of the last one; lengths and
    /// checksums are not those of any segment.
    head: &'a [u8],
    payloads: &'a [SharedBytes],
    family: Family,
}

/// The parts of a record: the pairs from `begin` up to `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) begin: usize,
    pub(crate) end: usize,
}

impl Parts {
    /// Number of parts.
    pub(crate) fn count(self) -> usize {
        self.end - self.begin
    }
}

impl Template {
    /// Checks the `parts` of a record of segments. `own` begins with the first bytes of the record,
    /// as many as there are or fit: the driver's own memory. `payload_of` returns the bytes of a
    /// pair behind so many. The payloads are written to `payloads`, which has room for them.
    ///
    /// Fails if the flow may not send the first segment, if segments cannot share its headers, or
    /// if the lengths of the payloads differ, except that the last of the record may be shorter.
    pub(crate) fn check_segments<'a>(
        &self,
        own: &'a mut [u8],
        (record, parts): (&Record, Parts),
        payload_of: impl Fn(usize, usize) -> SharedBytes,
        payloads: &'a mut Vec<SharedBytes>,
        code_point: Option<Dscp>,
    ) -> Result<SegmentRun<'a>, Forbidden> {
        let pairs = record.pairs();
        let frame = pairs.first().map_or(0, |pair| pair.length as usize);
        let Layout::Ip(family, Some(Transport::Tcp)) = self.layout else {
            return Err(Forbidden::Segments);
        };
        if own.len() < self.headers {
            return Err(Forbidden::Short);
        }
        if !self.allows(own, frame) {
            return Err(self.explain(own, frame));
        }
        let tcp = family.headers_end();
        let head = tcp + usize::from(own[tcp + TCP_OFFSET_AT] >> 4) * 4;
        let flags = own[tcp + TCP_FLAGS_AT];
        let lone = TCP_SYN | TCP_RST | TCP_URG | TCP_CWR;
        if head >= frame || head > own.len() || flags & lone != 0 {
            return Err(Forbidden::Segments);
        }
        let lengths = || pairs.iter().map(|pair| pair.length as usize);
        let last = lengths().next_back().unwrap_or(0);
        if lengths().rev().skip(1).any(|one| one != frame) || last <= head || last > frame {
            return Err(Forbidden::Segments);
        }
        let segment_bytes = frame - head;
        let own = &mut own[..head];
        self.complete(own, code_point);
        let before = (parts.begin * segment_bytes) as u32;
        let sequence = be32(own, tcp + TCP_SEQUENCE_AT).wrapping_add(before);
        own[tcp + TCP_SEQUENCE_AT..][..4].copy_from_slice(&sequence.to_be_bytes());
        advance_id(own, family, parts.begin);
        if parts.end < pairs.len() {
            own[tcp + TCP_FLAGS_AT] &= !(TCP_FIN | TCP_PSH);
        }
        payloads.clear();
        payloads.extend((parts.begin..parts.end).map(|part| payload_of(part, head)));
        Ok(SegmentRun {
            head: own,
            payloads,
            family,
        })
    }
}

/// Counts the identification of IPv4 on by the number of segments before.
fn advance_id(head: &mut [u8], family: Family, segments: usize) {
    if family == Family::V4 {
        let id = be16(head, V4_ID).wrapping_add(segments as u16);
        head[V4_ID..V4_ID + 2].copy_from_slice(&id.to_be_bytes());
    }
}

impl<'a> SegmentRun<'a> {
    /// The headers; see the field.
    pub(crate) fn head(&self) -> &'a [u8] {
        self.head
    }

    /// Whether routers may fragment the segments: then each needs an identification of its own.
    pub(crate) fn may_be_fragmented(&self) -> bool {
        self.family == Family::V4 && self.head[V4_FLAGS] & DONT_FRAGMENT == 0
    }

    /// The flags of TCP of the last segment, or of the others.
    pub(crate) fn flags(&self, is_last: bool) -> u8 {
        let flags = self.head[self.family.headers_end() + TCP_FLAGS_AT];
        match is_last {
            true => flags,
            false => flags & !(TCP_FIN | TCP_PSH),
        }
    }

    /// The payload of each segment.
    pub(crate) fn payloads(&self) -> &'a [SharedBytes] {
        self.payloads
    }

    /// The version of IP.
    pub(crate) fn family(&self) -> Family {
        self.family
    }

    /// Bytes of payload of all segments.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.payloads.iter().map(SharedBytes::len).sum()
    }

    /// Writes the headers of the segment with this number to `head`, which has their length. The
    /// lengths and checksums are still those of [`SegmentRun::head`].
    pub(crate) fn write_head(&self, number: usize, is_last: bool, head: &mut [u8]) {
        head.copy_from_slice(self.head);
        let tcp = self.family.headers_end();
        let before: usize = self.payloads[..number].iter().map(SharedBytes::len).sum();
        let sequence = be32(head, tcp + TCP_SEQUENCE_AT).wrapping_add(before as u32);
        head[tcp + TCP_SEQUENCE_AT..][..4].copy_from_slice(&sequence.to_be_bytes());
        advance_id(head, self.family, number);
        head[tcp + TCP_FLAGS_AT] = self.flags(is_last);
    }

    /// Passes each segment as a frame of its own to `each`, in order, with the right checksums. For
    /// links that do not cut segments: it copies each payload twice.
    pub fn cut(&self, mut each: impl FnMut(Checked<'_>)) {
        let (mut frame, head) = (Vec::new(), self.head.len());
        for (number, payload) in self.payloads.iter().enumerate() {
            frame.resize(head + payload.len(), 0);
            self.write_head(
                number,
                number + 1 == self.payloads.len(),
                &mut frame[..head],
            );
            payload.copy_to(&mut frame[head..]);
            let behind = |from: usize| ((frame.len() - from) as u16).to_be_bytes();
            let (whole, segment) = (behind(ETHERNET), behind(self.family.headers_end()));
            match self.family {
                Family::V4 => {
                    frame[V4_LENGTH..V4_LENGTH + 2].copy_from_slice(&whole);
                    frame[V4_CHECKSUM..V4_CHECKSUM + 2].fill(0);
                    let sum = checksum(&frame[ETHERNET..ETHERNET + V4_HEADER]);
                    frame[V4_CHECKSUM..V4_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
                }
                Family::V6 => frame[V6_LENGTH..V6_LENGTH + 2].copy_from_slice(&segment),
            }
            let start = self.family.headers_end() as u16;
            segments::complete(&mut frame, segments::Checksum::Partial { start });
            each(Checked(&frame));
        }
    }
}

const V4_ID: usize = ETHERNET + 4;
