//! Measures whether two links send twice as many packets as one, if each has a processor of its
//! own.
//!
//! Each link has its own namespaces, daemon, driver and programs ([`LoadedLink`]), with 64 flows.
//! All threads of the driver and of the programs of a link are bound to the link's processor: the
//! first and the second of those that the lab may use. The daemons are not bound. In each round the
//! first link sends alone, then the second alone, then both at the same time. The figure of a round
//! is the packets per second of both together, divided by those of the first link alone.
//!
//! The figure means something only if both processors are full, so the driver and the programs of a
//! link must have run for nearly all the time. How they share it is reported and not judged: a
//! faster driver runs for less of the time. No flow has a `cell` contract. The driver sends what a
//! program gives it before the program continues, so it would often have packets of one flow
//! alone, and spin until the next of them may leave.

use anyhow::Result;
use serde_json::json;

use super::BATCH;
use super::load::{FEW, Load, LoadedLink, Speed, measure};
use crate::experiment::{Bound, Context, Outcome};
use crate::{stats, sys};

/// Measures both links and adds the checks and the values. On a machine with one processor it only
/// adds a note. Fails if a flow cannot be opened, if a driver returned a packet unsent, or if a
/// step of the measurement fails.
pub(super) fn run(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let [one, other] = match sys::processors()?[..] {
        [one, other, ..] => [one, other],
        _ => {
            outcome.note("two links were not measured: they need two processors");
            return Ok(());
        }
    };
    let (mut first, mut second) = (LoadedLink::start(&LOAD)?, LoadedLink::start(&LOAD)?);
    first.bind_to(one)?;
    second.bind_to(other)?;
    let rounds = if context.quick { 1 } else { ROUNDS };
    let mut measured = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        measured.push(Round {
            first: measure(&mut [&mut first])?[0],
            second: measure(&mut [&mut second])?[0],
            both: measure(&mut [&mut first, &mut second])?,
        });
    }
    report(&measured, outcome);
    outcome.ours["two links"]["processors"] = json!([one, other]);
    Ok(())
}

/// The speeds of one round.
struct Round {
    /// Each link alone.
    first: Speed,
    second: Speed,
    /// The links at the same time, the first one first.
    both: Vec<Speed>,
}

impl Round {
    /// Packets per second of both links together, divided by those of the first alone.
    fn gain(&self) -> f64 {
        self.together() / self.first.packets
    }

    fn together(&self) -> f64 {
        self.both.iter().map(|speed| speed.packets).sum()
    }

    /// All measurements of this round.
    fn speeds(&self) -> impl Iterator<Item = &Speed> {
        self.both.iter().chain([&self.first, &self.second])
    }
}

fn report(measured: &[Round], outcome: &mut Outcome) {
    let middle =
        |of: &dyn Fn(&Round) -> f64| stats::median(&measured.iter().map(of).collect::<Vec<_>>());
    let speed = |of: &dyn Fn(&Round) -> Speed| {
        json!({
            "packets/s": middle(&|round| of(round).packets),
            "the driver ran, %": middle(&|round| of(round).driver_ran) * 100.0,
            "the programs ran, %": middle(&|round| of(round).programs_ran) * 100.0,
            "driver, ns a packet": middle(&|round| of(round).driver_ran * 1e9 / of(round).packets),
        })
    };
    outcome.ours(
        "two links",
        json!({
            "both, packets/s": middle(&Round::together),
            "each round": measured.iter().map(Round::gain).collect::<Vec<_>>(),
            "first alone": speed(&|round| round.first),
            "second alone": speed(&|round| round.second),
            "first beside the second": speed(&|round| round.both[0]),
            "second beside the first": speed(&|round| round.both[1]),
        }),
    );
    let gain = middle(&Round::gain);
    let what = "two links on two processors: packets, of those of one link";
    outcome.check(what, gain, "", Bound::AtLeast(LEAST_GAIN));
    let all = measured.iter().flat_map(Round::speeds);
    let full = all.map(|speed| speed.driver_ran + speed.programs_ran);
    let full = full.fold(f64::INFINITY, f64::min);
    let what = "two links: time for which a driver or its programs ran";
    outcome.check(what, full * 100.0, "%", Bound::AtLeast(LEAST_FULL));
}

/// 64 flows that the driver may send at any time. It has priority over the programs on its
/// processor, so with batches of one packet the figures would mostly measure its wake-ups.
const LOAD: Load = Load {
    batch: BATCH,
    contracts: [
        "weight 100",
        "slice 100us/10ms extra",
        "weight 200",
        "min 500mbit",
    ],
    ..FEW
};
const ROUNDS: usize = 5;
/// The required packets of both links, as a multiple of those of one.
const LEAST_GAIN: f64 = 1.8;
/// The part of the time for which the driver and the programs of a link have to run, in percent.
const LEAST_FULL: f64 = 90.0;
