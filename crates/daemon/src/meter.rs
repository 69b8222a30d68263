//! Measured values of targets and links. This module converts the kernel's counts to the counters
//! that are shown ([`meter`], without input or output). Its submodules keep rates and history, and
//! write and serve the metrics page.
//!
//! The kernel counts in two places: the programs on the interfaces count every packet of a target
//! once, before any queue, and the packets that they drop. The classes of a target's own limit (or,
//! without one, of its part in a managed link) count what they send, what waits, and the packets
//! that their queues drop. Offered is the sum of sent, dropped and queued, and not the count of the
//! programs: a packet may be on its way from a program to its class, and the classes may have been
//! made later than the target. A target without classes of its own has sent what it offered: its
//! packets wait in a class of a target around it.

pub(crate) mod history;
mod measurements;
pub(crate) mod metrics;
mod rates;

use netnice_core::contract::{Contract, Direction};
use netnice_core::meter::{DirectionCounters, Meter};
use netnice_core::units::{Bytes, Rate};
use netnice_kernel::enforce::{DirectionCounts, TargetCounts};

pub(crate) use measurements::Measurements;
pub(crate) use rates::Rates;

/// The counters of one target. For a limit on the sum of both directions, the counters of both are
/// in `up`.
pub(crate) fn meter(counts: &TargetCounts, contract: &Contract) -> Meter {
    let [up, down] = counts.directions;
    if contract.both().is_some() {
        // There is one class for both directions, so the counts of both belong to it.
        let all = DirectionCounts {
            offered_packets: up.offered_packets + down.offered_packets,
            offered_bytes: up.offered_bytes + down.offered_bytes,
            ..up
        };
        return Meter {
            up: flow(&all, contract.both()),
            down: DirectionCounters::default(),
        };
    }
    Meter {
        up: flow(&up, contract.limit(Direction::Up)),
        down: flow(&down, contract.limit(Direction::Down)),
    }
}

/// The counters of one direction. `rate` is the limit, for the delay of the queue; without it the
/// delay is 0.
pub(crate) fn flow(counts: &DirectionCounts, rate: Option<Rate>) -> DirectionCounters {
    let has_classes = counts.sent_packets + counts.queued_packets + counts.dropped_packets > 0;
    if !has_classes {
        return DirectionCounters {
            offered_packets: counts.offered_packets,
            offered_bytes: counts.offered_bytes,
            sent_packets: counts.offered_packets,
            sent_bytes: counts.offered_bytes,
            ..DirectionCounters::default()
        };
    }
    DirectionCounters {
        offered_packets: counts.sent_packets + counts.dropped_packets + counts.queued_packets,
        offered_bytes: counts.sent_bytes + counts.dropped_bytes + counts.queued_bytes,
        sent_packets: counts.sent_packets,
        sent_bytes: counts.sent_bytes,
        dropped_packets: counts.dropped_packets,
        dropped_bytes: counts.dropped_bytes,
        queued_packets: counts.queued_packets,
        queued_bytes: counts.queued_bytes,
        queue_delay_ns: rate.map_or(0, |rate| rate.time_for(Bytes(counts.queued_bytes)).0),
        held_back: counts.overlimits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(
        offered: [u64; 2],
        sent: [u64; 2],
        dropped: [u64; 2],
        queued: [u64; 2],
    ) -> DirectionCounts {
        DirectionCounts {
            offered_packets: offered[0],
            offered_bytes: offered[1],
            sent_packets: sent[0],
            sent_bytes: sent[1],
            dropped_packets: dropped[0],
            dropped_bytes: dropped[1],
            queued_packets: queued[0],
            queued_bytes: queued[1],
            overlimits: 0,
        }
    }

    #[test]
    fn the_counters_of_every_flow_add_up() {
        let cases = [
            counts([0, 0], [0, 0], [0, 0], [0, 0]),
            counts([10, 1_000], [0, 0], [0, 0], [0, 0]),
            counts([10, 1_000], [8, 800], [1, 100], [1, 100]),
            counts([10, 1_000], [8, 900], [0, 0], [2, 200]),
            counts([10, 1_000], [12, 1_200], [3, 300], [2, 200]),
        ];
        for case in cases {
            let flow = flow(&case, "8mbit".parse().ok());
            assert!(flow.balanced(), "{case:?} became {flow:?}");
        }
    }

    /// One of the ten offered packets has not reached its class at the first reading.
    #[test]
    fn a_packet_on_its_way_to_its_class_is_not_dropped() {
        let readings = [
            counts([10, 1_000], [7, 700], [2, 200], [0, 0]),
            counts([10, 1_000], [8, 800], [2, 200], [0, 0]),
        ];
        let flows = readings.map(|reading| flow(&reading, None));
        assert_eq!(flows.map(|flow| flow.dropped_bytes), [200, 200]);
        assert_eq!(flows.map(|flow| flow.offered_bytes), [900, 1_000]);
    }

    #[test]
    fn a_limit_on_both_directions_counts_both_as_sent() {
        let mut counts_of = TargetCounts::default();
        counts_of.directions[0] = counts([4, 400], [9, 900], [1, 200], [0, 0]);
        counts_of.directions[1] = counts([6, 700], [0, 0], [0, 0], [0, 0]);
        let contract: Contract = "both 8mbit".parse().expect("a contract");
        let meter = meter(&counts_of, &contract);
        assert_eq!(meter.down, DirectionCounters::default());
        assert_eq!(meter.up.dropped_bytes, 200);
        assert!(meter.up.balanced());
    }

    #[test]
    fn the_delay_is_the_queue_divided_by_the_rate() {
        let waiting = counts([1, 1_500], [0, 0], [0, 0], [1, 1_500]);
        let flow = flow(&waiting, "12mbit".parse().ok());
        assert_eq!(flow.queue_delay_ns, 1_000_000);
    }
}
