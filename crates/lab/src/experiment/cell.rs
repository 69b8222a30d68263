//! Experiments of the paper CELL (Schiller, Gunningberg: Feasibility of a software-based ATM
//! cell-level scheduler with advanced shaping) in the simulator, in virtual time: figures 3 and 4,
//! and section 4.4. Each adds its checks to an [`Outcome`], and fails with another subject than
//! netnice, if a simulation fails, or if a plot cannot be written. A cell is a packet of 53 bytes,
//! and a slot is its time on the link: 2.8 us. A connection (the paper's VC) is a flow with a cell
//! contract: a peak rate, a tolerance (CDVT), and perhaps a sustained rate with a burst, which
//! [`netnice_core::contract::Bucket`] describes.
//!
//! [`cycles`] has figures 5 and 6, [`real`] has figures 3 and 4 on real packets.

pub mod cycles;
pub mod real;

use std::collections::BTreeMap;

use anyhow::Result;
use netnice_core::contract::{Cell, Slice};
use netnice_core::sched::{Class, Wire};
use netnice_core::units::{Bytes, Nanos, Rate};
use netnice_sim::adapter::{self, Adapter};
use netnice_sim::{OverbookedSlice, Random, Report, SentPacket, SimFlow, Source};
use serde_json::{Map, Value, json};

use super::simulated::{link, netnice_only, simulate};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series};

/// One connection of figure 3. The paper does not give all values; the outcome contains the
/// contracts that are chosen here.
struct Connection {
    /// Slots between two cells at peak rate.
    peak: u64,
    /// Slots for each cell in the long run, cells in a burst, and the bucket's kind.
    bucket: Option<(u64, u64, &'static str)>,
    /// The slot in which the connection starts.
    start: u64,
}

impl Connection {
    /// The contract on a link of `link` bit/s with cells of `cell` bytes.
    fn contract(&self, link: u64, cell: u64) -> String {
        let rate = |slots: u64| link / slots;
        let bucket = match self.bucket {
            None => String::new(),
            Some((slots, cells, kind)) => {
                let (scr, mbs) = (rate(slots), cells * cell);
                format!(",scr={scr}bit,mbs={mbs}B,bucket={kind}")
            }
        };
        let cdvt = TOLERANCE * cell * 8_000_000_000 / link;
        format!("cell pcr={}bit,cdvt={cdvt}ns{bucket}", rate(self.peak))
    }

    /// The least number of cells in this many slots: at the constant or the sustained rate, less
    /// one burst for a dual bucket.
    fn at_least(&self, slots: u64) -> u64 {
        match self.bucket {
            None => slots / self.peak,
            Some((each, cells, "dual")) => (slots / each).saturating_sub(cells),
            Some((each, ..)) => slots / each,
        }
    }

    /// Slots between two cells in the long run.
    fn sustained(&self) -> u64 {
        self.bucket.map_or(self.peak, |(slots, ..)| slots)
    }

    /// The paper's name of the connection's kind.
    fn kind(&self) -> &'static str {
        match self.bucket {
            None => "CBR",
            Some((_, _, "single")) => "VBR, single bucket",
            Some(_) => "VBR, dual bucket",
        }
    }

    /// Cells in a burst of a dual bucket; `None` for other buckets.
    fn dual_burst(&self) -> Option<u64> {
        let (_, cells, kind) = self.bucket?;
        (kind == "dual").then_some(cells)
    }
}

/// Ten connections as in the paper: six at a constant rate, one with a single bucket (5), three
/// with a dual one (0, 1, 6). They use 69 % of the link in the long run, and often two of them are
/// eligible for the same slot.
fn connections() -> Vec<Connection> {
    let one = |peak, start, bucket| Connection {
        peak,
        bucket,
        start,
    };
    vec![
        one(4, 0, Some((16, 20, "dual"))),
        one(5, 30, Some((25, 16, "dual"))),
        one(8, 0, None),
        one(10, 20, None),
        one(14, 50, None),
        one(6, 10, Some((18, 24, "single"))),
        one(3, 60, Some((20, 12, "dual"))),
        one(20, 0, None),
        one(25, 80, None),
        one(11, 40, None),
    ]
}

/// The names of the connections of figure 3 in its charts.
fn names(connections: &[Connection]) -> Vec<String> {
    let name = |(number, one): (usize, &Connection)| format!("VC {number} ({})", one.kind());
    connections.iter().enumerate().map(name).collect()
}

/// Figure 3: ten shaped connections on one link. Checks that no cell is early, that a connection
/// loses at most one cell to conflicts, and the lengths of bursts. Fails if the subject is not
/// netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure3(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    let slots = if context.quick { 20_000 } else { 1_000_000 };
    let mut world = link(&format!("{LINK}bit"), CELL)?;
    for (number, one) in connections().iter().enumerate() {
        let size = Bytes(CELL);
        let flow = SimFlow::new(
            &format!("VC {number}"),
            &one.contract(LINK, CELL),
            Source::Greedy { size },
        )?;
        world.flows.push(flow.from(slot(one.start)));
    }
    let (report, sent) = simulate(&world, slot(slots))?;
    outcome.paper = json!(FIGURE_3);
    let (mut lost, mut rows) = (0.0_f64, Vec::new());
    for (number, one) in connections().iter().enumerate() {
        let found = &report.flows[number];
        let wanted = one.at_least(slots - one.start);
        lost = lost.max(wanted as f64 - found.packets as f64);
        rows.push(json!({
            "VC": number, "kind": one.kind(), "contract": one.contract(LINK, CELL),
            "start, slot": one.start, "sent, cells": found.packets,
            "least by its contract, cells": wanted, "early, cells": found.violations,
        }));
    }
    outcome.ours("connections", rows);
    let early = report.violations() as f64;
    let what = "cells that the policer finds early, of all connections";
    outcome.check(what, early, "cells", Bound::AtMost(0.0));
    let what = "most cells that a connection lost to conflicts";
    outcome.check(what, lost, "cells", Bound::AtMost(1.0));
    let mut rows = Vec::new();
    for (number, one) in connections().iter().enumerate() {
        if let Some(cells) = one.dual_burst() {
            let mine = sent.iter().filter(|one| one.flow == number);
            let starts: Vec<u64> = mine.map(|one| one.start.0).collect();
            let lengths = bursts(&starts, slot(one.peak + TOLERANCE).0);
            check_bursts(outcome, &mut rows, number, cells, &lengths, "cells", 99.0);
            // If conflicts stretch a burst, the bucket may gain one more cell in that time.
            let off = lengths.keys().map(|length| length.abs_diff(cells)).max();
            let what = format!("VC {number}: burst whose length is farthest from {cells} cells");
            let off = off.unwrap_or(u64::MAX) as f64;
            outcome.check(what, off, "cells", Bound::AtMost(1.0));
        }
    }
    outcome.ours("bursts of dual buckets", rows);
    outcome.plot(context, "cell-fig3-sim", || {
        let title = "Cells of ten shaped connections, first 400 slots (simulated)";
        let chart = Chart::new(title, X_SLOTS, "cells sent");
        let chart = chart.x_range(0.0, 400.0);
        steps(chart, &sent, &names(&connections()), 400)
    })
}

/// Checks how many of a connection's bursts have exactly `cells` cells, by the number of its bursts
/// of each length, and adds these to the rows of a table. `unit` is the name of cells in this
/// experiment.
fn check_bursts(
    outcome: &mut Outcome,
    rows: &mut Vec<Value>,
    number: usize,
    cells: u64,
    lengths: &BTreeMap<u64, u64>,
    unit: &str,
    least_percent: f64,
) {
    let all: u64 = lengths.values().sum();
    let whole = lengths.get(&cells).copied().unwrap_or(0);
    let share = whole as f64 / all as f64 * 100.0;
    let what = format!("VC {number}: bursts of exactly {cells} {unit}, of all of its bursts");
    outcome.check(what, share, "%", Bound::AtLeast(least_percent));
    for (length, bursts) in lengths {
        let mut row = Map::new();
        row.insert("VC".into(), number.into());
        row.insert(format!("a whole burst, {unit}"), cells.into());
        row.insert(format!("length, {unit}"), (*length).into());
        row.insert("bursts of this length".into(), (*bursts).into());
        rows.push(row.into());
    }
}

/// Figure 4: transient overload, proportional sharing and priorities. All slots are the paper's
/// times a hundred, so that a difference of two percent can be measured. Connections 4, 5 and 6
/// request the whole link each, from slots 20,000, 25,000 and 30,000 until 40,000. A second run, in
/// which the lowest class has a minimum of 5 % of the link, checks that minimum. Fails if the
/// subject is not netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure4(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    let (report, sent) = overload(None)?;
    let check = OverloadCheck {
        spans: [(0, 200), (200, 250), (250, 300), (300, 400), (400, 600)],
        settled: 410,
        ratio: 2.0,
        slope: 1.0,
        afterwards: 0.01,
        slice: 100.0,
    };
    check.run(
        outcome,
        |vc, from, until| link_share(&sent, vc, from, until),
        |_, _| 0.0,
    );
    let (_, kept) = overload(Rate::new(LINK / 20))?;
    let share = link_share(&kept, 2, 210, 400);
    outcome.check(WITH_MINIMUM, share, "%", Bound::AtLeast(4.95));
    let cells = (1..).zip(&report.flows);
    let cells = cells.map(|(vc, flow)| json!({"VC": vc, "sent, cells": flow.packets}));
    outcome.ours("cells of the whole run", cells.collect::<Vec<_>>());
    outcome.plot(context, "cell-fig4-sim", || {
        let title = "Overload between slots 20,000 and 40,000 (simulated)";
        let x = "slot of 2.83 us, 100 for each of the paper's";
        let names: Vec<String> = (1..=6).map(|vc| format!("VC {vc}")).collect();
        let chart = Chart::new(title, x, "cells sent");
        steps(chart, &sent, &names, 600 * SCALE)
    })
}

/// The percent of the link that a connection of figure 4 got between two of the paper's slots.
fn link_share(sent: &[SentPacket], vc: u16, from: u64, until: u64) -> f64 {
    let inside = at(from * SCALE)..at(until * SCALE);
    let flow = usize::from(vc) - 1;
    let mine = sent
        .iter()
        .filter(|one| one.flow == flow && inside.contains(&one.start));
    mine.count() as f64 / ((until - from) * SCALE) as f64 * 100.0
}

/// The comparison of a run of figure 4 with the paper. All slots are numbered as in the paper.
struct OverloadCheck {
    /// The spans between two changes of the load.
    spans: [(u64, u64); 5],
    /// The slot from which VC 1 and VC 2 have their slopes again.
    settled: u64,
    /// The most that connections may be from their ratio, in percent.
    ratio: f64,
    /// The most that VC 3 may be from its slope, in percent.
    slope: f64,
    /// The tolerance of the slopes after the overload, as a share.
    afterwards: f64,
    /// The slice that the classes divide, in percent of the link.
    slice: f64,
}

impl OverloadCheck {
    /// Adds the checks. `share` returns the percent of the link that a connection got between two
    /// slots, and `stopped` the part of that time which the machine took from the sender. What a
    /// connection with a slope would have sent in it counts as sent.
    fn run(
        &self,
        outcome: &mut Outcome,
        share: impl Fn(u16, u64, u64) -> f64,
        stopped: impl Fn(u64, u64) -> f64,
    ) {
        let mut excused = BTreeMap::new();
        let mut with_excused = |vc: u16, slope: f64, from: u64, until: u64| {
            let found = share(vc, from, until);
            let excuse = (slope - found).clamp(0.0, slope * stopped(from, until));
            *excused.entry(vc).or_insert(0.0) += excuse;
            found + excuse
        };
        outcome.paper = json!({
            "VC 3": "not disturbed", "VC 2": "starves in the overload",
            "VC 1, 4, 5, 6": "equal ones have equal slopes, which flatten with each start",
        });
        let mut third = 0.0_f64;
        for (from, until) in self.spans {
            let found = with_excused(3, 20.0, from, until);
            third = third.max((found / 20.0 - 1.0).abs());
        }
        let (alike, apart) = self.farthest_from_ratio(&share);
        let what = "equal connections (VC 4, 5, 6): rate farthest from that of VC 4";
        outcome.check(what, alike * 100.0, "%", Bound::AtMost(self.ratio));
        let what = "unequal ones: rate of VC 4, 5 or 6 farthest from four times that of VC 1";
        outcome.check(what, apart * 100.0, "%", Bound::AtMost(self.ratio));
        let what = "VC 3: rate of a span farthest from its contract (20 % of the link)";
        outcome.check(what, third * 100.0, "%", Bound::AtMost(self.slope));
        let starved = share(2, 210, 400) / share(2, self.spans[0].0, 190) * 100.0;
        let what = "VC 2: rate in slots 210 to 400, of its rate before slot 190";
        outcome.check(what, starved, "%", Bound::AtMost(5.0));
        for (vc, slope) in [(1, 25.0), (2, 10.0)] {
            let after = with_excused(vc, slope, self.settled, 600) / slope * 100.0;
            let near = Bound::Near {
                aim: 100.0,
                share: self.afterwards,
            };
            let settled = self.settled;
            let what = format!("VC {vc}: rate in slots {settled} to 600, of its contract");
            outcome.check(what, after, "%", near);
        }
        self.show(outcome, &share);
        let excused = excused.into_iter();
        let excused = excused.map(|(vc, percent)| {
            json!({"VC": vc, "excused by stops, % of the link, sum of the spans": percent})
        });
        outcome.ours("excused", excused.collect::<Vec<_>>());
    }

    /// Adds two tables of rates: all connections in all spans; and the connections of class 1 in
    /// the overload, beside the parts that the ratio gives them.
    fn show(&self, outcome: &mut Outcome, share: impl Fn(u16, u64, u64) -> f64) {
        let row = |(from, until): (u64, u64)| {
            let found = (1..=6).map(|vc| (vc, share(vc, from, until)));
            let found: Vec<(u16, f64)> = found.collect();
            let sum: f64 = found.iter().map(|(_, percent)| percent).sum();
            let mut row = Map::new();
            row.insert(SLOTS.into(), format!("{from} to {until}").into());
            for (vc, percent) in found {
                row.insert(format!("VC {vc}, % of the link"), percent.into());
            }
            row.insert("all, % of the link".into(), sum.into());
            let used = sum / self.slice * 100.0;
            row.insert("all, % of the classes' slice".into(), used.into());
            Value::from(row)
        };
        let rows: Vec<Value> = self.spans.into_iter().map(row).collect();
        outcome.ours("rates", rows);
        // Class 1 has what VC 3 leaves of the slice.
        let class = self.slice - 20.0;
        let mut rows = Vec::new();
        for (others, (from, until)) in (1..).zip(self.spans[1..4].iter().copied()) {
            let unit = 100.0 / f64::from(1 + 4 * others);
            let mut row = Map::new();
            row.insert(SLOTS.into(), format!("{from} to {until}").into());
            row.insert("share of class 1, % of the link".into(), class.into());
            for vc in [1, 4, 5, 6] {
                let percent = share(vc, from, until) / class * 100.0;
                row.insert(format!("VC {vc}, % of that share"), percent.into());
            }
            row.insert("VC 1 by the ratio, %".into(), unit.into());
            row.insert("VC 4, 5, 6 by the ratio, %".into(), (4.0 * unit).into());
            rows.push(Value::from(row));
        }
        outcome.ours("class 1 in the overload", rows);
    }

    /// How far VC 4, 5 and 6 are from each other, and from four times what VC 1 gets, as shares.
    /// The link without VC 3 is shared 1 : 4, 1 : 4 : 4 and 1 : 4 : 4 : 4.
    fn farthest_from_ratio(&self, share: impl Fn(u16, u64, u64) -> f64) -> (f64, f64) {
        let (mut alike, mut apart) = (0.0_f64, 0.0_f64);
        for (last, (from, until)) in (4..).zip(self.spans[1..4].iter().copied()) {
            let unit = share(1, from, until);
            let all: Vec<f64> = (4..=last).map(|vc| share(vc, from, until)).collect();
            for one in &all {
                apart = apart.max((one / (4.0 * unit) - 1.0).abs());
                alike = alike.max((one / all[0] - 1.0).abs());
            }
        }
        (alike, apart)
    }
}

/// Simulates figure 4; the lowest class may have a minimum.
fn overload(least: Option<Rate>) -> Result<(Report, Vec<SentPacket>)> {
    let mut world = link(&format!("{LINK}bit"), CELL)?;
    let period = Nanos::from_millis(10);
    world.overbooked = Some(OverbookedSlice {
        slice: Slice::new(period, period, false)?,
        classes: vec![
            Class { min: None },
            Class { min: None },
            Class { min: least },
        ],
    });
    // Name, percent of the link, class, first slot, end slot.
    let flows = [
        ("VC 1", 25, 1, 0, 600),
        ("VC 2", 10, 2, 0, 600),
        ("VC 3", 20, 0, 0, 600),
        ("VC 4", 100, 1, 200, 400),
        ("VC 5", 100, 1, 250, 400),
        ("VC 6", 100, 1, 300, 400),
    ];
    for (name, percent, class, from, until) in flows {
        let contract = format!("cell pcr={}bit,cdvt=500us", LINK * percent / 100);
        let size = Bytes(CELL);
        let flow = SimFlow::new(name, &contract, Source::Greedy { size })?;
        let flow = flow.inside(class).from(slot(from * SCALE));
        world.flows.push(flow.until(slot(until * SCALE)));
    }
    simulate(&world, slot(600 * SCALE))
}

/// Section 4.4: cells are fetched from host memory just in time over a bus whose access time
/// varies, in units from one cell to a whole PDU (a message of 103 cells). The paper claims that
/// this works, without a measurement. Checks that all cells are sent and none is early, that no
/// connection runs out of cells or has more than its window in the adapter, and that the adapter
/// reports each finished connection to the host; and that a bus that is too slow does cause
/// underruns. Fails if the subject is not netnice, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn fetch_just_in_time(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!({
        "claimed, not measured": "fetching ahead avoids the delays of fetching on demand, buffers \
                                  are small, and the host is notified",
    });
    let pdus = if context.quick { 2 } else { 100 };
    let mut rows = Vec::new();
    for (unit, window) in [(1, 8), (8, 24), (PDU_CELLS, 2 * PDU_CELLS)] {
        let found = fetching_adapter(unit, window, pdus).run(Nanos::from_secs(600))?;
        let name = match unit {
            1 => "one cell".to_string(),
            PDU_CELLS => "a whole PDU".to_string(),
            unit => format!("{unit} cells"),
        };
        let seconds = found.end.0 as f64 / 1e9;
        rows.push(json!({
            "unit of a transfer, cells": unit, "window of a connection, cells": window,
            "sent, cells": found.sent, "underruns, cells": found.underruns,
            "early, cells": found.violations,
            "most buffered of a connection, cells": found.most_buffered,
            "host told of the end, connections": found.reported,
            "transfers": found.transfers,
            "time for which the bus is busy, %": found.bus_busy.0 as f64 / 1e7 / seconds,
        }));
        let all = f64::from(CONNECTIONS * pdus * PDU_CELLS);
        let what = format!("unit of {name}: cells sent, of all ({all})");
        let percent = found.sent as f64 / all * 100.0;
        outcome.check(what, percent, "%", Bound::AtLeast(100.0));
        let none = Bound::AtMost(0.0);
        let what = format!("unit of {name}: underruns, cells not there when their slot came");
        outcome.check(what, found.underruns as f64, "cells", none);
        let what = format!("unit of {name}: cells that a policer finds early");
        outcome.check(what, found.violations as f64, "cells", none);
        let (most, bound) = (found.most_buffered as f64, Bound::AtMost(f64::from(window)));
        let what = format!("unit of {name}: most cells of one connection, bound is the window");
        outcome.check(what, most, "cells", bound);
        let all = Bound::AtLeast(f64::from(CONNECTIONS));
        let what = format!("unit of {name}: connections of whose end the host was told, of all");
        outcome.check(what, found.reported as f64, "connections", all);
    }
    outcome.ours("transfer units", rows);
    // Counter-check: a bus that is slower than the connections together must cause underruns.
    let slow = Adapter {
        bus: "100mbit".parse()?,
        ..fetching_adapter(8, 24, pdus)
    };
    let dry = slow.run(Nanos::from_secs(600))?.underruns;
    let what = "control: underruns on a bus of 100 Mbit/s, slower than the connections together";
    outcome.check(what, dry as f64, "cells", Bound::AtLeast(1.0));
    Ok(())
}

/// A hundred connections of 0.3 to 2.1 Mbit/s, which use 80 % of the link.
fn fetching_adapter(unit: u32, window: u32, pdus: u32) -> Adapter {
    let rate = |bits| Rate::new(bits).unwrap_or(Rate::MAX);
    let mut random = Random::new(44);
    let parts: Vec<u64> = (0..CONNECTIONS).map(|_| random.within(10..=70)).collect();
    let all: u64 = parts.iter().sum();
    let connection = |part: u64| adapter::Connection {
        contract: cell_contract(rate(LINK * 80 / 100 * part / all)),
        pdus,
        cells: PDU_CELLS,
        start: Nanos(random.within(0..=1_000_000)),
    };
    Adapter {
        wire: Wire {
            longest: Bytes(CELL),
            ..Wire::new(rate(LINK))
        },
        // A transfer begins within 2 us and takes 0.42 us for a cell; a slot is 2.83 us.
        bus: rate(1_000_000_000),
        access: (Nanos(100), Nanos(2_000)),
        unit,
        window,
        connections: parts.into_iter().map(connection).collect(),
        seed: 4,
    }
}

/// A contract with this peak rate and the tolerance of all experiments here.
fn cell_contract(pcr: Rate) -> Cell {
    let cdvt = Nanos(TOLERANCE * CELL * 8_000_000_000 / LINK);
    // A contract without a sustained rate cannot contradict itself.
    Cell::new(pcr, cdvt, None).expect("a cell contract")
}

/// The number of bursts of a dual bucket by length. A burst ends with a pause longer than any
/// conflict causes: the peak's spacing and all of CDVT. The unfinished last burst is left out.
fn bursts(starts: &[u64], pause: u64) -> BTreeMap<u64, u64> {
    let (mut lengths, mut length) = (BTreeMap::new(), 1);
    for pair in starts.windows(2) {
        if pair[1].saturating_sub(pair[0]) > pause {
            *lengths.entry(length).or_insert(0) += 1;
            length = 0;
        }
        length += 1;
    }
    lengths
}

/// Cells sent against slots, one line for each connection, by the order of the names.
fn steps(chart: Chart, sent: &[SentPacket], names: &[String], slots: u64) -> String {
    let line = |(flow, name): (usize, &String)| {
        let mine = sent.iter().filter(|one| one.flow == flow);
        let starts = mine.map(|one| one.start.0 as f64 / slot(1).0 as f64);
        Series::numbered(flow, name, growing(starts, slots))
    };
    names
        .iter()
        .enumerate()
        .map(line)
        .fold(chart, Chart::with)
        .svg()
}

/// The line of a growing number of cells until the slot `until`. `at` has the slots of all cells.
/// The line ends at `until` on the way to the next cell, if there is one. Of the cells in the same
/// [`COLUMNS`]th part of the range only the first is drawn, and always the last one.
fn growing(at: impl Iterator<Item = f64>, until: u64) -> Vec<(f64, f64)> {
    let until = until as f64;
    let column = |at: f64| (at * COLUMNS / until) as u64;
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut last = None;
    for (count, at) in (1_u32..).zip(at) {
        let point = (at, f64::from(count));
        if at >= until {
            if let Some((before, cells)) = last {
                points.push((until, cells + (until - before) / (at - before)));
            }
            return points;
        }
        if points
            .last()
            .is_none_or(|drawn| column(drawn.0) < column(at))
        {
            points.push(point);
        }
        last = Some(point);
    }
    if points.last() != last.as_ref() {
        points.extend(last);
    }
    points
}

fn slot(slots: u64) -> Nanos {
    Nanos(slots * CELL * 8_000_000_000 / LINK)
}

fn at(slots: u64) -> netnice_core::units::Instant {
    netnice_core::units::Instant(slot(slots).0)
}

/// Bytes of a cell.
const CELL: u64 = 53;

/// The link's rate in bit/s: a slot of 2.8 us.
const LINK: u64 = 149_760_000;

/// Number of the adapter's connections.
const CONNECTIONS: u32 = 100;

/// Slots for one slot of the paper's figure 4.
const SCALE: u64 = 100;

/// CDVT, in slots.
const TOLERANCE: u64 = 40;

/// Cells of a PDU of section 4.4.
const PDU_CELLS: u32 = 103;

/// What the paper saw in figure 3.
const FIGURE_3: &str = "straight lines, with slight deviations when two or more connections are \
                        scheduled for the same slot";

/// The axis of slots in the simulation.
const X_SLOTS: &str = "slot of 2.83 us";

/// The key of spans in the tables of figure 4.
const SLOTS: &str = "slots of the paper";

/// The check of a minimum in figure 4.
const WITH_MINIMUM: &str = "VC 2 in the overload with a minimum of 5 %: rate in slots 210 to 400, \
                            of the link";

/// Points of a line in a chart of cells.
const COLUMNS: f64 = 600.0;

#[cfg(test)]
mod tests;
