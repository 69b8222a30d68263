//! Repeats figure 5 of the paper VERT in the simulator: how slices divide a link of 100 Mbit/s, on
//! which a packet of 1500 bytes takes 120 us. [`real`] and [`receive`] repeat the paper's figures
//! 5, 6 and 7 on real packets.
//!
//! VERT is: Black, Barham, Donnelly, Stratford, Protocol implementation in a vertically structured
//! operating system.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the simulation fails, or if a plot cannot be written.

pub mod real;
pub mod receive;

use anyhow::Result;
use netnice_core::units::{Bytes, Nanos};
use netnice_sim::{SentPacket, SimFlow, Source};
use serde_json::json;

use super::simulated::{bins, greedy, link, ms, netnice_only, simulate};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};
use crate::stats;

/// Figure 5a: six senders have slices of 4 to 24 ms in every 100 ms, and a ping beside them has a
/// minimum of 200 kbit/s. Each sender must get its slice, within 2 packets in every 200 ms and
/// within 0.5 % on average, and 99 of 100 pings may wait at most 5 ms. Fails if the subject is not
/// netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure5a_simulated(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    let end = ms(if context.quick { 4_000 } else { 60_000 });
    let slices = [4_u64, 8, 12, 16, 20, 24];
    let mut world = link("100mbit", 1500)?;
    for slice in slices {
        let contract = format!("slice {slice}ms/100ms");
        world
            .flows
            .push(greedy(&format!("{slice} ms"), &contract, 1500)?);
    }
    let (size, every) = (Bytes(98), ms(7));
    // Slices are served before the left-over, for up to 84 ms in sequence. The ping therefore needs
    // a guarantee, like the kernel's own traffic on a shared link.
    let ping = Source::Constant { size, every };
    world.flows.push(SimFlow::new("ping", "min 200kbit", ping)?);
    let (_, sent) = simulate(&world, end)?;
    outcome.paper = json!("each stream at its share, stable");
    let (mut worst_bin, mut worst_mean) = (0.0_f64, 0.0_f64);
    for (flow, slice) in slices.into_iter().enumerate() {
        let wanted = slice as f64 * 2e6 / PACKET as f64;
        let found = bins(&sent, flow, ms(0), end, ms(200));
        let found: Vec<f64> = found.into_iter().map(f64::from).collect();
        let off = found.iter().map(|packets| (packets - wanted).abs());
        worst_bin = off.fold(worst_bin, f64::max);
        let mean = stats::mean(&found);
        worst_mean = worst_mean.max((mean / wanted - 1.0).abs());
        outcome.ours(
            &format!("{slice} ms"),
            json!({"packets in 200 ms": mean, "s/p": wanted}),
        );
    }
    let what = "farthest 200-ms bin from s/p";
    outcome.check(what, worst_bin, "packets", Bound::AtMost(2.0));
    let what = "farthest mean from s/p";
    outcome.check(what, worst_mean * 100.0, "%", Bound::AtMost(0.5));
    let mut waits: Vec<f64> = pings(&sent, slices.len(), every);
    waits.sort_by(f64::total_cmp);
    let p99 = waits[waits.len() * 99 / 100];
    outcome.check("p99 of what a ping waits", p99, "ms", Bound::AtMost(5.0));
    outcome.plot(context, "vert-fig5a-sim", || {
        let chart = Chart::new("VERT, figure 5a (simulated)", "time, s", "Mbit/s");
        let names = slices.map(|slice| format!("{slice} ms"));
        rates(chart, &sent, &names, end)
    })
}

/// Figure 5b: one sender without a slice, then four with slices, which start 5 s after each other
/// (1 s in the quick form). The four must get their slices, within 2 packets in every 200 ms, and
/// the first one the rest of the link within 0.5 %. 99.9 % of the link must be used. Fails if the
/// subject is not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure5b_simulated(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    let step = ms(if context.quick { 1_000 } else { 5_000 });
    let end = Nanos(step.0 * 6);
    let slices = [6_u64, 7, 8, 9];
    let mut world = link("100mbit", 1500)?;
    world.flows.push(greedy("extra only", "", 1500)?);
    for (number, slice) in (1..).zip(slices) {
        let contract = format!("slice {slice}ms/100ms");
        let flow = greedy(&format!("{slice} ms"), &contract, 1500)?;
        world.flows.push(flow.from(Nanos(step.0 * number)));
    }
    let (report, sent) = simulate(&world, end)?;
    outcome.paper = json!("the first drops step by step, the guaranteed hold");
    let (mut worst, mut worst_rest) = (0.0_f64, 0.0_f64);
    for (number, slice) in (1_u64..).zip(slices) {
        let wanted = slice as f64 * 2e6 / PACKET as f64;
        let found = bins(&sent, number as usize, Nanos(step.0 * number), end, ms(200));
        let off = found
            .iter()
            .map(|packets| (f64::from(*packets) - wanted).abs());
        worst = off.fold(worst, f64::max);
    }
    for stage in 0..6_u64 {
        let (from, until) = (Nanos(step.0 * stage), Nanos(step.0 * (stage + 1)));
        let reserved: u64 = slices.into_iter().take(stage as usize).sum();
        let wanted = (100 - reserved) as f64 / 100.0 * step.0 as f64 / PACKET as f64;
        let found: u32 = bins(&sent, 0, from, until, step).iter().sum();
        worst_rest = worst_rest.max((f64::from(found) / wanted - 1.0).abs());
        outcome.ours(
            &format!("stage {stage}"),
            json!({"packets": found, "the rest": wanted}),
        );
    }
    let busy = report.busy.0 as f64 / end.0 as f64 * 100.0;
    let what = "farthest 200-ms bin of a guaranteed one from s/p";
    outcome.check(what, worst, "packets", Bound::AtMost(2.0));
    let what = "farthest stage of the first from exactly the rest";
    outcome.check(what, worst_rest * 100.0, "%", Bound::AtMost(0.5));
    outcome.check("the link is used", busy, "%", Bound::AtLeast(99.9));
    outcome.plot(context, "vert-fig5b-sim", || {
        let chart = Chart::new("VERT, figure 5b (simulated)", "time, s", "Mbit/s");
        let slices = slices.map(|slice| format!("{slice} ms"));
        let names: Vec<String> = [vec!["extra only".to_string()], slices.to_vec()].concat();
        rates(chart, &sent, &names, end)
    })
}

/// The time in ms from the arrival of each ping until it has left; pings arrive each `every`.
fn pings(sent: &[SentPacket], flow: usize, every: Nanos) -> Vec<f64> {
    let mine = sent.iter().filter(|one| one.flow == flow);
    let came = (0_u64..).map(|n| n * every.0);
    mine.zip(came)
        .map(|(one, came)| (one.end.0 - came) as f64 / 1e6)
        .collect()
}

/// Plots the rate of each flow in bins of 200 ms, as SVG.
fn rates(chart: Chart, sent: &[SentPacket], names: &[String], end: Nanos) -> String {
    let line = |(flow, name): (usize, &String)| {
        let bins = bins(sent, flow, Nanos(0), end, ms(200));
        let points = (0..).zip(bins).map(|(at, packets)| {
            (
                f64::from(at) * 0.2 + 0.1,
                f64::from(packets) * 1500.0 * 8.0 / 0.2 / 1e6,
            )
        });
        Series::new(
            name,
            palette::SERIES[flow % palette::SERIES.len()],
            points.collect(),
        )
    };
    let series = names.iter().enumerate().map(line);
    series.fold(chart, Chart::with).svg()
}

/// A packet's time on the link, in ns.
const PACKET: u64 = 120_000;
