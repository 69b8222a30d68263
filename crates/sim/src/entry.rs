//! Admission of messages to a channel, and the sender before it: applies the channel's overload
//! policy to messages beyond the contract (paper RTC, section 3.1; [`netnice_core::sched::Gate`]).
//!
//! A sender that has to wait holds its messages back, in order, until the first of them is
//! admitted.

use std::collections::VecDeque;

use netnice_core::contract::Channel;
use netnice_core::sched::{GateDecision, MessageGate, Overload};
use netnice_core::units::{Bytes, Instant};

/// The gate of one channel, and the messages that the sender holds back.
#[derive(Debug)]
pub(crate) struct Entry {
    gate: MessageGate,
    outside: VecDeque<Bytes>,
}

/// The result for the first held-back message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Admitted, with this logical arrival.
    In { size: Bytes, arrival: u64 },
    /// Dropped; the sender is informed.
    Dropped,
    /// To be offered again at this time.
    Again(u64),
    /// There is no message, or the sender waits for room.
    Wait,
}

impl Entry {
    pub(crate) fn new(channel: &Channel, policy: Overload) -> Entry {
        Entry {
            gate: MessageGate::new(channel, policy),
            outside: VecDeque::new(),
        }
    }

    /// Adds a message of the sender. Returns whether it can be offered now, with no message before
    /// it.
    pub(crate) fn offer(&mut self, size: Bytes) -> bool {
        self.outside.push_back(size);
        self.outside.len() == 1
    }

    /// Offers the first held-back message to the gate.
    pub(crate) fn next(&mut self, now: u64) -> Fate {
        let Some(size) = self.outside.front().copied() else {
            return Fate::Wait;
        };
        let fate = match self.gate.handle_message(size, Instant(now)) {
            GateDecision::Queued { arrival } => {
                let arrival = arrival.0;
                Fate::In { size, arrival }
            }
            GateDecision::Dropped => Fate::Dropped,
            GateDecision::WaitUntil(at) => return Fate::Again(at.0),
            GateDecision::WaitForRoom => return Fate::Wait,
        };
        self.outside.pop_front();
        fate
    }

    /// A message has left the queue. Returns whether a sender that waits for room may offer again.
    pub(crate) fn handle_sent(&mut self) -> bool {
        self.gate.handle_sent() && !self.outside.is_empty()
    }

    /// Number of messages that the sender holds back.
    pub(crate) fn outside(&self) -> usize {
        self.outside.len()
    }

    /// The sender ends: drops the messages that it holds back.
    pub(crate) fn close(&mut self) {
        self.outside.clear();
    }
}
