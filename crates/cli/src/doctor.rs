//! `netnice doctor`: prints which features this kernel has, what replaces the missing ones, and the
//! state and the faults of the daemon.
//!
//! The report comes from the daemon. If no daemon runs, this command runs `netniced --probe` and
//! prints its report (`--stops TIME`: `netniced --stops TIME`, in any case), so that a machine can
//! be examined before a daemon starts. The command fails if the connection to a running daemon
//! fails, if there is no daemon and `netniced` cannot be executed or prints no report, or if
//! standard output cannot be written.

use std::io;
use std::process::{Command, Stdio};

use netnice_api::{Client, ClientError, Doctor, DoctorReport, Exit, Request, Response, RuntimeDir};
use netnice_core::units::Nanos;

use crate::error::CommandError;
use crate::render::printable;
use crate::{output, start};

/// Gets the report from the daemon, or from `netniced --probe` if no daemon runs, and prints it.
/// Fails for the reasons in the module's documentation.
pub(crate) fn execute(dir: &RuntimeDir, json: bool) -> Result<Exit, CommandError> {
    let response = match Client::connect(dir) {
        Ok(mut client) => client.call(&Request::Doctor(Doctor {}), None)?,
        Err(ClientError::NoDaemon { .. }) => {
            if !json {
                eprintln!(
                    "netnice: no daemon answers at {}; examining the kernel without one",
                    dir.socket().display()
                );
            }
            Response::Doctor(probe()?)
        }
        Err(other) => return Err(other.into()),
    };
    output::print_response(&response, json)?;
    Ok(Exit::from(&response))
}

/// Runs `netniced --stops`, which prints its report. Fails if `netniced` cannot be executed.
pub(crate) fn measure_stops(time: Nanos) -> Result<Exit, CommandError> {
    let here = std::env::current_exe()
        .map_err(|source| CommandError::io("this program's path", source))?;
    let program = start::daemon_beside(&here);
    let what = format!("{} --stops {time}", program.display());
    let status = Command::new(program)
        .args(["--stops", &time.to_string()])
        .stdin(Stdio::null())
        .status()
        .map_err(|source| CommandError::io(&what, source))?;
    Ok(match status.success() {
        true => Exit::Done,
        false => Exit::Error,
    })
}

/// Runs `netniced --probe` and parses the report.
fn probe() -> Result<DoctorReport, CommandError> {
    let here = std::env::current_exe()
        .map_err(|source| CommandError::io("this program's path", source))?;
    let program = start::daemon_beside(&here);
    let what = format!("{} --probe --json", program.display());
    let output = Command::new(program)
        .args(["--probe", "--json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|source| CommandError::io(&what, source))?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let reason = match stderr.trim() {
            "" => error.to_string(),
            text => printable(text),
        };
        CommandError::io(&what, io::Error::other(reason))
    })
}
