//! The exit status of `netnice` ([`Exit`]), and its computation from a response of the daemon
//! ([`Response`]) or from the error of a request ([`ClientError`]). No function fails.

use crate::{ClientError, Response};

/// The exit status of `netnice`. The numbers are part of the interface. 126 and 127 are those of
/// env(1), for a command that `netnice run` could not start; a command that it started has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Done = 0,
    /// An error without a status of its own.
    Error = 1,
    /// The command line is invalid.
    BadUsage = 2,
    /// Refused, by admission or because permission is missing.
    Refused = 3,
    /// No daemon listens at the socket, and none was started.
    NoDaemon = 4,
    /// The command was found but could not be started.
    CannotRun = 126,
    /// The command was not found.
    NotFound = 127,
}

impl Exit {
    /// The exit status as the number that the process passes to exit(3).
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<&Response> for Exit {
    fn from(response: &Response) -> Exit {
        match response {
            Response::Pong(_)
            | Response::Done(_)
            | Response::Shown(_)
            | Response::Users(_)
            | Response::Watched(_)
            | Response::Connections(_)
            | Response::Programs(_)
            | Response::History(_)
            | Response::Explained(_)
            | Response::Found(_)
            | Response::Doctor(_)
            | Response::Log(_)
            | Response::Direct(_) => Exit::Done,
            Response::Refused(_) => Exit::Refused,
            Response::Failed(failed) if failed.bad_usage => Exit::BadUsage,
            Response::Failed(_) => Exit::Error,
        }
    }
}

impl From<&ClientError> for Exit {
    fn from(error: &ClientError) -> Exit {
        match error {
            ClientError::NoDaemon { .. } => Exit::NoDaemon,
            _ => Exit::Error,
        }
    }
}
