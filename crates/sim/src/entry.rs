//! The entry of a channel, and the sender before it: what the channel's overload policy does to
//! messages that its contract does not allow (paper RTC, section 3.1; [`netnice_core::sched::Gate`]).
//!
//! A sender that is told to wait does so: its messages stay outside, in their order, until the
//! first of them may go in.

use std::collections::VecDeque;

use netnice_core::contract::Channel;
use netnice_core::sched::{Gate, Overload, Verdict};
use netnice_core::units::{Bytes, Instant};

/// The gate of one channel, and what waits outside.
#[derive(Debug)]
pub(crate) struct Entry {
    gate: Gate,
    outside: VecDeque<Bytes>,
}

/// What happens to the first message outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes in, with this logical arrival.
    In { size: Bytes, arrival: u64 },
    /// It is dropped, and the sender is told.
    Dropped,
    /// The sender is told to offer it again at this time.
    Again(u64),
    /// There is none, or the sender is told to wait for room.
    Wait,
}

impl Entry {
    pub(crate) fn new(channel: &Channel, policy: Overload) -> Entry {
        Entry {
            gate: Gate::new(channel, policy),
            outside: VecDeque::new(),
        }
    }

    /// The sender has a message. Says whether it can be offered now, and does not have to wait for
    /// those before it.
    pub(crate) fn offer(&mut self, size: Bytes) -> bool {
        self.outside.push_back(size);
        self.outside.len() == 1
    }

    /// The first message outside is offered to the gate.
    pub(crate) fn next(&mut self, now: u64) -> Fate {
        let Some(size) = self.outside.front().copied() else {
            return Fate::Wait;
        };
        let fate = match self.gate.handle_message(size, Instant(now)) {
            Verdict::Queued { arrival } => {
                let arrival = arrival.0;
                Fate::In { size, arrival }
            }
            Verdict::Dropped => Fate::Dropped,
            Verdict::WaitUntil(at) => return Fate::Again(at.0),
            Verdict::WaitForRoom => return Fate::Wait,
        };
        self.outside.pop_front();
        fate
    }

    /// A message has left the queue. Says whether a sender that waits for room may offer again.
    pub(crate) fn handle_sent(&mut self) -> bool {
        self.gate.handle_sent() && !self.outside.is_empty()
    }

    /// Messages that the sender holds back.
    pub(crate) fn outside(&self) -> usize {
        self.outside.len()
    }

    /// The sender ends: what it holds back is forgotten.
    pub(crate) fn close(&mut self) {
        self.outside.clear();
    }
}
