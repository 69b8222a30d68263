//! [`Schedule`], the value of the clause `when`: the hours of the week in which a claim counts.
//!
//! A schedule is a list of windows, with a time zone or without. A window has days of the week and
//! the part of the day from `start` to `end`; if `end` is not after `start`, the window reaches
//! into the next day and belongs to the day on which it begins. All times are those that a clock on
//! the wall of the zone shows: [`Schedule::is_active`] gets a day of the week and a minute of the
//! day, so a time that a change of daylight saving repeats counts twice, and one that it skips does
//! not come on that day. The caller converts between instants and times of day.
//!
//! ```text
//! schedule = window { ";" window } [ zone ]      at most 8 windows
//! window   = days | times | days times
//! days     = day | day "-" day | days "," days   mon tue wed thu fri sat sun
//! times    = HH:MM "-" HH:MM                     00:00 to 23:59; the end may be 24:00
//! zone     = a name of the IANA database         Europe/Berlin, UTC; without: the host's own
//! ```
//!
//! White space or `@` separates the parts. Contract text has `@`, because there white space
//! separates the clauses: `when mon-fri@08:00-18:00@Europe/Berlin`. Parsing fails with
//! [`ContractError::Schedule`] if the text has another form, or if a window begins and ends at the
//! same time and therefore never comes. The parser does not check whether the zone exists.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use super::{Change, Clause, Contract, ContractError, Setting};

/// The hours of the week in which a claim counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// At least one, at most [`MAX_WINDOWS`].
    windows: Box<[Window]>,
    zone: Option<Box<str>>,
}

/// Days of the week, and a part of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Window {
    /// Bit 0 is Monday. At least one bit of 7 is set.
    days: u8,
    /// Minute of the day at which the window begins, below [`DAY`].
    start: u16,
    /// Minute of the day at which it has ended, at most [`DAY`]; below `start` if it ends on the
    /// next day.
    end: u16,
}

impl Schedule {
    /// The name of the schedule's time zone; `None`: the host's own zone.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// Whether the schedule is active in a minute, by the clock of its zone. `weekday` is 0 on
    /// Mondays and 6 on Sundays, `minute` is the minute of the day, 0 to 1439.
    pub fn is_active(&self, weekday: u8, minute: u16) -> bool {
        let today = 1 << (weekday % 7);
        let yesterday = 1 << ((weekday + 6) % 7);
        self.windows.iter().any(|window| {
            let Window { days, start, end } = *window;
            match start < end {
                true => days & today != 0 && (start..end).contains(&minute),
                false => {
                    (days & today != 0 && minute >= start)
                        || (days & yesterday != 0 && minute < end)
                }
            }
        })
    }

    /// The minutes of the day at which it can become active or inactive, ascending. A change of the
    /// zone's offset from UTC can also do so.
    pub fn boundaries(&self) -> Vec<u16> {
        let ends = self.windows.iter().flat_map(|w| [w.start, w.end % DAY]);
        let mut minutes: Vec<u16> = ends.collect();
        minutes.sort_unstable();
        minutes.dedup();
        minutes
    }

    /// The schedule as people write it, with blanks: `mon-fri 08:00-18:00 Europe/Berlin`.
    pub fn readable(&self) -> String {
        self.to_string().replace('@', " ").replace(';', "; ")
    }
}

impl Contract {
    /// The schedule of the clauses; `None` if they count at all times.
    pub fn when(&self) -> Option<&Schedule> {
        self.when.as_ref()
    }

    /// The same contract without its schedule.
    pub fn without_schedule(&self) -> Contract {
        Contract {
            when: None,
            ..self.clone()
        }
    }

    /// Checks that a contract with a schedule has another clause. If `change` has cleared all other
    /// clauses, the result has no schedule either.
    ///
    /// # Errors
    /// [`ContractError::NothingScheduled`] if `change` sets a schedule and the contract has nothing
    /// else.
    pub fn with_useful_schedule(self, change: &Change) -> Result<Contract, ContractError> {
        match &self.when {
            Some(when) if self.without_schedule().is_empty() => match change.when {
                Some(Setting::Set(_)) => Err(ContractError::NothingScheduled(when.readable())),
                _ => Ok(Contract::default()),
            },
            _ => Ok(self),
        }
    }

    /// Checks that all clauses of a contract with a schedule can have one. A guarantee cannot:
    /// admission would have to compare the hours of all guarantees of a link.
    pub(super) fn check_scheduled(&self) -> Result<(), ContractError> {
        let clause = match self {
            Contract { when: None, .. } => return Ok(()),
            Contract { min: Some(_), .. } => Clause::Min,
            Contract {
                min_down: Some(_), ..
            } => Clause::MinDown,
            Contract { slice: Some(_), .. } => Clause::Slice,
            Contract { cpu: Some(_), .. } => Clause::Cpu,
            Contract { cell: Some(_), .. } => Clause::Cell,
            Contract {
                channel: Some(_), ..
            } => Clause::Channel,
            Contract {
                delegate: Some(_), ..
            } => Clause::Delegate,
            Contract { dscp: Some(_), .. } => Clause::Dscp,
            _ if self.yields() => Clause::Yield,
            _ => return Ok(()),
        };
        Err(ContractError::Unschedulable(clause))
    }
}

impl FromStr for Schedule {
    type Err = ContractError;

    fn from_str(text: &str) -> Result<Schedule, ContractError> {
        if text.len() > MAX_TEXT {
            return Err(fault(&text[..text.floor_char_boundary(40)], TOO_LONG));
        }
        let mut zone = None;
        let mut windows = Vec::new();
        let mut parts = text.split(';').peekable();
        while let Some(part) = parts.next() {
            let separator = |c: char| c == '@' || c.is_ascii_whitespace();
            let mut words: Vec<&str> = part.split(separator).collect();
            words.retain(|word| !word.is_empty());
            if parts.peek().is_none()
                && words.len() > 1
                && let Some(name) = words.last().filter(|word| !has_window_form(word))
            {
                zone = Some(read_zone(name)?);
                words.pop();
            }
            windows.push(read_window(part, &words)?);
        }
        match windows.len() <= MAX_WINDOWS {
            true => Ok(Schedule {
                windows: windows.into(),
                zone,
            }),
            false => Err(fault(text, "has more than 8 windows")),
        }
    }
}

impl fmt::Display for Schedule {
    /// In the form of contract text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, window) in self.windows.iter().enumerate() {
            if n > 0 {
                f.write_str(";")?;
            }
            window.fmt(f)?;
        }
        match &self.zone {
            Some(zone) => write!(f, "@{zone}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all_day = (self.start, self.end) == (0, DAY);
        if self.days != ALL_DAYS || all_day {
            f.write_str(&days_text(self.days))?;
        }
        if self.days != ALL_DAYS && !all_day {
            f.write_str("@")?;
        }
        if !all_day {
            let (start, end) = (self.start, self.end);
            let [a, b, c, d] = [start / 60, start % 60, end / 60, end % 60];
            write!(f, "{a:02}:{b:02}-{c:02}:{d:02}")?;
        }
        Ok(())
    }
}

/// The days as ranges: `mon-fri`, `sat,sun`.
fn days_text(days: u8) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for day in (0..DAYS.len()).filter(|day| days & 1 << day != 0) {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == day => *last = day,
            _ => runs.push((day, day)),
        }
    }
    let texts = runs.into_iter().map(|(first, last)| {
        let (from, to) = (DAYS[first], DAYS[last]);
        match last - first {
            0 => from.to_string(),
            1 => alloc::format!("{from},{to}"),
            _ => alloc::format!("{from}-{to}"),
        }
    });
    texts.collect::<Vec<_>>().join(",")
}

/// Whether a word is meant as times, or consists of names of days.
fn has_window_form(word: &str) -> bool {
    let mut names = word.split(['-', ',']);
    let number = word.starts_with(|c: char| c.is_ascii_digit());
    number || word.contains(':') || names.all(|name| DAYS.contains(&name))
}

fn read_window(part: &str, words: &[&str]) -> Result<Window, ContractError> {
    let (days, times) = match words {
        [] => return Err(fault(part.trim(), "names no time")),
        [one] if one.contains(':') => (ALL_DAYS, Some(*one)),
        [one] => (read_days(one)?, None),
        [days, times] => (read_days(days)?, Some(*times)),
        [_, _, more, ..] => return Err(fault(more, "is one word too many")),
    };
    let (start, end) = match times {
        Some(times) => read_times(times)?,
        None => (0, DAY),
    };
    Ok(Window { days, start, end })
}

fn read_days(word: &str) -> Result<u8, ContractError> {
    let number = |name: &str| {
        let found = DAYS.iter().position(|day| *day == name);
        found.ok_or_else(|| fault(name, "is not a day"))
    };
    let mut days = 0;
    for range in word.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        // `fri-mon` passes over the end of the week.
        for step in 0..=(last + 7 - first) % 7 {
            days |= 1 << ((first + step) % 7);
        }
    }
    Ok(days)
}

fn read_times(word: &str) -> Result<(u16, u16), ContractError> {
    let form = || fault(word, "is not a time of day");
    let (start, end) = word.split_once('-').ok_or_else(form)?;
    let (start, end) = (read_time(start), read_time(end));
    let (start, end) = (start.ok_or_else(form)?, end.ok_or_else(form)?);
    if start == DAY {
        return Err(form());
    }
    match start == end {
        true => Err(fault(
            word,
            "begins and ends at the same time and never comes",
        )),
        // A window that ends at 00:00 ends with its own day.
        false => Ok((start, if end == 0 { DAY } else { end })),
    }
}

/// The minute of the day of `HH:MM`, at most 1440; `None` for another text.
fn read_time(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str| {
        let plain = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<u16>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let minute = hours * 60 + minutes;
    (minutes < 60 && minute <= DAY).then_some(minute)
}

/// The name of a time zone, if the text has the form of one.
pub(super) fn zone_name(name: &str) -> Option<Box<str>> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '+');
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    (begins && name.len() <= MAX_ZONE && name.chars().all(good)).then(|| name.into())
}

fn read_zone(name: &str) -> Result<Box<str>, ContractError> {
    zone_name(name).ok_or_else(|| fault(name, "is not the name of a time zone"))
}

fn fault(input: &str, fault: &'static str) -> ContractError {
    ContractError::Schedule {
        input: input.to_string(),
        fault,
    }
}

/// Minutes of a day.
const DAY: u16 = 24 * 60;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const ALL_DAYS: u8 = 0b111_1111;
/// The largest number of windows. It bounds the work on a schedule, which any user may send.
const MAX_WINDOWS: usize = 8;
/// The longest text, in bytes. Eight windows with all their parts are shorter.
const MAX_TEXT: usize = 512;
const TOO_LONG: &str = "… is longer than 512 bytes";
/// The longest name of a zone, in bytes. The longest of the IANA database has 32.
const MAX_ZONE: usize = 64;

#[cfg(test)]
mod tests;
