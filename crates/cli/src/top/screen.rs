//! The state of the full screen ([`Screen`]). Keys, the time and responses of the daemon come in;
//! requests to the daemon and other actions go out ([`Action`]). What keys do ([`Mode`]):
//!
//! ```text
//!              u d b m c /            Enter: sent (filter: applied); if invalid, prompt stays
//!   table ───────────────> prompt ───────────────────────────────────────────────┐
//!     │  ^                    │ Esc                                              │
//!     │  └────────────────────┴──────────────────────────────────────────────────┘
//!     ├── x ──> confirm ─ y: sent; any other key: not sent ──> table
//!     └── ? ──> help ─── any key ──> table
//! ```
//!
//! The state machine does not wait, read a clock or use a terminal. The methods `handle_…` take
//! input, [`Screen::poll_action`] returns what to do, and the module `draw` draws the state. A
//! change is the same request as that of `netnice set` or `netnice clear`, and the daemon admits or
//! refuses it in the same way. A refusal or failure becomes a message on the screen; if a target's
//! connections cannot be read, their list closes.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use netnice_api::{
    Clear, ClearWhat, Connections, ConnectionsDoc, History, Request, Response, Set, Until, Watch,
    WatchDoc,
};
use netnice_core::contract::Change;
use netnice_core::target::Target;
use netnice_core::units::{Instant, Nanos};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::connections::ConnectionList;
use super::prompt::{KeyEffect, Prompt};
use super::table::{HISTORY_POINTS, Row, Table, View};
use crate::render::{self, printable};
use crate::show_all;

/// The state of the whole screen.
#[derive(Debug)]
pub(super) struct Screen {
    /// The daemon's latest table.
    pub table: Table,
    /// The part of the table that is shown, and its order.
    pub view: View,
    /// What keys do now.
    pub mode: Mode,
    /// The target that keys act on; `None` if there is no row.
    pub selected: Option<String>,
    /// The target whose connections are shown, with its connections after the first response.
    /// [`Connections::HOST`]: those of the whole host are shown in place of the table.
    pub open: Option<(String, Option<ConnectionList>)>,
    /// True if a sum for each remote host is shown in place of the connections.
    pub shows_hosts: bool,
    /// The latest event.
    pub status: StatusLine,
    /// True if the table is not updated.
    pub paused: bool,
    /// Time between two requests for the table.
    pub interval: Nanos,
    /// Number of rows at the last drawing: the length of a page.
    pub page: usize,
    /// Index of the first line on the page.
    pub first: usize,
    /// True if programs without a contract are listed too.
    pub lists_programs: bool,
    /// True while a request for the table has no response.
    awaits_table: bool,
    next_request: Instant,
    /// True while a request for the programs has no response.
    awaits_programs: bool,
    next_programs: Instant,
    /// Start time of the process for which the input line was opened, if its row is of a program.
    started: Option<u64>,
    actions: VecDeque<Action>,
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
    ConfirmClear(String),
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
pub(super) struct StatusLine {
    pub text: String,
    /// True for an error.
    pub is_error: bool,
}

/// What the caller of [`Screen::poll_action`] is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Send a request to the daemon; with the pidfd of this pid if it is about a process.
    Send(Request, Option<u32>),
    /// Send a request to the daemon that is about this process, with a pidfd of it. Send nothing
    /// if the process has ended.
    SendTo(Request, Until),
    /// Restore the terminal and stop the process until SIGCONT.
    Suspend,
    /// Draw everything again.
    Redraw,
    /// End.
    Quit,
}

/// The response to a request, or the reason why there is none.
pub(super) type Answer = Result<Response, String>;

impl Screen {
    /// A screen before the first response.
    pub(super) fn new(interval: Nanos) -> Screen {
        Screen {
            table: Table::default(),
            view: View::default(),
            mode: Mode::default(),
            selected: None,
            open: None,
            shows_hosts: false,
            status: StatusLine::default(),
            paused: false,
            interval,
            page: 1,
            first: 0,
            lists_programs: false,
            awaits_table: false,
            next_request: Instant(0),
            awaits_programs: false,
            next_programs: Instant(0),
            started: None,
            actions: VecDeque::new(),
        }
    }

    /// Removes and returns the next thing to do; `None` if there is nothing to do.
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The time at which to call [`Screen::handle_time`]; `None` if no request is due before the
    /// next input.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.table_due(), self.programs_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn table_due(&self) -> Option<Instant> {
        (!self.awaits_table && !self.paused).then_some(self.next_request)
    }

    fn programs_due(&self) -> Option<Instant> {
        let due = self.lists_programs && !self.awaits_programs && !self.paused;
        due.then_some(self.next_programs)
    }

    /// Requests the table and the programs as far as they are due at `now`.
    pub(super) fn handle_time(&mut self, now: Instant) {
        if self.programs_due().is_some_and(|due| now >= due) {
            // Counting ends some time after a request, so a slow table does not wait so long.
            let interval = self.interval.min(LONGEST_COUNT);
            self.next_programs = now.after(interval);
            self.awaits_programs = true;
            let request = show_all::programs_request(interval);
            self.actions.push_back(Action::Send(request, None));
        }
        if self.table_due().is_none_or(|due| now < due) {
            return;
        }
        // A late request does not delay all later ones.
        let due = self.next_request.after(self.interval);
        self.next_request = if due > now {
            due
        } else {
            now.after(self.interval)
        };
        self.request_table();
    }

    fn request_table(&mut self) {
        self.awaits_table = true;
        self.actions
            .push_back(Action::Send(table_request(self.interval), None));
        if self.table.doc().at_ns == 0 && HISTORY_INTERVALS.contains(&self.interval) {
            self.actions
                .push_back(Action::Send(history_request(), None));
        }
        if let Some((target, _)) = &self.open {
            self.request_connections(target.clone());
        }
    }

    fn request_connections(&mut self, target: String) {
        let own = target == Connections::HOST || self.table.is_program(&target);
        let request = Request::Connections(Connections { target, own });
        self.actions.push_back(Action::Send(request, None));
    }

    /// Processes the response to a request.
    pub(super) fn handle_response(&mut self, request: &Request, answer: Answer) {
        if matches!(request, Request::Watch(_)) {
            self.awaits_table = false;
        }
        if matches!(request, Request::Programs(_)) {
            self.awaits_programs = false;
        }
        match answer {
            Ok(Response::Watched(doc)) => self.update_table(doc),
            Ok(Response::Programs(doc)) if self.lists_programs => {
                self.table.update_programs(doc);
                self.select_visible();
            }
            Ok(Response::Programs(_)) => {}
            // For example, this kernel cannot count them: only targets are listed.
            Ok(Response::Failed(failed)) if matches!(request, Request::Programs(_)) => {
                self.set_programs(false);
                self.show_error(&failed.text);
            }
            // The quota is used up.
            Ok(Response::Refused(refused)) if matches!(request, Request::Programs(_)) => {
                self.set_programs(false);
                self.show_error(&refused.text);
            }
            Ok(Response::Connections(doc)) => self.update_connections(doc),
            Ok(Response::History(doc)) => self.table.prepend_history(&doc),
            Ok(Response::Refused(refused)) => self.show_error(&refused.text),
            // A target that has just ended is also missing in the table, so no message is
            // necessary.
            Ok(Response::Failed(_)) if matches!(request, Request::Connections(_)) => {
                self.open = None
            }
            Ok(Response::Failed(failed)) => self.show_error(&failed.text),
            Ok(other) => {
                self.show_status(&render::text(&other, &render::Style::default()));
                self.next_request = Instant(0);
            }
            Err(why) => {
                self.show_error(&why);
                self.awaits_table = false;
            }
        }
    }

    fn update_table(&mut self, doc: WatchDoc) {
        if self.status.is_error && self.status.text.starts_with(NO_RESPONSE) {
            self.status = StatusLine::default();
        }
        self.table.update(doc);
        self.select_visible();
        let gone = |(name, _): &(String, Option<ConnectionList>)| {
            name != Connections::HOST && self.table.find(name).is_none()
        };
        if self.open.as_ref().is_some_and(gone) {
            self.open = None;
        }
    }

    fn update_connections(&mut self, doc: ConnectionsDoc) {
        if let Some((name, connections)) = &mut self.open
            && *name == doc.target
        {
            let before = connections.take();
            *connections = Some(ConnectionList::new(doc, before.as_ref()));
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
            Mode::ConfirmClear(target) => match key.code {
                KeyCode::Char('y' | 'Y') => self.clear(target),
                _ => self.show_status("nothing was changed"),
            },
            Mode::Prompt(subject, prompt) => self.prompt_key(subject, prompt, key),
        }
        self.select_visible();
    }

    /// Selects the first row if the selected target is not shown, because keys act on visible rows.
    fn select_visible(&mut self) {
        let rows = self.table.rows(&self.view);
        if self.at(&rows).is_none() {
            self.selected = rows.first().map(|row| self.name(row));
        }
    }

    fn table_key(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => self.actions.push_back(Action::Quit),
                KeyCode::Char('z') => self.actions.push_back(Action::Suspend),
                KeyCode::Char('l') => self.actions.push_back(Action::Redraw),
                _ => {}
            }
            return;
        }
        self.status = StatusLine::default();
        match key.code {
            KeyCode::Char('q') => self.actions.push_back(Action::Quit),
            KeyCode::Esc if !self.view.filter.is_empty() => self.view.filter.clear(),
            KeyCode::Esc => self.open = None,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => self.view.reversed = !self.view.reversed,
            KeyCode::Char('t') => self.view.flat = !self.view.flat,
            KeyCode::Char('a') => self.set_programs(!self.lists_programs),
            KeyCode::Char('/') => {
                self.mode = Mode::Prompt(Subject::Filter, Prompt::with_text(&self.view.filter));
            }
            KeyCode::Char('u') => self.open_prompt(Some("up")),
            KeyCode::Char('d') => self.open_prompt(Some("down")),
            KeyCode::Char('b') => self.open_prompt(Some("both")),
            KeyCode::Char('m') => self.open_prompt(Some("min")),
            KeyCode::Char('c') => self.open_prompt(None),
            KeyCode::Char('x') | KeyCode::Delete => {
                self.mode = self
                    .selected
                    .clone()
                    .map(Mode::ConfirmClear)
                    .unwrap_or_default();
            }
            KeyCode::Enter => self.open_or_close(),
            KeyCode::Char('n') if self.is_open() || self.shows_host() => {
                self.shows_hosts = !self.shows_hosts;
            }
            KeyCode::Char('n') => {
                self.shows_hosts = true;
                self.open_or_close();
            }
            KeyCode::Char('N') if self.shows_host() => self.open = None,
            KeyCode::Char('N') => {
                self.shows_hosts = true;
                self.request_connections(Connections::HOST.to_string());
                self.open = Some((Connections::HOST.to_string(), None));
            }
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
        let effect = prompt.handle_key(key);
        match (&subject, effect) {
            (Subject::Filter, KeyEffect::Cancelled) => self.view.filter.clear(),
            (Subject::Filter, KeyEffect::Submitted) => self.view.filter = prompt.text(),
            (Subject::Filter, KeyEffect::Editing) => {
                self.view.filter = prompt.text();
                self.mode = Mode::Prompt(subject, prompt);
            }
            (Subject::Clause(..), KeyEffect::Cancelled) => self.show_status("nothing was changed"),
            (Subject::Clause(..), KeyEffect::Editing) => self.mode = Mode::Prompt(subject, prompt),
            (Subject::Clause(word, target), KeyEffect::Submitted) => {
                match change_action(*word, &prompt.text(), target, self.started) {
                    Ok(action) => {
                        self.status = StatusLine::default();
                        self.actions.push_back(action);
                    }
                    Err(why) => {
                        self.show_error(&why);
                        self.mode = Mode::Prompt(subject, prompt);
                    }
                }
            }
        }
    }

    fn sort_by_next(&mut self) {
        self.view.sort = self.view.sort.next();
        self.show_status(&format!("sorted by {}", self.view.sort.word()));
    }

    /// Lists programs without a contract, or no longer.
    fn set_programs(&mut self, listed: bool) {
        self.lists_programs = listed;
        self.next_programs = Instant(0);
        if !listed {
            self.table.clear_programs();
        }
    }

    fn open_prompt(&mut self, word: Option<&'static str>) {
        if let Some(target) = self.selected.clone() {
            self.started = self.table.program(&target).map(|program| program.started);
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
        self.actions
            .push_back(Action::Send(Request::Clear(clear), None));
    }

    /// True if the connections of the whole host are shown in place of the table.
    pub(super) fn shows_host(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|(name, _)| name == Connections::HOST)
    }

    fn is_open(&self) -> bool {
        let open = self.open.as_ref().map(|(name, _)| name);
        open.is_some() && open == self.selected.as_ref()
    }

    fn open_or_close(&mut self) {
        self.open = match (self.is_open(), self.selected.clone()) {
            (false, Some(target)) => {
                self.request_connections(target.clone());
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

    /// The index of the selected target in the rows; `None` if the rows do not contain it.
    pub(super) fn at(&self, rows: &[Row]) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        rows.iter()
            .position(|row| &self.table.target(row).target == selected)
    }

    fn name(&self, row: &Row) -> String {
        self.table.target(row).target.clone()
    }

    fn show_status(&mut self, text: &str) {
        let lines: Vec<String> = text.lines().map(|line| printable(line.trim())).collect();
        self.status = StatusLine {
            text: lines.join("; "),
            is_error: false,
        };
    }

    fn show_error(&mut self, text: &str) {
        self.show_status(text);
        self.status.is_error = true;
    }
}

/// The request for the table.
pub(super) fn table_request(interval: Nanos) -> Request {
    // The allowed age is one and a half intervals. So clients with an interval of one second share
    // one reading of the daemon per second.
    let within_ns = interval.0.saturating_add(interval.0 / 2).min(MAX_AGE.0);
    Request::Watch(Watch { within_ns })
}

/// The request for the rates before the first table.
pub(super) fn history_request() -> Request {
    Request::History(History {
        target: None,
        last_ns: HISTORY_POINTS as u64 * 1_000_000_000,
    })
}

/// The request that an input line means; fails with a message for the user. `started` is the start
/// time of the process, if the target is a process in the list of programs.
fn change_action(
    word: Option<&str>,
    typed: &str,
    target: &str,
    started: Option<u64>,
) -> Result<Action, String> {
    let typed = typed.trim();
    if typed.is_empty() {
        return Err("write a rate such as 4mbit or 500kB/s, or none; Esc cancels".to_string());
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
    Ok(match pid.zip(started) {
        Some((pid, started)) => Action::SendTo(Request::Set(set), Until { pid, started }),
        None => Action::Send(Request::Set(set), pid),
    })
}

/// The beginning of the error text if the daemon does not respond.
pub(super) const NO_RESPONSE: &str = "no answer: ";

/// The intervals at which the daemon's history fills the time before the first table: those close
/// to a second, which is the length of the history's points.
pub(super) const HISTORY_INTERVALS: RangeInclusive<Nanos> =
    Nanos::from_millis(500)..=Nanos::from_secs(2);

/// Longest time between two requests for the programs: the daemon stops counting 30 s after the
/// last one.
const LONGEST_COUNT: Nanos = Nanos::from_secs(10);

/// Largest age of a table: two intervals between the daemon's readings.
const MAX_AGE: Nanos = Nanos::from_millis(2_000);

#[cfg(test)]
mod tests;
