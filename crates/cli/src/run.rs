//! `netnice run`: registers this process with the daemon, then becomes the command with execve(2).
//!
//! The process keeps its pid and its parent. So the command's exit status and signals reach the
//! caller unchanged, and every socket and child of the command belongs to the target from the
//! start.
//!
//! Without a grant the command does not start, and the exit status is that of the daemon's answer.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process;

use netnice_api::{Exit, Request, Response, RuntimeDir, Set};
use netnice_core::target::Target;

use crate::args::Run;
use crate::desk::{self, Trouble};
use crate::render::{self, Style};

/// Registers this process. Returns only after a dry run, without a grant, or if execve(2) fails.
pub(crate) fn serve(dir: &RuntimeDir, json: bool, asked: Run) -> Result<Exit, Trouble> {
    let pid = process::id();
    let own = desk::process(pid)?;
    let dry_run = asked.set.dry_run;
    let set = match &asked.name {
        Some(name) => Set {
            target: name.to_string(),
            pid: Some(pid),
            ..asked.set
        },
        None => Set {
            target: Target::pid(pid).ok_or(Trouble::NoProcess(pid))?.to_string(),
            ..asked.set
        },
    };
    let response = desk::connect(dir)?.call(&Request::Set(set), Some(own.as_fd()))?;
    if !matches!(response, Response::Done(_)) || dry_run {
        desk::print(&response, json)?;
        return Ok(Exit::from(&response));
    }
    if json {
        eprintln!("{}", render::json(&response));
    } else if !asked.quiet {
        eprintln!(
            "{}",
            render::text(&response, &Style::of_stderr()).trim_end()
        );
    }
    let (program, args) = match asked.command.split_first() {
        Some(split) => split,
        None => return Ok(Exit::BadUsage),
    };
    // `exec` returns only if it fails.
    let error = process::Command::new(program).args(args).exec();
    eprintln!("netnice: {}: {error}", program.to_string_lossy());
    Ok(match error.kind() {
        std::io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::CannotRun,
    })
}
