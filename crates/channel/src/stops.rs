//! When the machine did not let a thread run: [`ThreadStops`] finds the stops of one thread, and
//! [`RecentStops`] keeps the last ones, which can excuse a late message
//! ([`netnice_core::stops`]). No call fails.
//!
//! Two kinds of evidence count: a sleep that ended after its time, and the time for which the
//! kernel had the thread wait for a processor (`/proc/thread-self/schedstat`). Without that file
//! only the first kind is found.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;

use netnice_core::stops::{SHORTEST, Stop, StopCounts, StopKind, woken};
use netnice_core::units::{Instant, Nanos};

/// Finds the stops of a thread.
#[derive(Debug)]
pub struct ThreadStops {
    file: Option<File>,
    /// Ns for which the thread had waited at the last look.
    waited: u64,
}

impl ThreadStops {
    /// Finds the stops of the calling thread from now on.
    pub fn of_this_thread() -> ThreadStops {
        let file = File::open("/proc/thread-self/schedstat").ok();
        let mut stops = ThreadStops { file, waited: 0 };
        stops.waited = stops.read();
        stops
    }

    /// The thread sleeps no more, at `now`. It was to wake at `due`; `None` if it waited for
    /// something that came just then. Returns the stop that this shows.
    pub fn handle_woken(&mut self, due: Option<Instant>, now: Instant) -> Option<Stop> {
        let waited = self.waited_since();
        let late = due.and_then(|due| woken(due, now));
        late.or_else(|| of_wait(waited, now))
    }

    /// The thread has worked without a sleep up to `now`. Returns the stop that this shows.
    pub fn handle_worked(&mut self, now: Instant) -> Option<Stop> {
        of_wait(self.waited_since(), now)
    }

    fn waited_since(&mut self) -> u64 {
        let waited = self.read();
        waited - std::mem::replace(&mut self.waited, waited).min(waited)
    }

    /// The second number of the file: ns for which the thread was ready and did not run.
    fn read(&self) -> u64 {
        let mut bytes = [0; 64];
        let file = self.file.as_ref();
        let read = file.and_then(|file| file.read_at(&mut bytes, 0).ok());
        let text = std::str::from_utf8(&bytes[..read.unwrap_or(0)]).unwrap_or_default();
        let waited = text.split_whitespace().nth(1);
        waited.and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }
}

fn of_wait(waited: u64, now: Instant) -> Option<Stop> {
    (waited >= SHORTEST.0).then_some(Stop {
        start: Instant(now.0.saturating_sub(waited)),
        length: Nanos(waited),
        kind: StopKind::Still,
    })
}

/// The last stops of a thread, in the order in which they ended.
#[derive(Debug, Default)]
pub struct RecentStops {
    stops: VecDeque<Stop>,
    counts: StopCounts,
}

impl RecentStops {
    /// The number of stops that are kept.
    pub const MOST: usize = 256;

    /// Adds a stop, which ended after those before.
    pub fn add(&mut self, stop: Stop) {
        self.counts.add(&stop);
        if self.stops.len() == RecentStops::MOST {
            self.stops.pop_front();
        }
        self.stops.push_back(stop);
    }

    /// Number and length of all stops so far.
    pub fn counts(&self) -> StopCounts {
        self.counts
    }

    /// How much of the time between two instants the kept stops took. Time in two stops counts
    /// once.
    pub fn between(&self, from: Instant, until: Instant) -> Nanos {
        let (mut taken, mut end) = (0, until);
        // From the latest to the earliest: `end` is the beginning of what is counted already.
        for stop in self.stops.iter().rev() {
            if stop.end() <= from {
                break;
            }
            let (start, stop_end) = (stop.start.max(from), stop.end().min(end));
            taken += stop_end.since(start).0;
            end = end.min(start.max(from));
        }
        Nanos(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    fn stop(start: u64, length: u64) -> Stop {
        Stop {
            start: Instant(start),
            length: Nanos(length),
            kind: StopKind::Late,
        }
    }

    #[test]
    fn stops_take_the_time_that_they_share_with_a_stretch_once() {
        let mut recent = RecentStops::default();
        for (start, length) in [(100, 50), (140, 20), (300, 100)] {
            recent.add(stop(start, length));
        }
        let between = |from, until| recent.between(Instant(from), Instant(until)).0;
        assert_eq!(between(0, 1_000), 160);
        assert_eq!(between(120, 130), 10);
        assert_eq!(between(145, 350), 15 + 50);
        assert_eq!(between(160, 300), 0);
        assert_eq!(between(400, 500), 0);
        assert_eq!(between(350, 320), 0);
        assert_eq!(
            (recent.counts().number(), recent.counts().longest.0),
            (3, 100)
        );
    }

    #[test]
    fn only_the_last_stops_are_kept_and_all_are_counted() {
        let mut recent = RecentStops::default();
        let all = 3 * RecentStops::MOST as u64;
        (0..all).for_each(|number| recent.add(stop(number * 10, 5)));
        let taken = recent.between(Instant(0), Instant(u64::MAX)).0;
        assert_eq!(taken, 5 * RecentStops::MOST as u64);
        assert_eq!(recent.counts().total.0, 5 * all);
    }

    #[test]
    fn a_thread_that_sleeps_too_long_and_one_that_is_in_time_are_told_apart() {
        let mut stops = ThreadStops {
            file: None,
            waited: 0,
        };
        let now = Instant(1_000_000);
        let found = stops.handle_woken(Some(Instant(900_000)), now);
        assert_eq!(found.map(|stop| stop.length), Some(Nanos(100_000)));
        assert_eq!(stops.handle_woken(Some(now), now), None);
        assert_eq!(stops.handle_woken(None, now), None);
        assert_eq!(of_wait(SHORTEST.0 - 1, now), None);
        let waited = of_wait(SHORTEST.0, now).expect("a stop");
        assert_eq!((waited.end(), waited.kind), (now, StopKind::Still));
    }

    #[test]
    fn a_thread_that_waits_for_a_processor_finds_a_stop() {
        let mut stops = ThreadStops::of_this_thread();
        let begin = std::time::Instant::now();
        let is_over = AtomicBool::new(false);
        let processors = std::thread::available_parallelism().expect("known").get();
        let found = std::thread::scope(|scope| {
            for _ in 0..2 * processors {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let mut found = None;
            while found.is_none() && begin.elapsed() < Duration::from_secs(10) {
                found = stops.handle_worked(Instant(u64::MAX));
            }
            is_over.store(true, Ordering::Relaxed);
            found
        });
        let stop = found.expect("this thread had to wait for the others");
        assert_eq!(
            (stop.kind, stop.end()),
            (StopKind::Still, Instant(u64::MAX))
        );
        assert!(stop.length >= SHORTEST);
    }
}
