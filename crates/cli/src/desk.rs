//! Executes a command: sends its request to the daemon, prints the answer and returns the exit
//! status.
//!
//! Input is a parsed [`Command`]. Verbs without a plain request go to their own modules. A command
//! fails with [`Trouble`] if no daemon answers, a process does not exist, or input or output fails.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use netnice_api::{
    Client, ClientError, Confirm, Exit, Own, Request, Response, RuntimeDir, Show, ShowDoc,
};
use netnice_core::units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::args::{Command, Verb};
use crate::check::{self, CheckError};
use crate::render::{self, Style};
use crate::start::{self, StartError};
use crate::{doctor, inetd, pages, run, share, shell, top};

/// Time without an answer after which the user gets a notice.
const SILENCE: Duration = Duration::from_secs(5);

/// Why a command gets no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// No daemon runs, and the user is not root, so this program may not start one.
    #[error(
        "no daemon answers at {socket}\nstart one as root: {program} --runtime-dir {dir}",
        socket = dir.socket().display(), dir = dir.path().display()
    )]
    NoDaemon {
        /// The runtime folder that the daemon should serve.
        dir: RuntimeDir,
        program: String,
    },
    /// No daemon runs, and the start of one failed.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The connection to the daemon failed, or the daemon's answer is invalid.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No process has this pid.
    #[error("no process has the number {0}")]
    NoProcess(u32),
    /// The number is the id of a thread. The second field is the pid of its process, if known.
    #[error("{0} is a thread, not a process{of}", of = of_process(*.1))]
    Thread(u32, Option<u32>),
    /// The kernel refused to open the process.
    #[error("process {pid} cannot be opened: {source}")]
    Process {
        pid: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The capture cannot be checked.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// An operation on a file or on standard output failed.
    #[error("{what}: {source}")]
    Io {
        /// The file or the operation.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The reader of standard output has closed it (`EPIPE`).
    #[error("nobody reads the output")]
    NobodyReads,
}

impl Trouble {
    /// The exit status for this error.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Trouble::NoDaemon { .. } | Trouble::Start(_) => Exit::NoDaemon,
            Trouble::Client(error) => Exit::from(error),
            Trouble::NobodyReads => Exit::Done,
            _ => Exit::Error,
        }
    }
}

/// Executes one command, and prints its error if it fails.
pub(crate) fn serve(command: Command) -> Exit {
    let json = command.json;
    match answer(command) {
        Ok(exit) => exit,
        Err(Trouble::NobodyReads) => Exit::Done,
        Err(trouble) => {
            eprintln!("netnice: {trouble}");
            if json {
                let _ = say(&render::json(&Response::failed(trouble.to_string())));
            }
            trouble.exit()
        }
    }
}

fn answer(command: Command) -> Result<Exit, Trouble> {
    let Command {
        verb,
        runtime_dir: dir,
        json,
    } = command;
    match verb {
        Verb::Ask(request) => ask(&dir, json, &request, None),
        Verb::AskAbout(pid, request) => {
            let process = process(pid)?;
            match ask(&dir, json, &request, Some(process.as_fd())) {
                Err(Trouble::Client(ClientError::ProcessEnded)) => Err(Trouble::NoProcess(pid)),
                other => other,
            }
        }
        Verb::Own => {
            let process = process(std::process::id())?;
            ask(&dir, json, &Request::Own(Own {}), Some(process.as_fd()))
        }
        Verb::Links => links(&dir, json),
        Verb::Run(asked) => run::serve(&dir, json, asked),
        Verb::Top(asked) => top::serve(&dir, json, &asked),
        Verb::Doctor => doctor::serve(&dir, json),
        Verb::Check(asked) => check::serve(*asked, json),
        Verb::Inetd(asked) => inetd::serve(&dir, asked),
        Verb::Share(asked) => share::serve(&dir, json, *asked),
        Verb::Shell(asked) => shell::serve(&dir, asked),
        Verb::Completions(shell) => say(&pages::completions(shell)).map(|()| Exit::Done),
        Verb::Man(folder) => pages::man(&folder).map(|()| Exit::Done),
        Verb::StartDaemon => Ok(start::start_apart(&dir).map(|()| Exit::Done)?),
    }
}

/// Sends the request and prints the answer. If the change needs a confirmation, asks the user for
/// it.
fn ask(
    dir: &RuntimeDir,
    json: bool,
    request: &Request,
    process: Option<BorrowedFd<'_>>,
) -> Result<Exit, Trouble> {
    let response = {
        let mut daemon = connect(dir)?;
        patiently(|| daemon.call(request, process))?
    };
    match (&response, one_target(request)) {
        (Response::Shown(doc), Some(who)) if !json => {
            say(&render::one(doc, &who, &Style::of_stdout()))?;
        }
        _ => print(&response, json)?,
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
    match keeps(Nanos(within))? {
        true => {
            let response = connect(dir)?.call(&Request::Confirm(Confirm { id }), None)?;
            print(&response, json)?;
            Ok(Exit::from(&response))
        }
        false => {
            say("not kept: it is undone when the time is over")?;
            Ok(Exit::Done)
        }
    }
}

/// Prints the managed links without the targets.
fn links(dir: &RuntimeDir, json: bool) -> Result<Exit, Trouble> {
    let response = connect(dir)?.call(&Request::Show(Show { target: None }), None)?;
    let response = match response {
        Response::Shown(doc) => Response::Shown(ShowDoc {
            targets: Vec::new(),
            direct: Vec::new(),
            ..doc
        }),
        other => other,
    };
    match &response {
        Response::Shown(doc) if !json => say(&render::managed(doc, &Style::of_stdout()))?,
        _ => print(&response, json)?,
    }
    Ok(Exit::from(&response))
}

/// Runs `work`. If it takes longer than [`SILENCE`], prints a notice.
fn patiently<T>(work: impl FnOnce() -> T) -> T {
    let (done, waits) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if waits.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
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

/// Connects to the daemon. If none runs and the user is root, starts one.
pub(crate) fn connect(dir: &RuntimeDir) -> Result<Client, Trouble> {
    match Client::connect(dir) {
        Err(ClientError::NoDaemon { .. }) if rustix::process::geteuid().is_root() => {
            start::start(dir)?;
            Ok(Client::connect(dir)?)
        }
        Err(ClientError::NoDaemon { .. }) => {
            let here = std::env::current_exe().unwrap_or_default();
            let program = start::daemon_beside(&here);
            Err(Trouble::NoDaemon {
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

/// Opens a pidfd, which means this process even after its pid is reused.
pub(crate) fn process(pid: u32) -> Result<OwnedFd, Trouble> {
    let raw = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .ok_or(Trouble::NoProcess(pid))?;
    pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match (errno, leader(pid)) {
        (Errno::INVAL | Errno::NOENT, Some(of)) if of != pid => Trouble::Thread(pid, Some(of)),
        (Errno::SRCH | Errno::NOENT, _) => Trouble::NoProcess(pid),
        (Errno::INVAL, _) => Trouble::Thread(pid, None),
        (errno, _) => Trouble::Process {
            pid,
            source: errno.into(),
        },
    })
}

/// Prints an answer: a result to standard output, a refusal or failure to standard error.
pub(crate) fn print(response: &Response, json: bool) -> Result<(), Trouble> {
    if json {
        say(&render::json(response))?;
    }
    match response {
        Response::Refused(refused) => eprintln!("netnice: {}", plain(&refused.text)),
        Response::Failed(failed) => eprintln!("netnice: {}", plain(&failed.text)),
        other if !json => say(&render::text(other, &Style::of_stdout()))?,
        _ => {}
    }
    Ok(())
}

/// Prints lines to standard output.
pub(crate) fn say(text: &str) -> Result<(), Trouble> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
    written.map_err(|source| match source.kind() {
        io::ErrorKind::BrokenPipe => Trouble::NobodyReads,
        _ => Trouble::Io {
            what: "standard output".to_string(),
            source,
        },
    })
}

/// Removes control characters except line ends, and white space at the end.
pub(crate) fn plain(text: &str) -> String {
    let keep = |c: &char| *c == '\n' || !c.is_control();
    text.trim_end().chars().filter(keep).collect()
}

/// Asks the user at the terminal whether to keep the change. Waits at most `within`, after which
/// the daemon undoes the change.
fn keeps(within: Nanos) -> Result<bool, Trouble> {
    let question = format!("Keep this? It is undone in {within} unless you type y and Enter: ");
    let mut out = io::stdout().lock();
    let asked = write!(out, "{question}").and_then(|()| out.flush());
    asked.map_err(|_| Trouble::NobodyReads)?;
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let patience = Timespec {
        tv_sec: i64::try_from(within.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (within.0 % 1_000_000_000) as _,
    };
    if !matches!(rustix::event::poll(&mut fds, Some(&patience)), Ok(1..)) {
        // The cursor is still behind the question.
        let _ = writeln!(out);
        return Ok(false);
    }
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    Ok(read.is_ok() && matches!(line.trim(), "y" | "Y" | "yes"))
}

/// The target whose state the request asks for, in words; `None` for any other request.
fn one_target(request: &Request) -> Option<String> {
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

/// The pid of the process that a thread belongs to.
fn leader(thread: u32) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{thread}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

fn of_process(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("; its process is {pid}"),
        None => String::new(),
    }
}
