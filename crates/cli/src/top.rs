//! `netnice top`: shows the current rates of targets, and the targets that a limit delays.
//!
//! | command line | input and output | what |
//! |---|---|---|
//! | no option | a terminal | the full screen ([`full_screen`]), which can change limits |
//! | no option | no terminal, or `TERM` is `dumb` or not set | plain tables ([`plain_tables`]) |
//! | `-n N` | anything | N plain tables |
//! | `--once` | anything | one frame of the full screen as text, with all rows |
//! | `--json` | anything | the document of `show --all --json` on one line, repeatedly |
//!
//! With `--targets` all of these leave out the programs, and the daemon counts none.
//!
//! A table shows the traffic between the latest two readings of the daemon's counters, which are
//! usually a second apart. Fails if no daemon can be reached, if the connection to the daemon fails
//! (the full screen connects again), if a signal handler cannot be set, or if the terminal or the
//! output fails.

mod connections;
mod draw;
mod full_screen;
mod plain_tables;
mod prompt;
mod screen;
mod table;

use std::io::IsTerminal;

use netnice_api::{Exit, Response, RuntimeDir, WatchDoc};
use netnice_core::units::Nanos;

use crate::args::Top;
use crate::error::CommandError;
use crate::{daemon, output, show_all};
use draw::TerminalStyle;
use screen::Screen;

/// Shows targets until the user or a signal ends the program, or the number of tables is reached.
/// Fails for the reasons in the module's documentation.
pub(crate) fn execute(dir: &RuntimeDir, json: bool, options: &Top) -> Result<Exit, CommandError> {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    match (json, options.once, options.rounds) {
        (false, true, _) => print_frame(dir, options),
        (false, false, None) if terminal && !dumb => full_screen::run(dir, options),
        _ => plain_tables::print(dir, json, options),
    }
}

/// Prints one frame, with the traffic between two requests.
fn print_frame(dir: &RuntimeDir, options: &Top) -> Result<Exit, CommandError> {
    let mut client = daemon::connect(dir)?;
    let interval = match options.targets {
        true => options.interval,
        false => options.interval.max(SHORTEST_COUNT),
    };
    let mut screen = Screen::new(interval);
    // A rate needs two readings of the counters. The first request makes the daemon read them,
    // unless they were read for another client.
    for round in 0..2 {
        if round > 0 {
            std::thread::sleep(interval.into());
        }
        match request_table(&mut client, interval)? {
            Ok(doc) => screen.table.update(doc),
            Err(other) => {
                output::print_response(&other, false)?;
                return Ok(Exit::from(&other));
            }
        }
        if options.targets {
            continue;
        }
        match client.call(&show_all::programs_request(interval), None)? {
            Response::Programs(doc) => screen.table.update_programs(doc),
            other => {
                output::print_response(&other, false)?;
                return Ok(Exit::from(&other));
            }
        }
    }
    if let Response::History(doc) = client.call(&screen::history_request(), None)? {
        screen.table.prepend_history(&doc);
    }
    let lines = draw::frame_lines(
        &mut screen,
        TerminalStyle::of_environment(),
        output::width(),
    );
    output::print_text(&lines.join("\n"))?;
    Ok(Exit::Done)
}

/// Requests the table from the daemon. The inner error is a response of another kind.
fn request_table(
    client: &mut netnice_api::Client,
    interval: Nanos,
) -> Result<Result<WatchDoc, Response>, CommandError> {
    Ok(match client.call(&screen::table_request(interval), None)? {
        Response::Watched(doc) => Ok(doc),
        other => Err(other),
    })
}

/// The daemon reads the counts of programs at most twice a second; a frame needs two readings.
const SHORTEST_COUNT: Nanos = Nanos::from_millis(1_000);
