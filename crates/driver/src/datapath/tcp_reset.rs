//! Resets the TCP connection of a flow that ends without its program having closed it.
//!
//! A program that is killed leaves a peer with an open connection. If the peer is idle, no segment
//! of its own would show that. So the driver sends one RST when such a flow ends. A peer accepts an
//! RST only with the sequence number that it expects next (RFC 5961, section 3.2). The driver takes
//! that number from the segments that it has sent for the flow ([`SentSegments`]): the end of the
//! highest sequence number. If the peer has not received all of them, it answers with a challenge
//! ACK. The flow is gone then, so the kernel gets that segment and resets the connection in turn.
//!
//! A listener flow has many connections, which the driver does not know. Their program lists them
//! in the flow's memory (`netnice_ring::connections`). The control thread reads the list after the
//! flow is closed, and hands it over in parts ([`ListedResets`]). The entries are the program's, so
//! each RST is checked as a packet of the flow is: it can only go from the flow's own address and
//! port to a single host.
//!
//! The segments are noted from the driver's own checked copy. An RST passes the flow's template as
//! every frame does, and is charged to the link as packets that the kernel sends. [`Resets`] bounds
//! their rate: [`RESETS_PER_ITERATION`] (8) in each [`SHORTEST_PAUSE`] (400 us), and at most four
//! fifths of the link. Listed connections of several users take turns. While the link is down,
//! resets are dropped. No function fails.

use netnice_ring::connections::ListedConnection;

use super::*;
use crate::frame::{
    Family, TCP, TCP_ACK, TCP_ACK_AT, TCP_FIN, TCP_FLAGS_AT, TCP_OFFSET_AT, TCP_RST,
    TCP_SEQUENCE_AT, TCP_SYN, be32, checksum,
};
use crate::template::Destination;

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
            to: None,
        })
    }
}

/// An RST that waits to be sent.
pub(super) struct Reset {
    sequence: u32,
    acknowledged: Option<u32>,
    template: Template,
    /// The peer, if the template does not fix it.
    to: Option<Destination>,
}

/// Connections of a closed flow, as their program has listed them.
pub(crate) struct ListedResets {
    /// The user of the program.
    pub(crate) uid: u32,
    /// The template of the closed flow.
    pub(crate) template: Template,
    /// The connections.
    pub(crate) connections: Vec<ListedConnection>,
}

/// The RSTs that wait to be sent.
pub(super) struct Resets {
    single: VecDeque<Reset>,
    /// Those of listed connections, for each user that has some.
    listed: VecDeque<ListedOfUser>,
    /// The next ones may be sent at this time.
    due: Instant,
    /// The time from some to the next ones.
    pause: Nanos,
}

/// The listed connections of a user's closed flows.
struct ListedOfUser {
    uid: u32,
    /// At least one, none of them empty.
    parts: VecDeque<ListedResets>,
    /// Number of connections in `parts`.
    count: usize,
}

impl Resets {
    /// No RST waits. `rate` is that of the link.
    pub(super) fn new(rate: Rate) -> Resets {
        let mut resets = Resets {
            single: VecDeque::new(),
            listed: VecDeque::new(),
            due: Instant(0),
            pause: SHORTEST_PAUSE,
        };
        resets.set_rate(rate);
        resets
    }

    /// Sets the rate of the link.
    pub(super) fn set_rate(&mut self, rate: Rate) {
        let time = rate.time_for(Bytes(RESETS_PER_ITERATION as u64 * LONGEST_RESET));
        self.pause = SHORTEST_PAUSE.max(Nanos(time.0.saturating_add(time.0 / 4)));
    }

    /// Adds connections of a closed flow, but not more than [`MOST_LISTED`] of the user in all.
    fn push_listed(&mut self, mut part: ListedResets) {
        let of_user = self.listed.iter_mut().find(|of| of.uid == part.uid);
        let waiting = of_user.as_ref().map_or(0, |of| of.count);
        part.connections.truncate(MOST_LISTED - waiting);
        if part.connections.is_empty() {
            return;
        }
        let count = part.connections.len();
        match of_user {
            Some(of) => {
                of.parts.push_back(part);
                of.count += count;
            }
            None => self.listed.push_back(ListedOfUser {
                uid: part.uid,
                parts: VecDeque::from([part]),
                count,
            }),
        }
    }

    /// The next RST; `None` if none waits.
    fn pop(&mut self) -> Option<Reset> {
        if let Some(reset) = self.single.pop_front() {
            return Some(reset);
        }
        let mut of = self.listed.pop_front()?;
        let part = of.parts.front_mut()?;
        let listed = part.connections.pop()?;
        let reset = Reset {
            sequence: listed.sequence,
            acknowledged: None,
            template: part.template.clone(),
            to: Some(Destination {
                mac: Mac(listed.next_hop),
                address: listed.address,
                port: listed.port,
            }),
        };
        if part.connections.is_empty() {
            of.parts.pop_front();
        }
        of.count -= 1;
        if of.count > 0 {
            self.listed.push_back(of);
        }
        Some(reset)
    }

    fn is_empty(&self) -> bool {
        self.single.is_empty() && self.listed.is_empty()
    }

    /// Adjusts the time of the next iteration for the next RSTs.
    #[inline]
    pub(super) fn limit(&self, next: Next) -> Next {
        match next {
            _ if self.is_empty() => next,
            Next::Idle => Next::Wait(self.due),
            Next::Wait(at) => Next::Wait(at.min(self.due)),
            Next::Again | Next::Full => next,
        }
    }
}

impl Reset {
    /// Writes the frame, and returns its length in bytes.
    fn write(&self, frame: &mut [u8]) -> usize {
        let length = self.template.write_headers(frame, self.to.as_ref());
        let Some(at) = self.template.tcp_at() else {
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
            .filter(|_| !known.ring.is_connection_over())
            .and_then(|(sent, template)| sent.reset(template));
        self.resets.single.extend(reset);
    }

    /// Resets connections of a closed flow, as its program has listed them.
    pub(crate) fn reset_listed(&mut self, listed: ListedResets) {
        self.resets.push_listed(listed);
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

    /// Sends RSTs that wait, as many as an iteration may, if they are due.
    #[cold]
    pub(super) fn send_due_resets(&mut self, sink: &mut impl FrameSink, now: Instant) {
        if self.resets.due <= now || !self.link_is_up {
            self.send_resets(sink, now);
        }
    }

    /// Sends RSTs that wait, as many as an iteration may.
    pub(crate) fn send_resets(&mut self, sink: &mut impl FrameSink, now: Instant) {
        if !self.link_is_up {
            self.resets.single.clear();
            self.resets.listed.clear();
            return;
        }
        let mut bytes = 0;
        for _ in 0..RESETS_PER_ITERATION.min(sink.room()) {
            let Some(reset) = self.resets.pop() else {
                break;
            };
            // The template forbids none of its own frames. An entry of a list can be anything: one
            // that the template forbids is dropped.
            let _ = sink.send(|frame| {
                let length = reset.write(frame);
                let checked = reset.template.check(&mut frame[..length])?;
                bytes += length as u64 + WIRE_OVERHEAD;
                Ok(checked)
            });
        }
        self.resets.due = now.after(self.resets.pause);
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
/// Shortest time from some RSTs to the next ones: 20,000 RSTs a second, or 14 Mbit/s. So the peers
/// of 10,000 connections get theirs in half a second.
const SHORTEST_PAUSE: Nanos = Nanos(400_000);
/// Bytes on the link of the longest RST: IPv6.
const LONGEST_RESET: u64 = 74 + WIRE_OVERHEAD;
/// Most listed connections of one user that wait to be reset: as many as a list can have.
const MOST_LISTED: usize = netnice_ring::connections::MAX_ENTRIES as usize;
