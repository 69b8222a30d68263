//! The clock of all times that this crate states or takes ([`monotonic_ns`]): the driver stamps
//! packets with it. No call fails.

use rustix::time::{ClockId, clock_gettime};

/// The time of `CLOCK_MONOTONIC` in ns.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The clock starts at 0 and counts for centuries before the number does not fit.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
