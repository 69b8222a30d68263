//! Tests of slices: exactness, debt, waking.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::simulation::*;
use crate::sched::{Departure, FlowId, Packet, Scheduler, ServedAs, Service, Wire};
use crate::units::{Bytes, Instant};

/// A link of 10 Mbit/s, on which a packet of 1,500 bytes takes 1.2 ms.
fn ethernet() -> Simulation {
    Simulation::new(Wire::new(mbit(10)))
}

fn per_period(sim: &Simulation, flow: FlowId, period: u64) -> Vec<usize> {
    let periods = sim.now / period;
    let mut counts = alloc::vec![0; periods as usize];
    for one in sim.sent_by(flow) {
        if let Some(count) = counts.get_mut((one.start.0 / period) as usize) {
            *count += 1;
        }
    }
    counts
}

#[test]
fn a_slice_of_two_packets_sends_two() {
    let mut sim = ethernet();
    let flow = sim.flow(slice(us(2400), ms(50), false));
    sim.greedy(flow, 1500);
    sim.run(10_000_000_000);
    let counts = per_period(&sim, flow, 50_000_000);
    assert_eq!(counts.len(), 200);
    assert!(counts.iter().all(|count| *count == 2), "{counts:?}");
}

#[test]
fn an_overdraft_is_taken_from_the_next_period() {
    let mut sim = ethernet();
    let flow = sim.flow(slice(us(3000), ms(50), false));
    sim.greedy(flow, 1500);
    sim.run(10_000_000_000);
    let counts = per_period(&sim, flow, 50_000_000);
    assert!(
        counts.iter().all(|count| matches!(count, 2 | 3)),
        "{counts:?}"
    );
    assert_eq!(counts.iter().sum::<usize>(), 500, "2.5 in the mean");
}

#[test]
fn extra_gets_the_whole_left_over_and_is_not_charged() {
    let mut sim = ethernet();
    let steady = sim.flow(slice(ms(6), ms(20), false));
    let hungry = sim.flow(slice(ms(2), ms(20), true));
    sim.greedy(steady, 1500);
    sim.greedy(hungry, 1500);
    sim.run(2_000_000_000);
    let (a, b) = (sim.time_of(steady), sim.time_of(hungry));
    assert!(a.abs_diff(600_000_000) <= 1_200_000, "{a}");
    assert!(a + b >= 1_998_000_000, "{a} and {b}");
}

#[test]
fn a_debt_larger_than_the_slice_is_repaid_by_waiting() {
    let mut sim = ethernet();
    let flow = sim.flow(slice(us(100), ms(10), false));
    sim.greedy(flow, 1500);
    sim.run(1_200_000_000);
    // 1.2 ms each, 0.1 ms in 10 ms: one in 12 periods.
    let starts: Vec<u64> = sim.sent_by(flow).map(|one| one.start.0).collect();
    assert_eq!(starts.len(), 10);
    assert!(
        starts
            .windows(2)
            .all(|two| (two[1] - two[0]).abs_diff(120_000_000) <= 120_000),
        "{starts:?}"
    );
}

/// With the naive rule (an old deadline kept, a full slice) a flow that wakes just before its
/// deadline takes two slices in a row, and at 80 % load another flow loses a whole period.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_flow_that_wakes_at_the_worst_moment_harms_no_other() {
    let mut sim = ethernet();
    let victim = sim.flow(slice(ms(6), ms(15), false));
    let sleeper = sim.flow(slice(ms(12), ms(30), false));
    sim.greedy(victim, 1200);
    for round in 0..200_u64 {
        // Awake for one packet, asleep nearly until the end of the period, then greedy for a while.
        sim.offer(
            sleeper,
            crate::sched::Packet::new(crate::units::Bytes(1200)),
        );
        sim.run(sim.now + 29_000_000 - round * 3_000);
        sim.greedy(sleeper, 1200);
        sim.run(sim.now + 31_000_000);
        sim.stop(sleeper);
        sim.run(sim.now + 40_000_000);
    }
    let periods = sim.now / 15_000_000;
    let mut got = alloc::vec![0_u64; periods as usize];
    for one in sim.sent_by(victim) {
        if let Some(time) = got.get_mut((one.start.0 / 15_000_000) as usize) {
            *time += one.end.0 - one.start.0;
        }
    }
    let least = got.iter().min().unwrap();
    assert!(
        *least >= 6_000_000 - 960_000,
        "a period with {least} ns of 6 ms"
    );
    assert_eq!(sim.misses(), 0);
}

proptest! {
    #![proptest_config(cases(24))]

    /// At the end of every whole period a backlogged flow has got its slice, except for one packet,
    /// with any behaviour of the other flows, if the slices and one packet of overrun each fit.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn an_admitted_slice_is_kept(
        raw in prop::collection::vec((1_u64..100, 5_u64..60), 2..8),
        naps in prop::collection::vec((0_usize..8, 1_u64..30_000_000), 1..60),
    ) {
        let packet = 120_000;
        let total: u64 = raw.iter().map(|(part, _)| part).sum();
        // The slice of each flow, so that all slices, an overrun each and one packet of another
        // flow are 95 % of the link.
        let mut sim = Simulation::new(Wire::new(mbit(100)));
        let mut flows = Vec::new();
        for (part, period) in &raw {
            let period = period * 1_000_000;
            let room = (period * 95 / 100 * part / total).saturating_sub(packet * 2);
            if room > 0 {
                let service = slice(crate::units::Nanos(room), crate::units::Nanos(period), false);
                flows.push((sim.flow(service), room, period));
            }
        }
        prop_assume!(!flows.is_empty());
        let (victim, share, period) = flows[0];
        sim.greedy(victim, 1500);
        let mut awake = alloc::vec![false; flows.len()];
        for (which, nap) in naps {
            let which = which % flows.len();
            if which > 0 {
                match awake[which] {
                    true => { sim.stop(flows[which].0); }
                    false => sim.greedy(flows[which].0, 1500),
                }
                awake[which] = !awake[which];
            }
            sim.checks_invariants = which == 1;
            sim.run(sim.now + nap);
        }
        let periods = sim.now / period;
        let mut got = alloc::vec![0_u64; periods as usize];
        let mut all = 0;
        for one in sim.sent_by(victim) {
            let cost = one.end.0 - one.start.0;
            all += cost;
            if let Some(time) = got.get_mut((one.start.0 / period) as usize) {
                *time += cost;
            }
        }
        prop_assert!(got.iter().all(|time| time + packet >= share), "{share}: {got:?}");
        prop_assert!(all <= (periods + 1) * share + packet);
    }
}

proptest! {
    #![proptest_config(cases(64))]

    /// A slice is kept beside another sender, which uses up to half of the link in bursts, and an
    /// endless best effort has exactly what both leave.
    #[test]
    fn a_slice_is_kept_beside_another_sender_on_the_link(
        extra in any::<bool>(),
        steps in prop::collection::vec((1_u64..60_000, 0_u64..=50), 1..100),
    ) {
        // 16 packets of 1,250 bytes in each period of 50 ms: 16 ms at 10 Mbit/s.
        const PERIOD: u64 = 50_000_000;
        let mut sim = Simulation::new(Wire::new(mbit(10)));
        sim.checks_invariants = true;
        let flow = sim.flow(slice(ms(16), ms(50), extra));
        let rest = sim.flow(Service::best_effort(weight(100)));
        sim.greedy(flow, 1250);
        sim.greedy(rest, 1250);
        let mut foreign = 0;
        for (wait, percent) in steps {
            // As a driver does, which reads a counter before each packet.
            let until = sim.now + wait * 1_000;
            while sim.now < until {
                let since = sim.now;
                sim.run(until.min(since + 1_000_000));
                // 10 Mbit/s are a byte in 800 ns.
                let bytes = (sim.now - since) * percent / 100 / 800;
                sim.link.handle_foreign(Bytes(bytes), Instant(since));
                foreign += bytes;
            }
        }
        let ended = sim.now;
        sim.run(ended + PERIOD);
        let guaranteed = |one: &&Departure| matches!(one.served_as, ServedAs::Guaranteed { .. });
        let mut counts = alloc::vec![0_u64; (ended / PERIOD) as usize];
        for one in sim.sent_by(flow).filter(guaranteed) {
            if let Some(count) = counts.get_mut((one.start.0 / PERIOD) as usize) {
                *count += 1;
            }
        }
        // A packet across the end of a period.
        prop_assert!(counts.iter().all(|count| (15..=17).contains(count)), "{counts:?}");
        let sent = sim.sent_by(flow).count() + sim.sent_by(rest).count();
        let all = sent as u64 * 1_250 + foreign;
        let whole = sim.now / 800;
        prop_assert!(all.abs_diff(whole) <= 2 * 1_250, "{all} of {whole}");
    }
}

/// A link that was free while another sender used it is not charged again.
#[test]
fn another_sender_takes_the_time_in_which_the_link_was_free() {
    let mut link = Scheduler::new(Wire::new(mbit(10))).unwrap();
    let flow = link
        .insert(Service::best_effort(weight(100)), Instant(0))
        .unwrap();
    link.handle_head(flow, Packet::new(Bytes(1_250)), Instant(5_000_000))
        .unwrap();
    // 2 ms of the 5 ms that the link was free.
    link.handle_foreign(Bytes(2_500), Instant(0));
    let sent = link.poll(Instant(5_000_000), |_| Some(Packet::new(Bytes(1_250))));
    assert_eq!(sent.unwrap().start, Instant(5_000_000));
    // And 1 ms behind that packet.
    link.handle_foreign(Bytes(1_250), Instant(5_000_000));
    assert_eq!(link.poll_timeout(), Some(Instant(7_000_000)));
    // A count that is far too high stops the link for little more than a second.
    link.handle_foreign(Bytes(u64::MAX), Instant(5_000_000));
    assert!(link.poll_timeout().unwrap() < Instant(30_000_000_000));
}

/// A packet that was chosen and not sent leaves its time to the packets of others. Its own flow
/// has used its share.
#[test]
fn the_time_of_an_unsent_packet_goes_to_the_next_packets() {
    let mut sim = ethernet();
    let refused = sim.flow(Service::best_effort(weight(100)));
    let other = sim.flow(Service::best_effort(weight(100)));
    sim.greedy(refused, 1500);
    sim.greedy(other, 1500);
    let mut chosen = [0_u64; 2];
    while sim.now < 1_000_000_000 {
        while let Some(departure) = sim.poll() {
            chosen[usize::from(departure.flow == other)] += 1;
            if departure.flow == refused {
                sim.link.handle_unsent(&departure);
            }
        }
        sim.now = sim.link.poll_timeout().unwrap().0;
    }
    // 833 packets of 1.2 ms in a second, all of the other flow.
    assert!(chosen[1].abs_diff(833) <= 2, "{chosen:?}");
    assert!(chosen[0].abs_diff(chosen[1]) <= 2, "{chosen:?}");
}
