//! Types that a scheduler and its owner exchange: the link ([`Wire`]), services, packets,
//! departures and errors. [`Service::of`] converts a contract into the service of a flow, and fails
//! with [`NotServed`].

use core::fmt;

use super::flow::MAX_LENGTH;
use super::server::MAX_CLASSES;
use crate::contract::{self, Contract, Direction, Weight};
use crate::units::{Bytes, Instant, Nanos, Rate};

/// The parameters of the link that is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Rate of the link. Packet lengths and `overhead` count against it.
    pub rate: Rate,
    /// Bytes that the wire adds to each packet beyond its length. They count against the link's
    /// rate and against slices, which are transmit time. Cell contracts, minimums, limits and
    /// weights count the packet's length only.
    pub overhead: Bytes,
    /// How far in the future the end of the last transmission may lie when the scheduler decides on
    /// the next packet: the length of the driver's batch. With zero the scheduler decides when the
    /// link is free. More than 2^60 ns count as 2^60 ns.
    pub ahead: Nanos,
    /// How long before its logical arrival a channel's packet may be sent if no other packet may be
    /// (RTC's horizon; [`Wire::early`] has the order). With zero no packet is early.
    pub horizon: Nanos,
    /// Whether early packets leave before or after the left-over.
    pub early: EarlyOrder,
    /// The longest packet, without `overhead`.
    pub longest: Bytes,
}

impl Wire {
    /// A link of this rate with packets of at most 1514 bytes (Ethernet), no overhead, no batch and
    /// no horizon.
    pub fn new(rate: Rate) -> Wire {
        Wire {
            rate,
            overhead: Bytes(0),
            ahead: Nanos(0),
            horizon: Nanos(0),
            early: EarlyOrder::AfterLeftOver,
            longest: Bytes(1514),
        }
    }
}

/// The order of early packets and the left-over, if there is a [`Wire::horizon`]. Packets that are
/// due leave first in either order, so it has no effect on admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyOrder {
    /// A packet leaves early only if the left-over has none, so it delays no best effort (paper
    /// RTC, section 3.1).
    #[default]
    AfterLeftOver,
    /// Early packets leave before the left-over: channels displace best effort, by at most the
    /// horizon (paper RTC, section 5.3, figure 7b).
    BeforeLeftOver,
}

/// The service that a flow gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// A share of the left-over by weight, optionally with a guaranteed rate and a limit.
    Share {
        /// The guaranteed rate; `None` if there is none.
        min: Option<Rate>,
        /// The limit's rate and burst. The burst is the amount that may pass at once after a
        /// silence, as time at the rate.
        max: Option<(Rate, Nanos)>,
        /// Weight in the left-over.
        weight: Weight,
    },
    /// Transmit time in every period. With `extra` also a share of the left-over by weight.
    Slice {
        /// Slice, period and extra.
        slice: contract::Slice,
        /// Weight in the left-over.
        weight: Weight,
    },
    /// The flow is shaped to a cell contract, so that a policer with the same contract finds no
    /// violation.
    Cell(contract::Cell),
    /// A real-time channel: every message has a deadline.
    Channel(contract::Channel),
    /// A guarantee with a limit. A packet is eligible when both permit it. For a slice or a cell
    /// contract the packet counts as arrived when the limit permits it. A message of a channel
    /// keeps its deadline, unless the limit permits it only after that deadline.
    Limited {
        /// The guarantee.
        guarantee: Guarantee,
        /// The limit's rate and burst. The burst is the amount that may pass at once after a
        /// silence, as time at the rate.
        max: (Rate, Nanos),
    },
}

/// A guarantee that can have a limit. A [`Service::Share`] has its own limit, and the peak rate
/// limits a member of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// As [`Service::Slice`].
    Slice {
        /// Slice, period and extra.
        slice: contract::Slice,
        /// Weight in the left-over.
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

    /// The service for the sending direction of a contract. A limit on both directions together
    /// counts as a limit on sending. The clauses for receiving, the link and the CPU are ignored.
    ///
    /// # Errors
    /// [`NotServed`] if the contract has a priority, or more than one of slice, cell, channel and
    /// min, or a limit beside a cell in a class.
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
        if max.is_some() && contract.cell().is_some_and(|cell| cell.class().is_some()) {
            return Err(NotServed::LimitedMember);
        }
        match (asked.next(), asked.next(), min, max) {
            (None, ..) => Ok(Service::Share { min, max, weight }),
            (Some(guarantee), None, None, None) => Ok(guarantee.into()),
            (Some(guarantee), None, None, Some(max)) => Ok(Service::Limited { guarantee, max }),
            _ => Err(NotServed::Several),
        }
    }

    /// The class of the link's server that the contract names; `None` if it names none.
    pub fn class(&self) -> Option<u8> {
        match self {
            Service::Cell(cell) => cell.class(),
            _ => None,
        }
    }

    /// The service without its limit, and the limit.
    pub(super) fn parts(self) -> (Service, Option<(Rate, Nanos)>) {
        match self {
            Service::Limited { guarantee, max } => (guarantee.into(), Some(max)),
            other => (other, None),
        }
    }
}

/// The error of a contract that one flow of a scheduler cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotServed {
    /// The contract has more than one of slice, cell, channel and min.
    #[error("a flow can have only one of slice, cell, channel and min: make one flow for each")]
    Several,
    /// The contract has a priority. A priority is a class of a server, see
    /// [`super::Scheduler::insert_server`].
    #[error("a flow cannot have a priority: use a class of an overbooked server")]
    Priority,
    /// The contract has a limit beside a cell in a class.
    #[error(
        "a flow in a class has no limit beside its cell: the peak rate (pcr) is its limit; clear up"
    )]
    LimitedMember,
}

/// A flow of a scheduler. After removal of the flow its `FlowId` can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub(super) u32);

impl FlowId {
    /// A number for use as an index of the owner's queues, at most 2^20 - 1. A new flow gets the
    /// number of a removed one if there is one to reuse, else the next number from 0 on.
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
    /// Length in bytes, without the wire's overhead.
    pub length: Bytes,
    /// For a channel: `Some` arrival time of the message that begins with this packet, or `None` if
    /// the packet continues the message before it, even if that message's packets have left. A
    /// packet with `None` begins a message of its own if there is no message before it, if it would
    /// make that message longer than Mmax, or if it arrives at the empty queue after that message's
    /// deadline. Other services ignore this field.
    pub message: Option<Instant>,
}

impl Packet {
    /// A packet that begins no message: any packet of a flow that is no channel, or a later packet
    /// of a message.
    pub fn new(length: Bytes) -> Packet {
        Packet {
            length,
            message: None,
        }
    }

    /// The first packet of a message. `arrived` is the arrival time of the message, or the time
    /// that [`super::MessageGate`] gives.
    pub fn first(length: Bytes, arrived: Instant) -> Packet {
        Packet {
            length,
            message: Some(arrived),
        }
    }
}

/// A packet that the scheduler sends: the head of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The flow of the packet.
    pub flow: FlowId,
    /// Length of the packet as the owner gave it, at most [`super::Scheduler::longest`].
    pub length: Bytes,
    /// Planned start of transmission: the time of its first bit on the wire.
    pub start: Instant,
    /// Planned end of transmission: the time of its last bit on the wire, overhead included.
    pub end: Instant,
    /// The eligible time: the contract permits the packet to leave from this time on. It can be
    /// earlier than the packet's arrival. It is 0 if the contract sets no such time: for best
    /// effort, for the left-over without a limit, and for members of servers.
    pub eligible: Instant,
    /// The reason why the scheduler chose the packet.
    pub served_as: ServedAs,
}

/// The reason why a packet is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedAs {
    /// The packet is guaranteed.
    Guaranteed {
        /// The deadline that the contract gives. The scheduler orders by a rounded one, see
        /// [`super::effective_bound`].
        deadline: Instant,
    },
    /// The flow is a member of an overbooked server, and the server was chosen.
    Shared {
        /// The deadline of the server; the end of time if the server has no slice.
        deadline: Instant,
    },
    /// No guaranteed packet could be sent.
    LeftOver,
    /// No other packet could be sent. This one is sent before its logical arrival.
    Early,
}

/// The next action that [`super::Scheduler::next`] asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send this packet.
    Send(Departure),
    /// Wait until this time, or until a packet arrives at an empty queue. If the time is not later
    /// than that of the call, this call has reached its bound of work: call again at once.
    Wait(Instant),
    /// Wait until a packet arrives at an empty queue.
    Idle,
}

/// A call that contradicts earlier calls or the limits of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerError {
    /// The flow does not exist.
    #[error("{0} does not exist (any more)")]
    UnknownFlow(FlowId),
    /// The flow has a head already.
    #[error("{0} has a head already: report only the first packet of a queue")]
    HasHead(FlowId),
    /// The packet is longer than the flow can ever send.
    #[error("{flow} can never send {length}: at most {longest}")]
    TooLong {
        /// The flow.
        flow: FlowId,
        /// Length of the packet.
        length: Bytes,
        /// The longest possible packet: the smallest one of the wire's longest packet (of a pacer:
        /// 2^24 - 1 bytes) and the flow's MBS.
        longest: Bytes,
    },
    /// The flow is a server. Packets arrive at its members.
    #[error("{0} is a server: packets arrive at its members")]
    IsServer(FlowId),
    /// The flow is not a server, or has no such class.
    #[error("{server} has no class {class}")]
    NoClass {
        /// The flow in the call.
        server: FlowId,
        /// The class in the call.
        class: usize,
    },
    /// The number of classes is not 1 to 8.
    #[error("a server has 1 to {MAX_CLASSES} classes, not {0}")]
    ClassCount(usize),
    /// The scheduler has its largest number of servers. Holds that number.
    #[error("a scheduler has at most {0} servers")]
    TooManyServers(usize),
    /// The minimums of a server's classes exceed the rate of its slice.
    #[error(
        "the minimums of the classes are {promised} bit/s together, above the {slice} bit/s that \
         the slice gives on this link"
    )]
    MinimumsAboveSlice {
        /// The sum of the minimums of all classes, in bit/s.
        promised: u64,
        /// The rate of the slice on this link, in bit/s.
        slice: u64,
    },
    /// The slice of a server has `extra`. A server has its slice and no share of the left-over.
    #[error("the slice of a server cannot have extra")]
    ServerExtra,
    /// The server still has members.
    #[error("{server} still has {members} members")]
    HasMembers {
        /// The server.
        server: FlowId,
        /// Number of members.
        members: u32,
    },
    /// A change would give a member a contract that is no cell contract, or a server one that is no
    /// slice.
    #[error("{0} is a member or a server: a member keeps a cell contract, a server keeps a slice")]
    WrongKind(FlowId),
    /// The scheduler has its largest number of flows. Holds that number.
    #[error("a scheduler has at most {0} flows")]
    TooManyFlows(u32),
    /// The wire's longest packet with its overhead exceeds 2^24 - 1 bytes. Holds the sum.
    #[error(
        "the longest packet and the overhead are {0} together, above {max}",
        max = Bytes(u64::from(MAX_LENGTH))
    )]
    WireTooLong(Bytes),
}
