//! Answers as text for people, and as JSON.
//!
//! Text fits 80 columns. A rate is shown in both of its forms, `4 Mbit/s (500 kB/s)`; where a
//! table would become too wide for that, in its first form. Nothing is said by colour alone, and
//! there is none where standard output is no terminal or `NO_COLOR` is set.

mod contract;
mod history;
mod lines;
mod show;
pub(crate) mod spark;
mod table;
mod users;

use std::io::IsTerminal;

use netnice_api::{Done, Response, ShowDoc};
use serde::Serialize;

use crate::desk::plain;
pub(crate) use show::{managed, top};

/// How text may look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    /// Headings may be bold.
    pub bold: bool,
}

impl Style {
    /// What standard output can show.
    pub(crate) fn of_stdout() -> Style {
        Style::of(std::io::stdout().is_terminal())
    }

    /// What standard error can show.
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

    /// A heading.
    fn heading(self, text: &str) -> String {
        match self.bold {
            true => format!("\x1b[1m{text}\x1b[0m"),
            false => text.to_string(),
        }
    }
}

/// An answer as text.
pub(crate) fn text(response: &Response, style: &Style) -> String {
    match response {
        Response::Pong(pong) => {
            let daemon = plain(&pong.daemon);
            format!("netniced {daemon} (protocol {})", pong.protocol)
        }
        Response::Done(done) => self::done(done),
        Response::Shown(doc) => show::shown(doc, style),
        Response::Users(doc) => users::users(doc, style),
        Response::History(doc) => {
            history::history(doc, spark::Steps::new(spark::unicode_locale()), style)
        }
        // These are asked for by `top` only, which draws them itself.
        Response::Watched(doc) => json_line(doc),
        Response::Connections(doc) => json_line(doc),
        // These are asked for by programs that have direct flows.
        Response::Direct(answer) => json_line(answer),
        Response::Explained(explained) => {
            let lines: Vec<String> = explained.lines.iter().map(|line| plain(line)).collect();
            lines.join("\n")
        }
        Response::Found(found) => pretty(found),
        Response::Doctor(report) => lines::doctor(report, style),
        Response::Log(log) => lines::log(log),
        Response::Refused(refused) => plain(&refused.text),
        Response::Failed(failed) => plain(&failed.text),
    }
}

/// The state of one target, by the words for whom it was asked.
pub(crate) fn one(doc: &ShowDoc, who: &str, style: &Style) -> String {
    match doc.targets.is_empty() {
        true => format!("nothing is limited or guaranteed for {who}"),
        false => show::targets(&doc.targets, style),
    }
}

/// An answer as JSON: what was asked for by itself, refusals and failures under their name.
pub(crate) fn json(response: &Response) -> String {
    match response {
        Response::Pong(pong) => pretty(pong),
        Response::Done(done) => pretty(done),
        Response::Shown(doc) => pretty(doc),
        Response::Users(doc) => pretty(doc),
        Response::History(doc) => pretty(doc),
        Response::Watched(doc) => pretty(doc),
        Response::Connections(doc) => pretty(doc),
        Response::Direct(answer) => pretty(answer),
        Response::Explained(explained) => pretty(explained),
        Response::Found(found) => pretty(found),
        Response::Doctor(report) => pretty(report),
        Response::Log(log) => pretty(log),
        Response::Refused(_) | Response::Failed(_) => pretty(response),
    }
}

/// A document as JSON on one line.
pub(crate) fn json_line(document: &impl Serialize) -> String {
    // Plain data of our own: nothing in it can fail to be written.
    serde_json::to_string(document).unwrap_or_default()
}

fn pretty(document: &impl Serialize) -> String {
    serde_json::to_string_pretty(document).unwrap_or_default()
}

/// What was done, or would be.
fn done(done: &Done) -> String {
    let mut lines = Vec::new();
    if let Some(target) = &done.target {
        let (own, effective) = (done.contract.as_deref(), done.effective.as_deref());
        let (said, holds) = contract::said_and_holds(own, effective);
        lines.push(format!("{}  {said}", plain(target)).trim_end().to_string());
        lines.extend(holds.map(|holds| format!("  holds: {holds}")));
    }
    lines.extend(done.messages.iter().map(|line| plain(line)));
    if let Some(plan) = &done.plan {
        lines.push(match plan.is_empty() {
            true => "nothing would be changed".to_string(),
            false => "would be done:".to_string(),
        });
        lines.extend(plan.iter().map(|line| format!("  {}", plain(line))));
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

/// The width that everything fits.
const WIDTH: usize = 80;

#[cfg(test)]
mod tests;
