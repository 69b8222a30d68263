//! Tests of real-time channels: logical arrivals, deadlines, and whether a packet is served as
//! guaranteed or early.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::limits::limited;
use super::simulation::*;
use crate::contract::{Channel, MessageRate};
use crate::sched::{FlowId, Packet, ServedAs, Service, Wire, effective_bound};
use crate::units::{Bytes, Instant, Nanos};

pub(super) fn channel(mmax: u64, rmax: u32, bmax: u32, deadline: Nanos) -> Service {
    let rmax = MessageRate::new(rmax).unwrap();
    Service::Channel(Channel::new(Bytes(mmax), rmax, bmax, deadline).unwrap())
}

/// Offers a message of several packets that arrives now.
pub(super) fn message(sim: &mut Simulation, flow: FlowId, packets: &[u64]) {
    let arrived = Instant(sim.now);
    for (k, length) in packets.iter().enumerate() {
        sim.offer(
            flow,
            match k {
                0 => Packet::first(Bytes(*length), arrived),
                _ => Packet::new(Bytes(*length)),
            },
        );
    }
}

fn reasons(sim: &Simulation, flow: FlowId) -> Vec<ServedAs> {
    sim.sent_by(flow).map(|one| one.served_as).collect()
}

#[test]
fn a_burst_is_spaced_by_its_logical_arrivals() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flow = sim.flow(channel(1500, 100, 3, ms(4)));
    sim.now = 1000;
    for _ in 0..3 {
        message(&mut sim, flow, &[1500]);
    }
    sim.run(50_000_000);
    let starts: Vec<u64> = sim.sent_by(flow).map(|one| one.start.0).collect();
    for (k, start) in starts.iter().enumerate() {
        let logical = 1000 + k as u64 * 10_000_000;
        assert!((logical..logical + 10_000).contains(start), "{start}");
        let deadline = Instant(logical + 4_000_000);
        assert_eq!(reasons(&sim, flow)[k], ServedAs::Guaranteed { deadline });
    }
}

#[test]
fn packets_of_a_message_share_its_times() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flow = sim.flow(channel(6000, 100, 2, ms(4)));
    message(&mut sim, flow, &[1500; 4]);
    message(&mut sim, flow, &[1500; 2]);
    sim.run(50_000_000);
    let deadlines: Vec<u64> = reasons(&sim, flow)
        .iter()
        .map(|served_as| match served_as {
            ServedAs::Guaranteed { deadline } => deadline.0,
            other => panic!("{other:?}"),
        })
        .collect();
    let (first, second) = (4_000_000, 14_000_000);
    assert_eq!(deadlines, [first, first, first, first, second, second]);
}

/// A message of any length ends with Mmax, with or without a reported beginning.
#[test]
fn a_message_ends_at_mmax() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flow = sim.flow(channel(3000, 100, 2, ms(4)));
    message(&mut sim, flow, &[1500, 1500, 1000, 1000, 1500, 600]);
    message(&mut sim, flow, &[1500]);
    sim.run(100_000_000);
    let due = [4, 4, 14, 14, 24, 24, 34].map(|at| deadline(at * 1_000_000));
    assert_eq!(reasons(&sim, flow), due);
    // A packet that is longer than three messages counts as four.
    let flow = sim.flow(channel(400, 100, 2, ms(4)));
    message(&mut sim, flow, &[1500]);
    message(&mut sim, flow, &[400]);
    sim.run(200_000_000);
    let due = [134, 144].map(|at| deadline(at * 1_000_000));
    assert_eq!(reasons(&sim, flow), due);
}

/// A sender that reports no beginning of a message, one whose message never ends, and one whose
/// limit would pass all of it: each gets its contract and no more, and the other flows are in time.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn an_endless_message_harms_no_other_flow() {
    let rogue = channel(1500, 1, 1, ms(1));
    for (service, first) in [
        (rogue, false),
        (rogue, true),
        (limited(rogue, 90_000, ms(20)), true),
    ] {
        let mut sim = Simulation::new(Wire::new(mbit(100)));
        let rogue = sim.flow(service);
        let half = sim.flow(slice(ms(5), ms(10), false));
        let good = sim.flow(channel(3000, 100, 1, ms(8)));
        let cell = sim.flow(Service::Cell(cell(mbit(30), ms(2))));
        let begins = Packet {
            message: first.then_some(Instant(0)),
            ..Packet::new(Bytes(1000))
        };
        sim.offer(rogue, begins);
        for _ in 0..20_000 {
            sim.offer(rogue, Packet::new(Bytes(1000)));
        }
        sim.greedy(half, 1250);
        sim.greedy(cell, 1250);
        for step in 0..400 {
            sim.run(step * 10_000_000);
            message(&mut sim, good, &[1500, 1500]);
        }
        sim.run(4_000_000_000);
        // One message each second, of one packet: two do not fit in Mmax.
        assert!((4..=5).contains(&sim.sent_by(rogue).count()));
        assert_eq!(sim.misses(), 0);
        assert!(sim.time_of(half) >= 2_000_000_000 - 100_000);
        assert!(sim.bytes_of(cell) + 1250 >= 15_000_000);
        assert_eq!(sim.sent_by(good).count(), 800);
    }
}

fn deadline(ns: u64) -> ServedAs {
    ServedAs::Guaranteed {
        deadline: Instant(ns),
    }
}

/// Processing delivers a message in pieces, and the link may be faster.
#[test]
fn a_piece_at_an_empty_queue_continues_its_message() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flow = sim.flow(channel(6000, 100, 2, ms(4)));
    sim.now = 1000;
    message(&mut sim, flow, &[1500]);
    for _ in 0..3 {
        sim.run(sim.now + 900_000);
        assert_eq!(sim.queued(flow), 0);
        sim.offer(flow, Packet::new(Bytes(1500)));
    }
    // The next message is not delayed by it.
    sim.run(5_000_000);
    message(&mut sim, flow, &[1500]);
    sim.run(50_000_000);
    let first = [deadline(4_001_000); 4];
    assert_eq!(reasons(&sim, flow)[..4], first);
    assert_eq!(reasons(&sim, flow)[4..], [deadline(14_001_000)]);
}

/// The old deadline of the message would put the piece before packets that can still be in time.
#[test]
fn a_piece_after_the_deadline_begins_its_own_message() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flow = sim.flow(channel(6000, 100, 2, ms(4)));
    message(&mut sim, flow, &[1500]);
    sim.run(4_000_001);
    sim.offer(flow, Packet::new(Bytes(1500)));
    sim.run(30_000_000);
    sim.offer(flow, Packet::new(Bytes(1500)));
    sim.run(40_000_000);
    let all = [
        deadline(4_000_000),
        deadline(14_000_000),
        deadline(34_000_000),
    ];
    assert_eq!(reasons(&sim, flow), all);
    // So is a piece without a message before it.
    let other = sim.flow(channel(6000, 100, 2, ms(4)));
    sim.offer(other, Packet::new(Bytes(1500)));
    sim.run(50_000_000);
    assert_eq!(reasons(&sim, other), [deadline(44_000_000)]);
}

#[test]
fn early_packets_leave_only_when_no_other_packet_may() {
    let wire = Wire {
        horizon: ms(8),
        ..Wire::new(mbit(100))
    };
    let mut sim = Simulation::new(wire);
    let flow = sim.flow(channel(1500, 100, 5, ms(4)));
    let others = sim.flow(Service::best_effort(weight(1)));
    // The second message is 10 ms before its logical arrival, and the horizon is 8 ms.
    message(&mut sim, flow, &[1500]);
    message(&mut sim, flow, &[1500]);
    sim.run(1_000_000);
    assert_eq!(sim.sent_by(flow).count(), 1);
    sim.run(5_000_000);
    let early = sim.sent_by(flow).last().unwrap();
    assert_eq!(early.served_as, ServedAs::Early);
    assert!((2_000_000..2_010_000).contains(&early.start.0), "{early:?}");
    // Beside a backlog it has to wait for its time.
    sim.greedy(others, 1500);
    message(&mut sim, flow, &[1500]);
    sim.run(40_000_000);
    let third = sim.sent_by(flow).last().unwrap();
    assert!(matches!(third.served_as, ServedAs::Guaranteed { .. }));
    assert!((20_000_000..20_000_000 + 250_000).contains(&third.start.0));
    assert_eq!(sim.misses(), 0);
}

#[test]
fn due_packets_leave_earliest_deadline_first() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let bounds = [9, 3, 7, 1, 5];
    let flows: Vec<FlowId> = bounds
        .iter()
        .map(|bound| sim.flow(channel(1500, 10, 1, ms(*bound))))
        .collect();
    for flow in &flows {
        message(&mut sim, *flow, &[1500]);
    }
    sim.run(10_000_000);
    let order: Vec<FlowId> = sim.sent.iter().map(|one| one.flow).collect();
    assert_eq!(order, [flows[3], flows[1], flows[4], flows[2], flows[0]]);
}

/// With any number of flows that fall due at one instant, a call moves a bounded number of them and
/// reports that it is not finished. In the end they leave in the order of their deadlines.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_thousand_flows_due_at_once_leave_by_deadline() {
    let mut sim = Simulation::new(Wire::new(mbit(10_000)));
    let flows: Vec<FlowId> = (0..1000_u64)
        .map(|k| sim.flow(channel(1500, 100, 2, us(2000 + (k * 7919 % 1000) * 8))))
        .collect();
    for flow in &flows {
        message(&mut sim, *flow, &[100]);
        message(&mut sim, *flow, &[1500]);
    }
    sim.run(9_999_999);
    assert_eq!(sim.sent.len(), 1000, "the first messages");
    sim.sent.clear();
    sim.run(30_000_000);
    assert_eq!(sim.misses(), 0);
    let deadlines: Vec<u64> = sim
        .sent
        .iter()
        .map(|one| match one.served_as {
            ServedAs::Guaranteed { deadline } => deadline.0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(deadlines.len(), 1000);
    // Except for the 32 flows of the first call, and the rounding of deadlines (0.9 %).
    let out_of_order = deadlines
        .iter()
        .enumerate()
        .filter(|(k, deadline)| {
            deadlines[k + 1..]
                .iter()
                .any(|later| later + 130_000 < **deadline)
        })
        .count();
    assert!(out_of_order <= 32, "{out_of_order}");
}

proptest! {
    #![proptest_config(cases(24))]

    /// Messages of several pieces, each at any time: all pieces have the times of their message by
    /// the definition of logical arrivals.
    #[test]
    fn pieces_have_the_times_of_their_message(
        steps in prop::collection::vec((any::<bool>(), 0_u64..6_000_000), 1..60),
    ) {
        let (spacing, bound, pieces) = (10_000_000, 4_000_000, 4);
        let mut sim = Simulation::new(Wire::new(mbit(100)));
        let flow = sim.flow(channel(6000, 100, 2, Nanos(bound)));
        let (mut logical, mut wanted, mut count) = (None, Vec::new(), 0);
        for (begins, gap) in steps {
            let now = sim.now;
            // A packet behind other packets belongs to their message, at any delay.
            let over = logical.is_none_or(|at| sim.queued(flow) == 0 && now > at + bound);
            count += 1;
            if begins || over || count > pieces {
                // The arrival time of a packet behind other packets is unknown.
                let came = if begins || over { now } else { 0 };
                logical = Some(logical.map_or(now, |before: u64| came.max(before + spacing)));
                count = 1;
            }
            wanted.push(deadline(logical.unwrap() + bound));
            sim.offer(flow, match begins {
                true => Packet::first(Bytes(1500), Instant(now)),
                false => Packet::new(Bytes(1500)),
            });
            sim.run(now + gap);
        }
        sim.run(sim.now + 1_000_000_000);
        prop_assert_eq!(reasons(&sim, flow), wanted);
    }

    /// Sets whose work fits in the worst case miss no deadline. In the worst case all arrive at
    /// once, as often as allowed, beside the longest packet of another flow.
    #[test]
    fn a_set_that_fits_misses_no_deadline(
        raw in prop::collection::vec((100_u64..1500, 50_u32..2000, 2_u64..40), 1..12),
        offsets in prop::collection::vec(0_u64..3_000_000, 12),
        careful in any::<bool>(),
    ) {
        let wire = Wire::new(mbit(100));
        let cost = |length: u64| length * 80;
        // Demand in any window of length t: the sum of (floor((t - D) Rmax) + 1) messages.
        let channels: Vec<(u64, u64, u64)> = raw
            .iter()
            .map(|(length, rate, bound)| {
                (*length, 1_000_000_000 / u64::from(*rate), bound * 1_000_000)
            })
            .collect();
        let demand = |t: u64| -> u64 {
            channels.iter().filter_map(|(length, period, bound)| {
                let bound = effective_bound(Nanos(*bound)).0;
                Some((t.checked_sub(bound)? / period + 1) * cost(*length))
            }).sum()
        };
        let blocking = cost(1514) + 70_000;
        let points = channels.iter().flat_map(|(_, period, bound)| {
            (0..200).map(move |k| effective_bound(Nanos(*bound)).0 + k * period)
        });
        let utilisation: f64 = channels.iter().map(|(l, p, _)| cost(*l) as f64 / *p as f64).sum();
        prop_assume!(utilisation < 0.95);
        let mut points = points.collect::<Vec<_>>();
        points.sort_unstable();
        prop_assume!(points.iter().all(|t| demand(*t) + blocking <= *t));

        let mut sim = Simulation::new(wire);
        sim.checks_invariants = careful;
        let flood = sim.flow(Service::best_effort(weight(1000)));
        sim.greedy(flood, 1514);
        let flows: Vec<FlowId> = raw.iter().map(|(length, rate, bound)| {
            sim.flow(channel(*length, *rate, 1, ms(*bound)))
        }).collect();
        let mut next: Vec<u64> = offsets[..flows.len()].to_vec();
        while sim.now < 60_000_000 {
            let (which, at) = next.iter().copied().enumerate().min_by_key(|(_, at)| *at).unwrap();
            sim.run(at);
            message(&mut sim, flows[which], &[raw[which].0]);
            next[which] = at + channels[which].1;
        }
        sim.run(sim.now + 50_000_000);
        prop_assert_eq!(sim.misses(), 0);
    }
}
