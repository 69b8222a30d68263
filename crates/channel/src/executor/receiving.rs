//! The receiving side of a handler: the packet queue before it, reassembly, and the message queue
//! behind it. No function fails; what is not accepted is returned or counted.

use std::collections::VecDeque;

use netnice_core::units::Instant;

use super::{Counts, Plan};
use crate::header::PacketHeader;
use crate::options::{ChannelOptions, Sizes, WhenFull};
use crate::reassembly::{PartRefusal, Reassembly};

/// A complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The number of the message in its channel.
    pub message: u64,
    /// The message.
    pub body: Vec<u8>,
    /// The time at which the packet that completed it arrived at the host.
    pub arrived: Instant,
    /// The time at which its handler had processed its last packet.
    pub completed: Instant,
}

/// The state of the receiving side.
#[derive(Debug)]
pub(super) struct Receiving<P> {
    queue: VecDeque<QueuedPacket<P>>,
    /// Packets at the front of the queue that are planned.
    planned: usize,
    sizes: Sizes,
    when_full: WhenFull,
    /// The highest number of the messages with an accepted part.
    accepted: Option<u64>,
    /// The highest number of the messages with a queued packet or an accepted part. A corrupted
    /// number counts only while its packet is queued.
    newest: Option<u64>,
    reassembly: Reassembly,
    ready: VecDeque<ReceivedMessage>,
    /// Messages that were handed over and still count as queued.
    handed_over: u64,
}

#[derive(Debug)]
struct QueuedPacket<P> {
    packet: P,
    /// When the packet arrived at the host.
    stamp: Instant,
    header: PacketHeader,
    /// The arrival of the message that begins with this packet.
    begins: Option<Instant>,
}

impl<P> Receiving<P> {
    /// `None` if the sizes allow no message.
    pub(super) fn new(options: &ChannelOptions, sizes: Sizes) -> Option<Receiving<P>> {
        Some(Receiving {
            queue: VecDeque::new(),
            planned: 0,
            sizes,
            when_full: options.when_full,
            accepted: None,
            newest: None,
            reassembly: Reassembly::new(sizes.part, sizes.longest, MOST_INCOMPLETE)?,
            ready: VecDeque::new(),
            handed_over: 0,
        })
    }

    /// Queues a packet that arrived at the host at `stamp`, or returns it if the queue is full.
    /// `arrived` is the time that counts as its arrival for the scheduler.
    pub(super) fn push(
        &mut self,
        (packet, stamp): (P, Instant),
        header: PacketHeader,
        arrived: Instant,
    ) -> Result<(), P> {
        if self.queue.len() as u64 >= self.sizes.buffers {
            return Err(packet);
        }
        if self.queue.is_empty() {
            self.newest = self.accepted;
        }
        let begins = self.newest.is_none_or(|newest| header.message > newest);
        if begins {
            self.newest = Some(header.message);
        }
        self.queue.push_back(QueuedPacket {
            packet,
            stamp,
            header,
            begins: begins.then_some(arrived),
        });
        Ok(())
    }

    /// Plans the next block: at most `most` packets of one message. `None` if no packet is queued,
    /// or if the message queue is full and messages wait.
    pub(super) fn plan(&mut self, most: u64) -> Option<Plan> {
        if self.is_full() {
            return None;
        }
        let first = self.queue.get(self.planned)?;
        let message = first.header.message;
        let rest = self.queue.range(self.planned..);
        let same = rest.take_while(|next| next.header.message == message);
        let packets = same
            .take(usize::try_from(most).unwrap_or(usize::MAX))
            .count();
        self.planned += packets;
        Some(Plan {
            packets: packets as u64,
            begins: first.begins.is_some(),
            arrival: first.begins,
        })
    }

    /// Forgets all planned blocks. Messages whose first packets were planned begin as before.
    pub(super) fn forget_plans(&mut self) {
        self.planned = 0;
    }

    /// Whether a further complete message has to wait.
    pub(super) fn is_full(&self) -> bool {
        self.when_full == WhenFull::Wait && self.queued() >= self.sizes.room
    }

    /// Number of complete messages that the program has not taken.
    fn queued(&self) -> u64 {
        self.ready.len() as u64 + self.handed_over
    }

    /// Removes the first packet of the queue, to be processed. Returns when it arrived, too.
    pub(super) fn pop(&mut self) -> Option<(P, PacketHeader, Instant)> {
        let first = self.queue.pop_front()?;
        self.planned = self.planned.saturating_sub(1);
        Some((first.packet, first.header, first.stamp))
    }

    /// Takes the payload of a packet that the stages accepted and that arrived at `stamp`. Returns
    /// whether it completed a message.
    pub(super) fn accept(
        &mut self,
        header: &PacketHeader,
        payload: &[u8],
        (stamp, now): (Instant, Instant),
        counts: &mut Counts,
    ) -> bool {
        let part = (header.part, header.count);
        let completed = self.reassembly.accept(header.message, part, payload);
        counts.incomplete = self.reassembly.abandoned();
        if completed.is_ok() {
            self.accepted = self.accepted.max(Some(header.message));
        }
        match completed {
            Ok(None) => false,
            Ok(Some(_)) if self.queued() >= self.sizes.room => {
                counts.dropped += 1;
                false
            }
            Ok(Some(body)) => {
                self.ready.push_back(ReceivedMessage {
                    message: header.message,
                    body,
                    arrived: stamp,
                    completed: now,
                });
                true
            }
            Err(PartRefusal::Duplicate) => {
                counts.duplicates += 1;
                false
            }
            Err(PartRefusal::Over) => {
                counts.too_late += 1;
                false
            }
            Err(
                PartRefusal::TooManyParts { .. }
                | PartRefusal::OtherCount { .. }
                | PartRefusal::Length { .. },
            ) => {
                counts.malformed += 1;
                false
            }
        }
    }

    pub(super) fn receive(&mut self) -> Option<ReceivedMessage> {
        self.ready.pop_front()
    }

    /// As [`Receiving::receive`], but the message still counts as queued.
    pub(super) fn hand_over(&mut self) -> Option<ReceivedMessage> {
        let message = self.ready.pop_front()?;
        self.handed_over += 1;
        Some(message)
    }

    /// The memory of a message that is not needed any more.
    pub(super) fn reuse(&mut self, message: Vec<u8>) {
        self.reassembly.reuse(message);
    }

    /// The program has taken so many messages that were handed over.
    pub(super) fn handle_taken(&mut self, messages: u64) {
        self.handed_over = self.handed_over.saturating_sub(messages);
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Number of messages that lack parts.
    pub(super) fn incomplete(&self) -> usize {
        self.reassembly.incomplete()
    }
}

/// The largest number of incomplete messages of a channel. Packets of a flow seldom overtake each
/// other, so more than one is rare.
const MOST_INCOMPLETE: usize = 4;
