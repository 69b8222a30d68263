//! Combines packets of a capture into the messages of a channel ([`Message`]).
//!
//! A message that does not fit in one packet arrives in several. This module finds the fragments of
//! one IP datagram by their headers. If a program splits its messages itself, the headers do not
//! show which packets belong together, so the user gives a gap: with `--gap T`, a packet that
//! arrives less than T after the one before belongs to the same message.
//!
//! The arrival time of a message is that of its first packet. Its length is what one packet with
//! the whole message would have: the length of the first packet, plus the bytes behind the IP
//! headers of every other packet. Messages come out in the order of their first packets, each when
//! its datagrams are complete and, with a gap, when no further packet can belong to it. A datagram
//! with a missing fragment counts as complete 30 s after the latest packet of its message
//! ([`REASSEMBLY`]). A message can come out incomplete if more than 4096 are open ([`MAX_OPEN`]),
//! or at the end of the capture. No function fails.

use std::collections::VecDeque;

use netnice_core::units::Nanos;

use super::flow::{DatagramKey, IpPacket};

/// A message, as the policer gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Time of the first packet of the message, in ns.
    pub at: u64,
    /// Length in bytes.
    pub length: u64,
    /// The number of the first packet of the message in the file.
    pub number: u64,
}

impl Message {
    /// A packet that is a message of its own.
    pub(super) fn packet(number: u64, at: u64, length: u32) -> Message {
        let length = u64::from(length);
        Message { at, length, number }
    }
}

/// Messages that are not complete or not returned yet.
#[derive(Debug, Default)]
pub(super) struct Messages {
    gap: Option<Nanos>,
    open: VecDeque<OpenMessage>,
}

#[derive(Debug)]
struct OpenMessage {
    message: Message,
    /// Time of the latest packet of the message, in ns.
    last: u64,
    datagrams: Vec<Datagram>,
}

/// A fragmented datagram.
#[derive(Debug)]
struct Datagram {
    key: DatagramKey,
    /// Bytes of the fragments so far.
    received: u32,
    /// Bytes of the whole datagram; `None` until its last fragment.
    total: Option<u32>,
}

impl Messages {
    /// No messages yet. `gap`: packets less than this time apart belong to one message; `None`:
    /// only fragments of one datagram do.
    pub(super) fn new(gap: Option<Nanos>) -> Messages {
        Messages {
            gap,
            open: VecDeque::new(),
        }
    }

    /// Adds the next packet of the capture: its number, its time in ns, its length on the wire in
    /// bytes, and its IP header if it has one.
    pub(super) fn handle(&mut self, number: u64, at: u64, length: u32, packet: Option<IpPacket>) {
        let key = packet.as_ref().and_then(IpPacket::fragment_of);
        let known = |open: &OpenMessage| open.datagrams.iter().any(|one| Some(one.key) == key);
        let same = self.open.iter().rposition(known);
        let same = same.or_else(|| {
            let last = self.open.back()?;
            let gap = self.gap?;
            (at < last.last.saturating_add(gap.0)).then_some(self.open.len() - 1)
        });
        let payload = packet.as_ref().map_or(length, |packet| packet.bytes);
        match same.and_then(|index| self.open.get_mut(index)) {
            Some(open) => {
                open.message.length += u64::from(payload);
                open.last = open.last.max(at);
                open.add_fragment(packet.as_ref());
            }
            None => {
                let mut open = OpenMessage {
                    message: Message::packet(number, at, length),
                    last: at,
                    datagrams: Vec::new(),
                };
                open.add_fragment(packet.as_ref());
                self.open.push_back(open);
            }
        }
    }

    /// Removes and returns the first message if it is complete at time `now`, or if more than
    /// [`MAX_OPEN`] are open; else `None`.
    pub(super) fn poll(&mut self, now: u64) -> Option<Message> {
        let gap = self.gap.unwrap_or_default().0;
        let first = self.open.front()?;
        let has_all = first.datagrams.iter().all(Datagram::is_complete)
            || now >= first.last.saturating_add(REASSEMBLY.0);
        let is_over = now >= first.last.saturating_add(gap);
        if (has_all && is_over) || self.open.len() > MAX_OPEN {
            return self.take_first();
        }
        None
    }

    /// Removes and returns the first message, complete or not; `None` if there is none. For the end
    /// of the capture.
    pub(super) fn take_first(&mut self) -> Option<Message> {
        self.open.pop_front().map(|open| open.message)
    }
}

impl OpenMessage {
    /// Adds the packet to its datagram if the packet is a fragment.
    fn add_fragment(&mut self, packet: Option<&IpPacket>) {
        let fragment = packet.and_then(|packet| Some((packet, packet.fragment_of()?)));
        let Some((packet, key)) = fragment else {
            return;
        };
        let index = self.datagrams.iter().position(|one| one.key == key);
        let index = index.unwrap_or_else(|| {
            self.datagrams.push(Datagram {
                key,
                received: 0,
                total: None,
            });
            self.datagrams.len() - 1
        });
        let datagram = &mut self.datagrams[index];
        datagram.received += packet.bytes;
        if packet.is_last {
            datagram.total = Some(packet.offset + packet.bytes);
        }
    }
}

impl Datagram {
    fn is_complete(&self) -> bool {
        self.total.is_some_and(|total| self.received >= total)
    }
}

/// Longest time to wait for fragments: Linux's `ipfrag_time`.
const REASSEMBLY: Nanos = Nanos::from_secs(30);

/// Largest number of open messages; beyond it the first one is returned incomplete.
const MAX_OPEN: usize = 4096;
