//! Records when the machine did not let the thread run ([`StopLog`]), for programs that trace a
//! late message to the machine or to themselves. No call fails.

use netnice_core::stops::Stop;
use netnice_core::units::Instant;

use crate::stops::ThreadStops;

/// The log, until the program reads it.
pub(in super::super) struct StopLog {
    stops: rtrb::Producer<Stop>,
    /// `None` before the thread begins.
    thread: Option<ThreadStops>,
}

impl StopLog {
    pub(in super::super) fn new(stops: rtrb::Producer<Stop>) -> StopLog {
        StopLog {
            stops,
            thread: None,
        }
    }

    /// The calling thread is the one whose stops are recorded.
    pub(super) fn begin(&mut self) {
        self.thread = Some(ThreadStops::of_this_thread());
    }

    /// The thread sleeps no more, at `now`. It was to wake at `due`, or when something came.
    pub(super) fn handle_woken(&mut self, due: Option<Instant>, now: Instant) {
        let thread = self.thread.as_mut();
        let stop = thread.and_then(|thread| thread.handle_woken(due, now));
        self.add(stop);
    }

    /// The thread has worked without a pause up to `now`.
    pub(super) fn handle_worked(&mut self, now: Instant) {
        let thread = self.thread.as_mut();
        let stop = thread.and_then(|thread| thread.handle_worked(now));
        self.add(stop);
    }

    fn add(&mut self, stop: Option<Stop>) {
        if let Some(stop) = stop {
            // A program that does not read the log loses the later ones.
            let _ = self.stops.push(stop);
        }
    }
}
