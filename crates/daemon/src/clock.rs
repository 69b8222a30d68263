//! The daemon's two clocks. [`Now::read`] reads both and cannot fail. Only the start of the daemon,
//! the event loop and the threads beside it call it; the code that handles an event gets a [`Now`]
//! as an argument.

use std::time::{SystemTime, UNIX_EPOCH};

use netnice_core::units::Instant;
use netnice_kernel::process;

/// One moment, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// CLOCK_MONOTONIC: time since boot without time in suspend, for deadlines and rates. A restart
    /// of the daemon does not reset it.
    pub monotonic: Instant,
    /// Nanoseconds since 1970, for display. It jumps when the host's clock is set.
    pub wall_ns: u64,
}

impl Now {
    /// Reads both clocks. A wall clock before 1970 gives 0.
    pub(crate) fn read() -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Now {
            monotonic: process::monotonic(),
            wall_ns: wall.map_or(0, |since| {
                u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
            }),
        }
    }
}
