//! Starts the daemon, and waits until it serves, at most 20 s after its start ([`TIMEOUT`]). Fails
//! with a [`StartError`] if the daemon's program is missing, if an operation on a process or file
//! fails, or if the daemon ends or does not serve in time.
//!
//! The daemon must continue after this command and its terminal have ended. It must not be a child
//! of this process, because `netnice run` turns this process into another program. The caller needs
//! the result: whether the daemon serves. So three processes take part:
//!
//! ```text
//!  netnice VERB ──spawns, waits──▶ netnice start-daemon ──spawns, waits until it serves─▶ netniced
//!                                  (a session of its own)    then ends: init adopts netniced
//! ```
//!
//! The standard error of netniced is a temporary file without a name. If netniced ends before it
//! serves, the end of that file is the error text.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{Client, RuntimeDir};

/// Why no daemon serves now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The daemon's program is not installed beside this program.
    #[error(
        "no daemon answers at {}, and there is no {} to start",
        socket.display(),
        program.display()
    )]
    NoProgram {
        /// The socket that no daemon answers on.
        socket: PathBuf,
        program: PathBuf,
    },
    /// The daemon ended before it served. Holds the end of its standard error, or its exit status.
    #[error("netniced could not start: {0}")]
    Ended(String),
    /// The process that starts the daemon failed. Holds its error text.
    #[error("{0}")]
    Helper(String),
    /// The daemon runs, but does not serve within [`TIMEOUT`].
    #[error("netniced was started but does not answer at {} after {TIMEOUT:?}", .0.display())]
    NotServing(PathBuf),
    /// An operation on a process or file failed during the start.
    #[error("netniced could not be started: {0}")]
    Io(#[from] io::Error),
}

/// Starts the daemon of a runtime folder and waits until it serves. Fails for the reasons in the
/// module's documentation.
pub(crate) fn start(dir: &RuntimeDir) -> Result<(), StartError> {
    let here = std::env::current_exe()?;
    let program = daemon_beside(&here);
    if !program.is_file() {
        let socket = dir.socket();
        return Err(StartError::NoProgram { socket, program });
    }
    let output = Command::new(here)
        .arg("start-daemon")
        .arg("--runtime-dir")
        .arg(std::path::absolute(dir.path())?)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(match stderr.trim().trim_start_matches("netnice: ") {
        "" => StartError::Ended(output.status.to_string()),
        text => StartError::Helper(text.to_string()),
    })
}

/// Runs the middle process: leaves the terminal, starts the daemon, and returns once it serves. A
/// daemon that is ending can hold the folder for a moment and does not serve, so the start is
/// repeated for [`OTHER_END`]. Fails as [`start`].
pub(crate) fn start_detached(dir: &RuntimeDir) -> Result<(), StartError> {
    // Fails only for the leader of a process group, which is in a group of its own already.
    let _ = rustix::process::setsid();
    let until = Instant::now() + OTHER_END;
    loop {
        match start_once(dir) {
            Err(StartError::Ended(text)) if text.contains(OTHER) && Instant::now() < until => {}
            done => return done,
        }
    }
}

fn start_once(dir: &RuntimeDir) -> Result<(), StartError> {
    let mut stderr = unnamed_file()?;
    let mut daemon = Command::new(daemon_beside(&std::env::current_exe()?))
        .arg("--runtime-dir")
        .arg(dir.path())
        .arg("--resume")
        .current_dir("/")
        .env(LOG, std::env::var(LOG).unwrap_or("error".into()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr.try_clone()?)
        .spawn()?;
    wait(dir, &mut daemon, &mut stderr)
}

/// Waits until a daemon serves the folder: the started one, or another one that was started at the
/// same time.
fn wait(dir: &RuntimeDir, daemon: &mut Child, stderr: &mut File) -> Result<(), StartError> {
    let until = Instant::now() + TIMEOUT;
    let mut ended = None;
    while Instant::now() < until {
        if Client::connect(dir).is_ok() {
            return Ok(());
        }
        // Two daemons may start at once. Then one of them ends, and the other one serves.
        if ended.is_none()
            && let Some(status) = daemon.try_wait()?
        {
            ended = Some((status, Instant::now() + OTHER_TIMEOUT));
        }
        if ended.is_some_and(|(_, until)| Instant::now() > until) {
            break;
        }
        thread::sleep(RETRY_AFTER);
    }
    match ended {
        None => Err(StartError::NotServing(dir.socket())),
        Some((status, _)) => {
            let mut text = String::new();
            stderr.rewind()?;
            stderr.read_to_string(&mut text)?;
            Err(StartError::Ended(match text.trim() {
                "" => format!("it ended with {status}"),
                text => last_lines(text),
            }))
        }
    }
}

/// The path of the daemon's program: beside this program, or in the `sbin` next to the `bin` that
/// contains this program.
pub(crate) fn daemon_beside(here: &Path) -> PathBuf {
    let beside = here.with_file_name("netniced");
    let bin = here.parent().filter(|folder| folder.ends_with("bin"));
    let installed = bin.map(|bin| bin.with_file_name("sbin").join("netniced"));
    match installed {
        Some(installed) if !beside.is_file() && installed.is_file() => installed,
        _ => beside,
    }
}

/// Creates a file without a name. The kernel removes the file with its last open descriptor.
fn unnamed_file() -> io::Result<File> {
    let name = format!(".netnice-start-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = File::options()
        .read(true)
        .append(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// The last [`MAX_LINES`] lines of the text; they contain the reason.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(MAX_LINES)..].join("\n")
}

/// Longest time until the daemon serves. If the daemon has limits to adopt, it loads the eBPF
/// programs first.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time until another daemon serves, after the started one ended because of it.
const OTHER_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest time in which another daemon that holds the folder and does not serve must end.
const OTHER_END: Duration = Duration::from_secs(5);

/// What the error of a daemon contains if another one holds the folder.
const OTHER: &str = "another netniced";

/// Time between two attempts to connect.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// Number of lines of a failed daemon's standard error that the error text shows.
const MAX_LINES: usize = 5;
/// The environment variable with the daemon's log level.
pub(crate) const LOG: &str = "NETNICE_LOG";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_is_in_the_same_folder_or_in_the_sbin_next_to_bin() {
        let folder = std::env::temp_dir().join(format!("netnice-beside-{}", std::process::id()));
        let [bin, sbin] = ["bin", "sbin"].map(|name| folder.join(name));
        for place in [&bin, &sbin] {
            std::fs::create_dir_all(place).expect("made");
        }
        let here = bin.join("netnice");
        assert_eq!(
            daemon_beside(&here),
            bin.join("netniced"),
            "no program: the expected path"
        );
        std::fs::write(sbin.join("netniced"), []).expect("written");
        assert_eq!(daemon_beside(&here), sbin.join("netniced"));
        std::fs::write(bin.join("netniced"), []).expect("written");
        assert_eq!(
            daemon_beside(&here),
            bin.join("netniced"),
            "the same folder has precedence"
        );
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
