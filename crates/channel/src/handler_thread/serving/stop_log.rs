//! Records when the machine did not let the thread run ([`StopLog`]), for programs that trace a
//! late message to the machine or to themselves ([`netnice_core::stops`]). Two kinds of evidence
//! count: a sleep that ended after its time, and the time for which the kernel had the thread wait
//! for a processor (`/proc/thread-self/schedstat`). Without that file only the first kind is
//! recorded. No call fails.

use std::fs::File;
use std::os::unix::fs::FileExt;

use netnice_core::stops::{SHORTEST, Stop, StopKind, woken};
use netnice_core::units::{Instant, Nanos};

/// The log, until the program reads it.
pub(in super::super) struct StopLog {
    stops: rtrb::Producer<Stop>,
    file: Option<File>,
    /// Ns for which the thread had waited at the last look.
    waited: u64,
}

impl StopLog {
    pub(in super::super) fn new(stops: rtrb::Producer<Stop>) -> StopLog {
        StopLog {
            stops,
            file: None,
            waited: 0,
        }
    }

    /// The calling thread is the one whose stops are recorded.
    pub(super) fn begin(&mut self) {
        self.file = File::open("/proc/thread-self/schedstat").ok();
        self.waited = self.read();
    }

    /// The thread sleeps no more, at `now`. It was to wake at `due`, or when something came.
    pub(super) fn handle_woken(&mut self, due: Option<Instant>, now: Instant) {
        let waited = self.waited_since();
        match due.and_then(|due| woken(due, now)) {
            Some(stop) => self.add(stop),
            None => self.add_wait(waited, now),
        }
    }

    /// The thread has worked without a pause up to `now`.
    pub(super) fn handle_worked(&mut self, now: Instant) {
        let waited = self.waited_since();
        self.add_wait(waited, now);
    }

    fn add_wait(&mut self, waited: u64, now: Instant) {
        if waited >= SHORTEST.0 {
            self.add(Stop {
                start: Instant(now.0.saturating_sub(waited)),
                length: Nanos(waited),
                kind: StopKind::Still,
            });
        }
    }

    fn add(&mut self, stop: Stop) {
        // A program that does not read the log loses the later ones.
        let _ = self.stops.push(stop);
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
