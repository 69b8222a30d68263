//! What the person sees and does: a state that takes in keys and answers, and says what is to be asked.
//!
//! ```text
//!              u d b c /                        Enter: asked, or not understood: it stays
//!   table ───────────────> prompt ───────────────────────────────────────────────┐
//!     │  ^                    │ Esc                                              │
//!     │  └────────────────────┴──────────────────────────────────────────────────┘
//!     ├── x ──> sure? ── y: asked; any other key: not ──> table
//!     └── ? ──> help ─── any key ──> table
//! ```
//!
//! Nothing here waits, reads a clock or touches a terminal: `handle_*` takes in, [`Screen::poll_order`] gives out what
//! is to be done, and drawing (`draw`) only reads. A change goes the way that `netnice set` and `netnice clear` go,
//! and is judged by the daemon as they are.

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
    /// What the daemon said last.
    pub table: Table,
    /// What of it is shown, and how.
    pub view: View,
    /// What keys mean now.
    pub mode: Mode,
    /// The target that keys are about.
    pub selected: Option<String>,
    /// The target whose connections are shown, with them.
    pub open: Option<(String, Option<Peers>)>,
    /// The last thing that happened.
    pub news: News,
    /// Whether the table stands still.
    pub paused: bool,
    /// Time between two looks.
    pub interval: Nanos,
    /// How many rows the table had when it was drawn last: as far as a page goes.
    pub page: usize,
    /// The first line of the table that is on the page.
    pub first: usize,
    /// Whether a look is under way.
    looking: bool,
    next_look: Instant,
    orders: VecDeque<Order>,
}

/// What keys mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// They move about, and begin everything else.
    #[default]
    Table,
    /// They write a line.
    Prompt(Subject, Prompt),
    /// They say whether the contract of this target is to be taken back.
    Sure(String),
    /// They end the help.
    Help,
}

/// What a line is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Which targets are shown.
    Filter,
    /// A clause of a target's contract; without its word the whole change is written.
    Clause(Option<&'static str>, String),
}

/// The last thing that happened, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// What.
    pub text: String,
    /// Whether it is bad.
    pub bad: bool,
}

/// What is to be done outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Ask the daemon; where a process is meant, with its pidfd.
    Ask(Request, Option<u32>),
    /// Give the terminal back and stop, until somebody continues us.
    Suspend,
    /// Draw everything anew.
    Redraw,
    /// End.
    Quit,
}

/// An answer, or why there is none.
pub(super) type Answer = Result<Response, String>;

impl Screen {
    /// A screen on which nothing has been seen yet.
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

    /// The next thing to be done outside.
    pub(super) fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// When [`Screen::handle_time`] is to be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        (!self.looking && !self.paused).then_some(self.next_look)
    }

    /// Looks again if it is time.
    pub(super) fn handle_time(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        // Late once is not late for ever.
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

    /// Takes in the answer to a request.
    pub(super) fn handle_answer(&mut self, request: &Request, answer: Answer) {
        let is_look = matches!(request, Request::Watch(_));
        self.looking &= !is_look;
        match answer {
            Ok(Response::Watched(doc)) => self.seen(doc),
            Ok(Response::Connections(doc)) => self.connected(doc),
            Ok(Response::History(doc)) => self.table.remember(&doc),
            Ok(Response::Refused(refused)) => self.say(true, &refused.text),
            // Of a target that has just ended the table says enough.
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

    /// Takes in a key.
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

    /// Selects the first row if what was selected is not shown: keys are about what can be seen.
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

    /// The place of the selected target among the rows.
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

/// What asks for the table.
pub(super) fn look(interval: Nanos) -> Request {
    // Half as old again: whoever looks each second shares the readings that are made each second.
    let within_ns = interval.0.saturating_add(interval.0 / 2).min(OLDEST.0);
    Request::Watch(Watch { within_ns })
}

/// What asks for what was before the first look.
pub(super) fn past() -> Request {
    Request::History(History {
        target: None,
        last_ns: KEPT as u64 * 1_000_000_000,
    })
}

/// The request that a typed line means.
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

/// Begins the text that says that there is no daemon.
pub(super) const LOST: &str = "no answer: ";

/// Where a look takes about as long as a point of the daemon's history, that goes before ours.
pub(super) const SEEDED: RangeInclusive<Nanos> = Nanos::from_millis(500)..=Nanos::from_secs(2);

/// Readings are made each second; two of them are as old as any table should be.
const OLDEST: Nanos = Nanos::from_millis(2_000);

#[cfg(test)]
mod tests;
