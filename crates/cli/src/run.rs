//! `netnice run`: register this process, then become the command.
//!
//! The process keeps its number and its place in the tree, so the command's status and signals
//! are its own, and every socket and child that it makes is the target's from the first one on.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process;

use netnice_api::{Exit, Request, Response, RuntimeDir, Set};
use netnice_core::target::Target;

use crate::args::Run;
use crate::desk::{self, Trouble};
use crate::render::{self, Style};

/// Registers, and if that is granted does not come back.
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
    // Only returns if it fails.
    let error = process::Command::new(program).args(args).exec();
    eprintln!("netnice: {}: {error}", program.to_string_lossy());
    Ok(match error.kind() {
        std::io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::CannotRun,
    })
}
