//! Prints plain tables of the current rates one after the other, for pipes and simple terminals;
//! with `--json` the document of `show --json`, one line each. Fails if the daemon cannot be
//! reached, the connection to it fails, or standard output cannot be written.

use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{Exit, Request, Response, RuntimeDir, Show};

use super::request_table;
use crate::args::Top;
use crate::error::CommandError;
use crate::render::{self, Style};
use crate::{daemon, output};

/// Prints tables until their number is reached, the daemon fails or standard output is closed.
pub(super) fn print(dir: &RuntimeDir, json: bool, options: &Top) -> Result<Exit, CommandError> {
    let mut client = daemon::connect(dir)?;
    let style = Style::of_stdout();
    let interval = Duration::from(options.interval);
    let mut next = Instant::now();
    let mut round = 0;
    loop {
        let answer = match json {
            true => match client.call(&Request::Show(Show { target: None }), None)? {
                Response::Shown(doc) => Ok(render::json_line(&doc)),
                other => Err(other),
            },
            false => request_table(&mut client, options.interval)?
                .map(|doc| render::rate_table(&doc, &style)),
        };
        let text = match answer {
            Ok(text) => text,
            Err(other) => {
                output::print_response(&other, json)?;
                return Ok(Exit::from(&other));
            }
        };
        output::print_text(text.trim_end())?;
        round += 1;
        if options.rounds == Some(round) {
            return Ok(Exit::Done);
        }
        if !json {
            output::print_text("")?;
        }
        next += interval;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
