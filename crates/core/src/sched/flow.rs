//! What is kept of a flow: one cache line.

use super::calendar::Place;
use super::cell::Cell;
use super::channel::Channel;
use super::member::Member;
use super::share::Share;
use super::slice::Slice;

/// A flow, or a place for one.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Flow {
    /// Length of the head in bytes (24 bits), and flags.
    about: u32,
    /// Where the flow's entry among the sleepers stands, if it has one.
    pub(super) place: Place,
    pub(super) kind: Kind,
}

const _: () = assert!(size_of::<Flow>() == 64);

/// By what a flow is served.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Nobody is here.
    Vacant {
        /// The next vacant place, or the number of places.
        next: u32,
    },
    Share(Share),
    Cell(Cell),
    Slice {
        slice: Slice,
        /// Start tag in the left-over.
        tag: u64,
        weight: u16,
        extra: bool,
    },
    Channel(Channel),
    Member(Member),
    /// A slice for others.
    Server {
        slice: Slice,
        /// Which of the scheduler's servers.
        server: u16,
    },
}

/// Something that is true of a flow or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Flag {
    /// A packet is waiting.
    Waiting = 1 << 24,
    /// An entry of it stands among the sleepers, the due or the early.
    Clock = 1 << 25,
    /// An entry of it stands in the left-over.
    Fair = 1 << 26,
    /// The entry of `Clock` is older than what is now to be known: look at the flow again.
    ClockOld = 1 << 27,
    /// The entry of `Fair` is older than the start tag.
    FairOld = 1 << 28,
    /// The flow was removed; its place is free once no entry is left.
    Gone = 1 << 29,
    /// It has a limit among the scheduler's `limits`.
    Limited = 1 << 30,
    /// It goes the way of all others even if it is a cell, see [`LONG_WAY`].
    LongWay = 1 << 31,
}

impl Flow {
    pub(super) fn new(kind: Kind) -> Flow {
        Flow {
            about: 0,
            place: Place::default(),
            kind,
        }
    }

    #[inline(always)]
    pub(super) fn is(&self, flag: Flag) -> bool {
        self.about & flag as u32 != 0
    }

    /// Whether one thing is true of it and others are not.
    #[inline(always)]
    pub(super) fn is_just(&self, flag: Flag, not: [Flag; 3]) -> bool {
        let flag = flag as u32;
        let not = not.iter().fold(0, |not, flag| not | *flag as u32);
        self.about & (flag | not) == flag
    }

    #[inline(always)]
    pub(super) fn set(&mut self, flag: Flag) {
        self.about |= flag as u32;
    }

    #[inline(always)]
    pub(super) fn clear(&mut self, flag: Flag) {
        self.about &= !(flag as u32);
    }

    /// Length of the head.
    #[inline(always)]
    pub(super) fn length(&self) -> u32 {
        self.about & (MAX_LENGTH)
    }

    #[inline(always)]
    pub(super) fn set_length(&mut self, length: u32) {
        debug_assert!(length <= MAX_LENGTH);
        self.about = self.about & !MAX_LENGTH | length & MAX_LENGTH;
    }
}

/// The last one of so many flows goes the long way, for no other reason than that its code stays near. Where tens of thousands of
/// cells are between two packets of another kind, the first of these would wait for all of it. Tests have more.
pub(super) const LONG_WAY: u32 = if cfg!(test) { 8 } else { 256 };

/// What 24 bits hold; the arithmetic of `pace` relies on it.
pub(super) const MAX_LENGTH: u32 = (1 << 24) - 1;
