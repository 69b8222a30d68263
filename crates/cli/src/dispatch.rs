//! Executes a command: sends its request to the daemon, prints the response and returns the exit
//! status.
//!
//! Input is a parsed [`Command`]. Verbs that are no plain request go to their own modules. If a
//! change must be confirmed, standard input is a terminal and `--json` is not given, the user is
//! asked here. A command fails with [`CommandError`] if no daemon answers or can be started, the
//! folder of `--runtime-dir` does not exist, the connection fails, a process does not exist or
//! cannot be opened, or input or output fails.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use netnice_api::{
    Client, ClientError, Confirm, Exit, Own, Request, Response, RuntimeDir, Show, ShowDoc,
};
use netnice_core::units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::args::{Command, Verb};
use crate::error::CommandError;
use crate::output::{print_response, print_text};
use crate::render::{self, Style};
use crate::{
    channel, check, daemon, doctor, flow, hosts, incomplete, inetd, packet_costs, pages, peer,
    process, run, share, shell, show_all, start, top,
};

/// Executes one command, and prints its error if it fails.
pub(crate) fn execute(command: Command) -> Exit {
    let json = command.json;
    match execute_verb(command) {
        Ok(exit) => exit,
        Err(CommandError::OutputClosed) => Exit::Done,
        Err(error) => {
            eprintln!("netnice: {error}");
            if json {
                let _ = print_text(&render::json(&Response::failed(error.to_string())));
            }
            error.exit()
        }
    }
}

fn execute_verb(command: Command) -> Result<Exit, CommandError> {
    let Command {
        verb,
        runtime_dir: dir,
        names_folder,
        json,
    } = command;
    let is_missing = || matches!(dir.path().try_exists(), Ok(false));
    if names_folder && needs_folder(&verb) && is_missing() {
        return Err(CommandError::NoFolder(dir));
    }
    match verb {
        Verb::Request(request) => call(&dir, json, &hosts::resolve(request)?, None),
        Verb::ProcessRequest(pid, request) => {
            let process = process::open(pid)?;
            match call(&dir, json, &request, Some(process.as_fd())) {
                Err(CommandError::Client(ClientError::ProcessEnded)) => {
                    Err(CommandError::NoProcess(pid))
                }
                other => other,
            }
        }
        Verb::Own => {
            let process = process::open(std::process::id())?;
            call(&dir, json, &Request::Own(Own {}), Some(process.as_fd()))
        }
        Verb::Links => links(&dir, json),
        Verb::ShowAll => show_all::execute(&dir, json),
        Verb::Incomplete(incomplete) => incomplete::execute(&dir, json, incomplete),
        Verb::Run(run) => run::execute(&dir, json, run),
        Verb::Top(top) => top::execute(&dir, json, &top),
        Verb::Flow(command) => flow::execute(&dir, json, command),
        Verb::Channel(command) => channel::execute(&dir, json, command),
        Verb::Doctor => doctor::execute(&dir, json),
        Verb::MeasureStops(time) => doctor::measure_stops(time),
        Verb::MeasureCosts => packet_costs::measure(&dir, json),
        Verb::CostsPart(part) => packet_costs::run(&dir, &part),
        Verb::Check(check) => check::execute(*check, json),
        Verb::Inetd(command) => inetd::execute(&dir, command),
        Verb::Peer(command) => peer::execute(&dir, json, &command),
        Verb::Share(share) => share::execute(&dir, json, *share),
        Verb::Shell(command) => shell::execute(&dir, command),
        Verb::Completions(shell) => print_text(&pages::completions(shell)).map(|()| Exit::Done),
        Verb::Man(folder) => pages::man(&folder).map(|()| Exit::Done),
        Verb::StartDaemon => Ok(start::start_detached(&dir).map(|()| Exit::Done)?),
    }
}

/// True if a verb only reads or removes what a daemon holds. Without the runtime folder there is
/// nothing, so no daemon is started for it.
fn needs_folder(verb: &Verb) -> bool {
    match verb {
        Verb::Own | Verb::Links | Verb::ShowAll | Verb::Top(_) => true,
        Verb::Channel(_) => true,
        Verb::Flow(flow::FlowCommand::List | flow::FlowCommand::Close(_)) => true,
        Verb::Request(request) => matches!(
            request,
            Request::Show(_)
                | Request::Users(_)
                | Request::History(_)
                | Request::Explain(_)
                | Request::Log(_)
                | Request::Confirm(_)
                | Request::Clear(_)
        ),
        _ => false,
    }
}

/// Sends the request and prints the response. If the change needs a confirmation, asks the user for
/// it.
fn call(
    dir: &RuntimeDir,
    json: bool,
    request: &Request,
    process: Option<BorrowedFd<'_>>,
) -> Result<Exit, CommandError> {
    let response = {
        let mut client = daemon::connect(dir)?;
        with_notice(|| client.call(request, process))?
    };
    match (&response, shown_target(request)) {
        (Response::Shown(doc), Some(name)) if !json => {
            print_text(&render::single_target(doc, &name, &Style::of_stdout()))?;
        }
        _ => print_response(&response, json)?,
    }
    let Response::Done(done) = &response else {
        return Ok(Exit::from(&response));
    };
    let (Some(id), Some(within)) = (done.confirm, confirm_ns(request)) else {
        return Ok(Exit::Done);
    };
    if json || !io::stdin().is_terminal() {
        return Ok(Exit::Done);
    }
    match confirm_change(Nanos(within))? {
        true => {
            let response = daemon::connect(dir)?.call(&Request::Confirm(Confirm { id }), None)?;
            print_response(&response, json)?;
            Ok(Exit::from(&response))
        }
        false => {
            print_text("not confirmed: the daemon undoes the change when the time is over")?;
            Ok(Exit::Done)
        }
    }
}

/// Prints the managed links without the targets.
fn links(dir: &RuntimeDir, json: bool) -> Result<Exit, CommandError> {
    let response = daemon::connect(dir)?.call(&Request::Show(Show { target: None }), None)?;
    let response = match response {
        Response::Shown(doc) => Response::Shown(ShowDoc {
            targets: Vec::new(),
            direct: Vec::new(),
            ..doc
        }),
        other => other,
    };
    match &response {
        Response::Shown(doc) if !json => {
            print_text(&render::managed_links(doc, &Style::of_stdout()))?;
        }
        _ => print_response(&response, json)?,
    }
    Ok(Exit::from(&response))
}

/// Runs `work`. If that takes longer than [`NOTICE_AFTER`], prints a notice meanwhile.
fn with_notice<T>(work: impl FnOnce() -> T) -> T {
    let (done, waits) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if waits.recv_timeout(NOTICE_AFTER) == Err(RecvTimeoutError::Timeout) {
                eprintln!(
                    "netnice: still waiting for the daemon, at most {:?}",
                    Client::TIMEOUT
                );
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// Asks the user at the terminal whether to keep the change; true if so. Waits at most `within`,
/// after which the daemon undoes the change.
fn confirm_change(within: Nanos) -> Result<bool, CommandError> {
    let question = format!("Keep this? It is undone in {within} unless you type y and Enter: ");
    let mut out = io::stdout().lock();
    let written = write!(out, "{question}").and_then(|()| out.flush());
    written.map_err(|_| CommandError::OutputClosed)?;
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: i64::try_from(within.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (within.0 % 1_000_000_000) as _,
    };
    if !matches!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(1..)) {
        // The cursor is still behind the question.
        let _ = writeln!(out);
        return Ok(false);
    }
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    Ok(read.is_ok() && matches!(line.trim(), "y" | "Y" | "yes"))
}

/// The name of the only target whose state the request asks for; `None` for any other request.
fn shown_target(request: &Request) -> Option<String> {
    match request {
        Request::Own(_) => Some("this process".to_string()),
        Request::Show(show) => show.target.clone(),
        _ => None,
    }
}

fn confirm_ns(request: &Request) -> Option<u64> {
    match request {
        Request::Set(set) => set.confirm_ns,
        Request::Clear(clear) => clear.confirm_ns,
        Request::Link(link) => link.confirm_ns,
        _ => None,
    }
}

/// Time without a response after which the user gets a notice.
const NOTICE_AFTER: Duration = Duration::from_secs(5);
