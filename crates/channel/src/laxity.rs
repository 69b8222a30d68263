//! Counts how long before its bound each message leaves a hop of a channel ([`HopMeter`]), and says
//! from when the bound of a message counts ([`LogicalArrivals`]). No function fails.
//!
//! A hop is the source, a relay or the sink of a channel. It measures by its own clock only, so no
//! clocks have to agree. The *laxity* of a message is its logical arrival plus the bound, less its
//! departure. The memory of a meter is the same however many messages pass.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use netnice_api::channels::{HopCounts, LAXITIES};
use netnice_core::contract::MessageRate;
use netnice_core::units::{Instant, Nanos};

/// The laxities of a hop's messages. One thread counts; any thread can load.
#[derive(Debug)]
pub struct HopMeter {
    /// The bound in nanoseconds; above zero.
    bound: i64,
    laxities: [AtomicU64; LAXITIES],
    /// `i64::MAX` before the first message.
    least: AtomicI64,
    excused: AtomicU64,
    lost: AtomicU64,
}

impl HopMeter {
    /// The meter of a hop with this bound. A bound of 0 counts as 1 ns.
    pub fn new(bound: Nanos) -> HopMeter {
        HopMeter {
            bound: i64::try_from(bound.0).unwrap_or(i64::MAX).max(1),
            laxities: Default::default(),
            least: AtomicI64::new(i64::MAX),
            excused: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// The time from `departure` to the end of the bound of a message with this logical arrival, in
    /// ns; negative for a late message.
    pub fn laxity(&self, logical: Instant, departure: Instant) -> i64 {
        let kept = i128::from(departure.0) - i128::from(logical.0);
        let laxity = i128::from(self.bound) - kept;
        i64::try_from(laxity).unwrap_or(if laxity < 0 { i64::MIN } else { i64::MAX })
    }

    /// Counts a message that has left with this laxity. `is_excused`: it is late, and recorded
    /// stops explain that.
    pub fn count(&self, laxity: i64, is_excused: bool) {
        self.least.fetch_min(laxity, Ordering::Relaxed);
        self.excused
            .fetch_add(u64::from(is_excused && laxity < 0), Ordering::Relaxed);
        // A reader that sees the message sees its laxity and excuse.
        self.laxities[self.class(laxity)].fetch_add(1, Ordering::Release);
    }

    /// Counts a message that was not passed on.
    pub fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of late messages.
    pub fn late(&self) -> u64 {
        self.load().late
    }

    /// What was counted. It is consistent in itself, also while a message is being counted.
    pub fn load(&self) -> HopCounts {
        let laxities = self.laxities.each_ref();
        let laxities = laxities.map(|count| count.load(Ordering::Acquire));
        let (messages, late) = (laxities.iter().sum(), laxities[0] + laxities[1]);
        let least = self.least.load(Ordering::Relaxed);
        HopCounts {
            messages,
            late,
            excused: self.excused.load(Ordering::Relaxed).min(late),
            lost: self.lost.load(Ordering::Relaxed),
            least_laxity_ns: (messages > 0).then_some(least),
            laxities,
            stops: None,
        }
    }

    /// The class of a laxity in [`HopCounts::laxities`].
    fn class(&self, laxity: i64) -> usize {
        let (laxity, bound) = (i128::from(laxity), i128::from(self.bound));
        match laxity {
            _ if laxity < -bound => 0,
            _ if laxity < 0 => 1,
            // 0 to 7.
            _ => 2 + (laxity * 8 / bound).min(7) as usize,
        }
    }
}

/// The logical arrivals of messages at a relay or a sink: of each, the arrival of its last packet,
/// or 1/Rmax after the logical arrival of the message before, whichever is later
/// (docs/reference/peer.md, P31).
#[derive(Debug)]
pub struct LogicalArrivals {
    /// 1/Rmax, rounded up.
    apart: Nanos,
    earliest: Instant,
}

impl LogicalArrivals {
    /// The arrivals of a channel with this Rmax.
    pub fn new(rmax: MessageRate) -> LogicalArrivals {
        LogicalArrivals {
            apart: Nanos(1_000_000_000_u64.div_ceil(rmax.get().into())),
            earliest: Instant(0),
        }
    }

    /// The logical arrival of the next message, whose last packet arrived at `arrival`.
    pub fn next(&mut self, arrival: Instant) -> Instant {
        let logical = arrival.max(self.earliest);
        self.earliest = logical.after(self.apart);
        logical
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_laxity_is_counted_in_its_eighth_of_the_bound() {
        let meter = HopMeter::new(Nanos(800));
        assert_eq!(meter.load(), HopCounts::default());
        let cases = [
            (-801, 0),
            (i64::MIN, 0),
            (-800, 1),
            (-1, 1),
            (0, 2),
            (99, 2),
            (100, 3),
            (799, 9),
            (800, 9),
            (i64::MAX, 9),
        ];
        for (laxity, class) in cases {
            let before = meter.load().laxities[class];
            meter.count(laxity, laxity == -1);
            let counts = meter.load();
            assert_eq!(counts.laxities[class], before + 1, "{laxity}");
            assert_eq!(counts.fault(), None);
        }
        meter.count_lost();
        let counts = meter.load();
        assert_eq!((counts.messages, counts.late, counts.excused), (10, 4, 1));
        assert_eq!((counts.lost, counts.least_laxity_ns), (1, Some(i64::MIN)));
    }

    #[test]
    fn laxity_counts_from_the_logical_arrival_and_saturates() {
        let meter = HopMeter::new(Nanos(10));
        assert_eq!(meter.laxity(Instant(100), Instant(104)), 6);
        assert_eq!(meter.laxity(Instant(100), Instant(111)), -1);
        // A message that leaves before its logical arrival.
        assert_eq!(meter.laxity(Instant(100), Instant(90)), 20);
        assert_eq!(meter.laxity(Instant(0), Instant(u64::MAX)), i64::MIN);
        let longest = HopMeter::new(Nanos(u64::MAX));
        assert_eq!(longest.laxity(Instant(u64::MAX), Instant(0)), i64::MAX);
        // What is on time is not excused, and a bound of 0 divides nothing.
        let none = HopMeter::new(Nanos(0));
        none.count(0, true);
        assert_eq!((none.load().excused, none.late()), (0, 0));
    }

    #[test]
    fn messages_that_come_closer_than_the_contract_are_spaced() {
        let mut arrivals = LogicalArrivals::new(MessageRate::new(3).expect("in range"));
        let apart = 333_333_334;
        let next = [
            (1_000, 1_000),
            (1_001, 1_000 + apart),
            (5, 1_000 + 2 * apart),
        ];
        for (arrival, logical) in next {
            assert_eq!(arrivals.next(Instant(arrival)), Instant(logical));
        }
        let late = Instant(9_000_000_000);
        assert_eq!(arrivals.next(late), late);
    }
}
