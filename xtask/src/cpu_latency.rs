//! Keeps the processors awake while system tests run.
//!
//! The links of a test's world are kernel queues, whose accuracy is that of the kernel's timers.
//! The host wakes a sleeping virtual processor only when the host has time. On a busy host links of
//! 20 Mbit/s carried 15 Mbit/s, which is the same result as that of a broken guarantee. So tests,
//! which judge netnice only, keep the processors awake. Experiments run on the machine as it is.

use std::fs::{File, OpenOptions};
use std::io::Write;

/// Keeps the processors out of deep sleep while the returned file is open (Linux:
/// Documentation/power/pm_qos_interface.rst). `None` if the kernel does not offer this.
#[must_use]
pub fn forbid_deep_sleep() -> Option<File> {
    let mut file = OpenOptions::new()
        .write(true)
        .open("/dev/cpu_dma_latency")
        .ok()?;
    file.write_all(&0_i32.to_ne_bytes()).ok()?;
    Some(file)
}
