//! What is counted of received frames.

use crate::frame::Malformed;

/// All frames that were looked at: `received` is the sum of all the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were looked at.
    pub received: u64,
    /// Given to one flow.
    pub delivered: u64,
    /// Given to the flows of a group, however many these were.
    pub copied: u64,
    /// No flow's.
    pub unclaimed: u64,
    /// Kept at present: parts whose datagram's first part has not come, or that wait to be
    /// asked for.
    pub held: u64,
    /// Discarded, by reason: the place is that of [`Discard::ALL`].
    pub discarded: [u64; Discard::ALL.len()],
}

/// What one flow got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    /// Frames that were this flow's.
    pub received: u64,
    /// Parts that it did not get, since one before them was missing.
    pub out_of_order: u64,
}

/// Why a frame goes to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Discard {
    /// It fits a discard pattern.
    Pattern,
    /// It ends inside its headers.
    Short,
    /// Its version of IP contradicts its EtherType.
    Version,
    /// Its lengths contradict each other.
    Length,
    /// The checksum of its IPv4 header is wrong.
    Checksum,
    /// It is an impossible part.
    Fragment,
    /// Its source is a group.
    Source,
    /// It has no whole UDP or TCP header, or UDP's length is not the packet's. A first part that
    /// is too short to say its ports is counted here.
    Transport,
    /// A part, and the flow wants none after a gap.
    OutOfOrder,
    /// A first part that names another flow than the one before it.
    Conflict,
    /// A part that was kept until its time was over or the room was needed, or one of more parts
    /// than a datagram can have.
    Forgotten,
}

impl Discard {
    /// All reasons, in the order of their counters.
    pub const ALL: [Discard; 11] = [
        Discard::Pattern,
        Discard::Short,
        Discard::Version,
        Discard::Length,
        Discard::Checksum,
        Discard::Fragment,
        Discard::Source,
        Discard::Transport,
        Discard::OutOfOrder,
        Discard::Conflict,
        Discard::Forgotten,
    ];

    /// Its name, for people and machines.
    pub fn name(self) -> &'static str {
        match self {
            Discard::Pattern => "pattern",
            Discard::Short => "short",
            Discard::Version => "version",
            Discard::Length => "length",
            Discard::Checksum => "checksum",
            Discard::Fragment => "fragment",
            Discard::Source => "source",
            Discard::Transport => "transport",
            Discard::OutOfOrder => "out-of-order",
            Discard::Conflict => "conflict",
            Discard::Forgotten => "forgotten",
        }
    }
}

impl From<Malformed> for Discard {
    fn from(malformed: Malformed) -> Discard {
        match malformed {
            Malformed::Short => Discard::Short,
            Malformed::Version => Discard::Version,
            Malformed::Length => Discard::Length,
            Malformed::Checksum => Discard::Checksum,
            Malformed::Fragment => Discard::Fragment,
        }
    }
}
