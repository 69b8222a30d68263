//! What happens to the state machine ([`Event`]) and what the caller must do ([`Action`]). Plain
//! data; nothing fails.

use std::net::IpAddr;
use std::num::NonZeroU16;

use netnice_channel::{ChannelId, End};
use netnice_core::contract::{Channel, IfName};
use netnice_core::units::Nanos;

use crate::message::{Counted, HopReport, Hops, HostName, Message, Reason, Refusal, ServiceName};

/// A hold of this host: its key in the host's ledger. A number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(pub u64);

/// A question about a channel. A number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuestionId(pub u64);

/// A channel that a program of this host asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The identifier, drawn at random by the caller (rule C4 of docs/reference/channels.md).
    pub channel: ChannelId,
    /// The service at the sink.
    pub service: ServiceName,
    /// The host of the sink; this host for a channel that stays in it.
    pub sink: HostName,
    /// The address of the sink. It is not used if the sink is this host.
    pub sink_address: IpAddr,
    /// The contract, with the deadline from source to sink. Mmax counts the payloads of a message
    /// as the stages made them.
    pub contract: Channel,
    /// The longest packet of the channel with its header, in bytes:
    /// [`LEAST_PACKET`](crate::message::LEAST_PACKET) to
    /// [`MOST_PACKET`](crate::message::MOST_PACKET).
    pub packet: u16,
}

/// The part of a host in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The program that sends is at this host.
    Source,
    /// The host passes messages on.
    Relay,
    /// The program that receives is at this host.
    Sink,
    /// Both programs are at this host.
    Both,
}

/// What the host is asked to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRequest {
    /// The channel.
    pub channel: ChannelId,
    /// The part of this host.
    pub part: Part,
    /// The service at the sink.
    pub service: ServiceName,
    /// The host of the sink.
    pub sink: HostName,
    /// The address of the sink.
    pub sink_address: IpAddr,
    /// The contract, with the deadline from source to sink. Mmax counts the payloads of a message
    /// as the stages made them.
    pub contract: Channel,
    /// The longest packet of the channel with its header, in bytes.
    pub packet: u16,
    /// The host before this one; `None` at the source.
    pub previous: Option<HostName>,
    /// Between which addresses the packets arrive; `None` at the source.
    pub arrival: Option<Arrival>,
}

/// The addresses of the packets that the host before this one sends, as that host states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The address that they come from.
    pub from: IpAddr,
    /// The address of this host that they are sent to.
    pub to: IpAddr,
}

/// The next host on the route to a sink, and the addresses of the packets to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The host.
    pub host: HostName,
    /// The address of this host that the packets are sent from.
    pub from: IpAddr,
    /// The address of the next host that they are sent to.
    pub to: IpAddr,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A program, or the operator of this host, ends a channel.
    Close {
        /// The channel. An unknown one is ignored.
        channel: ChannelId,
        /// Why.
        reason: Reason,
    },
    /// The host holds a bound.
    Held {
        /// The hold of [`Action::Hold`]. A released one is ignored, here and below.
        hold: HoldId,
        /// The shortest bound that the host can keep.
        bound: Nanos,
        /// The next host on the route to the sink, and the addresses of the packets to it. It must
        /// be there unless this host is the sink.
        next: Option<NextHop>,
        /// The interface at which the packets arrive, if nothing is declared about the port before
        /// it; `None` at the source.
        unguarded: Option<IfName>,
    },
    /// The host cannot hold a bound.
    NotHeld {
        /// The hold.
        hold: HoldId,
        /// The inequality, or another reason.
        reason: Reason,
        /// The shortest deadline from source to sink with which it would hold one; `None` if
        /// none is known.
        best: Option<Nanos>,
    },
    /// The host holds the longer bound now, without limit of time.
    Relaxed {
        /// The hold.
        hold: HoldId,
        /// The UDP port at which this host receives the channel's packets, at [`Arrival::to`].
        /// `None` at the source only; elsewhere the channel ends without one.
        port: Option<NonZeroU16>,
    },
    /// The host cannot keep the longer bound. This cannot happen on a link whose horizon is 0
    /// (docs/reference/peer.md).
    NotRelaxed {
        /// The hold.
        hold: HoldId,
        /// The inequality, or another reason.
        reason: Reason,
    },
    /// The host has lost a hold: its link went down, or became too slow.
    Lost {
        /// The hold.
        hold: HoldId,
        /// Why.
        reason: Reason,
    },
    /// This host has counted this of a channel.
    Counted {
        /// The question of [`Action::Count`]. One that is answered already is ignored.
        question: QuestionId,
        /// The counts, or why they are not known.
        counted: Counted,
    },
    /// There is a connection to a neighbour, whose certificate has this name. It replaces one that
    /// was there before. The channels of that one end, except those that this host has asked for
    /// and that are not answered: they are asked for again.
    Connected {
        /// The neighbour.
        neighbour: HostName,
    },
    /// The connection to a neighbour has ended, or could not be made.
    Disconnected {
        /// The neighbour.
        neighbour: HostName,
        /// Why.
        reason: Reason,
    },
    /// A message has arrived on the connection to a neighbour.
    Received {
        /// The neighbour.
        neighbour: HostName,
        /// The message.
        message: Message,
    },
}

impl Event {
    /// True if the answer, or what follows from it, depends on the clocks of two hosts.
    pub fn is_about_clocks(&self) -> bool {
        let Event::Received { message, .. } = self else {
            return false;
        };
        matches!(message, Message::ClockAsk(_) | Message::ClockAnswer(_))
    }
}

/// What the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Find the next hop and hold the shortest bound that this host can keep; answer by
    /// [`Event::Held`] or [`Event::NotHeld`]. The host's ledger should end the hold itself if it is
    /// not relaxed within [`super::HELD`], in case this process stops.
    Hold {
        /// The key of the hold.
        hold: HoldId,
        /// What to hold.
        request: HoldRequest,
    },
    /// Change the bound of a hold to this one, which is not shorter, and keep it until it is
    /// released; answer by [`Event::Relaxed`] or [`Event::NotRelaxed`].
    Relax {
        /// The hold.
        hold: HoldId,
        /// The final bound.
        bound: Nanos,
        /// The UDP port at which the next host receives the channel's packets, at
        /// [`NextHop::to`]; `None` at the sink.
        port: Option<NonZeroU16>,
    },
    /// Release a hold. If [`Action::Hold`] or [`Action::Relax`] is not answered yet, cancel it.
    Release {
        /// The hold.
        hold: HoldId,
    },
    /// Connect to a neighbour; answer by [`Event::Connected`] or [`Event::Disconnected`].
    Connect {
        /// The neighbour.
        neighbour: HostName,
    },
    /// Close the connection to a neighbour. No event needs to follow.
    Disconnect {
        /// The neighbour.
        neighbour: HostName,
        /// Why.
        reason: Reason,
    },
    /// Send a message. Messages to one neighbour must arrive in order, or the connection must end.
    Send {
        /// The neighbour.
        neighbour: HostName,
        /// The message.
        message: Message,
    },
    /// Tell the program that its channel is established.
    Opened {
        /// The channel.
        channel: ChannelId,
        /// All hosts with their bounds, which sum to the deadline.
        hops: Hops,
    },
    /// Tell the program that its channel cannot be had.
    OpenRefused {
        /// The channel.
        channel: ChannelId,
        /// Why.
        refusal: Refusal,
    },
    /// Tell the program that listens for a service that it has a new channel. The same channel can
    /// come again after its end, if a connection was replaced before the source had its answer; the
    /// source has sent nothing on the first one.
    Accepted {
        /// The channel.
        channel: ChannelId,
        /// The service.
        service: ServiceName,
        /// The contract.
        contract: Channel,
        /// All hosts with their bounds.
        hops: Hops,
    },
    /// Find what this host has counted of an established channel; answer by [`Event::Counted`],
    /// within [`super::STEP`] / 2.
    Count {
        /// The question.
        question: QuestionId,
        /// The hold of the channel.
        hold: HoldId,
    },
    /// Tell the program what the hosts of the channel have counted.
    Explained {
        /// The question.
        question: QuestionId,
        /// The channel.
        channel: ChannelId,
        /// A report of each host, the source first.
        hops: Vec<HopReport>,
    },
    /// Tell the program that its question has no answer.
    NotExplained {
        /// The question.
        question: QuestionId,
        /// Why.
        reason: Reason,
    },
    /// Tell the program at an end of an established channel that it has ended.
    Ended {
        /// The channel.
        channel: ChannelId,
        /// The end that the program has.
        end: End,
        /// The host that ended the channel.
        host: HostName,
        /// Why.
        reason: Reason,
    },
}
