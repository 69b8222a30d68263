//! What a host shows of its channels: [`ChannelStatus`], with its [`Progress`]. No function fails.

use std::fmt;
use std::net::IpAddr;

use netnice_channel::ChannelId;
use netnice_core::contract::Channel;
use netnice_core::units::Nanos;

use super::events::{HoldId, Part};
use super::state::{ChannelState, Stage};
use crate::message::{Hops, HostName, ServiceName};

/// A channel, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelStatus {
    /// The channel.
    pub channel: ChannelId,
    /// The service at the sink.
    pub service: ServiceName,
    /// The host of the sink.
    pub sink: HostName,
    /// The address of the sink.
    pub sink_address: IpAddr,
    /// The contract, with the deadline from source to sink.
    pub contract: Channel,
    /// The longest packet with its header, in bytes.
    pub packet: u16,
    /// The part of this host.
    pub part: Part,
    /// How far the establishment has come at this host.
    pub progress: Progress,
    /// The hold of this host.
    pub hold: HoldId,
    /// The bound that this host holds, the final one if the channel is established; `None` until
    /// the host has found one.
    pub bound: Option<Nanos>,
    /// The host before this one; `None` at the source.
    pub previous: Option<HostName>,
    /// The next host; `None` at the sink, and until it is known.
    pub next: Option<HostName>,
    /// The final bounds of all hosts; `None` before the channel is established at this host.
    pub hops: Option<Hops>,
}

impl ChannelStatus {
    /// The status of a channel at the host named `own`.
    pub(super) fn of(entry: &ChannelState, own: &HostName) -> ChannelStatus {
        let (progress, hops) = match &entry.stage {
            Stage::Holding => (Progress::Holding, None),
            Stage::Connecting | Stage::Forwarded | Stage::Relaxing(_) => {
                (Progress::Establishing, None)
            }
            Stage::Established(hops) => (Progress::Established, Some(hops.clone())),
        };
        ChannelStatus {
            channel: entry.channel,
            service: entry.service.clone(),
            sink: entry.sink.clone(),
            sink_address: entry.sink_address,
            contract: entry.contract,
            packet: entry.packet,
            part: entry.part(own),
            progress,
            hold: entry.hold,
            bound: (progress != Progress::Holding).then_some(entry.bound),
            previous: entry.previous().cloned(),
            next: entry.next_host().cloned(),
            hops,
        }
    }
}

/// How far the establishment of a channel has come at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The host has not found a bound yet.
    Holding,
    /// The host holds a bound, and the other hosts have not all agreed yet.
    Establishing,
    /// The channel is established at this host.
    Established,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Progress::Holding => "holding",
            Progress::Establishing => "establishing",
            Progress::Established => "established",
        })
    }
}
