//! Measures figures 5 and 6 of the paper CELL: the cost of sending a cell, in cycles of the time
//! stamp counter (in ns on a machine without one); for figure 6 also the cost of shaping alone.
//!
//! The real scheduler runs in virtual time, with the work of the paper's network adapter for each
//! cell. Connections send PDUs (messages) of 105 cells. The adapter counts the cells of each
//! connection in its buffer, and issues a transfer command for the next PDU when half of the
//! connection's present PDU is sent. Cells are measured in bins of [`BIN`] cells. The work is the
//! same in every run, so the least of several runs (one in the quick form) is the cost of a bin
//! without other load on the machine.
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
use serde_json::json;

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
        "cycles per cell": "about 600, at worst 650", "overload": "adds delay, not cycles",
        "on": "Pentium Pro, 200 MHz, and 616 Mbit/s of 622",
    });
    outcome.ours("unit", clock.unit);
    let mut lines = Vec::new();
    let mut medians = Vec::new();
    for (name, percent, colour) in [
        ("booked 99 %", 99, palette::BLUE),
        ("booked 150 %", 150, palette::ORANGE),
    ] {
        context.say(format!("65,536 connections, {name}, {runs} runs"));
        let mut bins = Vec::new();
        let (mut end, mut sent) = (0, u64::MAX);
        for _ in 0..runs {
            let mut adapter = Adapter::started(CONNECTIONS, percent, pdus);
            least_of(&mut bins, clock.bins(|| adapter.cell()));
            (end, sent) = (adapter.now.0, sent.min(adapter.sent));
        }
        // All connections become due together, so the first quarter of a round also sorts the rest.
        let rounds: Vec<f64> = bins
            .chunks(CONNECTIONS as usize / BIN)
            .map(|round| round.iter().sum::<f64>() / round.len() as f64)
            .collect();
        let (median, worst) = (quantile(&rounds, 0.5), quantile(&rounds, 1.0));
        let part = quantile(&bins, 1.0);
        outcome.ours(
            name,
            json!({
                "cells": sent, "median": median, "p99": quantile(&rounds, 0.99), "worst": worst,
                "worst quarter of a round": part, "seconds of the link": end as f64 / 1e9,
            }),
        );
        let paper = Bound::AtMost(600.0);
        outcome.check(
            format!("{name}: median per cell"),
            median,
            clock.unit,
            paper,
        );
        let what = format!("{name}: worst quarter of a round, per cell");
        outcome.check(what, part, clock.unit, Bound::AtMost(650.0));
        let most = Bound::AtMost(if context.quick { 3.0 } else { 1.2 });
        let what = format!("{name}: worst round, of the median");
        outcome.check(what, worst / median, "", most);
        let all = Bound::AtLeast(f64::from(CONNECTIONS) * f64::from(pdus * PDU));
        outcome.check(format!("{name}: cells sent"), sent as f64, "", all);
        medians.push(median);
        let points = bins.iter().enumerate();
        let points = points.map(|(at, cost)| (at as f64 * BIN as f64 / 1e6, *cost));
        lines.push(Series::new(name, colour, points.collect()).thin());
    }
    let same = Bound::AtMost(if context.quick { 2.0 } else { 1.1 });
    let what = "booked 150 %: median, of that at 99 %";
    outcome.check(what, medians[1] / medians[0], "", same);
    outcome.note(format!(
        "a round is one cell of each connection; of each quarter of it the least of {runs} runs is taken"
    ));
    outcome.plot(context, "cell-fig5", || {
        let title = "CELL, figure 5: 65,536 connections, all started in one instant";
        let chart = Chart::new(title, "million cells sent", "cycles per cell").y_range(0.0, 650.0);
        let chart = chart.level(600.0, "paper: about 600");
        lines.into_iter().fold(chart, Chart::with).svg()
    })
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
        "1": 160, "100": "< 300", "1000": "< 350", "65536": "about 600", "shaping alone": "< 85",
        "on": "Pentium Pro, 200 MHz",
    });
    outcome.ours("unit", clock.unit);
    let rows = [
        (1, 160.0),
        (100, 300.0),
        (1_000, 350.0),
        (CONNECTIONS, 600.0),
        (1 << 20, f64::NAN),
    ];
    let mut drawn = Vec::new();
    for (connections, paper) in rows {
        if context.quick && connections > CONNECTIONS {
            continue;
        }
        context.say(format!("{connections} connections"));
        let mut row = serde_json::Map::new();
        for (kind, same) in [("same", true), ("random", false)] {
            let mut cells = Vec::new();
            let mut shaping = Vec::new();
            for _ in 0..runs {
                let mut adapter = Adapter::endless(connections, same);
                clock.warm_up(connections, || adapter.cell());
                least_of(&mut cells, clock.some_bins(bins, || adapter.cell()));
                let mut pacer = Shaping::new(connections, same);
                clock.warm_up(connections, || pacer.cell());
                least_of(&mut shaping, clock.some_bins(bins, || pacer.cell()));
            }
            let (cell, shape) = (quantile(&cells, 0.5), quantile(&shaping, 0.5));
            row.insert(format!("{kind} contracts"), cell.round().into());
            row.insert(
                format!("{kind} contracts, shaping alone"),
                shape.round().into(),
            );
            if paper.is_finite() {
                let what = format!("{connections} connections, {kind} contracts");
                outcome.check(&what, cell, clock.unit, Bound::AtMost(paper));
                if same {
                    let what = format!("{what}, shaping alone (with its queue)");
                    outcome.check(what, shape, clock.unit, Bound::AtMost(85.0));
                }
            }
            if same && connections == 1_000 {
                drawn = cells;
            }
        }
        outcome.ours(&connections.to_string(), row);
    }
    outcome
        .note("shaping alone is the paper's shaper and the queue around it: take, shape, put back");
    outcome.note(format!(
        "a bin is {BIN} cells; of each the least of {runs} runs is taken"
    ));
    outcome.plot(context, "cell-fig6", || {
        let title = "CELL, figure 6: 1,000 connections";
        let chart = Chart::new(title, "million cells sent", "cycles per cell").y_range(0.0, 400.0);
        let points = drawn.iter().enumerate();
        let points = points.map(|(at, cost)| (at as f64 * BIN as f64 / 1e6, *cost));
        let line = Series::new("netnice", palette::BLUE, points.collect());
        chart.level(350.0, "paper: < 350").with(line).svg()
    })
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
        let pcr = BOOKED * percent / 99 / u64::from(connections);
        let contracts = (0..connections).map(|_| constant(pcr));
        Adapter::new(LINK, contracts, pdus * PDU)
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
    per_nano: f64,
    unit: &'static str,
}

impl Cycles {
    fn calibrate() -> Cycles {
        match cycles_per_nano() {
            Some(per_nano) => Cycles {
                per_nano,
                unit: "cycles",
            },
            None => Cycles {
                per_nano: 1.0,
                unit: "ns",
            },
        }
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

/// Keeps the least of each bin.
fn least_of(bins: &mut Vec<f64>, run: Vec<f64>) {
    match bins.is_empty() {
        true => *bins = run,
        false => bins.iter_mut().zip(run).for_each(|(a, b)| *a = a.min(b)),
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

/// Cells in a bin.
const BIN: usize = 16_384;

/// Commands that the adapter's queue holds.
const COMMANDS: usize = 4_096;
