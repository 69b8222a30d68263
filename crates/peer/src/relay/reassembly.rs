//! Collects the packets of a channel until a message is whole ([`Reassembly::accept`]). What cannot
//! belong to a whole message is dropped and counted ([`ReassemblyCounts`]); no call fails.
//!
//! A relay passes whole messages on, unchanged: with the headers of their packets, which the stages
//! at the ends authenticate. So the parts that [`netnice_channel::Reassembly`] joins are whole
//! packets here. The rules are those of a sink (docs/reference/channels.md, C6 to C13), except that
//! the parts are counted after the stages: every part but the last has the longest packet's
//! payload, and all parts together have at most Mmax.

use netnice_channel::{PacketHeader, PartRefusal};
use netnice_core::units::{Bytes, Instant};

use crate::message::parts_of;

/// The incomplete messages of a channel.
#[derive(Debug)]
pub(super) struct Reassembly {
    /// Bytes of the longest packet, with its header.
    packet: usize,
    parts: netnice_channel::Reassembly,
    counts: ReassemblyCounts,
}

/// What became of the packets of a channel. All packets are those of whole messages, those that
/// were dropped for one of the reasons, and those of incomplete and of abandoned messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReassemblyCounts {
    /// Packets that arrived.
    pub(super) packets: u64,
    /// Whole messages.
    pub(super) messages: u64,
    /// Dropped packets that had arrived before.
    pub(super) duplicates: u64,
    /// Dropped packets of messages that are over.
    pub(super) too_late: u64,
    /// Dropped packets that contradict the contract, or an earlier packet.
    pub(super) malformed: u64,
    /// Messages that were abandoned.
    pub(super) incomplete: u64,
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
    /// at most `packet` bytes. `None` if a packet has no payload, or a message has more than 65,535
    /// packets.
    pub(super) fn new(packet: u16, longest: Bytes) -> Option<Reassembly> {
        let headers = parts_of(longest, packet) * PacketHeader::LENGTH as u64;
        let whole = usize::try_from(longest.0.saturating_add(headers)).ok()?;
        let packet = usize::from(packet);
        let parts = netnice_channel::Reassembly::new(packet, whole, MOST_INCOMPLETE);
        (packet > PacketHeader::LENGTH).then_some(Reassembly {
            packet,
            parts: parts?,
            counts: ReassemblyCounts::default(),
        })
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
        // Only the single packet of an empty message has no payload.
        if packet.len() <= PacketHeader::LENGTH && header.count > 1 {
            self.counts.malformed += 1;
            return None;
        }
        let part = (header.part, header.count);
        let accepted = self.parts.accept(header.message, part, packet);
        self.counts.incomplete = self.parts.abandoned();
        let bytes = match accepted {
            Ok(whole) => whole?,
            Err(refusal) => {
                let count = match refusal {
                    PartRefusal::Duplicate => &mut self.counts.duplicates,
                    PartRefusal::Over => &mut self.counts.too_late,
                    _ => &mut self.counts.malformed,
                };
                *count += 1;
                return None;
            }
        };
        self.counts.messages += 1;
        Some(WholeMessage {
            number: header.message,
            arrival: stamp,
            packet: self.packet,
            bytes,
        })
    }

    /// Uses the memory of a message that was sent for one of the next ones.
    pub(super) fn reuse(&mut self, message: WholeMessage) {
        self.parts.reuse(message.bytes);
    }

    /// What became of the packets so far.
    pub(super) fn counts(&self) -> ReassemblyCounts {
        self.counts
    }
}

/// The largest number of incomplete messages of a channel, as at a sink.
pub(super) const MOST_INCOMPLETE: usize = 4;

#[cfg(test)]
mod tests;
