//! `netnice show --all`: links and targets, and every program that sends or receives. The daemon
//! counts programs only while a client asks, so the command asks twice, a second apart, and shows
//! the traffic of that second. Fails if the daemon cannot be reached, the connection to it fails,
//! or standard output cannot be written.

use std::io::IsTerminal;
use std::thread;

use netnice_api::{
    Client, ClientError, Exit, Programs, Request, Response, RuntimeDir, Show, ShowDoc,
};
use netnice_core::units::Nanos;

use crate::error::CommandError;
use crate::render::{self, Style};
use crate::{daemon, output};

/// Prints the state with all programs.
pub(crate) fn execute(dir: &RuntimeDir, json: bool) -> Result<Exit, CommandError> {
    let mut client = daemon::connect(dir)?;
    // The first request begins the counting.
    let began = client.call(&programs_request(INTERVAL), None)?;
    if matches!(began, Response::Programs(_)) {
        thread::sleep(INTERVAL.into());
    }
    let doc = match state(&mut client, INTERVAL)? {
        Ok(doc) => doc,
        Err(other) => {
            output::print_response(&other, json)?;
            return Ok(Exit::from(&other));
        }
    };
    match json {
        true => output::print_response(&Response::Shown(doc), true)?,
        false => {
            let style = Style::of_stdout();
            let width = std::io::stdout()
                .is_terminal()
                .then(|| output::width().into());
            let programs = doc.programs.clone().unwrap_or_default();
            let state = render::text(&Response::Shown(doc), &style);
            let programs = render::programs(&programs, &style, width);
            output::print_text(&format!("{state}\n\n{programs}"))?;
        }
    }
    Ok(Exit::Done)
}

/// The state with the traffic of all programs. The inner error is a response of another kind.
///
/// # Errors
/// If the connection to the daemon fails.
pub(crate) fn state(
    client: &mut Client,
    interval: Nanos,
) -> Result<Result<ShowDoc, Response>, ClientError> {
    let programs = match client.call(&programs_request(interval), None)? {
        Response::Programs(doc) => doc,
        other => return Ok(Err(other)),
    };
    match client.call(&Request::Show(Show { target: None }), None)? {
        Response::Shown(doc) => Ok(Ok(ShowDoc {
            programs: Some(Box::new(programs)),
            ..doc
        })),
        other => Ok(Err(other)),
    }
}

/// The request for the traffic of programs, by a client that repeats it after `interval`.
pub(crate) fn programs_request(interval: Nanos) -> Request {
    Request::Programs(Programs {
        // A reading of another client is new enough if it is not the one of the last request.
        within_ns: interval.0 / 2,
        keep_ns: interval.0.saturating_mul(3),
    })
}

/// The time between the two requests.
const INTERVAL: Nanos = Nanos::from_secs(1);
