//! Repeats figures 5 and 6 of the paper RTC (Mehra, Indiresan, Shin: Structuring communication
//! software for quality-of-service guarantees) in the simulator; `packets` does so on packets.
//! `early` has figure 7b, and `packet_blocks` the choice of P and of the packet size. `results` and
//! `figures` have the tables and charts.
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
mod figures;
mod hops;
mod hosts;
mod layer;
mod link_call;
mod packet_blocks;
mod packets;
mod results;
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
use crate::plot::Chart;
pub use carry::carry;
pub use early::figure7b_simulated;
pub use hops::hops;
pub use layer::layer;
pub use packet_blocks::packet_blocks;
pub use packets::{figure5, figure6, figure7a, figure7b};
use results::FlowResult;
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
    let mut runs = Vec::new();
    for offered in LOADS {
        let report = run_channels(context, &Setup::default(), (offered, 1))?;
        runs.push((offered as f64, results(&report)));
    }
    outcome.ours("results", table_by_load(&runs));
    let channels = || runs.iter().flat_map(|(_, flows)| &flows[..CHANNELS.len()]);
    let late: u64 = channels().filter_map(|flow| flow.late).sum();
    let what = "messages late at all loads";
    outcome.check(what, late as f64, "messages", Bound::AtMost(0.0));
    let dropped: u64 = channels().map(|flow| flow.dropped).sum();
    let what = "messages of the channels dropped at all loads";
    outcome.check(what, dropped as f64, "messages", Bound::AtMost(0.0));
    let least = channels().filter_map(|flow| flow.least_laxity);
    let least = least.fold(f64::MAX, f64::min);
    let what = "least laxity of a message at all loads";
    outcome.check(what, least, "ms", Bound::AtLeast(0.0));
    judge_mean_laxity(outcome, &runs);
    judge_best_effort(outcome, &runs)?;
    outcome.plot(context, "rtc-fig5-sim", || {
        let title = "Channels keep their throughput, best effort saturates (simulated)";
        figures::throughput(title, figures::BEST_EFFORT_LOAD, &runs).svg()
    })?;
    let deadlines = results::deadlines(CHANNELS)?;
    outcome.plot(context, "rtc-fig5-sim-laxity", || {
        let title = "Laxity of messages beside rising best effort (simulated)";
        figures::laxity(title, &runs, deadlines).svg()
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
    let mut runs = Vec::new();
    for factor in 1..=6_u64 {
        let report = run_channels(context, &Setup::default(), (1_900, factor))?;
        runs.push((channel_0_load(factor), results(&report)));
    }
    outcome.ours("results", table_by_factor(&runs));
    let late = runs.iter().flat_map(|(_, flows)| flows);
    let late: u64 = late.filter_map(|flow| flow.late).sum();
    let what = "messages late at all rates";
    outcome.check(what, late as f64, "messages", Bound::AtMost(0.0));
    let others = runs.iter().flat_map(|(_, flows)| &flows[1..]);
    let dropped: u64 = others.map(|flow| flow.dropped).sum();
    let what = "messages dropped of channels 1 and 2 and of best effort";
    outcome.check(what, dropped as f64, "messages", Bound::AtMost(0.0));
    judge_channel_0(outcome, &runs);
    plot_figure6(context, outcome, "rtc-fig6-sim", "simulated", &runs)
}

/// What channel 0 offers at so many times the rate of its contract, in kB/s.
fn channel_0_load(factor: u64) -> f64 {
    // 60 KiB, 15 times a second.
    factor as f64 * 921.6
}

/// Checks what channel 0 loses at its contract's rate and at 6 times that, and what it gets.
fn judge_channel_0(outcome: &mut Outcome, runs: &[figures::Run]) {
    let dropped = |run: usize| runs[run].1[0].not_accepted() as f64;
    let what = "messages of channel 0 dropped at the rate of its contract";
    outcome.check(what, dropped(0), "messages", Bound::AtMost(0.0));
    let what = "messages of channel 0 dropped at 6 times that rate (its excess)";
    outcome.check(what, dropped(5), "messages", Bound::AtLeast(1.0));
    let conforming = runs[0].1[0].throughput;
    let got = runs.iter().map(|(_, flows)| flows[0].throughput);
    let least = got.fold(f64::MAX, f64::min) / conforming * 100.0;
    let what = "channel 0: lowest throughput, compared with that at the rate of its contract";
    outcome.check(what, least, "%", Bound::AtLeast(99.0));
}

/// Draws the throughput and the drops of figure 6.
fn plot_figure6(
    context: &Context,
    outcome: &mut Outcome,
    name: &str,
    kind: &str,
    runs: &[figures::Run],
) -> Result<()> {
    let named = |chart: Chart| {
        let loads = runs.iter().map(|(load, _)| *load).enumerate();
        let chart = chart.x_range(0.0, channel_0_load(6) * 1.05);
        let name =
            |chart: Chart, (at, load)| chart.x_name(load, format!("{load:.0} ({} ×)", at + 1));
        loads.fold(chart, name)
    };
    let x = "load offered by channel 0, kB/s (multiples of Rmax, the rate of its contract)";
    outcome.plot(context, name, || {
        let title = format!("Throughput while channel 0 exceeds its contract ({kind})");
        named(figures::throughput(&title, x, runs)).svg()
    })?;
    outcome.plot(context, &format!("{name}-dropped"), || {
        let title = format!("Messages dropped while channel 0 exceeds its contract ({kind})");
        named(figures::dropped(&title, x, runs)).svg()
    })
}

/// The table of figure 5.
fn table_by_load(runs: &[figures::Run]) -> serde_json::Value {
    let named = |(load, flows): &figures::Run| (json!({LOAD: load}), flows.clone());
    results::table(runs.iter().map(named))
}

/// The table of figure 6.
fn table_by_factor(runs: &[figures::Run]) -> serde_json::Value {
    let named = |(at, (_, flows)): (usize, &figures::Run)| {
        (
            json!({"channel 0, multiples of Rmax": at + 1}),
            flows.clone(),
        )
    };
    results::table(runs.iter().enumerate().map(named))
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
    let mut parts = [Nanos(0); CHANNELS.len()];
    for (text, part) in std::iter::zip(CHANNELS, &mut parts) {
        let channel = channel(text)?;
        let divided = processor().divide(&work, &link, &sent, &channel)?;
        let with =
            |deadline| Channel::new(channel.mmax(), channel.rmax(), channel.bmax(), deadline);
        *part = divided.processor;
        work.push(Work::Channel(with(divided.processor)?));
        sent.push(Promise::Channel(with(divided.link)?));
    }
    outcome.ours(
        "contracts of the channels",
        results::contracts(&CHANNELS, Some(&parts))?,
    );
    outcome.note(OWN_CONTRACTS);
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

/// What the flows of a simulation did.
fn results(report: &Report) -> Vec<FlowResult> {
    let result = |(number, flow): (usize, &FlowReport)| FlowResult {
        name: NAMES.get(number).copied().unwrap_or("best effort"),
        throughput: rate(flow, report),
        offered: flow.offered,
        dropped: flow.dropped,
        late: (number < NAMES.len()).then_some(flow.missed),
        least_laxity: flow.least_laxity.map(|least| least as f64 / 1e6),
        mean_laxity: flow.mean_laxity().map(|mean| mean / 1e6),
        on_packets: None,
    };
    report.flows.iter().enumerate().map(result).collect()
}

fn extremes(values: &[f64]) -> (f64, f64) {
    let both = |(low, high): (f64, f64), one: &f64| (low.min(*one), high.max(*one));
    values.iter().fold((f64::MAX, f64::MIN), both)
}

/// Checks that the mean laxity of each channel changes by at most 5 % over the runs.
fn judge_mean_laxity(outcome: &mut Outcome, runs: &[figures::Run]) {
    for (number, name) in NAMES.iter().enumerate() {
        let means = runs
            .iter()
            .filter_map(|(_, flows)| flows[number].mean_laxity);
        let (low, high) = extremes(&means.collect::<Vec<_>>());
        let what = format!("{name}: mean laxity, greatest of all loads above the least");
        outcome.check(what, (high / low - 1.0) * 100.0, "%", Bound::AtMost(5.0));
    }
}

/// Checks what best effort gets of what it offers: 98 % until it saturates, and then 95 % of its
/// highest rate. Fails if it never saturates, or at the first two loads.
fn judge_best_effort(outcome: &mut Outcome, runs: &[figures::Run]) -> Result<()> {
    let sent = |(_, flows): &figures::Run| flows[CHANNELS.len()].throughput;
    let all: Vec<f64> = runs.iter().map(sent).collect();
    let peak = extremes(&all).1;
    // Best effort is saturated if it gets less than it offers.
    let saturates = runs.iter().position(|run| sent(run) < 0.98 * run.0);
    let saturates = saturates.context("best effort never saturates: offer more")?;
    ensure!(
        saturates >= 2,
        "best effort saturates at once: nothing linear to see"
    );
    let after = extremes(&all[saturates..]).0 / peak * 100.0;
    let before = runs[..saturates]
        .iter()
        .map(|run| sent(run) / run.0 * 100.0);
    let before = before.fold(f64::MAX, f64::min);
    let what = "best effort before saturation: lowest throughput, compared with its offered load";
    outcome.check(what, before, "%", Bound::AtLeast(98.0));
    let what = "best effort after saturation: lowest throughput, compared with its peak";
    outcome.check(what, after, "%", Bound::AtLeast(95.0));
    Ok(())
}

/// The points of a curve over rows.
fn points<R>(rows: &[(f64, R)], value: impl Fn(&R) -> f64) -> Vec<(f64, f64)> {
    rows.iter().map(|(at, row)| (*at, value(row))).collect()
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

/// A column of the tables.
const LOAD: &str = "offered by best effort, kB/s";

/// A note of the experiments whose contracts the paper does not tell.
const OWN_CONTRACTS: &str = "The numbers of the paper's table 3 (the workload) are lost in its \
     plain text: Mmax, Rmax, Bmax and deadlines of the channels are ours. Kept from the paper: three \
     channels, of which 0 and 1 send bursts and 2 is periodic.";
