//! CELL (Schiller, Gunningberg: Feasibility of a software-based ATM cell-level scheduler with
//! advanced shaping), in the simulator. A slot is the time of one cell of 53 bytes on the link.

use anyhow::Result;
use netnice_core::units::{Bytes, Nanos};
use netnice_sim::{Flow, Sent, Source};
use serde_json::json;

use super::simulated::{link, netnice_only, play};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};

/// One connection of figure 3: what the paper leaves open is chosen here, and printed.
struct Connection {
    /// Cells between two at peak rate, in slots.
    peak: u64,
    /// Slots for each cell in the long run, cells in a burst, and how the bucket is spent.
    bucket: Option<(u64, u64, &'static str)>,
    /// The slot in which it starts.
    start: u64,
}

impl Connection {
    fn contract(&self) -> String {
        // The link sends a cell in each slot.
        let rate = |slots: u64| LINK / slots;
        let bucket = match self.bucket {
            None => String::new(),
            Some((slots, cells, kind)) => {
                let (scr, mbs) = (rate(slots), cells * CELL);
                format!(",scr={scr}bit,mbs={mbs}B,bucket={kind}")
            }
        };
        let cdvt = TOLERANCE * CELL * 8_000_000_000 / LINK;
        format!("cell pcr={}bit,cdvt={cdvt}ns{bucket}", rate(self.peak))
    }
}

/// Ten connections as in the paper: six at a constant rate, one with a single bucket (5), three
/// with a dual one (0, 1, 6). 85 % of the link in the long run, and conflicts all the time.
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

/// Figure 3: an example schedule.
pub fn figure3(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    let slots = if context.quick { 20_000 } else { 1_000_000 };
    let mut world = link(&format!("{LINK}bit"), CELL)?;
    for (number, one) in connections().iter().enumerate() {
        let size = Bytes(CELL);
        let flow = Flow::new(
            &format!("VC {number}"),
            &one.contract(),
            Source::Greedy { size },
        )?;
        world.flows.push(flow.from(slot(one.start)));
    }
    let (report, sent) = play(&world, slot(slots))?;
    outcome.paper = json!("straight lines; small deviations where two want the same slot");
    let mut lost = 0.0_f64;
    for (number, one) in connections().iter().enumerate() {
        let found = &report.flows[number];
        let time = slots - one.start;
        // At the constant or the sustained rate, and a dual bucket in whole bursts.
        let wanted = match one.bucket {
            None => time / one.peak,
            Some((each, cells, "dual")) => (time / each).saturating_sub(cells),
            Some((each, ..)) => time / each,
        };
        lost = lost.max(wanted as f64 - found.packets as f64);
        let row = json!({
            "contract": one.contract(), "start": one.start, "cells": found.packets,
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
        if let Some((_, cells, "dual")) = one.bucket {
            let odd = odd_bursts(&sent, number, one.peak, cells);
            let what = format!("VC {number}: bursts that are not {cells} cells long");
            outcome.check(what, odd as f64, "", Bound::AtMost(0.0));
        }
    }
    outcome.plot(context, "cell-fig3", || {
        let chart = Chart::new("CELL, figure 3 (simulated)", "slot", "cells");
        steps(chart.x_range(0.0, 400.0), &sent, world.flows.len(), 400)
    })
}

/// How many bursts of a dual bucket are not of the length that the bucket holds. A burst ends
/// with a pause of more than three times the peak's spacing; the last one is not over.
fn odd_bursts(sent: &[Sent], flow: usize, peak: u64, cells: u64) -> usize {
    let starts: Vec<u64> = sent
        .iter()
        .filter(|one| one.flow == flow)
        .map(|one| one.start.0)
        .collect();
    let mut lengths = vec![1_u64];
    for pair in starts.windows(2) {
        match pair[1] - pair[0] > slot(peak * 3).0 {
            true => lengths.push(1),
            false => lengths[0..]
                .last_mut()
                .into_iter()
                .for_each(|last| *last += 1),
        }
    }
    lengths.pop();
    lengths.iter().filter(|length| **length != cells).count()
}

/// Cells sent against slots, one line for each connection.
fn steps(chart: Chart, sent: &[Sent], flows: usize, slots: u64) -> String {
    let line = |flow: usize| {
        let mine = sent
            .iter()
            .filter(|one| one.flow == flow && one.start < at(slots));
        let points = (1..)
            .zip(mine)
            .map(|(count, one)| (one.start.0 as f64 / slot(1).0 as f64, f64::from(count)));
        let colour = COLOURS[flow % COLOURS.len()];
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

const COLOURS: [&str; 6] = [
    palette::INK,
    palette::BLUE,
    palette::ORANGE,
    palette::GREEN,
    palette::PURPLE,
    palette::RED,
];

/// Bytes of a cell.
const CELL: u64 = 53;

/// Of the link, in bit/s: a slot of 2.8 us.
const LINK: u64 = 149_760_000;

/// CDVT, in slots.
const TOLERANCE: u64 = 40;
