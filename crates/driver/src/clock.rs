//! Reads the clocks of the driver's threads: the monotonic one, and the processor time of a thread.
//! Neither call fails.

use std::mem;

use netnice_core::units::Instant;

/// The time of CLOCK_MONOTONIC, in ns.
// rustix finds the vDSO by prctl(2) or /proc/self/auxv at its first reading of a clock, and a
// confined thread may use neither.
#[inline]
pub fn monotonic() -> Instant {
    // SAFETY: all bits zero are a value of this plain structure.
    let mut now: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: the call writes the structure and cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Instant(now.tv_sec as u64 * SECOND + now.tv_nsec as u64)
}

/// The processor time of the calling thread, in ns.
pub(crate) fn processor_time() -> u64 {
    // SAFETY: all bits zero are a value of this plain structure.
    let mut now: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: the call writes the structure and cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as u64 * SECOND + now.tv_nsec as u64
}

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;
