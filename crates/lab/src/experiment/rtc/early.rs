//! Repeats figure 7b of the paper RTC in the simulator: the processor changes to another message
//! only at the end of a message, and handles early messages before best effort. The link behind it
//! still sends no packet before its logical arrival.
//!
//! The deadlines of the channels are so short that admission grants them with a preemption point
//! after every 4 packets, and refuses them with points between messages only. Best effort has a
//! queue of 8 messages, so that it loses messages when the processor handles a burst of early ones
//! first.

use std::num::NonZeroU32;

use anyhow::{Context as _, Result};
use netnice_core::admission::timing::{
    Handlers, Processor, Promise, Resolution, Transmitter, Work,
};
use netnice_core::sched::EarlyOrder;
use netnice_core::units::Nanos;
use netnice_sim::EarlyProcessing;
use serde_json::json;

use super::super::simulated::netnice_only;
use super::figures::{self, Run};
use super::results::{self, FlowResult};
use super::{CHANNELS, LOAD, LOADS, OWN_CONTRACTS, Setup, channel, processor, run_channels, wire};
use crate::experiment::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};

/// Figure 7b: best effort offers more and more, once as the paper sets it up and once as netnice
/// does (preemption points within messages, early messages after best effort). In the first case
/// messages must be late at each load. In the second no message may be late, no channel may lose
/// one, and best effort must get more at [`WINDOW_LOAD`]. Then, at that load, the blocks of packets
/// become longer; with the shortest ones no message may be late either, although early messages
/// come first. Fails if the subject is not netnice, if admission refuses the channels, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure7b_simulated(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!(
        "misses and drops appear, and best effort gets less, when early messages come before it and \
         preemption is possible at message boundaries only"
    );
    let at_boundaries = Processor {
        block: NonZeroU32::new(MESSAGE).context("a block of no packet")?,
        ..processor()
    };
    admit(&processor())?;
    let what = "admission refuses the channels with preemption at message boundaries";
    outcome.check_that(what, admit(&at_boundaries).is_err());
    let setup = |block: u32, order| -> Result<Setup> {
        Ok(Setup {
            contracts: TIGHT,
            processing: Some(PROCESSING),
            block: NonZeroU32::new(block).context("a block of no packet")?,
            early: EarlyProcessing {
                horizon: HORIZON,
                order,
            },
            queue: QUEUE,
        })
    };
    let at_boundaries = setup(MESSAGE, EarlyOrder::BeforeLeftOver)?;
    let shipped = setup(processor().block.get(), EarlyOrder::AfterLeftOver)?;
    let mut cases = [Vec::new(), Vec::new()];
    for offered in LOADS {
        for (runs, setup) in std::iter::zip(&mut cases, [&at_boundaries, &shipped]) {
            let report = run_channels(context, setup, (offered, 1))?;
            runs.push((offered as f64, super::results(&report)));
        }
    }
    outcome.ours(
        "contracts of the channels",
        results::contracts(&TIGHT, Some(&PROCESSING))?,
    );
    outcome.note(OWN_CONTRACTS);
    let named = |(case, runs): (&'static str, &Vec<Run>)| {
        let named = move |(load, flows): &Run| (json!({"case": case, LOAD: load}), flows.clone());
        runs.iter().map(named).collect::<Vec<_>>()
    };
    let rows = std::iter::zip([BOUNDARIES, SHIPPED], &cases).flat_map(named);
    outcome.ours("results", results::table(rows));
    judge(outcome, &cases);
    early_first(context, outcome, setup)?;
    plot(context, outcome, &cases)
}

/// Handles early messages first with ever longer blocks, at [`WINDOW_LOAD`], and checks that no
/// message is late with the shortest.
fn early_first(
    context: &Context,
    outcome: &mut Outcome,
    setup: impl Fn(u32, EarlyOrder) -> Result<Setup>,
) -> Result<()> {
    let mut rows = Vec::new();
    for block in [processor().block.get(), 8, MESSAGE] {
        let setup = setup(block, EarlyOrder::BeforeLeftOver)?;
        let report = run_channels(context, &setup, (WINDOW_LOAD, 1))?;
        if block == processor().block.get() {
            let what = "messages late with early messages first and P = 4";
            let late = report.missed() as f64;
            outcome.check(what, late, "messages", Bound::AtMost(0.0));
        }
        let case = json!({"P, packets": block, LOAD: WINDOW_LOAD});
        rows.push((case, super::results(&report)));
    }
    outcome.ours(
        "early messages first, for longer and longer blocks",
        results::table(rows),
    );
    Ok(())
}

/// Draws late messages, and what best effort gets.
fn plot(
    context: &Context,
    outcome: &mut Outcome,
    [boundaries, shipped]: &[Vec<Run>; 2],
) -> Result<()> {
    outcome.plot(context, "rtc-fig7b-sim", || {
        let title = "Late messages with and without preemption points (simulated)";
        let late = figures::late_part as fn(&[FlowResult]) -> f64;
        let lines = [
            (BOUNDARIES, palette::RED, &boundaries[..], late),
            (SHIPPED, palette::BLUE, &shipped[..], late),
        ];
        figures::percent(title, "late messages of the channels, %", &lines).svg()
    })?;
    outcome.plot(context, "rtc-fig7b-sim-best-effort", || {
        let got = |runs: &[Run]| super::points(runs, |flows| flows[CHANNELS.len()].throughput);
        let title = "Best effort beside early messages (simulated)";
        Chart::new(
            title,
            figures::BEST_EFFORT_LOAD,
            "throughput of best effort, kB/s",
        )
        .with(Series::new(SHIPPED, palette::BLUE, got(shipped)))
        .with(Series::new(BOUNDARIES, palette::RED, got(boundaries)).dashed())
        .svg()
    })
}

/// Fails unless admission accepts the channels on a processor with these costs, and on the link.
fn admit(processor: &Processor) -> Result<()> {
    let (mut work, mut sent) = (Vec::new(), Vec::new());
    for (text, part) in std::iter::zip(TIGHT, PROCESSING) {
        let channel = channel(text)?;
        let with = |deadline| channel.resized(channel.mmax(), channel.rmax(), deadline);
        work.push(Work::Channel(with(part)?));
        let rest = Nanos(channel.deadline().0 - part.0);
        sent.push(Promise::Channel(with(rest)?));
    }
    Handlers {
        resolution: Resolution::SCHEDULER,
        horizon: HORIZON,
        ..Handlers::new(*processor)
    }
    .carries_on_whole(&work)?;
    Transmitter::of(&wire()?, processor.largest, 4).carries(&sent)?;
    Ok(())
}

/// Adds the checks of the paper's set-up (the first runs) and of netnice's (the second).
fn judge(outcome: &mut Outcome, [boundaries, shipped]: &[Vec<Run>; 2]) {
    let channels = |run: &Run| -> Vec<FlowResult> { run.1[..CHANNELS.len()].to_vec() };
    let late = |run: &Run| -> u64 { channels(run).iter().filter_map(|flow| flow.late).sum() };
    let least = boundaries.iter().map(late).min().unwrap_or(0) as f64;
    let what =
        "control: messages late with preemption at message boundaries only, fewest of all loads";
    outcome.check(what, least, "messages", Bound::AtLeast(1.0));
    let late: u64 = shipped.iter().map(late).sum();
    let what = "messages late with preemption points (P = 4), at all loads";
    outcome.check(what, late as f64, "messages", Bound::AtMost(0.0));
    let dropped = shipped.iter().flat_map(channels).map(|flow| flow.dropped);
    let what = "messages of the channels dropped with preemption points (P = 4), at all loads";
    let dropped = dropped.sum::<u64>() as f64;
    outcome.check(what, dropped, "messages", Bound::AtMost(0.0));
    let best_effort = |runs: &[Run]| {
        let run = runs.iter().find(|(load, _)| *load == WINDOW_LOAD as f64);
        run.map_or(0.0, |(_, flows)| flows[CHANNELS.len()].throughput)
    };
    let part = best_effort(boundaries) / best_effort(shipped) * 100.0;
    let what = format!(
        "control: best effort at {WINDOW_LOAD} kB/s with preemption at message boundaries only, \
         compared with P = 4"
    );
    outcome.check(what, part, "%", Bound::AtMost(99.0));
}

/// The cases.
const BOUNDARIES: &str = "message boundaries, early messages first";
const SHIPPED: &str = "P = 4, early messages after best effort";

/// The channels of figure 5 with deadlines that are kept only if a message can be interrupted.
const TIGHT: [&str; 3] = [
    "channel mmax=60KiB,rmax=15/s,bmax=4,deadline=25ms",
    "channel mmax=40KiB,rmax=15/s,bmax=6,deadline=15ms",
    "channel mmax=30KiB,rmax=20/s,bmax=1,deadline=8ms",
];

/// The processor's part of each deadline.
const PROCESSING: [Nanos; 3] = [
    Nanos::from_millis(16),
    Nanos::from_millis(10),
    Nanos::from_micros(5_400),
];

/// A block that has room for the longest message, so that none is interrupted.
const MESSAGE: u32 = 15;

/// Longer than the time from the arrival of a burst to the logical arrival of its last message.
const HORIZON: Nanos = Nanos::from_millis(500);

/// Messages of best effort that can wait.
const QUEUE: usize = 8;

/// Best effort offered, in kB/s, where its rates are compared: below saturation.
const WINDOW_LOAD: u64 = 4_800;
