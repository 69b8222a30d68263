//! Formats the daemon's responses as text ([`text`]) or as JSON ([`json`]).
//!
//! Text is laid out for 80 columns. A rate in a column of limits, guarantees or capacities, or in a
//! contract, is shown in both forms, `4 Mbit/s (500 kB/s)`, or in the first form if a table would
//! be too wide. So is the measured rate in the plain tables of `top`; any other measured rate is
//! shown in the first form. Headings are bold, unless the output is no terminal, `TERM` is `dumb`
//! or not set, or `NO_COLOR` is set ([`Style`]).
//!
//! No function fails.

mod budgets;
mod contract;
mod flows;
mod history;
mod processors;
mod programs;
mod reports;
mod show;
pub(crate) mod sparkline;
mod table;
mod users;

use std::io::IsTerminal;

use netnice_api::{Done, Response, ShowDoc};
use serde::Serialize;

pub(crate) use flows::flow_list;
pub(crate) use processors::reserved_time;
pub(crate) use programs::{group as program_group, programs, sums, user as program_user};
pub(crate) use show::{clearable, managed_links, quota_line, rate_table};
use sparkline::Sparkline;

/// How headings are shown on an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    /// True if headings may be bold.
    pub bold: bool,
}

impl Style {
    /// The style for standard output.
    pub(crate) fn of_stdout() -> Style {
        Style::of(std::io::stdout().is_terminal())
    }

    /// The style for standard error.
    pub(crate) fn of_stderr() -> Style {
        Style::of(std::io::stderr().is_terminal())
    }

    fn of(terminal: bool) -> Style {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Style {
            bold: terminal && !set("NO_COLOR") && !dumb,
        }
    }

    /// Formats a heading.
    fn heading(self, text: &str) -> String {
        match self.bold {
            true => format!("\x1b[1m{text}\x1b[0m"),
            false => text.to_string(),
        }
    }
}

/// Formats a response as text.
pub(crate) fn text(response: &Response, style: &Style) -> String {
    match response {
        Response::Pong(pong) => {
            let daemon = printable(&pong.daemon);
            format!("netniced {daemon} (protocol {})", pong.protocol)
        }
        Response::Done(done) => self::done(done),
        Response::Shown(doc) => show::state(doc, style),
        Response::Users(doc) => users::users(doc, style),
        Response::History(doc) => {
            let sparkline = Sparkline::new(sparkline::unicode_locale());
            history::history(doc, sparkline, style)
        }
        Response::Programs(doc) => programs::programs(doc, style, None),
        // Only `top` sends these requests, and `top` draws the responses itself.
        Response::Watched(doc) => json_line(doc),
        Response::Connections(doc) => json_line(doc),
        // Only programs with direct flows send these requests.
        Response::Direct(answer) => json_line(answer),
        Response::Explained(explained) => {
            let lines: Vec<String> = explained.lines.iter().map(|line| printable(line)).collect();
            lines.join("\n")
        }
        Response::Found(found) => pretty(found),
        Response::Doctor(report) => reports::doctor(report, style),
        Response::Log(log) => reports::log(log),
        Response::Refused(refused) => printable(&refused.text),
        Response::Failed(failed) => printable(&failed.text),
    }
}

/// Formats the targets of a response about one target, which the user calls `name`.
pub(crate) fn single_target(doc: &ShowDoc, name: &str, style: &Style) -> String {
    let mut tables: Vec<String> = show::other_network(doc).into_iter().collect();
    let remarks = tables.len();
    if !doc.targets.is_empty() {
        tables.push(show::targets(&doc.targets, style));
    }
    if !doc.direct.is_empty() {
        tables.push(flows::flows(&doc.direct, style));
    }
    if tables.len() == remarks {
        tables.push(format!("nothing is limited or guaranteed for {name}"));
    }
    tables.join("\n\n")
}

/// Formats a response as JSON: a result without a wrapper, a refusal or failure under its name.
pub(crate) fn json(response: &Response) -> String {
    match response {
        Response::Pong(pong) => pretty(pong),
        Response::Done(done) => pretty(done),
        Response::Shown(doc) => pretty(doc),
        Response::Users(doc) => pretty(doc),
        Response::History(doc) => pretty(doc),
        Response::Watched(doc) => pretty(doc),
        Response::Connections(doc) => pretty(doc),
        Response::Programs(doc) => pretty(doc),
        Response::Direct(answer) => pretty(answer),
        Response::Explained(explained) => pretty(explained),
        Response::Found(found) => pretty(found),
        Response::Doctor(report) => pretty(report),
        Response::Log(log) => pretty(log),
        Response::Refused(_) | Response::Failed(_) => pretty(response),
    }
}

/// Formats a document as JSON on one line.
pub(crate) fn json_line(document: &impl Serialize) -> String {
    // Serializing these plain types cannot fail.
    serde_json::to_string(document).unwrap_or_default()
}

fn pretty(document: &impl Serialize) -> String {
    serde_json::to_string_pretty(document).unwrap_or_default()
}

/// Formats a change that was made, or would be made in a dry run.
fn done(done: &Done) -> String {
    let mut lines = Vec::new();
    if let Some(target) = &done.target {
        let (own, effective) = (done.contract.as_deref(), done.effective.as_deref());
        let (claim, effective) = contract::claim_and_effective(own, effective);
        lines.push(
            format!("{}  {claim}", printable(target))
                .trim_end()
                .to_string(),
        );
        lines.extend(effective.map(|effective| format!("  holds: {effective}")));
    }
    lines.extend(done.messages.iter().map(|line| printable(line)));
    if let Some(plan) = &done.plan {
        lines.push(match plan.is_empty() {
            true => "nothing would be changed".to_string(),
            false => "would be done:".to_string(),
        });
        lines.extend(plan.iter().map(|line| format!("  {}", printable(line))));
    }
    if let Some(id) = done.confirm {
        lines.push(format!(
            "undone unless confirmed in time: netnice confirm {id}"
        ));
    }
    if lines.is_empty() {
        lines.push("done".to_string());
    }
    lines.join("\n")
}

/// Removes control characters except line ends, and white space at the end.
pub(crate) fn printable(text: &str) -> String {
    let keep = |c: &char| *c == '\n' || !c.is_control();
    text.trim_end().chars().filter(keep).collect()
}

/// Width of all text in columns.
const WIDTH: usize = 80;

#[cfg(test)]
mod tests;
