//! The channels of figures 5 to 7 on packets: their contracts, what they send, and the plans of the
//! programs. The paper's contracts are lost, so these are ours. No call fails.

use crate::traffic::{ChannelPlan, PlannedChannel};

/// The channels and best effort, with blocks of so many packets.
pub(super) fn plan(block: u32) -> ChannelPlan {
    plan_of(block, &CHANNELS)
}

/// These channels and best effort, on a reservation.
pub(super) fn plan_of(block: u32, contracts: &[&str; 3]) -> ChannelPlan {
    let channel = |contract: &str| PlannedChannel {
        contract: contract.to_owned(),
        best_effort: (MESSAGE as u64, QUEUE),
        stages: Vec::new(),
    };
    let contracts = contracts.iter().copied().chain([""]);
    ChannelPlan {
        largest: PACKET_BYTES,
        block,
        horizon_ns: 0,
        early_before_best_effort: false,
        computes_ns: COMPUTES_NS,
        switch_ns: 0,
        reservation: Some(("9.5ms/10ms".to_owned(), 8_500_000)),
        records_stops: true,
        channels: contracts.map(channel).collect(),
    }
}

/// The channels with deadlines that are kept only if best effort can be interrupted, without a
/// reservation that would refuse them.
pub(super) fn tight_plan(block: u32, contracts: &[&str; 3]) -> ChannelPlan {
    ChannelPlan {
        reservation: None,
        ..plan_of(block, contracts)
    }
}

/// Two bursty channels and a periodic one.
pub(super) const CHANNELS: [&str; 3] = [
    "channel mmax=60KiB,rmax=15/s,bmax=4,deadline=60ms,processing=40ms,overload=drop",
    "channel mmax=40KiB,rmax=15/s,bmax=6,deadline=56ms,processing=38ms",
    "channel mmax=30KiB,rmax=20/s,bmax=1,deadline=50ms,processing=36ms",
];

/// The same with deadlines of a processor that nothing else uses.
pub(super) const TIGHT: [&str; 3] = [
    "channel mmax=60KiB,rmax=15/s,bmax=4,deadline=25ms,processing=22ms,overload=drop",
    "channel mmax=40KiB,rmax=15/s,bmax=6,deadline=17ms,processing=14ms",
    "channel mmax=30KiB,rmax=20/s,bmax=1,deadline=10ms,processing=8ms",
];

/// The channels of figure 7b. A message of the first has 73 packets and takes 8.7 ms, longer than
/// the deadline of the third.
pub(super) const EARLY: [&str; 3] = [
    "channel mmax=100KiB,rmax=8/s,bmax=2,deadline=25ms,processing=22ms",
    "channel mmax=40KiB,rmax=15/s,bmax=6,deadline=17ms,processing=14ms",
    "channel mmax=30KiB,rmax=20/s,bmax=1,deadline=8ms,processing=6ms",
];

/// The same with deadlines that admission grants on a reservation.
pub(super) const PROMISED: [&str; 3] = [
    "channel mmax=100KiB,rmax=8/s,bmax=2,deadline=80ms,processing=60ms",
    "channel mmax=40KiB,rmax=15/s,bmax=6,deadline=76ms,processing=58ms",
    "channel mmax=30KiB,rmax=20/s,bmax=1,deadline=70ms,processing=56ms",
];

/// What they send, as [`SENT`].
pub(super) const SENT_EARLY: [(usize, u64, u64); 3] =
    [(102_400, 2, 8), (40_960, 6, 15), (30_720, 1, 20)];
/// A block that has room for the longest of these messages.
pub(super) const LONG_BLOCK_EARLY: u32 = 73;
/// Longer than the time from the arrival of a burst to the logical arrival of its last message.
pub(super) const HORIZON_NS: u64 = 500_000_000;
/// Messages of best effort that can wait in figure 7b.
pub(super) const EARLY_QUEUE: u32 = 8;

/// What the channels send: bytes of a message, messages at once, messages a second.
pub(super) const SENT: [(usize, u64, u64); 3] = [(61_440, 4, 15), (40_960, 6, 15), (30_720, 1, 20)];
/// Bursts are farther apart than that, by so much that within a run the messages of each channel
/// come so many times [`SWEEP_NS`] later than at their rate. So their phases to those of the other
/// channels and to the periods of the reservation (10 ms) take all values, equally often, and no
/// mean depends on those at the beginning of a run. A thread that sends late also catches up.
pub(super) const SWEEPS: [u64; 3] = [2, 4, 3];
/// The same for figure 7, whose deadlines are short: the bursts of the channels come nearly at the
/// same times throughout.
pub(super) const TOGETHER: [u64; 3] = [2, 2, 2];
/// The time between the logical arrivals of two messages of a channel with 15/s.
pub(super) const SWEEP_NS: u64 = 66_666_667;
/// The number of best effort in a plan.
pub(super) const BEST_EFFORT: usize = 3;
/// Bytes of a best-effort message, and how many of them can wait.
pub(super) const MESSAGE: usize = 16_384;
pub(super) const QUEUE: u32 = 64;
/// The processor time of the handlers in figures 5 and 6, for people.
pub(super) const RESERVED: &str = "8.5 ms of every 10 ms of a processor by SCHED_DEADLINE";
/// Packets between two preemption points.
pub(super) const BLOCK: u32 = 12;
/// Bytes of the long messages of figure 7, 72 packets, and a block as long.
pub(super) const LONG_MESSAGE: u64 = 72 * 1_408;
pub(super) const LONG_BLOCK: u32 = 72;
/// Messages of best effort that can wait in figure 7a, at most.
pub(super) const MOST_QUEUED: u32 = 32;
/// Best effort offered in figure 7a, in kB/s: far above saturation, and what the sweep has.
pub(super) const MOST_LOAD: u64 = 14_400;
pub(super) const LOWER_LOADS: [u64; 4] = [800, 2_400, 4_800, 7_200];
/// Bytes of a packet with the channel's header.
pub(super) const PACKET_BYTES: u64 = 1_440;
/// What a stage computes for the first packet of a message, and for a later one.
pub(super) const COMPUTES_NS: (u64, u64) = (365_000, 115_000);
