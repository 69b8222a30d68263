//! Draws the charts of the experiments with one and with several transmitters, as SVG text. No call
//! fails.

use super::super::super::bench::SECOND;
use super::{LINK, Transfer, from_port, is_sent, source};
use crate::plot::{Chart, Series, palette};
use crate::stats;
use crate::wire::Record;

/// Draws how many packets the connections of figure 4 send in each period.
pub(super) fn periods(even: &Transfer, odd: &Transfer, long: &Transfer) -> String {
    let points = |transfer: &Transfer| -> Vec<(f64, f64)> {
        let counts = (1..).zip(&transfer.counts);
        let points = counts.map(|(number, count)| (f64::from(number), *count));
        points.take(PERIODS_DRAWN).collect()
    };
    Chart::new(
        "Packets in each period of 50 ms",
        "number of the period",
        "full packets in the period",
    )
    .with(Series::new("slice 3 ms", palette::ORANGE, points(odd)).thin())
    .with(Series::new("slice 2.4 ms", palette::BLUE, points(even)).thick())
    .with(
        Series::new(
            "slice 2.4 ms, frames of 1514 bytes",
            palette::GREEN,
            points(long),
        )
        .dashed(),
    )
    .y_range(0.0, 4.0)
    .svg()
}

/// Draws the rate of each slice of 200 ms beside what the slice gives.
pub(super) fn rates(found: &[Transfer]) -> String {
    let rate = |one: &Transfer| {
        let rate = one.slice.of(stats::mean(&one.counts));
        (one.slice.milliseconds(), rate)
    };
    let points: Vec<(f64, f64)> = found.iter().map(rate).collect();
    let last = points.last().map_or(0.0, |point| point.0);
    let theory = vec![(0.0, 0.0), (last, last / 200.0 * LINK as f64 / 1e6)];
    Chart::new(
        "Rate of one TCP with a slice in each 200 ms, 10 Mbit/s",
        "slice, ms",
        "rate on the wire, Mbit/s",
    )
    .with(Series::new("what the slice gives", palette::GREY, theory))
    .with(Series::new("measured, mean", palette::BLUE, points).dots())
    .moment(PAPERS_LAST, "9.6 ms: the paper's rate varies above")
    .svg()
}

/// Draws how far the rate of each slice of 200 ms is from what the slice gives: over the whole
/// measurement, and in its slowest and its fastest second.
pub(super) fn deviations(found: &[Transfer]) -> String {
    let points = |of: &dyn Fn(&Transfer) -> f64| -> Vec<(f64, f64)> {
        let points = (1..).zip(found);
        points
            .map(|(place, one)| (f64::from(place), (of(one) / one.wanted - 1.0) * 100.0))
            .collect()
    };
    let mean = points(&|one| stats::mean(&one.counts));
    let slowest = points(&|one| stats::least(&one.seconds()));
    let fastest = points(&|one| stats::greatest(&one.seconds()));
    let all = [&mean, &slowest, &fastest];
    let values = all.into_iter().flatten().map(|point| point.1.abs());
    let reach = values.fold(2.0, f64::max) * 1.1;
    let chart = Chart::new(
        "Deviation of the rate from what the slice gives",
        "slice in 200 ms, ms (not to scale)",
        "deviation, %",
    )
    .with(Series::new("slowest second", palette::ORANGE, slowest).thin())
    .with(Series::new("fastest second", palette::GREEN, fastest).dashed())
    .with(Series::new("mean", palette::BLUE, mean).dots())
    .level(1.0, "bound of the mean: 1 %")
    .level(-1.0, "")
    .x_range(0.5, found.len() as f64 + 0.5)
    .y_range(-reach, reach);
    let upto = |one: &&Transfer| one.slice.milliseconds() <= PAPERS_LAST;
    let last = found.iter().filter(upto).count() as f64;
    let chart = chart.moment(last, "9.6 ms: the paper's rate varies above");
    let names = (1..).zip(found);
    let name = |chart: Chart, (place, one): (i32, &Transfer)| {
        chart.x_name(f64::from(place), one.slice.milliseconds().to_string())
    };
    names.fold(chart, name).svg()
}

/// Draws the rate of each connection of figure 5, and their total.
pub(super) fn figure5(record: &Record, from: u64, step: u64) -> String {
    let (until, width) = (from + 3 * step, SECOND / 5);
    let points = |rates: Vec<f64>| -> Vec<(f64, f64)> {
        let megabits: Vec<f64> = rates.iter().map(|rate| rate / 1e6).collect();
        stats::middles(&megabits, 0.0, 0.2)
    };
    let line = |(number, name): (u16, &str)| {
        let rates = record.bins(from_port(source(number)), from, until, width);
        let colour = palette::SERIES[usize::from(number) + 1];
        Series::new(name, colour, points(rates))
    };
    let total = points(record.bins(is_sent, from, until, width));
    let chart = Chart::new(
        "Three TCP connections begin one after the other, 10 Mbit/s",
        "time, s",
        "rate on the wire, Mbit/s, mean of each 200 ms",
    )
    .with(Series::new("total", palette::GREY, total).dashed());
    let series = (0..).zip(["c1", "c2", "c3"]).map(line);
    let seconds = step as f64 / SECOND as f64;
    let chart = series.fold(chart, Chart::with);
    chart
        .moment(0.0, "c1 begins")
        .moment(seconds, "c2 begins")
        .moment(2.0 * seconds, "c3 begins")
        .y_range(0.0, 12.0)
        .svg()
}

/// The longest slice in ms that has its rate in the paper.
const PAPERS_LAST: f64 = 9.6;
/// So many periods of figure 4 are drawn: more than 54, so that a single frame is among them.
const PERIODS_DRAWN: usize = 60;
