//! Decides when a link is probed, and what its rates are ([`Controller`]).
//!
//! The interface's counters and the replies come in; the times of probes and the rates go out. The
//! caller sends the probes:
//!
//! - While a direction carries more than a tenth of its rate, and 3 s longer, a probe leaves every
//!   50 ms, to each reflector in turn: 20 packets of 54 bytes a second in total. Else one leaves
//!   every 10 s.
//! - The excess that counts is the median over the reflectors that reply (of an even number, the
//!   smaller one of the two in the middle). A reflector that has not replied for 2 s does not
//!   count.
//! - If the reflectors report their clocks, the excess of each direction is known. Else the excess
//!   of the round trip is ascribed to the directions that are used by half or more, else to the one
//!   that is used most if it is not idle.
//!
//! A new estimate begins with the lower bound, so that a queue which exists already drains and the
//! best delays can be measured without it. Then the rate is the middle of the bounds. If no
//! reflector replies, the rate goes to the lower bound while the link is used. No function fails.

use std::collections::VecDeque;

use netnice_core::link::EstimateBounds;
use netnice_core::units::{Instant, Nanos, Rate};
use netnice_kernel::traffic::ByteCounts;

use super::EstimateState;
use super::delays::{ReflectorDelays, Reply};
use super::direction::{DirectionRate, Findings, IDLE_PERCENT};

/// A probe that shall be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    /// The index of the reflector.
    pub reflector: usize,
    /// The number that the reply repeats.
    pub sequence: u16,
}

/// An excess, and when the probe was sent.
type Measured = (Nanos, Instant);

/// A probe that waits for its reply.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    probe: Probe,
    sent: Instant,
    /// True if it is known to have left this host.
    has_departed: bool,
}

/// The estimation of one link.
#[derive(Debug)]
pub(super) struct Controller {
    directions: [Option<DirectionRate>; 2],
    reflectors: Vec<ReflectorDelays>,
    outstanding: VecDeque<Outstanding>,
    /// The counters of the last [`LOAD_WINDOW`], latest last.
    counts: VecDeque<(Instant, ByteCounts)>,
    /// Whether the best delays are not known yet.
    is_starting: bool,
    started: Instant,
    active_until: Instant,
    next_tick: Instant,
    next_probe: Instant,
    sequence: u16,
    /// True if the interface reports departures: then a probe that has not left waits in a queue of
    /// this host, and not in the one that is measured.
    knows_departures: bool,
    /// Since when the link is used.
    active_since: Instant,
    /// The number of probes without a reply since the last reply.
    unanswered: u32,
    /// Why the last probe could not be sent.
    unsent: Option<String>,
    /// The mean excess while the link is little used: how much delays vary without a queue.
    usual: Nanos,
}

impl Controller {
    /// Begins to estimate. A rate at its lower bound is new; any other one is continued.
    pub(super) fn new(
        bounds: [Option<EstimateBounds>; 2],
        rates: [Option<Rate>; 2],
        reflectors: usize,
        now: Instant,
    ) -> Controller {
        let direction = |n: usize| {
            let bounds = bounds[n]?;
            Some(DirectionRate::new(bounds, rates[n].unwrap_or(bounds.min())))
        };
        let directions: [Option<DirectionRate>; 2] = [direction(0), direction(1)];
        let is_new = |it: &DirectionRate| it.rate() == it.bounds().min();
        Controller {
            is_starting: directions.iter().flatten().any(is_new),
            directions,
            reflectors: vec![ReflectorDelays::default(); reflectors],
            outstanding: VecDeque::new(),
            counts: VecDeque::new(),
            started: now,
            active_until: now.after(Nanos(5 * START_TIME.0)),
            next_tick: now,
            next_probe: now,
            sequence: 0,
            knows_departures: false,
            active_since: now,
            unanswered: 0,
            unsent: None,
            usual: Nanos(0),
        }
    }

    /// The present estimates for sending and for receiving.
    pub(super) fn rates(&self) -> [Option<Rate>; 2] {
        let rate = |n: usize| Some(self.directions[n].as_ref()?.rate());
        [rate(0), rate(1)]
    }

    /// The state of the measurement.
    pub(super) fn state(&self) -> EstimateState {
        let replying = self.reflectors.iter();
        let replying = replying.filter(|one| one.replied().is_some()).count();
        let is_silent = self.unanswered >= SILENT_PROBES;
        let fault = match (&self.unsent, is_silent) {
            (_, false) => None,
            (Some(why), true) => Some(format!("probes cannot be sent: {why}")),
            (None, true) => Some(format!(
                "none of the {} hosts that are probed replies",
                self.reflectors.len()
            )),
        };
        EstimateState {
            replying: if is_silent { 0 } else { replying },
            fault,
        }
    }

    /// When the caller has to call [`Controller::handle_counts`] or [`Controller::poll_probe`]
    /// next.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.next_tick.min(self.next_probe)
    }

    /// True if the counters are wanted now.
    pub(super) fn wants_counts(&self, now: Instant) -> bool {
        now >= self.next_tick
    }

    /// Takes the interface's counters; `None` if there is no interface. The rates are valid until
    /// the next call.
    pub(super) fn handle_counts(&mut self, counts: Option<ByteCounts>, now: Instant) {
        let carried = counts.map_or([0; 2], |counts| self.carried(counts, now));
        let percent = self.percent_used(carried);
        if percent.iter().any(|percent| *percent >= IDLE_PERCENT) {
            if now >= self.active_until {
                // The last probe may be old: the next one leaves at once.
                (self.active_since, self.next_probe) = (now, now);
            }
            self.active_until = self.active_until.max(now.after(ACTIVE_TIME));
        }
        let is_active = now < self.active_until;
        self.next_tick = now.after(if is_active { TICK } else { IDLE_TICK });
        let old = |one: &Outstanding| now.since(one.sent) > LONGEST_WAIT;
        while self.outstanding.front().is_some_and(old) {
            self.outstanding.pop_front();
        }
        if self.is_starting {
            return self.end_start(now);
        }
        let (round_trip, one_way) = self.excess(now);
        self.learn_usual(round_trip.map(|(excess, _)| excess), percent);
        let ascribed = ascribed(percent);
        for n in 0..2 {
            let growth = self.growth(n);
            let Some(direction) = &mut self.directions[n] else {
                continue;
            };
            // Two packets of full length may always be in front of the probe.
            let packets = direction
                .rate()
                .time_for(netnice_core::units::Bytes(2 * 1514));
            let threshold = THRESHOLD.max(Nanos(2 * self.usual.0).min(Nanos(4 * THRESHOLD.0)));
            let known = match (one_way, ascribed[n]) {
                (Some(one_way), _) => Some(one_way[n]),
                (None, true) => round_trip,
                (None, false) => round_trip.map(|(_, sent)| (Nanos(0), sent)),
            };
            let findings = Findings {
                carried: carried[n],
                is_receiving: n == 1,
                excess: known.map(|(excess, _)| excess),
                sent: known.map_or(now, |(_, sent)| sent),
                threshold: Nanos(threshold.0.saturating_add(packets.0)),
                growth,
                is_silent: self.unanswered >= SILENT_PROBES
                    && is_active
                    && now.since(self.active_since) >= SILENT_TIME,
            };
            direction.handle(&findings, now);
        }
    }

    /// The next probe, if one is due. The caller sends it at once.
    pub(super) fn poll_probe(&mut self, now: Instant) -> Option<Probe> {
        if now < self.next_probe || self.reflectors.is_empty() {
            return None;
        }
        let is_active = now < self.active_until;
        self.next_probe = now.after(if is_active {
            PROBE_PERIOD
        } else {
            IDLE_PROBE_PERIOD
        });
        let probe = Probe {
            reflector: usize::from(self.sequence) % self.reflectors.len(),
            sequence: self.sequence,
        };
        self.sequence = self.sequence.wrapping_add(1);
        self.unanswered = self.unanswered.saturating_add(1);
        self.outstanding.push_back(Outstanding {
            probe,
            sent: now,
            has_departed: false,
        });
        Some(probe)
    }

    /// Notes that a probe could not be sent, and why.
    pub(super) fn handle_unsent(&mut self, sequence: u16, why: String) {
        self.outstanding
            .retain(|one| one.probe.sequence != sequence);
        self.unsent = Some(why);
    }

    /// Notes that a probe was sent.
    pub(super) fn handle_sent(&mut self) {
        self.unsent = None;
    }

    /// Notes that a probe has left this host.
    pub(super) fn handle_departure(&mut self, sequence: u16, now: Instant) {
        self.knows_departures = true;
        let mut outstanding = self.outstanding.iter_mut();
        if let Some(one) = outstanding.find(|one| one.probe.sequence == sequence)
            && !one.has_departed
        {
            (one.sent, one.has_departed) = (now, true);
        }
    }

    /// The reflector to which a probe was sent that waits for its reply; `None` if there is no such
    /// probe.
    pub(super) fn awaited(&self, sequence: u16) -> Option<usize> {
        let mut outstanding = self.outstanding.iter();
        let found = outstanding.find(|one| one.probe.sequence == sequence);
        found.map(|one| one.probe.reflector)
    }

    /// Takes the reply to a probe. A reply that is not awaited changes nothing.
    pub(super) fn handle_reply(&mut self, sequence: u16, reply: Reply, now: Instant) {
        let mut outstanding = self.outstanding.iter();
        let Some(at) = outstanding.position(|one| one.probe.sequence == sequence) else {
            return;
        };
        let Some(one) = self.outstanding.remove(at) else {
            return;
        };
        // The kernel's times are of the wall clock, which may be set meanwhile.
        let most = now.since(one.sent).0.saturating_add(CLOCK_SLACK.0);
        let reply = Reply {
            round_trip: reply.round_trip.min(Nanos(most)),
            ..reply
        };
        let reflector = one.probe.reflector;
        if let Some(delays) = self.reflectors.get_mut(reflector) {
            delays.handle_reply(one.sent, reply, now);
        }
        // An earlier probe to this reflector is lost: packets of one flow keep their order.
        let earlier = |it: &Outstanding| it.probe.reflector == reflector && it.sent < one.sent;
        self.outstanding.retain(|it| !earlier(it));
        self.unanswered = 0;
    }

    /// Adds counters, and returns what was carried lately in each direction, in bit/s.
    fn carried(&mut self, counts: ByteCounts, now: Instant) -> [u64; 2] {
        // The counters of an interface that was made anew begin at 0.
        let last = self.counts.back().map(|(_, last)| *last);
        if last.is_some_and(|last| counts.sent < last.sent || counts.received < last.received) {
            self.counts.clear();
        }
        self.counts.push_back((now, counts));
        while let [_, (second, _), ..] = self.counts.make_contiguous()
            && now.since(*second) >= LOAD_WINDOW
        {
            self.counts.pop_front();
        }
        let Some((from, first)) = self.counts.front() else {
            return [0; 2];
        };
        let nanos = u128::from(now.since(*from).0.max(1));
        let rate = |bytes: u64| (u128::from(bytes) * 8_000_000_000 / nanos) as u64;
        if now.since(*from) < TICK {
            return [0; 2];
        }
        [
            rate(counts.sent - first.sent),
            rate(counts.received - first.received),
        ]
    }

    fn percent_used(&self, carried: [u64; 2]) -> [u64; 2] {
        [0, 1].map(|n| {
            let direction = self.directions[n].as_ref();
            direction.map_or(0, |it| it.percent_used(carried[n]))
        })
    }

    /// Ends the start when the best delays are known.
    fn end_start(&mut self, now: Instant) {
        let known = |one: &ReflectorDelays| one.replies() >= START_REPLIES;
        let all = self.reflectors.iter().all(known);
        let some = self.reflectors.iter().any(known);
        let waited = now.since(self.started);
        if (all && waited >= START_TIME) || (some && waited >= Nanos(2 * START_TIME.0)) {
            self.is_starting = false;
            for direction in self.directions.iter_mut().flatten() {
                let bounds = direction.bounds();
                if direction.rate() == bounds.min() {
                    direction.set(bounds.middle());
                }
            }
        }
    }

    /// The excess of the round trip and of each direction: the medians over the reflectors that
    /// count, and when that probe was sent. `None` if none counts; the excess of each direction is
    /// `None` unless most of them report it.
    fn excess(&self, now: Instant) -> (Option<Measured>, Option<[Measured; 2]>) {
        let counts = |one: &&ReflectorDelays| {
            one.replied()
                .is_some_and(|at| now.since(at) <= REFLECTOR_TIME)
        };
        let counting = self.reflectors.iter().filter(counts).count();
        let mut round_trips = Vec::new();
        let mut one_ways: [Vec<Measured>; 2] = Default::default();
        for (n, delays) in self.reflectors.iter().enumerate() {
            if !counts(&delays) {
                continue;
            }
            let (Some(last), Some(best)) = (delays.last(), delays.best()) else {
                continue;
            };
            // One lost packet must not look like a queue: of a single reflector, the second probe
            // without a reply counts.
            let skipped = usize::from(counting == 1);
            let is_waiting = |one: &&Outstanding| {
                one.probe.reflector == n && (one.has_departed || !self.knows_departures)
            };
            let mut waiting = self.outstanding.iter().filter(is_waiting);
            let overdue = waiting.nth(skipped).map(|one| {
                let excess = now.since(one.sent).0.saturating_sub(best.0);
                (Nanos(excess), one.sent)
            });
            let overdue = overdue.filter(|(excess, _)| *excess > last.round_trip);
            round_trips.push(overdue.unwrap_or((last.round_trip, last.sent)));
            if let Some(one_way) = last.one_way.filter(|_| overdue.is_none()) {
                one_ways[0].push((one_way[0], last.sent));
                one_ways[1].push((one_way[1], last.sent));
            }
        }
        let is_known = !one_ways[0].is_empty() && 2 * one_ways[0].len() > round_trips.len();
        let [mut up, mut down] = one_ways;
        let mut one_way = || Some([median(&mut up)?, median(&mut down)?]);
        let one_way = if is_known { one_way() } else { None };
        (median(&mut round_trips), one_way)
    }

    /// The growth of the excess of a direction: the median over the reflectors for which it is
    /// known.
    fn growth(&self, direction: usize) -> Option<u64> {
        let growths = self
            .reflectors
            .iter()
            .filter_map(|one| one.growth(direction));
        median(&mut growths.collect::<Vec<_>>())
    }

    /// Learns how much delays vary while the link is little used.
    fn learn_usual(&mut self, excess: Option<Nanos>, percent: [u64; 2]) {
        let is_used = percent.iter().any(|percent| *percent >= LITTLE_PERCENT);
        if let Some(excess) = excess.filter(|_| !is_used) {
            let excess = excess.min(Nanos(4 * THRESHOLD.0));
            self.usual = Nanos((self.usual.0 * 63 + excess.0) / 64);
        }
    }
}

/// The directions to which the excess of a round trip is ascribed.
fn ascribed(percent: [u64; 2]) -> [bool; 2] {
    let used = percent.map(|percent| percent >= USED_PERCENT);
    if used.contains(&true) {
        return used;
    }
    let most = percent[0].max(percent[1]);
    percent.map(|percent| percent == most && percent >= IDLE_PERCENT)
}

/// The value in the middle, of an even number the smaller one; `None` if there is none.
fn median<T: Ord + Copy>(values: &mut [T]) -> Option<T> {
    values.sort_unstable();
    values.get(values.len().checked_sub(1)? / 2).copied()
}

/// Time between two looks at the counters while the link is used, and while it is idle.
pub(super) const TICK: Nanos = Nanos::from_millis(50);
const IDLE_TICK: Nanos = Nanos::from_millis(250);
/// Time between two probes of the link while it is used, and while it is idle.
const PROBE_PERIOD: Nanos = Nanos::from_millis(50);
const IDLE_PROBE_PERIOD: Nanos = Nanos::from_secs(10);
/// How long the link is probed after it was used last.
const ACTIVE_TIME: Nanos = Nanos::from_secs(3);
/// The time over which the carried rate is computed: long enough for the bursts of HTB and TCP.
const LOAD_WINDOW: Nanos = Nanos::from_millis(300);
/// The excess from which the link is overloaded. Two full packets at 1.6 Mbit/s take as long.
const THRESHOLD: Nanos = Nanos::from_millis(15);
/// How long the best delays are measured at first; twice as long if a reflector is missing.
const START_TIME: Nanos = Nanos::from_secs(1);
/// The number of replies of a reflector for that.
const START_REPLIES: u32 = 3;
/// After this time without a reply, a reflector does not count.
const REFLECTOR_TIME: Nanos = Nanos::from_secs(2);
/// How much longer than by the monotonic clock a round trip may be: a departure is read late.
const CLOCK_SLACK: Nanos = Nanos::from_millis(20);
/// After this time a probe is lost.
const LONGEST_WAIT: Nanos = Nanos::from_secs(3);
/// After so many probes without a reply, nothing is measured: a second while the link is used.
const SILENT_PROBES: u32 = 20;
/// How long the link must be used before that counts.
const SILENT_TIME: Nanos = Nanos::from_secs(1);
/// From this use on, a direction can be the cause of an excess.
const USED_PERCENT: u64 = 50;
/// Below this use of both directions, delays vary for other reasons.
const LITTLE_PERCENT: u64 = 30;
