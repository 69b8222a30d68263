//! Prints plain tables one after the other, for pipes and simple terminals.

use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{Exit, Request, Response, RuntimeDir, Show};

use super::look;
use crate::args::Top;
use crate::desk::{self, Trouble};
use crate::render::{self, Style};

/// Prints tables until their number is reached, the daemon fails or standard output closes.
pub(super) fn serve(dir: &RuntimeDir, json: bool, asked: &Top) -> Result<Exit, Trouble> {
    let mut client = desk::connect(dir)?;
    let style = Style::of_stdout();
    let interval = Duration::from(asked.interval);
    let mut next = Instant::now();
    let mut round = 0;
    loop {
        let answer = match json {
            true => match client.call(&Request::Show(Show { target: None }), None)? {
                Response::Shown(doc) => Ok(render::json_line(&doc)),
                other => Err(other),
            },
            false => look(&mut client, asked.interval)?.map(|doc| render::top(&doc, &style)),
        };
        let text = match answer {
            Ok(text) => text,
            Err(other) => {
                desk::print(&other, json)?;
                return Ok(Exit::from(&other));
            }
        };
        desk::say(text.trim_end())?;
        round += 1;
        if asked.rounds == Some(round) {
            return Ok(Exit::Done);
        }
        if !json {
            desk::say("")?;
        }
        next += interval;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
