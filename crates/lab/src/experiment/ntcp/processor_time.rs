//! Repeats the experiments of the paper NTCP (section 4) with reservations of the link and of
//! processor time: programs that run their own TCP (tcp_send in the paper) beside carnage, which
//! uses all processor time that it gets.
//!
//! # The processors
//! netniced, netnice-driver and all programs of the sending host run on the first processor, and so
//! does the kernel's work for them. The other host is another machine in the paper: its receivers,
//! its kernel's TCP (receive packet steering) and the measurement run on the second processor.
//! Every experiment needs two.
//!
//! # The paper's processor
//! A Pentium of 200 MHz sent 53 Mbit/s. Here the library's TCP needs some percent of a processor
//! for 1 Gbit/s, so that the processor never limits a link of 100 Mbit/s. Therefore:
//! - in figure 6 and table 1 a sender uses processor time of its own for each full packet before it
//!   sends the packet, as if it made its data: [`WORK_FIGURE_6`], so that the whole processor
//!   carries the paper's 53 Mbit/s, and [`WORK_TABLE_1`], so that a tenth carries about 11 Mbit/s;
//! - figure 7 measures TCP alone, without such work, with the paper's slices on a link of 1 Gbit/s,
//!   which are rates of 110 Mbit/s and more.
//!
//! A full frame has 1500 bytes as in the paper, which is 120 us at 100 Mbit/s.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if the machine has one processor, if a step of the measurement fails, or if a
//! plot cannot be written.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::super::bench::{MBIT, netnice_only, pause};
use super::super::{Bound, Context, Outcome};
use super::testbed::{OneProcessor, SETTLE, Sender};
use crate::plot::{Chart, Series, palette};
use crate::processor_time::Meter;
use crate::stats::{Line, median};
use crate::sys;
use crate::traffic::RunningCarnage;
use crate::wire::{Tap, Transport, WireFlow};

/// Figure 6: a sender has a large slice of the link and 2 ms of the processor in 10 ms, both with
/// extra; carnage has 0 to 72 % of the processor in periods of 20 ms, without extra. The sender's
/// rate must fall in proportion to carnage's part (R² at least 0.98), and never below what 20 % of
/// the processor carries without extra, beside a carnage that has all the rest. Beside it, the same
/// sender without a reservation, beside 1 to 15 threads of carnage.
///
/// A kernel that admits less than the paper's 92 % of a processor ends the series earlier, but not
/// below 48 %: 90 % are usual from Linux 6.12 on, and the driver's own reservation counts too.
///
/// Fails as the module says.
pub fn figure6(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let (seconds, step) = if context.quick { (2.0, 24) } else { (5.0, 8) };
    outcome.paper = json!({
        "throughput beside a carnage without processor time, Mbit/s": 53,
        "seen": "throughput falls in proportion to carnage's part, up to 72 % of the processor",
    });
    note(outcome, "100 Mbit/s");
    note_figure6(outcome);
    let bed = OneProcessor::new("100mbit")?;
    let sender = bed.sender(0, "slice 5ms/10ms extra", WORK_FIGURE_6)?;
    let pid = sender.pid();

    bed.reserve(pid, "2ms/10ms")?;
    let carnage = bed.carnage(1, 0)?;
    bed.reserve(carnage.pid(), "1ms/20ms --cpu-extra")?;
    let least = bed.measure(&[pid], &carnage, seconds)?;
    context.say(format!("20 % of the processor without extra: {least}"));
    drop(carnage);
    let mut rows = vec![least.row(
        CASE,
        "sender 2 ms of 10 ms without extra, carnage all the rest",
    )];

    bed.reserve(pid, "2ms/10ms --cpu-extra")?;
    let mut reserved = Vec::new();
    let mut lowest = f64::MAX;
    for percent in (0..=72).step_by(step) {
        let carnage = bed.carnage(1, 0)?;
        let reservation = format!("{}us/20ms", percent * 200);
        if percent == 0 {
            // A carnage without any processor time: it is stopped.
            sys::kill(carnage.pid() as i32, libc::SIGSTOP)?;
        } else if let Some(refusal) = bed.try_to_reserve(carnage.pid(), &reservation)? {
            outcome.note(format!(
                "The series ends before {percent} %, which admission refuses: \"{refusal}\"."
            ));
            break;
        }
        let got = bed.measure(&[pid], &carnage, seconds)?;
        context.say(format!("carnage with {percent} %: {got}"));
        rows.push(got.row(CASE, format!("sender with extra, carnage {percent} %")));
        if percent > 0 {
            let what = format!("part of the processor of a carnage that has reserved {percent} %");
            let (aim, share) = (f64::from(percent), context.tolerance(0.03));
            outcome.check(what, got.carnage * 100.0, "%", Bound::Near { aim, share });
        }
        lowest = lowest.min(got.rate);
        reserved.push((f64::from(percent), got.rate / MBIT));
    }
    let most = reserved.last().map_or(0.0, |(percent, _)| *percent);
    let what = "largest part of the processor that admission grants carnage (paper: 72 %)";
    outcome.check(what, most, "%", Bound::AtLeast(48.0));
    let line = Line::through(&reserved);
    let what = "fit of a line through the sender's rate by carnage's part: R²";
    outcome.check(what, line.r_squared, "", Bound::AtLeast(0.98));
    let what = "least rate of the series, of what 20 % of the processor carries without extra";
    let part = lowest / least.rate * 100.0;
    outcome.check(what, part, "%", Bound::AtLeast(100.0));

    bed.clear(pid)?;
    let mut free = Vec::new();
    for threads in [1, 3, 15] {
        let got = bed.measure(&[pid], &bed.carnage(threads, 0)?, seconds)?;
        context.say(format!("{threads} threads, nothing reserved: {got}"));
        rows.push(got.row(
            CASE,
            format!("nothing reserved, carnage with {threads} threads"),
        ));
        free.push((got.carnage * 100.0, got.rate / MBIT));
    }
    outcome.ours("rates and processor time", rows);
    add_line(outcome, line);
    outcome.plot(context, "ntcp-fig6", || {
        draw_figure6(&reserved, &free, line, least.rate / MBIT)
    })
}

/// Adds the note that says what figure 6's sender does.
fn note_figure6(outcome: &mut Outcome) {
    outcome.note(format!(
        "Before each full packet the sender computes for {WORK_FIGURE_6} us, as if it made its \
         data, because TCP alone needs too little of today's processor for a link of 100 Mbit/s to \
         show it. The whole processor would permit 60 Mbit/s of such work; TCP and the driver \
         take their time from it too."
    ));
}

/// Adds the line through figure 6's points.
fn add_line(outcome: &mut Outcome, line: Line) {
    outcome.ours(
        "line through the rate by carnage's part",
        json!({
            "rate at 0 %, Mbit/s": line.at_zero,
            "slope, Mbit/s for each % of the processor": line.slope,
            "coefficient of determination R²": line.r_squared,
        }),
    );
}

/// Draws figure 6: points (carnage's percent, Mbit/s), the line through those with reservations,
/// and what 20 % of the processor carry in Mbit/s.
fn draw_figure6(reserved: &[(f64, f64)], free: &[(f64, f64)], line: Line, least: f64) -> String {
    let paper = vec![(0.0, 53.0), (72.0, 53.0 * 0.28)];
    let floor = format!("20 % of the processor without extra: {least:.1} Mbit/s");
    let end = reserved.last().map_or(0.0, |point| point.0);
    let fit = vec![(0.0, line.at(0.0)), (end, line.at(end))];
    Chart::new(
        "Throughput of a sender with 20 % and extra beside carnage, on one processor",
        "carnage's part of the processor, %",
        "rate on the wire, Mbit/s",
    )
    .with(
        Series::new(
            "the paper's 53 Mbit/s, less carnage's part",
            palette::GREY,
            paper,
        )
        .dashed(),
    )
    .with(Series::new(
        format!("line through the points, R² {:.4}", line.r_squared),
        palette::BLUE,
        fit,
    ))
    .with(
        Series::new(
            "sender with 20 % and extra",
            palette::BLUE,
            reserved.to_vec(),
        )
        .dots(),
    )
    .with(Series::new("nothing reserved", palette::ORANGE, free.to_vec()).dots())
    .level(least, floor)
    .levels_at_left()
    .x_range(0.0, 100.0)
    .y_range(0.0, 60.0)
    .svg()
}

/// Figure 7: for rates of 110 to 660 Mbit/s (at more, the driver needs the whole processor), the
/// least part of the processor that carries the slice of the link, found by bisection beside a
/// carnage that has all the rest (the median of three searches). It must rise linearly (R² at least
/// 0.99); the slope is the processor time for 1 Gbit/s. Beside it, what the sender gets of each
/// slice without a reservation beside 15 threads of carnage. Fails as the module says, and if no
/// part up to 60 % carries a slice.
pub fn figure7(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let (seconds, searches, steps): (f64, u32, &[u64]) = match context.quick {
        true => (1.0, 1, &[1, 3, 5]),
        false => (2.0, 3, &[1, 2, 3, 4, 5, 6]),
    };
    outcome.paper = json!([
        {"rate, Mbit/s": 5, "reservation that the sender needs, % of the processor": 5},
        {"rate, Mbit/s": 10, "reservation that the sender needs, % of the processor": 10},
    ]);
    note(outcome, "1 Gbit/s");
    note_figure7(outcome);
    let bed = OneProcessor::new("1gbit")?;
    let (mut needed, mut used, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (number, step) in (0..).zip(steps) {
        let micros = step * FIGURE_7_STEP;
        let wanted = micros as f64;
        let sender = bed.sender(number, &format!("slice {micros}us/1ms"), 0)?;
        let pid = sender.pid();
        let alone = bed.measure_alone(pid, seconds)?;
        context.say(format!("{wanted} Mbit/s alone: {alone}"));
        let carnage = bed.carnage(15, 0)?;
        let beside = bed.measure(&[pid], &carnage, seconds)?;
        context.say(format!("{wanted} Mbit/s, nothing reserved: {beside}"));
        drop(carnage);
        let carnage = bed.carnage(2, 0)?;
        bed.reserve(carnage.pid(), "1ms/20ms --cpu-extra")?;
        let search = Search {
            bed: &bed,
            pid,
            carnage: &carnage,
            wanted,
            seconds,
        };
        let parts = (0..searches).map(|_| search.least_part(alone.senders));
        let parts = parts.collect::<Result<Vec<f64>>>()?;
        context.say(format!("{wanted} Mbit/s: {parts:.4?} of the processor"));
        let part = median(&parts);
        rows.push(json!({
            "slice of the link, Mbit/s": wanted,
            "least reservation of the sender, % of the processor": part * 100.0,
            "without carnage: rate, Mbit/s": alone.rate / MBIT,
            "sender, %": alone.senders * 100.0,
            "driver, %": alone.driver * 100.0,
            "nothing reserved, 15 threads of carnage: rate, Mbit/s": beside.rate / MBIT,
            "sender beside them, %": beside.senders * 100.0,
            "driver beside them, %": beside.driver * 100.0,
            "carnage, %": beside.carnage * 100.0,
        }));
        let enough = alone.rate / MBIT / wanted * 100.0;
        let what = format!("slice of {wanted} Mbit/s: rate without carnage, of the slice");
        outcome.check(what, enough, "%", Bound::AtLeast(99.0));
        needed.push((wanted, part * 100.0));
        used.push((wanted, alone.senders * 100.0));
    }
    let line = Line::through(&needed);
    outcome.ours("rates and processor time", rows);
    outcome.ours(
        "line through the least reservation by the rate",
        json!({
            "reservation at 0 Mbit/s, % of the processor": line.at_zero,
            "slope, % of the processor for each Mbit/s": line.slope,
            "slope, processors for 1 Gbit/s": line.slope * 10.0,
            "coefficient of determination R²": line.r_squared,
        }),
    );
    let what = "fit of a line through the least reservation by the rate: R²";
    outcome.check(what, line.r_squared, "", Bound::AtLeast(0.99));
    outcome.plot(context, "ntcp-fig7", || draw_figure7(needed, used, line))
}

/// Adds the notes that say what figure 7 compares.
fn note_figure7(outcome: &mut Outcome) {
    outcome.note(
        "The least reservation is the sender's alone. The driver's processor time is not in it: \
         the driver has a reservation of its own, and its part is in the table of values.",
    );
    outcome.note(
        "The least reservation can be below the sender's use without carnage. Supposed, not shown: \
         without carnage the sender runs whenever it has something to do, for a few packets each \
         time; with a small reservation it runs once in 10 ms and makes many packets at once, \
         which costs less for each. Without a reservation the kernel gives the sender up to a \
         sixteenth of the time that the driver leaves, which is enough for the lower rates.",
    );
}

/// Draws figure 7: points (Mbit/s, percent of the processor), and the line through `needed`.
fn draw_figure7(needed: Vec<(f64, f64)>, used: Vec<(f64, f64)>, line: Line) -> String {
    let end = needed.last().map_or(0.0, |point| point.0);
    let fit = vec![(0.0, line.at(0.0)), (end, line.at(end))];
    let slope = format!(
        "line through it: {:.3} processors for 1 Gbit/s, R² {:.4}",
        line.slope * 10.0,
        line.r_squared
    );
    let highest = needed.iter().chain(&used).map(|point| point.1);
    let highest = highest.fold(1.0, f64::max);
    Chart::new(
        "Processor time that a TCP sender needs for a rate, beside carnage",
        "rate, Mbit/s",
        "part of the processor, %",
    )
    .with(Series::new(slope, palette::BLUE, fit))
    .with(Series::new("least reservation of the sender", palette::BLUE, needed).dots())
    .with(Series::new("the sender's use without carnage", palette::GREEN, used).dots())
    .x_range(0.0, end * 1.05)
    .y_range(0.0, highest * 1.2)
    .svg()
}

/// Table 1: three senders with slices of link and processor, and a carnage with extra and the nice
/// value -20. Each sender's goodput must be at least its aim, and its rate on the wire within 1 %
/// (3 % in the quick form) of what its slice allows. Beside it, the same with the link's slices
/// alone.
///
/// The slices of the link are the paper's parts in twice the paper's periods. Admission refuses
/// those of 1 ms at 100 Mbit/s: a packet waits up to 0.38 ms for packets of the kernel path and the
/// one on the wire, and each slice may be overdrawn by a packet of 0.12 ms.
///
/// Fails as the module says.
pub fn table1(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let seconds = if context.quick { 3.0 } else { 15.0 };
    let paper = TABLE_1.iter().map(|row| {
        json!({
            "sender": row.name,
            "aim, Mbit/s": row.aim,
            "link": row.papers_link,
            "processor": row.processor,
            "throughput, Mbit/s": row.papers_throughput,
        })
    });
    outcome.paper = paper.collect();
    note(outcome, "100 Mbit/s");
    outcome.note(format!(
        "The slices of the link are the paper's parts in twice its periods, because admission \
         refuses those of 1 ms at 100 Mbit/s. Before each full packet a sender computes for \
         {WORK_TABLE_1} us, as if it made its data, so that a tenth of the processor carries about \
         11 Mbit/s. \"Link alone\" is the same without the processor's reservations: the kernel \
         shares the processor between the senders and carnage, which has the nice value -20."
    ));
    let bed = OneProcessor::new("100mbit")?;
    let mut senders = Vec::new();
    for (number, row) in (0..).zip(&TABLE_1) {
        let sender = bed.sender(number, &format!("slice {}", row.link), WORK_TABLE_1)?;
        bed.reserve(sender.pid(), row.processor)?;
        senders.push(sender);
    }
    let carnage = bed.carnage(2, -20)?;
    bed.reserve(carnage.pid(), "1ms/20ms --cpu-extra")?;
    let mut tables = vec![bed.table(&senders, &carnage, seconds)?];
    for pid in senders.iter().map(Sender::pid).chain([carnage.pid()]) {
        bed.clear(pid)?;
    }
    tables.push(bed.table(&senders, &carnage, seconds)?);
    add_goodput(&mut tables, senders)?;
    let [reserved, free] = [&tables[0], &tables[1]];
    for (row, got) in TABLE_1.iter().zip(&reserved.rows) {
        let name = row.name;
        context.say(format!("{name}: {got:?}"));
        let what = format!("{name}: goodput, compared with its aim");
        outcome.check(what, got.goodput, "Mbit/s", Bound::AtLeast(row.aim));
        let (aim, share) = (row.allowed, context.tolerance(0.01));
        let what = format!("{name}: rate on the wire, compared with what its slice allows");
        outcome.check(what, got.wire, "Mbit/s", Bound::Near { aim, share });
    }
    context.say(format!("slices of the link alone: {free:?}"));
    add_rows(outcome, reserved, free);
    outcome.plot(context, "ntcp-tab1", || draw_table1(reserved, free))
}

/// Adds what the senders of table 1 got with both reservations, and with the link's alone.
fn add_rows(outcome: &mut Outcome, reserved: &Table, free: &Table) {
    let rows = TABLE_1.iter().zip(reserved.rows.iter().zip(&free.rows));
    let rows = rows.map(|(row, (got, free))| {
        json!({
            "sender": row.name,
            "aim, goodput, Mbit/s": row.aim,
            "paper's throughput, Mbit/s": row.papers_throughput,
            "link (slice/period)": row.link,
            "processor (slice/period)": row.processor,
            "goodput, Mbit/s": got.goodput,
            "on the wire, Mbit/s": got.wire,
            "slice allows on the wire, Mbit/s": row.allowed,
            "used of the processor, %": got.processor * 100.0,
            "link alone: goodput, Mbit/s": free.goodput,
            "link alone: used of the processor, %": free.processor * 100.0,
        })
    });
    outcome.ours("senders", rows.collect::<Vec<_>>());
    outcome.ours(
        "carnage's part of the processor, %",
        json!({
            "beside link and processor reserved": reserved.carnage * 100.0,
            "beside the link alone": free.carnage * 100.0,
        }),
    );
}

/// Draws the goodput of the senders of table 1.
fn draw_table1(reserved: &Table, free: &Table) -> String {
    let numbered = |values: Vec<f64>| (1..).map(f64::from).zip(values).collect::<Vec<_>>();
    let points = |table: &Table| numbered(table.rows.iter().map(|row| row.goodput).collect());
    let of = |value: fn(&Row) -> f64| numbered(TABLE_1.iter().map(value).collect());
    let chart = Chart::new(
        "Three TCP senders with slices of link and processor, beside carnage",
        "sender",
        "goodput, Mbit/s",
    )
    .with(Series::new("aim", palette::INK, of(|row| row.aim)).dots())
    .with(Series::new("paper", palette::GREY, of(|row| row.papers_throughput)).dots())
    .with(
        Series::new(
            "link and processor reserved",
            palette::BLUE,
            points(reserved),
        )
        .dots(),
    )
    .with(
        Series::new(
            "link alone (processor not reserved)",
            palette::ORANGE,
            points(free),
        )
        .dots(),
    )
    .x_range(0.5, 3.5)
    .y_range(0.0, 13.0);
    let names = (1..).zip(&TABLE_1);
    let name = |chart: Chart, (place, row): (i32, &Row)| chart.x_name(f64::from(place), row.name);
    names.fold(chart, name).svg()
}

/// Adds the note that says what was measured.
fn note(outcome: &mut Outcome, rate: &str) {
    outcome.note(format!(
        "netniced, netnice-driver, the senders (the library's TCP, CUBIC) and carnage run on one \
         processor, the receiving host on the other one. The link has {rate}. A full packet is a \
         frame of 1500 bytes with its Ethernet header."
    ));
}

/// A row of table 1.
struct Row {
    name: &'static str,
    /// The slice of the link, and the paper's.
    link: &'static str,
    papers_link: &'static str,
    /// The slice of the processor.
    processor: &'static str,
    /// The goodput that the paper aims at, and what it saw, in Mbit/s.
    aim: f64,
    papers_throughput: f64,
    /// What the slice allows on the wire, in Mbit/s.
    allowed: f64,
}

const TABLE_1: [Row; 3] = [
    Row {
        name: "s1",
        link: "220us/2ms",
        papers_link: "110us/1ms",
        processor: "1ms/10ms",
        aim: 10.0,
        papers_throughput: 10.1,
        allowed: 11.0,
    },
    Row {
        name: "s2",
        link: "440us/4ms",
        papers_link: "220us/2ms",
        processor: "2ms/20ms",
        aim: 10.0,
        papers_throughput: 10.1,
        allowed: 11.0,
    },
    Row {
        name: "s3",
        link: "220us/4ms",
        papers_link: "110us/2ms",
        processor: "1ms/20ms",
        aim: 5.0,
        papers_throughput: 5.1,
        allowed: 5.5,
    },
];

/// What the senders of table 1 got.
#[derive(Debug)]
struct Table {
    /// Begin and end of the measurement (wall clock, ns).
    span: (u64, u64),
    rows: Vec<RowMeasured>,
    /// Carnage's part of the processor.
    carnage: f64,
}

/// What one sender of table 1 got: rates in Mbit/s, and its part of the processor.
#[derive(Debug)]
struct RowMeasured {
    goodput: f64,
    wire: f64,
    processor: f64,
}

/// Ends the senders and their receivers, and adds what these received to the tables.
fn add_goodput(tables: &mut [Table], senders: Vec<Sender>) -> Result<()> {
    for (number, sender) in senders.into_iter().enumerate() {
        let sent = sender.running.stop()?;
        ensure!(sent.refused.is_empty(), "{:?}", sent.refused);
        let received = sender.sink.stop()?.received_payload();
        for table in &mut *tables {
            let rate = received.rate(table.span.0, table.span.1);
            table.rows[number].goodput = rate.context("the receiver's samples")? / MBIT;
        }
    }
    Ok(())
}

/// The search for the least part of the processor that carries a rate.
struct Search<'a> {
    bed: &'a OneProcessor,
    pid: u32,
    carnage: &'a RunningCarnage,
    /// In Mbit/s.
    wanted: f64,
    seconds: f64,
}

impl Search<'_> {
    /// Bisects between no and twice the part that the sender `used` alone (more if that does not
    /// carry the rate), to 2 % of the result.
    fn least_part(&self, used: f64) -> Result<f64> {
        let mut enough = (used * 2.0).clamp(0.01, MOST_PART);
        let mut too_little = 0.0;
        while !self.carries(enough)? {
            ensure!(
                enough < MOST_PART,
                "{MOST_PART} of the processor do not carry {} Mbit/s",
                self.wanted
            );
            too_little = enough;
            enough = (enough * 2.0).min(MOST_PART);
        }
        while enough - too_little > enough * 0.02 {
            let middle = f64::midpoint(too_little, enough);
            match self.carries(middle)? {
                true => enough = middle,
                false => too_little = middle,
            }
        }
        Ok(enough)
    }

    /// Whether this part of the processor carries 99 % of the slice, in the second of two tries at
    /// the latest: the machine may stand still in one.
    fn carries(&self, part: f64) -> Result<bool> {
        let nanos = (part * PERIOD_NS) as u64;
        self.bed.reserve(self.pid, &format!("{nanos}ns/10ms"))?;
        let carries = || {
            let got = self.bed.measure(&[self.pid], self.carnage, self.seconds)?;
            anyhow::Ok(got.rate / MBIT >= 0.99 * self.wanted)
        };
        Ok(carries()? || carries()?)
    }
}

impl OneProcessor {
    /// Measures each sender of table 1 for some seconds, after the rates have settled.
    fn table(&self, senders: &[Sender], carnage: &RunningCarnage, seconds: f64) -> Result<Table> {
        pause(SETTLE);
        let mut sets: Vec<Vec<u32>> = senders.iter().map(|one| vec![one.pid()]).collect();
        sets.push(carnage.pids());
        let server = self.world.server();
        let tap = Tap::start(&server.ns, &server.port().device)?;
        let meter = Meter::start(sets, Duration::from_millis(100))?;
        let from = sys::now_ns();
        pause(seconds);
        let until = sys::now_ns();
        let usages = meter.stop()?;
        let record = tap.stop(&server.ns)?;
        record.validate()?;
        let rows = senders.iter().zip(&usages).map(|(sender, usage)| {
            let port = sender.port;
            let of = move |flow: &WireFlow| {
                flow.inbound && flow.transport == Transport::Tcp && flow.source.1 == port
            };
            RowMeasured {
                goodput: 0.0,
                wire: record.rate(of, from, until) / MBIT,
                processor: usage.share(),
            }
        });
        Ok(Table {
            span: (from, until),
            rows: rows.collect(),
            carnage: usages[senders.len()].share(),
        })
    }
}

/// The first column of figure 6's table.
const CASE: &str = "case";
/// Processor time of a sender for each full packet in figure 6, in us.
const WORK_FIGURE_6: u64 = 200;
/// The same in table 1.
const WORK_TABLE_1: u64 = 90;
/// The slice of the first rate of figure 7 in 1 ms, in us; at 1 Gbit/s also its rate in Mbit/s.
const FIGURE_7_STEP: u64 = 110;
/// The period of a sender's reservation of the processor, in ns.
const PERIOD_NS: f64 = 1e7;
/// The largest part of the processor that the search of figure 7 tries.
const MOST_PART: f64 = 0.6;
