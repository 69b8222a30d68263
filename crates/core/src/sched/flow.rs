//! The state of one flow of a scheduler, in one cache line (64 bytes): its contract with the
//! contract's use so far ([`ServiceState`]), the length of its head (the first packet of its
//! queue), and the calendars in which it has an entry ([`Flag`]). The module only stores this
//! state: [`super::Scheduler`] changes it, and no function of the module fails.

use super::calendar::EntryPosition;
use super::cell::CellState;
use super::channel::ChannelState;
use super::member::MemberState;
use super::share::ShareState;
use super::slice::SliceState;

/// A flow, or a vacant entry for one.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct FlowState {
    /// Length of the head in bytes (24 bits), and flags.
    length_and_flags: u32,
    /// The position of the flow's entry among the sleepers, if it has one.
    pub(super) position: EntryPosition,
    pub(super) service: ServiceState,
}

const _: () = assert!(size_of::<FlowState>() == 64);

/// The service of a flow, with its state.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServiceState {
    /// The entry is vacant.
    Vacant {
        /// The next vacant entry, or the number of entries.
        next: u32,
    },
    Share(ShareState),
    Cell(CellState),
    Slice {
        slice: SliceState,
        /// Start tag in the left-over.
        tag: u64,
        weight: u16,
        extra: bool,
    },
    Channel(ChannelState),
    Member(MemberState),
    /// An overbooked server: a slice that its members share.
    Server {
        slice: SliceState,
        /// Start tag in the left-over, if the server is best effort.
        tag: u64,
        /// The server has no slice at present: its members share the left-over.
        best_effort: bool,
        /// Index into the scheduler's servers.
        server: u16,
    },
}

/// A property that a flow has or has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Flag {
    /// The flow has a head.
    HasHead = 1 << 24,
    /// The flow has an entry among the sleepers, the due or the early.
    Timed = 1 << 25,
    /// The flow has an entry in the left-over, or as a member in its class of a server.
    InFair = 1 << 26,
    /// The entry of `Timed` is outdated. When it is taken, the flow is queued again.
    TimedStale = 1 << 27,
    /// The entry of `InFair` has an outdated start tag.
    FairStale = 1 << 28,
    /// The flow was removed. Its index is free once no entry is left.
    Removed = 1 << 29,
    /// The flow has a limit among the scheduler's `limits`. (A share has its limit in its state.)
    Limited = 1 << 30,
    /// The flow takes the general path even if it is a cell, see [`GENERAL_PATH_INTERVAL`].
    GeneralPath = 1 << 31,
}

impl FlowState {
    /// A flow without a head and without entries.
    pub(super) fn new(service: ServiceState) -> FlowState {
        FlowState {
            length_and_flags: 0,
            position: EntryPosition::default(),
            service,
        }
    }

    /// Whether the flow has the property `flag`.
    #[inline(always)]
    pub(super) fn is(&self, flag: Flag) -> bool {
        self.length_and_flags & flag as u32 != 0
    }

    /// Whether the flow has the property `flag` and none of `not`.
    #[inline(always)]
    pub(super) fn is_just(&self, flag: Flag, not: [Flag; 3]) -> bool {
        let flag = flag as u32;
        let not = not.iter().fold(0, |not, flag| not | *flag as u32);
        self.length_and_flags & (flag | not) == flag
    }

    /// Gives the flow the property `flag`.
    #[inline(always)]
    pub(super) fn set(&mut self, flag: Flag) {
        self.length_and_flags |= flag as u32;
    }

    /// Takes the property `flag` from the flow.
    #[inline(always)]
    pub(super) fn clear(&mut self, flag: Flag) {
        self.length_and_flags &= !(flag as u32);
    }

    /// Length of the head.
    #[inline(always)]
    pub(super) fn length(&self) -> u32 {
        self.length_and_flags & (MAX_LENGTH)
    }

    /// Sets the length of the head in bytes.
    #[inline(always)]
    pub(super) fn set_length(&mut self, length: u32) {
        debug_assert!(length <= MAX_LENGTH);
        self.length_and_flags = self.length_and_flags & !MAX_LENGTH | length & MAX_LENGTH;
    }
}

/// One in this number of flows takes the general path even if it is a cell, only to keep the code
/// of that path in the cache. If tens of thousands of cells come between two packets of other
/// kinds, the first such packet would otherwise wait for all of that code. Tests use a smaller
/// number.
pub(super) const GENERAL_PATH_INTERVAL: u32 = if cfg!(test) { 8 } else { 256 };

/// The largest value of 24 bits. The arithmetic of `pace` depends on it.
pub(super) const MAX_LENGTH: u32 = (1 << 24) - 1;

/// The start tag in the left-over ([`super::fair`]).
impl FlowState {
    /// Advances the start tag by a packet and returns it.
    #[inline(always)]
    pub(super) fn advance_tag(&mut self, length: u32) -> Option<u64> {
        let weight = u64::from(self.weight());
        let tag = self.tag()?;
        *tag = tag.wrapping_add((u64::from(length) << TAG_DIGITS) / weight);
        Some(*tag)
    }

    #[inline(always)]
    pub(super) fn tag(&mut self) -> Option<&mut u64> {
        match &mut self.service {
            ServiceState::Share(share) => Some(&mut share.tag),
            ServiceState::Slice { tag, .. } | ServiceState::Server { tag, .. } => Some(tag),
            ServiceState::Channel(channel) => Some(&mut channel.tag),
            _ => None,
        }
    }

    #[inline(always)]
    fn weight(&self) -> u16 {
        match &self.service {
            ServiceState::Share(share) => share.weight.max(1),
            ServiceState::Slice { weight, .. } => (*weight).max(1),
            ServiceState::Channel(_) | ServiceState::Server { .. } => DEFAULT_WEIGHT,
            _ => 1,
        }
    }
}

/// The weight in the left-over of a channel with the policy `BestEffort`, and of a server without a
/// slice: the default weight of a flow.
const DEFAULT_WEIGHT: u16 = 100;

/// Binary digits of a start tag for each byte at weight 1.
const TAG_DIGITS: u32 = 26;
