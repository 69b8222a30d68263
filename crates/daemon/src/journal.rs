//! The journal records events as lines of text: grants, refusals, repairs. It keeps the latest
//! lines in memory for `netnice log`, and passes each of them to the crate `tracing`. Nothing here
//! can fail.
//!
//! It has two lists of at most [`MAX_LINES`] (2,000) lines: one for root, the group `netnice` and
//! the daemon itself, and one for all unprivileged users together, whose lines thus cannot displace
//! those of the first. If the first list is full, a new line displaces the oldest; if the second is
//! full, the user with the most lines loses the oldest one. An unprivileged user has a limited
//! number of lines in a minute (the quota `log-lines`). Further events are only counted, and become
//! one line with their number at the end of the minute. The lists have at most the first
//! [`MAX_LINE_BYTES`] (2,000) bytes of each text.

use std::collections::{BTreeMap, VecDeque};

use netnice_api::LogLine;
use netnice_core::units::{Instant, Nanos};

use crate::clock::Now;
use crate::quotas::Quota;
use crate::user_names::user_name;

/// The latest events, and the numbers of those that were only counted.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Lines of root, the group `netnice` and the daemon itself, oldest first.
    lines: VecDeque<Line>,
    /// Lines of unprivileged users, by uid.
    users: BTreeMap<u32, UserLines>,
    /// The quota `log-lines`: lines of each unprivileged user in a minute.
    lines_of_user: u64,
    /// The sequence number of the next line.
    next: u64,
    /// The last error of each repeated action, see [`Journal::log_result`].
    last_errors: BTreeMap<&'static str, String>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// An action succeeded.
    Done,
    /// A request was refused.
    Refused,
    /// A fault that needs attention.
    Fault,
}

#[derive(Debug)]
struct Line {
    number: u64,
    line: LogLine,
}

/// A user's events.
#[derive(Debug, Default)]
struct UserLines {
    lines: VecDeque<Line>,
    /// Start of the present minute.
    since: Instant,
    /// Lines kept in the present minute.
    kept: u64,
    /// Events that were counted and not kept: refusals, others.
    more: [u64; 2],
}

impl Default for Journal {
    fn default() -> Journal {
        Journal {
            lines: VecDeque::new(),
            users: BTreeMap::new(),
            lines_of_user: Quota::LogLines.describe().default,
            next: 0,
            last_errors: BTreeMap::new(),
        }
    }
}

impl Journal {
    /// Sets the quota `log-lines`: the number of lines of each unprivileged user in a minute.
    pub(crate) fn set_quota(&mut self, lines_of_user: u64) {
        self.lines_of_user = lines_of_user;
    }

    /// Logs an action that succeeded.
    pub(crate) fn note(&mut self, now: Now, text: impl Into<String>) {
        self.log(now, None, EventKind::Done, text);
    }

    /// Logs a fault that needs attention.
    pub(crate) fn warn(&mut self, now: Now, text: impl Into<String>) {
        self.log(now, None, EventKind::Fault, text);
    }

    /// Logs an event; `user` is the unprivileged user who caused it, if one did. An event of a user
    /// beyond the quota is only counted.
    pub(crate) fn log(
        &mut self,
        now: Now,
        user: Option<u32>,
        kind: EventKind,
        text: impl Into<String>,
    ) {
        let text = text.into();
        if let Some(uid) = user
            && !self.has_room_for(now, uid, kind)
        {
            return;
        }
        match kind {
            EventKind::Done => tracing::info!("{text}"),
            EventKind::Refused | EventKind::Fault => tracing::warn!("{text}"),
        }
        self.keep(now, user, &text);
    }

    /// Logs the result of a repeated action. A success is not logged. An error is logged once; the
    /// same error is logged again after the action has succeeded or failed with another error.
    pub(crate) fn log_result<E: ToString>(
        &mut self,
        now: Now,
        action: &'static str,
        result: Result<(), E>,
    ) {
        match result.map_err(|error| error.to_string()) {
            Ok(()) => {
                self.last_errors.remove(action);
            }
            Err(text) if self.last_errors.get(action) == Some(&text) => {}
            Err(text) => {
                self.warn(now, format!("{action}: {text}"));
                self.last_errors.insert(action, text);
            }
        }
    }

    /// Logs the number of events beyond the quota, for each user whose minute is over. The caller
    /// calls it each second.
    pub(crate) fn sum_up(&mut self, now: Now) {
        let is_over = |of: &UserLines| now.monotonic.since(of.since) >= MINUTE;
        let over = self.users.iter().filter(|(_, of)| is_over(of));
        let over: Vec<u32> = over.map(|(uid, _)| *uid).collect();
        for uid in over {
            self.end_minute(now, uid);
            self.users
                .retain(|user, of| *user != uid || !of.lines.is_empty());
        }
    }

    /// The lines of the last `since_ns` nanoseconds (`None`: all), oldest first, and then a line
    /// for each user with events beyond the quota in the present minute. Returns the last `most` of
    /// these lines (`None`: all).
    pub(crate) fn read(&self, now: Now, since_ns: Option<u64>, most: Option<u32>) -> Vec<LogLine> {
        let from = since_ns.map_or(0, |since| now.wall_ns.saturating_sub(since));
        let of_users = self.users.values().flat_map(|of| &of.lines);
        let all = self.lines.iter().chain(of_users);
        let mut recent: Vec<&Line> = all.filter(|line| line.line.at_ns >= from).collect();
        recent.sort_by_key(|line| line.number);
        let sums = self.users.iter().filter_map(|(uid, of)| {
            let text = of.sum(*uid)?;
            Some(LogLine {
                at_ns: now.wall_ns,
                text,
            })
        });
        let lines = recent.into_iter().map(|line| line.line.clone()).chain(sums);
        let mut lines: Vec<LogLine> = lines.collect();
        let skip = most.map_or(0, |most| lines.len().saturating_sub(most as usize));
        lines.drain(..skip);
        lines
    }

    /// For each unprivileged user in the journal: the uid, and the number of events in the present
    /// minute, logged or only counted.
    pub(crate) fn of_users(&self) -> impl Iterator<Item = (u32, u64)> {
        self.users
            .iter()
            .map(|(uid, of)| (*uid, of.kept + of.more.iter().sum::<u64>()))
    }

    /// Counts a user's event. True if it is within the quota.
    fn has_room_for(&mut self, now: Now, uid: u32, kind: EventKind) -> bool {
        let since = self.users.get(&uid).map(|of| of.since);
        if since.is_some_and(|since| now.monotonic.since(since) >= MINUTE) {
            self.end_minute(now, uid);
        }
        let of = self.users.entry(uid).or_default();
        if of.kept == 0 && of.more == [0, 0] {
            of.since = now.monotonic;
        }
        if of.kept < self.lines_of_user {
            of.kept += 1;
            return true;
        }
        of.more[usize::from(kind != EventKind::Refused)] += 1;
        false
    }

    fn end_minute(&mut self, now: Now, uid: u32) {
        let Some(of) = self.users.get_mut(&uid) else {
            return;
        };
        let sum = of.sum(uid);
        (of.kept, of.more) = (0, [0, 0]);
        of.since = now.monotonic;
        if let Some(text) = sum {
            tracing::warn!("{text}");
            self.keep(now, Some(uid), &text);
        }
    }

    fn keep(&mut self, now: Now, user: Option<u32>, text: &str) {
        // One event is one line, whatever its text contains.
        let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if text.len() > MAX_LINE_BYTES {
            text.truncate(text.floor_char_boundary(MAX_LINE_BYTES));
            text.push('…');
        }
        let line = Line {
            number: self.next,
            line: LogLine {
                at_ns: now.wall_ns,
                text,
            },
        };
        self.next += 1;
        let Some(uid) = user else {
            if self.lines.len() == MAX_LINES {
                self.lines.pop_front();
            }
            self.lines.push_back(line);
            return;
        };
        self.users.entry(uid).or_default().lines.push_back(line);
        if self.users.values().map(|of| of.lines.len()).sum::<usize>() > MAX_LINES {
            let most = self.users.values_mut().max_by_key(|of| of.lines.len());
            most.and_then(|of| of.lines.pop_front());
        }
    }
}

impl UserLines {
    /// The number of events that were counted and not kept, as text; `None` if there are none.
    fn sum(&self, uid: u32) -> Option<String> {
        let count = |number: u64, what: &str| match number {
            0 => None,
            1 => Some(format!("1 more {what}")),
            n => Some(format!("{n} more {what}s")),
        };
        let [refusals, others] = self.more;
        let parts = [count(refusals, "refusal"), count(others, "event")];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| {
            format!(
                "{} of {} within a minute, beyond the {} lines that the quota log-lines leaves \
                 each user",
                parts.join(" and "),
                user_name(uid),
                self.kept
            )
        })
    }
}

/// Largest number of lines in each of two lists: those of root, the group `netnice` and the daemon,
/// and those of all unprivileged users together. A refusal is about 300 bytes long, so a list
/// usually stays below a megabyte.
const MAX_LINES: usize = 2_000;
/// Largest number of bytes of a line: a refusal names all holders of a link, which may be
/// thousands.
const MAX_LINE_BYTES: usize = 2_000;
/// The period of the quota `log-lines`.
const MINUTE: Nanos = Nanos::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall_ns: u64) -> Now {
        Now {
            wall_ns,
            monotonic: Instant(wall_ns),
        }
    }

    #[test]
    fn a_repeated_error_is_logged_once() {
        let mut journal = Journal::default();
        for result in [Err("a"), Err("a"), Err("b"), Ok(()), Err("b")] {
            journal.log_result(at(1), "measuring", result);
        }
        let lines = journal.read(at(1), None, None);
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["measuring: a", "measuring: b", "measuring: b"]);
    }

    #[test]
    fn old_lines_are_dropped_and_the_latest_are_read_in_order() {
        let mut journal = Journal::default();
        for n in 0..MAX_LINES as u64 + 5 {
            journal.note(at(n), format!("event\n  {n}"));
        }
        let all = journal.read(at(3_000), None, None);
        assert_eq!(all.len(), MAX_LINES);
        assert_eq!(all[0].text, "event 5");
        let two = journal.read(at(2_004), Some(10), Some(2));
        let texts: Vec<&str> = two.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["event 2003", "event 2004"]);
        assert_eq!(journal.read(at(2_004), Some(3), None).len(), 4);
    }

    const ANN: u32 = 1000;
    const BOB: u32 = 1001;

    fn texts(journal: &Journal, now: Now) -> Vec<String> {
        let lines = journal.read(now, None, None);
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn a_flood_of_one_user_becomes_one_line_a_minute_and_keeps_other_lines() {
        let mut journal = Journal::default();
        journal.set_quota(3);
        journal.note(at(0), "root did this");
        journal.log(at(1), Some(BOB), EventKind::Done, "bob did that");
        for n in 0..10_000 {
            journal.log(
                at(2 + n),
                Some(ANN),
                EventKind::Refused,
                format!("refused {n}"),
            );
        }
        journal.log(at(20_000), Some(ANN), EventKind::Done, "done");
        let now = texts(&journal, at(30_000));
        let first: Vec<&str> = now[..5].iter().map(String::as_str).collect();
        assert_eq!(
            first,
            [
                "root did this",
                "bob did that",
                "refused 0",
                "refused 1",
                "refused 2"
            ]
        );
        assert!(
            now[5].starts_with("9997 more refusals and 1 more event of user 1000"),
            "{now:?}"
        );
        assert_eq!(now.len(), 6);
        let over = at(2 + MINUTE.0);
        journal.sum_up(over);
        assert_eq!(texts(&journal, over)[5], now[5]);
        journal.log(over, Some(ANN), EventKind::Refused, "refused anew");
        assert_eq!(texts(&journal, over).len(), 7);
    }

    #[test]
    fn the_user_with_the_most_lines_loses_the_oldest() {
        let mut journal = Journal::default();
        journal.set_quota(u64::MAX);
        journal.log(at(0), Some(BOB), EventKind::Done, "bob");
        for n in 0..MAX_LINES as u64 + 9 {
            journal.log(at(n), Some(ANN), EventKind::Done, n.to_string());
        }
        let now = texts(&journal, at(5_000));
        assert_eq!(
            (now.len(), now[0].as_str(), now[1].as_str()),
            (MAX_LINES, "bob", "10")
        );
    }
}
