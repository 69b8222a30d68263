//! Overbooked servers: priorities, proportional sharing, minimums of classes (cell-fig4).

use alloc::vec::Vec;

use proptest::prelude::*;

use super::world::*;
use crate::contract;
use crate::sched::{Class, FlowId, Misuse, Packet, Service, Turn, Wire};
use crate::units::{Bytes, Instant, Nanos};

fn whole(period: Nanos) -> contract::Slice {
    contract::Slice::new(period, period, false).unwrap()
}

const NO_MIN: Class = Class { min: None };

/// A link of 100 Mbit/s, all of it one server with these classes.
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
        let contract = cell(mbit(rate), us(500));
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

/// The paper's figure 4: connection 3 above, 1, 4, 5 and 6 in the middle, of which the last three
/// ask for everything from some moment on, 2 below.
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
    assert_eq!(
        nine,
        Err(Misuse::Classes {
            classes: 9,
            servers: 1
        })
    );
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

    /// Members come, change, fall silent and go in any order; packets are conserved.
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
