//! The entry of a channel: what happens to messages that its contract does not allow.
//!
//! A [`Gate`] stands between a sender and the message queue of a real-time channel (paper RTC,
//! section 3.1 and table 2). The queue holds Bmax messages: a burst that the contract allows
//! always fits. What exceeds that is dealt with as the channel's [`Overload`] policy says, and
//! the sender is always told:
//!
//! | policy | a message that finds Bmax waiting | a message before its logical arrival |
//! |---|---|---|
//! | `Block` | waits outside until one has left | is queued |
//! | `Decay` | is queued, and its deadline is as much later as its logical arrival is | is queued |
//! | `Space` | waits outside | waits outside until then, so the queue stays short |
//! | `Drop` | is dropped | is queued |
//!
//! None of them lets a channel have more of the link than it contracted, since that is bounded by
//! logical arrivals; they differ in who waits, and where. A message longer than Mmax counts as
//! so many messages of Mmax: the logical arrival of the next one is as many times 1/Rmax later. (Its own packets beyond the first
//! Mmax have later logical arrivals too: the scheduler counts the bytes of a message.)

use crate::contract;
use crate::units::{Bytes, Instant};

/// What is done about too many messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overload {
    /// The sender is blocked while the queue is full (the paper's "block handler").
    #[default]
    Block,
    /// Everything is taken; the deadlines of what is too much decay ("decay handler deadline").
    Decay,
    /// The minimum spacing 1/Rmax is enforced at the entry ("enforce Imin").
    Space,
    /// What overflows the queue is dropped ("drop overflow messages").
    Drop,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is queued.
    Queued {
        /// Its logical arrival, for [`super::Packet::first`].
        arrival: Instant,
    },
    /// Not now: offer it again at this time.
    WaitUntil(Instant),
    /// Not now: offer it again when [`Gate::handle_sent`] has been called.
    WaitForRoom,
    /// It is dropped.
    Dropped,
}

/// The entry of one channel.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    mmax: u64,
    spacing: u64,
    bmax: u32,
    policy: Overload,
    /// Messages that were queued and have not left.
    waiting: u32,
    /// The earliest logical arrival of the next message.
    next: u64,
    dropped: u64,
}

impl Gate {
    /// The entry of a channel with nothing in its queue.
    pub fn new(channel: &contract::Channel, policy: Overload) -> Gate {
        Gate {
            mmax: channel.mmax().0,
            spacing: super::channel::spacing(channel),
            bmax: channel.bmax(),
            policy,
            waiting: 0,
            next: 0,
            dropped: 0,
        }
    }

    /// A message of this length arrives.
    pub fn handle_message(&mut self, length: Bytes, now: Instant) -> Verdict {
        let full = self.waiting >= self.bmax;
        match self.policy {
            Overload::Block if full => return Verdict::WaitForRoom,
            Overload::Drop if full => {
                self.dropped += 1;
                return Verdict::Dropped;
            }
            Overload::Space if now.0 < self.next => {
                return Verdict::WaitUntil(Instant(self.next));
            }
            Overload::Space if full => return Verdict::WaitForRoom,
            _ => {}
        }
        // Mmax is above zero.
        let messages = length.0.div_ceil(self.mmax).max(1);
        let arrival = now.0.max(self.next);
        self.next = arrival.saturating_add(self.spacing.saturating_mul(messages));
        self.waiting = self.waiting.saturating_add(1);
        Verdict::Queued {
            arrival: Instant(arrival),
        }
    }

    /// The last packet of a message has left the queue. Says whether a sender that was told to
    /// wait for room may try again.
    pub fn handle_sent(&mut self) -> bool {
        self.waiting = self.waiting.saturating_sub(1);
        self.waiting < self.bmax
    }

    /// Messages in the queue.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Messages that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests;
