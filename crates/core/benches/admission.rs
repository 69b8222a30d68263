//! Decisions about one more channel beside 10,000 on a link: `cargo bench -p netnice-core --bench
//! admission`.
//!
//! The channels are random: messages of 64 bytes to 4 KiB, 1 to 20 a second, deadlines of 20 ms to
//! 2 s. The exact test finds the least rate of a link that carries them. Then links are measured of
//! which this is a part. Each decision is about a random channel. If it fits, it is added, and a
//! random one removed, so that 10,000 stay. Some hundred decisions are compared with the exact
//! test; the benchmark fails if one differs, or if there are fewer than [`LEAST`] decisions a
//! second at a part.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use netnice_core::admission::timing::{DemandSums, Promise, SumsAnswer, Transmitter};
use netnice_core::contract::{Channel, MessageRate};
use netnice_core::sched::{EarlyOrder, Wire};
use netnice_core::units::{Bytes, Nanos, Rate};

#[path = "scheduler/load.rs"]
#[allow(dead_code)] // The other benchmarks use the rest.
mod load;

fn main() -> ExitCode {
    let quick = std::env::args().any(|word| word == "--quick");
    let decisions = if quick { 2_000 } else { 20_000 };
    let mut random = load::Random(7);
    let held: Vec<Promise> = (0..CHANNELS).map(|_| channel(&mut random)).collect();
    let least = least_rate(&held);
    println!("{CHANNELS} random channels need {least} bit/s; decisions about one more");
    let mut failed = false;
    for percent in [50, 80, 90, 95, 99] {
        let link = link(least * 100 / percent);
        let row = measure(&link, held.clone(), (decisions, &mut random));
        let rate = decisions as f64 / row.took.as_secs_f64();
        println!(
            "link used to {percent:>2} %: {rate:>7.0} decisions/s; {} fit, {} do not, {} not \
             decided; of {} compared {} differ",
            row.fit, row.misfit, row.unknown, row.compared, row.differ
        );
        failed |= row.differ > 0 || rate < LEAST;
    }
    match failed {
        true => {
            println!("an answer differs, or there are fewer than {LEAST} decisions/s");
            ExitCode::FAILURE
        }
        false => ExitCode::SUCCESS,
    }
}

#[derive(Default)]
struct Row {
    took: Duration,
    fit: u64,
    misfit: u64,
    unknown: u64,
    compared: u64,
    differ: u64,
}

fn measure(
    link: &Transmitter,
    mut held: Vec<Promise>,
    (decisions, random): (u64, &mut load::Random),
) -> Row {
    let mut sums = DemandSums::new(link);
    for promise in &held {
        sums.add(promise, 1).expect("possible alone");
    }
    let mut row = Row::default();
    let every = decisions / COMPARED;
    for number in 0..decisions {
        let more = channel(random);
        let at = random.below(CHANNELS as u64) as usize;
        let begin = Instant::now();
        let answer = sums.decide(link, &[more], Nanos(0));
        if answer == SumsAnswer::Fits {
            sums.add(&more, 1).expect("it fits");
            sums.remove(&held[at]).expect("it was added");
        }
        row.took += begin.elapsed();
        match answer {
            SumsAnswer::Fits => row.fit += 1,
            SumsAnswer::Misfit => row.misfit += 1,
            // The caller asks the exact test then, which counts.
            SumsAnswer::Unknown => {
                let begin = Instant::now();
                std::hint::black_box(carries(link, &held, more));
                row.took += begin.elapsed();
                row.unknown += 1;
            }
        }
        if number % every == 0 && answer != SumsAnswer::Unknown {
            row.compared += 1;
            row.differ += u64::from(carries(link, &held, more) != (answer == SumsAnswer::Fits));
        }
        if answer == SumsAnswer::Fits {
            held[at] = more;
        }
    }
    row
}

fn carries(link: &Transmitter, held: &[Promise], more: Promise) -> bool {
    let all: Vec<Promise> = held.iter().copied().chain([more]).collect();
    link.carries(&all).is_ok()
}

/// The least rate of a link that carries the promises, to 1 in 1,000.
fn least_rate(held: &[Promise]) -> u64 {
    let (mut low, mut high) = (1_000_000, 40_000_000_000);
    while high - low > low / 1_000 {
        let middle = low + (high - low) / 2;
        match link(middle).carries(held) {
            Ok(()) => high = middle,
            Err(_) => low = middle,
        }
    }
    high
}

fn link(bits: u64) -> Transmitter {
    let wire = Wire {
        rate: Rate::new(bits).expect("a rate"),
        overhead: Bytes(24),
        ahead: Nanos::from_micros(50),
        horizon: Nanos(0),
        early: EarlyOrder::AfterLeftOver,
        longest: Bytes(1_514),
    };
    Transmitter::of(&wire, Bytes(1_514), CHANNELS as u32 + 1)
}

fn channel(random: &mut load::Random) -> Promise {
    let mmax = Bytes(64 + random.below(4_096 - 64));
    let rate = MessageRate::new(1 + random.below(20) as u32).expect("a rate");
    // As many in each octave.
    let octave = 20 << random.below(7);
    let deadline = Nanos::from_micros(octave * 1_000 + random.below(octave * 1_000));
    let channel = Channel::new(mmax, rate, 2, deadline);
    Promise::Channel(channel.expect("a channel"))
}

const CHANNELS: usize = 10_000;
/// Decisions that are compared with the exact test at each rate.
const COMPARED: u64 = 200;
/// Decisions in a second at least.
const LEAST: f64 = 100_000.0;
