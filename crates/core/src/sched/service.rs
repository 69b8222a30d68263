//! The words between a scheduler and its owner.

use core::fmt;

use super::flow::MAX_LENGTH;
use super::server::MAX_CLASSES;
use crate::contract::{self, Contract, Direction, Weight};
use crate::units::{Bytes, Instant, Nanos, Rate};

/// The link that is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// What it carries.
    pub rate: Rate,
    /// Bytes that the wire adds to each packet beyond what lengths count; charged to the flow.
    pub overhead: Bytes,
    /// How long the link may be busy already when the next packet is decided on: the driver's
    /// batch. Zero decides when the link is free.
    pub ahead: Nanos,
    /// How long before its logical arrival a channel's packet may be sent if nothing else is to
    /// be (RTC's horizon). Zero never sends early.
    pub horizon: Nanos,
    /// The longest packet, without `overhead`.
    pub longest: Bytes,
}

impl Wire {
    /// A link of this rate, Ethernet's 1514 bytes at most, nothing added, nothing early.
    pub fn new(rate: Rate) -> Wire {
        Wire {
            rate,
            overhead: Bytes(0),
            ahead: Nanos(0),
            horizon: Nanos(0),
            longest: Bytes(1514),
        }
    }
}

/// By what a flow is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Left-over by weight; with a guaranteed rate below it, and a limit above it.
    Share {
        /// The guaranteed rate.
        min: Option<Rate>,
        /// The limit, and how much of it may pass at once after silence, as time at its rate.
        max: Option<(Rate, Nanos)>,
        /// The share of the left-over.
        weight: Weight,
    },
    /// Transmit time in every period; with its `extra`, left-over by weight beside it.
    Slice {
        /// Slice, period and extra.
        slice: contract::Slice,
        /// The share of the left-over.
        weight: Weight,
    },
    /// Shaped so that a policer stays silent.
    Cell(contract::Cell),
    /// A deadline for every message.
    Channel(contract::Channel),
    /// One of the last three, and no more than a limit lets through: what is promised counts from
    /// when the limit lets a packet go.
    Limited {
        /// What is promised.
        guarantee: Guarantee,
        /// The limit, and how much of it may pass at once after silence, as time at its rate.
        max: (Rate, Nanos),
    },
}

/// What a limit can be put on. (A [`Service::Share`] has its own; a member of a server is limited
/// by its peak rate.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// As [`Service::Slice`].
    Slice {
        /// Slice, period and extra.
        slice: contract::Slice,
        /// The share of the left-over.
        weight: Weight,
    },
    /// As [`Service::Cell`].
    Cell(contract::Cell),
    /// As [`Service::Channel`].
    Channel(contract::Channel),
}

impl From<Guarantee> for Service {
    fn from(guarantee: Guarantee) -> Service {
        match guarantee {
            Guarantee::Slice { slice, weight } => Service::Slice { slice, weight },
            Guarantee::Cell(cell) => Service::Cell(cell),
            Guarantee::Channel(channel) => Service::Channel(channel),
        }
    }
}

impl Service {
    /// Best effort of this weight.
    pub fn best_effort(weight: Weight) -> Service {
        Service::Share {
            min: None,
            max: None,
            weight,
        }
    }

    /// What a contract asks for its sending direction; receiving and CPU are not scheduled here.
    pub fn of(contract: &Contract) -> Result<Service, NotServed> {
        if contract.priority().is_some() {
            return Err(NotServed::Priority);
        }
        let weight = contract.weight().unwrap_or_default();
        let burst = contract.burst().unwrap_or(Contract::DEFAULT_BURST);
        let max = contract.up().or(contract.both()).map(|rate| (rate, burst));
        let min = contract.min(Direction::Up);
        let slice = contract
            .slice()
            .map(|slice| Guarantee::Slice { slice, weight });
        let cell = contract.cell().map(Guarantee::Cell);
        let channel = contract.channel().map(Guarantee::Channel);
        let mut asked = [slice, cell, channel].into_iter().flatten();
        match (asked.next(), asked.next(), min, max) {
            (None, ..) => Ok(Service::Share { min, max, weight }),
            (Some(guarantee), None, None, None) => Ok(guarantee.into()),
            (Some(guarantee), None, None, Some(max)) => Ok(Service::Limited { guarantee, max }),
            _ => Err(NotServed::Several),
        }
    }

    /// What is promised, and the limit that stands before it.
    pub(super) fn parts(self) -> (Service, Option<(Rate, Nanos)>) {
        match self {
            Service::Limited { guarantee, max } => (guarantee.into(), Some(max)),
            other => (other, None),
        }
    }
}

/// A contract that says more than one flow of a scheduler is served by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotServed {
    /// Two clauses say how.
    #[error("a flow is served by one of slice, cell, channel and min: make one flow for each")]
    Several,
    /// Priority is a class of a server, see [`super::Scheduler::insert_server`].
    #[error("a flow has no priority of its own: that is a class of an overbooked server")]
    Priority,
}

/// A flow of a scheduler. Numbers are used again after a flow is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub(super) u32);

impl FlowId {
    /// A number below the most flows that were there at once: an index for the owner's queues.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}", self.0)
    }
}

/// A packet at the head of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// How long it is, without the wire's overhead.
    pub length: Bytes,
    /// On a channel, when the message arrived that begins with this packet; nothing if the packet
    /// goes on with the message before it, whether or not that message's packets have left (after
    /// its deadline, or where there was none, the packet is a message of its own; and where it
    /// would make the message longer than Mmax it begins the next one). Others ignore it.
    pub message: Option<Instant>,
}

impl Packet {
    /// A packet.
    pub fn new(length: Bytes) -> Packet {
        Packet {
            length,
            message: None,
        }
    }

    /// The first packet of a message that arrived at `arrived`, or that counts as having arrived
    /// then, see [`super::Gate`].
    pub fn first(length: Bytes, arrived: Instant) -> Packet {
        Packet {
            length,
            message: Some(arrived),
        }
    }
}

/// The head of a flow leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Whose head.
    pub flow: FlowId,
    /// Its length, as the owner said.
    pub length: Bytes,
    /// When its first bit is on the wire.
    pub start: Instant,
    /// When its last bit is.
    pub end: Instant,
    /// From when on its contract let it go: no earlier than 0, and it may have come later than that.
    pub eligible: Instant,
    /// Why it was its turn.
    pub turn: Turn,
}

/// Why it is a packet's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is guaranteed, and must be sent by then.
    Guaranteed {
        /// The deadline, as asked (the scheduler itself orders by what is kept of it).
        deadline: Instant,
    },
    /// It was the turn of the overbooked server that the flow is a member of.
    Shared {
        /// By when the server had to be served.
        deadline: Instant,
    },
    /// Nothing guaranteed was there to be sent.
    LeftOver,
    /// Nothing at all was: it is sent before its logical arrival.
    Early,
}

/// What an event loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send this.
    Send(Departure),
    /// Nothing until then, unless a packet comes to an empty queue.
    Wait(Instant),
    /// Nothing until a packet comes.
    Idle,
}

/// A call that does not fit what was told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// No such flow.
    #[error("{0} does not exist (any more)")]
    Unknown(FlowId),
    /// The queue was not empty.
    #[error("{0} has a head already: only the first packet of a queue is told")]
    Waiting(FlowId),
    /// No packet of this length can be sent.
    #[error("{flow} can never send {length}: at most {longest}")]
    TooLong {
        /// Whose.
        flow: FlowId,
        /// How long it is.
        length: Bytes,
        /// How long it may be: the wire's longest packet, or the flow's MBS.
        longest: Bytes,
    },
    /// Packets come to a server's members, not to itself.
    #[error("{0} is a server: packets come to its members")]
    Server(FlowId),
    /// The flow is no server, or has no such class.
    #[error("{server} has no class {class}")]
    NoClass {
        /// The flow that was named.
        server: FlowId,
        /// The class that was named.
        class: usize,
    },
    /// A server has one class to eight.
    #[error("a server has one class to {MAX_CLASSES}, not {0}")]
    Classes(usize),
    /// No more servers can be told apart.
    #[error("at most {0} servers")]
    Servers(usize),
    /// A server has no more to give than its slice.
    #[error(
        "its classes are promised {promised} bit/s together, and a server's slice gives {slice} bit/s of this link"
    )]
    Minimums {
        /// The minimums of all classes, in bit/s.
        promised: u64,
        /// What the slice gives, in bit/s.
        slice: u64,
    },
    /// A server has its slice and nothing of the left-over.
    #[error("the slice of a server has no extra: its members share what is promised")]
    Extra,
    /// A server ends after its members.
    #[error("{server} still has {members} members")]
    Members {
        /// The server.
        server: FlowId,
        /// How many.
        members: u32,
    },
    /// A contract that a flow of this kind cannot have.
    #[error("{0} is a member or a server: it keeps a cell contract or a slice")]
    OtherKind(FlowId),
    /// No more flows can be told apart.
    #[error("at most {0} flows")]
    Full(u32),
    /// The wire's packets are longer than the arithmetic goes.
    #[error("longest packet and overhead are {0} together, at most {max}", max = Bytes(u64::from(MAX_LENGTH)))]
    LongWire(Bytes),
}
