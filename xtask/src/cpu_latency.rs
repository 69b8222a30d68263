//! Keeps the processors awake while system tests run.
//!
//! The cables of a test's world are kernel queues, whose accuracy is that of the kernel's timers.
//! The host wakes a sleeping virtual processor only when the host has time. On a busy host cables
//! of 20 Mbit/s carried 15, and a failed promise looked like a slow cable. So tests, which judge
//! netnice only, keep the processors awake. Experiments run on the machine as it is.

use std::fs::{File, OpenOptions};
use std::io::Write;

/// Keeps the processors out of deep sleep while the returned file is open (Linux:
/// Documentation/power/pm_qos_interface.rst). `None` if the kernel does not offer this.
#[must_use]
pub fn keep() -> Option<File> {
    let mut wish = OpenOptions::new()
        .write(true)
        .open("/dev/cpu_dma_latency")
        .ok()?;
    wish.write_all(&0_i32.to_ne_bytes()).ok()?;
    Some(wish)
}
