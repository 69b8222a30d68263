//! Counters of classified frames, over all flows and for each flow, and the reasons why the
//! demultiplexer discards a frame ([`Discard`]). No function fails.

use crate::frame::Malformed;

/// Counters over all classified frames. `received` is the sum of all the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemuxCounters {
    /// Classified frames.
    pub received: u64,
    /// Frames for one flow.
    pub delivered: u64,
    /// Frames for the flows of a group, counted once however many flows these are.
    pub copied: u64,
    /// Frames of no flow.
    pub unclaimed: u64,
    /// Fragments kept at present: their datagram's first fragment has not arrived, or they wait for
    /// `Demux::poll_released`.
    pub held: u64,
    /// Discarded frames by reason, in the order of [`Discard::ALL`].
    pub discarded: [u64; Discard::ALL.len()],
}

/// Counters of one flow's classified frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DemuxFlowCounters {
    /// Frames for this flow.
    pub(crate) received: u64,
    /// Fragments that the flow did not get because one before them was missing.
    pub(crate) out_of_order: u64,
}

/// Why a frame is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Discard {
    /// The frame matches a discard pattern.
    Pattern,
    /// The frame or its IP packet ends inside the headers.
    Short,
    /// The IP version contradicts the EtherType.
    Version,
    /// The lengths of the IP packet contradict each other or the frame's length.
    Length,
    /// The checksum of the IPv4 header is wrong.
    Checksum,
    /// The fragment is empty, is not the last and no multiple of eight bytes long, or ends beyond
    /// byte 65,535 of its datagram.
    Fragment,
    /// The source address is a group's or IPv4's broadcast address.
    Source,
    /// The UDP or TCP header is incomplete, or UDP's length is less than its header or more than
    /// the packet. This includes a first fragment that is too short for the header. (The length of
    /// UDP is not compared with a first fragment.)
    Transport,
    /// A fragment behind a missing one, for a flow that takes fragments in order only.
    OutOfOrder,
    /// A first fragment that belongs to another flow, or to none, although an earlier first
    /// fragment of its datagram belongs to a flow.
    Conflict,
    /// A fragment that was kept until its time was over or its memory was needed, or a fragment
    /// beyond the 128 that can be kept of one datagram.
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

    /// The reason's name in the reply to a `census` request.
    pub(crate) fn name(self) -> &'static str {
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
