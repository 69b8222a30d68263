//! The clocks. Only the code that receives a request or a tick reads them; all other code takes
//! [`Now`].

use std::time::{SystemTime, UNIX_EPOCH};

use netnice_core::units::Instant;
use rustix::time::{ClockId, clock_gettime};

/// One moment, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// CLOCK_MONOTONIC: time since boot, without suspend; for expiry and rates. It continues across
    /// restarts of the daemon.
    pub monotonic: Instant,
    /// Nanoseconds since 1970, for display; it may jump.
    pub wall_ns: u64,
}

impl Now {
    /// Reads the clocks.
    pub(crate) fn read() -> Now {
        let time = clock_gettime(ClockId::Monotonic);
        let monotonic = time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Now {
            monotonic: Instant(monotonic),
            wall_ns: wall.map_or(0, |since| {
                u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
            }),
        }
    }
}
