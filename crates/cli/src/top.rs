//! `netnice top`: shows the current rates of targets, and the targets that a limit delays.
//!
//! | command line | output | what |
//! |---|---|---|
//! | no option | a terminal | the full screen ([`live`]), which can change limits |
//! | `--once` | anything | one frame of it as text, with all rows |
//! | no option, or `-n` | no terminal, or `TERM=dumb` | plain tables in sequence ([`repeat`]) |
//! | `--json` | anything | the document of `show --json` on one line, repeatedly |
//!
//! The daemon reads its counters once a second. A table shows the traffic between the latest two
//! readings. Fails if no daemon can be reached or the terminal fails.

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

/// Shows targets until the user, a signal or the number of tables ends it.
pub(crate) fn serve(dir: &RuntimeDir, json: bool, asked: &Top) -> Result<Exit, Trouble> {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    match (json, asked.once, asked.rounds) {
        (false, true, _) => once(dir, asked.interval),
        (false, false, None) if terminal && !dumb => live::serve(dir, asked.interval),
        _ => repeat::serve(dir, json, asked),
    }
}

/// Prints one frame, with the traffic between two requests.
fn once(dir: &RuntimeDir, interval: Nanos) -> Result<Exit, Trouble> {
    let mut client = desk::connect(dir)?;
    let mut screen = Screen::new(interval);
    // The first request makes the daemon read its counters, if no other client did; a rate needs
    // two readings.
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

/// Asks the daemon for the table. The inner error is an answer of another kind.
fn look(
    client: &mut netnice_api::Client,
    interval: Nanos,
) -> Result<Result<WatchDoc, Response>, Trouble> {
    Ok(match client.call(&screen::look(interval), None)? {
        Response::Watched(doc) => Ok(doc),
        other => Err(other),
    })
}

/// The width of the terminal, else `COLUMNS`, else 80; limited to 80 to 400.
fn width() -> u16 {
    let said = std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok());
    let there = tcgetwinsize(std::io::stdout()).ok().map(|size| size.ws_col);
    let known = there.filter(|columns| *columns > 0).or(said);
    known.unwrap_or(80).clamp(80, 400)
}
