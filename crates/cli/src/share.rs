//! `netnice share`: divides a total rate among the sessions of targets that already run, by the
//! manager of the crate `netnice-share` ([`manager`]). Sessions that start later get a share too.
//!
//! The verb runs until a signal, until the time of `--for` is over, or, if all targets are
//! processes, until all of them have ended. It prints the shares at each change. With `--dry-run`
//! it only prints the shares that would result. Fails if no daemon can be reached, if
//! [`manager::manage`] (with `--dry-run`, [`manager::preview`]) fails, if the signal handlers
//! cannot be set, if /proc cannot be read, or if standard output cannot be written.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use netnice_api::{Exit, RuntimeDir, Until};
use netnice_core::units::Amount;
use netnice_share::manager::{self, ManagerError, Report, SessionDoc, ShareRequest, Shares};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use crate::error::CommandError;
use crate::render::{self, printable};
use crate::{daemon, output, process};

/// The options of `netnice share`.
#[derive(Debug)]
pub(crate) struct Share {
    /// The total, the targets and the way to divide.
    pub request: ShareRequest,
    /// True: only print the shares that would result.
    pub dry_run: bool,
}

/// Divides the total until the manager ends, and prints the shares at each change. Fails for the
/// reasons in the module's documentation; an error of the manager is printed, and gives its exit
/// status.
pub(crate) fn execute(dir: &RuntimeDir, json: bool, share: Share) -> Result<Exit, CommandError> {
    // Starts the daemon if none runs.
    drop(daemon::connect(dir)?);
    let ended = match share.dry_run {
        true => manager::preview(&share.request, dir).map(|shares| print(&shares, json)),
        false => manage(dir, json, share.request)?,
    };
    match ended {
        Ok(printed) => printed.map(|()| Exit::Done),
        Err(error) => {
            eprintln!("netnice: {}", printable(&error.to_string()));
            Ok(error.exit())
        }
    }
}

/// The manager's result. The inner result is an error if standard output failed.
type Ended = Result<Result<(), CommandError>, ManagerError>;

fn manage(dir: &RuntimeDir, json: bool, request: ShareRequest) -> Result<Ended, CommandError> {
    let (stop, notify) = UnixStream::pair().map_err(no_signals)?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let notify = notify.try_clone().map_err(no_signals)?;
        signal_hook::low_level::pipe::register(signal, notify).map_err(no_signals)?;
    }
    let mut printed = Ok(());
    let mut report = |event: Report<'_>| match event {
        Report::Message(line) => eprintln!("netnice: {}", printable(line)),
        Report::Shares(shares) => {
            if printed.is_ok() {
                printed = print(shares, json);
            }
            // If standard output is closed, the manager goes on without printing.
        }
    };
    let ended = manager::manage(request, dir, own_exit()?, stop.as_fd(), &mut report);
    Ok(ended.map(|()| printed))
}

/// The exit of this process, for limits that last until then.
fn own_exit() -> Result<Until, CommandError> {
    let missing = || CommandError::io("/proc/self/stat", std::io::ErrorKind::NotFound.into());
    process::own_exit().ok_or_else(missing)
}

fn no_signals(source: std::io::Error) -> CommandError {
    CommandError::io("signals", source)
}

/// Prints the shares as one line of text, or of JSON.
fn print(shares: &Shares, json: bool) -> Result<(), CommandError> {
    match json {
        true => output::print_text(&render::json_line(shares)),
        false => output::print_text(&printable(&line(shares))),
    }
}

/// Text such as `2 sessions share 4 Mbit/s (500 kB/s): 11 vsftpd 2 Mbit/s; 12 vsftpd 2 Mbit/s`.
fn line(shares: &Shares) -> String {
    let total = Amount(shares.total);
    let count = shares.sessions.len();
    let heads = match count {
        0 => return format!("no session; {total} for the sessions to come"),
        1 => format!("1 session has {total}: "),
        _ => format!("{count} sessions share {total}: "),
    };
    let one = |session: &SessionDoc| {
        let pid = session.session.trim_start_matches("pid:");
        let idle = if session.idle { ", idle" } else { "" };
        format!(
            "{pid} {} {}{idle}",
            session.name,
            Amount(session.share).bits_text()
        )
    };
    let named: Vec<String> = shares.sessions.iter().take(MAX_NAMED).map(one).collect();
    let more = match count.saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("{heads}{}{more}", named.join("; "))
}

/// Largest number of sessions in one line.
const MAX_NAMED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn session(pid: u32, share: u64) -> SessionDoc {
        SessionDoc {
            session: format!("pid:{pid}"),
            service: "unit:ftp.service".to_string(),
            name: "vsftpd".to_string(),
            user: 0,
            share,
            idle: pid == 12,
        }
    }

    #[test]
    fn the_shares_are_formatted_in_one_line() {
        let mut shares = Shares {
            total: 4_000_000,
            sessions: Vec::new(),
        };
        assert_eq!(
            line(&shares),
            "no session; 4 Mbit/s (500 kB/s) for the sessions to come"
        );
        shares.sessions = vec![session(11, 3_000_000), session(12, 1_000_000)];
        let two =
            "2 sessions share 4 Mbit/s (500 kB/s): 11 vsftpd 3 Mbit/s; 12 vsftpd 1 Mbit/s, idle";
        assert_eq!(line(&shares), two);
        shares.sessions = (20..40).map(|pid| session(pid, 200_000)).collect();
        assert!(
            line(&shares).ends_with("27 vsftpd 200 kbit/s; and 12 more"),
            "{}",
            line(&shares)
        );
    }
}
