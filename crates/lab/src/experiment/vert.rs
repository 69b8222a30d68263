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
use crate::plot::{Chart, Series};
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
    outcome.paper = json!({
        "rates": "in proportion to the slices, stable over the whole experiment",
        "sum of the slices, Mbit/s": 84,
    });
    let (mut worst_bin, mut worst_mean) = (0.0_f64, 0.0_f64);
    let mut rows = Vec::new();
    for (flow, slice) in slices.into_iter().enumerate() {
        let wanted = wanted(slice);
        let found = bins(&sent, flow, ms(0), end, ms(200));
        let found: Vec<f64> = found.into_iter().map(f64::from).collect();
        let off = found.iter().map(|packets| (packets - wanted).abs());
        let farthest = off.fold(0.0, f64::max);
        worst_bin = worst_bin.max(farthest);
        let mean = stats::mean(&found);
        worst_mean = worst_mean.max((mean / wanted - 1.0).abs());
        rows.push(json!({
            SLICE: slice, "mean, packets in 200 ms": mean,
            "s/p, packets in 200 ms": wanted, "farthest bin from s/p, packets": farthest,
        }));
    }
    outcome.ours("slices", rows);
    let what = "bin of 200 ms that is farthest from s/p, of all slices";
    outcome.check(what, worst_bin, "packets", Bound::AtMost(2.0));
    outcome.check(FARTHEST_MEAN, worst_mean * 100.0, "%", Bound::AtMost(0.5));
    let mut waits: Vec<f64> = pings(&sent, slices.len(), every);
    waits.sort_by(f64::total_cmp);
    let p99 = waits[waits.len() * 99 / 100];
    let what = "99th percentile of the time from a ping's arrival until it has left";
    outcome.check(what, p99, "ms", Bound::AtMost(5.0));
    outcome.note(SHARE);
    outcome.plot(context, "vert-fig5a-sim", || {
        let title = "Six senders with slices of a link of 100 Mbit/s (simulated)";
        let chart = Chart::new(title, "time, s", JUDGED_RATE).y_range(0.0, 30.0);
        let names = slices.map(|slice| format!("{slice} ms"));
        rates(chart, &sent, &numbered(&names), end)
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
    outcome.paper = json!({
        "first sender": "falls by 6, 7, 8 and 9 Mbit/s",
        "senders with slices, Mbit/s": [6, 7, 8, 9],
    });
    let (mut worst, mut worst_rest) = (0.0_f64, 0.0_f64);
    for (number, slice) in (1_u64..).zip(slices) {
        let found = bins(&sent, number as usize, Nanos(step.0 * number), end, ms(200));
        let off = found
            .iter()
            .map(|packets| (f64::from(*packets) - wanted(slice)).abs());
        worst = off.fold(worst, f64::max);
    }
    let mut rows = Vec::new();
    for stage in 0..6_u64 {
        let (from, until) = (Nanos(step.0 * stage), Nanos(step.0 * (stage + 1)));
        let rest = 100 - slices.into_iter().take(stage as usize).sum::<u64>();
        let wanted = rest as f64 / 100.0 * step.0 as f64 / PACKET as f64;
        let found: u32 = bins(&sent, 0, from, until, step).iter().sum();
        let off = f64::from(found) / wanted - 1.0;
        worst_rest = worst_rest.max(off.abs());
        rows.push(json!({
            "stage": stage, "from, s": from.0 as f64 / 1e9, "until, s": until.0 as f64 / 1e9,
            "senders": 1 + stage.min(4), "rest of the link, %": rest, "rest, packets": wanted,
            "sent by the first, packets": found, "deviation, %": off * 100.0,
        }));
    }
    outcome.ours("first sender in each stage", rows);
    let busy = report.busy.0 as f64 / end.0 as f64 * 100.0;
    let what = "bin of 200 ms that is farthest from s/p, of all slices";
    outcome.check(what, worst, "packets", Bound::AtMost(2.0));
    outcome.check(FARTHEST_REST, worst_rest * 100.0, "%", Bound::AtMost(0.5));
    let what = "time for which the link is busy";
    outcome.check(what, busy, "%", Bound::AtLeast(99.9));
    outcome.note(SHARE);
    let names = slices.map(|slice| format!("{slice} ms"));
    let names: Vec<String> = [vec![FIRST_SENDER.into()], names.to_vec()].concat();
    let names = numbered(&names);
    outcome.plot(context, "vert-fig5b-sim", || {
        let title = "One sender has what slices leave of 100 Mbit/s (simulated)";
        let chart = Chart::new(title, "time, s", JUDGED_RATE).y_range(0.0, 110.0);
        rates(chart, &sent, &names, end)
    })?;
    outcome.plot(context, "vert-fig5b-sim-slices", || {
        let title = "The four senders with slices alone (simulated)";
        let chart = Chart::new(title, "time, s", JUDGED_RATE);
        let chart = chart.x_range(0.0, end.0 as f64 / 1e9).y_range(5.0, 10.0);
        rates(chart, &sent, &names[1..], end)
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

/// The names of flows with their numbers.
fn numbered(names: &[String]) -> Vec<(usize, &String)> {
    names.iter().enumerate().collect()
}

/// The rate of packets of 1500 bytes, with all headers, in Mbit/s.
fn megabits(packets: f64, seconds: f64) -> f64 {
    packets * 1500.0 * 8e-6 / seconds
}

/// Plots the rate of each flow in bins of 200 ms that begin with the simulation, as SVG. A flow's
/// line begins with its first packet.
fn rates(chart: Chart, sent: &[SentPacket], names: &[(usize, &String)], end: Nanos) -> String {
    let line = |(flow, name): &(usize, &String)| {
        let bins = bins(sent, *flow, Nanos(0), end, ms(200));
        let rates = bins
            .into_iter()
            .map(|packets| megabits(packets.into(), 0.2));
        let points = stats::middles(&rates.collect::<Vec<_>>(), 0.0, 0.2);
        let begun = points.into_iter().skip_while(|(_, rate)| *rate == 0.0);
        Series::numbered(*flow, *name, begun.collect())
    };
    names.iter().map(line).fold(chart, Chart::with).svg()
}

/// Packets in a bin of 200 ms for a slice of `slice` ms in 100 ms.
fn wanted(slice: u64) -> f64 {
    slice as f64 * 2e6 / PACKET as f64
}

/// The key of a slice in tables.
const SLICE: &str = "slice, ms of each 100 ms";
/// What [`FARTHEST_MEAN`] and the checks of bins compare with.
const SHARE: &str = "s/p is a slice divided by its period, the sender's share of the link: a slice \
                     of 1 ms in 100 ms is 1 Mbit/s, or 16.67 packets of 1500 bytes in 200 ms";
/// The check of the slices' means.
const FARTHEST_MEAN: &str =
    "mean rate of a slice over the run that is farthest from s/p: deviation";
/// The check of the sender that has the rest.
const FARTHEST_REST: &str = "stage of the first sender that is farthest from the rest of the link: \
                             deviation";
/// The first sender of figure 5b, in charts.
const FIRST_SENDER: &str = "first sender, the rest (judged in stages, not in bins)";
/// The axis of the rates that are judged.
const JUDGED_RATE: &str = "rate in the judged bins of 200 ms, Mbit/s";
/// A packet's time on the link, in ns.
const PACKET: u64 = 120_000;
