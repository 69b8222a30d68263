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
use serde_json::json;

use super::simulated::{link, netnice_only, simulate};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};

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
    outcome.paper = json!("straight lines; small deviations where two want the same slot");
    let mut lost = 0.0_f64;
    for (number, one) in connections().iter().enumerate() {
        let found = &report.flows[number];
        let wanted = one.at_least(slots - one.start);
        lost = lost.max(wanted as f64 - found.packets as f64);
        let row = json!({
            "contract": one.contract(LINK, CELL), "start": one.start, "cells": found.packets,
            "at least": wanted, "early": found.violations,
        });
        outcome.ours(&format!("VC {number}"), row);
    }
    let early = report.violations() as f64;
    outcome.check(
        "cells that the policer finds early",
        early,
        "",
        Bound::AtMost(0.0),
    );
    let what = "most cells that a connection lost to conflicts";
    outcome.check(what, lost, "cells", Bound::AtMost(1.0));
    for (number, one) in connections().iter().enumerate() {
        if let Some(cells) = one.dual_burst() {
            let mine = sent.iter().filter(|one| one.flow == number);
            let starts: Vec<u64> = mine.map(|one| one.start.0).collect();
            let lengths = bursts(&starts, slot(one.peak + TOLERANCE).0);
            check_bursts(outcome, number, cells, &lengths, "cells", 99.0);
            // If conflicts stretch a burst, the bucket may gain one more cell in that time.
            let off = lengths.keys().map(|length| length.abs_diff(cells)).max();
            let what = format!("VC {number}: farthest burst from {cells} cells");
            let off = off.unwrap_or(u64::MAX) as f64;
            outcome.check(what, off, "cells", Bound::AtMost(1.0));
        }
    }
    outcome.plot(context, "cell-fig3-sim", || {
        let chart = Chart::new("CELL, figure 3 (simulated)", "slot", "cells");
        steps(chart.x_range(0.0, 400.0), &sent, world.flows.len(), 400)
    })
}

/// Checks how many of a connection's bursts have exactly `cells` cells, by the number of its bursts
/// of each length. `unit` is the name of a cell in this experiment.
fn check_bursts(
    outcome: &mut Outcome,
    number: usize,
    cells: u64,
    lengths: &BTreeMap<u64, u64>,
    unit: &str,
    least_percent: f64,
) {
    let all: u64 = lengths.values().sum();
    let whole = lengths.get(&cells).copied().unwrap_or(0);
    let share = whole as f64 / all as f64 * 100.0;
    let what = format!("VC {number}: bursts of exactly {cells} {unit}");
    outcome.check(what, share, "%", Bound::AtLeast(least_percent));
    outcome.ours(&format!("VC {number}: bursts by length"), lengths);
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
    };
    check.run(
        outcome,
        |vc, from, until| link_share(&sent, vc, from, until),
        |_, _| 0.0,
    );
    let (_, kept) = overload(Rate::new(LINK / 20))?;
    let share = link_share(&kept, 2, 210, 400);
    let what = "VC 2 in the overload with a minimum of 5 %";
    outcome.check(what, share, "%", Bound::AtLeast(4.95));
    outcome.ours(
        "cells",
        report
            .flows
            .iter()
            .map(|flow| flow.packets)
            .collect::<Vec<_>>(),
    );
    outcome.plot(context, "cell-fig4-sim", || {
        let chart = Chart::new(
            "CELL, figure 4 (simulated, slots times 100)",
            "slot",
            "cells",
        );
        steps(chart, &sent, report.flows.len(), 600 * SCALE)
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
            *excused.entry(format!("VC {vc}")).or_insert(0.0) += excuse;
            found + excuse
        };
        outcome.paper = json!({
            "VC 3": "undisturbed", "VC 2": "starves",
            "VC 1, 4, 5, 6": "equal ones have equal slopes",
        });
        let mut third = 0.0_f64;
        for (from, until) in self.spans {
            let found = with_excused(3, 20.0, from, until);
            third = third.max((found / 20.0 - 1.0).abs());
            let found = (1..=6).map(|vc| (format!("VC {vc}"), share(vc, from, until)));
            let row: BTreeMap<_, _> = found.collect();
            outcome.ours(&format!("slots {from} to {until}, % of the link"), row);
        }
        let (alike, apart) = self.farthest_from_ratio(&share);
        let what = "equal connections, farthest from each other";
        outcome.check(what, alike * 100.0, "%", Bound::AtMost(self.ratio));
        let what = "unequal ones, farthest from the ratio of what they asked";
        outcome.check(what, apart * 100.0, "%", Bound::AtMost(self.ratio));
        let what = "VC 3, farthest from its slope";
        outcome.check(what, third * 100.0, "%", Bound::AtMost(self.slope));
        let starved = share(2, 210, 400) / share(2, self.spans[0].0, 190) * 100.0;
        let what = "VC 2 in the overload, of before";
        outcome.check(what, starved, "%", Bound::AtMost(5.0));
        for (vc, slope) in [(1, 25.0), (2, 10.0)] {
            let after = with_excused(vc, slope, self.settled, 600) / slope * 100.0;
            let near = Bound::Near {
                aim: 100.0,
                share: self.afterwards,
            };
            let what = format!("VC {vc} after the overload, of its slope");
            outcome.check(what, after, "%", near);
        }
        outcome.ours("excused by stops, % of the link, sum of the spans", excused);
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
    outcome.paper = json!("claimed: no delays by fetching on demand, small buffers, host notified");
    let pdus = if context.quick { 2 } else { 100 };
    let cells = 103;
    // A bus transfer begins within 2 us and takes 0.4 us for a cell; a slot is 2.8 us.
    for (unit, window) in [(1, 8), (8, 24), (cells, 2 * cells)] {
        let found = fetching_adapter(unit, window, pdus).run(Nanos::from_secs(600))?;
        let name = match unit {
            1 => "one cell".to_string(),
            103 => "a whole PDU".to_string(),
            unit => format!("{unit} cells"),
        };
        let seconds = found.end.0 as f64 / 1e9;
        outcome.ours(&format!("unit of {name}, window of {window} cells"), json!({
            "sent": found.sent, "underruns": found.underruns, "early": found.violations,
            "most buffered": found.most_buffered, "connections told": found.reported,
            "transfers": found.transfers, "bus busy, %": found.bus_busy.0 as f64 / 1e7 / seconds,
        }));
        let all = (CONNECTIONS * pdus * cells) as f64;
        outcome.check(
            format!("{name}: cells sent"),
            found.sent as f64,
            "",
            Bound::AtLeast(all),
        );
        let none = Bound::AtMost(0.0);
        outcome.check(
            format!("{name}: underruns"),
            found.underruns as f64,
            "",
            none,
        );
        outcome.check(
            format!("{name}: early cells"),
            found.violations as f64,
            "",
            none,
        );
        let (most, bound) = (found.most_buffered as f64, Bound::AtMost(f64::from(window)));
        outcome.check(
            format!("{name}: most cells of one connection"),
            most,
            "cells",
            bound,
        );
        let all = Bound::AtLeast(f64::from(CONNECTIONS));
        let what = format!("{name}: connections of which the host was told");
        outcome.check(what, found.reported as f64, "", all);
    }
    // Counter-check: a bus that is slower than the connections together must cause underruns.
    let slow = Adapter {
        bus: "100mbit".parse()?,
        ..fetching_adapter(8, 24, pdus)
    };
    let dry = slow.run(Nanos::from_secs(600))?.underruns;
    outcome.ours("underruns on a bus of 100 Mbit/s", dry);
    let what = "underruns on a bus that is too slow";
    outcome.check(what, dry as f64, "", Bound::AtLeast(1.0));
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
        cells: 103,
        start: Nanos(random.within(0..=1_000_000)),
    };
    Adapter {
        wire: Wire {
            longest: Bytes(CELL),
            ..Wire::new(rate(LINK))
        },
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

/// Cells sent against slots, one line for each connection.
fn steps(chart: Chart, sent: &[SentPacket], flows: usize, slots: u64) -> String {
    let line = |flow: usize| {
        let mine = sent
            .iter()
            .filter(|one| one.flow == flow && one.start < at(slots));
        let points = (1..)
            .zip(mine)
            .map(|(count, one)| (one.start.0 as f64 / slot(1).0 as f64, f64::from(count)));
        let colour = palette::SERIES[flow % palette::SERIES.len()];
        Series::new(format!("VC {flow}"), colour, points.collect())
    };
    (0..flows).map(line).fold(chart, Chart::with).svg()
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
