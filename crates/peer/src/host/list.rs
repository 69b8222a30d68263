//! The list of channels and neighbours for people. No function fails.

use netnice_api::channels::{ChannelList, ListedChannel, ListedNeighbour, RelayedDoc};

use super::{Host, contract_doc, hop_docs};
use crate::message::{HostName, ServiceName};
use crate::relay::RelayCounts;

impl Host {
    /// The channels, neighbours and services of this host.
    pub(super) fn list(&self) -> ChannelList {
        let (refused, last) = self.transport.refused();
        let neighbour = |host: &HostName| {
            let offset = self.signalling.clock_offset(host);
            ListedNeighbour {
                host: host.to_string(),
                clock_ahead_ns: offset.map(|offset| offset.ahead_ns),
                clock_error_ns: offset.map(|offset| offset.error.0),
                clock_source: offset.map(|offset| offset.source.to_string()),
            }
        };
        let channels = self.signalling.channels().map(|status| {
            let part = match (&status.previous, status.sink == *self.signalling.host()) {
                (None, _) => "source",
                (Some(_), true) => "sink",
                (Some(_), false) => "relay",
            };
            let mut channel = status.channel.to_string();
            channel.truncate(SHOWN_DIGITS);
            ListedChannel {
                channel,
                service: status.service.to_string(),
                sink: status.sink.to_string(),
                contract: contract_doc(&status.contract, status.packet),
                part: part.to_owned(),
                previous: status.previous.as_ref().map(HostName::to_string),
                next: status.next.as_ref().map(HostName::to_string),
                hops: status.hops.as_ref().map_or_else(Vec::new, hop_docs),
                relayed: self.relays.counts(status.channel).map(relayed),
            }
        });
        ChannelList {
            host: self.signalling.host().to_string(),
            channels: channels.collect(),
            ports: self.ports.list(),
            neighbours: self.signalling.neighbours().map(neighbour).collect(),
            services: self
                .register
                .services()
                .map(ServiceName::to_string)
                .collect(),
            refused_connections: refused,
            last_refusal: last.map(str::to_owned),
        }
    }
}

fn relayed(counts: RelayCounts) -> RelayedDoc {
    RelayedDoc {
        messages: counts.sent,
        incomplete: counts.incomplete,
        dropped: counts.overflowed + counts.refused,
        unsent: counts.unsent,
    }
}

/// How many digits of an identifier are shown: it is known only to the hosts of its channel.
pub(super) const SHOWN_DIGITS: usize = 8;
