//! Connects to the daemon. If none runs, starts one for root, and fails for any other user. Fails
//! also if the start fails, or if connecting fails in another way.

use netnice_api::{Client, ClientError, RuntimeDir};

use crate::error::CommandError;
use crate::start;

/// Connects to the daemon of a runtime folder. If none runs and the user is root, starts one.
///
/// # Errors
/// [`CommandError::NoDaemon`] if none runs and the user is not root, [`CommandError::Start`] if the
/// start fails, [`CommandError::Client`] if connecting fails in another way.
pub(crate) fn connect(dir: &RuntimeDir) -> Result<Client, CommandError> {
    match Client::connect(dir) {
        Err(ClientError::NoDaemon { .. }) if rustix::process::geteuid().is_root() => {
            start::start(dir)?;
            Ok(Client::connect(dir)?)
        }
        Err(ClientError::NoDaemon { .. }) => {
            let here = std::env::current_exe().unwrap_or_default();
            let program = start::daemon_beside(&here);
            Err(CommandError::NoDaemon {
                dir: dir.clone(),
                program: match program.is_file() {
                    true => program.display().to_string(),
                    false => "netniced".to_string(),
                },
            })
        }
        other => Ok(other?),
    }
}
