//! Finds the stops of the relay's thread ([`RelayStops`]), so that they can excuse a late message,
//! shares their number ([`SharedStops`]), and writes them to a file for experiments ([`log_to`]).
//! Only [`log_to`] can fail: if the system has no thread left.
//!
//! The thread sleeps until a driver has packets for it, so its sleeps have no end that is known
//! before. The evidence of a stop is a packet that the driver received while the thread slept: the
//! thread had to wake then. A wake-up takes [`WAKING`]; what it takes longer is a stop. So is the
//! time for which the kernel had the thread wait for a processor. To know that time costs a system
//! call: after each sleep, and at most every [`LOOK`] while the thread does not sleep.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use netnice_api::channels::HopStops;
use netnice_channel::{RecentStops, ThreadStops};
use netnice_core::stops::Stop;
use netnice_core::units::{Instant, Nanos};

/// The stops of the relay's thread.
pub(super) struct RelayStops {
    /// `None` before the thread begins.
    thread: Option<ThreadStops>,
    recent: RecentStops,
    shared: Arc<SharedStops>,
    /// Where each stop is written to, if it is.
    log: Option<SyncSender<Stop>>,
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
    pub(super) fn new(shared: Arc<SharedStops>, log: Option<SyncSender<Stop>>) -> RelayStops {
        RelayStops {
            thread: None,
            recent: RecentStops::default(),
            shared,
            log,
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
            if let Some(log) = &self.log {
                // One for which there is no room is not written.
                let _ = log.try_send(stop);
            }
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

/// Starts a thread that writes stops to `file`, a line for each, as the text of [`Stop`] says; so
/// the relay's thread does not wait for the file. It ends with the sender. A write that fails is
/// logged, and ends the file. Fails if the thread cannot be started.
pub(super) fn log_to(file: File) -> io::Result<SyncSender<Stop>> {
    let (log, stops) = sync_channel(WAITING);
    let thread = std::thread::Builder::new().name("relay-stops".into());
    thread.spawn(move || {
        if let Err(error) = write_all(&stops, file) {
            tracing::warn!(%error, "cannot write the file of the relay's stops");
        }
    })?;
    Ok(log)
}

/// Writes stops until the sender is dropped, up to [`MOST_LINES`]. Fails if a write fails.
fn write_all(stops: &Receiver<Stop>, file: File) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    let mut lines = 0_u64;
    while let Ok(first) = stops.recv() {
        for stop in std::iter::once(first).chain(stops.try_iter()) {
            if lines < MOST_LINES {
                lines += 1;
                writeln!(file, "{stop}")?;
            }
        }
        file.flush()?;
    }
    Ok(())
}

/// Stops that can wait to be written.
const WAITING: usize = 4_096;
/// Lines of a file: at about 30 bytes each, 30 MB.
const MOST_LINES: u64 = 1_000_000;
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
        let path = std::env::temp_dir().join(format!("netnice-relay-{}", std::process::id()));
        let log = log_to(File::create(&path).expect("a file")).expect("a thread");
        let mut stops = RelayStops::new(Arc::default(), Some(log));
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
        drop(stops);
        let written = || std::fs::read_to_string(&path).expect("the file");
        let far = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while written().lines().count() < 2 && std::time::Instant::now() < far {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let text = written();
        std::fs::remove_file(&path).expect("it was ours");
        let all = text
            .lines()
            .map(|line| line.parse::<Stop>().expect("a stop"));
        let lengths: Vec<u64> = all.map(|stop| stop.length.0).collect();
        assert_eq!(lengths, [299_800_000, 300_000]);
    }
}
