//! The full screen of `netnice top`: one loop for the terminal, and three threads that wait for
//! keys, signals and responses. The loop passes inputs to the [`Screen`] and executes its
//! [`Action`]s:
//!
//! ```text
//!   keys and sizes ──┐
//!   signals ─────────┼──> one queue ──> the screen ──> actions ──> the daemon's connection ─┐
//!   responses ───────┘                      │ draws                                         │
//!      ^                                                                                    │
//!      └────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Requests run in a thread of their own, so a busy or missing daemon never delays a key. Each exit
//! restores the terminal: `q`, an error, a panic, SIGTERM, SIGINT, SIGHUP and SIGQUIT. Fails if no
//! daemon can be reached at the start, if a signal handler cannot be set, or if the terminal fails.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{Client, ClientError, Exit, Request, RuntimeDir};
use netnice_core::units::Instant as Moment;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::{DefaultTerminal, Frame};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::draw::{TerminalStyle, draw};
use super::screen::{Action, Answer, NO_RESPONSE, Screen};
use crate::args::Top;
use crate::error::CommandError;
use crate::{daemon, process};

/// The process that a request is about.
struct Wanted {
    pid: u32,
    /// The process's start time; `None` if any process with this id is meant.
    started: Option<u64>,
}

/// An input of the loop.
enum Input {
    Key(KeyEvent),
    /// The terminal has a new size, or its content was lost.
    Size,
    /// The terminal is closed.
    Closed,
    Signal(i32),
    Answer(Box<(Request, Answer)>),
}

/// Shows the screen until the user or a signal ends it. Fails for the reasons in the module's
/// documentation.
pub(super) fn run(dir: &RuntimeDir, options: &Top) -> Result<Exit, CommandError> {
    // Connects before the terminal changes, so that an error prints as usual.
    let client = daemon::connect(dir)?;
    let (to_screen, inputs) = channel();
    let requests = start_requests(client, dir.clone(), to_screen.clone());
    start_signals(to_screen.clone())?;
    let mut terminal = ratatui::try_init().map_err(terminal_error)?;
    start_keys(to_screen);
    let ended = process_inputs(&mut terminal, options, &inputs, &requests);
    // Dropping shows the cursor again; the signal below would leave no time for it.
    drop(terminal);
    ratatui::restore();
    match ended {
        Ok(None) => Ok(Exit::Done),
        Ok(Some(signal)) => {
            // Ends as if the signal had not been caught, so the parent process sees the signal.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            Ok(Exit::Error)
        }
        Err(error) => Err(terminal_error(error)),
    }
}

/// Processes inputs until `q` or a signal. Returns the signal.
fn process_inputs(
    terminal: &mut DefaultTerminal,
    options: &Top,
    inputs: &Receiver<Input>,
    requests: &Sender<(Request, Option<Wanted>)>,
) -> io::Result<Option<i32>> {
    let started = Instant::now();
    let now = || Moment(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut screen = Screen::new(options.interval);
    screen.lists_programs = !options.targets;
    let style = TerminalStyle::of_environment();
    loop {
        screen.handle_time(now());
        while let Some(action) = screen.poll_action() {
            match action {
                // The receiver lives as long as this process.
                Action::Send(request, pid) => {
                    let wanted = pid.map(|pid| Wanted { pid, started: None });
                    drop(requests.send((request, wanted)));
                }
                Action::SendTo(request, process) => {
                    let wanted = Wanted {
                        pid: process.pid,
                        started: Some(process.started),
                    };
                    drop(requests.send((request, Some(wanted))));
                }
                Action::Suspend => suspend(terminal)?,
                Action::Redraw => terminal.clear()?,
                Action::Quit => return Ok(None),
            }
        }
        terminal.draw(|frame: &mut Frame<'_>| draw(&mut screen, style, frame))?;
        let due = screen.poll_timeout();
        let timeout = due.map_or(MAX_WAIT, |due| due.since(now()).into());
        let mut next = match inputs.recv_timeout(timeout) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        };
        // Inputs that arrived in the meantime share one drawing.
        while let Some(one) = next {
            match one {
                Input::Key(key) => screen.handle_key(key),
                Input::Size => {}
                Input::Closed => return Ok(Some(SIGHUP)),
                Input::Signal(signal) => return Ok(Some(signal)),
                Input::Answer(answer) => screen.handle_response(&answer.0, answer.1),
            }
            next = inputs.try_recv().ok();
        }
    }
}

/// Restores the terminal and stops this process, as Ctrl-Z does. After SIGCONT draws everything
/// again.
fn suspend(terminal: &mut DefaultTerminal) -> io::Result<()> {
    terminal.show_cursor()?;
    ratatui::try_restore()?;
    kill_process(getpid(), Signal::STOP)?;
    *terminal = ratatui::try_init()?;
    terminal.clear()
}

/// Starts the thread that reads keys and changes of the terminal's size.
fn start_keys(to: Sender<Input>) {
    thread::spawn(move || {
        loop {
            let one = match event::read() {
                Ok(Event::Key(key)) => Input::Key(key),
                Ok(Event::Resize(..)) => Input::Size,
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => Input::Closed,
            };
            let last = matches!(one, Input::Closed);
            if to.send(one).is_err() || last {
                return;
            }
        }
    });
}

/// Starts the thread that receives the ending signals.
fn start_signals(to: Sender<Input>) -> Result<(), CommandError> {
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
    let mut signals = signals.map_err(terminal_error)?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if to.send(Input::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Starts the thread that sends requests to the daemon, one after another. It connects again if the
/// connection ended.
fn start_requests(
    client: Client,
    dir: RuntimeDir,
    to: Sender<Input>,
) -> Sender<(Request, Option<Wanted>)> {
    let (requests, to_send) = channel::<(Request, Option<Wanted>)>();
    thread::spawn(move || {
        let mut client = Some(client);
        while let Ok((request, wanted)) = to_send.recv() {
            let answer = send(&mut client, &dir, &request, wanted);
            if to.send(Input::Answer(Box::new((request, answer)))).is_err() {
                return;
            }
        }
    });
    requests
}

fn send(
    client: &mut Option<Client>,
    dir: &RuntimeDir,
    request: &Request,
    wanted: Option<Wanted>,
) -> Answer {
    let process = match wanted
        .as_ref()
        .map(|wanted| process::open(wanted.pid))
        .transpose()
    {
        Ok(process) => process,
        Err(error) => return Err(error.to_string()),
    };
    // The pidfd was opened first, so it is of the process whose start time is read here.
    if let Some(Wanted {
        pid,
        started: Some(started),
    }) = wanted
        && process::exit_of(pid).is_none_or(|now| now.started != started)
    {
        return Err(format!("process {pid} has ended"));
    }
    let lost = |error: ClientError| format!("{NO_RESPONSE}{error}; trying again");
    let mut connected = match client.take() {
        Some(client) => client,
        None => Client::connect(dir).map_err(lost)?,
    };
    let answer = connected
        .call(request, process.as_ref().map(AsFd::as_fd))
        .map_err(lost)?;
    *client = Some(connected);
    Ok(answer)
}

fn terminal_error(source: io::Error) -> CommandError {
    let _ = io::stdout().flush();
    CommandError::io("the terminal", source)
}

/// Longest wait for an input; used if no request is due at a time.
const MAX_WAIT: Duration = Duration::from_secs(3600);
