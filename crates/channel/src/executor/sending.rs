//! The sending side of a handler: the message queue, the gate before it, and the packet buffers
//! behind the handler. [`Sending::offer`] fails with [`SendRefusal`].

use std::collections::VecDeque;

use netnice_core::contract::{Channel, Overload};
use netnice_core::sched::{GateDecision, MessageGate};
use netnice_core::units::{Bytes, Instant, Nanos};

use super::{Plan, SendError};
use crate::options::{ChannelClass, ChannelOptions, Sizes, WhenFull};
use crate::parts::Parts;

/// The reason why a message is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendRefusal {
    /// The queue is full: offer the message again when a message has left it.
    #[error("the channel's queue is full ({most} messages): offer the message when one has left")]
    WaitForRoom {
        /// The largest number of queued messages.
        most: u64,
    },
    /// The message is too early for the overload policy: offer it again at this time.
    #[error("the message is early: offer it again at {}ns", .0.0)]
    WaitUntil(Instant),
    /// The queue is full, and the policy drops the message.
    #[error("the channel's queue is full ({most} messages), and its policy drops the message")]
    Dropped {
        /// The largest number of queued messages.
        most: u64,
    },
    /// The message is too long.
    #[error("a message of {length} is longer than the {most} that the channel accepts")]
    TooLong {
        /// Length of the message.
        length: Bytes,
        /// The longest accepted message.
        most: Bytes,
    },
    /// The handler does not exist, or receives.
    #[error("the handler does not exist or does not send")]
    NoSender,
}

/// An accepted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The number of the message in its channel.
    pub message: u64,
    /// The logical arrival: from then on the message may be processed. For best effort, and for
    /// messages that may leave as best effort, the time of the call.
    pub logical: Instant,
    /// The logical arrival plus the channel's whole deadline; `None` for best effort.
    pub deadline: Option<Instant>,
}

/// A packet that a handler submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingPacket {
    /// The handler.
    pub handler: super::HandlerId,
    /// Bytes of the packet, with the channel's header.
    pub length: usize,
    /// The message.
    pub message: u64,
    /// Number of the part in the message, from 0 on.
    pub part: u16,
    /// Number of parts of the message.
    pub count: u16,
    /// The logical arrival of the message, for the contract of the flow on the link.
    pub logical: Instant,
    /// The deadline of the message; `None` for best effort.
    pub deadline: Option<Instant>,
}

/// A message that the gate of its channel has accepted: [`Gate::offer`].
#[derive(Debug)]
pub struct AcceptedMessage<M> {
    body: M,
    parts: Parts,
    accepted: Accepted,
}

/// Decides on the messages that the program offers to a channel: the overload policy, the room in
/// the message queue, and the longest message. It can be apart from the executor, so that a thread
/// offers messages and has the answer without waiting for the thread that runs the handlers
/// ([`Executor::take_gate`](super::Executor::take_gate)).
#[derive(Debug)]
pub struct Gate {
    gate: Option<MessageGate>,
    /// The whole deadline of a real-time channel.
    deadline: Option<Nanos>,
    when_full: WhenFull,
    sizes: Sizes,
    next_number: u64,
    /// Messages that were accepted and have not left the queue.
    waiting: u64,
    /// Messages that were refused because the queue was full.
    dropped: u64,
    /// When the message that was refused last can be offered again, if only time has to pass.
    retry_at: Option<Instant>,
}

impl Gate {
    fn new(options: &ChannelOptions, sizes: Sizes) -> Gate {
        let (gate, deadline, when_full) = match options.class {
            ChannelClass::BestEffort { when_full, .. } => (None, None, when_full),
            ChannelClass::RealTime(channel) => {
                let policy = channel.overload();
                let gate = MessageGate::new(&with_room(&channel, sizes.room), policy);
                let when_full = match policy {
                    Overload::Drop => WhenFull::Drop,
                    _ => WhenFull::Wait,
                };
                (Some(gate), Some(channel.deadline()), when_full)
            }
        };
        Gate {
            gate,
            deadline,
            when_full,
            sizes,
            next_number: 0,
            waiting: 0,
            dropped: 0,
            retry_at: None,
        }
    }

    /// Accepts a message that arrived at `now`, or returns it with the reason.
    ///
    /// # Errors
    /// [`SendError`] with the message, if the channel does not accept it now.
    pub fn offer<M: AsRef<[u8]>>(
        &mut self,
        body: M,
        now: Instant,
    ) -> Result<AcceptedMessage<M>, SendError<M>> {
        self.retry_at = None;
        match self.decide(body.as_ref().len(), now) {
            Ok((accepted, parts)) => Ok(AcceptedMessage {
                body,
                parts,
                accepted,
            }),
            Err(reason) => {
                self.dropped += u64::from(matches!(reason, SendRefusal::Dropped { .. }));
                if let SendRefusal::WaitUntil(at) = reason {
                    self.retry_at = Some(at);
                }
                Err(SendError { reason, body })
            }
        }
    }

    fn decide(&mut self, length: usize, now: Instant) -> Result<(Accepted, Parts), SendRefusal> {
        let parts = Parts::of(length, self.sizes.part).filter(|_| length <= self.sizes.longest);
        let Some(parts) = parts else {
            let (length, most) = (Bytes(length as u64), Bytes(self.sizes.longest as u64));
            return Err(SendRefusal::TooLong { length, most });
        };
        let most = self.sizes.room;
        if self.waiting >= most {
            return Err(match self.when_full {
                WhenFull::Wait => SendRefusal::WaitForRoom { most },
                WhenFull::Drop => SendRefusal::Dropped { most },
            });
        }
        let logical = match &mut self.gate {
            None => now,
            Some(gate) => match gate.handle_message(Bytes(length as u64), now) {
                GateDecision::Queued { arrival } => arrival,
                GateDecision::WaitUntil(at) => return Err(SendRefusal::WaitUntil(at)),
                GateDecision::WaitForRoom => return Err(SendRefusal::WaitForRoom { most }),
                GateDecision::Dropped => return Err(SendRefusal::Dropped { most }),
            },
        };
        let deadline = self.deadline;
        let accepted = Accepted {
            message: self.next_number,
            logical,
            deadline: deadline.map(|whole| Instant(logical.0.saturating_add(whole.0))),
        };
        self.next_number += 1;
        self.waiting += 1;
        Ok((accepted, parts))
    }

    /// So many of the accepted messages have left the queue: their last packets were submitted.
    /// More than are waiting count as those.
    pub fn handle_left(&mut self, messages: u64) {
        let messages = messages.min(self.waiting);
        self.waiting -= messages;
        if let Some(gate) = &mut self.gate {
            for _ in 0..messages {
                gate.handle_sent();
            }
        }
    }

    /// When the message that was refused last can be offered again, if only time has to pass.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Messages that were accepted and have not left the queue.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// The largest number of messages in the queue.
    pub fn room(&self) -> u64 {
        self.sizes.room
    }

    /// Messages that were dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl<M> AcceptedMessage<M> {
    /// Its number and its times.
    pub fn accepted(&self) -> Accepted {
        self.accepted
    }
}

/// The state of the sending side.
#[derive(Debug)]
pub(super) struct Sending<M> {
    queue: VecDeque<AcceptedMessage<M>>,
    /// `None` if the program has it.
    gate: Option<Gate>,
    /// Packet buffers that are not in use, including `reserved`.
    free: u64,
    buffers: u64,
    /// Free buffers for packets that are planned and not submitted yet.
    reserved: u64,
    /// The message in the queue, and its part, up to which blocks are planned.
    planned: (usize, u16),
    /// The next part of the first message to be submitted.
    next_part: u16,
}

/// The next part to be submitted, with its message.
pub(super) struct NextPart<'a, M> {
    pub body: &'a M,
    pub parts: Parts,
    pub accepted: Accepted,
    pub part: u16,
}

impl<M: AsRef<[u8]>> Sending<M> {
    pub(super) fn new(options: &ChannelOptions, sizes: Sizes) -> Sending<M> {
        Sending {
            queue: VecDeque::new(),
            gate: Some(Gate::new(options, sizes)),
            free: sizes.buffers,
            buffers: sizes.buffers,
            reserved: 0,
            planned: (0, 0),
            next_part: 0,
        }
    }

    /// Queues a message if the gate accepts it, else returns it.
    pub(super) fn offer(&mut self, body: M, now: Instant) -> Result<Accepted, SendError<M>> {
        let Some(gate) = &mut self.gate else {
            let reason = SendRefusal::NoSender;
            return Err(SendError { reason, body });
        };
        let message = gate.offer(body, now)?;
        let accepted = message.accepted;
        self.queue.push_back(message);
        Ok(accepted)
    }

    pub(super) fn take_gate(&mut self) -> Option<Gate> {
        self.gate.take()
    }

    /// Queues a message that the gate has accepted.
    pub(super) fn push(&mut self, message: AcceptedMessage<M>) {
        self.queue.push_back(message);
    }

    pub(super) fn dropped(&self) -> u64 {
        self.gate.as_ref().map_or(0, |gate| gate.dropped)
    }

    /// Plans the next block of at most `most` packets: as many as the message has left and as there
    /// are packet buffers. `None` if there is no message or no buffer.
    pub(super) fn plan(&mut self, most: u64) -> Option<Plan> {
        let (at, part) = self.planned;
        let message = self.queue.get(at)?;
        let left = message.parts.count() - part;
        let packets = most.min(left.into()).min(self.free - self.reserved);
        if packets == 0 {
            return None;
        }
        self.reserved += packets;
        // At most the parts that are left.
        let packets_16 = packets as u16;
        self.planned = match packets_16 == left {
            true => (at + 1, 0),
            false => (at, part + packets_16),
        };
        Some(Plan {
            packets,
            begins: part == 0,
            arrival: (part == 0).then_some(message.accepted.logical),
        })
    }

    /// Forgets all planned blocks.
    pub(super) fn forget_plans(&mut self) {
        self.reserved = 0;
        self.planned = (0, self.next_part);
    }

    /// The part of the first message of the queue that is submitted next.
    pub(super) fn front(&self) -> Option<NextPart<'_, M>> {
        self.queue.front().map(|message| NextPart {
            body: &message.body,
            parts: message.parts,
            accepted: message.accepted,
            part: self.next_part,
        })
    }

    /// The next part has been submitted. Returns whether it was the last one of its message.
    pub(super) fn handle_submitted(&mut self) -> bool {
        self.free -= 1;
        self.reserved -= 1;
        self.next_part += 1;
        let count = self.queue.front().map_or(0, |first| first.parts.count());
        if self.next_part < count {
            return false;
        }
        self.queue.pop_front();
        self.next_part = 0;
        self.planned.0 -= 1;
        if let Some(gate) = &mut self.gate {
            gate.handle_left(1);
        }
        true
    }

    /// So many packets have left, and their buffers are free. More than were submitted count as
    /// those.
    pub(super) fn handle_sent(&mut self, packets: u64) {
        self.free = self.free.saturating_add(packets).min(self.buffers);
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The logical arrival of the first message, if none of it has been submitted.
    pub(super) fn not_before(&self) -> Option<Instant> {
        let first = self.queue.front().filter(|_| self.next_part == 0);
        first.map(|message| message.accepted.logical)
    }
}

/// The channel with room for more messages in its queue than Bmax.
fn with_room(channel: &Channel, room: u64) -> Channel {
    let bmax = u32::try_from(room).unwrap_or(u32::MAX);
    let (mmax, rmax) = (channel.mmax(), channel.rmax());
    let wider = Channel::new(mmax, rmax, bmax, channel.deadline());
    wider.unwrap_or(*channel).with_overload(channel.overload())
}
