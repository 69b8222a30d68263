//! Finds the stops of the relay's thread ([`RelayStops`]), so that they can excuse a late message,
//! and shares their number ([`SharedStops`]). No call fails.
//!
//! The thread sleeps until a driver has packets for it, so its sleeps have no end that is known
//! before. The evidence of a stop is a packet that the driver received while the thread slept: the
//! thread had to wake then. A wake-up takes [`WAKING`]; what it takes longer is a stop. So is the
//! time for which the kernel had the thread wait for a processor. To know that time costs a system
//! call: after each sleep, and at most every [`LOOK`] while the thread does not sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netnice_api::channels::HopStops;
use netnice_channel::{RecentStops, ThreadStops};
use netnice_core::units::{Instant, Nanos};

/// The stops of the relay's thread.
pub(super) struct RelayStops {
    /// `None` before the thread begins.
    thread: Option<ThreadStops>,
    recent: RecentStops,
    shared: Arc<SharedStops>,
    /// When the last sleep began and ended, until its stop is known.
    slept: Option<(Instant, Instant)>,
    /// When the first of the packets arrived that were found since.
    found: Option<Instant>,
    /// When the kernel is asked again although the thread has not slept.
    next_look: Instant,
}

/// Number and length of the stops, which other threads read.
#[derive(Debug, Default)]
pub(super) struct SharedStops {
    number: AtomicU64,
    total: AtomicU64,
    longest: AtomicU64,
}

impl SharedStops {
    /// The stops so far. A stop that is being added may have only some of its numbers there.
    pub(super) fn load(&self) -> HopStops {
        let longest_ns = self.longest.load(Ordering::Relaxed);
        HopStops {
            number: self.number.load(Ordering::Relaxed),
            total_ns: self.total.load(Ordering::Relaxed).max(longest_ns),
            longest_ns,
        }
    }
}

impl RelayStops {
    pub(super) fn new(shared: Arc<SharedStops>) -> RelayStops {
        RelayStops {
            thread: None,
            recent: RecentStops::default(),
            shared,
            slept: None,
            found: None,
            next_look: Instant(0),
        }
    }

    /// The calling thread is the one whose stops are found.
    pub(super) fn begin(&mut self) {
        self.thread = Some(ThreadStops::of_this_thread());
    }

    /// The thread has slept from `began` to `woke`.
    pub(super) fn handle_slept(&mut self, began: Instant, woke: Instant) {
        self.slept = Some((began, woke));
    }

    /// The thread has found a packet that arrived at `stamp`.
    pub(super) fn note_packet(&mut self, stamp: Instant) {
        self.found = Some(self.found.map_or(stamp, |found| found.min(stamp)));
    }

    /// The thread has looked at all that was there, up to `now`.
    pub(super) fn handle_worked(&mut self, now: Instant) {
        let (slept, found) = (self.slept.take(), self.found.take());
        let Some(thread) = &mut self.thread else {
            return;
        };
        if slept.is_none() && now < self.next_look {
            return;
        }
        self.next_look = now.after(LOOK);
        let stop = match slept {
            Some((began, woke)) => {
                let due = found.map(|found| found.max(began).after(WAKING));
                thread.handle_woken(due, woke)
            }
            None => thread.handle_worked(now),
        };
        if let Some(stop) = stop {
            self.recent.add(stop);
            let counts = self.recent.counts();
            let (number, total) = (counts.number(), counts.total.0);
            self.shared.number.store(number, Ordering::Relaxed);
            self.shared.total.store(total, Ordering::Relaxed);
            let longest = counts.longest.0;
            self.shared.longest.store(longest, Ordering::Relaxed);
        }
    }

    /// The stops that can excuse a message.
    pub(super) fn recent(&self) -> &RecentStops {
        &self.recent
    }
}

/// How long the driver and the kernel may take to wake the thread.
const WAKING: Nanos = Nanos::from_micros(200);
/// How far the beginning of a stop can be off while the thread does not sleep.
const LOOK: Nanos = Nanos::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Instant {
        Instant(us * 1_000)
    }

    #[test]
    fn a_packet_that_waited_for_the_thread_to_wake_shows_a_stop() {
        let mut stops = RelayStops::new(Arc::default());
        stops.begin();
        let slept = |stops: &mut RelayStops, sleep: (u64, u64), packets: &[u64]| {
            let before = stops.recent().counts().total.0;
            stops.handle_slept(us(sleep.0), us(sleep.1));
            packets.iter().for_each(|at| stops.note_packet(us(*at)));
            // The kernel may have had this thread wait meanwhile: that would be a stop of its own.
            let Some(thread) = &mut stops.thread else {
                panic!("it has begun");
            };
            let _ = thread.handle_worked(us(0));
            stops.handle_worked(us(sleep.1 + 50));
            (stops.recent().counts().total.0 - before) / 1_000
        };
        // In time, without a packet, and 300 ms late: what a wake-up takes is none of the stop.
        assert_eq!(slept(&mut stops, (0, 1_000), &[850]), 0);
        assert_eq!(slept(&mut stops, (2_000, 900_000), &[]), 0);
        let begin = 1_000_000;
        let found = slept(
            &mut stops,
            (begin, begin + 310_000),
            &[begin + 20_000, begin + 10_000],
        );
        assert_eq!(found, 300_000 - 200);
        // A packet from before the sleep was found before it, but for the last moment.
        let found = slept(&mut stops, (2_000_000, 2_000_500), &[1_999_000]);
        assert_eq!(found, 300);
        let between = stops
            .recent()
            .between(us(begin + 100_000), us(begin + 200_000));
        assert_eq!(between, Nanos::from_millis(100));
        let shared = stops.shared.load();
        assert_eq!((shared.number, shared.longest_ns), (2, 299_800_000));
    }
}
