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
//! number of messages that it fills. (An Mmax above 4 GiB - 1 byte counts as this.)
//!
//! **Late packets.** A packet that arrives at the empty queue, and the message that it begins or
//! continues, is due no earlier than the arrival of the packet, less the contract's *processing*,
//! plus the delay bound. If the reported arrival of the message, or the logical arrival of the
//! message that the packet continues, is earlier, then it counts as this time, and the next message
//! follows 1/Rmax later. So whatever an owner reports, and however late the pieces of a message
//! come, the link has at least the delay bound less the processing for each packet, and logical
//! arrivals stay 1/Rmax apart: what admission counts (docs/reference/contracts.md, theorem 2). A
//! packet behind other packets has the arrival that the owner reports: the flow was backlogged.
//!
//! **Stops of the scheduler's owner.** The owner cannot read its queues all the time: it works, or
//! the machine stops it. A packet that the owner finds now can have arrived at any time since it
//! could read last. In the rule above, the packet counts as arrived then ([`Reading`]). Otherwise a
//! stop that is longer than the processing would move the logical arrival of the message that it
//! hits. A sender of exactly Rmax messages per second would never catch up, since its next logical
//! arrival is 1/Rmax later: every later message would be due that much too late.
//!
//! This is sound, because the owner chooses no packet between the two readings. The schedule is
//! that of a packet which did arrive at the first one. The time between them is a stop of the
//! sender (theorem 4), except for the part in which the link sends what was chosen before (the
//! work-ahead, which admission counts). A sender that states an earlier arrival gains nothing over
//! one that submitted the packet at the first reading. After a stop, the messages of a sender that
//! were due in it are due at once. So that a pause of minutes does not give a channel the link for
//! as long, an arrival counts as at most [`LONGEST_STOP`] and the processing before now.
//!
//! **Best effort.** With this overload policy, packets before their logical arrival are in the
//! left-over too. A packet that leaves as left-over is not counted in its message, and a message
//! none of whose packets was guaranteed leaves its logical arrival to the next one.

use crate::contract::{self, Overload};

/// A reading of a queue by the scheduler's owner. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// The time of the reading.
    now: u64,
    /// The earliest time at which a packet that the owner finds now can have arrived, because the
    /// owner could not look at the queue after that time. Not later than `now`.
    unread_since: u64,
}

impl Reading {
    /// A reading at `now` by an owner that could not look after `unread_since`. A later time than
    /// `now` counts as `now`, and one more than [`LONGEST_STOP`] ago as that.
    #[inline(always)]
    pub(super) fn new(now: u64, unread_since: u64) -> Reading {
        Reading {
            now,
            unread_since: unread_since.clamp(now.saturating_sub(LONGEST_STOP), now),
        }
    }

    /// The time of the reading.
    #[inline(always)]
    pub(super) fn now(&self) -> u64 {
        self.now
    }
}

/// The state of a channel's flow. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelState {
    /// The delay bound.
    bound: u64,
    /// Logical arrival of the current message.
    logical: u64,
    /// The earliest logical arrival of the next message.
    next: u64,
    /// Start tag in the left-over, for the policy `BestEffort`.
    pub(super) tag: u64,
    /// Mmax in bytes.
    mmax: u32,
    /// Bytes of the current message so far, including its packet at the head, without those that
    /// left as left-over.
    used: u32,
    /// The part of the delay bound for processing.
    processing: u32,
    /// 1 / Rmax in ns, rounded up: at most 10^9. The two highest bits are [`BEGUN`] and
    /// [`BEST_EFFORT`].
    spacing_and_flags: u32,
}

/// How much of a stop counts, in ns. Longer stops are those of a virtual machine that is moved or
/// of a suspended host. After a stop, at most the messages of this time are due at once. If the
/// part u of the link is promised to channels, the link needs u / (1 - u) times this to catch up.
const LONGEST_STOP: u64 = 1_000_000_000;
/// The channel has had a message.
const BEGUN: u32 = 1 << 30;
/// The overload policy is `BestEffort`.
const BEST_EFFORT: u32 = 1 << 31;

impl ChannelState {
    /// A channel without messages.
    pub(super) fn new(contract: &contract::Channel) -> ChannelState {
        let best_effort = match contract.overload() {
            Overload::BestEffort => BEST_EFFORT,
            _ => 0,
        };
        ChannelState {
            bound: contract.deadline().0,
            logical: 0,
            next: 0,
            tag: 0,
            mmax: saturated(contract.mmax().0),
            used: 0,
            // At most 4 s.
            processing: saturated(contract.processing().0),
            // Rmax is at least 1, so the spacing is below 2^30.
            spacing_and_flags: spacing(contract) as u32 | best_effort,
        }
    }

    /// The same messages under another contract. The new delay bound counts for the current message
    /// too. The logical arrival of the next message is still by the old spacing.
    pub(super) fn changed(&self, contract: &contract::Channel) -> ChannelState {
        let new = ChannelState::new(contract);
        ChannelState {
            logical: self.logical,
            next: self.next,
            tag: self.tag,
            used: self.used,
            spacing_and_flags: new.spacing_and_flags | self.spacing_and_flags & BEGUN,
            ..new
        }
    }

    /// A packet of this length becomes the head, behind other packets. It begins a message that
    /// arrived at `begins`, or continues the current one. `begins` may lie ahead, if the gate of
    /// the channel (`sched::message_gate`) moved it.
    #[inline(always)]
    pub(super) fn continue_or_begin(&mut self, begins: Option<u64>, length: u64) {
        self.arrive(begins, length, 0);
    }

    /// A packet is found at the head of a queue that was empty. It begins a message that arrived at
    /// `begins`, or continues the current one.
    #[inline(always)]
    pub(super) fn wake(&mut self, begins: Option<u64>, length: u64, reading: Reading) {
        let begins = begins.or((!self.has(BEGUN)).then_some(reading.now));
        self.arrive(begins, length, self.earliest(reading));
    }

    /// As [`ChannelState::wake`], or as [`ChannelState::continue_or_begin`] if the queue was not
    /// empty, for a packet that a limit permits only from `at` on. If `at` is after the message's
    /// deadline, the message counts as arrived then.
    pub(super) fn arrive_at(
        &mut self,
        begins: Option<u64>,
        length: u64,
        (reading, at): (Reading, u64),
        was_empty: bool,
    ) {
        let begins = begins.or((!self.has(BEGUN)).then_some(at));
        let earliest = if was_empty { self.earliest(reading) } else { 0 };
        self.arrive(begins, length, earliest);
        if at > self.plan().1 {
            self.logical = at;
            self.next = at.saturating_add(self.spacing());
        }
    }

    /// The earliest logical arrival of what is found at the head of a queue that was empty.
    #[inline(always)]
    fn earliest(&self, reading: Reading) -> u64 {
        reading.unread_since.saturating_sub(self.processing.into())
    }

    /// A packet becomes the head, and its message cannot have arrived before `earliest`.
    #[inline(always)]
    fn arrive(&mut self, begins: Option<u64>, length: u64, earliest: u64) {
        let used = u64::from(self.used).saturating_add(length);
        if begins.is_some() || used > self.mmax.into() {
            return self.begin(begins.unwrap_or(0).max(earliest), length);
        }
        self.used = used as u32;
        if self.logical < earliest {
            self.logical = earliest;
            self.next = self.next.max(earliest.saturating_add(self.spacing()));
        }
    }

    /// A message that arrived at `arrived` begins with a packet of this length.
    #[inline(always)]
    fn begin(&mut self, arrived: u64, length: u64) {
        // The logical arrival of a message none of whose packets was guaranteed is free.
        let is_free = self.has(BEST_EFFORT) && self.has(BEGUN) && self.used == 0;
        self.logical = arrived.max(if is_free { self.logical } else { self.next });
        if length > self.mmax.into() {
            // The logical arrival of the last message that the packet fills.
            let more = (length - 1) / u64::from(self.mmax).max(1);
            let more = self.spacing().saturating_mul(more);
            self.logical = self.logical.saturating_add(more);
        }
        self.next = self.logical.saturating_add(self.spacing());
        self.used = saturated(length);
        self.spacing_and_flags |= BEGUN;
    }

    /// The head left as left-over: it is not counted in its message.
    pub(super) fn sent_as_left_over(&mut self, length: u32) {
        self.used = self.used.saturating_sub(length);
    }

    /// Whether the head may be sent as best effort: it is before its logical arrival.
    #[inline(always)]
    pub(super) fn is_best_effort(&self, now: u64) -> bool {
        self.has(BEST_EFFORT) && self.logical > now
    }

    /// The logical arrival and the deadline of the current message.
    #[inline(always)]
    pub(super) fn plan(&self) -> (u64, u64) {
        (self.logical, self.logical.saturating_add(self.bound))
    }

    #[inline(always)]
    fn spacing(&self) -> u64 {
        u64::from(self.spacing_and_flags & !(BEGUN | BEST_EFFORT))
    }

    #[inline(always)]
    fn has(&self, flag: u32) -> bool {
        self.spacing_and_flags & flag != 0
    }
}

/// The number, or the largest one of 32 bits.
fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// 1 / Rmax in ns, rounded up.
pub(super) fn spacing(contract: &contract::Channel) -> u64 {
    1_000_000_000_u64.div_ceil(u64::from(contract.rmax().get()))
}
