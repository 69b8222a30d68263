//! The state of the full screen: takes keys and answers, and returns requests and other commands.
//!
//! ```text
//!              u d b c /                        Enter: sent; if invalid, the prompt stays
//!   table ───────────────> prompt ───────────────────────────────────────────────┐
//!     │  ^                    │ Esc                                              │
//!     │  └────────────────────┴──────────────────────────────────────────────────┘
//!     ├── x ──> sure? ── y: sent; any other key: not sent ──> table
//!     └── ? ──> help ─── any key ──> table
//! ```
//!
//! The state machine does not wait, read a clock or use a terminal. `handle_*` methods take input,
//! [`Screen::poll_order`] returns what to do, and the module `draw` only reads. A change is the
//! same request as that of `netnice set` or `netnice clear`, and the daemon admits or refuses it in
//! the same way. A failure becomes a message on the screen.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use netnice_api::{
    Clear, ClearWhat, Connections, ConnectionsDoc, History, Request, Response, Set, Watch, WatchDoc,
};
use netnice_core::contract::Change;
use netnice_core::target::Target;
use netnice_core::units::{Instant, Nanos};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::peers::Peers;
use super::prompt::{Prompt, Typed};
use super::table::{KEPT, Row, Table, View};
use crate::desk::plain;
use crate::render;

/// The state of the whole screen.
#[derive(Debug)]
pub(super) struct Screen {
    /// The daemon's latest table.
    pub table: Table,
    /// The part of it that is shown, and its order.
    pub view: View,
    /// What keys do now.
    pub mode: Mode,
    /// The target that keys act on.
    pub selected: Option<String>,
    /// The target whose connections are shown, with its connections after the first answer.
    pub open: Option<(String, Option<Peers>)>,
    /// The latest event.
    pub news: News,
    /// True if the table is not updated.
    pub paused: bool,
    /// Time between two requests for the table.
    pub interval: Nanos,
    /// Number of rows at the last drawing: the length of a page.
    pub page: usize,
    /// Index of the first line on the page.
    pub first: usize,
    /// True while a request for the table has no answer.
    looking: bool,
    next_look: Instant,
    orders: VecDeque<Order>,
}

/// What keys do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// Keys navigate, or begin another mode.
    #[default]
    Table,
    /// Keys edit the input line.
    Prompt(Subject, Prompt),
    /// A key confirms or cancels the removal of this target's contract.
    Sure(String),
    /// Any key closes the help.
    Help,
}

/// What the input line is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// The filter of the table.
    Filter,
    /// A clause of a target's contract. Without the clause's word the user types a whole change.
    Clause(Option<&'static str>, String),
}

/// The latest event, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    pub text: String,
    /// True for an error.
    pub bad: bool,
}

/// What the caller of [`Screen::poll_order`] is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Send a request to the daemon; with the pidfd of this pid if it is about a process.
    Ask(Request, Option<u32>),
    /// Restore the terminal and stop the process until SIGCONT.
    Suspend,
    /// Draw everything again.
    Redraw,
    /// End.
    Quit,
}

/// An answer, or why there is none.
pub(super) type Answer = Result<Response, String>;

impl Screen {
    /// A screen before the first answer.
    pub(super) fn new(interval: Nanos) -> Screen {
        Screen {
            table: Table::default(),
            view: View::default(),
            mode: Mode::default(),
            selected: None,
            open: None,
            news: News::default(),
            paused: false,
            interval,
            page: 1,
            first: 0,
            looking: false,
            next_look: Instant(0),
            orders: VecDeque::new(),
        }
    }

    /// Returns the next thing to do.
    pub(super) fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// The time at which to call [`Screen::handle_time`].
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        (!self.looking && !self.paused).then_some(self.next_look)
    }

    /// Requests the table if it is time.
    pub(super) fn handle_time(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        // A late request does not delay all later ones.
        let due = self.next_look.after(self.interval);
        self.next_look = if due > now {
            due
        } else {
            now.after(self.interval)
        };
        self.look();
    }

    fn look(&mut self) {
        self.looking = true;
        self.orders.push_back(Order::Ask(look(self.interval), None));
        if self.table.doc().at_ns == 0 && SEEDED.contains(&self.interval) {
            self.orders.push_back(Order::Ask(past(), None));
        }
        if let Some((target, _)) = &self.open {
            let target = target.clone();
            let request = Request::Connections(Connections { target });
            self.orders.push_back(Order::Ask(request, None));
        }
    }

    /// Processes the answer to a request.
    pub(super) fn handle_answer(&mut self, request: &Request, answer: Answer) {
        let is_look = matches!(request, Request::Watch(_));
        self.looking &= !is_look;
        match answer {
            Ok(Response::Watched(doc)) => self.seen(doc),
            Ok(Response::Connections(doc)) => self.connected(doc),
            Ok(Response::History(doc)) => self.table.remember(&doc),
            Ok(Response::Refused(refused)) => self.say(true, &refused.text),
            // A target that has just ended is also missing in the table, so no message is
            // necessary.
            Ok(Response::Failed(_)) if matches!(request, Request::Connections(_)) => {
                self.open = None
            }
            Ok(Response::Failed(failed)) => self.say(true, &failed.text),
            Ok(other) => {
                self.say(false, &render::text(&other, &render::Style::default()));
                self.next_look = Instant(0);
            }
            Err(why) => {
                self.say(true, &why);
                self.looking = false;
            }
        }
    }

    fn seen(&mut self, doc: WatchDoc) {
        if self.news.bad && self.news.text.starts_with(LOST) {
            self.news = News::default();
        }
        self.table.take(doc);
        self.settle();
        let gone = |(name, _): &(String, Option<Peers>)| self.table.find(name).is_none();
        if self.open.as_ref().is_some_and(gone) {
            self.open = None;
        }
    }

    fn connected(&mut self, doc: ConnectionsDoc) {
        if let Some((name, peers)) = &mut self.open
            && *name == doc.target
        {
            let before = peers.take();
            *peers = Some(Peers::new(doc, before.as_ref()));
        }
    }

    /// Processes a key.
    pub(super) fn handle_key(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        match std::mem::take(&mut self.mode) {
            Mode::Table => self.table_key(key),
            Mode::Help => {}
            Mode::Sure(target) => match key.code {
                KeyCode::Char('y' | 'Y') => self.clear(target),
                _ => self.say(false, "nothing was changed"),
            },
            Mode::Prompt(subject, prompt) => self.prompt_key(subject, prompt, key),
        }
        self.settle();
    }

    /// Selects the first row if the selected target is not shown, because keys act on visible rows.
    fn settle(&mut self) {
        let rows = self.table.rows(&self.view);
        if self.at(&rows).is_none() {
            self.selected = rows.first().map(|row| self.name(row));
        }
    }

    fn table_key(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => self.orders.push_back(Order::Quit),
                KeyCode::Char('z') => self.orders.push_back(Order::Suspend),
                KeyCode::Char('l') => self.orders.push_back(Order::Redraw),
                _ => {}
            }
            return;
        }
        self.news = News::default();
        match key.code {
            KeyCode::Char('q') => self.orders.push_back(Order::Quit),
            KeyCode::Esc if !self.view.filter.is_empty() => self.view.filter.clear(),
            KeyCode::Esc => self.open = None,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => self.view.reversed = !self.view.reversed,
            KeyCode::Char('t') => self.view.flat = !self.view.flat,
            KeyCode::Char('/') => {
                self.mode = Mode::Prompt(Subject::Filter, Prompt::with(&self.view.filter));
            }
            KeyCode::Char('u') => self.begin(Some("up")),
            KeyCode::Char('d') => self.begin(Some("down")),
            KeyCode::Char('b') => self.begin(Some("both")),
            KeyCode::Char('c') => self.begin(None),
            KeyCode::Char('x') | KeyCode::Delete => {
                self.mode = self.selected.clone().map(Mode::Sure).unwrap_or_default();
            }
            KeyCode::Enter => self.open_or_close(),
            KeyCode::Right if !self.is_open() => self.open_or_close(),
            KeyCode::Left if self.is_open() => self.open = None,
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-self.page_step()),
            KeyCode::PageDown => self.move_by(self.page_step()),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.move_by(isize::MAX),
            _ => {}
        }
    }

    fn prompt_key(&mut self, subject: Subject, mut prompt: Prompt, key: KeyEvent) {
        let typed = prompt.handle_key(key);
        match (&subject, typed) {
            (Subject::Filter, Typed::Escape) => self.view.filter.clear(),
            (Subject::Filter, Typed::Enter) => self.view.filter = prompt.text(),
            (Subject::Filter, Typed::More) => {
                self.view.filter = prompt.text();
                self.mode = Mode::Prompt(subject, prompt);
            }
            (Subject::Clause(..), Typed::Escape) => self.say(false, "nothing was changed"),
            (Subject::Clause(..), Typed::More) => self.mode = Mode::Prompt(subject, prompt),
            (Subject::Clause(word, target), Typed::Enter) => {
                match change(*word, &prompt.text(), target) {
                    Ok(order) => {
                        self.news = News::default();
                        self.orders.push_back(order);
                    }
                    Err(why) => {
                        self.say(true, &why);
                        self.mode = Mode::Prompt(subject, prompt);
                    }
                }
            }
        }
    }

    fn sort_by_next(&mut self) {
        self.view.sort = self.view.sort.next();
        self.say(false, &format!("sorted by {}", self.view.sort.word()));
    }

    fn begin(&mut self, word: Option<&'static str>) {
        if let Some(target) = self.selected.clone() {
            self.mode = Mode::Prompt(Subject::Clause(word, target), Prompt::default());
        }
    }

    fn clear(&mut self, target: String) {
        let clear = Clear {
            what: ClearWhat::Target(target),
            dry_run: false,
            confirm_ns: None,
            for_ns: None,
            until: None,
        };
        let order = Order::Ask(Request::Clear(clear), None);
        self.orders.push_back(order);
    }

    fn is_open(&self) -> bool {
        let open = self.open.as_ref().map(|(name, _)| name);
        open.is_some() && open == self.selected.as_ref()
    }

    fn open_or_close(&mut self) {
        self.open = match (self.is_open(), self.selected.clone()) {
            (false, Some(target)) => {
                let request = Request::Connections(Connections {
                    target: target.clone(),
                });
                self.orders.push_back(Order::Ask(request, None));
                Some((target, None))
            }
            _ => None,
        };
    }

    fn page_step(&self) -> isize {
        isize::try_from(self.page.saturating_sub(1).max(1)).unwrap_or(1)
    }

    fn move_by(&mut self, rows_down: isize) {
        let rows = self.table.rows(&self.view);
        let at = self.at(&rows).unwrap_or(0);
        let to = at.saturating_add_signed(rows_down);
        let to = to.min(rows.len().saturating_sub(1));
        self.selected = rows.get(to).map(|row| self.name(row));
    }

    /// The index of the selected target in the rows.
    pub(super) fn at(&self, rows: &[Row]) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        rows.iter()
            .position(|row| &self.table.target(row).target == selected)
    }

    fn name(&self, row: &Row) -> String {
        self.table.target(row).target.clone()
    }

    fn say(&mut self, bad: bool, text: &str) {
        let lines: Vec<String> = text.lines().map(|line| plain(line.trim())).collect();
        self.news = News {
            text: lines.join("; "),
            bad,
        };
    }
}

/// The request for the table.
pub(super) fn look(interval: Nanos) -> Request {
    // The allowed age is one and a half intervals. So clients with an interval of one second share
    // one reading of the daemon per second.
    let within_ns = interval.0.saturating_add(interval.0 / 2).min(OLDEST.0);
    Request::Watch(Watch { within_ns })
}

/// The request for the rates before the first table.
pub(super) fn past() -> Request {
    Request::History(History {
        target: None,
        last_ns: KEPT as u64 * 1_000_000_000,
    })
}

/// The request that an input line means; fails with a message for the user.
fn change(word: Option<&str>, typed: &str, target: &str) -> Result<Order, String> {
    let typed = typed.trim();
    if typed.is_empty() {
        return Err("write a rate such as 4mbit or 500kB/s, or none; Esc leaves it".to_string());
    }
    let text = match word {
        Some(word) => format!("{word} {typed}"),
        None => typed.replace("--", ""),
    };
    let change: Change = text.parse().map_err(|error| format!("{error}"))?;
    let parsed: Target = target.parse().map_err(|error| format!("{error}"))?;
    let pid = match &parsed {
        Target::Pid(pid) => Some(pid.get()),
        _ => None,
    };
    let set = Set {
        target: parsed.to_string(),
        change: Some(change.to_string()),
        ..Set::default()
    };
    Ok(Order::Ask(Request::Set(set), pid))
}

/// First words of the message that no daemon answers.
pub(super) const LOST: &str = "no answer: ";

/// Intervals close to one point of the daemon's history. Only for these the daemon's history fills
/// the time before the first table.
pub(super) const SEEDED: RangeInclusive<Nanos> = Nanos::from_millis(500)..=Nanos::from_secs(2);

/// Largest age of a table: two of the daemon's readings.
const OLDEST: Nanos = Nanos::from_millis(2_000);

#[cfg(test)]
mod tests;
