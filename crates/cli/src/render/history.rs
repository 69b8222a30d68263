//! Formats past rates of targets as text, for `netnice show --history`.
//!
//! A target has a sparkline for each direction, or one for both with a `both` limit: a row of at
//! most 60 characters, one for each point or for the mean of several points. Below a sparkline are
//! the mean rate, the highest rate in the row, and the limit if there is one. A single target also
//! has a table of its latest 20 points. If there are no targets or no points yet, the text reports
//! that. No function fails.

use netnice_api::{HistoryDoc, TargetHistory};
use netnice_core::units::{Amount, Nanos};

use super::Style;
use super::printable;
use super::reports::utc;
use super::show::milliseconds;
use super::sparkline::Sparkline;
use super::table::{Cell, Table};

/// Formats the history of targets; for a single one also its latest points.
pub(super) fn history(doc: &HistoryDoc, sparkline: Sparkline, style: &Style) -> String {
    let Some(longest) = doc.targets.iter().map(total_time).max() else {
        return "no target is limited or guaranteed".to_string();
    };
    if longest == 0 {
        return "there is no history yet: the daemon reads its counters each second".to_string();
    }
    let mut blocks: Vec<String> = doc
        .targets
        .iter()
        .map(|t| rows(t, sparkline, style))
        .collect();
    if let [target] = doc.targets.as_slice() {
        blocks.push(points(target, doc.until_ns, style));
    }
    blocks.join("\n\n")
}

/// The time that a history covers, in ns.
fn total_time(target: &TargetHistory) -> u64 {
    target
        .time_ns
        .iter()
        .fold(0, |sum, time| sum.saturating_add(*time))
}

/// Formats the sparklines of both directions of one target, each with its mean and maximum.
fn rows(target: &TargetHistory, sparkline: Sparkline, style: &Style) -> String {
    let span = Nanos(total_time(target) / 1_000_000_000 * 1_000_000_000);
    let heading = format!("{}  the last {span}", printable(&target.target));
    let mut lines = vec![style.heading(&heading)];
    let directions = match target.both {
        Some(_) => vec![("both", &target.up_rate, target.both)],
        None => vec![
            ("up", &target.up_rate, target.up),
            ("down", &target.down_rate, target.down),
        ],
    };
    for (word, rates, limit) in directions {
        let (rates, _) = merged(&target.time_ns, rates);
        let row = sparkline.row(&rates, limit, ROW);
        let most = Amount(rates.iter().copied().max().unwrap_or(0)).bits_text();
        let mean = Amount(mean(
            &target.time_ns,
            match word {
                "down" => &target.down_rate,
                _ => &target.up_rate,
            },
        ));
        let limit = limit.map_or(String::new(), |limit| {
            format!(" of {}", Amount(limit).bits_text())
        });
        let mean = mean.bits_text();
        lines.push(format!("  {word:<5}|{row}|").trim_end().to_string());
        lines.push(format!("        mean {mean}, most {most}{limit}"));
    }
    lines.join("\n")
}

/// Merges neighbouring points until at most [`ROW`] are left. Returns the mean rate and the length
/// in ns of each.
fn merged(times: &[u64], rates: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let points: Vec<(u64, u64)> = times.iter().copied().zip(rates.iter().copied()).collect();
    let together = points.len().div_ceil(ROW).max(1);
    // Merges from the end, so that the newest points have full groups.
    let chunks = points.rchunks(together).rev();
    let sums = chunks.map(|chunk| {
        let (times, rates): (Vec<u64>, Vec<u64>) = chunk.iter().copied().unzip();
        (mean(&times, &rates), times.iter().sum::<u64>())
    });
    sums.unzip()
}

/// The mean rate, weighted by time.
fn mean(times: &[u64], rates: &[u64]) -> u64 {
    let pairs = || times.iter().zip(rates);
    let all: u128 = pairs().map(|(time, _)| u128::from(*time)).sum();
    let bits: u128 = pairs()
        .map(|(time, rate)| u128::from(*time) * u128::from(*rate))
        .sum();
    u64::try_from(bits / all.max(1)).unwrap_or(u64::MAX)
}

/// Formats the latest points of one target as a table.
fn points(target: &TargetHistory, until_ns: u64, style: &Style) -> String {
    let mut table = Table::new(&["UNTIL", "UP", "DOWN", "DROPS", "WAIT"]);
    let count = target.time_ns.len();
    let mut later = 0;
    let mut rows = Vec::new();
    for at in (0..count).rev().take(MAX_POINTS) {
        let cell = |column: &[u64]| column.get(at).copied().unwrap_or(0);
        let rate = |column: &[u64]| Cell::new(Amount(cell(column)).bits_text());
        rows.push(vec![
            Cell::new(utc(until_ns.saturating_sub(later))),
            rate(&target.up_rate),
            rate(&target.down_rate),
            Cell::new(cell(&target.dropped_packets).to_string()),
            Cell::new(milliseconds(Nanos(cell(&target.queue_delay_ns)))),
        ]);
        later += cell(&target.time_ns);
    }
    rows.into_iter().rev().for_each(|row| table.row(row));
    table.render(style)
}

/// Characters of a sparkline; with its label and margins it fits 80 columns.
const ROW: usize = 60;
/// Largest number of lines in the table; `--json` prints all points.
const MAX_POINTS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn target(points: usize) -> TargetHistory {
        TargetHistory {
            target: "pid:7".into(),
            up: Some(8_000_000),
            time_ns: vec![1_000_000_000; points],
            up_rate: (0..points as u64)
                .map(|n| n * 1_000_000 % 8_000_001)
                .collect(),
            down_rate: vec![1_000; points],
            dropped_packets: vec![3; points],
            queue_delay_ns: vec![1_500_000; points],
            ..TargetHistory::default()
        }
    }

    fn formatted(targets: Vec<TargetHistory>) -> String {
        let doc = HistoryDoc {
            version: 1,
            until_ns: 1_795_219_200_000_000_000,
            step_ns: 1_000_000_000,
            targets,
        };
        history(&doc, Sparkline::new(false), &Style::default())
    }

    #[test]
    fn a_single_target_has_rows_and_a_table_of_points() {
        let text = formatted(vec![target(9)]);
        let row = format!("  up   |{:>60}|", " .,:-=+*#");
        let expected = [
            "pid:7  the last 9s",
            &row,
            "        mean 4 Mbit/s, most 8 Mbit/s of 8 Mbit/s",
            "  down |                                                   #########|",
            "        mean 1 kbit/s, most 1 kbit/s",
            "",
            "UNTIL                 UP        DOWN      DROPS  WAIT",
            "2026-11-20 23:59:52Z  0 bit/s   1 kbit/s  3      1.5 ms",
        ];
        let lines: Vec<&str> = text.lines().take(expected.len()).collect();
        assert_eq!(lines, expected, "\n{text}");
        assert!(
            text.ends_with("2026-11-21 00:00:00Z  8 Mbit/s  1 kbit/s  3      1.5 ms"),
            "{text}"
        );
    }

    #[test]
    fn a_long_history_is_merged_to_the_width_and_keeps_its_mean() {
        let many = target(120);
        let (rates, times) = merged(&many.time_ns, &many.up_rate);
        assert_eq!(rates.len(), 60);
        assert_eq!(times.iter().sum::<u64>(), 120_000_000_000);
        let whole = mean(&many.time_ns, &many.up_rate);
        assert!(mean(&times, &rates).abs_diff(whole) <= 1, "rounded twice");
        let text = formatted(vec![target(120), target(360)]);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(!text.contains("UNTIL"), "the table is for one target");
        let both = TargetHistory {
            both: Some(9),
            ..target(2)
        };
        assert!(formatted(vec![both]).contains("  both |"));
    }

    #[test]
    fn an_empty_history_has_a_text() {
        assert_eq!(formatted(Vec::new()), "no target is limited or guaranteed");
        assert!(formatted(vec![TargetHistory::default()]).contains("there is no history yet"));
    }
}
