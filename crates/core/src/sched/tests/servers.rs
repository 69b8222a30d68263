//! Tests of overbooked servers: priorities, proportional sharing, minimums of classes (paper CELL,
//! section 4.5 and figure 4).

use alloc::vec::Vec;

use proptest::prelude::*;

use super::simulation::*;
use crate::contract::{self, Bucket};
use crate::sched::{
    Class, DROPPED_PER_CALL, Flag, FlowId, Packet, Scheduler, SchedulerError, ServedAs, Service,
    Wire,
};
use crate::units::{Bytes, Instant, Nanos};

fn whole(period: Nanos) -> contract::Slice {
    contract::Slice::new(period, period, false).unwrap()
}

const NO_MIN: Class = Class { min: None };

/// A link of 100 Mbit/s that one server with these classes fills.
fn overbooked(classes: &[Class]) -> (Simulation, FlowId) {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let server = sim
        .link
        .insert_server(whole(ms(10)), classes, Instant(0))
        .unwrap();
    sim.register(server);
    (sim, server)
}

impl Simulation {
    fn member(&mut self, server: FlowId, class: usize, rate: u64) -> FlowId {
        self.member_as(server, class, cell(mbit(rate), us(500)))
    }

    fn member_as(&mut self, server: FlowId, class: usize, contract: contract::Cell) -> FlowId {
        let now = Instant(self.now);
        let flow = self.link.insert_member(server, class, contract, now);
        self.register(flow.unwrap())
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
fn a_members_dual_bucket_bursts_and_is_silent() {
    for cdvt in [us(50), ms(12), ms(20), ms(4_000)] {
        let (mut sim, server) = overbooked(&[NO_MIN]);
        let contract = bucket(mbit(10), cdvt, mbit(5), 12_500, Bucket::Dual);
        let flow = sim.member_as(server, 0, contract);
        sim.greedy(flow, 1250);
        sim.run(200_000_000);
        let starts: Vec<u64> = sim.sent_by(flow).map(|one| one.start.0).collect();
        let mut bursts = starts.chunk_by(|a, b| b - a < 2_000_000);
        assert!((10..=11).contains(&bursts.clone().count()), "{cdvt}");
        assert!(
            bursts.all(|burst| burst.len() == 10 || burst.last() == starts.last()),
            "bursts with {cdvt}: {:?}",
            bursts.map(<[u64]>::len).collect::<Vec<_>>()
        );
    }
}

/// Packets of every length with an equal MBS, as the head and behind it.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_member_sends_packets_as_long_as_its_burst() {
    for length in 64..=1514 {
        let (mut sim, server) = overbooked(&[NO_MIN]);
        let contract = bucket(mbit(10), us(500), mbit(5), length, Bucket::Single);
        let flow = sim.member_as(server, 0, contract);
        let sent = [Packet::new(Bytes(length)); 2];
        for packet in sent {
            sim.offer(flow, packet);
        }
        sim.run(10_000_000);
        let lengths: Vec<Bytes> = sim.sent_by(flow).map(|one| one.length).collect();
        assert_eq!(lengths, sent.map(|packet| packet.length));
        let too_long = Packet::new(Bytes(length + 1));
        let refused = sim.link.handle_head(flow, too_long, Instant(sim.now));
        assert!(matches!(
            refused,
            Err(SchedulerError::TooLong { longest, .. }) if longest.0 == length || length == 1514
        ));
    }
}

/// Figure 4 of the paper: connection 3 in the first class, 1, 4, 5 and 6 in the second, 2 in the
/// third. Connections 4, 5 and 6 become greedy one after the other.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn figure_4_of_the_paper_is_reproduced() {
    let (mut sim, server) = overbooked(&[NO_MIN; 3]);
    let third = sim.member(server, 0, 20);
    let first = sim.member(server, 1, 25);
    let second = sim.member(server, 2, 10);
    let hungry: Vec<FlowId> = (0..3).map(|_| sim.member(server, 1, 100)).collect();
    let s = 1_000_000_000;
    for flow in [third, first, second] {
        sim.greedy(flow, 500);
    }
    sim.run(2 * s);
    for (k, flow) in hungry.iter().enumerate() {
        sim.greedy(*flow, 500);
        sim.run((3 + k as u64) * s);
    }
    for flow in &hungry {
        sim.stop(*flow);
    }
    sim.run(7 * s);
    let rate = |flow, second: u64| sim.bytes_between(flow, second * s, (second + 1) * s) * 8e-6;
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
    for one in &sim.sent {
        let ServedAs::Shared { deadline } = one.served_as else {
            panic!("{one:?}");
        };
        assert!(one.end.0 <= deadline.0 + 40_000, "{one:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_class_keeps_its_minimum() {
    let least = Class { min: Some(mbit(5)) };
    let (mut sim, server) = overbooked(&[NO_MIN, least]);
    let high = sim.member(server, 0, 150);
    let low = sim.member(server, 1, 10);
    sim.greedy(high, 500);
    sim.greedy(low, 500);
    sim.run(2_000_000_000);
    let rate = |flow| sim.bytes_of(flow) as f64 * 4e-6;
    assert!(close(rate(low), 5.0, 1.0), "{}", rate(low));
    assert!(close(rate(high), 95.0, 1.0), "{}", rate(high));
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn overload_in_a_server_does_not_affect_other_flows() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let half = contract::Slice::new(ms(5), ms(10), false).unwrap();
    let server = sim.link.insert_server(half, &[NO_MIN], Instant(0)).unwrap();
    sim.register(server);
    let contract = cell(mbit(40), ms(7));
    let outside = sim.flow(Service::Cell(contract));
    let inside: Vec<FlowId> = (0..10).map(|_| sim.member(server, 0, 100)).collect();
    for flow in inside.iter().chain([&outside]) {
        sim.greedy(*flow, 1000);
    }
    sim.run(2_000_000_000);
    let rate = |flow| sim.bytes_of(flow) as f64 * 4e-6;
    assert!(close(rate(outside), 40.0, 0.1), "{}", rate(outside));
    for flow in &inside {
        assert!(close(rate(*flow), 5.0, 2.0), "{}", rate(*flow));
    }
    assert_eq!(sim.misses(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn without_overload_a_member_has_its_contract() {
    let (mut sim, server) = overbooked(&[NO_MIN, NO_MIN]);
    let flows: Vec<FlowId> = [10, 20, 30, 35]
        .iter()
        .enumerate()
        .map(|(k, rate)| sim.member(server, k % 2, *rate))
        .collect();
    for flow in &flows {
        sim.greedy(*flow, 700);
    }
    sim.run(1_000_000_000);
    for (flow, rate) in flows.iter().zip([10.0, 20.0, 30.0, 35.0]) {
        let got = sim.bytes_of(*flow) as f64 * 8e-6;
        assert!(close(got, rate, 0.5), "{got} of {rate}");
    }
}

/// A tenth of 100 Mbit/s does not cover minimums of 5 and 6, nor any share of the left-over.
#[test]
fn a_server_promises_no_more_than_its_slice() {
    let (mut sim, _) = overbooked(&[NO_MIN]);
    let (link, now) = (&mut sim.link, Instant(0));
    let tenth = contract::Slice::new(ms(1), ms(10), false).unwrap();
    let least = |rate| Class {
        min: Some(mbit(rate)),
    };
    let too_much = SchedulerError::MinimumsAboveSlice {
        promised: 11_000_000,
        slice: 10_000_000,
    };
    let classes = [least(5), NO_MIN, least(6)];
    assert_eq!(link.insert_server(tenth, &classes, now), Err(too_much));
    assert_eq!(
        alloc::format!("{too_much}"),
        "the minimums of the classes are 11000000 bit/s together, above the 10000000 bit/s that \
         the slice gives on this link"
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
        Err(SchedulerError::MinimumsAboveSlice {
            slice: 9_990_000,
            ..
        })
    ));
    let extra = contract::Slice::new(ms(2), ms(10), true).unwrap();
    assert_eq!(
        link.change(server, change(extra), now),
        Err(SchedulerError::ServerExtra)
    );
    assert_eq!(
        link.insert_server(extra, &[NO_MIN], now),
        Err(SchedulerError::ServerExtra)
    );
    link.change(server, change(tenth), now).unwrap();
    link.invariants();
}

/// A hundred members leave a server before their packets are sent. Their old entries are dropped a
/// few in each call, and then all flow numbers are free.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_server_is_closed_in_bounded_steps() {
    let (mut sim, server) = overbooked(&[NO_MIN; 2]);
    let members: Vec<FlowId> = (0..100)
        .map(|number| sim.member(server, number % 2, 1))
        .collect();
    let (link, now) = (&mut sim.link, Instant(0));
    for member in &members {
        let packet = Packet::new(Bytes(500));
        link.handle_head(*member, packet, now).unwrap();
    }
    for member in &members {
        link.remove(*member, now).unwrap();
    }
    let flow_count = link.flows.len();
    let removed = |link: &Scheduler| {
        link.flows
            .iter()
            .filter(|one| one.is(Flag::Removed))
            .count()
    };
    let mut left = removed(link);
    assert!(left >= 90, "entries are left");
    link.remove(server, now).unwrap();
    let mut inserted = 0;
    while !link.closed_servers.is_empty() {
        assert!(removed(link) + DROPPED_PER_CALL as usize >= left);
        left = removed(link);
        let best_effort = Service::best_effort(weight(1));
        link.insert(best_effort, now).unwrap();
        inserted += 1;
        link.invariants();
    }
    assert!((5..10).contains(&inserted), "{inserted} calls");
    // The server's own entry has not come first yet.
    assert_eq!(removed(link), 1);
    link.poll(now, |_| None);
    assert_eq!((removed(link), link.flows.len()), (0, flow_count));
    assert!(link.servers[0].is_none());
}

#[test]
fn invalid_calls_about_servers_are_refused() {
    let (mut sim, server) = overbooked(&[NO_MIN; 2]);
    let now = Instant(0);
    let contract = cell(mbit(1), ms(1));
    let link = &mut sim.link;
    let none = link.insert_member(server, 2, contract, now);
    assert_eq!(none, Err(SchedulerError::NoClass { server, class: 2 }));
    let packet = Packet::new(Bytes(1));
    assert_eq!(
        link.handle_head(server, packet, now),
        Err(SchedulerError::IsServer(server))
    );
    let nine = link.insert_server(whole(ms(1)), &[NO_MIN; 9], now);
    assert_eq!(nine, Err(SchedulerError::ClassCount(9)));
    let none = link.insert_server(whole(ms(1)), &[], now);
    assert_eq!(none, Err(SchedulerError::ClassCount(0)));
    let member = link.insert_member(server, 1, contract, now).unwrap();
    assert_eq!(
        link.remove(server, now),
        Err(SchedulerError::HasMembers { server, members: 1 })
    );
    let other = link.change(member, Service::best_effort(weight(1)), now);
    assert_eq!(other, Err(SchedulerError::WrongKind(member)));
    link.remove(member, now).unwrap();
    link.remove(server, now).unwrap();
    link.invariants();
    let again = link.insert_member(server, 0, contract, now);
    assert_eq!(again, Err(SchedulerError::UnknownFlow(server)));
}

/// A server whose slice does not fit shares the left-over as one flow of weight 100.
#[test]
fn a_server_without_a_slice_shares_the_left_over() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let half = contract::Slice::new(ms(5), ms(10), false).unwrap();
    let least = Class {
        min: Some(mbit(10)),
    };
    let classes = [NO_MIN, least];
    let server = sim.link.insert_server(half, &classes, Instant(0)).unwrap();
    sim.register(server);
    let members = [(0, 40), (0, 80), (1, 40)];
    let members = members.map(|(class, rate)| sim.member(server, class, rate));
    let now = Instant(0);
    let rival = sim.link.insert(Service::best_effort(weight(300)), now);
    let rival = sim.register(rival.unwrap());
    for flow in members.into_iter().chain([rival]) {
        sim.greedy(flow, 1250);
    }
    sim.run(100_000_000);
    let rates = |sim: &Simulation, from: u64, to: u64| {
        let flows = [members[0], members[1], members[2], rival];
        let millis = (to - from) as f64 / 1e6;
        flows.map(|flow| sim.bytes_between(flow, from, to) * 8.0 / 1e3 / millis)
    };
    let with_slice = rates(&sim, 20_000_000, 100_000_000);
    assert!(
        close(with_slice[0] + with_slice[1], 40.0, 3.0),
        "{with_slice:?}"
    );
    assert!(close(with_slice[2], 10.0, 3.0), "{with_slice:?}");
    assert!(close(with_slice[3], 50.0, 3.0), "{with_slice:?}");
    let no_minimums = [NO_MIN, NO_MIN];
    let set = sim
        .link
        .set_server(server, None, &no_minimums, Instant(sim.now));
    assert_eq!(set, Ok(()));
    sim.link.invariants();
    sim.run(200_000_000);
    let without = rates(&sim, 120_000_000, 200_000_000);
    assert!(close(without[3], 75.0, 3.0), "{without:?}");
    assert!(close(without[1], 2.0 * without[0], 6.0), "{without:?}");
    assert!(close(without[0] + without[1], 25.0, 6.0), "{without:?}");
    let now = Instant(sim.now);
    let set = sim.link.set_server(server, Some(half), &classes, now);
    assert_eq!(set, Ok(()));
    sim.link.invariants();
    sim.run(300_000_000);
    let again = rates(&sim, 220_000_000, 300_000_000);
    assert!(close(again[3], 50.0, 3.0), "{again:?}");
    assert!(close(again[2], 10.0, 3.0), "{again:?}");
}

/// A minimum that is set while members run counts from then on, without credit of the past.
#[test]
fn the_minimum_of_a_class_changes_while_members_run() {
    let (mut sim, server) = overbooked(&[NO_MIN, NO_MIN]);
    let (first, second) = (sim.member(server, 0, 150), sim.member(server, 1, 50));
    sim.greedy(first, 1250);
    sim.greedy(second, 1250);
    sim.run(100_000_000);
    let starved = sim.bytes_between(second, 0, 100_000_000);
    assert!(starved < 12_500.0 * 2.0, "{starved}");
    let least = Class {
        min: Some(mbit(20)),
    };
    let now = Instant(sim.now);
    let set = sim
        .link
        .set_server(server, Some(whole(ms(10))), &[NO_MIN, least], now);
    assert_eq!(set, Ok(()));
    sim.run(300_000_000);
    let served = sim.bytes_between(second, 100_000_000, 300_000_000);
    assert!(close(served, 500_000.0, 4.0), "{served}");
}

/// A change that is refused changes nothing.
#[test]
fn a_server_changes_as_a_whole_or_not_at_all() {
    let mut link = Scheduler::new(Wire::new(mbit(100))).unwrap();
    let now = Instant(0);
    let tenth = contract::Slice::new(ms(1), ms(10), false).unwrap();
    let server = link.insert_server(tenth, &[NO_MIN; 2], now).unwrap();
    let least = |rate| Class {
        min: Some(mbit(rate)),
    };
    let too_much = SchedulerError::MinimumsAboveSlice {
        promised: 12_000_000,
        slice: 10_000_000,
    };
    let set = link.set_server(server, Some(tenth), &[least(6), least(6)], now);
    assert_eq!(set, Err(too_much));
    let set = link.set_server(server, Some(tenth), &[NO_MIN], now);
    assert_eq!(set, Err(SchedulerError::ClassCount(1)));
    let member = cell(mbit(5), us(500));
    let member = link.insert_member(server, 1, member, now).unwrap();
    let set = link.set_server(member, Some(tenth), &[NO_MIN], now);
    assert_eq!(set, Err(SchedulerError::WrongKind(member)));
    let set = link.set_server(server, Some(tenth), &[least(4), least(6)], now);
    assert_eq!(set, Ok(()));
    link.invariants();
}

proptest! {
    #![proptest_config(cases(24))]

    /// Members join, change, fall silent and leave in any order. Packets are conserved.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn packets_of_members_are_conserved(
        steps in prop::collection::vec(
            (0_u8..9, any::<usize>(), 1_u64..1500, 0_u64..2_000_000),
            1..150,
        ),
    ) {
        let least = Class { min: Some(mbit(3)) };
        let (mut sim, server) = overbooked(&[NO_MIN, least, NO_MIN]);
        sim.checks_invariants = true;
        let (mut flows, mut flushed) = (Vec::new(), 0);
        for (verb, which, length, time) in steps {
            let pick = (!flows.is_empty()).then(|| which % flows.len().max(1));
            let rate = which as u64 % 150 + 1;
            match (verb, pick) {
                (0, _) | (_, None) => flows.push(sim.member(server, which % 3, rate)),
                (1, Some(pick)) => {
                    let flow: FlowId = flows.swap_remove(pick);
                    flushed += sim.queued(flow);
                    sim.stop(flow);
                    sim.link.remove(flow, Instant(sim.now)).unwrap();
                }
                (2, Some(pick)) => {
                    let service = Service::Cell(cell(mbit(rate), us(length)));
                    sim.link.change(flows[pick], service, Instant(sim.now)).unwrap();
                }
                (3, Some(pick)) => flushed += sim.stop(flows[pick]),
                (4, Some(_)) => sim.run(sim.now + time),
                (5, Some(_)) => {
                    let slice = (which % 2 == 0).then(|| whole(ms(10)));
                    let classes = [NO_MIN, if which % 3 == 0 { least } else { NO_MIN }, NO_MIN];
                    sim.link.set_server(server, slice, &classes, Instant(sim.now)).unwrap();
                }
                (_, Some(pick)) => sim.offer(flows[pick], Packet::new(Bytes(length))),
            }
            sim.link.invariants();
        }
        let left: usize = flows.iter().map(|flow| sim.queued(*flow)).sum();
        prop_assert_eq!(sim.offered, sim.sent.len() + flushed + left);
        sim.run(sim.now + 10_000_000_000);
        let left: usize = flows.iter().map(|flow| sim.queued(*flow)).sum();
        prop_assert_eq!(left, 0, "everything is sent in the end");
        for flow in flows {
            sim.link.remove(flow, Instant(sim.now)).unwrap();
        }
        sim.link.remove(server, Instant(sim.now)).unwrap();
        sim.run(sim.now + 10_000_000_000);
        prop_assert_eq!(sim.link.poll_timeout(), None);
    }
}
