//! Measures figures 5 and 6 of the paper CELL: the cost of sending a cell, in cycles of the time
//! stamp counter (in ns on a machine without one); for figure 6 also the cost of shaping alone.
//!
//! The real scheduler runs in virtual time, with the work of the paper's network adapter for each
//! cell. What is counted for a cell: the scheduler selects a connection whose cell is due, shapes
//! it and queues it again, the adapter counts the cell in the connection's buffer, and issues a
//! transfer command if the next PDU is needed; the virtual clock advances if no cell is due. No
//! data is moved. Connections send PDUs (messages) of 105 cells, and the next PDU is needed when
//! half of the connection's present PDU is sent. Cells are measured in bins of [`BIN`] cells. The
//! work is the same in every run, so the least of several runs (one in the quick form) is the cost
//! of a bin without other load on the machine.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the measurement fails, or if a plot cannot be written.

#[path = "../../../../core/benches/scheduler/clock.rs"]
mod clock;

use std::hint::black_box;
use std::time::Instant as Clock;

use anyhow::Result;
use netnice_core::contract::{self, Bucket, Sustained};
use netnice_core::sched::{Pacer, Packet, Scheduler, Service, Wire};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};
use netnice_sim::Random;
use serde_json::{Value, json};

use clock::cycles_per_nano;

use super::CELL;
use crate::experiment::simulated::netnice_only;
use crate::experiment::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};

/// Figure 5: 65,536 connections of the same contract start in one instant and send five PDUs of
/// 5,000 bytes each (one in the quick form); once with 99 % and once with 150 % of the link booked.
/// The paper bounds the median (600 cycles per cell) and the worst quarter of a round (650). This
/// project adds that all cells must be sent, that the worst round is at most 1.2 times the median,
/// and that the median at 150 % is at most 1.1 times that at 99 % (3.0 and 2.0 in the quick form).
/// Fails if the subject is not netnice, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure5(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    let (pdus, runs) = if context.quick { (1, 1) } else { (PDUS, 7) };
    let clock = Cycles::calibrate();
    outcome.paper = json!({
        "most cells, cycles per cell": 600, "at worst, cycles per cell": 650,
        "most cells, us per cell": 3,
        "overload": "a higher delay for cells, no more cycles, and no cell is dropped",
        "machine": "Pentium Pro of 200 MHz",
        "booked, Mbit/s of 622": 616,
    });
    clock.show(outcome);
    let mut bookings = Vec::new();
    for percent in [99, 150] {
        context.say(format!(
            "65,536 connections, booked {percent} %, {runs} runs"
        ));
        bookings.push(Booking::measure(&clock, percent, pdus, runs));
    }
    let rows: Vec<Value> = bookings.iter().map(|one| one.row(&clock)).collect();
    outcome.ours("bookings", rows);
    for one in &bookings {
        one.check(context, outcome, &clock);
    }
    let same = Bound::AtMost(if context.quick { 2.0 } else { 1.1 });
    let what = "median at 150 %, divided by the median at 99 %";
    let ratio = bookings[1].median() / bookings[0].median();
    outcome.check(what, ratio, "", same);
    outcome.note(format!(
        "a round is one cell of each connection; of each quarter of it the least of {runs} runs is \
         taken, so that other work of the machine does not count; the greatest quarter of a single \
         run is in the table, and not judged"
    ));
    outcome.note(
        "a cell takes 682 ns of a link of 622 Mbit/s; the cycles are those of the time stamp \
         counter, whose rate is in the table",
    );
    for one in &bookings {
        let name = format!("cell-fig5-{}", one.percent);
        outcome.plot(context, &name, || one.chart(&clock))?;
    }
    Ok(())
}

/// The runs of figure 5 with a part of the link booked.
struct Booking {
    /// The booked part of the link.
    percent: u64,
    pdus: u32,
    /// Cost of each quarter of a round: the least of all runs.
    quarters: Vec<f64>,
    /// The greatest of all runs.
    greatest: Vec<f64>,
    /// Time of the last cell on the link, in ns.
    end: u64,
    /// Cells that were sent, in the run with the fewest.
    sent: u64,
}

impl Booking {
    fn measure(clock: &Cycles, percent: u64, pdus: u32, runs: u32) -> Booking {
        let (mut quarters, mut greatest) = (Vec::new(), Vec::new());
        let (mut end, mut sent) = (0, u64::MAX);
        for _ in 0..runs {
            let mut adapter = Adapter::started(CONNECTIONS, percent, pdus);
            let run = clock.bins(|| adapter.cell());
            fold_bins(&mut greatest, &run, f64::max);
            fold_bins(&mut quarters, &run, f64::min);
            (end, sent) = (adapter.now.0, sent.min(adapter.sent));
        }
        Booking {
            percent,
            pdus,
            quarters,
            greatest,
            end,
            sent,
        }
    }

    /// The cost of each round. All connections become due together, so the first quarter of a round
    /// also sorts the rest.
    fn rounds(&self) -> Vec<f64> {
        let rounds = self.quarters.chunks(CONNECTIONS as usize / BIN);
        rounds
            .map(|round| round.iter().sum::<f64>() / round.len() as f64)
            .collect()
    }

    fn median(&self) -> f64 {
        quantile(&self.rounds(), 0.5)
    }

    fn cells(&self) -> f64 {
        f64::from(CONNECTIONS) * f64::from(self.pdus * PDU)
    }

    /// The time in s at which a connection that is never delayed sends its last cell.
    fn last_by_contract(&self) -> f64 {
        let cells = f64::from(self.pdus * PDU - 1);
        cells * (CELL * 8) as f64 / Adapter::peak_rate(CONNECTIONS, self.percent) as f64
    }

    fn row(&self, clock: &Cycles) -> Value {
        let rounds = self.rounds();
        let key = |what: &str| format!("{what}, {}", clock.per_cell);
        let last = self.end as f64 / 1e9;
        json!({
            "booked, % of the link": self.percent,
            "sent, cells": self.sent,
            "median of the rounds, ns per cell": self.median() / clock.per_nano,
            key("median of the rounds"): self.median(),
            key("99th percentile of the rounds"): quantile(&rounds, 0.99),
            key("worst round"): quantile(&rounds, 1.0),
            key("worst quarter of a round"): quantile(&self.quarters, 1.0),
            key("worst quarter of a single run"): quantile(&self.greatest, 1.0),
            "last cell leaves after, s": last,
            "by the contracts after, s": self.last_by_contract(),
            "delay of the last cell, s": last - self.last_by_contract(),
        })
    }

    fn check(&self, context: &Context, outcome: &mut Outcome, clock: &Cycles) {
        let name = format!("booked {} %", self.percent);
        let (median, worst) = (self.median(), quantile(&self.rounds(), 1.0));
        let what = format!("{name}: median of the rounds (paper: about 600)");
        outcome.check(what, median, clock.per_cell, Bound::AtMost(600.0));
        let part = quantile(&self.quarters, 1.0);
        let what = format!("{name}: worst quarter of a round (paper: about 650)");
        outcome.check(what, part, clock.per_cell, Bound::AtMost(650.0));
        let most = Bound::AtMost(if context.quick { 3.0 } else { WORST_ROUND });
        let what = format!("{name}: worst round, divided by the median of the rounds");
        outcome.check(what, worst / median, "", most);
        let what = format!("{name}: cells sent, of all ({})", self.cells());
        let percent = self.sent as f64 / self.cells() * 100.0;
        outcome.check(what, percent, "%", Bound::AtLeast(100.0));
    }

    /// One dot for each round, with the bound of the worst.
    fn chart(&self, clock: &Cycles) -> String {
        let rounds = self.rounds();
        let (median, bound) = (self.median(), self.median() * WORST_ROUND);
        let title = format!(
            "65,536 connections start in one instant, {} % of the link booked",
            self.percent
        );
        let millions = f64::from(CONNECTIONS) / 1e6;
        let places = (1..).map(|round| f64::from(round) * millions);
        let all: Vec<(f64, f64)> = places.zip(rounds.iter().copied()).collect();
        let (above, within): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.1 > bound);
        let y = format!("one dot a round, {}", clock.per_cell);
        let chart = Chart::new(title, "cells sent, millions", y)
            .x_range(0.0, rounds.len() as f64 * millions)
            .y_range(
                (quantile(&rounds, 0.0) * 0.95).floor(),
                (quantile(&rounds, 1.0).max(bound) * 1.05).ceil(),
            )
            .level(
                bound,
                format!("{:.1} × the median: the bound of a round", bound / median),
            )
            .level(median, "median (the paper: about 600 cycles)");
        let chart = chart.with(Series::new("a round", palette::BLUE, within).dots());
        let beyond = Series::new("a round above the bound", palette::RED, above);
        chart.with(beyond.dots()).svg()
    }
}

/// Figure 6: cycles per cell with 1 to 1,048,576 connections (65,536 in the quick form). The
/// paper's text gives values for 1, 100, 1,000 and 65,536, and for shaping alone; these are the
/// bounds. Fails if the subject is not netnice, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure6(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    let (bins, runs) = if context.quick { (8, 1) } else { (64, 5) };
    let clock = Cycles::calibrate();
    outcome.paper = json!({
        "1 connection, cycles per cell": "160", "100 connections, cycles per cell": "< 300",
        "1000 connections, cycles per cell": "< 350",
        "65536 connections, cycles per cell": "about 600",
        "shaping alone, cycles per cell": "< 85", "machine": "Pentium Pro of 200 MHz",
    });
    clock.show(outcome);
    let papers = [
        (1, "160", 160.0),
        (100, "< 300", 300.0),
        (1_000, "< 350", 350.0),
        (CONNECTIONS, "about 600", 600.0),
        (1 << 20, "no value", f64::NAN),
    ];
    let (mut drawn, mut rows) = (Vec::new(), Vec::new());
    for (connections, paper, most) in papers {
        if context.quick && connections > CONNECTIONS {
            continue;
        }
        context.say(format!("{connections} connections"));
        let name = match connections {
            1 => "1 connection".to_string(),
            more => format!("{more} connections"),
        };
        let [same, random] = [true, false].map(|same| {
            let (cells, shaping) = measure_endless(&clock, connections, same, (bins, runs));
            let (cell, shape) = (quantile(&cells, 0.5), quantile(&shaping, 0.5));
            if same && connections == 1_000 {
                drawn = cells;
            }
            if most.is_finite() {
                let kind = if same { "same" } else { "random" };
                let what = format!("{name}, {kind} contracts (paper: {paper})");
                outcome.check(what, cell, clock.per_cell, Bound::AtMost(most));
            }
            if most.is_finite() && same {
                let what = format!("{name}, shaping alone with its queue (paper: < 85)");
                outcome.check(what, shape, clock.per_cell, Bound::AtMost(85.0));
            }
            (cell, shape)
        });
        let key = |what: &str| format!("{what}, {}", clock.per_cell);
        rows.push(json!({
            "connections": connections, "paper, cycles per cell": paper,
            key("same contracts"): same.0, key("random contracts"): random.0,
            key("same contracts, shaping alone"): same.1,
            key("random contracts, shaping alone"): random.1,
            "same contracts, ns per cell": same.0 / clock.per_nano,
        }));
    }
    outcome.ours("connections", rows);
    outcome
        .note("shaping alone is the paper's shaper and the queue around it: take, shape, put back");
    outcome.note(format!(
        "a bin is {BIN} cells; of each the least of {runs} runs is taken, and of these the median"
    ));
    outcome.plot(context, "cell-fig6", || {
        let title = "Cost of a cell with 1,000 connections of the same contract";
        let y = format!("mean of {BIN} cells, {}", clock.per_cell);
        let chart = Chart::new(title, "cells sent, millions", y).y_range(0.0, 400.0);
        let points = drawn.iter().enumerate();
        let points = points.map(|(at, cost)| (at as f64 * BIN as f64 / 1e6, *cost));
        let line = Series::new("netnice", palette::BLUE, points.collect());
        chart.level(350.0, "paper: < 350 cycles").with(line).svg()
    })
}

/// Costs of endless connections in bins, each the least of all runs: of the whole work, and of
/// shaping alone. The last argument has the number of bins and of runs.
fn measure_endless(
    clock: &Cycles,
    connections: u32,
    same: bool,
    (bins, runs): (usize, u32),
) -> (Vec<f64>, Vec<f64>) {
    let (mut cells, mut shaping) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let mut adapter = Adapter::endless(connections, same);
        clock.warm_up(connections, || adapter.cell());
        let run = clock.some_bins(bins, || adapter.cell());
        fold_bins(&mut cells, &run, f64::min);
        let mut pacer = Shaping::new(connections, same);
        clock.warm_up(connections, || pacer.cell());
        let run = clock.some_bins(bins, || pacer.cell());
        fold_bins(&mut shaping, &run, f64::min);
    }
    (cells, shaping)
}

/// The adapter of the paper: a scheduler, and the buffer state of each connection.
struct Adapter {
    link: Scheduler,
    connections: Vec<Connection>,
    /// The last transfer commands: connection and number of cells.
    commands: Vec<(u32, u32)>,
    issued: usize,
    now: Instant,
    sent: u64,
}

struct Connection {
    /// Cells in the buffer or in transfer.
    here: u32,
    /// Cells that were not requested yet.
    there: u32,
}

impl Adapter {
    /// Connections of one contract that each send `pdus` PDUs from instant 0 on. Together they book
    /// `percent` of the link.
    fn started(connections: u32, percent: u64, pdus: u32) -> Adapter {
        let pcr = Adapter::peak_rate(connections, percent);
        let contracts = (0..connections).map(|_| constant(pcr));
        Adapter::new(LINK, contracts, pdus * PDU)
    }

    /// The rate of each connection in bit/s, if together they book `percent` of the link.
    fn peak_rate(connections: u32, percent: u64) -> u64 {
        BOOKED * percent / 99 / u64::from(connections)
    }

    /// Connections without an end, with the same or with random dual buckets. The link is as fast
    /// as [`share`] says, so that they use 90 % of it (with random buckets on average).
    fn endless(connections: u32, same: bool) -> Adapter {
        let (each, link) = share(connections);
        Adapter::new(link, contracts(connections, each, same), u32::MAX)
    }

    fn new(link: u64, contracts: impl Iterator<Item = contract::Cell>, cells: u32) -> Adapter {
        let wire = Wire {
            longest: Bytes(CELL),
            ..Wire::new(rate(link))
        };
        let mut link = Scheduler::new(wire).expect("a link");
        let mut connections = Vec::new();
        for contract in contracts {
            let flow = link
                .insert(Service::Cell(contract), Instant(0))
                .expect("room");
            link.handle_head(flow, Packet::new(Bytes(CELL)), Instant(0))
                .expect("a cell");
            let here = cells.min(PDU);
            let there = cells - here;
            connections.push(Connection { here, there });
        }
        Adapter {
            link,
            connections,
            commands: vec![(0, 0); COMMANDS],
            issued: 0,
            now: Instant(0),
            sent: 0,
        }
    }

    /// Sends the next cell; `false` if there is none left.
    fn cell(&mut self) -> bool {
        loop {
            let (connections, commands, issued) =
                (&mut self.connections, &mut self.commands, &mut self.issued);
            let sent = self.link.poll(self.now, |flow| {
                let one = &mut connections[flow.index()];
                one.here -= 1;
                if one.here == PDU / 2 && one.there > 0 {
                    let cells = one.there.min(PDU);
                    one.there -= cells;
                    one.here += cells;
                    commands[*issued % COMMANDS] = (flow.index() as u32, cells);
                    *issued += 1;
                }
                (one.here > 0).then_some(Packet::new(Bytes(CELL)))
            });
            if black_box(sent).is_some() {
                self.sent += 1;
                return true;
            }
            match self.link.poll_timeout() {
                Some(at) => self.now = at,
                None => return false,
            }
        }
    }
}

/// The shaper and its queue alone.
struct Shaping {
    pacer: Pacer,
    now: Instant,
}

impl Shaping {
    fn new(connections: u32, same: bool) -> Shaping {
        let (each, _) = share(connections);
        let mut pacer = Pacer::new();
        for contract in contracts(connections, each, same) {
            let flow = pacer.insert(contract).expect("room");
            pacer
                .handle_head(flow, Bytes(CELL), Instant(0))
                .expect("a cell");
        }
        let now = Instant(0);
        Shaping { pacer, now }
    }

    fn cell(&mut self) -> bool {
        loop {
            if black_box(self.pacer.poll(self.now, |_| Some(Bytes(CELL)))).is_some() {
                return true;
            }
            let Some(at) = self.pacer.poll_timeout() else {
                return false;
            };
            self.now = at;
        }
    }
}

/// The mean rate of each connection, and the rate of a link of which these connections use 90 %, in
/// bit/s.
fn share(connections: u32) -> (u64, u64) {
    // The lowest random rate is half of this.
    let each = (BOOKED / u64::from(connections)).max(4_000);
    (each, (each * u64::from(connections) * 10 / 9).max(LINK))
}

/// Dual buckets with the sustained rate `each`, either all the same or random around it.
fn contracts(connections: u32, each: u64, same: bool) -> impl Iterator<Item = contract::Cell> {
    let mut random = Random::new(6);
    (0..connections).map(move |_| {
        let (percent, times, cells) = match same {
            true => (100, 4, 10),
            false => (
                random.within(50..=150),
                random.within(2..=9),
                random.within(2..=31),
            ),
        };
        let scr = rate(each * percent / 100);
        let bucket = Sustained {
            scr,
            mbs: Bytes(cells * CELL),
            bucket: Bucket::Dual,
        };
        let pcr = rate((scr.bits_per_second() * times).min(LINK.max(scr.bits_per_second())));
        contract::Cell::new(pcr, Nanos::from_millis(2), Some(bucket)).expect("a cell contract")
    })
}

fn constant(pcr: u64) -> contract::Cell {
    contract::Cell::new(rate(pcr), Nanos::from_millis(50), None).expect("a cell contract")
}

fn rate(bits: u64) -> Rate {
    Rate::new(bits).expect("a rate")
}

/// The clock's unit: cycles of the time stamp counter if available, else nanoseconds.
struct Cycles {
    /// Units in a nanosecond.
    per_nano: f64,
    /// The unit of the cost of a cell.
    per_cell: &'static str,
}

impl Cycles {
    fn calibrate() -> Cycles {
        match cycles_per_nano() {
            Some(per_nano) => Cycles {
                per_nano,
                per_cell: "cycles per cell",
            },
            None => Cycles {
                per_nano: 1.0,
                per_cell: "ns per cell",
            },
        }
    }

    /// Shows the rate of the clock.
    fn show(&self, outcome: &mut Outcome) {
        let clock = match self.per_cell {
            "cycles per cell" => json!({"time stamp counter, MHz": self.per_nano * 1e3}),
            _ => json!("no time stamp counter: costs are in ns"),
        };
        outcome.ours("clock", clock);
    }

    /// Cost per cell of each bin, until no cell is left.
    fn bins(&self, cell: impl FnMut() -> bool) -> Vec<f64> {
        self.some_bins(usize::MAX, cell)
    }

    fn some_bins(&self, most: usize, mut cell: impl FnMut() -> bool) -> Vec<f64> {
        let mut bins = Vec::new();
        while bins.len() < most {
            let start = Clock::now();
            let sent = (0..BIN).take_while(|_| cell()).count();
            let nanos = start.elapsed().as_nanos() as f64;
            if sent < BIN {
                break;
            }
            bins.push(nanos * self.per_nano / BIN as f64);
        }
        bins
    }

    /// Sends three cells for each connection without a measurement.
    fn warm_up(&self, connections: u32, mut cell: impl FnMut() -> bool) {
        for _ in 0..3 * connections {
            cell();
        }
    }
}

/// Keeps of each bin what `choose` takes: the least or the greatest.
fn fold_bins(bins: &mut Vec<f64>, run: &[f64], choose: fn(f64, f64) -> f64) {
    match bins.is_empty() {
        true => *bins = run.to_vec(),
        false => bins
            .iter_mut()
            .zip(run)
            .for_each(|(a, b)| *a = choose(*a, *b)),
    }
}

fn quantile(bins: &[f64], part: f64) -> f64 {
    let mut sorted = bins.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len().saturating_sub(1)) as f64 * part;
    sorted.get(at as usize).copied().unwrap_or(f64::NAN)
}

/// Connections of figure 5; the paper has more than 64,000.
const CONNECTIONS: u32 = 65_536;

/// Cells of a PDU of 5,000 bytes in AAL5.
const PDU: u32 = 105;

/// PDUs of each connection in figure 5: together 25,000 bytes.
const PDUS: u32 = 5;

/// The rate of the paper's link, and the booked rate, in bit/s.
const LINK: u64 = 622_080_000;
const BOOKED: u64 = 616_000_000;

/// The greatest cost of a round, in medians of all rounds.
const WORST_ROUND: f64 = 1.2;

/// Cells in a bin.
const BIN: usize = 16_384;

/// Commands that the adapter's queue holds.
const COMMANDS: usize = 4_096;
