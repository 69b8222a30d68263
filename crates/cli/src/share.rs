//! `netnice share`: runs the manager of existing processes of `netnice-share`.
//!
//! The verb divides the total until a signal, `--for` or the end of the sessions, and prints the
//! shares at each change. With `--dry-run` it only prints them. Fails as [`manager::manage`] fails.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use netnice_api::{Exit, RuntimeDir, Until};
use netnice_core::units::Amount;
use netnice_share::manager::{self, ManagerError, Report, SessionDoc, ShareRequest, Shares};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use crate::args::until;
use crate::desk::{self, Trouble};
use crate::render;

/// The verb as it was typed.
#[derive(Debug)]
pub(crate) struct Share {
    /// The total, the targets and the way to divide.
    pub asked: ShareRequest,
    /// Only print the shares that would result.
    pub dry_run: bool,
}

/// Divides until the manager ends, and prints each division.
pub(crate) fn serve(dir: &RuntimeDir, json: bool, share: Share) -> Result<Exit, Trouble> {
    // Starts the daemon if none runs.
    drop(desk::connect(dir)?);
    let ended = match share.dry_run {
        true => manager::preview(&share.asked, dir).map(|shares| say(&shares, json)),
        false => manage(dir, json, share.asked)?,
    };
    match ended {
        Ok(said) => said.map(|()| Exit::Done),
        Err(error) => {
            let text = error.to_string();
            eprintln!("netnice: {}", desk::plain(&text));
            Ok(error.exit())
        }
    }
}

/// The manager's result. The inner result is an error if standard output failed.
type Ended = Result<Result<(), Trouble>, ManagerError>;

fn manage(dir: &RuntimeDir, json: bool, asked: ShareRequest) -> Result<Ended, Trouble> {
    let (stop, told) = UnixStream::pair().map_err(no_signals)?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let told = told.try_clone().map_err(no_signals)?;
        signal_hook::low_level::pipe::register(signal, told).map_err(no_signals)?;
    }
    let mut said = Ok(());
    let mut tell = |what: Report<'_>| match what {
        Report::Message(line) => eprintln!("netnice: {}", desk::plain(line)),
        Report::Shares(shares) => {
            if said.is_ok() {
                said = say(shares, json);
            }
            // If standard output is closed, the manager goes on without printing.
        }
    };
    let ended = manager::manage(asked, dir, own()?, stop.as_fd(), &mut tell);
    Ok(ended.map(|()| said))
}

/// This process, for limits that last until its end.
fn own() -> Result<Until, Trouble> {
    until::own().ok_or_else(|| Trouble::Io {
        what: "/proc/self/stat".to_string(),
        source: std::io::ErrorKind::NotFound.into(),
    })
}

fn no_signals(source: std::io::Error) -> Trouble {
    Trouble::Io {
        what: "signals".to_string(),
        source,
    }
}

/// Prints the shares as one line of text, or of JSON.
fn say(shares: &Shares, json: bool) -> Result<(), Trouble> {
    match json {
        true => desk::say(&render::json_line(shares)),
        false => desk::say(&desk::plain(&line(shares))),
    }
}

/// Text such as `2 sessions share 4 Mbit/s (500 kB/s): 11 vsftpd 2 Mbit/s; 12 vsftpd 2 Mbit/s`.
fn line(shares: &Shares) -> String {
    let total = Amount(shares.total);
    let count = shares.sessions.len();
    let heads = match count {
        0 => return format!("no session; {total} for all that come"),
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
    let named: Vec<String> = shares.sessions.iter().take(MOST_NAMED).map(one).collect();
    let more = match count.saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("{heads}{}{more}", named.join("; "))
}

/// Largest number of sessions in one line.
const MOST_NAMED: usize = 8;

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
    fn the_shares_are_one_line() {
        let mut shares = Shares {
            total: 4_000_000,
            sessions: Vec::new(),
        };
        assert_eq!(
            line(&shares),
            "no session; 4 Mbit/s (500 kB/s) for all that come"
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
