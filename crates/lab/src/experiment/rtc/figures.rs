//! The charts of figures 5 to 7 of the paper RTC. Simulated runs and runs on packets have the same
//! ones. No call fails.

use super::results::FlowResult;
use super::{NAMES, points};
use crate::plot::{Chart, Series, palette};

/// A run: its place on the x axis, and its flows.
pub(super) type Run = (f64, Vec<FlowResult>);

/// An axis of offered load.
pub(super) const BEST_EFFORT_LOAD: &str = "load offered by best effort, kB/s (1 kB = 1,000 bytes)";

/// The throughput of all flows. Channels 1 and 2 have the same one, so that one is dashed.
pub(super) fn throughput(title: &str, x: &str, runs: &[Run]) -> Chart {
    let chart = Chart::new(title, x, "throughput, kB/s");
    of_flows(chart, runs, |flow| flow.throughput)
}

/// The messages of all flows that were not accepted.
pub(super) fn dropped(title: &str, x: &str, runs: &[Run]) -> Chart {
    let chart = Chart::new(title, x, "messages dropped in the run");
    of_flows(chart, runs, |flow| flow.not_accepted() as f64)
}

/// The mean laxity of the channels (lines) and the least one (dashes), with their deadlines (in
/// ms): no message can have more laxity.
pub(super) fn laxity(title: &str, runs: &[Run], deadlines: [f64; 3]) -> Chart {
    let mut chart = Chart::new(title, BEST_EFFORT_LOAD, "laxity of messages, ms");
    for (number, (name, deadline)) in std::iter::zip(NAMES, deadlines).enumerate() {
        let of = |value: fn(&FlowResult) -> Option<f64>| {
            let all = runs.iter();
            let seen = all.filter_map(|(at, flows)| Some((*at, value(&flows[number])?)));
            seen.collect::<Vec<_>>()
        };
        let mean = of(|flow| flow.mean_laxity);
        let least = of(|flow| flow.least_laxity);
        chart = chart
            .with(Series::new(format!("{name}, mean"), COLOURS[number], mean))
            .with(Series::new(format!("{name}, least"), COLOURS[number], least).dashed())
            .level(deadline, format!("deadline of {name}: {deadline} ms"));
    }
    chart
}

/// A line of [`percent`]: its name and colour, the runs, and what is drawn of each.
pub(super) type Part<'a> = (&'a str, &'static str, &'a [Run], fn(&[FlowResult]) -> f64);

/// Parts in % against the load of best effort. Every second line is dashed.
pub(super) fn percent(title: &str, y: &str, lines: &[Part<'_>]) -> Chart {
    let mut chart = Chart::new(title, BEST_EFFORT_LOAD, y);
    for (number, (name, colour, runs, part)) in lines.iter().enumerate() {
        let points = points(runs, |flows: &Vec<FlowResult>| part(flows) * 100.0);
        let series = Series::new(*name, colour, points);
        chart = chart.with(if number % 2 == 1 {
            series.dashed()
        } else {
            series
        });
    }
    chart
}

/// The part of the channels' messages that was late, of those that were accepted.
pub(super) fn late_part(flows: &[FlowResult]) -> f64 {
    let channels = || flows.iter().take(NAMES.len());
    let accepted = |flow: &FlowResult| flow.offered.saturating_sub(flow.not_accepted());
    let late: u64 = channels().filter_map(|flow| flow.late).sum();
    late as f64 / channels().map(accepted).sum::<u64>().max(1) as f64
}

/// The part of the channels' messages that was dropped.
pub(super) fn dropped_of_channels(flows: &[FlowResult]) -> f64 {
    dropped_part(&flows[..NAMES.len()])
}

/// The part of the messages of best effort that was dropped.
pub(super) fn dropped_of_best_effort(flows: &[FlowResult]) -> f64 {
    dropped_part(&flows[NAMES.len()..])
}

fn dropped_part(flows: &[FlowResult]) -> f64 {
    let sum = |of: fn(&FlowResult) -> u64| flows.iter().map(of).sum::<u64>();
    sum(FlowResult::not_accepted) as f64 / sum(|flow| flow.offered).max(1) as f64
}

/// The late messages of each channel in % for cases with names, as dots.
pub(super) fn late_of_cases(title: &str, x: &str, cases: &[(String, Vec<FlowResult>)]) -> Chart {
    let y = "late messages of a channel, % (excused ones too)";
    let mut chart = Chart::new(title, x, y).y_range(0.0, 100.0);
    for number in 0..NAMES.len() {
        let late = |flows: &[FlowResult]| late_part(&flows[number..=number]) * 100.0;
        let dots = cases.iter().enumerate();
        // Dots of the same height are beside each other.
        let beside = (number as f64 - 1.0) * 0.12;
        let dots = dots.map(|(at, (_, flows))| (at as f64 + beside, late(flows)));
        chart = chart.with(Series::new(NAMES[number], COLOURS[number], dots.collect()).dots());
    }
    with_names(chart, cases)
}

/// A quantity of best effort for cases with names, as dots.
pub(super) fn best_effort_of_cases(
    title: &str,
    (x, y): (&str, &str),
    cases: &[(String, Vec<FlowResult>)],
    value: fn(&FlowResult) -> f64,
) -> Chart {
    let dots = cases.iter().enumerate();
    let dots = dots.map(|(at, (_, flows))| (at as f64, value(&flows[NAMES.len()])));
    let series = Series::new("best effort", palette::INK, dots.collect()).dots();
    with_names(Chart::new(title, x, y).with(series), cases)
}

fn with_names(chart: Chart, cases: &[(String, Vec<FlowResult>)]) -> Chart {
    let chart = chart.x_range(-0.5, cases.len() as f64 - 0.5);
    let names = cases.iter().map(|(name, _)| name).enumerate();
    names.fold(chart, |chart, (at, name)| chart.x_name(at as f64, name))
}

fn of_flows(chart: Chart, runs: &[Run], value: impl Fn(&FlowResult) -> f64) -> Chart {
    let names = NAMES.iter().copied().chain(["best effort"]);
    let series = names.enumerate().map(|(number, name)| {
        let points = points(runs, |flows: &Vec<FlowResult>| value(&flows[number]));
        let series = Series::new(name, COLOURS[number], points);
        if number == 2 { series.dashed() } else { series }
    });
    series.fold(chart, Chart::with)
}

const COLOURS: [&str; 4] = [
    palette::BLUE,
    palette::ORANGE,
    palette::GREEN,
    palette::SOFT,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(late: u64) -> Vec<FlowResult> {
        let flow = |(number, name)| FlowResult {
            name,
            throughput: 100.0,
            offered: 100,
            dropped: 0,
            late: (number < 3).then_some(late),
            least_laxity: (number < 3).then_some(5.0),
            mean_laxity: (number < 3).then_some(8.0),
            on_packets: None,
        };
        let names = NAMES.into_iter().chain(["best effort"]);
        names.enumerate().map(flow).collect()
    }

    #[test]
    fn the_part_of_late_messages_leaves_best_effort_out() {
        assert!((late_part(&flows(30)) - 0.3).abs() < 1e-9);
        assert_eq!(late_part(&[]), 0.0);
        assert_eq!(dropped_of_channels(&flows(1)), 0.0);
        let mut flows = flows(1);
        flows[3].dropped = 50;
        assert_eq!(dropped_of_best_effort(&flows), 0.5);
    }

    #[test]
    fn charts_show_their_flows_and_deadlines() {
        let runs = [(200.0, flows(0)), (400.0, flows(1))];
        let svg = laxity("laxity", &runs, [40.0, 30.0, 20.0]).svg();
        assert!(svg.contains("deadline of channel 2: 20 ms") && svg.contains("channel 2, least"));
        let svg = throughput("throughput", BEST_EFFORT_LOAD, &runs).svg();
        assert!(svg.contains("channel 2") && svg.contains("stroke-dasharray=\"7 5\""));
        let cases = [
            ("P = 12".to_owned(), flows(1)),
            ("P = 73".to_owned(), flows(90)),
        ];
        let svg = late_of_cases("late", "P", &cases).svg();
        assert_eq!(svg.matches("<circle").count(), 6);
    }
}
