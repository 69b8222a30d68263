//! Detects *stops*: stretches of time in which a thread had work to do and the machine did not let
//! it run. A thread that sends at given times records its stops, so that a late packet can be
//! traced to the machine or to the program.
//!
//! The thread reads a clock anyway, and passes the readings. There are three kinds of evidence
//! ([`StopKind`]):
//!
//! | kind | evidence |
//! |---|---|
//! | `late` | a sleep ended at least 20 µs after the time at which it had to end |
//! | `still` | two readings of the clock with nothing between them are at least 20 µs apart |
//! | `slow` | a stretch of work lasted at least 20 µs longer than its work explains |
//!
//! The first two are certain. For the third the caller states how long the work may take. A thread
//! whose work becomes slower than that takes itself for stopped, so the kinds are counted apart.
//! No function fails, except that the text of a stop can be invalid.

use core::fmt;
use core::str::FromStr;

use crate::units::{Instant, Nanos};

/// The shortest recorded stop.
pub const SHORTEST: Nanos = Nanos::from_micros(20);

/// The evidence of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopKind {
    /// A sleep ended too late.
    Late,
    /// The thread was awake, and did nothing between two readings of the clock.
    Still,
    /// The thread was awake, and its work does not explain the time.
    Slow,
}

impl StopKind {
    /// All kinds.
    pub const ALL: [StopKind; 3] = [StopKind::Late, StopKind::Still, StopKind::Slow];

    /// Whether the evidence is independent of how long the thread's work may take.
    pub fn is_certain(self) -> bool {
        self != StopKind::Slow
    }

    /// The kind's name in a log of stops.
    pub fn name(self) -> &'static str {
        match self {
            StopKind::Late => "late",
            StopKind::Still => "still",
            StopKind::Slow => "slow",
        }
    }
}

/// One stop of a thread.
///
/// Its text is `START LENGTH KIND`, both in ns, for example `1000000 25000 late`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The beginning.
    pub start: Instant,
    /// The length.
    pub length: Nanos,
    /// The evidence.
    pub kind: StopKind,
}

impl Stop {
    /// The end.
    pub fn end(&self) -> Instant {
        Instant(self.start.0.saturating_add(self.length.0))
    }
}

/// The stop of a thread that had to wake at `asked` and woke at `woke`; `None` if it was in time.
#[inline]
pub fn woken(asked: Instant, woke: Instant) -> Option<Stop> {
    between(asked, woke, StopKind::Late)
}

/// The stop between two readings of the clock with nothing between them; `None` if there was none.
#[inline]
pub fn still(from: Instant, to: Instant) -> Option<Stop> {
    between(from, to, StopKind::Still)
}

/// The stop in a stretch of work that lasted from `from` to `to` and whose work takes `explained`
/// at most; `None` if there was none. The stop is recorded as the end of the stretch.
#[inline]
pub fn slow(from: Instant, to: Instant, explained: Nanos) -> Option<Stop> {
    let from = from.0.saturating_add(explained.0);
    between(Instant(from), to, StopKind::Slow)
}

#[inline]
fn between(start: Instant, end: Instant, kind: StopKind) -> Option<Stop> {
    let length = Nanos(end.0.saturating_sub(start.0));
    (length >= SHORTEST).then_some(Stop {
        start,
        length,
        kind,
    })
}

/// Number and length of stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopCounts {
    /// Number of stops by kind, in the order of [`StopKind::ALL`].
    pub by_kind: [u64; 3],
    /// Sum of the lengths.
    pub total: Nanos,
    /// The greatest length.
    pub longest: Nanos,
}

impl StopCounts {
    /// Counts a stop.
    pub fn add(&mut self, stop: &Stop) {
        self.by_kind[stop.kind as usize] += 1;
        self.total.0 = self.total.0.saturating_add(stop.length.0);
        self.longest = self.longest.max(stop.length);
    }

    /// Number of stops.
    pub fn number(&self) -> u64 {
        self.by_kind.iter().sum()
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.start.0, self.length.0, self.kind.name())
    }
}

/// The text is not that of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a stop: START LENGTH KIND is expected, two numbers of ns and `late`, `still` or `slow`"
)]
pub struct NotAStop;

impl FromStr for Stop {
    type Err = NotAStop;

    fn from_str(text: &str) -> Result<Stop, NotAStop> {
        let mut words = text.split(' ');
        let mut number = || {
            words
                .next()
                .and_then(|word| word.parse().ok())
                .ok_or(NotAStop)
        };
        let (start, length) = (Instant(number()?), Nanos(number()?));
        let name = words.next().ok_or(NotAStop)?;
        let kind = StopKind::ALL.into_iter().find(|kind| kind.name() == name);
        match (kind, words.next()) {
            (Some(kind), None) => Ok(Stop {
                start,
                length,
                kind,
            }),
            _ => Err(NotAStop),
        }
    }
}

#[cfg(test)]
mod tests;
