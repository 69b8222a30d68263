//! Formats the reports of `netnice doctor` and `netnice log` as text, one item or event after
//! another. No function fails.

use netnice_api::{DoctorReport, LogLines, Status};

use super::Style;
use super::printable;
use super::table::wrap;

/// Formats the items of the report, each with its status first, and their numbers by status.
pub(super) fn doctor(report: &DoctorReport, style: &Style) -> String {
    let mut lines = Vec::new();
    let width = report.items.iter().map(|item| item.name.chars().count());
    let width = width.max().unwrap_or(0).min(LONGEST_NAME);
    let indent = " ".repeat(STATUS_WIDTH + width + 4);
    for item in &report.items {
        let status = match item.status {
            Status::Good => "good",
            Status::Fallback => "instead",
            Status::Missing => "missing",
        };
        let name = printable(&item.name);
        let first = format!("{status:<STATUS_WIDTH$}  {name:<width$}  ");
        lines.extend(wrap(&printable(&item.detail), &first, &indent));
        if let Some(hint) = &item.hint {
            let hint = format!("try: {}", printable(hint));
            lines.extend(wrap(&hint, &indent, &indent));
        }
    }
    let count = |status| {
        report
            .items
            .iter()
            .filter(|item| item.status == status)
            .count()
    };
    let sum = format!(
        "{} good, {} replaced, {} missing",
        count(Status::Good),
        count(Status::Fallback),
        count(Status::Missing)
    );
    lines.push(style.heading(&sum));
    lines.join("\n")
}

/// Formats the log, each line with its time.
pub(super) fn log(log: &LogLines) -> String {
    let line =
        |line: &netnice_api::LogLine| format!("{}  {}", utc(line.at_ns), printable(&line.text));
    let lines: Vec<String> = log.lines.iter().map(line).collect();
    match lines.is_empty() {
        true => "no event".to_string(),
        false => lines.join("\n"),
    }
}

/// Formats a wall-clock time in UTC, in whole seconds.
pub(super) fn utc(since_1970_ns: u64) -> String {
    let seconds = since_1970_ns / 1_000_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01. A year begins in March here, so the leap
/// day is its last day; 400 years are 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let in_month = day - (153 * month + 2) / 5 + 1;
    let (month, after) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + after, month, in_month)
}

/// Length of the longest status word.
const STATUS_WIDTH: usize = 7;

/// Largest width of the name column; a longer name moves its detail to the right.
const LONGEST_NAME: usize = 24;
