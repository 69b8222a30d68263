//! Computes the rates between successive readings ([`Rates`]), and detects links on which more is
//! received than their receive stage passes ([`Rates::overload`]). Also determines when the next
//! audit of the kernel's objects is due ([`Rates::is_time_to_audit`]). The caller passes the counts
//! and the time; nothing here reads them, and nothing fails.

use std::collections::BTreeMap;

use netnice_core::contract::Direction;
use netnice_core::meter::{DirectionCounters, Meter};
use netnice_core::units::{Amount, Instant, Nanos, Rate};
use netnice_kernel::traffic::ByteCounts;

use crate::host::InterfaceTraffic;

/// The counters of the last reading, and the rates between the last two readings.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    read_at: Option<Instant>,
    /// The counters at the last reading, by target id.
    meters: BTreeMap<u32, Meter>,
    /// The rates between the last two readings, sending and receiving, by target id.
    rates: BTreeMap<u32, [TargetRates; 2]>,
    links_at: Option<Instant>,
    links: BTreeMap<String, LinkTraffic>,
    audited_at: Option<Instant>,
}

/// The rates of one target in one direction between two readings, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetRates {
    /// Bit/s passed.
    pub rate: Amount,
    /// Packets dropped, rounded up.
    pub drops: u64,
    /// Number of times that a packet waited because of the limit, rounded up.
    pub held: u64,
}

/// The traffic of a managed link.
#[derive(Debug, Default)]
struct LinkTraffic {
    passed: ByteCounts,
    /// Bit/s sent and received between the last two readings; `None` before the second.
    rates: Option<[Amount; 2]>,
    /// The number of successive readings above what the receive stage passes.
    above: u32,
}

impl Rates {
    /// True if an audit of all kernel objects is due; then its time is recorded.
    pub(crate) fn is_time_to_audit(&mut self, now: Instant) -> bool {
        let due = self
            .audited_at
            .is_none_or(|at| now.since(at) >= AUDIT_INTERVAL);
        if due {
            self.audited_at = Some(now);
        }
        due
    }

    /// Adds a reading of the targets' counters. Skipped if the last reading is less than 200 ms
    /// old.
    pub(crate) fn targets(&mut self, now: Instant, meters: &[(u32, Meter)]) {
        let passed = self.read_at.map_or(Nanos(0), |at| now.since(at));
        if self.read_at.is_some() && passed < MIN_INTERVAL {
            return;
        }
        let meters: BTreeMap<u32, Meter> = meters.iter().copied().collect();
        self.rates = meters
            .iter()
            .filter_map(|(id, now)| {
                let before = self.meters.get(id).filter(|_| passed <= MAX_INTERVAL)?;
                let pace = |d: Direction| {
                    TargetRates::between(before.counters(d), now.counters(d), passed)
                };
                Some((*id, Direction::ALL.map(pace)))
            })
            .collect();
        self.meters = meters;
        self.read_at = Some(now);
    }

    /// The time of the last reading; `None` if there is none, or if it is more than `most` ago.
    pub(crate) fn read_within(&self, most: Nanos, now: Instant) -> Option<Instant> {
        self.read_at.filter(|at| now.since(*at) <= most)
    }

    /// A target's counters at the last reading; zeros if it was not read.
    pub(crate) fn meter(&self, id: u32) -> Meter {
        self.meters.get(&id).copied().unwrap_or_default()
    }

    /// A target's present rates, sending and receiving. `None` if the last two readings are more
    /// than [`MAX_INTERVAL`] (5 s) apart, if the last one is older than that, or if the target was
    /// not in both.
    pub(crate) fn present_rates(&self, id: u32, now: Instant) -> Option<[TargetRates; 2]> {
        self.read_within(MAX_INTERVAL, now)?;
        self.rates.get(&id).copied()
    }

    /// A target's present sending and receiving rate in bit/s; `None` as for
    /// [`Rates::present_rates`].
    pub(crate) fn of(&self, id: u32, now: Instant) -> Option<[Amount; 2]> {
        self.present_rates(id, now)
            .map(|rates| rates.map(|pace| pace.rate))
    }

    /// Adds a reading of the interfaces of managed links. `links` has each link with the rate that
    /// its receive stage passes. Skipped if the last reading is less than 200 ms old.
    pub(crate) fn links(
        &mut self,
        now: Instant,
        seen: &InterfaceTraffic,
        links: &[(String, Option<Rate>)],
    ) {
        let passed = self.links_at.map_or(Nanos(0), |at| now.since(at));
        if self.links_at.is_some() && passed < MIN_INTERVAL {
            return;
        }
        self.links
            .retain(|name, _| links.iter().any(|(link, _)| link == name));
        for (name, usable) in links {
            let Some(now) = seen.get(name).copied() else {
                self.links.remove(name);
                continue;
            };
            let known = self.links.get(name);
            let rates = known.map(|traffic| {
                let before = traffic.passed;
                [
                    per_second(before.sent, now.sent, passed),
                    per_second(before.received, now.received, passed),
                ]
            });
            let is_above = usable.zip(rates).is_some_and(|(usable, [_, received])| {
                let most = usable
                    .portion(OVERLOAD_FACTOR.0, OVERLOAD_FACTOR.1)
                    .unwrap_or(usable);
                received > most.into()
            });
            let above = match is_above {
                true => known.map_or(0, |traffic| traffic.above) + 1,
                false => 0,
            };
            let traffic = LinkTraffic {
                passed: now,
                rates,
                above,
            };
            self.links.insert(name.clone(), traffic);
        }
        self.links_at = Some(now);
    }

    /// A link's receiving rate, if it was more than 2.3 % above what the receive stage passes in
    /// each of the last [`OVERLOAD_READINGS`] (3) readings; else `None`.
    pub(crate) fn overload(&self, link: &str) -> Option<Amount> {
        let traffic = self.links.get(link)?;
        let [_, received] = traffic.rates?;
        (traffic.above >= OVERLOAD_READINGS).then_some(received)
    }

    /// A link's sending and receiving rate between its last two readings, in bit/s. `None` if there
    /// are no two, or if the last one is more than [`MAX_INTERVAL`] (5 s) ago.
    pub(crate) fn of_link(&self, link: &str, now: Instant) -> Option<[Amount; 2]> {
        self.links_at.filter(|at| now.since(*at) <= MAX_INTERVAL)?;
        self.links.get(link)?.rates
    }
}

impl TargetRates {
    fn between(before: &DirectionCounters, now: &DirectionCounters, passed: Nanos) -> TargetRates {
        // `per_second` converts bytes to bits, a factor of eight that counts of packets do not
        // need.
        let times = |before, now| per_second(before, now, passed).0.div_ceil(8);
        TargetRates {
            rate: per_second(before.sent_bytes, now.sent_bytes, passed),
            drops: times(before.dropped_packets, now.dropped_packets),
            held: times(before.held_back, now.held_back),
        }
    }
}

fn per_second(before: u64, after: u64, passed: Nanos) -> Amount {
    if passed.0 == 0 {
        return Amount(0);
    }
    let bits = u128::from(after.saturating_sub(before)) * 8 * 1_000_000_000;
    Amount(u64::try_from(bits / u128::from(passed.0)).unwrap_or(u64::MAX))
}

/// Readings closer together than this are too inaccurate for rates.
const MIN_INTERVAL: Nanos = Nanos::from_millis(200);
/// Readings further apart than this give no present rate.
const MAX_INTERVAL: Nanos = Nanos::from_secs(5);
/// How often all kernel objects are audited without an event: at every tick of a second, so that a
/// repair takes less than two.
const AUDIT_INTERVAL: Nanos = Nanos::from_millis(900);
/// TCP exceeds its rate for a moment while it probes; only an excess in so many readings counts.
const OVERLOAD_READINGS: u32 = 3;
/// TCP's retransmissions after it has exceeded its rate stay below this factor (sixteen flows in
/// 1.4 Mbit/s of 100: 1.8 % above what passes); a flood fills the wire, 3 % above it.
const OVERLOAD_FACTOR: (u64, u64) = (1_023, 1_000);

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> Instant {
        Instant(0).after(Nanos::from_secs(n))
    }

    fn sent(bytes: u64) -> Vec<(u32, Meter)> {
        let mut meter = Meter::default();
        meter.up.sent_bytes = bytes;
        vec![(1, meter)]
    }

    #[test]
    fn a_rate_needs_two_recent_readings() {
        let mut rates = Rates::default();
        rates.targets(second(1), &sent(1_000));
        assert_eq!(rates.of(1, second(1)), None, "one reading is no rate");
        rates.targets(second(2), &sent(126_000));
        assert_eq!(rates.of(1, second(2)), Some([Amount(1_000_000), Amount(0)]));
        assert_eq!(rates.of(1, second(8)), None, "it is old");
        rates.targets(second(9), &sent(500_000));
        assert_eq!(
            rates.of(1, second(9)),
            None,
            "the reading before was too long ago"
        );
    }

    #[test]
    fn one_drop_in_a_long_interval_is_not_rounded_to_zero() {
        let mut rates = Rates::default();
        let mut meter = Meter::default();
        rates.targets(second(1), &[(1, meter)]);
        meter.up.dropped_packets = 1;
        meter.up.held_back = 30;
        rates.targets(second(4), &[(1, meter)]);
        let [up, down] = rates.present_rates(1, second(4)).expect("two readings");
        assert_eq!((up.drops, up.held, up.rate), (1, 10, Amount(0)));
        assert_eq!(down, TargetRates::default());
    }

    #[test]
    fn only_a_lasting_excess_is_an_overload() {
        let mut rates = Rates::default();
        let links = [("eth0".to_owned(), "97mbit".parse().ok())];
        let mut total = 0;
        let mut read = |second_: u64, megabits: u64| {
            total += megabits * 125_000;
            let passed = ByteCounts {
                received: total,
                sent: 0,
            };
            let seen = InterfaceTraffic::from([("eth0".to_owned(), passed)]);
            rates.links(second(second_), &seen, &links);
            rates.overload("eth0").is_some()
        };
        assert!(!read(1, 0));
        assert!(!read(2, 120), "once is a moment");
        assert!(!read(3, 90));
        assert!(!read(4, 100));
        assert!(!read(5, 100));
        assert!(read(6, 100));
        assert!(read(7, 120));
        assert!(!read(8, 98), "what TCP sends again is no flood");
    }

    #[test]
    fn an_audit_is_due_every_second() {
        let mut rates = Rates::default();
        assert!(rates.is_time_to_audit(second(1)));
        let soon = Instant(second(1).0 + 500_000_000);
        assert!(!rates.is_time_to_audit(soon));
        assert!(
            rates.is_time_to_audit(second(2)),
            "at every tick of a second"
        );
    }
}
