//! Collects the packets of a channel until a message is whole ([`Reassembly::accept`]). What cannot
//! belong to a whole message is dropped and counted ([`ReassemblyCounts`]); no call fails.
//!
//! A relay passes whole messages on, unchanged: with the headers of their packets, which the stages
//! at the ends authenticate. The rules are those of a sink (docs/reference/channels.md, C6 to C13),
//! except that the parts are counted after the stages: every part but the last has the longest
//! packet's payload, and all parts together have at most Mmax.
//!
//! Messages are passed in the order of their numbers. When one is whole, incomplete ones with lower
//! numbers are abandoned. At most [`MOST_INCOMPLETE`] are incomplete; a packet of a further, newer
//! message abandons the oldest. The packets of a message are in one piece of memory, each at the
//! place that its number gives. So a channel has at most one message of the greatest length more
//! than [`MOST_INCOMPLETE`], whatever arrives, and memory is used only where packets were written.

use std::collections::VecDeque;

use netnice_channel::PacketHeader;
use netnice_core::units::{Bytes, Instant};

/// The incomplete messages of a channel.
#[derive(Debug)]
pub(super) struct Reassembly {
    /// Bytes of the longest packet, with its header; above that of a header.
    packet: usize,
    /// The longest message: bytes of the payloads of all packets.
    longest: usize,
    /// Messages below this number are over.
    next: u64,
    /// Whether the message with the number `u64::MAX` is over.
    is_over: bool,
    /// By number.
    incomplete: VecDeque<IncompleteMessage>,
    /// The memory of an abandoned message, with its old bytes.
    spare: Option<Vec<u8>>,
    counts: ReassemblyCounts,
}

/// What became of the packets of a channel. All packets are those that were passed, that were
/// dropped for one of the four reasons, and that the incomplete messages have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReassemblyCounts {
    /// Packets that arrived.
    pub(super) packets: u64,
    /// Packets of whole messages.
    pub(super) passed: u64,
    /// Whole messages.
    pub(super) messages: u64,
    /// Dropped packets that had arrived before.
    pub(super) duplicates: u64,
    /// Dropped packets of messages that are over.
    pub(super) too_late: u64,
    /// Dropped packets that contradict the contract, or an earlier packet.
    pub(super) malformed: u64,
    /// Dropped packets of messages that were abandoned.
    pub(super) abandoned: u64,
    /// Messages that were abandoned.
    pub(super) incomplete: u64,
}

#[derive(Debug)]
struct IncompleteMessage {
    number: u64,
    count: u16,
    missing: u16,
    /// Bytes of the last packet; 0 if it is missing.
    last: usize,
    /// A bit for each packet that has arrived.
    arrived: Vec<u64>,
    /// At least as long as the message can be. Where no packet has been written, the bytes have no
    /// meaning.
    bytes: Vec<u8>,
}

/// All packets of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WholeMessage {
    /// The number of the message in its channel.
    pub(super) number: u64,
    /// When its last packet arrived.
    pub(super) arrival: Instant,
    packet: usize,
    bytes: Vec<u8>,
}

impl WholeMessage {
    /// The packets in the order of their numbers, as they arrived.
    pub(super) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks(self.packet)
    }
}

impl Reassembly {
    /// Reassembly of messages whose payloads have at most `longest` bytes together, in packets of
    /// at most `packet` bytes.
    pub(super) fn new(packet: u16, longest: Bytes) -> Reassembly {
        Reassembly {
            packet: usize::from(packet).max(PacketHeader::LENGTH + 1),
            longest: usize::try_from(longest.0).unwrap_or(usize::MAX),
            next: 0,
            is_over: false,
            incomplete: VecDeque::new(),
            spare: None,
            counts: ReassemblyCounts::default(),
        }
    }

    /// Takes a packet with this header, which arrived at `stamp`. Returns the message that is whole
    /// with it.
    pub(super) fn accept(
        &mut self,
        header: &PacketHeader,
        packet: &[u8],
        stamp: Instant,
    ) -> Option<WholeMessage> {
        self.counts.packets += 1;
        let number = header.message;
        if number < self.next || self.is_over {
            self.counts.too_late += 1;
            return None;
        }
        if !self.is_valid(header, packet.len()) {
            self.counts.malformed += 1;
            return None;
        }
        let found = self.incomplete.binary_search_by_key(&number, |m| m.number);
        let at = match found {
            Ok(at) => at,
            Err(at) => match self.begin(at, header) {
                Some(at) => at,
                None => {
                    self.counts.too_late += 1;
                    return None;
                }
            },
        };
        let message = &mut self.incomplete[at];
        if message.count != header.count {
            self.counts.malformed += 1;
            return None;
        }
        let (word, bit) = (usize::from(header.part / 64), 1_u64 << (header.part % 64));
        if message.arrived[word] & bit != 0 {
            self.counts.duplicates += 1;
            return None;
        }
        message.arrived[word] |= bit;
        message.missing -= 1;
        let begin = usize::from(header.part) * self.packet;
        message.bytes[begin..begin + packet.len()].copy_from_slice(packet);
        if header.part + 1 == header.count {
            message.last = packet.len();
        }
        match message.missing {
            0 => self.complete(at, stamp),
            _ => None,
        }
    }

    /// What became of the packets so far.
    pub(super) fn counts(&self) -> ReassemblyCounts {
        self.counts
    }

    /// Packets of incomplete messages.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        let held = |message: &IncompleteMessage| u64::from(message.count - message.missing);
        self.incomplete.iter().map(held).sum()
    }

    /// Bytes of memory for packets.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let bytes = |message: &IncompleteMessage| message.bytes.capacity();
        let spare = self.spare.as_ref().map_or(0, Vec::capacity);
        self.incomplete.iter().map(bytes).sum::<usize>() + spare
    }

    /// Whether a packet of this length can be part of a message that keeps to the contract.
    fn is_valid(&self, header: &PacketHeader, length: usize) -> bool {
        let size = self.packet - PacketHeader::LENGTH;
        let Some(payload) = length.checked_sub(PacketHeader::LENGTH) else {
            return false;
        };
        let begin = usize::from(header.part) * size;
        let left = self.longest.saturating_sub(begin);
        let rest = usize::from(header.count - header.part - 1);
        match rest {
            0 if header.count == 1 => payload <= size.min(left),
            0 => (1..=size.min(left)).contains(&payload),
            // The packets behind it have 1 byte each at least, and all but the last `size`.
            _ => payload == size && left > size.saturating_mul(rest),
        }
    }

    /// Makes place for a message at the place `at`, and returns the place that it has then; `None`
    /// if too many newer ones are incomplete.
    fn begin(&mut self, at: usize, header: &PacketHeader) -> Option<usize> {
        let mut at = at;
        if self.incomplete.len() >= MOST_INCOMPLETE {
            at = at.checked_sub(1)?;
            self.abandon_first();
        }
        let count = usize::from(header.count);
        let headers = count * PacketHeader::LENGTH;
        let length = (count * self.packet).min(self.longest.saturating_add(headers));
        let spare = self.spare.take_if(|spare| spare.len() >= length);
        let message = IncompleteMessage {
            number: header.message,
            count: header.count,
            missing: header.count,
            last: 0,
            arrived: vec![0; count.div_ceil(64)],
            // The kernel gives zeroed pages when they are first written.
            bytes: spare.unwrap_or_else(|| vec![0; length]),
        };
        self.incomplete.insert(at, message);
        Some(at)
    }

    /// Removes the whole message at a place, and the older ones.
    fn complete(&mut self, at: usize, arrival: Instant) -> Option<WholeMessage> {
        for _ in 0..at {
            self.abandon_first();
        }
        let message = self.incomplete.pop_front()?;
        match message.number.checked_add(1) {
            Some(next) => self.next = next,
            None => self.is_over = true,
        }
        self.counts.messages += 1;
        self.counts.passed += u64::from(message.count);
        let mut bytes = message.bytes;
        bytes.truncate(usize::from(message.count - 1) * self.packet + message.last);
        // The memory of an abandoned message can be much longer than this message.
        bytes.shrink_to(2 * bytes.len());
        Some(WholeMessage {
            number: message.number,
            arrival,
            packet: self.packet,
            bytes,
        })
    }

    /// Abandons the message with the lowest number. Of its memory and the spare one, the longer one
    /// is kept.
    fn abandon_first(&mut self) {
        if let Some(message) = self.incomplete.pop_front() {
            self.counts.incomplete += 1;
            self.counts.abandoned += u64::from(message.count - message.missing);
            let kept = self.spare.as_ref().map_or(0, Vec::len);
            if message.bytes.len() > kept {
                self.spare = Some(message.bytes);
            }
        }
    }
}

/// The largest number of incomplete messages of a channel, as at a sink.
pub(super) const MOST_INCOMPLETE: usize = 4;

#[cfg(test)]
mod tests;
