//! Resets the TCP connection of a flow that ends without its program having closed it.
//!
//! A program that is killed leaves a peer with an open connection. If the peer is idle, no segment
//! of its own would show that. So the driver sends one RST when such a flow ends. A peer accepts an
//! RST only with the sequence number that it expects next (RFC 5961, section 3.2). The driver takes
//! that number from the segments that it has sent for the flow ([`SentSegments`]): the end of the
//! highest sequence number. If the peer has not received all of them, it answers with a challenge
//! ACK. The flow is gone then, so the kernel gets that segment and resets the connection in turn.
//!
//! The segments are noted from the driver's own checked copy. The RST passes the flow's template as
//! every frame does. It is sent in the next iteration, at most [`RESETS_PER_ITERATION`] in each,
//! and charged to the link as packets that the kernel sends. While the link is down, resets are
//! dropped. No function fails.

use super::*;
use crate::frame::{
    Family, TCP, TCP_ACK, TCP_ACK_AT, TCP_FIN, TCP_FLAGS_AT, TCP_OFFSET_AT, TCP_RST,
    TCP_SEQUENCE_AT, TCP_SYN, be32, checksum,
};

/// What the driver has sent of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SentSegments {
    /// The sequence number behind the highest that was sent; `None` if nothing was sent, or if the
    /// program itself has reset the connection.
    end: Option<u32>,
    /// The acknowledgment number that was sent last; `None` if none was.
    acknowledged: Option<u32>,
}

impl SentSegments {
    /// Notes a sent frame. `at` is the offset of its TCP header, which the template has checked.
    pub(super) fn note(&mut self, frame: &[u8], at: usize) {
        let header = usize::from(frame[at + TCP_OFFSET_AT] >> 4) * 4;
        self.note_payload(frame, at, frame.len().saturating_sub(at + header));
    }

    /// As [`SentSegments::note`], for a frame or a run of segments with `payload` bytes behind its
    /// headers.
    pub(super) fn note_payload(&mut self, frame: &[u8], at: usize, payload: usize) {
        let segment = &frame[at..];
        let flags = segment[TCP_FLAGS_AT];
        if flags & TCP_RST != 0 {
            *self = SentSegments::default();
            return;
        }
        let takes =
            payload as u32 + u32::from(flags & TCP_SYN != 0) + u32::from(flags & TCP_FIN != 0);
        let end = be32(segment, TCP_SEQUENCE_AT).wrapping_add(takes);
        let is_after = |known: u32| end.wrapping_sub(known) as i32 > 0;
        // A SYN begins a connection, perhaps another one between the same endpoints.
        if flags & TCP_SYN != 0 || self.end.is_none_or(is_after) {
            self.end = Some(end);
        }
        if flags & TCP_ACK != 0 {
            self.acknowledged = Some(be32(segment, TCP_ACK_AT));
        }
    }

    /// The RST for the connection; `None` if there is none to reset.
    fn reset(&self, template: &Template) -> Option<Reset> {
        Some(Reset {
            sequence: self.end?,
            acknowledged: self.acknowledged,
            template: template.clone(),
        })
    }
}

/// An RST that waits to be sent.
pub(super) struct Reset {
    sequence: u32,
    acknowledged: Option<u32>,
    template: Template,
}

impl Reset {
    /// Writes the frame, and returns its length in bytes.
    fn write(&self, frame: &mut [u8]) -> usize {
        let length = self.template.write_headers(frame);
        let Some(at) = self.template.connection() else {
            return length;
        };
        let put = |frame: &mut [u8], offset: usize, number: u32| {
            frame[at + offset..at + offset + 4].copy_from_slice(&number.to_be_bytes());
        };
        put(frame, TCP_SEQUENCE_AT, self.sequence);
        put(frame, TCP_ACK_AT, self.acknowledged.unwrap_or(0));
        frame[at + TCP_OFFSET_AT] = 5 << 4;
        frame[at + TCP_FLAGS_AT] = match self.acknowledged {
            Some(_) => TCP_RST | TCP_ACK,
            None => TCP_RST,
        };
        let sum = segment_checksum(&frame[..length], at);
        frame[at + CHECKSUM_AT..at + CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
        length
    }
}

impl Datapath {
    /// Resets the connection of a flow that is about to be closed. No effect if it has none.
    pub(crate) fn reset_connection(&mut self, flow: FlowNo) {
        let Some(Some(known)) = self.flows.get(flow.0 as usize) else {
            return;
        };
        let reset = known
            .sent_segments()
            .and_then(|(sent, template)| sent.reset(template));
        self.resets.extend(reset);
    }

    /// As [`Datapath::reset_connection`], unless the flow has moved to another link: then its
    /// connection continues there.
    pub(super) fn reset_unless_withdrawn(&mut self, flow: FlowNo) {
        let known = self.flows.get(flow.0 as usize).and_then(Option::as_ref);
        if known.is_some_and(|known| !known.is_withdrawn()) {
            self.reset_connection(flow);
        }
    }

    /// Whether an RST waits to be sent.
    pub(crate) fn has_resets(&self) -> bool {
        !self.resets.is_empty()
    }

    /// Sends RSTs that wait, as many as an iteration may.
    #[cold]
    pub(crate) fn send_resets(&mut self, sink: &mut impl FrameSink, now: Instant) {
        if !self.link_is_up {
            self.resets.clear();
            return;
        }
        let count = self.resets.len().min(RESETS_PER_ITERATION).min(sink.room());
        let mut bytes = 0;
        for reset in self.resets.drain(..count) {
            // The template forbids none of its own frames.
            let _ = sink.send(|frame| {
                let length = reset.write(frame);
                bytes += length as u64 + WIRE_OVERHEAD;
                reset.template.check(&mut frame[..length])
            });
        }
        if bytes > 0 {
            self.scheduler.handle_foreign(Bytes(bytes), now);
        }
    }
}

/// The checksum of TCP over the pseudo header and the segment (RFC 9293, section 3.1), whose own
/// field is zero. `at` is the offset of the header of TCP in the frame.
fn segment_checksum(frame: &[u8], at: usize) -> u16 {
    let addresses = match at == Family::V4.headers_end() {
        true => 8,
        false => 32,
    };
    let segment = &frame[at..];
    let mut all = Vec::with_capacity(addresses + 4 + segment.len());
    all.extend_from_slice(&frame[at - addresses..at]);
    all.extend_from_slice(&[0, TCP]);
    all.extend_from_slice(&(segment.len() as u16).to_be_bytes());
    all.extend_from_slice(segment);
    checksum(&all)
}

/// Offset of the checksum in a header of TCP.
const CHECKSUM_AT: usize = 16;
/// Preamble, frame check sequence and gap of a frame of Ethernet, in bytes.
const WIRE_OVERHEAD: u64 = 24;
/// Most RSTs in one iteration, so that the end of a program with many connections delays no other
/// program's packets for long.
const RESETS_PER_ITERATION: usize = 8;
