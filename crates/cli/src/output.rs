//! Prints results to standard output, and refusals and failures to standard error. Fails with a
//! [`CommandError`] if writing to standard output fails.

use std::io::{self, Write};

use netnice_api::Response;
use rustix::termios::tcgetwinsize;

use crate::error::CommandError;
use crate::render::{self, Style, printable};

/// Prints a response of the daemon: a result to standard output, the text of a refusal or failure
/// to standard error. With `json`, standard output gets every response as JSON instead of text.
///
/// # Errors
/// As [`print_text`].
pub(crate) fn print_response(response: &Response, json: bool) -> Result<(), CommandError> {
    if json {
        print_text(&render::json(response))?;
    }
    match response {
        Response::Refused(refused) => eprintln!("netnice: {}", printable(&refused.text)),
        Response::Failed(failed) => eprintln!("netnice: {}", printable(&failed.text)),
        other if !json => print_text(&render::text(other, &Style::of_stdout()))?,
        _ => {}
    }
    Ok(())
}

/// Prints lines to standard output and flushes it.
///
/// # Errors
/// [`CommandError::OutputClosed`] if the reader of a pipe has ended; else the error of the write.
pub(crate) fn print_text(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
    written.map_err(output_error)
}

/// Writes bytes to standard output and flushes it.
///
/// # Errors
/// As [`print_text`].
pub(crate) fn write_bytes(bytes: &[u8]) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(output_error)
}

pub(crate) fn output_error(source: io::Error) -> CommandError {
    match source.kind() {
        io::ErrorKind::BrokenPipe => CommandError::OutputClosed,
        _ => CommandError::io("standard output", source),
    }
}

/// The width of the terminal, else `COLUMNS`, else 80; limited to 80 to 400.
pub(crate) fn width() -> u16 {
    let variable = std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok());
    let terminal = tcgetwinsize(std::io::stdout()).ok().map(|size| size.ws_col);
    let width = terminal.filter(|columns| *columns > 0).or(variable);
    width.unwrap_or(80).clamp(80, 400)
}
