//! Tests of overbooked servers: priorities, proportional sharing, minimums of classes (cell-fig4).

use alloc::vec::Vec;

use proptest::prelude::*;

use super::world::*;
use crate::contract::{self, Bucket};
use crate::sched::{
    Class, DROPPED_PER_CALL, Flag, FlowId, Misuse, Packet, Scheduler, Service, Turn, Wire,
};
use crate::units::{Bytes, Instant, Nanos};

fn whole(period: Nanos) -> contract::Slice {
    contract::Slice::new(period, period, false).unwrap()
}

const NO_MIN: Class = Class { min: None };

/// A link of 100 Mbit/s that one server with these classes fills.
fn overbooked(classes: &[Class]) -> (World, FlowId) {
    let mut world = World::new(Wire::new(mbit(100)));
    let server = world
        .link
        .insert_server(whole(ms(10)), classes, Instant(0))
        .unwrap();
    world.note(server);
    (world, server)
}

impl World {
    fn member(&mut self, server: FlowId, class: usize, rate: u64) -> FlowId {
        self.member_as(server, class, cell(mbit(rate), us(500)))
    }

    fn member_as(&mut self, server: FlowId, class: usize, contract: contract::Cell) -> FlowId {
        let now = Instant(self.now);
        let flow = self.link.insert_member(server, class, contract, now);
        self.note(flow.unwrap())
    }

    fn bytes_between(&self, flow: FlowId, from: u64, to: u64) -> f64 {
        let inside = self
            .sent_by(flow)
            .filter(|one| (from..to).contains(&one.start.0));
        inside.map(|one| one.length.0).sum::<u64>() as f64
    }
}

fn close(a: f64, b: f64, percent: f64) -> bool {
    (a - b).abs() <= b * percent / 100.0
}

/// As outside of servers, waiting for the bucket is not lateness.
#[test]
fn a_patient_dual_bucket_inside_bursts_and_is_silent() {
    for patience in [us(50), ms(12), ms(20), ms(4_000)] {
        let (mut world, server) = overbooked(&[NO_MIN]);
        let contract = bucket(mbit(10), patience, mbit(5), 12_500, Bucket::Dual);
        let flow = world.member_as(server, 0, contract);
        world.greedy(flow, 1250);
        world.run(200_000_000);
        let starts: Vec<u64> = world.sent_by(flow).map(|one| one.start.0).collect();
        let mut bursts = starts.chunk_by(|a, b| b - a < 2_000_000);
        assert!((10..=11).contains(&bursts.clone().count()), "{patience}");
        assert!(
            bursts.all(|burst| burst.len() == 10 || burst.last() == starts.last()),
            "bursts with {patience}: {:?}",
            bursts.map(<[u64]>::len).collect::<Vec<_>>()
        );
    }
}

/// Packets of every length with an equal MBS, as the head and behind it.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_member_sends_packets_as_long_as_its_burst() {
    for length in 64..=1514 {
        let (mut world, server) = overbooked(&[NO_MIN]);
        let contract = bucket(mbit(10), us(500), mbit(5), length, Bucket::Single);
        let flow = world.member_as(server, 0, contract);
        let sent = [Packet::new(Bytes(length)); 2];
        for packet in sent {
            world.offer(flow, packet);
        }
        world.run(10_000_000);
        let lengths: Vec<Bytes> = world.sent_by(flow).map(|one| one.length).collect();
        assert_eq!(lengths, sent.map(|packet| packet.length));
        let too_long = Packet::new(Bytes(length + 1));
        let refused = world.link.handle_head(flow, too_long, Instant(world.now));
        assert!(
            matches!(refused, Err(Misuse::TooLong { longest, .. }) if longest.0 == length || length == 1514)
        );
    }
}

/// Figure 4 of the paper: connection 3 in the first class, 1, 4, 5 and 6 in the second, 2 in the
/// third. Connections 4, 5 and 6 become greedy one after the other.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn figure_4() {
    let (mut world, server) = overbooked(&[NO_MIN; 3]);
    let third = world.member(server, 0, 20);
    let first = world.member(server, 1, 25);
    let second = world.member(server, 2, 10);
    let hungry: Vec<FlowId> = (0..3).map(|_| world.member(server, 1, 100)).collect();
    let s = 1_000_000_000;
    for flow in [third, first, second] {
        world.greedy(flow, 500);
    }
    world.run(2 * s);
    for (k, flow) in hungry.iter().enumerate() {
        world.greedy(*flow, 500);
        world.run((3 + k as u64) * s);
    }
    for flow in &hungry {
        world.quiet(*flow);
    }
    world.run(7 * s);
    let rate = |flow, second: u64| world.bytes_between(flow, second * s, (second + 1) * s) * 8e-6;
    for second in [0, 1, 2, 3, 4, 5, 6] {
        assert!(
            close(rate(third, second), 20.0, 1.0),
            "{}",
            rate(third, second)
        );
    }
    // 80 Mbit/s for 25 : 100, 25 : 100 : 100, 25 : 100 : 100 : 100.
    for (second, count) in [(2, 1), (3, 2), (4, 3)] {
        let unit = 80.0 / (1.0 + 4.0 * count as f64);
        assert!(
            close(rate(first, second), unit, 2.0),
            "{} of {unit}",
            rate(first, second)
        );
        for flow in &hungry[..count] {
            assert!(
                close(rate(*flow, second), 4.0 * unit, 2.0),
                "{}",
                rate(*flow, second)
            );
        }
    }
    assert!(rate(second, 3) < 1.0, "starves: {}", rate(second, 3));
    for (flow, all) in [(first, 25.0), (second, 10.0)] {
        for second in [0, 1, 6] {
            assert!(
                close(rate(flow, second), all, 1.0),
                "{flow}: {}",
                rate(flow, second)
            );
        }
    }
    // A slice that is the whole link is late by the packet that overran the period before.
    for one in &world.sent {
        let Turn::Shared { deadline } = one.turn else {
            panic!("{one:?}");
        };
        assert!(one.end.0 <= deadline.0 + 40_000, "{one:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_class_keeps_its_minimum() {
    let least = Class { min: Some(mbit(5)) };
    let (mut world, server) = overbooked(&[NO_MIN, least]);
    let high = world.member(server, 0, 150);
    let low = world.member(server, 1, 10);
    world.greedy(high, 500);
    world.greedy(low, 500);
    world.run(2_000_000_000);
    let rate = |flow| world.bytes_of(flow) as f64 * 4e-6;
    assert!(close(rate(low), 5.0, 1.0), "{}", rate(low));
    assert!(close(rate(high), 95.0, 1.0), "{}", rate(high));
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn the_admitted_do_not_notice() {
    let mut world = World::new(Wire::new(mbit(100)));
    let half = contract::Slice::new(ms(5), ms(10), false).unwrap();
    let server = world
        .link
        .insert_server(half, &[NO_MIN], Instant(0))
        .unwrap();
    world.note(server);
    let contract = cell(mbit(40), ms(7));
    let outside = world.flow(Service::Cell(contract));
    let inside: Vec<FlowId> = (0..10).map(|_| world.member(server, 0, 100)).collect();
    for flow in inside.iter().chain([&outside]) {
        world.greedy(*flow, 1000);
    }
    world.run(2_000_000_000);
    let rate = |flow| world.bytes_of(flow) as f64 * 4e-6;
    assert!(close(rate(outside), 40.0, 0.1), "{}", rate(outside));
    for flow in &inside {
        assert!(close(rate(*flow), 5.0, 2.0), "{}", rate(*flow));
    }
    assert_eq!(world.misses(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn without_overload_a_member_has_its_contract() {
    let (mut world, server) = overbooked(&[NO_MIN, NO_MIN]);
    let flows: Vec<FlowId> = [10, 20, 30, 35]
        .iter()
        .enumerate()
        .map(|(k, rate)| world.member(server, k % 2, *rate))
        .collect();
    for flow in &flows {
        world.greedy(*flow, 700);
    }
    world.run(1_000_000_000);
    for (flow, rate) in flows.iter().zip([10.0, 20.0, 30.0, 35.0]) {
        let got = world.bytes_of(*flow) as f64 * 8e-6;
        assert!(close(got, rate, 0.5), "{got} of {rate}");
    }
}

/// A tenth of 100 Mbit/s does not cover minimums of 5 and 6, nor any share of the left-over.
#[test]
fn a_server_promises_no_more_than_its_slice() {
    let (mut world, _) = overbooked(&[NO_MIN]);
    let (link, now) = (&mut world.link, Instant(0));
    let tenth = contract::Slice::new(ms(1), ms(10), false).unwrap();
    let least = |rate| Class {
        min: Some(mbit(rate)),
    };
    let too_much = Misuse::Minimums {
        promised: 11_000_000,
        slice: 10_000_000,
    };
    let classes = [least(5), NO_MIN, least(6)];
    assert_eq!(link.insert_server(tenth, &classes, now), Err(too_much));
    assert_eq!(
        alloc::format!("{too_much}"),
        "its classes are promised 11000000 bit/s together, and a server's slice gives 10000000 bit/s of this link"
    );
    let server = link.insert_server(tenth, &[least(4), least(6)], now);
    let server = server.unwrap();
    let change = |slice| Service::Slice {
        slice,
        weight: weight(1),
    };
    let less = contract::Slice::new(us(999), ms(10), false).unwrap();
    let less = link.change(server, change(less), now);
    assert!(matches!(
        less,
        Err(Misuse::Minimums {
            slice: 9_990_000,
            ..
        })
    ));
    let extra = contract::Slice::new(ms(2), ms(10), true).unwrap();
    assert_eq!(link.change(server, change(extra), now), Err(Misuse::Extra));
    assert_eq!(
        link.insert_server(extra, &[NO_MIN], now),
        Err(Misuse::Extra)
    );
    link.change(server, change(tenth), now).unwrap();
    link.invariants();
}

/// A hundred members leave a server before their packets are sent. Their old entries are dropped a
/// few in each call, and then all flow numbers are free.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_server_is_closed_in_bounded_steps() {
    let (mut world, server) = overbooked(&[NO_MIN; 2]);
    let members: Vec<FlowId> = (0..100)
        .map(|number| world.member(server, number % 2, 1))
        .collect();
    let (link, now) = (&mut world.link, Instant(0));
    for member in &members {
        let packet = Packet::new(Bytes(500));
        link.handle_head(*member, packet, now).unwrap();
    }
    for member in &members {
        link.remove(*member, now).unwrap();
    }
    let places = link.flows.len();
    let gone = |link: &Scheduler| link.flows.iter().filter(|one| one.is(Flag::Gone)).count();
    let mut left = gone(link);
    assert!(left >= 90, "entries are left");
    link.remove(server, now).unwrap();
    let mut inserted = 0;
    while !link.closed.is_empty() {
        assert!(gone(link) + DROPPED_PER_CALL as usize >= left);
        left = gone(link);
        let best_effort = Service::best_effort(weight(1));
        link.insert(best_effort, now).unwrap();
        inserted += 1;
        link.invariants();
    }
    assert!((5..10).contains(&inserted), "{inserted} calls");
    // The server's own entry has not come first yet.
    assert_eq!(gone(link), 1);
    link.poll(now, |_| None);
    assert_eq!((gone(link), link.flows.len()), (0, places));
    assert!(link.servers[0].is_none());
}

#[test]
fn servers_are_asked_for_sense() {
    let (mut world, server) = overbooked(&[NO_MIN; 2]);
    let now = Instant(0);
    let contract = cell(mbit(1), ms(1));
    let link = &mut world.link;
    let none = link.insert_member(server, 2, contract, now);
    assert_eq!(none, Err(Misuse::NoClass { server, class: 2 }));
    let packet = Packet::new(Bytes(1));
    assert_eq!(
        link.handle_head(server, packet, now),
        Err(Misuse::Server(server))
    );
    let nine = link.insert_server(whole(ms(1)), &[NO_MIN; 9], now);
    assert_eq!(nine, Err(Misuse::Classes(9)));
    let none = link.insert_server(whole(ms(1)), &[], now);
    assert_eq!(none, Err(Misuse::Classes(0)));
    let member = link.insert_member(server, 1, contract, now).unwrap();
    assert_eq!(
        link.remove(server, now),
        Err(Misuse::Members { server, members: 1 })
    );
    let other = link.change(member, Service::best_effort(weight(1)), now);
    assert_eq!(other, Err(Misuse::OtherKind(member)));
    link.remove(member, now).unwrap();
    link.remove(server, now).unwrap();
    link.invariants();
    let again = link.insert_member(server, 0, contract, now);
    assert_eq!(again, Err(Misuse::Unknown(server)));
}

proptest! {
    #![proptest_config(cases(24))]

    /// Members join, change, fall silent and leave in any order. Packets are conserved.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn members_are_conserved(
        steps in prop::collection::vec((0_u8..8, any::<usize>(), 1_u64..1500, 0_u64..2_000_000), 1..150),
    ) {
        let least = Class { min: Some(mbit(3)) };
        let (mut world, server) = overbooked(&[NO_MIN, least, NO_MIN]);
        world.careful = true;
        let (mut flows, mut flushed) = (Vec::new(), 0);
        for (verb, which, length, time) in steps {
            let pick = (!flows.is_empty()).then(|| which % flows.len().max(1));
            let rate = which as u64 % 150 + 1;
            match (verb, pick) {
                (0, _) | (_, None) => flows.push(world.member(server, which % 3, rate)),
                (1, Some(pick)) => {
                    let flow: FlowId = flows.swap_remove(pick);
                    flushed += world.queued(flow);
                    world.quiet(flow);
                    world.link.remove(flow, Instant(world.now)).unwrap();
                }
                (2, Some(pick)) => {
                    let service = Service::Cell(cell(mbit(rate), us(length)));
                    world.link.change(flows[pick], service, Instant(world.now)).unwrap();
                }
                (3, Some(pick)) => flushed += world.quiet(flows[pick]),
                (4, Some(_)) => world.run(world.now + time),
                (_, Some(pick)) => world.offer(flows[pick], Packet::new(Bytes(length))),
            }
            world.link.invariants();
        }
        let left: usize = flows.iter().map(|flow| world.queued(*flow)).sum();
        prop_assert_eq!(world.offered, world.sent.len() + flushed + left);
        world.run(world.now + 10_000_000_000);
        let left: usize = flows.iter().map(|flow| world.queued(*flow)).sum();
        prop_assert_eq!(left, 0, "everything is sent in the end");
        for flow in flows {
            world.link.remove(flow, Instant(world.now)).unwrap();
        }
        world.link.remove(server, Instant(world.now)).unwrap();
        world.run(world.now + 10_000_000_000);
        prop_assert_eq!(world.link.poll_timeout(), None);
    }
}
