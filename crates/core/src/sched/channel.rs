//! Shaping to a real-time channel (paper RTC, section 2.2): linear bounded arrivals.
//!
//! A message's *logical arrival* is when it arrived or 1/Rmax after the logical arrival of the
//! message before it, whichever is later; its deadline is the delay bound after that. So a burst
//! of Bmax messages may arrive at once, and yet no channel takes more of the link than Rmax
//! messages of Mmax in a second. All packets of a message share its times, also those that come
//! when the ones before them have left already: processing hands a message over in pieces.
//!
//! A message is at most Mmax long, whatever its owner says: the packet that would make it longer
//! begins the next one. So who never says that a message begins, or sends a long one, takes no more
//! than Rmax messages of Mmax either. A packet that alone is longer than Mmax counts as as many
//! messages as it fills.
//!
//! A piece that comes after the deadline of its message cannot be in time any more, and an old
//! deadline would let it pass those who still can be: it counts as a message of its own.

use crate::contract;

/// The state of a channel's flow. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    /// The delay bound.
    bound: u64,
    /// Logical arrival of the message whose packets are being sent.
    logical: u64,
    /// The earliest logical arrival of the next message.
    next: u64,
    /// Mmax in bytes.
    mmax: u64,
    /// Bytes of the message so far, its packet at the head included.
    used: u64,
    /// 1 / Rmax, rounded up: at most a second.
    spacing: u32,
    /// Whether there was any message yet.
    begun: bool,
}

impl Channel {
    /// A channel without messages yet.
    pub(super) fn new(contract: &contract::Channel) -> Channel {
        Channel {
            // Rmax is at least 1.
            spacing: spacing(contract) as u32,
            bound: contract.deadline().0,
            logical: 0,
            next: 0,
            mmax: contract.mmax().0,
            used: 0,
            begun: false,
        }
    }

    /// The same messages under another contract; spacing and bound count from the next message.
    pub(super) fn changed(&self, contract: &contract::Channel) -> Channel {
        Channel {
            logical: self.logical,
            next: self.next,
            used: self.used,
            begun: self.begun,
            ..Channel::new(contract)
        }
    }

    /// A packet of this length is the head now. It begins a message that arrived at `begins` (that
    /// may lie ahead, if the entry of the channel (`sched::gate`) found it too early), or goes on with
    /// the one before.
    #[inline(always)]
    pub(super) fn go_on(&mut self, begins: Option<u64>, length: u64) {
        let used = self.used.saturating_add(length);
        match begins {
            None if used <= self.mmax => self.used = used,
            _ => self.begin(begins.unwrap_or(0), length),
        }
    }

    /// A message that arrived at `arrived` begins with a packet of this length.
    #[inline(always)]
    fn begin(&mut self, arrived: u64, length: u64) {
        self.logical = arrived.max(self.next);
        if length > self.mmax {
            // The last of the messages that it fills.
            let more = (length - 1) / self.mmax.max(1);
            let more = u64::from(self.spacing).saturating_mul(more);
            self.logical = self.logical.saturating_add(more);
        }
        self.next = self.logical.saturating_add(self.spacing.into());
        self.used = length;
        self.begun = true;
    }

    /// A packet comes to the empty queue. It begins a message that arrived at `begins`, or goes on
    /// with the one before, if that can still be in time.
    #[inline(always)]
    pub(super) fn wake(&mut self, begins: Option<u64>, length: u64, now: u64) {
        let over = !self.begun || now > self.plan().1;
        self.go_on(begins.or(over.then_some(now)), length);
    }

    /// A packet comes at `at` and not before, of a message that begins with it or that goes on.
    pub(super) fn come(&mut self, begins: Option<u64>, length: u64, at: u64) {
        self.go_on(begins.or((!self.begun).then_some(at)), length);
        if at > self.plan().1 {
            self.logical = at;
            self.next = at.saturating_add(self.spacing.into());
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
