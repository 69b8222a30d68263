//! Compares the reservation of channels over several hosts with what the hosts do: simulates random
//! sets of channels over one to five stations each, which share links. Every link has endless best
//! effort; senders stand still inside their allowance; cables jitter, and some lose packets. A test
//! fails if an admitted set breaks a promise, or if too few sets do whose hosts do not follow the
//! rules.

use core::num::NonZeroU32;

use netnice_core::admission::timing::{Processor, Stops};
use netnice_core::contract::{Channel, MessageRate, Slice};
use netnice_core::sched::Wire;
use netnice_core::units::{Bytes, Nanos, Rate};

use super::{at_its_most, channel};
use crate::Random;
use crate::chain::{
    Cable, Chain, ChainReport, HandlerTime, PathLedger, PathRefusal, RoutedChannel, Standstills,
    Station, StationProcessor,
};

const MS: u64 = 1_000_000;

/// How long each set runs.
const UNTIL: u64 = 250 * MS;

/// What the stations of a set are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Links alone, without a horizon.
    Links,
    /// Links with a horizon.
    Horizons,
    /// Processors before most links: whole ones and reservations.
    Processors,
    /// Reservations before all links.
    Reservations,
}

/// Figures over several sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub channels: u64,
    pub hops: u64,
    pub delivered: u64,
    pub incomplete: u64,
    /// Bounds that were relaxed, and those that a hop refused to relax.
    pub relaxed: u64,
    pub refused: u64,
    /// Hops at which all of their room was in use at some time.
    pub filled: u64,
    /// The least laxity of a message in relation to the deadline, in thousandths.
    pub least_laxity: u64,
}

impl Figures {
    fn add(&mut self, chain: &Chain, report: &ChainReport) {
        for (routed, channel) in chain.channels.iter().zip(&report.channels) {
            self.channels += 1;
            self.hops += routed.hops.len() as u64;
            self.delivered += channel.delivered;
            self.incomplete += channel.incomplete;
            let full = |(hop, report): &(&crate::chain::Hop, &crate::chain::HopReport)| {
                report.most_messages == hop.room
            };
            let hops = routed.hops.iter().zip(&channel.hops);
            self.filled += hops.filter(full).count() as u64;
            if let Some(laxity) = channel.least_laxity {
                let part = u128::from(laxity.max(0).unsigned_abs()) * 1_000;
                let part = part / u128::from(routed.contract.deadline().0);
                self.least_laxity = self.least_laxity.min(part as u64);
            }
        }
    }
}

fn us(time: u64) -> Nanos {
    Nanos::from_micros(time)
}

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

fn some_station(random: &mut Random, kind: Kind) -> Station {
    let mbit = random.within(50..=200);
    let horizon = match kind {
        Kind::Horizons => pick(random, &[0, 500, 1_000, 5_000]),
        _ => 0,
    };
    let wire = Wire {
        overhead: Bytes(24),
        longest: Bytes(pick(random, &[1_500, 1_500, 600])),
        ahead: us(pick(random, &[0, 20, 100])),
        horizon: us(horizon),
        ..Wire::new(Rate::new(mbit * 1_000_000).expect("a rate"))
    };
    let is_lossy = random.below(8) == 0;
    let cable = Cable {
        delay: us(random.within(0..=5_000)),
        jitter: us(random.within(0..=3_000)),
        loss: if is_lossy {
            random.within(1_000..=30_000) as u32
        } else {
            0
        },
    };
    let has_processor = match kind {
        Kind::Links | Kind::Horizons => false,
        Kind::Processors => random.below(4) > 0,
        Kind::Reservations => true,
    };
    Station {
        processor: has_processor.then(|| some_processor(random, kind, wire.longest)),
        standstills: (random.below(3) > 0).then(|| some_standstills(random)),
        cable,
        // With a horizon, a link without best effort may refuse to relax a bound.
        flood: (kind != Kind::Horizons || random.below(2) == 0)
            .then(|| Bytes(random.within(64..=wire.longest.0))),
        ..Station::new(wire)
    }
}

fn some_processor(random: &mut Random, kind: Kind, largest: Bytes) -> StationProcessor {
    let costs = Processor {
        switch: us(random.within(0..=20)),
        cache_miss: us(random.within(0..=20)),
        first: us(random.within(5..=60)),
        later: us(random.within(5..=40)),
        link_scheduling: us(random.within(0..=10)),
        block: NonZeroU32::new(random.within(1..=8) as u32).expect("above zero"),
        largest,
        leftover: Nanos(0),
    };
    let leftover = match random.below(4) {
        0 => Nanos(0),
        _ => costs.processing(costs.block.get().into(), true),
    };
    let period = pick(random, &[1_000, 3_000, 10_000]);
    let slice = us(period * random.within(20..=90) / 100);
    let slice = Slice::new(slice, us(period), false).expect("a slice");
    let phase = match random.below(2) {
        0 => slice.slice(),
        _ => us(random.below(8 * period)),
    };
    StationProcessor {
        costs: Processor { leftover, ..costs },
        time: match kind == Kind::Processors && random.below(2) == 0 {
            true => HandlerTime::Whole,
            false => HandlerTime::Reserved { slice, phase },
        },
    }
}

/// Standstills that use their allowance: each period has the same parts of it, some are left out.
fn some_standstills(random: &mut Random) -> Standstills {
    let period = random.within(5_000..=50_000);
    let time = random.within(50..=period / 20);
    let allowance = Stops::new(us(time), us(period)).expect("an allowance");
    let parts = random.within(1..=3);
    let left_out = pick(random, &[0, 0, 30]);
    let phase = random.below(period);
    let mut times = Vec::new();
    for number in 0..UNTIL / 1_000 / period {
        for part in 0..parts {
            let begin = phase + number * period + part * period / parts;
            if random.below(100) >= left_out {
                times.push((us(begin), us(begin + time / parts)));
            }
        }
    }
    Standstills::new(allowance, &times).expect("inside the allowance")
}

/// A random order of some of the stations.
fn some_path(random: &mut Random, stations: usize) -> Vec<usize> {
    let mut rest: Vec<usize> = (0..stations).collect();
    let hops = random.within(1..=stations.min(5) as u64);
    let next = |_| rest.swap_remove(random.below(rest.len() as u64) as usize);
    (0..hops).map(next).collect()
}

/// A random channel whose messages need up to a fifth of the slowest link. The deadline is that of
/// the least bounds, or up to a third longer, or any. Returns the contract of its source, and the
/// one that the hosts serve: the same, or one with a higher rate (Rmax′), as between hosts.
fn some_channel(
    random: &mut Random,
    ledger: &PathLedger,
    path: &[usize],
) -> Option<(Channel, Channel)> {
    let rate = random.within(5..=400) as u32;
    let most = 50_000_000 / 8 / 5 / u64::from(rate);
    let mmax = random.within(64..=most.clamp(65, 20_000));
    let bmax = random.within(1..=4) as u32;
    let own = MessageRate::new(rate)?;
    let served = pick(random, &[own, own.with_spare()]).get();
    let with = |deadline: u64| channel(mmax, served, bmax, deadline);
    let least = match ledger.clone().reserve(&with(1), path) {
        Err(PathRefusal::TooLong(too_long)) => too_long.least.0,
        _ => return None,
    };
    let deadline = match random.below(4) {
        0 => least,
        1 | 2 => least + least / 100 * random.within(0..=33),
        _ => random.within(MS..=100 * MS),
    };
    Some((channel(mmax, rate, bmax, deadline), with(deadline)))
}

/// Times and lengths of messages that keep to the contract: as many as it allows, or with pauses
/// and of random lengths.
fn some_messages(random: &mut Random, channel: &Channel, first: u64) -> Vec<(Nanos, Bytes)> {
    let mmax = channel.mmax();
    if random.below(3) > 0 {
        let times = at_its_most(channel, first, UNTIL);
        return times.into_iter().map(|at| (Nanos(at), mmax)).collect();
    }
    let spacing = 1_000_000_000_u64.div_ceil(u64::from(channel.rmax().get()));
    let ahead = u64::from(channel.bmax() - 1) * spacing;
    let (mut now, mut logical) = (first, 0_u64);
    let mut messages = Vec::new();
    while now < UNTIL {
        messages.push((Nanos(now), Bytes(random.within(1..=mmax.0))));
        logical = logical.max(now) + spacing;
        let pause = spacing * random.below(2_500) / 1_000;
        now = (now + pause).max(logical.saturating_sub(ahead));
    }
    messages
}

/// A random set: a chain with the channels that were granted. Counts what was relaxed, and panics
/// if a rule of reservations is broken.
pub(super) fn some_chain(random: &mut Random, kind: Kind, figures: &mut Figures) -> Chain {
    let stations: Vec<Station> = (0..random.within(1..=6))
        .map(|_| some_station(random, kind))
        .collect();
    let mut ledger = PathLedger::new(&stations, 16);
    let mut channels = Vec::new();
    let together = random.below(2) == 0;
    for _ in 0..random.within(3..=12) {
        let path = some_path(random, stations.len());
        let Some((kept, contract)) = some_channel(random, &ledger, &path) else {
            continue;
        };
        let Ok(reserved) = ledger.reserve(&contract, &path) else {
            continue;
        };
        let sum: u64 = reserved.hops.iter().map(|hop| hop.bound.0).sum();
        let refused = reserved.refused.len();
        match kind {
            Kind::Horizons if refused > 0 => assert!(sum < contract.deadline().0),
            _ => {
                assert_eq!(reserved.refused, [], "{contract:?} over {path:?}");
                assert_eq!(sum, contract.deadline().0, "{contract:?} over {path:?}");
            }
        }
        figures.relaxed += (reserved.hops.len() - refused) as u64;
        figures.refused += refused as u64;
        let first = if together {
            MS
        } else {
            random.within(0..=3 * MS)
        };
        channels.push(RoutedChannel {
            contract,
            hops: reserved.hops,
            messages: some_messages(random, &kept, first),
        });
    }
    Chain {
        stations,
        channels,
        seed: random.draw(),
    }
}

/// Panics unless every promise was kept.
fn kept(chain: &Chain, report: &ChainReport, context: &str) {
    let faults = (report.missed(), report.missed_at_hops(), report.no_room());
    assert_eq!(faults, (0, 0, 0), "{context}\n{report}\n{chain:#?}");
    for (routed, channel) in chain.channels.iter().zip(&report.channels) {
        let all = channel.delivered + channel.incomplete + channel.unfinished;
        assert_eq!(all, channel.offered, "{context}\n{report}");
        let is_lossy = |hop: &crate::chain::Hop| chain.stations[hop.station].cable.loss > 0;
        if !routed.hops.iter().any(is_lossy) {
            assert_eq!(channel.incomplete, 0, "{context}\n{report}");
        }
        for (hop, report) in routed.hops.iter().zip(&channel.hops) {
            let most = hop.room as u64 * routed.contract.mmax().0;
            assert!(report.most_bytes <= most, "{context}: {hop:?} {report:?}");
        }
    }
}

/// Reserved channels: every message is at the sink in time and leaves every hop in time, no hop
/// lacks room, the slack is handed out exactly, and no relaxation is refused without a horizon.
pub(super) fn reserved_channels_are_kept(seeds: core::ops::Range<u64>, kind: Kind) -> Figures {
    let mut figures = Figures {
        least_laxity: 1_000,
        ..Figures::default()
    };
    let sets = seeds.end - seeds.start;
    for seed in seeds {
        let mut random = Random::new(seed);
        let chain = some_chain(&mut random, kind, &mut figures);
        let report = chain.run(Nanos(UNTIL)).expect("a valid chain");
        kept(&chain, &report, &format!("seed {seed}"));
        figures.add(&chain, &report);
    }
    assert!(figures.channels >= 2 * sets, "{figures:?} in {sets} sets");
    assert!(figures.delivered >= 20 * sets, "{figures:?} in {sets} sets");
    figures
}

#[test]
fn reserved_channels_are_kept_short() {
    let figures = reserved_channels_are_kept(0..15, Kind::Links);
    assert_eq!(figures.refused, 0);
    assert!(figures.incomplete > 0, "{figures:?}");
    eprintln!("{figures:?}");
}

#[test]
fn reserved_channels_are_kept_with_horizons_short() {
    let figures = reserved_channels_are_kept(0..15, Kind::Horizons);
    eprintln!("{figures:?}");
}

#[test]
fn reserved_channels_are_kept_behind_processors_short() {
    let figures = reserved_channels_are_kept(0..15, Kind::Processors);
    eprintln!("{figures:?}");
}

#[test]
fn reserved_channels_are_kept_behind_reservations_short() {
    let figures = reserved_channels_are_kept(0..15, Kind::Reservations);
    eprintln!("{figures:?}");
}

/// Runs each set as it is, and changed. The first must keep its promises. Returns the number of
/// sets with channels over several hops, and the number of these that miss a deadline if they are
/// changed.
fn broken_by(
    (kind, seeds): (Kind, core::ops::Range<u64>),
    prepare: impl Fn(&mut Chain),
    change: impl Fn(&mut Chain),
) -> (u64, u64) {
    let (mut sets, mut broken) = (0, 0);
    for seed in seeds {
        let mut random = Random::new(seed);
        let mut chain = some_chain(&mut random, kind, &mut Figures::default());
        prepare(&mut chain);
        if chain.channels.iter().all(|channel| channel.hops.len() < 2) {
            continue;
        }
        let report = chain.run(Nanos(UNTIL)).expect("a valid chain");
        kept(&chain, &report, &format!("seed {seed}"));
        change(&mut chain);
        let report = chain.run(Nanos(UNTIL)).expect("a valid chain");
        sets += 1;
        broken += u64::from(report.missed() + report.missed_at_hops() > 0);
    }
    (sets, broken)
}

/// Sources that send one message each 1/Rmax, so that the spacing of the source changes nothing,
/// and cables that bring many of them together.
fn evenly_over_cables_that_jitter(chain: &mut Chain) {
    for station in &mut chain.stations {
        station.cable.jitter = Nanos(50 * MS);
    }
    for channel in &mut chain.channels {
        let (mmax, spacing) = (channel.contract.mmax(), channel.spacing());
        let first = channel.messages.first().map_or(0, |message| message.0.0);
        let times = (0..).map(|number| first + number * spacing);
        let times = times.take_while(|at| *at < UNTIL);
        channel.messages = times.map(|at| (Nanos(at), mmax)).collect();
        let rooms = Chain::rooms(&chain.stations, &channel.contract, &channel.hops);
        for (hop, room) in channel.hops.iter_mut().zip(rooms) {
            hop.room = room;
        }
    }
}

/// Jitter and queues bring messages together. A relay that passes them on as they come breaks the
/// promises of other channels.
#[test]
fn without_spacing_at_relays_deadlines_are_missed() {
    let (sets, broken) = broken_by(
        (Kind::Links, 0..30),
        evenly_over_cables_that_jitter,
        |chain| {
            for station in &mut chain.stations {
                station.spaces = false;
            }
            // A message that finds no room would not be late.
            for hop in chain.channels.iter_mut().flat_map(|one| &mut one.hops) {
                hop.room = usize::MAX;
            }
        },
    );
    eprintln!("without spacing: {broken} of {sets}");
    assert!(broken * 10 >= sets, "{broken} of {sets}");
}

/// Hops whose bounds are shorter than what they can keep.
#[test]
fn with_bounds_below_the_least_deadlines_are_missed() {
    let broken_at = |percent: u64| {
        let shorten = |chain: &mut Chain| {
            for hop in chain.channels.iter_mut().flat_map(|one| &mut one.hops) {
                hop.bound = Nanos(hop.bound.0 * percent / 100);
            }
        };
        broken_by((Kind::Links, 0..30), |_| (), shorten)
    };
    for (percent, least) in [(50, 80), (80, 20)] {
        let (sets, broken) = broken_at(percent);
        eprintln!("with {percent} % of the bounds: {broken} of {sets}");
        assert!(
            broken * 100 >= sets * least,
            "{percent} %: {broken} of {sets}"
        );
    }
}

/// Handlers on half of the time that was admitted.
#[test]
fn with_half_of_the_reservations_deadlines_are_missed() {
    let (sets, broken) = broken_by(
        (Kind::Reservations, 0..20),
        |_| (),
        |chain| {
            for processor in chain.stations.iter_mut().flat_map(|one| &mut one.processor) {
                if let HandlerTime::Reserved { slice, .. } = &mut processor.time {
                    let half = Nanos(slice.slice().0 / 2);
                    *slice = Slice::new(half, slice.period(), false).expect("a slice");
                }
            }
        },
    );
    eprintln!("with half of the reservations: {broken} of {sets}");
    assert!(broken * 2 >= sets, "{broken} of {sets}");
}

/// A source that sends three times what its contract allows, in bursts three times as large: what
/// its station has no room for is refused there. Everything else is in time, also behind it.
#[test]
fn a_source_beyond_its_contract_harms_no_other() {
    let mut refused = 0;
    for seed in 0..15 {
        let mut random = Random::new(seed);
        let mut chain = some_chain(&mut random, Kind::Links, &mut Figures::default());
        let Some(hostile) = chain.channels.first_mut() else {
            continue;
        };
        let messages = hostile.messages.iter();
        hostile.messages = messages.flat_map(|message| [*message; 3]).collect();
        let report = chain.run(Nanos(UNTIL)).expect("a valid chain");
        let late = (report.missed(), report.missed_at_hops());
        assert_eq!(late, (0, 0), "seed {seed}\n{report}");
        for (number, channel) in report.channels.iter().enumerate() {
            assert_eq!(channel.no_room, 0, "seed {seed}\n{report}");
            assert!(number == 0 || channel.refused == 0, "seed {seed}\n{report}");
        }
        refused += report.channels[0].refused;
    }
    assert!(refused > 300, "{refused}");
}

/// With a message less of room at each hop, messages find no room.
#[test]
fn with_less_room_than_stated_messages_are_dropped() {
    let (mut sets, mut dropped) = (0, 0);
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut chain = some_chain(&mut random, Kind::Links, &mut Figures::default());
        for hop in chain.channels.iter_mut().flat_map(|one| &mut one.hops) {
            hop.room -= 1;
        }
        let report = chain.run(Nanos(UNTIL)).expect("a valid chain");
        sets += 1;
        dropped += u64::from(report.no_room() > 0);
    }
    assert!(dropped * 2 >= sets, "{dropped} of {sets}");
}
