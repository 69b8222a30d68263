//! Prints the current rates at each interval, for pipes and simple terminals: as a plain table, or
//! with `--json` as the document of `show --all --json` on one line. With `--targets` the output
//! has no programs. Fails if the daemon cannot be reached, the connection to it fails, or standard
//! output cannot be written.

use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{Client, Exit, Request, Response, RuntimeDir, Show};

use super::request_table;
use crate::args::Top;
use crate::error::CommandError;
use crate::render::{self, Style};
use crate::{daemon, output, show_all};

/// The next table, or line of JSON. The inner error is a response of another kind.
fn text(
    client: &mut Client,
    json: bool,
    options: &Top,
    style: &Style,
) -> Result<Result<String, Response>, CommandError> {
    let interval = options.interval;
    Ok(match (json, options.targets) {
        (true, true) => match client.call(&Request::Show(Show { target: None }), None)? {
            Response::Shown(doc) => Ok(render::json_line(&doc)),
            other => Err(other),
        },
        (true, false) => show_all::state(client, interval)?.map(|doc| render::json_line(&doc)),
        (false, true) => {
            request_table(client, interval)?.map(|doc| render::rate_table(&doc, style))
        }
        (false, false) => {
            let targets = match request_table(client, interval)? {
                Ok(doc) => render::rate_table(&doc, style),
                Err(other) => return Ok(Err(other)),
            };
            match client.call(&show_all::programs_request(interval), None)? {
                Response::Programs(doc) => {
                    let programs = render::programs(&doc, style, Some(output::width().into()));
                    Ok(format!("{targets}\n\n{programs}"))
                }
                other => Err(other),
            }
        }
    })
}

/// Prints tables until their number is reached, the daemon fails or standard output is closed.
pub(super) fn print(dir: &RuntimeDir, json: bool, options: &Top) -> Result<Exit, CommandError> {
    let mut client = daemon::connect(dir)?;
    let style = Style::of_stdout();
    let interval = Duration::from(options.interval);
    let mut next = Instant::now();
    let mut round = 0;
    loop {
        let text = match text(&mut client, json, options, &style)? {
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
