//! `netnice top`: targets by rate, again and again.
//!
//! The rate of a target is what it sent between two answers of the daemon, by the daemon's own
//! clock; in the first table it is what the daemon measured over the last second.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{CountersDoc, Exit, Request, Response, RuntimeDir, Show, ShowDoc};
use netnice_core::contract::Direction;
use netnice_core::units::Amount;

use crate::args::Top;
use crate::desk::{self, Trouble};
use crate::render::{self, Style};

/// What passed of one target in one direction between two answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Bits per second.
    pub rate: Amount,
    /// Packets dropped per second, rounded down.
    pub drops: u64,
}

/// Prints tables until told to stop.
pub(crate) fn serve(dir: &RuntimeDir, json: bool, asked: &Top) -> Result<Exit, Trouble> {
    let mut client = desk::connect(dir)?;
    let style = Style::of_stdout();
    let clear = !json && std::io::stdout().is_terminal();
    let interval = Duration::from(asked.interval);
    let mut next = Instant::now();
    let mut before: Option<ShowDoc> = None;
    let mut round = 0;
    loop {
        let response = client.call(&Request::Show(Show { target: None }), None)?;
        let Response::Shown(now) = response else {
            desk::print(&response, json)?;
            return Ok(Exit::from(&response));
        };
        let text = match json {
            true => render::json_line(&now),
            false => render::top(&now, &paces(before.as_ref(), &now), &style),
        };
        let start = if clear { HOME_AND_CLEAR } else { "" };
        let gap = if json || clear { "" } else { "\n" };
        desk::say(&format!("{start}{}", text.trim_end()))?;
        round += 1;
        if asked.rounds == Some(round) {
            return Ok(Exit::Done);
        }
        if !gap.is_empty() {
            desk::say(gap)?;
        }
        before = Some(now);
        next += interval;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// The pace of every target, sending and receiving.
pub(crate) fn paces(before: Option<&ShowDoc>, now: &ShowDoc) -> BTreeMap<String, [Pace; 2]> {
    let earlier = |target: &str| {
        let targets = &before?.targets;
        let found = targets.iter().find(|doc| doc.target == target)?;
        Some(&found.counters)
    };
    let pace = |doc: &netnice_api::TargetDoc| {
        let earlier = earlier(&doc.target);
        let paces = Direction::ALL.map(|direction| pace(earlier, &doc.counters, direction));
        (doc.target.clone(), paces)
    };
    now.targets.iter().map(pace).collect()
}

/// What passed between two readings; without the first, or if the counters began anew, what the
/// daemon measured.
fn pace(before: Option<&CountersDoc>, now: &CountersDoc, direction: Direction) -> Pace {
    let measured = Pace {
        rate: now.rate(direction).unwrap_or_default(),
        drops: 0,
    };
    let Some(before) = before.filter(|before| before.at_ns < now.at_ns) else {
        return measured;
    };
    let per_second = |name: &str, factor: u128| -> Option<u64> {
        let grown = now
            .get(direction, name)
            .checked_sub(before.get(direction, name))?;
        let time = u128::from(now.at_ns - before.at_ns);
        u64::try_from(u128::from(grown) * factor * 1_000_000_000 / time).ok()
    };
    match (
        per_second("sent_bytes", 8),
        per_second("dropped_packets", 1),
    ) {
        (Some(rate), Some(drops)) => Pace {
            rate: Amount(rate),
            drops,
        },
        _ => measured,
    }
}

/// The cursor to the corner, and an empty screen (ECMA-48 CUP, ED).
const HOME_AND_CLEAR: &str = "\x1b[H\x1b[2J";

#[cfg(test)]
mod tests;
