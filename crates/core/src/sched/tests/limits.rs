//! Tests of limits on flows with a guarantee: cells, slices, channels.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::channels::{channel, message};
use super::world::*;
use crate::contract::Contract;
use crate::policer::{Observation, Policer};
use crate::sched::{Departure, FlowId, Guarantee, NotServed, Packet, Service, Turn, Wire};
use crate::units::{Bytes, Instant, Nanos, Rate};

/// The guarantee of a service, under a limit.
pub(super) fn limited(service: Service, kbit: u64, burst: Nanos) -> Service {
    let guarantee = match service {
        Service::Slice { slice, weight } => Guarantee::Slice { slice, weight },
        Service::Cell(cell) => Guarantee::Cell(cell),
        Service::Channel(channel) => Guarantee::Channel(channel),
        other => panic!("{other:?}"),
    };
    let max = (Rate::new(kbit * 1000).unwrap(), burst);
    Service::Limited { guarantee, max }
}

/// Panics if a flow ever exceeded a limit.
fn policed(world: &World, flow: FlowId, kbit: u64, burst: Nanos) {
    let mut policer = Policer::limit(Rate::new(kbit * 1000).unwrap(), burst);
    for one in world.sent_by(flow) {
        let (at, length) = (one.start, one.length);
        policer.handle(Observation { at, length }).unwrap();
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_cell_keeps_to_the_stricter_one() {
    let mut world = World::new(Wire::new(mbit(100)));
    let flood = world.flow(Service::best_effort(weight(1000)));
    // 8 Mbit/s under a limit of 3, and 2 Mbit/s under a limit of 3.
    let tight = world.flow(limited(Service::Cell(cell(mbit(8), ms(1))), 3_000, ms(2)));
    let loose = world.flow(limited(Service::Cell(cell(mbit(2), ms(1))), 3_000, ms(2)));
    world.greedy(flood, 1500);
    world.greedy(tight, 500);
    world.greedy(loose, 500);
    world.run(2_000_000_000);
    for (flow, due, pcr) in [(tight, 750_000, 8), (loose, 500_000, 2)] {
        let got = world.bytes_of(flow);
        assert!((due - 500..=due + 1500).contains(&got), "{got} of {due}");
        policed(&world, flow, 3_000, ms(2));
        let mut policer = Policer::cell(cell(mbit(pcr), ms(1)));
        for one in world.sent_by(flow) {
            let (at, length) = (one.start, one.length);
            policer.handle(Observation { at, length }).unwrap();
        }
    }
    assert_eq!(world.misses(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn the_extra_of_a_slice_is_limited_too() {
    let mut world = World::new(Wire::new(mbit(100)));
    // 20 Mbit/s of slice and the whole left-over, but 30 Mbit/s in all.
    let flow = world.flow(limited(slice(ms(10), ms(50), true), 30_000, ms(5)));
    world.careful = true;
    world.greedy(flow, 1500);
    world.run(300_000_000);
    world.careful = false;
    world.run(2_000_000_000);
    policed(&world, flow, 30_000, ms(5));
    let due = 30_000_000 / 8 * 2;
    let got = world.bytes_of(flow);
    assert!(
        (due - 3000..due + 19_000 + 1500).contains(&got),
        "{got} of {due}"
    );
    let extra = world.sent_by(flow).filter(|one| one.turn == Turn::LeftOver);
    assert!(extra.count() > 1000);
}

#[test]
fn the_early_packets_of_a_channel_are_limited_too() {
    let wire = Wire {
        horizon: ms(50),
        ..Wire::new(mbit(100))
    };
    let mut world = World::new(wire);
    // Five messages of 1.2 ms each at the limit's rate, 10 ms apart. Two of them may go at once.
    let flow = world.flow(limited(channel(1500, 100, 5, ms(4)), 10_000, us(1300)));
    for _ in 0..5 {
        message(&mut world, flow, &[1500]);
    }
    world.run(100_000_000);
    policed(&world, flow, 10_000, us(1300));
    let starts: Vec<u64> = world.sent_by(flow).map(|one| one.start.0).collect();
    assert_eq!(starts.len(), 5);
    assert!(starts[1] < 200_000, "{starts:?}");
    assert!(
        (1_100_000..1_140_000).contains(&starts[2]),
        "the first one that had to wait: {starts:?}"
    );
    assert!(world.sent_by(flow).any(|one| one.turn == Turn::Early));
}

/// If a limit delays the packets of one message, they stay one message.
#[test]
fn a_message_that_is_held_up_stays_one() {
    let mut world = World::new(Wire::new(mbit(100)));
    let flow = world.flow(limited(channel(6000, 10, 2, ms(40)), 5_000, us(100)));
    message(&mut world, flow, &[1500; 4]);
    message(&mut world, flow, &[1500; 4]);
    world.run(300_000_000);
    let deadlines: Vec<Turn> = world.sent_by(flow).map(|one| one.turn).collect();
    let at = |ms: u64| Turn::Guaranteed {
        deadline: Instant(ms * 1_000_000),
    };
    assert_eq!(deadlines, [[at(40); 4], [at(140); 4]].concat());
    let starts: Vec<u64> = world.sent_by(flow).map(|one| one.start.0).collect();
    // 2.4 ms for each; the burst covers 0.1 ms of it once.
    assert!((7_000_000..7_200_000).contains(&starts[3]), "{starts:?}");
}

/// With a deadline that is over it must not go before messages that can still be in time.
#[test]
fn a_message_that_comes_through_behind_its_deadline_counts_from_then() {
    let mut world = World::new(Wire::new(mbit(100)));
    // 12 ms of the limit for each, 10 ms apart, with a deadline of 5 ms.
    let flow = world.flow(limited(channel(1500, 100, 3, ms(5)), 1_000, us(10)));
    for _ in 0..4 {
        message(&mut world, flow, &[1500]);
    }
    world.run(100_000_000);
    let late: Vec<u64> = (0..4)
        .zip(world.sent_by(flow))
        .map(|(number, one)| match one.turn {
            Turn::Guaranteed { deadline } => deadline.0.abs_diff(5_000_000 + number * 12_000_000),
            other => panic!("{other:?}"),
        })
        .collect();
    // The second and the third are late by 2 and by 4 ms and keep their deadlines. The fourth is
    // late by 6 ms: its deadline is 5 ms from then.
    let near = [0, 2_000_000, 4_000_000, 0];
    let apart = late.iter().zip(near).all(|(a, b)| a.abs_diff(b) < 50_000);
    assert!(apart, "{late:?}");
}

#[test]
fn a_limit_comes_and_goes_and_what_is_used_stays_used() {
    let mut world = World::new(Wire::new(mbit(100)));
    let free = Service::Cell(cell(mbit(10), ms(1)));
    let share = Service::Share {
        min: None,
        max: Some((mbit(1), ms(1))),
        weight: weight(1),
    };
    let flow = world.flow(limited(free, 1_000, ms(1)));
    world.greedy(flow, 1250);
    world.run(1_000_000);
    assert_eq!(world.sent.len(), 1, "10 ms for the first packet");
    // A flow of another kind with the same limit has to wait as long.
    for service in [
        share,
        limited(slice(ms(1), ms(2), true), 1_000, ms(1)),
        share,
    ] {
        world
            .link
            .change(flow, service, Instant(world.now))
            .unwrap();
        world.link.invariants();
        world.run(world.now + 1_000_000);
        assert_eq!(world.sent.len(), 1, "{service:?}");
    }
    world.link.change(flow, free, Instant(world.now)).unwrap();
    world.run(world.now + 10_000_000);
    let sent = world.sent.len();
    assert!((10..=12).contains(&sent), "10 Mbit/s without it: {sent}");
}

/// A rate that is promised anew counts from then on, even if the flow has been busy for long.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_promise_to_a_busy_flow_is_no_credit() {
    let seconds = 1_000_000_000;
    let min = Service::Share {
        min: Some(mbit(10)),
        max: None,
        weight: weight(1),
    };
    for service in [min, Service::Cell(cell(mbit(10), ms(1)))] {
        let mut world = World::new(Wire::new(mbit(100)));
        let flood = world.flow(Service::best_effort(weight(1000)));
        let flow = world.flow(Service::best_effort(weight(1)));
        world.greedy(flood, 1500);
        world.greedy(flow, 1500);
        world.run(5 * seconds);
        let before = world.bytes_of(flow);
        world
            .link
            .change(flow, service, Instant(world.now))
            .unwrap();
        world.run(6 * seconds);
        let got = (world.bytes_of(flow) - before) * 8;
        assert!((9_900_000..10_300_000).contains(&got), "{service:?}: {got}");
    }
}

#[test]
fn contracts_with_a_limit_are_served() {
    let served = |text: &str| Service::of(&text.parse::<Contract>().unwrap());
    assert!(matches!(
        served("up 4mbit burst 2ms cell pcr=3mbit,cdvt=1ms"),
        Ok(Service::Limited { guarantee: Guarantee::Cell(_), max }) if max == (mbit(4), ms(2))
    ));
    let slice = served("both 4mbit slice 1ms/10ms extra");
    assert!(
        matches!(slice, Ok(Service::Limited { guarantee: Guarantee::Slice { .. }, max })
        if max == (mbit(4), ms(5)))
    );
    let channel = served("up 4mbit channel mmax=1kB,rmax=30/s,bmax=4,deadline=20ms");
    assert!(matches!(channel, Ok(Service::Limited { .. })));
    assert!(matches!(
        served("slice 1ms/10ms cell pcr=3mbit,cdvt=1ms"),
        Err(NotServed::Several)
    ));
    assert!(served("min 1mbit cell pcr=3mbit,cdvt=1ms").is_err());
    let priority = served("min 1mbit priority 3");
    assert!(matches!(priority, Err(NotServed::Priority)));
}

/// The statement of the module: a flow under a limit equals one without a limit at which the same
/// packets arrive when the limit lets them go.
fn same_as_coming_later(service: Service, kbit: u64, burst: u64, lengths: &[u64]) {
    let busy = |world: &mut World| {
        let flood = world.flow(Service::best_effort(weight(1)));
        world.greedy(flood, 1514);
    };
    // Messages keep their arrival.
    let offer = |world: &mut World, flow: FlowId, length: u64| {
        world.offer(flow, Packet::first(Bytes(length), Instant(0)));
    };
    let mut held = World::new(Wire::new(mbit(100)));
    busy(&mut held);
    let flow = held.flow(limited(service, kbit, Nanos(burst)));
    for length in lengths {
        offer(&mut held, flow, *length);
    }
    held.run(10_000_000_000);
    policed(&held, flow, kbit, Nanos(burst));
    let found: Vec<Departure> = held.sent_by(flow).copied().collect();
    assert_eq!(found.len(), lengths.len());

    // TATm by its definition, in exact fractions of a nanosecond (10^6 parts).
    let mut free = World::new(Wire::new(mbit(100)));
    busy(&mut free);
    let flow = free.flow(service);
    let (mut tat, kept) = (0_u128, u128::from(burst) * 127 / 128);
    let slack = 1514 * 80 * 2 + 600;
    for (length, one) in lengths.iter().zip(&found) {
        let gate = (tat / 1_000_000).saturating_sub(kept) as u64;
        assert!(
            one.start.0 >= gate.saturating_sub(burst / 100),
            "{one:?} before {gate}"
        );
        free.run(gate.max(free.now));
        offer(&mut free, flow, *length);
        let span = u128::from(*length) * 8 * 1_000_000_000_000 / u128::from(kbit * 1000) * 1000;
        tat = tat.max(u128::from(one.start.0) * 1_000_000) + span;
    }
    free.run(10_000_000_000);
    let apart = free.sent_by(flow).zip(&found);
    for (number, (a, b)) in apart.enumerate() {
        // One packet of another flow more or less, the rounding of the burst, and that of a wait.
        let wait = found[number.saturating_sub(1)].start.0.abs_diff(b.start.0);
        let most = slack + burst / 64 + wait / 256;
        assert!(
            a.start.0.abs_diff(b.start.0) <= most,
            "packet {number}: {} without, {} with a limit",
            a.start.0,
            b.start.0
        );
    }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn a_limit_stands_before_the_contract(
        kind in 0..3,
        kbit in 200_u64..20_000,
        burst in 1_000_u64..20_000_000,
        promised in 1_u64..20,
        lengths in prop::collection::vec(64_u64..1500, 1..40),
    ) {
        let service = match kind {
            0 => Service::Cell(cell(mbit(promised), ms(1))),
            1 => channel(1500, 10 * promised as u32, 3, ms(60_000)),
            _ => slice(ms(promised), ms(40), false),
        };
        same_as_coming_later(service, kbit, burst, &lengths);
    }
}
