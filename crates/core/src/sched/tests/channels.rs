//! Tests of real-time channels: logical arrivals, deadlines, and whether a packet is served as
//! guaranteed or early.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::limits::limited;
use super::simulation::*;
use crate::admission::timing::{PacketSizes, Promise, Transmitter};
use crate::contract::{Channel, MessageRate, Overload};
use crate::sched::{EarlyOrder, FlowId, Packet, ServedAs, Service, Wire, effective_bound};
use crate::units::{Bytes, Instant, Nanos};

pub(super) fn channel(mmax: u64, rmax: u32, bmax: u32, deadline: Nanos) -> Service {
    let rmax = MessageRate::new(rmax).unwrap();
    Service::Channel(Channel::new(Bytes(mmax), rmax, bmax, deadline).unwrap())
}

/// A channel with a part of the deadline for processing.
pub(super) fn with_processing(service: Service, processing: Nanos) -> Service {
    match service {
        Service::Channel(channel) => Service::Channel(channel.with_processing(processing).unwrap()),
        other => other,
    }
}

pub(super) fn with_overload(service: Service, overload: Overload) -> Service {
    match service {
        Service::Channel(channel) => Service::Channel(channel.with_overload(overload)),
        other => other,
    }
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

pub(super) fn reasons(sim: &Simulation, flow: FlowId) -> Vec<ServedAs> {
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

pub(super) fn deadline(ns: u64) -> ServedAs {
    ServedAs::Guaranteed {
        deadline: Instant(ns),
    }
}

/// A program delivers a message in pieces, and the link may be faster. Within the part of the
/// deadline for processing the pieces keep the times of their message. A later piece is due later,
/// and so is the next message.
#[test]
fn a_piece_at_an_empty_queue_continues_its_message() {
    for (processing, pieces, next) in [
        (ms(3), [4_001, 4_001, 4_001, 4_001], 14_001),
        (us(900), [4_001, 4_001, 4_901, 5_801], 15_801),
        (ms(0), [4_001, 4_901, 5_801, 6_701], 16_701),
    ] {
        let mut sim = Simulation::new(Wire::new(mbit(100)));
        let flow = sim.flow(with_processing(channel(6000, 100, 2, ms(4)), processing));
        sim.now = 1000;
        message(&mut sim, flow, &[1500]);
        for piece in 1..4 {
            sim.run(1000 + piece * 900_000);
            assert_eq!(sim.queued(flow), 0);
            sim.offer(flow, Packet::new(Bytes(1500)));
        }
        sim.run(5_000_000);
        message(&mut sim, flow, &[1500]);
        sim.run(50_000_000);
        assert_eq!(
            reasons(&sim, flow)[..4],
            pieces.map(|at| deadline(at * 1000))
        );
        assert_eq!(reasons(&sim, flow)[4..], [deadline(next * 1000)]);
    }
}

/// A piece after the deadline of its message continues that message, and is due no earlier than
/// what arrives now.
#[test]
fn a_piece_after_the_deadline_continues_its_message() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flow = sim.flow(with_processing(channel(6000, 100, 2, ms(4)), ms(1)));
    message(&mut sim, flow, &[1500]);
    sim.run(4_000_001);
    sim.offer(flow, Packet::new(Bytes(1500)));
    sim.run(4_200_000);
    // The next message follows the piece by 1/Rmax.
    message(&mut sim, flow, &[1500]);
    sim.run(40_000_000);
    let all = [
        deadline(4_000_000),
        deadline(7_000_001),
        deadline(17_000_001),
    ];
    assert_eq!(reasons(&sim, flow), all);
    // A piece without a message before it begins one.
    let other = sim.flow(channel(6000, 100, 2, ms(4)));
    sim.offer(other, Packet::new(Bytes(1500)));
    sim.run(50_000_000);
    assert_eq!(reasons(&sim, other), [deadline(44_000_000)]);
}

/// A message whose sender was delayed keeps the deadline of its arrival, up to the processing. An
/// arrival that is reported too early counts as that, and one behind other packets is believed.
#[test]
fn a_reported_arrival_counts_within_the_processing() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flow = sim.flow(with_processing(channel(1500, 100, 2, ms(4)), ms(1)));
    let mut expected = Vec::new();
    for (now, arrived, logical) in [
        (20_000_000, 19_500_000, 19_500_000),
        (40_000_000, 3_000_000, 39_000_000),
        // 1/Rmax behind the one before.
        (41_000_000, 41_000_000, 49_000_000),
        (41_000_000, 0, 59_000_000),
        (41_000_000, 41_000_000, 69_000_000),
    ] {
        sim.run(now);
        sim.offer(flow, Packet::first(Bytes(1500), Instant(arrived)));
        expected.push(deadline(logical + 4_000_000));
    }
    sim.run(100_000_000);
    assert_eq!(reasons(&sim, flow), expected);
}

/// Messages beyond the contract leave as best effort while the link is free. They do not count
/// against the contract: later messages have the guarantee at once when the link is full.
#[test]
fn messages_beyond_the_contract_leave_as_best_effort() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    sim.checks_invariants = true;
    let service = channel(3000, 100, 5, ms(4));
    let flow = sim.flow(with_overload(service, Overload::BestEffort));
    let decays = sim.flow(service);
    for _ in 0..4 {
        message(&mut sim, flow, &[1500, 1500]);
        message(&mut sim, decays, &[1500, 1500]);
    }
    sim.run(3_000_000);
    let left_over = [ServedAs::LeftOver; 6];
    assert_eq!(reasons(&sim, flow)[..2], [deadline(4_000_000); 2]);
    assert_eq!(reasons(&sim, flow)[2..], left_over);
    assert_eq!(sim.sent_by(decays).count(), 2, "the other policies wait");
    // The next message has the logical arrival that no message has used.
    let bulk = sim.flow(Service::best_effort(weight(1000)));
    sim.greedy(bulk, 1500);
    for at in [9, 11] {
        sim.run(at * 1_000_000);
        message(&mut sim, flow, &[1500, 1500]);
    }
    sim.run(60_000_000);
    let last = reasons(&sim, flow);
    assert!(last[8..].contains(&deadline(14_000_000)), "{last:?}");
    assert_eq!(last.len(), 12);
    assert_eq!(sim.misses(), 0);
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

/// Paper RTC, section 5.3: the early message leaves beside a backlog, within the horizon, and what
/// is due still leaves first.
#[test]
fn early_packets_displace_the_left_over_if_they_come_before_it() {
    let mut sim = Simulation::new(Wire {
        horizon: ms(8),
        early: EarlyOrder::BeforeLeftOver,
        ..Wire::new(mbit(100))
    });
    let flow = sim.flow(channel(1500, 100, 5, ms(4)));
    let due = sim.flow(channel(15_000, 100, 5, ms(4)));
    let others = sim.flow(Service::best_effort(weight(1)));
    sim.greedy(others, 1500);
    message(&mut sim, flow, &[1500]);
    message(&mut sim, flow, &[1500]);
    sim.run(1_950_000);
    // Ten packets that are due, for 1.2 ms: the early one may leave from 2 ms on, and is behind
    // them.
    message(&mut sim, due, &[1500; 10]);
    sim.run(9_000_000);
    let early = sim.sent_by(flow).last().unwrap();
    assert_eq!(early.served_as, ServedAs::Early);
    assert!((3_100_000..3_500_000).contains(&early.start.0), "{early:?}");
    assert!(sim.sent_by(due).all(|one| one.start < early.start));
    assert_eq!(sim.sent_by(flow).count(), 2);
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

/// What a hostile program does with its channel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lie {
    /// A message that is reported as arrived so long ago, of so many packets.
    Early(u64, usize),
    /// A message that is reported as arrived later than now. (The driver reads that as now.)
    Late(usize),
    /// So many packets that continue the last message.
    Piece(usize),
    /// A small packet that begins a message.
    Beginning,
}

pub(super) fn lies() -> impl Strategy<Value = Lie> {
    prop_oneof![
        (0..60_000_000_u64, 1..14_usize).prop_map(|(ago, packets)| Lie::Early(ago, packets)),
        (1..14_usize).prop_map(Lie::Late),
        (1..14_usize).prop_map(Lie::Piece),
        Just(Lie::Beginning),
    ]
}

impl Lie {
    /// The program `hostile` does so now.
    pub(super) fn tell(self, sim: &mut Simulation, hostile: FlowId) {
        let now = sim.now;
        let (begins, packets) = match self {
            Lie::Early(ago, packets) => (Some(now.saturating_sub(ago)), packets),
            Lie::Late(packets) => (Some(now), packets),
            Lie::Piece(packets) => (None, packets),
            Lie::Beginning => (Some(0), 0),
        };
        let first = Packet {
            message: begins.map(Instant),
            ..Packet::new(Bytes(64))
        };
        sim.offer(hostile, first);
        for _ in 0..packets {
            sim.offer(hostile, Packet::new(Bytes(1500)));
        }
    }
}

/// A pause of the hostile program: none, random, or just before the next message or the deadline.
pub(super) fn pauses() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        0..12_000_000_u64,
        Just(9_990_000),
        Just(11_990_000),
    ]
}

/// Runs a hostile channel (Mmax 20,000 bytes, 100/s, 12 ms) beside others that are as tight as
/// admission permits: channels, a cell contract, and bulk. `believed`: the scheduler believes
/// whatever the program reports, but admission does not count it. Returns the missed deadlines of
/// all flows, and the bytes of the hostile one with the time.
fn beside_lies(acts: &[(Lie, u64)], processing: Nanos, believed: bool) -> (usize, u64, u64) {
    let wire = Wire::new(mbit(100));
    let link = Transmitter::of(&wire, Bytes(1514), 8);
    let contract = |service: Service| match service {
        Service::Channel(channel) => channel,
        other => panic!("{other:?}"),
    };
    let admitted = contract(channel(20_000, 100, 1, ms(12)));
    let admitted = admitted.with_processing(processing).unwrap();
    let mut held = alloc::vec![Promise::Channel(admitted)];
    let cell = cell(mbit(20), ms(8));
    let sizes = PacketSizes::new(Bytes(1000), Bytes(1000)).unwrap();
    held.push(Promise::Cell(cell, sizes));
    link.carries(&held).unwrap();
    let mut sim = Simulation::new(wire);
    let served = match believed {
        true => admitted.with_processing(Nanos(11_999_999)).unwrap(),
        false => admitted,
    };
    let hostile = sim.flow(Service::Channel(served));
    let steady = sim.flow(Service::Cell(cell));
    let bulk = sim.flow(Service::best_effort(weight(1000)));
    sim.greedy(steady, 1000);
    sim.greedy(bulk, 1514);
    let mut victims = Vec::new();
    for (mmax, rmax) in [(1500, 1000), (6000, 200)] {
        let asked = contract(channel(mmax, rmax, 1, ms(1)));
        let least = link.least_deadline(&held, &asked).unwrap();
        let tight = contract(channel(mmax, rmax, 1, least));
        held.push(Promise::Channel(tight));
        let flow = sim.flow(Service::Channel(tight));
        victims.push((flow, mmax, 1_000_000_000 / u64::from(rmax), sim.now + mmax));
    }
    let (mut acts, mut act_at) = (acts.iter(), 5_000_000);
    loop {
        let (next, at) = victims
            .iter()
            .enumerate()
            .map(|(which, victim)| (which, victim.3))
            .min_by_key(|(_, at)| *at)
            .unwrap();
        if at < act_at {
            sim.run(at);
            let (flow, mmax, spacing, due) = &mut victims[next];
            *due += *spacing;
            let packets = alloc::vec![1500; (*mmax / 1500) as usize];
            message(&mut sim, *flow, &packets);
            continue;
        }
        sim.run(act_at);
        let Some((lie, pause)) = acts.next() else {
            break;
        };
        lie.tell(&mut sim, hostile);
        act_at += pause;
    }
    // As long as the hostile program has packets that wait, within reason.
    sim.run(sim.now + 100_000_000);
    (sim.misses(), sim.bytes_of(hostile), sim.now)
}

/// The attack that admission does not count: a message begins with a small packet, and the rest of
/// it comes shortly before its deadline.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn late_pieces_harm_no_other_flow() {
    let mut acts = Vec::new();
    for _ in 0..50 {
        acts.push((Lie::Beginning, 11_700_000));
        acts.push((Lie::Piece(13), 300_000));
    }
    let (missed, ..) = beside_lies(&acts, ms(0), false);
    assert_eq!(missed, 0);
    let (missed, ..) = beside_lies(&acts, ms(4), false);
    assert_eq!(missed, 0);
    let (missed, ..) = beside_lies(&acts, ms(0), true);
    assert!(missed > 0, "the attack is none");
}

/// The attack by an early arrival: the program reports that its message arrived long ago.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn early_reports_harm_no_other_flow() {
    let acts = alloc::vec![(Lie::Early(11_900_000, 13), 25_300_000); 50];
    let (missed, ..) = beside_lies(&acts, ms(0), false);
    assert_eq!(missed, 0);
    let (missed, ..) = beside_lies(&acts, ms(0), true);
    assert!(missed > 0, "the attack is none");
}

proptest! {
    #![proptest_config(cases(24))]

    /// Messages of several pieces, each at any time: all pieces have the times of their message by
    /// the definition of logical arrivals.
    #[test]
    fn pieces_have_the_times_of_their_message(
        steps in prop::collection::vec((any::<bool>(), 0_u64..6_000_000), 1..60),
        processing in 0_u64..4_000_000,
    ) {
        let (spacing, bound, pieces) = (10_000_000, 4_000_000, 4);
        let mut sim = Simulation::new(Wire::new(mbit(100)));
        let service = channel(6000, 100, 2, Nanos(bound));
        let flow = sim.flow(with_processing(service, Nanos(processing)));
        let (mut logical, mut wanted, mut count) = (None, Vec::new(), 0);
        for (begins, gap) in steps {
            let now = sim.now;
            // A packet behind other packets belongs to their message, at any delay.
            let earliest = match sim.queued(flow) {
                0 => now.saturating_sub(processing),
                _ => 0,
            };
            count += 1;
            logical = Some(match logical {
                None => now,
                Some(before) if begins || count > pieces => {
                    count = 1;
                    let came = if begins { now } else { 0 };
                    came.max(before + spacing).max(earliest)
                }
                Some(before) => earliest.max(before),
            });
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

    /// Whatever a program reports about its messages, and whenever their pieces come: no flow
    /// misses a deadline, and the program gets no more than its contract.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn no_lie_gains_anything(
        acts in prop::collection::vec((lies(), pauses()), 1..80),
        processing in 0_u64..10_000_000,
    ) {
        let (missed, bytes, time) = beside_lies(&acts, Nanos(processing), false);
        prop_assert_eq!(missed, 0);
        let messages = 1 + time.div_ceil(10_000_000);
        prop_assert!(bytes <= messages * 20_000, "{} bytes in {} ns", bytes, time);
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
