//! `netnice top`: who does what now, and whom a limit holds back.
//!
//! | asked for | where | what |
//! |---|---|---|
//! | nothing | a terminal | the full screen ([`live`]): a table that can be moved about in, and in which limits are changed |
//! | `--once` | anywhere | one frame of it, with all rows, as text |
//! | nothing, or `-n` | no terminal, or `TERM=dumb` | plain tables one after the other ([`repeat`]) |
//! | `--json` | anywhere | `show --json` on a line, again and again |
//!
//! The daemon measures once a second; a table shows what passed between the last two readings.

mod draw;
mod live;
mod peers;
mod prompt;
mod repeat;
mod screen;
mod table;

use std::io::IsTerminal;

use netnice_api::{Exit, Response, RuntimeDir, WatchDoc};
use netnice_core::units::Nanos;
use rustix::termios::tcgetwinsize;

use crate::args::Top;
use crate::desk::{self, Trouble};
use draw::Looks;
use screen::Screen;

/// Shows targets until told to stop.
pub(crate) fn serve(dir: &RuntimeDir, json: bool, asked: &Top) -> Result<Exit, Trouble> {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    match (json, asked.once, asked.rounds) {
        (false, true, _) => once(dir, asked.interval),
        (false, false, None) if terminal && !dumb => live::serve(dir, asked.interval),
        _ => repeat::serve(dir, json, asked),
    }
}

/// One frame, with what happens between two looks.
fn once(dir: &RuntimeDir, interval: Nanos) -> Result<Exit, Trouble> {
    let mut client = desk::connect(dir)?;
    let mut screen = Screen::new(interval);
    // The first look makes the daemon measure, if nobody has looked before; a rate takes two readings.
    for round in 0..2 {
        if round > 0 {
            std::thread::sleep(interval.into());
        }
        match look(&mut client, interval)? {
            Ok(doc) => screen.table.take(doc),
            Err(other) => {
                desk::print(&other, false)?;
                return Ok(Exit::from(&other));
            }
        }
    }
    if let Response::History(doc) = client.call(&screen::past(), None)? {
        screen.table.remember(&doc);
    }
    let lines = draw::once(&mut screen, Looks::of_environment(), width());
    desk::say(&lines.join("\n"))?;
    Ok(Exit::Done)
}

/// Asks for the table; the answer may be another one.
fn look(
    client: &mut netnice_api::Client,
    interval: Nanos,
) -> Result<Result<WatchDoc, Response>, Trouble> {
    Ok(match client.call(&screen::look(interval), None)? {
        Response::Watched(doc) => Ok(doc),
        other => Err(other),
    })
}

/// The width of the terminal, or of `COLUMNS`, or what fits everywhere.
fn width() -> u16 {
    let said = std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok());
    let there = tcgetwinsize(std::io::stdout()).ok().map(|size| size.ws_col);
    let known = there.filter(|columns| *columns > 0).or(said);
    known.unwrap_or(80).clamp(80, 400)
}
