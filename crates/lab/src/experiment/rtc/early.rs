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
use netnice_sim::{EarlyProcessing, Report};
use serde_json::json;

use super::super::simulated::netnice_only;
use super::{CHANNELS, LOADS, Setup, channel, points, processor, rate, run_channels, table, wire};
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
    let mut rows = [Vec::new(), Vec::new()];
    for offered in LOADS {
        for (rows, (name, setup)) in std::iter::zip(
            &mut rows,
            [("message boundaries", &at_boundaries), ("P = 4", &shipped)],
        ) {
            let report = run_channels(context, setup, (offered, 1))?;
            let what = format!("{name}, {offered} kB/s offered");
            outcome.ours(&what, table(&report));
            rows.push((offered as f64, report));
        }
    }
    judge(outcome, &rows);
    for block in [processor().block.get(), 8, MESSAGE] {
        let setup = setup(block, EarlyOrder::BeforeLeftOver)?;
        let report = run_channels(context, &setup, (WINDOW_LOAD, 1))?;
        let what = format!("early messages first, blocks of {block}, {WINDOW_LOAD} kB/s offered");
        outcome.ours(&what, table(&report));
        if block == processor().block.get() {
            let what = "messages late, early messages first, blocks of 4";
            outcome.check(what, report.missed() as f64, "", Bound::AtMost(0.0));
        }
    }
    outcome.plot(context, "rtc-fig7b-sim", || {
        let late = |rows: &[(f64, Report)]| points(rows, |report| report.missed() as f64);
        let [boundaries, shipped] = &rows;
        let title = "RTC, figure 7b (simulated)";
        let chart = Chart::new(title, "best effort offered, kB/s", "messages late");
        let series = Series::new("message boundaries", palette::RED, late(boundaries));
        let chart = chart.with(series);
        let series = Series::new("every 4 packets", palette::BLUE, late(shipped));
        chart.with(series).svg()
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

/// Adds the checks of the paper's set-up (the first rows) and of netnice's (the second).
fn judge(outcome: &mut Outcome, [boundaries, shipped]: &[Vec<(f64, Report)>; 2]) {
    let late = boundaries.iter().map(|(_, report)| report.missed());
    let least = late.min().unwrap_or(0) as f64;
    let what = "messages late at message boundaries, the least of all loads";
    outcome.check(what, least, "", Bound::AtLeast(1.0));
    let late: u64 = shipped.iter().map(|(_, report)| report.missed()).sum();
    let what = "messages late with preemption points";
    outcome.check(what, late as f64, "", Bound::AtMost(0.0));
    let dropped = shipped
        .iter()
        .flat_map(|(_, report)| &report.flows[..CHANNELS.len()])
        .map(|flow| flow.dropped);
    let what = "messages of the channels dropped with preemption points";
    outcome.check(what, dropped.sum::<u64>() as f64, "", Bound::AtMost(0.0));
    let best_effort = |rows: &[(f64, Report)]| {
        let row = rows.iter().find(|(load, _)| *load == WINDOW_LOAD as f64);
        row.map_or(0.0, |(_, report)| {
            rate(&report.flows[CHANNELS.len()], report)
        })
    };
    let part = best_effort(boundaries) / best_effort(shipped) * 100.0;
    let what = format!("best effort at {WINDOW_LOAD} kB/s, of what it gets with preemption points");
    outcome.check(what, part, "%", Bound::AtMost(99.0));
}

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
