//! Notes when the machine did not let a traffic program's thread run: [`StopWatch`] reads how long
//! the thread has waited for a processor, from `/proc/thread-self/schedstat`, and adds each wait to
//! the program's report. Without that file it notes nothing. No call fails.

use std::fs::File;
use std::os::unix::fs::FileExt;

use netnice_core::stops::SHORTEST;

use super::run::Tally;
use crate::sys;

/// The waits of one thread, up to the last look.
pub struct StopWatch {
    file: Option<File>,
    waited: u64,
}

impl StopWatch {
    /// Watches the calling thread from now on.
    pub fn new() -> StopWatch {
        let mut watch = StopWatch {
            file: File::open("/proc/thread-self/schedstat").ok(),
            waited: 0,
        };
        watch.waited = watch.read();
        watch
    }

    /// Adds what the thread has waited since the last call to the report, as one stop that ends
    /// now, if that is at least [`SHORTEST`]. A report has [`MOST`] stops at most.
    pub fn check(&mut self, tally: &Tally) {
        let length = self.waited_since();
        if length < SHORTEST.0 {
            return;
        }
        let mut stops = tally.stops.lock().expect("no thread panics with it");
        if stops.len() < MOST {
            stops.push((sys::now_ns().saturating_sub(length), length));
        }
    }

    /// For how many ns the thread was ready and did not run, since the last call of this or of
    /// [`StopWatch::check`].
    pub fn waited_since(&mut self) -> u64 {
        let waited = self.read();
        let length = waited.saturating_sub(self.waited);
        self.waited = waited;
        length
    }

    /// The second number of the file: ns for which the thread was ready and did not run.
    fn read(&self) -> u64 {
        let mut bytes = [0; 64];
        let read = self
            .file
            .as_ref()
            .and_then(|file| file.read_at(&mut bytes, 0).ok());
        let text = std::str::from_utf8(&bytes[..read.unwrap_or(0)]).unwrap_or_default();
        let waited = text.split_whitespace().nth(1);
        waited
            .and_then(|word| word.parse().ok())
            .unwrap_or(self.waited)
    }
}

/// Stops in a report.
const MOST: usize = 100_000;
