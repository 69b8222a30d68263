//! Admission of messages to a channel, with a policy for messages that exceed its contract. No
//! function of this module fails.
//!
//! A [`MessageGate`] stands between a sender and the message queue of a real-time channel (paper
//! RTC, section 3.1 and table 2). The channel's contract allows Rmax messages per second in the
//! long run, Bmax messages at once, and Mmax bytes for each. The *logical arrival* of a message is
//! its arrival, or 1/Rmax after that of the message before, whichever is later. The queue has room
//! for at least Bmax messages, so a burst that the contract allows always fits. The channel's
//! [`Overload`] policy decides on further messages, and the sender gets a [`GateDecision`] for each
//! message:
//!
//! | policy | a message that finds Bmax in the queue | a message before its logical arrival |
//! |---|---|---|
//! | `Block` | waits at the sender until one has left | is queued |
//! | `Decay` | is queued; its deadline counts from its logical arrival | is queued |
//! | `Space` | waits at the sender until one has left | waits at the sender until then |
//! | `Drop` | is dropped | is queued |
//! | `BestEffort` | is queued; also served as best effort | the same |
//!
//! Logical arrivals are at least 1/Rmax apart with every policy. So a channel gets no more of the
//! link in the long run than its contract allows. The policies differ in which messages wait, and
//! where they wait. A message longer than Mmax counts as ⌈length / Mmax⌉ messages: the logical
//! arrival of the next one is later by as many times 1/Rmax. (The scheduler counts the bytes of a
//! message, and gives the packets beyond the first Mmax later logical arrivals too.)
//!
//! With `BestEffort` the gate admits every message with its arrival and leaves the logical arrival
//! to the scheduler, which knows the messages that left as best effort and did not count.
//!
//! # Use
//! The library of the direct path (`netnice-stack`) and `netnice-sim` (the `overload` of a
//! scenario's flow) use gates. The driver does not: it keeps the contract whatever the program
//! does, because a message beyond its contract gets a later logical arrival in the scheduler.

use crate::contract::{self, Overload};
use crate::units::{Bytes, Instant};

/// The decision of a [`MessageGate`] on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateDecision {
    /// The message is queued.
    Queued {
        /// The message's logical arrival, for [`super::Packet::first`].
        arrival: Instant,
    },
    /// The message is not accepted. Offer it again at this time.
    WaitUntil(Instant),
    /// The message is not accepted. Offer it again after the next [`MessageGate::handle_sent`].
    WaitForRoom,
    /// The message is dropped.
    Dropped,
}

/// The gate before the message queue of one channel.
#[derive(Clone, Copy, Debug)]
pub struct MessageGate {
    mmax: u64,
    spacing: u64,
    bmax: u32,
    policy: Overload,
    /// Number of messages that were queued and have not left.
    waiting: u32,
    /// The earliest logical arrival of the next message.
    next: u64,
    dropped: u64,
}

impl MessageGate {
    /// The gate of a channel whose queue is empty.
    pub fn new(channel: &contract::Channel, policy: Overload) -> MessageGate {
        MessageGate {
            mmax: channel.mmax().0,
            spacing: super::channel::spacing(channel),
            bmax: channel.bmax(),
            policy,
            waiting: 0,
            next: 0,
            dropped: 0,
        }
    }

    /// The gate after a change of the contract. The messages in the queue and the logical arrivals
    /// stay.
    pub fn changed(&self, channel: &contract::Channel, policy: Overload) -> MessageGate {
        MessageGate {
            waiting: self.waiting,
            next: self.next,
            dropped: self.dropped,
            ..MessageGate::new(channel, policy)
        }
    }

    /// Decides on a message of this length that arrives at `now`. If the decision is to wait, the
    /// caller offers the message again later.
    pub fn handle_message(&mut self, length: Bytes, now: Instant) -> GateDecision {
        let full = self.waiting >= self.bmax;
        match self.policy {
            Overload::Block if full => return GateDecision::WaitForRoom,
            Overload::Drop if full => {
                self.dropped += 1;
                return GateDecision::Dropped;
            }
            Overload::Space if now.0 < self.next => {
                return GateDecision::WaitUntil(Instant(self.next));
            }
            Overload::Space if full => return GateDecision::WaitForRoom,
            _ => {}
        }
        if self.policy == Overload::BestEffort {
            self.waiting = self.waiting.saturating_add(1);
            return GateDecision::Queued { arrival: now };
        }
        // Mmax is above zero.
        let messages = length.0.div_ceil(self.mmax).max(1);
        let arrival = now.0.max(self.next);
        self.next = arrival.saturating_add(self.spacing.saturating_mul(messages));
        self.waiting = self.waiting.saturating_add(1);
        GateDecision::Queued {
            arrival: Instant(arrival),
        }
    }

    /// Reports that the last packet of a message has left the queue. Returns whether a sender that
    /// waits for room may offer its message again.
    pub fn handle_sent(&mut self) -> bool {
        self.waiting = self.waiting.saturating_sub(1);
        self.waiting < self.bmax
    }

    /// The earliest logical arrival of the next message; 0 before the first message.
    pub fn next_arrival(&self) -> Instant {
        Instant(self.next)
    }

    /// Number of messages that were queued and have not left.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Number of messages that [`Overload::Drop`] has dropped since the gate was made.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests;
