//! Repeats figures 5 and 6 of the paper RTC (Mehra, Indiresan, Shin: Structuring communication
//! software for quality-of-service guarantees) in the simulator; `packets` does so on packets.
//! `early` has figure 7b, and `packet_blocks` the choice of P and of the packet size.
//!
//! The workload follows the paper: three channels and best effort pass a processor and then a link.
//! The paper does not give the contracts of its channels, so those in [`CHANNELS`] are assumed.
//! Channels 0 and 1 are bursty, channel 2 is periodic, and best effort is flow 3. The processor
//! divides messages into packets of at most 4 KiB, and can change to another message after every 4
//! packets. The processing costs are those of the paper's table 1, except the cost of a context
//! switch: the paper does not give it, and 55 us are assumed. The processor is the bottleneck, as
//! in the paper: a packet after the first of its message costs 330 us. An experiment fails if
//! admission refuses the channels, and figure 5 also if best effort never saturates or saturates at
//! the first two loads. The laxity of a message is the time from its departure to its deadline.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the simulation fails, or if a plot cannot be written.

mod carry;
mod early;
mod hops;
mod hosts;
mod layer;
mod link_call;
mod packet_blocks;
mod packets;
mod scale;

use std::num::NonZeroU32;

use anyhow::{Context as _, Result, ensure};
use netnice_core::admission::timing::{Processor, Promise, Transmitter, Work};
use netnice_core::contract::{Channel, Contract};
use netnice_core::sched::Wire;
use netnice_core::units::{Bytes, Nanos};
use netnice_sim::{EarlyProcessing, FlowReport, Report, SimFlow, Simulation, Source};
use serde_json::json;

use super::simulated::netnice_only;
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};
pub use carry::carry;
pub use early::figure7b_simulated;
pub use hops::hops;
pub use layer::layer;
pub use packet_blocks::packet_blocks;
pub use packets::{figure5, figure6, figure7a, figure7b};
pub use scale::scale;

/// Figure 5: best effort offers more and more, and the channels keep to their contracts. No
/// deadline may be missed, no channel may lose a message, and the mean laxity of a channel may
/// change by at most 5 %. Best effort must get 98 % of what it offers until it saturates, and
/// afterwards 95 % of its highest rate. Fails if the subject is not netnice, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure5_simulated(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    is_admitted(outcome)?;
    outcome.paper = json!({
        "real time": "throughput flat, no misses, least laxity not negative, mean laxity flat",
        "best effort": "linear, then saturates, declining slightly",
    });
    let mut rows = Vec::new();
    for offered in LOADS {
        let report = run_channels(context, &Setup::default(), (offered, 1))?;
        rows.push((offered as f64, report));
    }
    let sum = |report: &Report, of: &dyn Fn(&FlowReport) -> u64| -> u64 {
        report.flows[..CHANNELS.len()].iter().map(of).sum()
    };
    let (mut missed, mut dropped, mut least) = (0, 0, f64::MAX);
    for (offered, report) in &rows {
        missed += sum(report, &|flow| flow.missed);
        dropped += sum(report, &|flow| flow.dropped);
        let laxities = report.flows.iter().filter_map(|flow| flow.least_laxity);
        least = laxities.fold(least, |least, one| least.min(one as f64 / 1e6));
        outcome.ours(&format!("{offered} kB/s offered"), table(report));
    }
    outcome.check("deadlines missed", missed as f64, "", Bound::AtMost(0.0));
    outcome.check(
        "real-time messages dropped",
        dropped as f64,
        "",
        Bound::AtMost(0.0),
    );
    outcome.check("least laxity", least, "ms", Bound::AtLeast(0.0));
    for (number, name) in NAMES.iter().enumerate() {
        let means: Vec<f64> = rows
            .iter()
            .filter_map(|(_, report)| report.flows[number].mean_laxity())
            .collect();
        let (low, high) = extremes(&means);
        let what = format!("{name}: mean laxity, from the least to the greatest");
        outcome.check(what, (high / low - 1.0) * 100.0, "%", Bound::AtMost(5.0));
    }
    let sent: Vec<f64> = rows
        .iter()
        .map(|(_, report)| rate(&report.flows[3], report))
        .collect();
    let offered: Vec<f64> = rows.iter().map(|(offered, _)| *offered).collect();
    judge_best_effort(outcome, &offered, &sent)?;
    outcome.plot(context, "rtc-fig5-sim", || {
        let rates = |number: usize| points(&rows, |report| rate(&report.flows[number], report));
        chart(
            "RTC, figure 5 (simulated)",
            "best effort offered, kB/s",
            rates,
        )
    })
}

/// Figure 6: channel 0 sends at 1 to 6 times its contract's rate (`rmax`), beside best effort of
/// 1,900 kB/s as in the paper. Only messages of channel 0 may be dropped, and only above its
/// contract's rate; at 6 times the rate some must be. No deadline may be missed, and channel 0 must
/// always get 99 % of what it gets at its contract's rate. Fails if the subject is not netnice, and
/// as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure6_simulated(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    is_admitted(outcome)?;
    outcome.paper = json!("only channel 0 overflows; even what of it conforms meets its deadlines");
    let mut rows = Vec::new();
    for factor in 1..=6_u64 {
        let report = run_channels(context, &Setup::default(), (1_900, factor))?;
        rows.push((factor as f64, report));
    }
    let (mut missed, mut dropped, mut got) = (0, 0, f64::MAX);
    let alone = rate(&rows[0].1.flows[0], &rows[0].1);
    for (factor, report) in &rows {
        missed += report.missed();
        dropped += report.flows[1..]
            .iter()
            .map(|flow| flow.dropped)
            .sum::<u64>();
        got = got.min(rate(&report.flows[0], report) / alone * 100.0);
        outcome.ours(&format!("{factor} times Rmax"), table(report));
    }
    let own = |row: usize| rows[row].1.flows[0].dropped as f64;
    outcome.check("deadlines missed", missed as f64, "", Bound::AtMost(0.0));
    outcome.check(
        "dropped, but for channel 0",
        dropped as f64,
        "",
        Bound::AtMost(0.0),
    );
    outcome.check(
        "dropped of channel 0 at its Rmax",
        own(0),
        "",
        Bound::AtMost(0.0),
    );
    outcome.check(
        "dropped of channel 0 at 6 times that",
        own(5),
        "",
        Bound::AtLeast(1.0),
    );
    let what = "channel 0, of what it gets when it conforms";
    outcome.check(what, got, "%", Bound::AtLeast(99.0));
    outcome.plot(context, "rtc-fig6-sim", || {
        let rates = |number: usize| points(&rows, |report| rate(&report.flows[number], report));
        chart(
            "RTC, figure 6 (simulated)",
            "channel 0, multiples of Rmax",
            rates,
        )
    })
}

/// The channels of a simulation, and how the processor handles them.
#[derive(Clone, Copy)]
struct Setup {
    contracts: [&'static str; 3],
    /// The processor's part of each deadline; `None` for the whole deadlines.
    processing: Option<[Nanos; 3]>,
    /// Packets between two preemption points.
    block: NonZeroU32,
    early: EarlyProcessing,
    /// Messages of best effort that can wait.
    queue: usize,
}

impl Default for Setup {
    /// That of figures 5 and 6.
    fn default() -> Setup {
        Setup {
            contracts: CHANNELS,
            processing: None,
            block: processor().block,
            early: EarlyProcessing::default(),
            queue: 64,
        }
    }
}

/// Simulates best effort of `best_effort` kB/s, and channel 0 at `factor` times its rate.
fn run_channels(
    context: &Context,
    setup: &Setup,
    (best_effort, factor): (u64, u64),
) -> Result<Report> {
    let mut world = Simulation {
        processor: Some(Processor {
            block: setup.block,
            ..processor()
        }),
        early: setup.early,
        ..Simulation::new(wire()?)
    };
    for (number, text) in setup.contracts.iter().enumerate() {
        let channel = channel(text)?;
        let factor = if number == 0 { factor } else { 1 };
        let count = u64::from(channel.bmax());
        let every = count * 1_000_000_000 / u64::from(channel.rmax().get()) / factor;
        let source = match count {
            1 => Source::Constant {
                size: channel.mmax(),
                every: Nanos(every),
            },
            _ => Source::Bursts {
                size: channel.mmax(),
                count: channel.bmax(),
                every: Nanos(every),
            },
        };
        let mut flow = SimFlow::new(NAMES[number], text, source)?;
        // Messages that wait for their logical arrival, and messages being processed.
        let works = channel.deadline().0 * u64::from(channel.rmax().get()) / 1_000_000_000 + 1;
        flow.queue = (count + works) as usize;
        flow.processing = setup.processing.map(|parts| parts[number]);
        world
            .flows
            .push(flow.from(Nanos(number as u64 * 1_000_000)));
    }
    let size = Bytes(BEST_EFFORT);
    let every = Nanos(BEST_EFFORT * 1_000_000 / best_effort);
    let mut flow = SimFlow::new("best effort", "", Source::Constant { size, every })?;
    flow.queue = setup.queue;
    world.flows.push(flow);
    let seconds = if context.quick { 4 } else { 60 };
    Ok(world.run(Nanos::from_secs(seconds), |_| ())?)
}

/// Fails unless admission accepts the workload. The figures then check that channels which were
/// admitted miss no deadline.
fn is_admitted(outcome: &mut Outcome) -> Result<()> {
    let wire = wire()?;
    let link = Transmitter::of(&wire, processor().largest, 4);
    let (mut work, mut sent) = (Vec::new(), Vec::new());
    for text in CHANNELS {
        let channel = channel(text)?;
        let divided = processor().divide(&work, &link, &sent, &channel)?;
        let with =
            |deadline| Channel::new(channel.mmax(), channel.rmax(), channel.bmax(), deadline);
        work.push(Work::Channel(with(divided.processor)?));
        sent.push(Promise::Channel(with(divided.link)?));
        let what = format!(
            "{} on the processor, {} on the link",
            divided.processor, divided.link
        );
        outcome.ours(text, what);
    }
    Ok(())
}

fn channel(text: &str) -> Result<Channel> {
    let contract: Contract = text.parse()?;
    contract.channel().context("a channel")
}

/// The costs of the paper's table 1.
fn processor() -> Processor {
    let us = Nanos::from_micros;
    Processor {
        switch: us(55),
        cache_miss: us(90),
        first: us(420),
        later: us(170),
        link_scheduling: us(160),
        block: NonZeroU32::MIN.saturating_add(3),
        largest: Bytes(4096),
        // A block of best effort: it begins a message and processes 4 packets.
        leftover: us(2 * (55 + 90) + 420 + 3 * 170 + 4 * 160),
    }
}

/// A link with 50 ns for each byte and 40 us for each packet, which equal 800 bytes.
fn wire() -> Result<Wire> {
    Ok(Wire {
        overhead: Bytes(800),
        longest: Bytes(4096),
        ..Wire::new("160mbit".parse()?)
    })
}

/// Rate of a flow in kB/s.
fn rate(flow: &FlowReport, report: &Report) -> f64 {
    flow.bytes as f64 / 1e3 / (report.until.0 as f64 / 1e9)
}

fn table(report: &Report) -> serde_json::Value {
    let row = |flow: &FlowReport| {
        json!({
            "name": flow.name, "kB/s": rate(flow, report).round(), "dropped": flow.dropped,
            "missed": flow.missed,
            "least laxity, ms": flow.least_laxity.map(|least| least as f64 / 1e6),
            "mean laxity, ms": flow.mean_laxity().map(|mean| mean / 1e6),
        })
    };
    report.flows.iter().map(row).collect()
}

fn extremes(values: &[f64]) -> (f64, f64) {
    let both = |(low, high): (f64, f64), one: &f64| (low.min(*one), high.max(*one));
    values.iter().fold((f64::MAX, f64::MIN), both)
}

/// Checks what best effort gets (`sent`) of what it offers, in kB/s: 98 % until it saturates, and
/// then 95 % of its highest rate. Fails if it never saturates, or at the first two loads.
fn judge_best_effort(outcome: &mut Outcome, offered: &[f64], sent: &[f64]) -> Result<()> {
    let peak = extremes(sent).1;
    // Best effort is saturated if it gets less than it offers.
    let pairs = || offered.iter().zip(sent);
    let saturates = pairs().position(|(offered, sent)| *sent < 0.98 * offered);
    let saturates = saturates.context("best effort never saturates: offer more")?;
    ensure!(
        saturates >= 2,
        "best effort saturates at once: nothing linear to see"
    );
    let after = extremes(&sent[saturates..]).0 / peak * 100.0;
    let before = pairs()
        .take(saturates)
        .map(|(offered, sent)| sent / offered * 100.0);
    let before = before.fold(f64::MAX, f64::min);
    let what = "best effort, of what it offers, before it saturates";
    outcome.check(what, before, "%", Bound::AtLeast(98.0));
    let what = "best effort, of its peak, afterwards";
    outcome.check(what, after, "%", Bound::AtLeast(95.0));
    Ok(())
}

/// The points of a curve over rows.
fn points<R>(rows: &[(f64, R)], value: impl Fn(&R) -> f64) -> Vec<(f64, f64)> {
    rows.iter().map(|(at, row)| (*at, value(row))).collect()
}

/// A chart of the rates of all channels and of best effort, by number.
fn chart(title: &str, x: &str, rates: impl Fn(usize) -> Vec<(f64, f64)>) -> String {
    let names = NAMES.iter().copied().chain(["best effort"]);
    let series = names
        .enumerate()
        .map(|(number, name)| Series::new(name, COLOURS[number], rates(number)));
    series.fold(Chart::new(title, x, "kB/s"), Chart::with).svg()
}

/// Two bursty channels and a periodic one.
const CHANNELS: [&str; 3] = [
    "channel mmax=60KiB,rmax=15/s,bmax=4,deadline=40ms",
    "channel mmax=40KiB,rmax=15/s,bmax=6,deadline=30ms",
    "channel mmax=30KiB,rmax=20/s,bmax=1,deadline=20ms",
];

const NAMES: [&str; 3] = ["channel 0", "channel 1", "channel 2"];

/// Best effort offered, in kB/s.
const LOADS: [u64; 11] = [
    200, 400, 800, 1600, 2400, 3600, 4800, 6000, 7200, 9600, 14400,
];

/// Bytes of a best-effort message.
const BEST_EFFORT: u64 = 16_384;

const COLOURS: [&str; 4] = [
    palette::BLUE,
    palette::ORANGE,
    palette::GREEN,
    palette::SOFT,
];
