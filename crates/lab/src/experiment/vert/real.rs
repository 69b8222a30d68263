//! Repeats figures 5 and 6 of the paper VERT on real packets. Figure 5 shows how slices divide a
//! link of 100 Mbit/s. Figure 6 shows how two senders without a slice share the link, through the
//! driver, through the kernel with HTB, and through the kernel's plain queue over a cable of that
//! rate. The driver is that of netniced, and all senders
//! are processes ([`super::super::front_door`]). A tap at the receiver measures. An experiment
//! fails if the tap lost a packet, or if the driver refused one.
//!
//! What a stop of the driver excuses (see [`crate::alibi`]) counts as kept, and is printed.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the measurement fails, or if a plot cannot be written.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::super::bench::{MS, SECOND, netnice_only, pause, wait_until};
use super::super::front_door::{FrontDoor, WORK_AHEAD, check_verdict, note};
use super::super::sent_packets::{bins, from_port, missing_on_the_wire, tap};
use super::super::{Bound, Context, Outcome};
use crate::alibi::{Alibi, Verdict};
use crate::direct;
use crate::plot::{Chart, Series, palette};
use crate::stats;
use crate::sys;
use crate::traffic::{self, Running, Udp, real_programs};
use crate::wire::Record;
use crate::world::{Cable, Family, Pair, World, htb};

/// Figure 5a: six senders have slices of 4 to 24 ms in every 100 ms, and the other host pings. Each
/// sender must get its slice. At most 1 % of the pings may be unanswered, and of the replies 99 of
/// 100 must come within 5 ms. Fails if the subject is not netnice, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure5a(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let seconds = if context.quick { 4 } else { 60 };
    let front = FrontDoor::new(RATE)?;
    let slices = [4_u64, 8, 12, 16, 20, 24];
    let senders: Result<Vec<Running>> = slices
        .into_iter()
        .map(|slice| front.sender(port(slice), &format!("slice {slice}ms/100ms")))
        .collect();
    let mut senders = senders?;
    let (tap, file) = tap(&front.world)?;
    for sender in &mut senders {
        sender.go()?;
    }
    pause(SETTLE);
    let count = (seconds * 1000 / 7) as u32;
    let world = &front.world;
    let ping = real_programs::ping(
        world.server(),
        world.client().address(Family::V4),
        Duration::from_millis(7),
        count,
    )?;
    pause(seconds as f64);
    let until = sys::now_ns();
    let stops = front.stops()?;
    let alibi = stops.alibi(0.86);
    note(outcome, &stops.stops);
    let record = tap.stop(&world.server().ns)?;
    record.validate()?;
    let begins: Result<Vec<u64>> = senders.into_iter().map(first_packet).collect();
    let pings = real_programs::finish_ping(ping);
    outcome.paper = json!("each stream at its share, stable");
    let mut judged = Slices::default();
    let settle = (SETTLE * SECOND as f64) as u64;
    for (slice, begin) in slices.into_iter().zip(begins?) {
        judged.judge(outcome, &record, slice, (begin + settle, until), &alibi);
        judged.lost += missing_on_the_wire(&file, port(slice))?;
    }
    judged.check(outcome);
    let (mean, p99) = pings.mean_and_p99();
    outcome.ours(
        "ping, ms",
        json!({"mean": mean, "p99": p99, "answered": pings.answers.len()}),
    );
    outcome.check(
        "pings without an answer",
        pings.lost() * 100.0,
        "%",
        Bound::AtMost(1.0),
    );
    outcome.check("p99 of a ping", p99, "ms", Bound::AtMost(5.0));
    outcome.plot(context, "vert-fig5a", || {
        let chart = Chart::new("VERT, figure 5a", "time, s", "Mbit/s");
        let names = slices.map(|slice| (format!("{slice} ms"), port(slice)));
        rates(chart, &record, &names, until - seconds * SECOND, until)
    })
}

/// Ends a sender, and returns when it gave its first packet to the driver (wall clock, ns). Fails
/// if the driver refused a packet.
fn first_packet(sender: Running) -> Result<u64> {
    let report = sender.stop()?;
    ensure!(report.refused.is_empty(), "{:?}", report.refused);
    ensure!(report.first_ns > 0, "a sender sent nothing");
    Ok(report.first_ns)
}

/// What was found of the slices of an experiment.
#[derive(Default)]
struct Slices {
    /// Packets beyond 2 of s/p in a bin of 200 ms.
    bins: Verdict,
    /// The farthest mean from s/p, as a share of it; packets whose lack is excused are added.
    mean: f64,
    /// Packets that were sent and did not arrive.
    lost: u64,
}

impl Slices {
    /// Judges the packets of a slice in bins of two periods. They begin [`AHEAD`] of a period of
    /// the slice, so that a packet that leaves some microseconds early or late at the edge of a
    /// period stays in its bin.
    fn judge(
        &mut self,
        outcome: &mut Outcome,
        record: &Record,
        slice: u64,
        (from, until): (u64, u64),
        alibi: &Alibi,
    ) {
        let from = from - AHEAD;
        let found = bins(&record.times(from_port(port(slice))), from, until, BIN);
        let (mut excused, mut farthest) = (0.0, 0.0_f64);
        for (begin, packets) in (0..).map(|bin| from + bin * BIN).zip(&found) {
            let off = packets - wanted(slice);
            farthest = farthest.max(off.abs());
            let beyond = (off.abs() - 2.0).ceil().max(0.0) as u64;
            // A stop can also move packets into the next bin.
            let verdict = alibi.judge_missing(beyond, begin - BIN, begin + BIN, PACKET);
            self.bins += verdict;
            excused += verdict.excused as f64 * -off.signum();
        }
        let mean = stats::mean(&found);
        let counted = mean + excused / found.len().max(1) as f64;
        self.mean = self.mean.max((counted / wanted(slice) - 1.0).abs());
        outcome.ours(
            &format!("{slice} ms"),
            json!({"packets in 200 ms": mean, "s/p": wanted(slice), "farthest bin": farthest}),
        );
    }

    fn check(&self, outcome: &mut Outcome) {
        let what = "packets of a slice beyond 2 of s/p in 200 ms";
        check_verdict(outcome, what, self.bins);
        let what = "farthest mean of a slice from s/p";
        outcome.check(what, self.mean * 100.0, "%", Bound::AtMost(0.5));
        let what = "packets that were sent and did not arrive";
        outcome.check(what, self.lost as f64, "packets", Bound::AtMost(0.0));
    }
}

/// Figure 5b: one sender that has a slice with extra, then four with slices, which start 5 s after
/// each other (1 s in the quick form). The four must get their slices, and the first one the rest
/// of the link. Fails if the subject is not netnice, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure5b(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let step = if context.quick { SECOND } else { 5 * SECOND };
    let front = FrontDoor::new(RATE)?;
    let slices = [6_u64, 7, 8, 9];
    let mut first = front.sender(port(0), "slice 1ms/100ms extra")?;
    let senders: Result<Vec<Running>> = slices
        .into_iter()
        .map(|slice| front.sender(port(slice), &format!("slice {slice}ms/100ms")))
        .collect();
    let mut senders = senders?;
    let (tap, file) = tap(&front.world)?;
    first.go()?;
    pause(SETTLE);
    let from = sys::now_ns();
    for (number, sender) in (1..).zip(&mut senders) {
        wait_until(from + number * step);
        sender.go()?;
    }
    let until = from + 6 * step;
    wait_until(until);
    let stops = front.stops()?;
    let alibi = stops.alibi(0.35);
    note(outcome, &stops.stops);
    let record = tap.stop(&front.world.server().ns)?;
    record.validate()?;
    outcome.paper = json!("the first drops step by step, the guaranteed hold");
    let mut judged = Slices::default();
    first_packet(first)?;
    judged.lost += missing_on_the_wire(&file, port(0))?;
    for (slice, sender) in slices.into_iter().zip(senders) {
        let begin = first_packet(sender)? + BIN;
        judged.judge(outcome, &record, slice, (begin, until), &alibi);
        judged.lost += missing_on_the_wire(&file, port(slice))?;
    }
    judged.check(outcome);
    let worst = rest(outcome, &record, &slices, (from, step), &alibi);
    let what = "farthest stage of the first from exactly the rest";
    outcome.check(what, worst * 100.0, "%", Bound::AtMost(0.5));
    outcome.plot(context, "vert-fig5b", || {
        let chart = Chart::new("VERT, figure 5b", "time, s", "Mbit/s");
        let slices = slices.map(|slice| (format!("{slice} ms"), port(slice)));
        let names = [vec![("with extra".to_string(), port(0))], slices.to_vec()].concat();
        rates(chart, &record, &names, from, until)
    })
}

/// The farthest stage of the first sender from the rest of the link, as a share of it. Time that
/// stops took from the link counts as used.
fn rest(
    outcome: &mut Outcome,
    record: &Record,
    slices: &[u64],
    (from, step): (u64, u64),
    alibi: &Alibi,
) -> f64 {
    let times = record.times(from_port(port(0)));
    let mut worst = 0.0_f64;
    for stage in 0..6_u64 {
        // From the first period after the one in which a sender started.
        let (begin, end) = (from + stage * step + BIN, from + (stage + 1) * step);
        let reserved: u64 = slices.iter().take(stage as usize).sum();
        let rest = (100 - reserved) as f64 / 100.0 * (end - begin) as f64 / PACKET as f64;
        let found = bins(&times, begin, end, end - begin)[0];
        let stopped =
            (alibi.taken(begin, end, WORK_AHEAD) as f64 / PACKET as f64).min(rest - found);
        let off = (found + stopped.max(0.0)) / rest - 1.0;
        worst = worst.max(off.abs());
        outcome.ours(
            &format!("stage {stage}"),
            json!({"packets": found, "the rest": rest, "excused": stopped.max(0.0)}),
        );
    }
    worst
}

/// Figure 6: two senders without a guarantee, through the driver, through the kernel with HTB, and
/// through the kernel's plain queue over a cable of the link's rate. The driver must carry as much
/// as each of the kernel's, with what its stops would have carried, and the rates of its senders
/// may vary no more than with HTB. Fails if the subject is not netnice, and
/// as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure6(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let phases = match context.quick {
        true => Phases {
            start: 0.5,
            settle: SECOND / 2,
            measured: SECOND,
        },
        false => Phases {
            start: SETTLE,
            settle: SECOND,
            measured: 29 * SECOND,
        },
    };
    let ours = through_driver(World::pair(Pair::default())?, outcome, phases)?;
    let limited = through_kernel(World::pair(Pair::default())?, true, phases)?;
    let on_cable = through_driver(cable()?, outcome, phases)?;
    let plain = through_kernel(cable()?, false, phases)?;
    outcome.paper = json!({"ours, average Mb/s": 46.1, "the kernel's": 44.1, "ours": "smoother"});
    let mut measure = |name: &str, record: &Record| {
        let each = [1, 2].map(|number| steady(record, number, phases));
        let sums = each[0].iter().zip(&each[1]).map(|(one, two)| one + two);
        let sums: Vec<f64> = sums.collect();
        let total = stats::mean(&sums);
        let variations = each.iter().map(|bins| stats::variation(bins));
        let variation = variations.fold(0.0, f64::max);
        outcome.ours(
            name,
            json!({
                "total, Mbit/s": total,
                "each": each.iter().map(|bins| stats::mean(bins)).collect::<Vec<_>>(),
                "variation over 200 ms": variation,
            }),
        );
        (total, variation)
    };
    let (total, variation) = measure("ours", &ours.0);
    let (theirs, rougher) = measure("HTB", &limited);
    let (total_on_cable, _) = measure("ours over a cable of 100 Mbit/s", &on_cable.0);
    let (plain_total, _) = measure("the kernel's queue over that cable", &plain);
    for (name, (record, alibi), total, theirs) in [
        ("of HTB's", &ours, total, theirs),
        (
            "of that of the kernel's queue",
            &on_cable,
            total_on_cable,
            plain_total,
        ),
    ] {
        let (from, until) = steady_span(record, phases);
        let stopped = alibi.taken(from, until, WORK_AHEAD) as f64 / (until - from) as f64;
        let part = total / theirs * 100.0;
        let excused = (stopped * 100.0).min((100.0 - part).max(0.0));
        outcome.ours(&format!("excused of the total, % {name}"), excused);
        let what = format!("total, {name} ({excused:.2} % excused by stops)");
        outcome.check(what, part + excused, "%", Bound::AtLeast(100.0));
    }
    outcome.check(
        "variation",
        variation * 100.0,
        "%",
        Bound::AtMost(rougher * 100.0),
    );
    outcome.plot(context, "vert-fig6", || {
        let chart = Chart::new("VERT, figure 6", "time, s", "Mbit/s");
        let mut chart = chart.y_range(40.0, 60.0);
        let lines = [("driver", &ours.0, 0), ("kernel", &limited, 2)];
        for (name, record, colour) in lines {
            for number in [1, 2] {
                let bins = steady(record, number, phases);
                let points = (0..)
                    .zip(bins)
                    .map(|(at, rate)| (f64::from(at) * 0.2 + 0.1, rate));
                let colour = palette::SERIES[colour + usize::from(number == 2)];
                let name = format!("{name}, sender {number}");
                chart = chart.with(Series::new(name, colour, points.collect()));
            }
        }
        chart.svg()
    })
}

/// The phases of a run of figure 6: until both senders have started, in s; until the division of
/// the link has settled, and the part that is measured, in ns.
#[derive(Clone, Copy)]
struct Phases {
    start: f64,
    settle: u64,
    measured: u64,
}

impl Phases {
    /// The length of a run in s.
    fn length(self) -> f64 {
        self.start + (self.settle + self.measured) as f64 / SECOND as f64
    }
}

/// Two hosts, and a cable that carries the link's rate from the client.
fn cable() -> Result<World> {
    World::switched(&[Cable::rated("client", LINK, 50), Cable::free("server")])
}

/// The record of two senders through the driver, and what its stops excuse.
fn through_driver(world: World, outcome: &mut Outcome, phases: Phases) -> Result<(Record, Alibi)> {
    let front = FrontDoor::on(world, RATE)?;
    let mut senders = [
        front.sender(port(1), LEFT_OVER)?,
        front.sender(port(2), LEFT_OVER)?,
    ];
    let (tap, file) = tap(&front.world)?;
    for sender in &mut senders {
        sender.go()?;
    }
    pause(phases.length());
    let stops = front.stops()?;
    let alibi = stops.alibi(0.0);
    note(outcome, &stops.stops);
    let record = tap.stop(&front.world.server().ns)?;
    record.validate()?;
    let mut lost = 0;
    for (sender, number) in senders.into_iter().zip([1, 2]) {
        first_packet(sender)?;
        lost += missing_on_the_wire(&file, port(number))?;
    }
    let what = "packets that were sent and did not arrive";
    outcome.check(what, lost as f64, "packets", Bound::AtMost(0.0));
    Ok((record, alibi))
}

/// The record of two floods through the kernel's queue, with a limit by HTB if it is `limited`.
fn through_kernel(world: World, limited: bool, phases: Phases) -> Result<Record> {
    let client = world.client();
    let _sink = direct::sink(world.server())?;
    if limited {
        htb::limit(&client.ns, &client.port().device, LINK, htb::Leaf::Default)?;
    }
    let (tap, _) = tap(&world)?;
    let to = (world.server().port().v4, direct::SINK).into();
    let flood = |number| {
        let from = (client.port().v4, port(number)).into();
        // With headers 1500 bytes, as the senders' packets.
        traffic::start_now(client, &Udp::source(from, to).size(1458))
    };
    let floods = [flood(1)?, flood(2)?];
    pause(phases.length());
    for one in floods {
        one.stop()?;
    }
    let record = tap.stop(&world.server().ns)?;
    record.validate()?;
    Ok(record)
}

/// The part of a run of figure 6 in which both send, and the division of the link has settled.
fn steady_span(record: &Record, phases: Phases) -> (u64, u64) {
    let begin = |number| record.times(from_port(port(number))).first().copied();
    let from = begin(1).max(begin(2)).unwrap_or_default() + phases.settle;
    (from, from + phases.measured)
}

/// Rates of one sender of figure 6 in bins of 200 ms, in Mbit/s, after both have started.
fn steady(record: &Record, number: u64, phases: Phases) -> Vec<f64> {
    let (from, until) = steady_span(record, phases);
    let times = record.times(from_port(port(number)));
    let packets = bins(&times, from, until, BIN);
    packets.into_iter().map(megabits).collect()
}

/// Rates in bins of 200 ms.
fn rates(chart: Chart, record: &Record, names: &[(String, u16)], from: u64, until: u64) -> String {
    let line = |(number, (name, port)): (usize, &(String, u16))| {
        let packets = bins(&record.times(from_port(*port)), from, until, BIN);
        let points = (0..)
            .zip(packets)
            .map(|(at, packets)| (f64::from(at) * 0.2 + 0.1, megabits(packets)));
        let colour = palette::SERIES[number % palette::SERIES.len()];
        Series::new(name, colour, points.collect())
    };
    let series = names.iter().enumerate().map(line);
    series.fold(chart, Chart::with).svg()
}

/// The rate of `packets` in a bin, in Mbit/s.
fn megabits(packets: f64) -> f64 {
    packets * 1500.0 * 8e3 / BIN as f64
}

/// Packets in a bin of 200 ms for a slice of `slice` ms in 100 ms.
fn wanted(slice: u64) -> f64 {
    (slice * MS) as f64 * 2.0 / PACKET as f64
}

fn port(number: u64) -> u16 {
    5000 + number as u16
}

/// No guarantee: a share of the left-over.
const LEFT_OVER: &str = "weight 100";
/// Rate of the link for the command line.
const RATE: &str = "100mbit";
/// Rate of the link in bit/s.
const LINK: u64 = 100_000_000;
/// A packet's time on the link, in ns.
const PACKET: u64 = 120_000;
/// The width of a bin, in ns: two periods.
const BIN: u64 = 200 * MS;
/// How long before a period of a slice a bin begins, in ns: half of the time in each period for
/// which the link is idle in figure 5a. Nobody's packets leave then, since all senders of the
/// figure start within a few milliseconds.
const AHEAD: u64 = 8 * MS;
/// Time in seconds until both senders of figure 6 have started.
const SETTLE: f64 = 1.0;
