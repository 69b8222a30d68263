//! Tests of real-time channels whose scheduler's owner is stopped by the machine, and of how a
//! channel catches up after its program was late.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::channels::{Lie, channel, deadline, lies, message, pauses, reasons};
use super::channels::{with_overload, with_processing};
use super::simulation::*;
use crate::admission::timing::{PacketSizes, Promise, Transmitter};
use crate::contract::{Channel, Overload};
use crate::sched::{FlowId, Packet, ServedAs, Service, Wire};
use crate::units::{Bytes, Instant, Nanos};

const MS: u64 = 1_000_000;

/// A message of one packet that is found now, and that arrived at `arrived`.
fn found(sim: &mut Simulation, flow: FlowId, arrived: u64) {
    sim.offer(flow, Packet::first(Bytes(1500), Instant(arrived)));
}

/// How much later than its arrival plus 4 ms each packet was due.
fn shifts(sim: &Simulation, flow: FlowId, arrivals: &[u64]) -> Vec<u64> {
    let due = reasons(sim, flow);
    assert_eq!(due.len(), arrivals.len());
    let shift = |(served_as, arrived): (&ServedAs, &u64)| match served_as {
        ServedAs::Guaranteed { deadline } => deadline.0 - 4 * MS - arrived,
        other => panic!("{other:?}"),
    };
    due.iter().zip(arrivals).map(shift).collect()
}

/// A program sends exactly Rmax messages per second. One message arrives while the owner is stopped
/// for 8 ms. If the owner passes on since when it could not look, then each message keeps the
/// deadline of its arrival. If not, all later messages are due 6 ms too late: the stop less the
/// processing.
#[test]
fn a_stop_moves_no_deadline_of_a_channel_at_its_full_rate() {
    for (is_known, moved) in [(true, 0), (false, 6 * MS)] {
        let mut sim = Simulation::new(Wire::new(mbit(100)));
        sim.checks_invariants = true;
        let flow = sim.flow(with_processing(channel(1500, 100, 2, ms(4)), ms(2)));
        let arrivals: Vec<u64> = (1..=100).map(|number| number * 10 * MS).collect();
        for (number, arrived) in arrivals.iter().enumerate() {
            sim.run(*arrived);
            if number == 20 {
                sim.now = arrived + 8 * MS;
            }
            if is_known {
                sim.link.set_unread_since(Instant(*arrived));
            }
            found(&mut sim, flow, *arrived);
        }
        sim.run(2_000 * MS);
        let shifts = shifts(&sim, flow, &arrivals);
        assert_eq!(shifts[..20], [0; 20]);
        assert_eq!(shifts[20..], [moved; 80]);
    }
}

/// A late piece of a message keeps the message's deadline too, if a stop made it late.
#[test]
fn a_stop_moves_no_piece_of_a_message() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    let flow = sim.flow(with_processing(channel(3000, 100, 2, ms(20)), ms(1)));
    message(&mut sim, flow, &[1500]);
    sim.run(MS);
    sim.now = 8 * MS;
    sim.link.set_unread_since(Instant(MS));
    sim.offer(flow, Packet::new(Bytes(1500)));
    sim.run(9 * MS);
    assert_eq!(reasons(&sim, flow), [deadline(20 * MS); 2]);
}

/// A stop counts for a second at most, whatever the program states, and the owner's claim cannot
/// lie ahead.
#[test]
fn of_a_long_stop_no_more_than_a_second_counts() {
    let mut sim = Simulation::new(Wire::new(mbit(100)));
    sim.checks_invariants = true;
    let flow = sim.flow(with_processing(channel(1500, 100, 3, ms(4)), ms(2)));
    sim.run(MS);
    sim.now = 60_000 * MS;
    sim.link.set_unread_since(Instant(MS));
    for _ in 0..120 {
        found(&mut sim, flow, 0);
    }
    sim.run(60_500 * MS);
    let due: Vec<_> = (0..120)
        .map(|k| deadline((60_000 - 1_000 - 2 + 4 + 10 * k) * MS))
        .collect();
    assert_eq!(reasons(&sim, flow), due);
    sim.link.set_unread_since(Instant(u64::MAX));
    found(&mut sim, flow, 0);
    sim.run(61_000 * MS);
    assert_eq!(reasons(&sim, flow)[120], deadline((60_500 - 2 + 4) * MS));
}

/// The program is late once by 7 ms, with 2 ms of processing. At exactly Rmax, all later messages
/// are due 5 ms late. With a tenth more in Rmax the shift shrinks by 1/11 of 10 ms with each
/// message. With `overload=best-effort` one message in the left-over is enough.
#[test]
fn room_in_rmax_or_the_left_over_catches_up_after_a_late_message() {
    let exact = with_processing(channel(1500, 100, 2, ms(4)), ms(2));
    let roomy = with_processing(channel(1500, 110, 2, ms(4)), ms(2));
    let left_over = with_overload(exact, Overload::BestEffort);
    for (service, caught_up) in [(exact, None), (roomy, Some(6)), (left_over, Some(2))] {
        let mut sim = Simulation::new(Wire::new(mbit(100)));
        let flow = sim.flow(service);
        let arrivals: Vec<u64> = (1..=40).map(|number| number * 10 * MS).collect();
        for (number, arrived) in arrivals.iter().enumerate() {
            let late = if number == 10 { 7 * MS } else { 0 };
            sim.run(arrived + late);
            found(&mut sim, flow, *arrived);
        }
        sim.run(1_000 * MS);
        let due = reasons(&sim, flow);
        let is_moved = |number: usize| due[number] != deadline(arrivals[number] + 4 * MS);
        let moved: Vec<usize> = (0..40).filter(|number| is_moved(*number)).collect();
        let until = caught_up.map_or(40, |messages| 10 + messages);
        assert_eq!(moved, (10..until).collect::<Vec<_>>(), "{service:?}");
    }
}

/// Stops of an owner: one in each 100 ms.
const STOP: Nanos = Nanos::from_millis(2);
const EVERY: u64 = 100 * MS;

/// What the owner reports about a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    /// When the stop began.
    True,
    /// At each reading, a time that is too early by this, in ns.
    TooEarly(u64),
}

/// Runs a hostile channel (Mmax 40,000 bytes, 100/s, 20 ms) beside a cell contract and channels
/// that are as tight as admission permits with these stops. What arrives during a stop, which
/// begins `offset` into each 100 ms, is found at its end. Returns the missed deadlines of all
/// flows.
fn beside_stops(acts: &[(Lie, u64)], processing: Nanos, offset: u64, report: Report) -> usize {
    let wire = Wire::new(mbit(100));
    let link = Transmitter {
        stops: Some("2ms/100ms".parse().unwrap()),
        ..Transmitter::of(&wire, Bytes(1514), 8)
    };
    let contract = |service: Service| -> Channel {
        match service {
            Service::Channel(channel) => channel,
            other => panic!("{other:?}"),
        }
    };
    let admitted = with_processing(channel(40_000, 100, 2, ms(20)), processing);
    let mut held = alloc::vec![Promise::Channel(contract(admitted))];
    let cell = cell(mbit(20), ms(10));
    let sizes = PacketSizes::new(Bytes(1000), Bytes(1000)).unwrap();
    held.push(Promise::Cell(cell, sizes));
    link.carries(&held).unwrap();
    let mut sim = Simulation::new(wire);
    let hostile = sim.flow(admitted);
    let steady = sim.flow(Service::Cell(cell));
    let bulk = sim.flow(Service::best_effort(weight(1000)));
    sim.greedy(steady, 1000);
    sim.greedy(bulk, 1514);
    // Flow, packets of a message, spacing.
    let mut victims: Vec<(FlowId, usize, u64)> = Vec::new();
    for (mmax, rmax) in [(1500, 500), (6000, 200)] {
        let asked = contract(channel(mmax, rmax, 1, ms(1)));
        let tight = link.least_deadline(&held, &asked).unwrap();
        let tight = contract(channel(mmax, rmax, 1, tight));
        held.push(Promise::Channel(tight));
        let flow = sim.flow(Service::Channel(tight));
        victims.push((flow, mmax as usize / 1500, 1_000_000_000 / u64::from(rmax)));
    }
    // Each arrival with its time: of a victim by its number, or an act of the hostile program.
    let mut arrivals: Vec<(u64, Result<usize, Lie>)> = Vec::new();
    let mut at = 5 * MS;
    for (lie, pause) in acts {
        arrivals.push((at, Err(*lie)));
        at += pause;
    }
    for (number, (_, _, spacing)) in victims.iter().enumerate() {
        let count = at / spacing;
        arrivals.extend((0..count).map(|k| (k * spacing + 1000, Ok(number))));
    }
    arrivals.sort_by_key(|(at, _)| *at);
    let mut stop = offset;
    for (at, what) in arrivals {
        while at >= stop + STOP.0 {
            sim.run(stop);
            sim.now = sim.now.max(stop + STOP.0);
            stop += EVERY;
        }
        let is_in_stop = at >= stop;
        match is_in_stop {
            false => sim.run(at),
            // All that came during one stop is found in one reading, before a packet is chosen.
            true if sim.now < stop + STOP.0 => {
                sim.run(stop);
                sim.now = stop + STOP.0;
            }
            true => {}
        }
        let since = match report {
            Report::True if is_in_stop => stop,
            Report::True => sim.now,
            Report::TooEarly(by) => sim.now.saturating_sub(by),
        };
        sim.link.set_unread_since(Instant(since));
        match what {
            Ok(number) => {
                let (flow, packets, _) = victims[number];
                sim.offer(flow, Packet::first(Bytes(1500), Instant(at)));
                for _ in 1..packets {
                    sim.offer(flow, Packet::new(Bytes(1500)));
                }
            }
            Err(lie) => lie.tell(&mut sim, hostile),
        }
    }
    sim.link.set_unread_since(Instant(u64::MAX));
    sim.run(sim.now + 100 * MS);
    sim.misses()
}

/// A time that no stop explains is an attack: it breaks deadlines that admission granted.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn only_a_time_without_readings_may_count_as_unread() {
    let acts = alloc::vec![(Lie::Early(60 * MS, 26), 25_300_000); 100];
    assert_eq!(beside_stops(&acts, ms(0), 3 * MS, Report::True), 0);
    let too_early = Report::TooEarly(19_900_000);
    assert!(beside_stops(&acts, ms(0), 3 * MS, too_early) > 0);
}

proptest! {
    #![proptest_config(cases(24))]

    /// Whatever a program states about its messages, with stops within their allowance no flow
    /// misses a deadline, though what arrived during a stop counts from its beginning.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn no_lie_about_a_stop_gains_anything(
        acts in prop::collection::vec((lies(), pauses()), 1..80),
        processing in 0_u64..10_000_000,
        offset in 5_000_000_u64..90_000_000,
    ) {
        prop_assert_eq!(beside_stops(&acts, Nanos(processing), offset, Report::True), 0);
    }
}
