//! Answers: what a person typed and what they should see.
//! May touch: its arguments, files they name, the terminal, /proc, the daemon's socket, programs.
//! Must never: change kernel state itself, or decide what is granted.
//!
//! # From arguments to exit status
//! The modules are on the arrows:
//! ```text
//!  words ─args─▶ Command with a Request ─dispatch─▶ Response ─render─▶ lines, exit status
//! ```
//! `args` parses the command line into a request. Bad usage ends there (status 2), without a
//! request to the daemon; only for `clear` and `confirm` without an argument does `incomplete`
//! first ask a running daemon what could be named. `dispatch` sends the request over a connection
//! of `daemon`, and `output` prints the response with `render`. Without a running daemon, `daemon`
//! starts one if the user is root (`start`). A verb that does more than that has a module of its
//! own: `run`, `top`, `share`, `inetd`, `shell`, `flow`, `doctor`. `check` and `peer` need no
//! daemon.
//! Programs are started by `start` (the daemon), `doctor` (`netniced --probe`), `run` and `inetd`
//! (the program that replaces this process).
//!
//! Text for the user goes to standard output. If `run` starts its command, it writes to standard
//! error, because standard output belongs to the command. Errors go to standard error. `--json`
//! prints the daemon's response as JSON, also if it is a refusal or a failure.
#![forbid(unsafe_code)]

mod args;
mod channel;
mod check;
mod daemon;
mod dispatch;
mod doctor;
mod error;
mod flow;
mod hosts;
mod incomplete;
mod inetd;
mod output;
mod packet_costs;
mod pages;
mod peer;
mod process;
mod render;
mod run;
mod share;
mod shell;
mod show_all;
mod start;
mod top;

use std::process::ExitCode;

pub use args::command;

/// Parses the process's arguments, executes the command and returns its exit status.
pub fn main() -> ExitCode {
    let args = shell::as_at_rate(std::env::args_os().collect());
    let json = args::wants_json(&args);
    let exit = match args::parse(args) {
        Ok(command) => dispatch::execute(command),
        Err(bad) => bad.print(json),
    };
    ExitCode::from(exit.code())
}
