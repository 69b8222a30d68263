//! Keeps the history of targets ([`History`]): a row of seconds and a row of minutes for each
//! target, in bounded memory.
//!
//! ```text
//!   a reading each second ──> seconds: the latest 120 ──┐ sums of 60 s
//!                                                       └──> minutes: the latest 360
//! ```
//!
//! A point has the changes in its interval: the bytes, the drops, and the longest queueing delay
//! that a reading found. So points of any length can be merged without loss, and a late reading
//! loses nothing and counts nothing twice. A reading less than 0.5 s after the last one is skipped.
//! The history of a target ends with the target, and all history ends with the daemon.
//!
//! **Memory.** A point takes 40 bytes, and all rows together have at most [`MAX_POINTS`] (500,000
//! points, 20 MB). If the complete history of all targets does not fit, each target keeps a shorter
//! one. No function fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netnice_core::contract::Direction;
use netnice_core::meter::Meter;
use netnice_core::units::{Instant, Nanos};

/// The history of all targets, by id.
#[derive(Debug, Default)]
pub(crate) struct History {
    read_at: Option<Instant>,
    targets: BTreeMap<u32, TargetPoints>,
}

/// The changes in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Point {
    /// The end of the interval.
    pub at: Instant,
    /// The interval's length, in milliseconds.
    pub time_ms: u32,
    /// Packets dropped, in both directions.
    pub drops: u32,
    /// Bytes that passed the target's queues: sent, and received.
    pub bytes: [u64; 2],
    /// The longest queueing delay at a reading in the interval, in microseconds.
    pub wait_us: u32,
}

/// The length of the points of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The time between two readings: a second, unless a reading came early or late.
    Second,
    /// A minute.
    Minute,
}

/// The history of one target.
#[derive(Debug, Default)]
struct TargetPoints {
    last: Meter,
    seconds: VecDeque<Point>,
    minutes: VecDeque<Point>,
    /// The present, incomplete minute.
    minute: Point,
}

impl History {
    /// Adds a reading of the targets' counters; drops the history of all other targets. Skipped if
    /// the last reading is less than 0.5 s old.
    pub(crate) fn add(&mut self, now: Instant, meters: &[(u32, Meter)]) {
        let passed = self.read_at.map_or(Nanos(0), |at| now.since(at));
        if self.read_at.is_some() && passed < MIN_INTERVAL {
            return;
        }
        let there: BTreeSet<u32> = meters.iter().map(|(id, _)| *id).collect();
        self.targets.retain(|id, _| there.contains(id));
        let share = MAX_POINTS / there.len().max(1);
        for (id, meter) in meters {
            match self.targets.get_mut(id) {
                Some(points) => points.add(now, passed, *meter, share),
                None => {
                    let last = *meter;
                    self.targets.insert(
                        *id,
                        TargetPoints {
                            last,
                            ..TargetPoints::default()
                        },
                    );
                }
            }
        }
        self.read_at = Some(now);
    }

    /// The time of the last reading; `None` before the first.
    pub(crate) fn read_at(&self) -> Option<Instant> {
        self.read_at
    }

    /// The points of one target, oldest first; the present, incomplete minute comes last. Empty if
    /// the target has no history.
    pub(crate) fn of(&self, id: u32, step: Step) -> Vec<Point> {
        let Some(points) = self.targets.get(&id) else {
            return Vec::new();
        };
        match step {
            Step::Second => points.seconds.iter().copied().collect(),
            Step::Minute => {
                let open = Some(points.minute).filter(|minute| minute.time_ms > 0);
                points.minutes.iter().copied().chain(open).collect()
            }
        }
    }
}

impl TargetPoints {
    fn add(&mut self, now: Instant, passed: Nanos, meter: Meter, share: usize) {
        let flows = Direction::ALL.map(|d| (self.last.counters(d), meter.counters(d)));
        // If a counter has restarted, its value is the increase.
        let grown = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
        let drops = flows.map(|(before, now)| grown(before.dropped_packets, now.dropped_packets));
        let wait = flows.map(|(_, now)| now.queue_delay_ns / 1000);
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let point = Point {
            at: now,
            time_ms: small(passed.0 / 1_000_000),
            drops: small(drops.iter().sum()),
            bytes: flows.map(|(before, now)| grown(before.sent_bytes, now.sent_bytes)),
            wait_us: small(wait.into_iter().max().unwrap_or(0)),
        };
        self.last = meter;
        // A quarter for seconds, the rest for minutes.
        keep(&mut self.seconds, point, (share / 4).clamp(1, MAX_SECONDS));
        self.minute.add(&point);
        if self.minute.time_ms >= MINUTE_MS {
            let whole = std::mem::take(&mut self.minute);
            keep(
                &mut self.minutes,
                whole,
                (share - share / 4).clamp(1, MAX_MINUTES),
            );
        }
    }
}

impl Point {
    /// Adds the interval that follows directly.
    pub(crate) fn add(&mut self, next: &Point) {
        self.at = next.at;
        self.time_ms = self.time_ms.saturating_add(next.time_ms);
        self.drops = self.drops.saturating_add(next.drops);
        self.bytes[0] = self.bytes[0].saturating_add(next.bytes[0]);
        self.bytes[1] = self.bytes[1].saturating_add(next.bytes[1]);
        self.wait_us = self.wait_us.max(next.wait_us);
    }
}

fn keep(row: &mut VecDeque<Point>, point: Point, most: usize) {
    while row.len() >= most {
        row.pop_front();
    }
    if row.len() == row.capacity() {
        // In small steps: most targets end before their row is full.
        row.reserve_exact(GROWTH.min(most - row.len()));
    }
    row.push_back(point);
}

/// A reading that comes sooner after the last one is skipped.
const MIN_INTERVAL: Nanos = Nanos::from_millis(500);
/// Largest number of points of a second, for each target.
const MAX_SECONDS: usize = 120;
/// Largest number of points of a minute, for each target.
const MAX_MINUTES: usize = 360;
/// Length of a minute in ms.
const MINUTE_MS: u32 = 60_000;
/// 480 points for each of 1,000 targets, and a reserve.
const MAX_POINTS: usize = 500_000;
/// Number of points for which a full row gets more memory at a time.
const GROWTH: usize = 40;

#[cfg(test)]
mod tests;
