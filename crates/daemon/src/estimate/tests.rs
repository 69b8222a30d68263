//! The controller on a simulated cable: a queue of bytes before a rate that changes, in one
//! direction. The sender sends as much as the estimate allows, whatever is lost.

use netnice_core::link::EstimateBounds;
use netnice_core::units::{Instant, Nanos, Rate};
use netnice_kernel::traffic::ByteCounts;

use super::controller::Controller;
use super::delays::Reply;

const MBIT: u64 = 1_000_000;

fn rate(bits: u64) -> Rate {
    Rate::new(bits).expect("a rate")
}

fn bounds(min: u64, max: u64) -> EstimateBounds {
    EstimateBounds::new(rate(min * MBIT), rate(max * MBIT)).expect("bounds")
}

fn at(millis: u64) -> Instant {
    Instant(0).after(Nanos::from_millis(millis))
}

/// How a reflector replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    /// After the round trip, with its clock or without.
    Clock,
    Echo,
    /// Never.
    Silent,
    /// As if the queue were always empty.
    TooSoon,
    /// As if the queue were always long.
    TooLate,
}

struct Simulation {
    controller: Controller,
    reflectors: Vec<Answers>,
    /// 0 for sending, 1 for receiving.
    direction: usize,
    millis: u64,
    /// The round trip without a queue, in ms.
    way: u64,
    /// What the cable carries, and what the sender wants to send, in bit/s.
    carries: u64,
    wants: u64,
    queue: u64,
    most_queued: u64,
    counts: ByteCounts,
    /// Replies on their way: when they arrive, the sequence number and the reply.
    replies: Vec<(u64, u16, Reply)>,
    probes: u64,
    changes: u64,
    delivered: u64,
    /// Milliseconds in which the queue was longer than 30 ms.
    slow: u64,
}

impl Simulation {
    fn new(direction: usize, reflectors: &[Answers], from: u64, to: u64) -> Simulation {
        let bounds = bounds(from, to);
        let mut both = [None; 2];
        both[direction] = Some(bounds);
        let rates = both.map(|bounds| bounds.map(EstimateBounds::min));
        Simulation {
            controller: Controller::new(both, rates, reflectors.len(), at(0)),
            reflectors: reflectors.to_vec(),
            direction,
            millis: 0,
            way: 20,
            carries: 20 * MBIT,
            wants: u64::MAX,
            queue: 0,
            most_queued: 300_000,
            counts: ByteCounts::default(),
            replies: Vec::new(),
            probes: 0,
            changes: 0,
            delivered: 0,
            slow: 0,
        }
    }

    fn estimate(&self) -> u64 {
        let rates = self.controller.rates();
        rates[self.direction].expect("estimated").bits_per_second()
    }

    fn queued_ms(&self) -> u64 {
        self.queue * 8000 / self.carries
    }

    fn step(&mut self) {
        let now = at(self.millis);
        let before = self.estimate();
        let sent = before.min(self.wants) / 8000;
        let carried = (self.queue + sent).min(self.carries / 8000);
        self.queue = (self.queue + sent - carried).min(self.most_queued);
        self.delivered += carried;
        match self.direction {
            0 => self.counts.sent += sent,
            _ => self.counts.received += carried,
        }
        self.slow += u64::from(self.queued_ms() > 30);
        if self.controller.wants_counts(now) {
            self.controller.handle_counts(Some(self.counts), now);
        }
        if let Some(probe) = self.controller.poll_probe(now) {
            self.controller.handle_sent();
            self.probes += 1;
            self.probe(probe.reflector, probe.sequence);
        }
        let (come, rest) = self
            .replies
            .drain(..)
            .partition(|(due, ..)| *due <= self.millis);
        self.replies = rest;
        let come: Vec<(u64, u16, Reply)> = come;
        for (_, sequence, reply) in come {
            self.controller.handle_reply(sequence, reply, now);
        }
        self.changes += u64::from(self.estimate() != before);
        self.millis += 1;
    }

    fn probe(&mut self, reflector: usize, sequence: u16) {
        // A full queue drops every second probe.
        if self.queue == self.most_queued && sequence.is_multiple_of(2) {
            return;
        }
        let answers = self.reflectors[reflector];
        let queued = match answers {
            Answers::Silent => return,
            Answers::TooSoon => 0,
            Answers::TooLate => 200,
            Answers::Clock | Answers::Echo => self.queued_ms(),
        };
        let round_trip = Nanos::from_millis(self.way + queued);
        // The clock of the reflector is an hour ahead.
        let mut one_way = [3_600_000, -3_600_000].map(|ahead| ahead + self.way as i64 / 2);
        one_way[self.direction] += queued as i64;
        let reply = Reply {
            round_trip,
            one_way: (answers == Answers::Clock).then_some(one_way.map(|ms| ms * 1_000_000)),
        };
        self.replies
            .push((self.millis + self.way + queued, sequence, reply));
    }

    /// Runs for this time. Returns the part of the cable that was used, and the part of the time
    /// with a long queue, in percent.
    fn run(&mut self, seconds: u64) -> (u64, u64) {
        let (delivered, slow, mut could) = (self.delivered, self.slow, 0);
        for _ in 0..seconds * 1000 {
            could += self.carries / 8000;
            self.step();
        }
        let used = (self.delivered - delivered) * 100 / could;
        (used, (self.slow - slow) / (seconds * 10))
    }
}

const ALL: [[Answers; 3]; 3] = [
    [Answers::Clock; 3],
    [Answers::Echo; 3],
    [Answers::Clock, Answers::Echo, Answers::Echo],
];

#[test]
fn a_cable_between_20_and_5_mbit_is_used_and_its_queue_stays_short() {
    println!("direction reflectors             used %  time with a long queue %  changes/s");
    for direction in [0, 1] {
        for reflectors in ALL {
            let mut simulation = Simulation::new(direction, &reflectors, 1, 100);
            simulation.run(10);
            let (mut used, mut slow) = (Vec::new(), Vec::new());
            let changes = simulation.changes;
            for carries in [5, 20, 5, 20] {
                simulation.carries = carries * MBIT;
                let (part, late) = simulation.run(30);
                used.push(part);
                slow.push(late);
            }
            let changes = (simulation.changes - changes) / 120;
            println!("{direction} {reflectors:?} {used:?} {slow:?} {changes}");
            let mean = (used[0] + used[2] + 4 * (used[1] + used[3])) / 10;
            assert!(mean >= 85, "{mean} % used: {used:?}");
            let late = slow.iter().sum::<u64>() / 4;
            assert!(
                late <= 4,
                "the queue is long in {late} % of the time: {slow:?}"
            );
            assert!(changes <= 3, "{changes} changes a second");
        }
    }
}

#[test]
fn a_fall_is_followed_within_two_or_three_seconds_and_a_rise_within_eight() {
    for direction in [0, 1] {
        for (reflectors, way) in [(ALL[0], 20), (ALL[1], 20), (ALL[1], 80), (ALL[0], 3)] {
            let mut simulation = Simulation::new(direction, &reflectors, 1, 100);
            simulation.way = way;
            simulation.run(10);
            let estimate = simulation.estimate() / MBIT;
            assert!((14..=24).contains(&estimate), "{estimate} Mbit/s at first");
            simulation.carries = 5 * MBIT;
            simulation.run(if way > 50 { 3 } else { 2 });
            let estimate = simulation.estimate();
            assert!(
                estimate <= 6 * MBIT,
                "{estimate} bit/s, {direction}, {way} ms"
            );
            simulation.run(5);
            assert!(simulation.queued_ms() <= 30, "{}", simulation.queued_ms());
            simulation.carries = 20 * MBIT;
            simulation.run(8);
            let estimate = simulation.estimate();
            assert!(
                estimate >= 14 * MBIT,
                "{estimate} bit/s after 8 s, {way} ms"
            );
        }
    }
}

#[test]
fn one_reflector_of_three_may_lie_or_be_lost() {
    for bad in [Answers::Silent, Answers::TooSoon, Answers::TooLate] {
        let reflectors = [Answers::Echo, bad, Answers::Echo];
        let mut simulation = Simulation::new(0, &reflectors, 1, 100);
        simulation.run(10);
        simulation.carries = 5 * MBIT;
        let (used, late) = simulation.run(30);
        println!("{bad:?}: {used} % used, the queue is long in {late} % of the time");
        assert!(used >= 80 && late <= 12, "{bad:?}: {used} %, {late} %");
        simulation.carries = 20 * MBIT;
        let (used, _) = simulation.run(30);
        assert!(used >= 75, "{bad:?}: {used} %");
    }
}

#[test]
fn lying_reflectors_do_not_move_the_rate_beyond_its_bounds() {
    for (lie, expected) in [(Answers::TooSoon, 100), (Answers::Silent, 1)] {
        let mut simulation = Simulation::new(0, &[lie; 3], 1, 100);
        for _ in 0..60_000 {
            simulation.step();
            let estimate = simulation.estimate();
            assert!((MBIT..=100 * MBIT).contains(&estimate), "{estimate}");
        }
        assert_eq!(simulation.estimate(), expected * MBIT, "{lie:?}");
    }
}

#[test]
fn an_idle_link_is_probed_rarely_and_its_rate_returns_to_the_middle() {
    let mut simulation = Simulation::new(1, &[Answers::Echo; 3], 1, 100);
    simulation.run(10);
    assert!(simulation.estimate() > 14 * MBIT);
    let probes = simulation.probes;
    simulation.run(10);
    let active = simulation.probes - probes;
    assert!((190..=210).contains(&active), "{active} probes in 10 s");
    simulation.wants = 0;
    simulation.run(10);
    let probes = simulation.probes;
    let changes = simulation.changes;
    simulation.run(120);
    assert!(
        simulation.probes - probes <= 12,
        "{}",
        simulation.probes - probes
    );
    assert_eq!(simulation.estimate(), 10 * MBIT);
    assert!(simulation.changes - changes <= 24);
}

#[test]
fn without_replies_the_rate_is_the_lower_bound_and_the_fault_is_reported() {
    let mut simulation = Simulation::new(0, &[Answers::Silent; 2], 2, 50);
    simulation.run(5);
    assert_eq!(simulation.estimate(), 2 * MBIT);
    let state = simulation.controller.state();
    assert_eq!(state.replying, 0);
    let fault = state.fault.expect("a fault");
    assert!(fault.contains("none of the 2 hosts"), "{fault}");
    // They were reached, and are not any more.
    let mut simulation = Simulation::new(0, &[Answers::Echo; 2], 2, 50);
    simulation.run(10);
    assert!(simulation.estimate() > 12 * MBIT);
    assert_eq!(simulation.controller.state().fault, None);
    simulation.reflectors = vec![Answers::Silent; 2];
    simulation.run(10);
    assert_eq!(simulation.estimate(), 2 * MBIT);
    assert!(simulation.controller.state().fault.is_some());
    simulation.reflectors = vec![Answers::Echo; 2];
    simulation.run(10);
    assert!(simulation.estimate() > 12 * MBIT);
    assert_eq!(simulation.controller.state().fault, None);
}

#[test]
fn a_new_estimate_does_not_take_a_full_queue_for_the_way() {
    let mut simulation = Simulation::new(0, &[Answers::Echo; 3], 1, 100);
    simulation.carries = 5 * MBIT;
    simulation.queue = simulation.most_queued;
    simulation.run(5);
    simulation.run(5);
    assert!(
        simulation.queued_ms() <= 40,
        "{} ms",
        simulation.queued_ms()
    );
    assert!(
        simulation.estimate() <= 6 * MBIT,
        "{}",
        simulation.estimate()
    );
}

#[test]
fn a_continued_estimate_begins_where_it_was() {
    let both = [Some(bounds(1, 100)), None];
    let controller = Controller::new(both, [Some(rate(17 * MBIT)), None], 3, at(0));
    assert_eq!(controller.rates(), [Some(rate(17 * MBIT)), None]);
    let outside = Controller::new(both, [Some(rate(700 * MBIT)), None], 3, at(0));
    assert_eq!(outside.rates()[0], Some(rate(100 * MBIT)));
}

#[test]
fn a_reply_that_is_not_awaited_changes_nothing() {
    let both = [Some(bounds(1, 100)), None];
    let mut controller = Controller::new(both, [None; 2], 1, at(0));
    let reply = Reply {
        round_trip: Nanos::from_millis(10),
        one_way: None,
    };
    controller.handle_reply(0, reply, at(1));
    assert_eq!(controller.state().replying, 0);
    let probe = controller.poll_probe(at(1)).expect("a probe");
    assert_eq!(controller.awaited(probe.sequence), Some(0));
    controller.handle_reply(probe.sequence.wrapping_add(1), reply, at(2));
    assert_eq!(controller.state().replying, 0);
    controller.handle_reply(probe.sequence, reply, at(11));
    assert_eq!(controller.state().replying, 1);
    assert_eq!(controller.awaited(probe.sequence), None, "it counts once");
}

#[test]
fn a_probe_that_waits_in_a_queue_of_this_host_is_no_sign_of_a_queue_beyond() {
    let both = [Some(bounds(1, 100)), None];
    let mut controller = Controller::new(both, [Some(rate(20 * MBIT)), None], 3, at(0));
    let reply = Reply {
        round_trip: Nanos::from_millis(10),
        one_way: None,
    };
    let mut sent = 0;
    for millis in 0..3000 {
        let now = at(millis);
        if controller.wants_counts(now) {
            sent += 20 * MBIT / 8 / 20;
            let counts = ByteCounts { received: 0, sent };
            controller.handle_counts(Some(counts), now);
        }
        if let Some(probe) = controller.poll_probe(now) {
            controller.handle_sent();
            // From the second second on, probes do not leave.
            if millis < 1000 {
                controller.handle_departure(probe.sequence, now);
                controller.handle_reply(probe.sequence, reply, now);
            }
        }
        if millis == 1900 {
            assert!(controller.rates()[0] >= Some(rate(20 * MBIT)));
        }
    }
    assert!(
        controller.state().fault.is_some(),
        "after a second nothing is measured"
    );
}

mod any_replies {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the counters and the replies are, the rates stay within their bounds.
        #[test]
        fn never_leave_the_bounds(
            events in prop::collection::vec((0..4u8, any::<u64>(), any::<i64>()), 1..400)
        ) {
            let both = [Some(bounds(1, 100)), Some(bounds(5, 5))];
            let mut controller = Controller::new(both, [None; 2], 2, at(0));
            let mut now = Instant(0);
            for (kind, number, clock) in events {
                now = now.after(Nanos(number % 200_000_000));
                match kind {
                    0 => {
                        let counts = ByteCounts { received: number, sent: clock.unsigned_abs() };
                        controller.handle_counts(Some(counts), now);
                    }
                    1 => controller.handle_counts(None, now),
                    2 => drop(controller.poll_probe(now)),
                    _ => {
                        let one_way = (number % 2 == 0).then_some([clock, clock.wrapping_neg()]);
                        let reply = Reply { round_trip: Nanos(number), one_way };
                        controller.handle_reply((number % 64) as u16, reply, now);
                    }
                }
                let [up, down] = controller.rates();
                prop_assert!(up >= Some(rate(MBIT)) && up <= Some(rate(100 * MBIT)));
                prop_assert_eq!(down, Some(rate(5 * MBIT)));
            }
        }
    }
}
