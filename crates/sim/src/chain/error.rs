//! The error of chains, [`ChainError`]. No function fails.

use netnice_core::contract::ContractError;
use netnice_core::sched::SchedulerError;
use netnice_core::units::{Bytes, Nanos};

/// The reason why a chain is invalid. Channels, stations and hops are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The channel passes no station.
    #[error("channel {channel} passes no station: 1 at least")]
    NoHops {
        /// The channel.
        channel: usize,
    },
    /// The chain does not have this station.
    #[error("hop {hop} of channel {channel} is station {station}: the chain has {stations}")]
    NoStation {
        /// The channel.
        channel: usize,
        /// The hop.
        hop: usize,
        /// The station.
        station: usize,
        /// Number of stations.
        stations: usize,
    },
    /// The channel passes a station twice.
    #[error("channel {channel} passes station {station} twice: once at most")]
    Twice {
        /// The channel.
        channel: usize,
        /// The station.
        station: usize,
    },
    /// A hop has a part of its bound for processing, and its station has no processor, or the other
    /// way round.
    #[error(
        "hop {hop} of channel {channel} has {processing} for processing: above 0s at a station \
         with a processor, and 0s at others"
    )]
    Processing {
        /// The channel.
        channel: usize,
        /// The hop.
        hop: usize,
        /// The part for processing.
        processing: Nanos,
    },
    /// The bounds of the hops are longer than the channel's deadline.
    #[error("the hops of channel {channel} have {sum} together, more than its deadline {deadline}")]
    Bounds {
        /// The channel.
        channel: usize,
        /// The sum of the bounds.
        sum: Nanos,
        /// The deadline.
        deadline: Nanos,
    },
    /// A message is empty or longer than Mmax.
    #[error("channel {channel} has a message of {size}: 1B to its mmax {mmax}")]
    Size {
        /// The channel.
        channel: usize,
        /// The length of the message.
        size: Bytes,
        /// The longest message of the channel.
        mmax: Bytes,
    },
    /// The messages are not in the order of their times.
    #[error("channel {channel} has a message at {time} behind one at {before}: sort them by time")]
    Unsorted {
        /// The channel.
        channel: usize,
        /// The time of the later message in the list.
        time: Nanos,
        /// The time of the message before it.
        before: Nanos,
    },
    /// A message consists of more than 65,535 packets, or a packet has no bytes.
    #[error("station {station} cuts a message of {mmax} into packets of {largest}: 1 to 65535")]
    Packets {
        /// The station.
        station: usize,
        /// The longest message of the channel.
        mmax: Bytes,
        /// The longest packet of the station.
        largest: Bytes,
    },
    /// A block of packets takes no processor time, or more than 10 ms.
    #[error(
        "a block of {packets} packets takes {takes} at station {station}: above 0s, at most 10ms"
    )]
    Block {
        /// The station.
        station: usize,
        /// Packets of the block.
        packets: u64,
        /// The processor time.
        takes: Nanos,
    },
    /// A reservation of processor time is not longer than what is lost of it in every period.
    #[error("station {station} reserves {slice} of its processor, of which {lost} are lost")]
    Reservation {
        /// The station.
        station: usize,
        /// The reserved time in every period.
        slice: Nanos,
        /// The time that is lost in every period.
        lost: Nanos,
    },
    /// A cable loses more packets than there are.
    #[error("the cable of station {station} loses {loss} of 1000000 packets: 999999 at most")]
    Loss {
        /// The station.
        station: usize,
        /// Lost packets in a million.
        loss: u32,
    },
    /// Standstills are empty, unsorted, or without time between them.
    #[error("the standstill from {begin} to {end} is empty, or begins before the end of the last")]
    Standstill {
        /// Begin of the standstill.
        begin: Nanos,
        /// End of the standstill.
        end: Nanos,
    },
    /// Standstills are longer than the allowance permits.
    #[error("standstills sum to {sum} in the {period} from {begin} on: {most} at most")]
    Allowance {
        /// Begin of the interval.
        begin: Nanos,
        /// Length of the interval.
        period: Nanos,
        /// The sum of the standstills in it.
        sum: Nanos,
        /// The longest allowed sum.
        most: Nanos,
    },
    /// A part of a contract is invalid at a hop.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// A scheduler refuses a link, a flow or a packet.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
}
