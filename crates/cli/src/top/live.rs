//! The full screen: the terminal, and three threads that only wait.
//!
//! ```text
//!   keys and sizes ──┐
//!   signals ─────────┼──> one queue ──> the screen ──> orders ──> the daemon's connection ──┐
//!   answers ─────────┘                      │ draws                                         │
//!      ^                                                                                    │
//!      └────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A daemon that is busy, or gone, never holds up a key. The terminal is as it was before on every way out: `q`, an
//! error, a panic, SIGTERM, SIGINT, SIGHUP and SIGQUIT.

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

/// What comes in.
enum News {
    Key(KeyEvent),
    /// The terminal has another size, or lost what was drawn.
    Size,
    /// The terminal is gone.
    Closed,
    Signal(i32),
    Answer(Box<(Request, Answer)>),
}

/// Shows the screen until the person leaves it.
pub(super) fn serve(dir: &RuntimeDir, interval: Nanos) -> Result<Exit, Trouble> {
    // Before the terminal is changed: what goes wrong here is told as ever.
    let client = desk::connect(dir)?;
    let (to_screen, news) = channel();
    let asks = connection(client, dir.clone(), to_screen.clone());
    signals(to_screen.clone())?;
    let mut terminal = ratatui::try_init().map_err(terminal_trouble)?;
    keys(to_screen);
    let ended = run(&mut terminal, interval, &news, &asks);
    // Shows the cursor again; a signal that ends us would leave no time for it.
    drop(terminal);
    ratatui::restore();
    match ended {
        Ok(None) => Ok(Exit::Done),
        Ok(Some(signal)) => {
            // As if it had not been caught: who started us sees how we ended.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            Ok(Exit::Error)
        }
        Err(error) => Err(terminal_trouble(error)),
    }
}

/// Takes in what comes, until the end or a signal.
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
                // The other end lives as long as we do.
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
        // All that has come meanwhile is drawn at once.
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

/// Gives the terminal back and stops, as Ctrl-Z does; when somebody continues us, all is drawn anew.
fn suspend(terminal: &mut DefaultTerminal) -> io::Result<()> {
    terminal.show_cursor()?;
    ratatui::try_restore()?;
    kill_process(getpid(), Signal::STOP)?;
    *terminal = ratatui::try_init()?;
    terminal.clear()
}

/// Reads keys and sizes.
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

/// Hears the signals that end us.
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

/// Asks the daemon, one thing after the other; connects again where the connection has ended.
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

/// Nothing is due: the next thing to happen is a key.
const LONGEST: Duration = Duration::from_secs(3600);
