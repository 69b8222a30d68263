//! One channel at one host: [`ChannelState`], with its [`Stage`]. No function fails.

use std::net::IpAddr;

use netnice_channel::ChannelId;
use netnice_core::contract::{Channel, IfName};
use netnice_core::units::{Instant, Nanos};

use super::events::{Arrival, NextHop, Part};
use super::{HoldId, UNREFRESHED};
use crate::message::{Attempt, HopBound, Hops, HostName, ServiceName};

/// Where a channel comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Upstream {
    /// A program of this host: this host is the source.
    Program,
    /// The host before this one, and the number of its attempt.
    Neighbour(HostName, u64),
}

/// How far the establishment of a channel has come at this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// This host is asked for a bound.
    Holding,
    /// The bound is held, and there is no connection to the next host yet.
    Connecting,
    /// The next host was asked.
    Forwarded,
    /// The final bounds are known, and this host is asked to relax its hold.
    Relaxing(Hops),
    /// The channel is established with these bounds.
    Established(Hops),
}

/// A channel.
#[derive(Debug)]
pub(super) struct ChannelState {
    pub(super) channel: ChannelId,
    pub(super) hold: HoldId,
    pub(super) contract: Channel,
    pub(super) service: ServiceName,
    pub(super) sink: HostName,
    pub(super) sink_address: IpAddr,
    /// The longest packet with its header, in bytes.
    pub(super) packet: u16,
    pub(super) upstream: Upstream,
    /// Between which addresses the packets arrive; `None` at the source.
    pub(super) arrival: Option<Arrival>,
    /// The hosts before this one; empty at the source.
    pub(super) before: Vec<HopBound>,
    /// The bound that this host holds, and the final one when it is established; 0 until one is
    /// known.
    pub(super) bound: Nanos,
    /// The interface at which the packets arrive, if nothing is declared about the port before it.
    pub(super) unguarded: Option<IfName>,
    /// The next host and the addresses of the packets to it; `None` at the sink, and until they
    /// are known.
    pub(super) next: Option<NextHop>,
    pub(super) stage: Stage,
    /// When the channel ends, or whether it has to end is examined again.
    pub(super) timer: Instant,
    /// When the host before this one last refreshed the channel.
    pub(super) refreshed_before: Instant,
    /// When the next host last refreshed the channel.
    pub(super) refreshed_next: Instant,
}

impl ChannelState {
    /// The host before this one; `None` at the source.
    pub(super) fn previous(&self) -> Option<&HostName> {
        match &self.upstream {
            Upstream::Program => None,
            Upstream::Neighbour(host, _) => Some(host),
        }
    }

    /// The next host; `None` at the sink, and until it is known.
    pub(super) fn next_host(&self) -> Option<&HostName> {
        self.next.as_ref().map(|next| &next.host)
    }

    /// The part of this host, named `own`, in the channel.
    pub(super) fn part(&self, own: &HostName) -> Part {
        match (self.previous(), self.sink == *own) {
            (None, false) => Part::Source,
            (Some(_), false) => Part::Relay,
            (Some(_), true) => Part::Sink,
            (None, true) => Part::Both,
        }
    }

    /// The attempt between this host and a neighbour, as a message from the neighbour names it;
    /// `None` if the channel does not pass from or to it, or it was not asked yet.
    pub(super) fn attempt_with(&self, neighbour: &HostName) -> Option<Attempt> {
        match &self.upstream {
            Upstream::Neighbour(host, attempt) if host == neighbour => {
                Some(Attempt::Sender(*attempt))
            }
            _ => (self.next_host() == Some(neighbour) && self.is_forwarded())
                .then_some(Attempt::Receiver(self.hold.0)),
        }
    }

    /// True if the channel is established at this host.
    pub(super) fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Established(_))
    }

    /// True if the next host was asked, so that it has to be told about an end.
    pub(super) fn is_forwarded(&self) -> bool {
        self.next.is_some() && !matches!(self.stage, Stage::Holding | Stage::Connecting)
    }

    /// The hosts up to this one, named `own`, with the bounds that they hold.
    pub(super) fn hops_so_far(&self, own: &HostName) -> Vec<HopBound> {
        let mut hops = self.before.clone();
        hops.push(HopBound {
            host: own.clone(),
            bound: self.bound,
            unguarded: self.unguarded.clone(),
        });
        hops
    }

    /// The neighbour whose latest refresh of the channel is the oldest, and when the channel ends
    /// without another one; `None` if the channel has no neighbour.
    pub(super) fn silent(&self) -> Option<(&HostName, Instant)> {
        let before = self.previous().map(|host| (host, self.refreshed_before));
        let next = self.next_host().map(|host| (host, self.refreshed_next));
        let first = before.into_iter().chain(next).min_by_key(|(_, at)| *at);
        first.map(|(host, at)| (host, at.after(UNREFRESHED)))
    }

    /// Records that a neighbour has refreshed the channel.
    pub(super) fn note_refresh(&mut self, neighbour: &HostName, now: Instant) {
        if self.previous() == Some(neighbour) {
            self.refreshed_before = now;
        }
        if self.next_host() == Some(neighbour) {
            self.refreshed_next = now;
        }
    }

    /// Why final bounds cannot be those of this channel, at the host `own`; `None` if they can.
    pub(super) fn fault_of(&self, hops: &Hops, own: &HostName) -> Option<String> {
        let deadline = self.contract.deadline();
        if hops.sum() != deadline {
            let sum = hops.sum();
            return Some(format!(
                "the bounds sum to {sum}, and the deadline is {deadline}"
            ));
        }
        let held = self.hops_so_far(own);
        let most = held.len().min(hops.as_slice().len());
        let (known, rest) = hops.as_slice().split_at(most);
        let is_next = rest.first().map(|hop| &hop.host) == self.next_host();
        let is_sink = rest.last().is_some_and(|hop| hop.host == self.sink);
        let same = |(one, other): (&HopBound, &HopBound)| one.host == other.host;
        if !is_next || !is_sink || !known.iter().zip(&held).all(same) {
            return Some("the hosts are not those of the channel".to_owned());
        }
        let mark = |(one, held): &(&HopBound, &HopBound)| one.unguarded != held.unguarded;
        if let Some((one, _)) = known.iter().zip(&held).find(mark) {
            let host = &one.host;
            return Some(format!("the mark of {host} is not the one that it had"));
        }
        let shorter = known
            .iter()
            .zip(&held)
            .find(|(one, held)| one.bound < held.bound);
        shorter.map(|(one, held)| {
            let (host, bound, held) = (&one.host, one.bound, held.bound);
            format!("{host} gets {bound}, less than the {held} that it holds")
        })
    }
}
