//! What targets did a while ago: a row of seconds and a row of minutes for each, in a bounded room.
//!
//! ```text
//!   a reading each second ──> seconds: the latest 120 ──┐ sums of 60
//!                                                       └──> minutes: the latest 360
//! ```
//!
//! A point says what passed in its time: bytes, drops, the longest wait. So points of any length can be put together
//! without loss, and what a late reading covers is neither lost nor counted twice. A target that ends takes its past
//! with it; a daemon that ends takes all.
//!
//! **Room.** A point takes 40 bytes, and there are never more than [`MOST_POINTS`] (20 MB): with more targets than fit
//! so, each keeps a shorter past.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netnice_core::contract::Direction;
use netnice_core::meter::Meter;
use netnice_core::units::{Instant, Nanos};

/// The past of all targets, by number.
#[derive(Debug, Default)]
pub(crate) struct History {
    read_at: Option<Instant>,
    pasts: BTreeMap<u32, Past>,
}

/// What passed in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Point {
    /// When the time ended.
    pub at: Instant,
    /// How long it was, in milliseconds.
    pub time_ms: u32,
    /// Packets dropped, in both directions.
    pub drops: u32,
    /// Bytes that went on: sent, and received.
    pub bytes: [u64; 2],
    /// The longest wait that was seen, in microseconds.
    pub wait_us: u32,
}

/// How long the points of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A second, or as long as a reading was late.
    Second,
    /// A minute.
    Minute,
}

/// The past of one target.
#[derive(Debug, Default)]
struct Past {
    last: Meter,
    seconds: VecDeque<Point>,
    minutes: VecDeque<Point>,
    /// The minute that is not over yet.
    minute: Point,
}

impl History {
    /// Takes in what targets have counted until now; the past of all others is forgotten.
    pub(crate) fn take(&mut self, now: Instant, meters: &[(u32, Meter)]) {
        let passed = self.read_at.map_or(Nanos(0), |at| now.since(at));
        if self.read_at.is_some() && passed < SHORTEST {
            return;
        }
        let there: BTreeSet<u32> = meters.iter().map(|(id, _)| *id).collect();
        self.pasts.retain(|id, _| there.contains(id));
        let share = MOST_POINTS / there.len().max(1);
        for (id, meter) in meters {
            match self.pasts.get_mut(id) {
                Some(past) => past.take(now, passed, *meter, share),
                None => {
                    let last = *meter;
                    self.pasts.insert(
                        *id,
                        Past {
                            last,
                            ..Past::default()
                        },
                    );
                }
            }
        }
        self.read_at = Some(now);
    }

    /// When counts were taken in last.
    pub(crate) fn read_at(&self) -> Option<Instant> {
        self.read_at
    }

    /// The points of one target, the eldest first; the minute that is not over yet is the last one.
    pub(crate) fn of(&self, id: u32, step: Step) -> Vec<Point> {
        let Some(past) = self.pasts.get(&id) else {
            return Vec::new();
        };
        match step {
            Step::Second => past.seconds.iter().copied().collect(),
            Step::Minute => {
                let open = Some(past.minute).filter(|minute| minute.time_ms > 0);
                past.minutes.iter().copied().chain(open).collect()
            }
        }
    }
}

impl Past {
    fn take(&mut self, now: Instant, passed: Nanos, meter: Meter, share: usize) {
        let flows = Direction::ALL.map(|d| (self.last.flow(d), meter.flow(d)));
        // Counters that began anew: what they say now came since.
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
        keep(&mut self.seconds, point, (share / 4).clamp(1, SECONDS));
        self.minute.add(&point);
        if self.minute.time_ms >= MINUTE_MS {
            let whole = std::mem::take(&mut self.minute);
            keep(
                &mut self.minutes,
                whole,
                (share - share / 4).clamp(1, MINUTES),
            );
        }
    }
}

impl Point {
    /// Takes in what passed just behind.
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
        // In small steps: most targets do not live as long as a whole row.
        row.reserve_exact(GROW.min(most - row.len()));
    }
    row.push_back(point);
}

/// Readings closer together are one.
const SHORTEST: Nanos = Nanos::from_millis(500);
const SECONDS: usize = 120;
const MINUTES: usize = 360;
const MINUTE_MS: u32 = 60_000;
/// 480 points for each of 1,000 targets, and some room.
const MOST_POINTS: usize = 500_000;
const GROW: usize = 40;

#[cfg(test)]
mod tests;
