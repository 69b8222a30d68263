//! Tests of cell contracts: conformance, rate, and the two kinds of bucket.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::limits::limited;
use super::simulation::*;
use crate::contract::{self, Bucket};
use crate::policer::{Observation, Policer};
use crate::sched::{Departure, Service, Wire};
use crate::units::{Bytes, Instant, Nanos, Rate};

/// Fails unless every packet conforms.
fn check_conformance<'a>(contract: contract::Cell, sent: impl Iterator<Item = &'a Departure>) {
    let mut policer = Policer::cell(contract);
    for one in sent {
        let seen = Observation {
            at: one.start,
            length: one.length,
        };
        policer.handle(seen).unwrap();
    }
}

#[test]
fn a_constant_rate_is_exact() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let contract = cell(mbit(10), us(200));
    let flow = sim.flow(Service::Cell(contract));
    sim.greedy(flow, 1250);
    sim.run(1_000_000_000);
    let starts: Vec<u64> = sim.sent_by(flow).map(|one| one.start.0).collect();
    assert!((1000..=1001).contains(&starts.len()), "{}", starts.len());
    for (k, start) in starts.iter().enumerate() {
        let exact = k as u64 * 1_000_000;
        assert!(
            *start >= exact && *start < exact + 1000,
            "packet {k} at {start}"
        );
    }
    check_conformance(contract, sim.sent_by(flow));
}

#[test]
fn a_single_bucket_bursts_and_goes_on_at_the_sustained_rate() {
    let mut sim = Simulation::new(Wire::new(mbit(1000)));
    let contract = bucket(mbit(100), us(50), mbit(10), 12_500, Bucket::Single);
    let flow = sim.flow(Service::Cell(contract));
    sim.greedy(flow, 1250);
    sim.run(100_000_000);
    let starts: Vec<u64> = sim.sent_by(flow).map(|one| one.start.0).collect();
    // Ten packets of 100 us at the peak, then one each millisecond.
    assert!(starts[9] >= 900_000 && starts[9] < 902_000, "{}", starts[9]);
    assert!(starts[10] - starts[9] > 900_000, "the burst is ten packets");
    let steady = starts[60] - starts[10];
    assert!((steady as i64 - 50_000_000).abs() < 60_000, "{steady}");
    check_conformance(contract, sim.sent_by(flow));
}

/// Waiting for the bucket is not lateness, also with a CDVT that is longer than the wait.
#[test]
fn a_dual_bucket_bursts_and_is_silent() {
    for (peak, mean, cdvt) in [
        (100, 10, us(50)),
        (100, 10, us(8_000)),
        (100, 10, us(9_500)),
        (100, 10, ms(4_000)),
        (10, 5, ms(20)),
    ] {
        let mut sim = Simulation::new(Wire::new(mbit(1000)));
        let contract = bucket(mbit(peak), cdvt, mbit(mean), 12_500, Bucket::Dual);
        let flow = sim.flow(Service::Cell(contract));
        sim.greedy(flow, 1250);
        sim.run(1_000_000_000 / mean);
        let starts: Vec<u64> = sim.sent_by(flow).map(|one| one.start.0).collect();
        let apart = 10_000_000 / peak;
        let mut bursts = starts.chunk_by(|a, b| b - a < 2 * apart);
        let long = bursts.clone().count();
        assert!((10..=11).contains(&long), "{long} bursts with {cdvt}");
        assert!(
            bursts.all(|burst| burst.len() == 10 || burst.last() == starts.last()),
            "bursts with {cdvt}: {:?}",
            bursts.map(<[u64]>::len).collect::<Vec<_>>()
        );
        check_conformance(contract, sim.sent_by(flow));
    }
}

/// The wait of a late flow is short. It is rounded as the time between two of its packets is, so
/// that many flows wake together. No packet is early, and none is later than a thousandth of that
/// time.
#[test]
fn late_flows_wake_together() {
    const SPACING: u64 = 10_000_000;
    let mut sim = Simulation::new(Wire {
        ahead: ms(1),
        ..Wire::new(mbit(100_000))
    });
    for flow in 0..100 {
        let flow = (sim.flow(Service::Cell(cell(mbit(1), us(9_500)))), flow);
        sim.run(3_000 * flow.1);
        sim.greedy(flow.0, 1250);
    }
    // All flows are 9 ms late, and have to wait for the tenth.
    sim.run(SPACING - 1_000_000);
    sim.now = 2 * SPACING - 1_000_000;
    let late = sim.now;
    while let Some(departure) = sim.poll() {
        assert!(departure.eligible.0 <= SPACING + 300_000);
    }
    let (mut wakes, mut packets) = (0, 0);
    while let Some(next) = sim.link.poll_timeout()
        && next.0 < late + SPACING
    {
        sim.now = next.0;
        wakes += 1;
        while let Some(departure) = sim.poll() {
            let waited = sim.now.checked_sub(departure.eligible.0).unwrap();
            assert!(waited <= SPACING / 1000, "{waited} ns late");
            packets += 1;
        }
    }
    assert_eq!(packets, 100);
    // 300 us in buckets of 8.2 us. On the general path, waits of a millisecond have buckets of 512
    // ns.
    assert!(wakes <= 38 + 12, "{wakes} wakes");
}

/// A contract between 0.1 % and 5 % of 1 Gbit/s, with bursts of up to 20 packets.
fn contracts() -> impl Strategy<Value = contract::Cell> {
    let parts = (
        1_000_u64..50_000,
        20_u64..=100,
        1_u64..20,
        0_u8..3,
        100_u64..5_000,
    );
    parts.prop_map(|(kbit, percent, packets, kind, cdvt)| {
        let pcr = Rate::new(kbit * 1000).unwrap();
        let scr = pcr.portion(percent, 100).unwrap();
        let cdvt = us(cdvt);
        match kind {
            0 => cell(pcr, cdvt),
            1 => bucket(pcr, cdvt, scr, packets * 1500, Bucket::Single),
            _ => bucket(pcr, cdvt, scr, packets * 1500, Bucket::Dual),
        }
    })
}

proptest! {
    #![proptest_config(cases(12))]

    /// Random contracts of a link that carries them all, with packets of any size: every packet
    /// conforms, every backlogged flow gets its rate, and no packet is lost.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn a_policer_finds_no_violation(
        flows in prop::collection::vec((contracts(), 64_u64..1500, any::<bool>()), 1..20),
        arrivals in prop::collection::vec((0_usize..20, 40_u64..1500, 0_u64..400_000), 0..400),
    ) {
        let mut sim = Simulation::new(Wire::new(mbit(1000)));
        let ids: Vec<_> = flows.iter().map(|(c, ..)| sim.flow(Service::Cell(*c))).collect();
        for (id, (_, length, greedy)) in ids.iter().zip(&flows) {
            if *greedy {
                sim.greedy(*id, *length);
            }
        }
        let mut random = 0;
        for (which, length, gap) in arrivals {
            sim.checks_invariants = random % 16 == 0;
            let (id, greedy) = (ids[which % ids.len()], flows[which % ids.len()].2);
            if !greedy {
                sim.offer(id, crate::sched::Packet::new(Bytes(length)));
                random += 1;
            }
            sim.run(sim.now + gap);
        }
        let end = sim.now + 200_000_000;
        sim.run(end);
        for (id, (contract, length, greedy)) in ids.iter().zip(&flows) {
            check_conformance(*contract, sim.sent_by(*id));
            if *greedy {
                let rate = contract.sustained().map_or(contract.pcr(), |s| s.scr);
                let cdvt = contract.cdvt().0;
                // The loss: the time by which contention exceeds CDVT, the lateness of the next
                // packet, and the width of its bucket.
                let late = sim.sent_by(*id).map(|one| one.start.0 - one.eligible.0);
                let late: Vec<u64> = late.collect();
                let lost: u64 = late.iter().filter(|late| **late >= cdvt).sum();
                let off = lost + late.iter().max().unwrap() + cdvt / 32 + 1000;
                let due = rate.bytes_in(Nanos(end - off)).0;
                prop_assert!(
                    sim.bytes_of(*id) + length >= due,
                    "{id} sent {} of {due}",
                    sim.bytes_of(*id),
                );
            }
        }
        let left: usize = ids.iter().map(|id| sim.queued(*id)).sum();
        let random_sent = sim.sent.iter().filter(|one| !flows[one.flow.index()].2).count();
        prop_assert_eq!(sim.offered, left + random_sent);
    }
}

/// A link whose sender is stopped at times between decision and departure, for up to three times
/// CDVT. Returns the packets of each flow as they left and as the scheduler decided.
fn run_with_stops(
    contracts: &[contract::Cell],
    stops: &[u64],
) -> Vec<Vec<(Departure, Observation)>> {
    let mut sim = Simulation::new(Wire::new(mbit(1000)));
    for contract in contracts {
        let flow = sim.flow(Service::Cell(*contract));
        sim.greedy(flow, 1000);
    }
    let mut left = vec![Vec::new(); contracts.len()];
    for stop in stops {
        let mut batch = Vec::new();
        while batch.len() < 32
            && let Some(departure) = sim.poll()
        {
            batch.push(departure);
        }
        sim.now += stop;
        let at = Instant(sim.now);
        for (number, of_flow) in left.iter_mut().enumerate() {
            let packets: Vec<_> = batch
                .iter()
                .filter(|one| one.flow.index() == number)
                .collect();
            let Some(first) = packets.first() else {
                continue;
            };
            let bytes = packets.iter().map(|one| one.length.0).sum();
            sim.link
                .handle_late_departure(first.flow, Bytes(bytes), at)
                .unwrap();
            of_flow.extend(packets.iter().map(|one| {
                let seen = Observation {
                    at: at.max(one.start),
                    length: one.length,
                };
                (**one, seen)
            }));
        }
        sim.link.invariants();
        let next = sim.link.poll_timeout().unwrap();
        sim.now = sim.now.max(next.0);
    }
    left
}

proptest! {
    #![proptest_config(cases(24))]

    /// After a stop no packet is early.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn a_policer_at_the_wire_finds_no_violation_after_stops(
        flows in prop::collection::vec(contracts(), 1..5),
        stops in prop::collection::vec(
            prop_oneof![3 => 0_u64..2_000, 1 => 0_u64..15_000_000],
            200..400,
        ),
    ) {
        for (contract, left) in flows.iter().zip(run_with_stops(&flows, &stops)) {
            let mut policer = Policer::cell(*contract);
            for (_, seen) in left {
                policer.handle(seen).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(64))]

    /// The decision is late and the departure later still, around CDVT. A departure within the
    /// tolerance needs no call of `handle_late_departure`.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn a_departure_within_the_tolerance_needs_no_correction(
        contract in contracts(),
        cdvt in prop_oneof![0_u64..4, 1_000_u64..100_000, Just(30_000_000)],
        limit in prop::option::of((500_u64..60_000, 1_u64..1_000)),
        delays in prop::collection::vec((0_u64..5, 0_u64..5, any::<u64>()), 300),
    ) {
        let sustained = contract.sustained();
        let contract = contract::Cell::new(contract.pcr(), Nanos(cdvt), sustained).unwrap();
        let service = match limit {
            None => Service::Cell(contract),
            Some((kbit, burst)) => limited(Service::Cell(contract), kbit, us(burst)),
        };
        let tolerance = service.tolerance().0;
        // No delay, a short one, one just within CDVT, one just beyond it, a longer one.
        let delay = |kind: u64, amount: u64| match kind {
            0 => 0,
            1 => amount % (cdvt + 1),
            2 => tolerance,
            3 => tolerance + 1 + amount % 3,
            _ => amount % (3 * cdvt + 1),
        };
        let mut sim = Simulation::new(Wire::new(mbit(1000)));
        let flow = sim.flow(service);
        sim.greedy(flow, 1001);
        let mut policer = Policer::cell(contract);
        for (decided, leaves, amount) in delays {
            sim.now = sim.link.poll_timeout().unwrap().0 + delay(decided, amount);
            let Some(one) = sim.poll() else { continue };
            let least = one.start.0.max(one.eligible.0 + delay(leaves, amount >> 32));
            // The end of the tolerance, or a time near it.
            let is_late = one.start.0 >= one.eligible.0 + cdvt;
            let last = one.start.0.max(one.eligible.0).max(match is_late {
                false => one.eligible.0 + tolerance,
                true => one.start.0 + tolerance,
            });
            let at = match leaves { 2 => last, 3 => last + 1, _ => least };
            policer.handle(Observation { at: Instant(at), length: one.length }).unwrap();
            sim.now = at;
            if at > last {
                sim.link.handle_late_departure(flow, one.length, Instant(at)).unwrap();
            }
        }
    }
}

#[test]
fn a_delay_within_the_tolerance_costs_no_rate() {
    let contract = cell(mbit(10), us(500));
    // 800 us a packet; each left 400 us later than decided.
    let left = &run_with_stops(&[contract], &[400_000; 100])[0];
    let starts: Vec<u64> = left.iter().map(|(one, _)| one.start.0).collect();
    let all = starts.last().unwrap() - starts[0];
    assert!(all < 99 * 800_000 + 1_000, "{all}");
}
