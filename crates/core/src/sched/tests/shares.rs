//! Tests of the left-over: fairness, minimums, limits.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::simulation::*;
use crate::policer::{Observation, Policer};
use crate::sched::{FlowId, Packet, Scheduler, Service, Wire};
use crate::units::{Bytes, Instant, Nanos};

fn share(min: Option<u64>, max: Option<u64>, parts: u16) -> Service {
    Service::Share {
        min: min.map(mbit),
        max: max.map(|rate| (mbit(rate), ms(5))),
        weight: weight(parts),
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn weights_are_kept_and_minimums_come_first() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let a = sim.flow(share(Some(60), None, 100));
    let b = sim.flow(share(Some(20), None, 200));
    let c = sim.flow(share(None, None, 100));
    for flow in [a, b, c] {
        sim.greedy(flow, 1500);
    }
    sim.run(2_000_000_000);
    let rate = |flow| sim.bytes_of(flow) * 8 / 2 / 1000;
    for (flow, kbit) in [(a, 65_000), (b, 30_000), (c, 5_000)] {
        assert!(
            rate(flow).abs_diff(kbit) <= 60,
            "{flow}: {} of {kbit}",
            rate(flow)
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_limit_holds_in_the_left_over_and_in_the_minimum() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let a = sim.flow(share(None, Some(4), 100));
    let b = sim.flow(share(Some(10), Some(12), 100));
    sim.greedy(a, 1500);
    sim.greedy(b, 700);
    sim.run(3_000_000_000);
    for (flow, rate) in [(a, 4), (b, 12)] {
        let mut policer = Policer::limit(mbit(rate), ms(5));
        for one in sim.sent_by(flow) {
            policer
                .handle(Observation {
                    at: one.start,
                    length: one.length,
                })
                .unwrap();
        }
        let due = mbit(rate).bytes_in(Nanos::from_secs(3)).0;
        assert!(
            sim.bytes_of(flow) >= due - 1500,
            "{flow}: {} of {due}",
            sim.bytes_of(flow)
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_minimum_holds_from_the_moment_a_flow_wakes() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flood = sim.flow(share(None, None, 1000));
    let sparse = sim.flow(share(Some(10), None, 1));
    sim.greedy(flood, 1500);
    for _ in 0..500 {
        sim.offer(sparse, Packet::new(Bytes(500)));
        let at = sim.now;
        sim.run(at + 7_000_000);
        let one = sim.sent_by(sparse).last().unwrap();
        assert!(
            one.end.0 <= at + 400_000 + 120_000,
            "{} after {at}",
            one.end.0
        );
    }
}

/// The bound of start-time fair queueing, with the rounding of tags by 1/1024.
fn fairness_bound(sim: &Simulation, flows: &[(FlowId, u16, u64)]) {
    for (i, (a, weight_a, length_a)) in flows.iter().enumerate() {
        for (b, weight_b, length_b) in &flows[i + 1..] {
            // Service per weight of one flow less that of the other, over all intervals at once:
            // the greatest difference between two moments is that of the extremes.
            let (mut level, mut least, mut most) = (0.0, 0.0_f64, 0.0_f64);
            for one in &sim.sent {
                let length = one.length.0 as f64;
                match one.flow {
                    flow if flow == *a => level += length / f64::from(*weight_a),
                    flow if flow == *b => level -= length / f64::from(*weight_b),
                    _ => continue,
                }
                least = least.min(level);
                most = most.max(level);
            }
            let bound =
                *length_a as f64 / f64::from(*weight_a) + *length_b as f64 / f64::from(*weight_b);
            assert!(
                most - least <= bound * (1.0 + 1.0 / 512.0),
                "{} of {bound}",
                most - least
            );
        }
    }
}

proptest! {
    #![proptest_config(cases(16))]

    /// Any weights and lengths, always backlogged, beside guaranteed traffic that comes and goes.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn fair_service_differs_by_at_most_one_packet(
        raw in prop::collection::vec((1_u16..=1000, 40_u64..=1500, any::<bool>()), 2..12),
        bursts in prop::collection::vec((1_usize..10, 0_u64..3_000_000), 0..40),
    ) {
        let mut sim = Simulation::new(Wire::new(mbit(1000)));
        let guaranteed = sim.flow(slice(ms(3), ms(10), false));
        // Best effort, or the extra time of a slice that is spent from the first packet on.
        let flows: Vec<_> = raw.iter().map(|(parts, length, extra)| {
            let flow = sim.flow(match extra {
                false => share(None, None, *parts),
                true => spent(*parts),
            });
            (flow, *parts, *length)
        }).collect();
        for (flow, _, length) in &flows {
            sim.greedy(*flow, *length);
        }
        // The first packet of a slice is guaranteed. The later ones are in the left-over.
        sim.run(1_000_000);
        sim.sent.clear();
        for (packets, gap) in bursts {
            for _ in 0..packets {
                sim.offer(guaranteed, Packet::new(Bytes(1500)));
            }
            sim.run(sim.now + gap);
        }
        sim.checks_invariants = true;
        sim.run(sim.now + 3_000_000);
        fairness_bound(&sim, &flows);
        prop_assert_eq!(sim.misses(), 0);
    }
}

/// A minimal slice, with extra.
fn spent(parts: u16) -> Service {
    let ten_seconds = Nanos::from_secs(10);
    Service::Slice {
        slice: crate::contract::Slice::new(Nanos(1), ten_seconds, true).unwrap(),
        weight: weight(parts),
    }
}

/// With many flows, most are named before they leave, so that the owner can prefetch them.
#[test]
fn upcoming_flows_are_named_before_they_leave() {
    let mut link = Scheduler::new(Wire::new(mbit(1000))).unwrap();
    let packet = Packet::new(Bytes(1000));
    for _ in 0..100 {
        let flow = link.insert(share(None, None, 100), Instant(0)).unwrap();
        link.handle_head(flow, packet, Instant(0)).unwrap();
    }
    let (mut named, mut foreseen, mut now) = (Vec::new(), 0, Instant(0));
    for _ in 0..1000 {
        let departure = link.poll(now, |_| Some(packet)).expect("a departure");
        if let Some(at) = named.iter().position(|flow| *flow == departure.flow) {
            named.remove(at);
            foreseen += 1;
        }
        named.extend(core::iter::from_fn(|| link.poll_upcoming()));
        now = departure.end;
    }
    assert!(foreseen > 800, "{foreseen} of 1,000");
}
