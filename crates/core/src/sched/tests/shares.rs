//! Tests of the left-over: fairness, minimums, limits.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::world::*;
use crate::policer::{Observation, Policer};
use crate::sched::{FlowId, Packet, Service, Wire};
use crate::units::{Bytes, Nanos};

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
    let mut world = World::new(Wire::new(mbit(100)));
    let a = world.flow(share(Some(60), None, 100));
    let b = world.flow(share(Some(20), None, 200));
    let c = world.flow(share(None, None, 100));
    for flow in [a, b, c] {
        world.greedy(flow, 1500);
    }
    world.run(2_000_000_000);
    let rate = |flow| world.bytes_of(flow) * 8 / 2 / 1000;
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
    let mut world = World::new(Wire::new(mbit(100)));
    let a = world.flow(share(None, Some(4), 100));
    let b = world.flow(share(Some(10), Some(12), 100));
    world.greedy(a, 1500);
    world.greedy(b, 700);
    world.run(3_000_000_000);
    for (flow, rate) in [(a, 4), (b, 12)] {
        let mut policer = Policer::limit(mbit(rate), ms(5));
        for one in world.sent_by(flow) {
            policer
                .handle(Observation {
                    at: one.start,
                    length: one.length,
                })
                .unwrap();
        }
        let due = mbit(rate).bytes_in(Nanos::from_secs(3)).0;
        assert!(
            world.bytes_of(flow) >= due - 1500,
            "{flow}: {} of {due}",
            world.bytes_of(flow)
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_minimum_holds_from_the_moment_somebody_wakes() {
    let mut world = World::new(Wire::new(mbit(100)));
    let flood = world.flow(share(None, None, 1000));
    let sparse = world.flow(share(Some(10), None, 1));
    world.greedy(flood, 1500);
    for _ in 0..500 {
        world.offer(sparse, Packet::new(Bytes(500)));
        let at = world.now;
        world.run(at + 7_000_000);
        let one = world.sent_by(sparse).last().unwrap();
        assert!(
            one.end.0 <= at + 400_000 + 120_000,
            "{} after {at}",
            one.end.0
        );
    }
}

/// The bound of start-time fair queueing, with the rounding of tags by 1/1024.
fn fairness_bound(world: &World, flows: &[(FlowId, u16, u64)]) {
    for (i, (a, weight_a, length_a)) in flows.iter().enumerate() {
        for (b, weight_b, length_b) in &flows[i + 1..] {
            // Service per weight of one flow less that of the other, over all intervals at once:
            // the greatest difference between two moments is that of the extremes.
            let (mut level, mut least, mut most) = (0.0, 0.0_f64, 0.0_f64);
            for one in &world.sent {
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
    fn nobody_is_ahead_by_more_than_a_packet(
        raw in prop::collection::vec((1_u16..=1000, 40_u64..=1500, any::<bool>()), 2..12),
        bursts in prop::collection::vec((1_usize..10, 0_u64..3_000_000), 0..40),
    ) {
        let mut world = World::new(Wire::new(mbit(1000)));
        let guaranteed = world.flow(slice(ms(3), ms(10), false));
        // Best effort, or the extra time of a slice that is spent from the first packet on.
        let flows: Vec<_> = raw.iter().map(|(parts, length, extra)| {
            let flow = world.flow(match extra {
                false => share(None, None, *parts),
                true => spent(*parts),
            });
            (flow, *parts, *length)
        }).collect();
        for (flow, _, length) in &flows {
            world.greedy(*flow, *length);
        }
        // The first packet of a slice is guaranteed. The later ones are in the left-over.
        world.run(1_000_000);
        world.sent.clear();
        for (packets, gap) in bursts {
            for _ in 0..packets {
                world.offer(guaranteed, Packet::new(Bytes(1500)));
            }
            world.run(world.now + gap);
        }
        world.careful = true;
        world.run(world.now + 3_000_000);
        fairness_bound(&world, &flows);
        prop_assert_eq!(world.misses(), 0);
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
