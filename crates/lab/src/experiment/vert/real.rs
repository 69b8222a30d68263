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
use netnice_core::stops::Stop;
use serde_json::{Value, json};

use super::super::bench::{MS, SECOND, netnice_only, pause, wait_until};
use super::super::front_door::{FrontDoor, WORK_AHEAD, check_verdict, note};
use super::super::sent_packets::{bins, from_port, missing_on_the_wire, tap};
use super::super::{Bound, Context, Outcome};
use super::{
    FARTHEST_MEAN, FARTHEST_REST, FIRST_SENDER, JUDGED_RATE, PACKET, SHARE, SLICE, wanted,
};
use crate::alibi::{Alibi, Verdict};
use crate::direct;
use crate::plot::{Chart, Series};
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
    outcome.paper = json!({
        "rates": "in proportion to the slices, stable over the whole experiment",
        "sum of the slices, Mbit/s": 84,
    });
    let mut judged = Slices::default();
    let settle = (SETTLE * SECOND as f64) as u64;
    for (slice, begin) in slices.into_iter().zip(begins?) {
        judged.judge(&record, slice, (begin + settle, until), &alibi);
        judged.lost += missing_on_the_wire(&file, port(slice))?;
    }
    judged.check(outcome);
    let (mean, p99) = pings.mean_and_p99();
    outcome.ours(
        "pings from the other host",
        json!({
            "sent": count, "answered": pings.answers.len(), "mean round trip, ms": mean,
            "99th percentile of the round trips, ms": p99,
        }),
    );
    let what = "pings without an answer, of all";
    outcome.check(what, pings.lost() * 100.0, "%", Bound::AtMost(1.0));
    let what = "99th percentile of the round trips of pings";
    outcome.check(what, p99, "ms", Bound::AtMost(5.0));
    outcome.plot(context, "vert-fig5a", || {
        let title = "Six senders with slices of a link of 100 Mbit/s";
        let chart = Chart::new(title, "time, s", JUDGED_RATE);
        let chart = chart.x_range(0.0, seconds as f64).y_range(0.0, 30.0);
        let lines = judged.lines(until - seconds * SECOND, 0);
        lines.into_iter().fold(chart, Chart::with).svg()
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
    /// The table of the slices.
    rows: Vec<Value>,
    /// The judged bins of each slice.
    judged: Vec<JudgedBins>,
}

/// The bins of a slice.
struct JudgedBins {
    /// The length of the slice, in ms.
    slice: u64,
    /// The begin of the first bin (wall clock, ns).
    from: u64,
    /// Packets in each bin.
    packets: Vec<f64>,
}

impl Slices {
    /// Judges the packets of a slice in bins of two periods. They begin [`AHEAD`] of a period of
    /// the slice, so that a packet that leaves some microseconds early or late at the edge of a
    /// period stays in its bin.
    fn judge(&mut self, record: &Record, slice: u64, (from, until): (u64, u64), alibi: &Alibi) {
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
        self.rows.push(json!({
            SLICE: slice, "mean, packets in 200 ms": mean,
            "s/p, packets in 200 ms": wanted(slice), "farthest bin from s/p, packets": farthest,
        }));
        self.judged.push(JudgedBins {
            slice,
            from,
            packets: found,
        });
    }

    fn check(&mut self, outcome: &mut Outcome) {
        outcome.ours("slices", std::mem::take(&mut self.rows));
        let what = "packets beyond 2 from s/p in bins of 200 ms, sum of all slices";
        check_verdict(outcome, what, self.bins);
        outcome.check(FARTHEST_MEAN, self.mean * 100.0, "%", Bound::AtMost(0.5));
        let what = "packets that were sent and did not arrive";
        outcome.check(what, self.lost as f64, "packets", Bound::AtMost(0.0));
        outcome.note(SHARE);
        outcome.note(
            "the bins of a slice, also those of the chart, are two of its periods long and begin \
             8 ms before a period, so that packets at the edge of a period stay in one bin",
        );
    }

    /// The rate of each slice in the judged bins; `origin` is the time 0 of the chart, and `before`
    /// the number of other lines, which have the first colours.
    fn lines(&self, origin: u64, before: usize) -> Vec<Series> {
        let line = |(number, one): (usize, &JudgedBins)| {
            let first = (one.from as f64 - origin as f64) / SECOND as f64;
            let points = rate_points(first, &one.packets);
            Series::numbered(before + number, format!("{} ms", one.slice), points)
        };
        self.judged.iter().enumerate().map(line).collect()
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
    outcome.paper = json!({
        "first sender": "falls by 6, 7, 8 and 9 Mbit/s",
        "senders with slices, Mbit/s": [6, 7, 8, 9],
    });
    let mut judged = Slices::default();
    first_packet(first)?;
    judged.lost += missing_on_the_wire(&file, port(0))?;
    for (slice, sender) in slices.into_iter().zip(senders) {
        let begin = first_packet(sender)? + BIN;
        judged.judge(&record, slice, (begin, until), &alibi);
        judged.lost += missing_on_the_wire(&file, port(slice))?;
    }
    judged.check(outcome);
    let worst = rest(outcome, &record, &slices, (from, step), &alibi);
    outcome.check(FARTHEST_REST, worst * 100.0, "%", Bound::AtMost(0.5));
    outcome.plot(context, "vert-fig5b", || {
        let title = "One sender has what slices leave of 100 Mbit/s";
        let chart = Chart::new(title, "time, s", JUDGED_RATE).y_range(0.0, 110.0);
        let packets = bins(&record.times(from_port(port(0))), from, until, BIN);
        let points = rate_points(0.0, &packets);
        let chart = chart.with(Series::numbered(0, FIRST_SENDER, points));
        let lines = judged.lines(from, 1);
        lines.into_iter().fold(chart, Chart::with).svg()
    })?;
    outcome.plot(context, "vert-fig5b-slices", || {
        let title = "The four senders with slices alone";
        let chart = Chart::new(title, "time, s", JUDGED_RATE);
        let chart = chart.x_range(0.0, (until - from) as f64 / SECOND as f64);
        let lines = judged.lines(from, 1);
        let chart = chart.y_range(5.0, 10.0);
        lines.into_iter().fold(chart, Chart::with).svg()
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
    let (mut worst, mut rows) = (0.0_f64, Vec::new());
    let seconds = |at: u64| (at - from) as f64 / SECOND as f64;
    for stage in 0..6_u64 {
        // From the first period after the one in which a sender started.
        let (begin, end) = (from + stage * step + BIN, from + (stage + 1) * step);
        let percent = 100 - slices.iter().take(stage as usize).sum::<u64>();
        let rest = percent as f64 / 100.0 * (end - begin) as f64 / PACKET as f64;
        let found = bins(&times, begin, end, end - begin)[0];
        let stopped =
            (alibi.taken(begin, end, WORK_AHEAD) as f64 / PACKET as f64).min(rest - found);
        let off = (found + stopped.max(0.0)) / rest - 1.0;
        worst = worst.max(off.abs());
        rows.push(json!({
            "stage": stage, "from, s": seconds(begin), "until, s": seconds(end),
            "senders": 1 + stage.min(4), "rest of the link, %": percent, "rest, packets": rest,
            "received from the first, packets": found,
            "excused by stops, packets": stopped.max(0.0), "deviation with these, %": off * 100.0,
        }));
    }
    outcome.ours("first sender in each stage", rows);
    worst
}

/// Figure 6: two senders without a guarantee, through the driver, through the kernel with HTB, and
/// through the kernel's plain queue over a cable of the link's rate. The driver must carry as much
/// as each of the kernel's, with what its stops would have carried, and the rates of its senders
/// may vary no more than with HTB, and over the cable no more than with the plain queue. Fails if
/// the subject is not netnice, and
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
    let name = "driver, link shaped to 100 Mbit/s";
    let ours = through_driver(name, World::pair(Pair::default())?, outcome, phases)?;
    let name = "kernel with HTB, link shaped to 100 Mbit/s";
    let limited = through_kernel(name, World::pair(Pair::default())?, true, phases)?;
    let name = "driver, cable of 100 Mbit/s";
    let on_cable = through_driver(name, cable()?, outcome, phases)?;
    let name = "kernel's plain queue, cable of 100 Mbit/s";
    let plain = through_kernel(name, cable()?, false, phases)?;
    outcome.paper = json!({
        "Nemesis, average bandwidth, Mbit/s": 46.1, "Linux 2.0.29, average bandwidth, Mbit/s": 44.1,
        "variation": "Nemesis is very much smoother",
    });
    note(
        outcome,
        &[ours.stops.clone(), on_cable.stops.clone()].concat(),
    );
    outcome.note(
        "the paper's comparison is that of the last two rows of the table: no shaper, and a cable \
         that carries 100 Mbit/s; HTB is the kernel's shaper, for a link that is shaped",
    );
    let runs = [&ours, &limited, &on_cable, &plain];
    let rows: Vec<Value> = runs.iter().map(|run| run.row(phases)).collect();
    outcome.ours("set-ups", rows);
    for (run, kernel, name) in [
        (&ours, &limited, "HTB's (link shaped to 100 Mbit/s)"),
        (&on_cable, &plain, PLAIN_QUEUE),
    ] {
        let part = run.total(phases) / kernel.total(phases) * 100.0;
        let excused = (run.stopped(phases) * 100.0).min((100.0 - part).max(0.0));
        let key = format!("excused of the total rate, % of {name}");
        outcome.ours(&key, excused);
        let what = format!("total rate with what stops excuse, of {name}");
        outcome.check(what, part + excused, "%", Bound::AtLeast(100.0));
        let what = format!("variation from 200 ms to 200 ms, at most that of {name}");
        let most = Bound::AtMost(kernel.variation(phases) * 100.0);
        outcome.check(what, run.variation(phases) * 100.0, "%", most);
    }
    for (name, title, run) in [
        (
            "driver",
            "Two senders through the driver, cable of 100 Mbit/s",
            &on_cable,
        ),
        (
            "kernel",
            "Two senders through the kernel's plain queue, same cable",
            &plain,
        ),
        (
            "shaped-driver",
            "Two senders through the driver, link shaped to 100 Mbit/s",
            &ours,
        ),
        (
            "shaped-htb",
            "Two senders through the kernel with HTB, 100 Mbit/s",
            &limited,
        ),
    ] {
        outcome.plot(context, &format!("vert-fig6-{name}"), || {
            run.chart(title, phases)
        })?;
    }
    Ok(())
}

/// A run of figure 6.
struct SharedLink {
    /// The set-up, in words.
    name: &'static str,
    record: Record,
    /// Stops of the driver, and what they excuse; none of the kernel.
    stops: Vec<Stop>,
    alibi: Alibi,
    /// Packets that were sent and did not arrive; `None` of the kernel, whose floods are not
    /// counted.
    lost: Option<u64>,
}

impl SharedLink {
    /// The rates of both senders in bins of 200 ms, in Mbit/s.
    fn rates(&self, phases: Phases) -> [Vec<f64>; 2] {
        [1, 2].map(|number| steady(&self.record, number, phases))
    }

    /// The mean of the sum of both rates, in Mbit/s.
    fn total(&self, phases: Phases) -> f64 {
        let each = self.rates(phases);
        let sums = each[0].iter().zip(&each[1]).map(|(one, two)| one + two);
        stats::mean(&sums.collect::<Vec<f64>>())
    }

    /// The coefficient of variation of the sender that varies more.
    fn variation(&self, phases: Phases) -> f64 {
        let each = self.rates(phases);
        let variations = each.iter().map(|bins| stats::variation(bins));
        variations.fold(0.0, f64::max)
    }

    /// The part of the time that stops of the driver took from the link.
    fn stopped(&self, phases: Phases) -> f64 {
        let (from, until) = steady_span(&self.record, phases);
        self.alibi.taken(from, until, WORK_AHEAD) as f64 / (until - from) as f64
    }

    /// The row of the table.
    fn row(&self, phases: Phases) -> Value {
        let means = self.rates(phases).map(|bins| stats::mean(&bins));
        json!({
            "set-up": self.name,
            "sender 1, Mbit/s": means[0],
            "sender 2, Mbit/s": means[1],
            "total, Mbit/s": self.total(phases),
            "variation of the less steady sender, %": self.variation(phases) * 100.0,
            "time that stops of the driver took, %": self.stopped(phases) * 100.0,
            "sent and not arrived, packets": self.lost,
        })
    }

    /// The rates of both senders. All charts of figure 6 have the same axes.
    fn chart(&self, title: &str, phases: Phases) -> String {
        let y = "rate of a sender in bins of 200 ms, Mbit/s";
        let seconds = phases.measured as f64 / SECOND as f64;
        let chart = Chart::new(title, "time, s", y);
        let chart = chart.x_range(0.0, seconds).y_range(0.0, 105.0);
        let line = |(number, bins): (usize, Vec<f64>)| {
            let points = stats::middles(&bins, 0.0, 0.2);
            let line = Series::numbered(number, format!("sender {number}"), points);
            // Equal rates cover each other.
            if number == 2 { line.dashed() } else { line }
        };
        let series = (1..).zip(self.rates(phases)).map(line);
        series.fold(chart, Chart::with).svg()
    }
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

/// Two senders through the driver. Checks that all of their packets arrived.
fn through_driver(
    name: &'static str,
    world: World,
    outcome: &mut Outcome,
    phases: Phases,
) -> Result<SharedLink> {
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
    let record = tap.stop(&front.world.server().ns)?;
    record.validate()?;
    let mut lost = 0;
    for (sender, number) in senders.into_iter().zip([1, 2]) {
        first_packet(sender)?;
        lost += missing_on_the_wire(&file, port(number))?;
    }
    let what = format!("{name}: packets that were sent and did not arrive");
    outcome.check(what, lost as f64, "packets", Bound::AtMost(0.0));
    Ok(SharedLink {
        name,
        record,
        alibi: stops.alibi(0.0),
        stops: stops.stops,
        lost: Some(lost),
    })
}

/// Two floods through the kernel's queue, with a limit by HTB if it is `limited`.
fn through_kernel(
    name: &'static str,
    world: World,
    limited: bool,
    phases: Phases,
) -> Result<SharedLink> {
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
    Ok(SharedLink {
        name,
        record,
        alibi: Alibi::default(),
        stops: Vec::new(),
        lost: None,
    })
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
    packets.into_iter().map(in_a_bin).collect()
}

/// The rates of packets in bins of 200 ms as a line; the first bin begins at `first` s.
fn rate_points(first: f64, packets: &[f64]) -> Vec<(f64, f64)> {
    let rates: Vec<f64> = packets.iter().map(|one| in_a_bin(*one)).collect();
    stats::middles(&rates, first, 0.2)
}

/// The rate of `packets` in a bin, in Mbit/s.
fn in_a_bin(packets: f64) -> f64 {
    super::megabits(packets, BIN as f64 / SECOND as f64)
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
/// The kernel's queue without a shaper, in labels.
const PLAIN_QUEUE: &str = "the kernel's plain queue's (cable of 100 Mbit/s)";
/// The width of a bin, in ns: two periods.
const BIN: u64 = 200 * MS;
/// How long before a period of a slice a bin begins, in ns: half of the time in each period for
/// which the link is idle in figure 5a. Nobody's packets leave then, since all senders of the
/// figure start within a few milliseconds.
const AHEAD: u64 = 8 * MS;
/// Time in seconds until both senders of figure 6 have started.
const SETTLE: f64 = 1.0;
