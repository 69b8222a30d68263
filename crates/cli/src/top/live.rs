//! The full screen: one loop for the terminal, and three threads that only wait.
//!
//! ```text
//!   keys and sizes ──┐
//!   signals ─────────┼──> one queue ──> the screen ──> orders ──> the daemon's connection ──┐
//!   answers ─────────┘                      │ draws                                         │
//!      ^                                                                                    │
//!      └────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Requests run in a thread of their own, so a busy or missing daemon never delays a key. Each exit
//! restores the terminal: `q`, an error, a panic, SIGTERM, SIGINT, SIGHUP and SIGQUIT. Fails if no
//! daemon can be reached at the start, or if the terminal fails.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{Client, ClientError, Exit, Request, RuntimeDir};
use netnice_core::units::{Instant as Moment, Nanos};
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::{DefaultTerminal, Frame};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::draw::{Looks, draw};
use super::screen::{Answer, LOST, Order, Screen};
use crate::desk::{self, Trouble};

/// An input of the loop.
enum News {
    Key(KeyEvent),
    /// The terminal has a new size, or its content was lost.
    Size,
    /// The terminal is closed.
    Closed,
    Signal(i32),
    Answer(Box<(Request, Answer)>),
}

/// Shows the screen until the user or a signal ends it.
pub(super) fn serve(dir: &RuntimeDir, interval: Nanos) -> Result<Exit, Trouble> {
    // Connects before the terminal changes, so that an error prints as usual.
    let client = desk::connect(dir)?;
    let (to_screen, news) = channel();
    let asks = connection(client, dir.clone(), to_screen.clone());
    signals(to_screen.clone())?;
    let mut terminal = ratatui::try_init().map_err(terminal_trouble)?;
    keys(to_screen);
    let ended = run(&mut terminal, interval, &news, &asks);
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
        Err(error) => Err(terminal_trouble(error)),
    }
}

/// Processes inputs until `q` or a signal. Returns the signal.
fn run(
    terminal: &mut DefaultTerminal,
    interval: Nanos,
    news: &Receiver<News>,
    asks: &Sender<(Request, Option<u32>)>,
) -> io::Result<Option<i32>> {
    let started = Instant::now();
    let now = || Moment(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut screen = Screen::new(interval);
    let looks = Looks::of_environment();
    loop {
        screen.handle_time(now());
        while let Some(order) = screen.poll_order() {
            match order {
                // The receiver lives as long as this process.
                Order::Ask(request, pid) => drop(asks.send((request, pid))),
                Order::Suspend => suspend(terminal)?,
                Order::Redraw => terminal.clear()?,
                Order::Quit => return Ok(None),
            }
        }
        terminal.draw(|frame: &mut Frame<'_>| draw(&mut screen, looks, frame))?;
        let due = screen.poll_timeout();
        let patience = due.map_or(LONGEST, |due| due.since(now()).into());
        let mut next = match news.recv_timeout(patience) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        };
        // Inputs that arrived in the meantime share one drawing.
        while let Some(one) = next {
            match one {
                News::Key(key) => screen.handle_key(key),
                News::Size => {}
                News::Closed => return Ok(Some(SIGHUP)),
                News::Signal(signal) => return Ok(Some(signal)),
                News::Answer(answer) => screen.handle_answer(&answer.0, answer.1),
            }
            next = news.try_recv().ok();
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

/// Starts the thread that reads keys and sizes.
fn keys(to: Sender<News>) {
    thread::spawn(move || {
        loop {
            let one = match event::read() {
                Ok(Event::Key(key)) => News::Key(key),
                Ok(Event::Resize(..)) => News::Size,
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => News::Closed,
            };
            let last = matches!(one, News::Closed);
            if to.send(one).is_err() || last {
                return;
            }
        }
    });
}

/// Starts the thread that receives the ending signals.
fn signals(to: Sender<News>) -> Result<(), Trouble> {
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
    let mut signals = signals.map_err(terminal_trouble)?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if to.send(News::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Starts the thread that sends requests to the daemon, one after another. It connects again if the
/// connection ended.
fn connection(client: Client, dir: RuntimeDir, to: Sender<News>) -> Sender<(Request, Option<u32>)> {
    let (asks, asked) = channel::<(Request, Option<u32>)>();
    thread::spawn(move || {
        let mut client = Some(client);
        while let Ok((request, pid)) = asked.recv() {
            let answer = ask(&mut client, &dir, &request, pid);
            if to.send(News::Answer(Box::new((request, answer)))).is_err() {
                return;
            }
        }
    });
    asks
}

fn ask(
    client: &mut Option<Client>,
    dir: &RuntimeDir,
    request: &Request,
    pid: Option<u32>,
) -> Answer {
    let process = match pid.map(desk::process).transpose() {
        Ok(process) => process,
        Err(trouble) => return Err(trouble.to_string()),
    };
    let lost = |error: ClientError| format!("{LOST}{error}; trying again");
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

fn terminal_trouble(source: io::Error) -> Trouble {
    let _ = io::stdout().flush();
    Trouble::Io {
        what: "the terminal".to_string(),
        source,
    }
}

/// Longest wait; used if no time is due, so that the next input is a key.
const LONGEST: Duration = Duration::from_secs(3600);
