//! `netnice run`: registers this process with the daemon, then becomes the command with execve(2).
//!
//! The process keeps its pid and its parent. So the command's exit status and signals reach the
//! caller unchanged, and every socket and child of the command belongs to the target from the
//! start.
//!
//! If the daemon does not grant the contract, the command does not start, and the exit status is
//! that of the daemon's response. It does not start either if no daemon can be reached, the
//! connection fails, or the kernel gives no pidfd of this process; then the call fails with a
//! [`CommandError`], and so does a failed write to standard output. If execve(2) fails, it is 127
//! for a command that was not found, else 126.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use netnice_api::{Exit, Request, Response, RuntimeDir, Set};
use netnice_core::target::Target;

use crate::error::CommandError;
use crate::render::{self, Style};
use crate::{daemon, output, process};

/// The options of `netnice run`.
#[derive(Debug)]
pub(crate) struct Run {
    /// The request without its target, which [`execute`] fills in.
    pub set: Set,
    /// The name that the process joins. `None`: the process itself is the target.
    pub name: Option<Target>,
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
    /// True: print nothing after success.
    pub quiet: bool,
}

/// Registers this process, then becomes the command. Returns only after a dry run, without a grant,
/// if execve(2) fails, or with an error for the reasons in the module's documentation.
pub(crate) fn execute(dir: &RuntimeDir, json: bool, run: Run) -> Result<Exit, CommandError> {
    let pid = std::process::id();
    let own = process::open(pid)?;
    let dry_run = run.set.dry_run;
    let set = match &run.name {
        Some(name) => Set {
            target: name.to_string(),
            pid: Some(pid),
            ..run.set
        },
        None => Set {
            target: Target::pid(pid)
                .ok_or(CommandError::NoProcess(pid))?
                .to_string(),
            ..run.set
        },
    };
    let response = daemon::connect(dir)?.call(&Request::Set(set), Some(own.as_fd()))?;
    if !matches!(response, Response::Done(_)) || dry_run {
        output::print_response(&response, json)?;
        return Ok(Exit::from(&response));
    }
    if json {
        eprintln!("{}", render::json(&response));
    } else if !run.quiet {
        eprintln!(
            "{}",
            render::text(&response, &Style::of_stderr()).trim_end()
        );
    }
    Ok(match run.command.split_first() {
        Some((program, args)) => exec(program, args),
        None => Exit::BadUsage,
    })
}

/// Becomes a program; returns only if execve(2) fails.
pub(crate) fn exec(program: &OsStr, args: &[OsString]) -> Exit {
    let error = Command::new(program).args(args).exec();
    eprintln!("netnice: {}: {error}", program.to_string_lossy());
    match error.kind() {
        std::io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::CannotRun,
    }
}
