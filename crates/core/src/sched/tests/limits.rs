//! Tests of limits on flows with a guarantee: cells, slices, channels.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::channels::{channel, message, with_processing};
use super::simulation::*;
use crate::contract::Contract;
use crate::policer::{Observation, Policer};
use crate::sched::{
    Departure, FlowId, Guarantee, Next, NotServed, Packet, Scheduler, ServedAs, Service, Wire,
};
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
fn check_limit(sim: &Simulation, flow: FlowId, kbit: u64, burst: Nanos) {
    let mut policer = Policer::limit(Rate::new(kbit * 1000).unwrap(), burst);
    for one in sim.sent_by(flow) {
        let (at, length) = (one.start, one.length);
        policer.handle(Observation { at, length }).unwrap();
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_cell_keeps_to_the_stricter_of_contract_and_limit() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flood = sim.flow(Service::best_effort(weight(1000)));
    // 8 Mbit/s under a limit of 3, and 2 Mbit/s under a limit of 3.
    let tight = sim.flow(limited(Service::Cell(cell(mbit(8), ms(1))), 3_000, ms(2)));
    let loose = sim.flow(limited(Service::Cell(cell(mbit(2), ms(1))), 3_000, ms(2)));
    sim.greedy(flood, 1500);
    sim.greedy(tight, 500);
    sim.greedy(loose, 500);
    sim.run(2_000_000_000);
    for (flow, due, pcr) in [(tight, 750_000, 8), (loose, 500_000, 2)] {
        let got = sim.bytes_of(flow);
        assert!((due - 500..=due + 1500).contains(&got), "{got} of {due}");
        check_limit(&sim, flow, 3_000, ms(2));
        let mut policer = Policer::cell(cell(mbit(pcr), ms(1)));
        for one in sim.sent_by(flow) {
            let (at, length) = (one.start, one.length);
            policer.handle(Observation { at, length }).unwrap();
        }
    }
    assert_eq!(sim.misses(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn the_extra_of_a_slice_is_limited_too() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    // 20 Mbit/s of slice and the whole left-over, but 30 Mbit/s in all.
    let flow = sim.flow(limited(slice(ms(10), ms(50), true), 30_000, ms(5)));
    sim.checks_invariants = true;
    sim.greedy(flow, 1500);
    sim.run(300_000_000);
    sim.checks_invariants = false;
    sim.run(2_000_000_000);
    check_limit(&sim, flow, 30_000, ms(5));
    let due = 30_000_000 / 8 * 2;
    let got = sim.bytes_of(flow);
    assert!(
        (due - 3000..due + 19_000 + 1500).contains(&got),
        "{got} of {due}"
    );
    let extra = sim
        .sent_by(flow)
        .filter(|one| one.served_as == ServedAs::LeftOver);
    assert!(extra.count() > 1000);
}

#[test]
fn the_early_packets_of_a_channel_are_limited_too() {
    let wire = Wire {
        horizon: ms(50),
        ..Wire::new(mbit(100))
    };
    let mut sim = Simulation::new(wire);
    // Five messages of 1.2 ms each at the limit's rate, 10 ms apart. Two of them may go at once.
    let flow = sim.flow(limited(channel(1500, 100, 5, ms(4)), 10_000, us(1300)));
    for _ in 0..5 {
        message(&mut sim, flow, &[1500]);
    }
    sim.run(100_000_000);
    check_limit(&sim, flow, 10_000, us(1300));
    let starts: Vec<u64> = sim.sent_by(flow).map(|one| one.start.0).collect();
    assert_eq!(starts.len(), 5);
    assert!(starts[1] < 200_000, "{starts:?}");
    assert!(
        (1_100_000..1_140_000).contains(&starts[2]),
        "the first one that had to wait: {starts:?}"
    );
    assert!(
        sim.sent_by(flow)
            .any(|one| one.served_as == ServedAs::Early)
    );
}

/// If a limit delays the packets of one message, they stay one message.
#[test]
fn a_message_delayed_by_a_limit_stays_one_message() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flow = sim.flow(limited(channel(6000, 10, 2, ms(40)), 5_000, us(100)));
    message(&mut sim, flow, &[1500; 4]);
    message(&mut sim, flow, &[1500; 4]);
    sim.run(300_000_000);
    let deadlines: Vec<ServedAs> = sim.sent_by(flow).map(|one| one.served_as).collect();
    let at = |ms: u64| ServedAs::Guaranteed {
        deadline: Instant(ms * 1_000_000),
    };
    assert_eq!(deadlines, [[at(40); 4], [at(140); 4]].concat());
    let starts: Vec<u64> = sim.sent_by(flow).map(|one| one.start.0).collect();
    // 2.4 ms for each; the burst covers 0.1 ms of it once.
    assert!((7_000_000..7_200_000).contains(&starts[3]), "{starts:?}");
}

/// A packet that is reported as longer than the wire's longest counts as the longest, not as the
/// thousands of messages that its length would fill.
#[test]
fn a_packet_behind_the_head_counts_as_the_longest_at_most() {
    let mut starts = Vec::new();
    for length in [1514, u64::MAX] {
        let mut link = Scheduler::new(Wire::new(mbit(100))).unwrap();
        let service = limited(channel(1514, 1000, 2, ms(4)), 50_000, ms(1));
        let flow = link.insert(service, Instant(0)).unwrap();
        let head = Packet::first(Bytes(1514), Instant(0));
        link.handle_head(flow, head, Instant(0)).unwrap();
        let behind = Packet::first(Bytes(length), Instant(0));
        let first = link.next(Instant(0), |_| Some(behind));
        assert!(matches!(first, Next::Send(_)), "{first:?}");
        let mut now = Instant(0);
        let second = loop {
            match link.next(now, |_| None) {
                Next::Send(departure) => break departure,
                Next::Wait(until) => now = until,
                Next::Idle => panic!("the packet of {length} bytes never leaves"),
            }
        };
        assert_eq!(second.length, Bytes(1514));
        starts.push(second.start);
    }
    assert_eq!(starts[0], starts[1]);
}

/// With a deadline that is over it must not go before messages that can still be in time.
#[test]
fn a_message_released_after_its_deadline_arrives_at_its_release() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    // 12 ms of the limit for each, 10 ms apart, with a deadline of 5 ms.
    let flow = sim.flow(limited(channel(1500, 100, 3, ms(5)), 1_000, us(10)));
    for _ in 0..4 {
        message(&mut sim, flow, &[1500]);
    }
    sim.run(100_000_000);
    let late: Vec<u64> = (0..4)
        .zip(sim.sent_by(flow))
        .map(|(number, one)| match one.served_as {
            ServedAs::Guaranteed { deadline } => {
                deadline.0.abs_diff(5_000_000 + number * 12_000_000)
            }
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
fn a_changed_limit_keeps_what_was_used() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let free = Service::Cell(cell(mbit(10), ms(1)));
    let share = Service::Share {
        min: None,
        max: Some((mbit(1), ms(1))),
        weight: weight(1),
    };
    let flow = sim.flow(limited(free, 1_000, ms(1)));
    sim.greedy(flow, 1250);
    sim.run(1_000_000);
    assert_eq!(sim.sent.len(), 1, "10 ms for the first packet");
    // A flow of another kind with the same limit has to wait as long.
    for service in [
        share,
        limited(slice(ms(1), ms(2), true), 1_000, ms(1)),
        share,
    ] {
        sim.link.change(flow, service, Instant(sim.now)).unwrap();
        sim.link.invariants();
        sim.run(sim.now + 1_000_000);
        assert_eq!(sim.sent.len(), 1, "{service:?}");
    }
    sim.link.change(flow, free, Instant(sim.now)).unwrap();
    sim.run(sim.now + 10_000_000);
    let sent = sim.sent.len();
    assert!((10..=12).contains(&sent), "10 Mbit/s without it: {sent}");
}

/// A rate that is promised anew counts from then on, even if the flow has been busy for long.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_new_promise_to_a_busy_flow_gives_no_credit() {
    let seconds = 1_000_000_000;
    let min = Service::Share {
        min: Some(mbit(10)),
        max: None,
        weight: weight(1),
    };
    for service in [min, Service::Cell(cell(mbit(10), ms(1)))] {
        let mut sim = Simulation::new(Wire::new(mbit(100)));
        let flood = sim.flow(Service::best_effort(weight(1000)));
        let flow = sim.flow(Service::best_effort(weight(1)));
        sim.greedy(flood, 1500);
        sim.greedy(flow, 1500);
        sim.run(5 * seconds);
        let before = sim.bytes_of(flow);
        sim.link.change(flow, service, Instant(sim.now)).unwrap();
        sim.run(6 * seconds);
        let got = (sim.bytes_of(flow) - before) * 8;
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
        served("slice 1ms/10ms channel mmax=1kB,rmax=30/s,bmax=4,deadline=20ms"),
        Err(NotServed::Several)
    ));
    let priority = served("min 1mbit priority 3");
    assert!(matches!(priority, Err(NotServed::Priority)));
}

/// The statement of the module: a flow under a limit equals one without a limit at which the same
/// packets arrive when the limit lets them go.
fn compare_with_later_arrivals(service: Service, kbit: u64, burst: u64, lengths: &[u64]) {
    let busy = |sim: &mut Simulation| {
        let flood = sim.flow(Service::best_effort(weight(1)));
        sim.greedy(flood, 1514);
    };
    // Messages keep their arrival.
    let offer = |sim: &mut Simulation, flow: FlowId, length: u64| {
        sim.offer(flow, Packet::first(Bytes(length), Instant(0)));
    };
    let mut held = Simulation::new(Wire::new(mbit(100)));
    busy(&mut held);
    let flow = held.flow(limited(service, kbit, Nanos(burst)));
    for length in lengths {
        offer(&mut held, flow, *length);
    }
    held.run(10_000_000_000);
    check_limit(&held, flow, kbit, Nanos(burst));
    let found: Vec<Departure> = held.sent_by(flow).copied().collect();
    assert_eq!(found.len(), lengths.len());

    // TATm by its definition, in exact fractions of a nanosecond (10^6 parts).
    let mut free = Simulation::new(Wire::new(mbit(100)));
    busy(&mut free);
    let flow = free.flow(service);
    let (mut tat, effective_burst) = (0_u128, u128::from(burst) * 127 / 128);
    let slack = 1514 * 80 * 2 + 600;
    for (length, one) in lengths.iter().zip(&found) {
        let allowed_from = (tat / 1_000_000).saturating_sub(effective_burst) as u64;
        assert!(
            one.start.0 >= allowed_from.saturating_sub(burst / 100),
            "{one:?} before {allowed_from}"
        );
        free.run(allowed_from.max(free.now));
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
    fn a_limit_precedes_the_contract(
        kind in 0..3,
        kbit in 200_u64..20_000,
        burst in 1_000_u64..20_000_000,
        promised in 1_u64..20,
        lengths in prop::collection::vec(64_u64..1500, 1..40),
    ) {
        let service = match kind {
            0 => Service::Cell(cell(mbit(promised), ms(1))),
            // A message keeps its arrival however long the limit holds it, at most 2.4 s here.
            1 => with_processing(channel(1500, 10 * promised as u32, 3, ms(60_000)), ms(4_000)),
            _ => slice(ms(promised), ms(40), false),
        };
        compare_with_later_arrivals(service, kbit, burst, &lengths);
    }
}
