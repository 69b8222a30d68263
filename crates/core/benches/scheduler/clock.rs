//! Measures the rate of the time stamp counter, which converts nanoseconds to cycles.
//!
//! The benchmarks time calls with the system's clock, which reads that counter. The counter has a
//! constant rate of its own; /proc/cpuinfo shows the present frequency of a processor instead. On a
//! processor other than x86-64 there is no result, and the benchmarks show nanoseconds.

use std::time::{Duration, Instant};

/// Cycles of the time stamp counter per nanosecond, measured for 50 ms. `None` without such a
/// counter.
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
