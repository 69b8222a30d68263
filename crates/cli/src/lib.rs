//! Answers: what a person typed and what they should see.
//! May touch: its arguments, the terminal, and the daemon's socket.
//! Must never: change kernel state itself, or decide what is granted.
//!
//! # The way of a command
//! ```text
//!  words ──args──▶ Command ──request──▶ Request ──desk──▶ Response ──render──▶ lines, exit status
//! ```
//! `args` describes the command line and turns it into a request, so that bad usage ends here
//! (status 2) and costs the daemon nothing; `desk` carries the request to the daemon, as root
//! starts one where there is none (`start`), and prints the answer with `render`. `run` and
//! `top` have rooms of their own, for what they do after the answer. `check` asks no daemon at all.
//!
//! What a person reads goes to standard output, of `run` to standard error, because standard
//! output belongs to the command that is run. Errors go to standard error. With `--json` the
//! answer of the daemon is printed as it is, errors included.
#![forbid(unsafe_code)]

mod args;
mod check;
mod desk;
mod doctor;
mod inetd;
mod pages;
mod render;
mod run;
mod share;
mod shell;
mod start;
mod top;

use std::process::ExitCode;

pub use args::command;

/// Everything from the process's arguments to its exit status.
pub fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let exit = match args::parse(args) {
        Ok(command) => desk::serve(command),
        Err(bad) => bad.print(),
    };
    ExitCode::from(exit.code())
}
