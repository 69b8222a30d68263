//! The result of a chain, [`ChainReport`], and the judgement of its messages. The deadlines are
//! computed here from the arrivals at the source alone: no scheduler takes part. No function fails.

use std::fmt;

use netnice_core::units::{Instant, Nanos};

use super::topology::{Chain, RoutedChannel};

/// The result of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainReport {
    /// In the order of the channels.
    pub channels: Vec<RoutedReport>,
    /// The end of the simulation.
    pub until: Instant,
}

/// The result for a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutedReport {
    /// Messages that the source got.
    pub offered: u64,
    /// Messages that were complete at the sink.
    pub delivered: u64,
    /// Messages that were complete at the sink after their deadline, or were on their way at the
    /// end although their deadline was over. Lost messages do not count.
    pub missed: u64,
    /// Messages that lost a packet on a cable.
    pub incomplete: u64,
    /// Messages that found no room at the source.
    pub refused: u64,
    /// Messages that found no room at a relay.
    pub no_room: u64,
    /// Messages that are on their way at the end.
    pub unfinished: u64,
    /// The least time from the arrival of a message at the sink to its deadline, in ns; negative if
    /// it was late. `None` if no message was delivered.
    pub least_laxity: Option<i64>,
    /// In the order of the hops.
    pub hops: Vec<HopReport>,
}

/// The result for a channel at one station.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HopReport {
    /// Messages that left the station.
    pub passed: u64,
    /// Of these, messages that left after their local deadline.
    pub missed: u64,
    /// Messages that ended here because a packet was lost before.
    pub incomplete: u64,
    /// Messages that ended here because there was no room.
    pub no_room: u64,
    /// The largest number of messages that were here at the same time.
    pub most_messages: usize,
    /// The largest number of bytes of messages that were here at the same time.
    pub most_bytes: u64,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Somewhere between the source and the sink.
    OnTheWay,
    /// Complete at the sink at this time, in ns.
    Delivered(u64),
    /// A packet was lost on a cable.
    Incomplete,
    /// A relay had no room.
    NoRoom,
    /// The source had no room.
    Refused,
}

impl ChainReport {
    /// Missed deadlines of all channels, end to end.
    pub fn missed(&self) -> u64 {
        self.channels.iter().map(|channel| channel.missed).sum()
    }

    /// Missed local deadlines of all channels at all stations.
    pub fn missed_at_hops(&self) -> u64 {
        let hops = self.channels.iter().flat_map(|channel| &channel.hops);
        hops.map(|hop| hop.missed).sum()
    }

    /// Messages that found no room at a source or at a relay, of all channels.
    pub fn no_room(&self) -> u64 {
        let channels = self.channels.iter();
        channels
            .map(|channel| channel.refused + channel.no_room)
            .sum()
    }
}

impl RoutedReport {
    /// Counts the messages of a channel by their fates until `until`, in ns.
    pub(super) fn count(
        &mut self,
        chain: &Chain,
        channel: &RoutedChannel,
        fates: &[Fate],
        until: u64,
    ) {
        let cables = channel
            .hops
            .iter()
            .map(|hop| chain.stations[hop.station].cable.most().0);
        let cables = cables.fold(0, u64::saturating_add);
        let allowed = channel.contract.deadline().0.saturating_add(cables);
        // What the source refused is no message of the channel.
        let accepted = |((arrival, _), fate): (&(Nanos, _), &Fate)| {
            (*fate != Fate::Refused).then_some(arrival.0)
        };
        let arrivals: Vec<Option<u64>> = channel.messages.iter().zip(fates).map(accepted).collect();
        let deadlines = logical_arrivals(&arrivals, channel.spacing());
        self.offered = fates.len() as u64;
        for (fate, logical) in fates.iter().zip(deadlines) {
            let deadline = logical.saturating_add(allowed);
            match fate {
                Fate::Delivered(at) => {
                    let laxity = i128::from(deadline) - i128::from(*at);
                    let laxity = i64::try_from(laxity).unwrap_or(i64::MAX);
                    let least = self.least_laxity.unwrap_or(i64::MAX);
                    self.least_laxity = Some(least.min(laxity));
                    self.delivered += 1;
                    self.missed += u64::from(laxity < 0);
                }
                Fate::OnTheWay => {
                    self.unfinished += 1;
                    self.missed += u64::from(deadline < until);
                }
                Fate::Incomplete => self.incomplete += 1,
                Fate::NoRoom => self.no_room += 1,
                Fate::Refused => self.refused += 1,
            }
        }
    }
}

/// The logical arrivals of messages that arrive at these times, at least `spacing` apart, in ns. A
/// message without an arrival takes no part, and has the logical arrival of the message before it.
pub(super) fn logical_arrivals(arrivals: &[Option<u64>], spacing: u64) -> Vec<u64> {
    let (mut earliest, mut last) = (0_u64, 0_u64);
    let logical = |arrival: &Option<u64>| {
        if let Some(arrival) = arrival {
            last = earliest.max(*arrival);
            earliest = last.saturating_add(spacing);
        }
        last
    };
    arrivals.iter().map(logical).collect()
}

impl fmt::Display for ChainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "channel  offered  delivered  missed  incomplete  no room  least laxity, ms"
        )?;
        for (number, channel) in self.channels.iter().enumerate() {
            let least = match channel.least_laxity {
                Some(least) => format!("{:.3}", least as f64 / 1e6),
                None => "-".to_string(),
            };
            writeln!(
                f,
                "{number:>7}  {:>7}  {:>9}  {:>6}  {:>10}  {:>7}  {least:>16}",
                channel.offered,
                channel.delivered,
                channel.missed,
                channel.incomplete,
                channel.refused + channel.no_room,
            )?;
            for (number, hop) in channel.hops.iter().enumerate() {
                writeln!(
                    f,
                    "  hop {number:>2}  passed {}, missed {}, at most {} messages, {} bytes",
                    hop.passed, hop.missed, hop.most_messages, hop.most_bytes,
                )?;
            }
        }
        Ok(())
    }
}
