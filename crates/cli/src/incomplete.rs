//! Refuses `netnice clear` without a target and `netnice confirm` without a number, and lists what
//! could be named: the targets and links that are set, or the changes that wait for a confirmation.
//! Starts no daemon. The exit status is 2, or that of the daemon's response if the daemon does not
//! report its state. Fails if no daemon answers although one has left a state in the runtime
//! folder, if the connection breaks, or if standard output cannot be written.

use netnice_api::{Client, ClientError, Exit, Request, Response, RuntimeDir, Show, ShowDoc};
use netnice_core::units::Nanos;

use crate::error::CommandError;
use crate::output::print_response;
use crate::render;

/// An incomplete command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incomplete {
    /// `clear` without a target and without `--all`.
    Clear,
    /// `confirm` without a number.
    Confirm,
}

/// Prints what is missing, with a list of what could be named.
pub(crate) fn execute(
    dir: &RuntimeDir,
    json: bool,
    incomplete: Incomplete,
) -> Result<Exit, CommandError> {
    let doc = match Client::connect(dir) {
        Ok(mut client) => match client.call(&Request::Show(Show { target: None }), None)? {
            Response::Shown(doc) => doc,
            other => {
                print_response(&other, json)?;
                return Ok(Exit::from(&other));
            }
        },
        Err(ClientError::NoDaemon { .. }) if !has_state(dir) => ShowDoc::default(),
        Err(ClientError::NoDaemon { .. }) => return Err(CommandError::Stopped(dir.clone())),
        Err(error) => return Err(error.into()),
    };
    let text = text(incomplete, &doc);
    let response = Response::bad_usage(text);
    print_response(&response, json)?;
    Ok(Exit::from(&response))
}

/// True if a daemon that does not run any more has left its state, or that cannot be read.
fn has_state(dir: &RuntimeDir) -> bool {
    !matches!(dir.state().try_exists(), Ok(false))
}

fn text(incomplete: Incomplete, doc: &ShowDoc) -> String {
    let (head, none, list) = match incomplete {
        Incomplete::Clear => (
            "name a target, or --all for all that you may clear; these are set:",
            "name a target, or --all; nothing is set now",
            render::clearable(doc),
        ),
        Incomplete::Confirm => (
            "name the number of a change; these wait to be confirmed:",
            "no change of yours waits to be confirmed",
            doc.unconfirmed
                .iter()
                .map(|one| {
                    let left = Nanos::from_secs(one.left_ns.div_ceil(1_000_000_000));
                    let what = one.what.join(", ");
                    format!("netnice confirm {}: {what} (undone in {left})", one.number)
                })
                .collect(),
        ),
    };
    if list.is_empty() {
        return none.to_string();
    }
    let left_out = list.len().saturating_sub(MOST);
    let mut lines: Vec<String> = vec![head.to_string()];
    lines.extend(list.into_iter().take(MOST).map(|line| format!("  {line}")));
    if left_out > 0 {
        lines.push(format!("  and {left_out} more; netnice show lists all"));
    }
    lines.join("\n")
}

/// The largest number of listed targets or changes.
const MOST: usize = 20;
