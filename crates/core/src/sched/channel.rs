//! Shaping to a real-time channel (paper RTC, section 2.2): linear bounded arrivals.
//!
//! A message's *logical arrival* is when it arrived or 1/Rmax after the logical arrival of the
//! message before it, whichever is later; its deadline is the delay bound after that. So a burst
//! of Bmax messages may arrive at once, and yet no channel takes more of the link than Rmax
//! messages of Mmax in a second. All packets of a message share its times, also those that come
//! when the ones before them have left already: processing hands a message over in pieces.
//!
//! A piece that comes after the deadline of its message cannot be in time any more, and an old
//! deadline would let it pass those who still can be: it counts as a message of its own.

use crate::contract;

/// The state of a channel's flow. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    /// 1 / Rmax, rounded up.
    spacing: u64,
    /// The delay bound.
    bound: u64,
    /// Logical arrival of the message whose packets are being sent.
    logical: u64,
    /// The earliest logical arrival of the next message.
    next: u64,
    /// Whether there was any message yet.
    begun: bool,
}

impl Channel {
    /// A channel without messages yet.
    pub(super) fn new(contract: &contract::Channel) -> Channel {
        Channel {
            spacing: spacing(contract),
            bound: contract.deadline().0,
            logical: 0,
            next: 0,
            begun: false,
        }
    }

    /// The same messages under another contract; spacing and bound count from the next message.
    pub(super) fn changed(&self, contract: &contract::Channel) -> Channel {
        Channel {
            logical: self.logical,
            next: self.next,
            begun: self.begun,
            ..Channel::new(contract)
        }
    }

    /// The next packet begins a message that arrived at `arrived`. That may lie ahead, if the
    /// entry of the channel (`sched::gate`) found it too early.
    #[inline(always)]
    pub(super) fn begin_message(&mut self, arrived: u64) {
        self.logical = arrived.max(self.next);
        self.next = self.logical.saturating_add(self.spacing);
        self.begun = true;
    }

    /// A packet comes to the empty queue. It begins a message that arrived at `begins`, or goes on
    /// with the one before, if that can still be in time.
    #[inline(always)]
    pub(super) fn wake(&mut self, begins: Option<u64>, now: u64) {
        let over = !self.begun || now > self.plan().1;
        if let Some(arrived) = begins.or(over.then_some(now)) {
            self.begin_message(arrived);
        }
    }

    /// A packet comes at `at` and not before, of a message that begins with it or that goes on.
    pub(super) fn come(&mut self, begins: Option<u64>, at: u64) {
        if let Some(arrived) = begins {
            self.begin_message(arrived);
        }
        if !self.begun || at > self.plan().1 {
            self.logical = at;
            self.next = at.saturating_add(self.spacing);
            self.begun = true;
        }
    }

    /// The logical arrival and the deadline of the message.
    #[inline(always)]
    pub(super) fn plan(&self) -> (u64, u64) {
        (self.logical, self.logical.saturating_add(self.bound))
    }
}

/// 1 / Rmax in ns, rounded up.
pub(super) fn spacing(contract: &contract::Channel) -> u64 {
    1_000_000_000_u64.div_ceil(u64::from(contract.rmax().get()))
}
