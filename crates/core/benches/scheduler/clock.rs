//! The rate of the time stamp counter.
//!
//! Calls are timed by the system's clock, which reads that counter. /proc/cpuinfo shows the present
//! frequency of a processor; the counter has a rate of its own.

use std::time::{Duration, Instant};

/// Cycles of the time stamp counter in a nanosecond. `None` without such a counter.
pub fn cycles_per_nano() -> Option<f64> {
    let (from, first) = (Instant::now(), counter()?);
    std::thread::sleep(Duration::from_millis(50));
    let (until, last) = (Instant::now(), counter()?);
    let passed = last.checked_sub(first)?;
    Some(passed as f64 / until.duration_since(from).as_nanos() as f64)
}

#[cfg(target_arch = "x86_64")]
fn counter() -> Option<u64> {
    // SAFETY: every processor of this architecture has the instruction, and it touches no memory.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}
