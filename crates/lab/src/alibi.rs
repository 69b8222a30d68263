//! Decides which late or missing packets a recorded stop excuses ([`Alibi`]), and reads how much
//! time is stolen from the machine ([`StolenTime`]). No function fails, except reading the text of
//! a log.
//!
//! A stop delays what is due in it until its end. Then several packets are due at once, and the
//! sender needs time to catch up: on a link that is used for the part u of the time, a stop of
//! length L takes `L u / (1 - u)` to catch up. The *debt* is how much of a stop is not caught up
//! yet: it grows by the length of each stop, and shrinks in the time after it at the rate `(1 - u)
//! / u`. It never becomes negative, so a quiet hour excuses nothing of the next.
//!
//! - A packet that was due at `d` and left at `t` is excused if its lateness `t - d` exceeds the
//!   bound by no more than the debt at `d` and the stops between `d` and `t`.
//! - Packets that are missing in a window are excused as far as the time that stops took from the
//!   window, with the debt at its beginning, would have carried them.
//! - A gap between two packets is excused if one of the two is late by an excused stop.
//! - A connection that may catch up a tolerance loses what makes the debt longer than that.
//! - A message that arrived at `a`, was due at `d` and ended at `e` is excused if the stops between
//!   `a` and `e` took as much as it is late, of all the threads that it passed.
//!
//! Certain stops always count ([`StopKind::is_certain`](netnice_core::stops::StopKind)). A driver
//! that became slower must not excuse itself, so `slow` stops alone are no evidence. But a virtual
//! machine is also stopped in the midst of its work. Of the slow stops the longest count, as far as
//! the time that the hypervisor took from the processors covers them ([`Alibi::with_stolen`]). The
//! kernel counts that time in steps of 10 ms, so it is not known when it was taken.
//!
//! Times are ns of one clock; the caller converts them ([`Alibi::new`] has the offset of the clock
//! of stops).

use std::time::{Duration, Instant};

use netnice_core::stops::{NotAStop, Stop};

use crate::sys;

/// The stops of a thread, as evidence.
#[derive(Debug, Default)]
pub struct Alibi {
    /// Stops that do not overlap, in order, with the debt at the end of each.
    stops: Vec<Span>,
    /// Time to catch up for each unit of a stop.
    catch_up: f64,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    end: u64,
    /// In ns.
    debt: f64,
}

/// The time that the hypervisor takes from this machine's processors, from a moment on.
pub struct StolenTime {
    since: Instant,
    before: Vec<Duration>,
}

impl StolenTime {
    /// Counts from now on.
    pub fn watch() -> StolenTime {
        StolenTime {
            since: Instant::now(),
            before: sys::stolen_times(),
        }
    }

    /// The time so far, of all processors together. Zero if the kernel does not count it.
    pub fn total(&self) -> Duration {
        self.each().iter().sum()
    }

    /// The time so far as a share of the time that has passed: of the two processors from which
    /// most was taken together, since what a program sends passes several threads. At most
    /// [`MOST_STOLEN`].
    pub fn share(&self) -> f64 {
        let passed = self.since.elapsed().as_secs_f64();
        let mut each = self.each();
        each.sort_unstable();
        let taken: Duration = each.iter().rev().take(2).sum();
        (taken.as_secs_f64() / passed.max(f64::MIN_POSITIVE)).min(MOST_STOLEN)
    }

    fn each(&self) -> Vec<Duration> {
        let (now, before) = (sys::stolen_times(), self.before.iter());
        let each = now.iter().zip(before);
        each.map(|(now, before)| now.saturating_sub(*before))
            .collect()
    }
}

/// The greatest share of stolen time that is allowed for. A rate of nothing fails in any case.
pub const MOST_STOLEN: f64 = 0.5;

/// How many packets failed a bound, with and without a stop that excuses them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verdict {
    /// Packets that no stop excuses.
    pub unexcused: u64,
    /// Packets that a stop excuses.
    pub excused: u64,
}

impl Alibi {
    /// Takes the stops of one thread, in any order. `ahead` is added to their times, which makes
    /// them times of the packets' clock. `used` is the part of the time for which the link is used,
    /// from 0 to below 1; a link that is used all the time never catches up.
    pub fn new(stops: &[Stop], ahead: u64, used: f64) -> Alibi {
        Alibi::with_stolen(stops, Duration::ZERO, ahead, used)
    }

    /// As [`Alibi::new`], if the hypervisor took `stolen` from the processors while the stops were
    /// recorded. What the certain stops leave of that time is evidence for the longest slow ones.
    pub fn with_stolen(stops: &[Stop], stolen: Duration, ahead: u64, used: f64) -> Alibi {
        let mut sorted: Vec<(u64, u64)> = evident(stops, stolen)
            .iter()
            .map(|stop| {
                let start = stop.start.0.saturating_add(ahead);
                (start, start.saturating_add(stop.length.0))
            })
            .collect();
        sorted.sort_unstable();
        let used = used.clamp(0.0, 1.0);
        let mut alibi = Alibi {
            stops: Vec::with_capacity(sorted.len()),
            catch_up: used / (1.0 - used),
        };
        for (start, end) in sorted {
            // A part that an earlier stop has too counts once.
            let start = alibi.stops.last().map_or(start, |last| start.max(last.end));
            if start >= end {
                continue;
            }
            alibi.push(start, end);
        }
        alibi
    }

    /// Number of stops that do not overlap.
    pub fn number(&self) -> usize {
        self.stops.len()
    }

    /// Sum of the stops between two times, in ns.
    pub fn stopped(&self, from: u64, until: u64) -> u64 {
        self.parts(from, until).sum()
    }

    /// The most by which stops between two times delay `work` ns of sending without a pause, in ns.
    pub fn longest_delay(&self, from: u64, until: u64, work: u64) -> u64 {
        let inside = |span: &&Span| span.start >= from && span.end <= until;
        let spans: Vec<&Span> = self.stops.iter().filter(inside).collect();
        let delay = |first: usize| {
            let (mut end, mut delay) = (spans[first].start.saturating_add(work), 0);
            for span in &spans[first..] {
                if span.start > end {
                    break;
                }
                let length = span.end - span.start;
                (end, delay) = (end.saturating_add(length), delay + length);
            }
            delay
        };
        (0..spans.len()).map(delay).max().unwrap_or(0)
    }

    /// What stops between two times took from a busy link, in ns: of each the part beyond
    /// `work_ahead`, for which the NIC had packets.
    pub fn taken(&self, from: u64, until: u64, work_ahead: u64) -> u64 {
        let parts = self.parts(from, until);
        parts.map(|part| part.saturating_sub(work_ahead)).sum()
    }

    /// The same without stops that are shorter than `least` ns.
    pub fn without_short(&self, least: u64) -> Alibi {
        let mut long = Alibi {
            stops: Vec::new(),
            catch_up: self.catch_up,
        };
        for span in self.stops.iter().filter(|one| one.end - one.start >= least) {
            long.push(span.start, span.end);
        }
        long
    }

    /// Adds a stop behind all others.
    fn push(&mut self, start: u64, end: u64) {
        let debt = self.debt(start) + (end - start) as f64;
        self.stops.push(Span { start, end, debt });
    }

    /// What a connection that sends between two times and may catch up `tolerance` ns loses by
    /// stops, in ns.
    pub fn forfeited(&self, from: u64, until: u64, tolerance: u64) -> u64 {
        let (mut at, mut debt, mut lost) = (from, 0.0, 0.0);
        for span in self.stops.iter().filter(|span| span.end > from) {
            let (start, end) = (span.start.max(from), span.end.min(until));
            if start >= end {
                break;
            }
            debt = self.caught_up(debt, start - at) + (end - start) as f64;
            lost += (debt - tolerance as f64).max(0.0);
            (at, debt) = (end, debt.min(tolerance as f64));
        }
        lost as u64
    }

    /// The length of each stop between two times.
    fn parts(&self, from: u64, until: u64) -> impl Iterator<Item = u64> {
        let first = self.stops.partition_point(|span| span.end <= from);
        let spans = self.stops[first..]
            .iter()
            .take_while(move |span| span.start < until);
        spans.map(move |span| span.end.min(until).saturating_sub(span.start.max(from)))
    }

    /// The debt at a time, in ns: how much of earlier stops is not caught up. A stop that lasts at
    /// this time counts up to it.
    fn debt(&self, at: u64) -> f64 {
        let after = self.stops.partition_point(|span| span.start < at);
        let Some(span) = after.checked_sub(1).map(|index| self.stops[index]) else {
            return 0.0;
        };
        if at < span.end {
            return span.debt - (span.end - at) as f64;
        }
        self.caught_up(span.debt, at - span.end)
    }

    /// What is left of a debt after `passed` ns without a stop.
    fn caught_up(&self, debt: f64, passed: u64) -> f64 {
        match self.catch_up {
            0.0 if passed > 0 => 0.0,
            0.0 => debt,
            // A link without spare time never catches up.
            rate if rate.is_infinite() => debt,
            rate => (debt - passed as f64 / rate).max(0.0),
        }
    }

    /// The time in ns for which stops excuse a packet that was due at `due` and left at `left`.
    pub fn excuse(&self, due: u64, left: u64) -> u64 {
        let debt = if self.catch_up == 0.0 {
            0.0
        } else {
            self.debt(due)
        };
        debt as u64 + self.stopped(due, left)
    }

    /// Judges packets by when they were due and when they left. A packet that is late by more than
    /// `bound` fails.
    pub fn judge(&self, packets: impl IntoIterator<Item = (u64, u64)>, bound: u64) -> Verdict {
        let mut verdict = Verdict::default();
        for (due, left) in packets {
            let late = left.saturating_sub(due);
            if late <= bound {
                continue;
            }
            match late <= bound.saturating_add(self.excuse(due, left)) {
                true => verdict.excused += 1,
                false => verdict.unexcused += 1,
            }
        }
        verdict
    }

    /// Judges messages by their logical arrival, by when they were due, and by when they ended.
    pub fn judge_messages(&self, messages: impl IntoIterator<Item = [u64; 3]>) -> Verdict {
        let mut verdict = Verdict::default();
        for [arrived, due, ended] in messages {
            match ended.saturating_sub(due) {
                0 => {}
                late if late <= self.stopped(arrived, ended) => verdict.excused += 1,
                _ => verdict.unexcused += 1,
            }
        }
        verdict
    }

    /// Judges `missing` packets of a window, each of which takes `each` ns of the link.
    pub fn judge_missing(&self, missing: u64, from: u64, until: u64, each: u64) -> Verdict {
        Verdict::of_missing(missing, self.excuse(from, until), each)
    }
}

impl Verdict {
    /// Judges `missing` packets. Each takes `each` ns, so `time` ns excuse `time / each` of them,
    /// rounded up.
    pub fn of_missing(missing: u64, time: u64, each: u64) -> Verdict {
        let excused = missing.min(time.div_ceil(each.max(1)));
        Verdict {
            unexcused: missing - excused,
            excused,
        }
    }
}

impl std::ops::AddAssign for Verdict {
    fn add_assign(&mut self, other: Verdict) {
        self.unexcused += other.unexcused;
        self.excused += other.excused;
    }
}

/// The stops that count: the certain ones, and of the others the longest, as far as `stolen` covers
/// them beside the certain ones.
fn evident(stops: &[Stop], stolen: Duration) -> Vec<Stop> {
    let (mut evident, mut others): (Vec<Stop>, Vec<Stop>) =
        stops.iter().partition(|stop| stop.kind.is_certain());
    let certain: u64 = evident.iter().map(|stop| stop.length.0).sum();
    let mut left = (stolen.as_nanos() as u64).saturating_sub(certain);
    others.sort_unstable_by_key(|stop| std::cmp::Reverse(stop.length.0));
    evident.extend(others.into_iter().take_while(|stop| {
        let covered = stop.length.0 <= left;
        left = left.saturating_sub(stop.length.0);
        covered
    }));
    evident
}

/// Reads a log of stops: one in each line. A last line without its end is ignored, since a driver
/// may be writing it.
///
/// # Errors
/// If a line is not the text of a stop.
pub fn parse(log: &str) -> Result<Vec<Stop>, NotAStop> {
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    whole.lines().map(str::parse).collect()
}

#[cfg(test)]
mod tests;
