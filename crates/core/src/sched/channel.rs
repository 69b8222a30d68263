//! Shaping to a real-time channel (paper RTC, section 2.2). The contract has Mmax (bytes of the
//! longest message), Rmax (messages per second in the long run), Bmax (messages at once) and a
//! delay bound. The length of the packet at the head of the queue comes in and, if that packet
//! begins a message, the message's arrival time. The logical arrival and the deadline of the head's
//! message go out. No function of this module fails.
//!
//! A message's *logical arrival* is its arrival, or 1/Rmax after the logical arrival of the message
//! before it, whichever is later. Its deadline is its logical arrival plus the delay bound. So a
//! burst of messages may arrive at once, and yet in the long run no channel takes more of the link
//! than Rmax messages of Mmax in a second. (Bmax needs buffers and no rule here.) All packets of a
//! message share its times, even if they arrive after its earlier packets have left: a message may
//! come in pieces from processing.
//!
//! A message is at most Mmax long. A packet that would make it longer begins the next message. So
//! an owner that reports no beginnings of messages, or sends messages that are too long, also gets
//! no more than Rmax messages of Mmax. A single packet that is longer than Mmax counts as the
//! number of messages that it fills.
//!
//! A packet that arrives at the empty queue after the deadline of its message begins a message of
//! its own. It can no longer be in time, and with the old deadline it would go before packets that
//! can still be in time.

use crate::contract;

/// The state of a channel's flow. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelState {
    /// The delay bound.
    bound: u64,
    /// Logical arrival of the current message.
    logical: u64,
    /// The earliest logical arrival of the next message.
    next: u64,
    /// Mmax in bytes.
    mmax: u64,
    /// Bytes of the current message so far, including its packet at the head.
    used: u64,
    /// 1 / Rmax in ns, rounded up: at most 10^9.
    spacing: u32,
    /// Whether the channel has had a message.
    begun: bool,
}

impl ChannelState {
    /// A channel without messages.
    pub(super) fn new(contract: &contract::Channel) -> ChannelState {
        ChannelState {
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

    /// The same messages under another contract. The new delay bound counts for the current message
    /// too. The logical arrival of the next message is still by the old spacing.
    pub(super) fn changed(&self, contract: &contract::Channel) -> ChannelState {
        ChannelState {
            logical: self.logical,
            next: self.next,
            used: self.used,
            begun: self.begun,
            ..ChannelState::new(contract)
        }
    }

    /// A packet of this length becomes the head. It begins a message that arrived at `begins`, or
    /// continues the current one. `begins` may lie ahead, if the gate of the channel
    /// (`sched::message_gate`) moved it.
    #[inline(always)]
    pub(super) fn continue_or_begin(&mut self, begins: Option<u64>, length: u64) {
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
            // The logical arrival of the last message that the packet fills.
            let more = (length - 1) / self.mmax.max(1);
            let more = u64::from(self.spacing).saturating_mul(more);
            self.logical = self.logical.saturating_add(more);
        }
        self.next = self.logical.saturating_add(self.spacing.into());
        self.used = length;
        self.begun = true;
    }

    /// A packet arrives at the empty queue. It begins a message that arrived at `begins`, or
    /// continues the current one if that one's deadline is not over.
    #[inline(always)]
    pub(super) fn wake(&mut self, begins: Option<u64>, length: u64, now: u64) {
        let over = !self.begun || now > self.plan().1;
        self.continue_or_begin(begins.or(over.then_some(now)), length);
    }

    /// A packet that begins or continues a message becomes the head, and a limit permits it only
    /// from `at` on. If `at` is after the message's deadline, the message counts as arrived then.
    pub(super) fn arrive_at(&mut self, begins: Option<u64>, length: u64, at: u64) {
        self.continue_or_begin(begins.or((!self.begun).then_some(at)), length);
        if at > self.plan().1 {
            self.logical = at;
            self.next = at.saturating_add(self.spacing.into());
        }
    }

    /// The logical arrival and the deadline of the current message.
    #[inline(always)]
    pub(super) fn plan(&self) -> (u64, u64) {
        (self.logical, self.logical.saturating_add(self.bound))
    }
}

/// 1 / Rmax in ns, rounded up.
pub(super) fn spacing(contract: &contract::Channel) -> u64 {
    1_000_000_000_u64.div_ceil(u64::from(contract.rmax().get()))
}
