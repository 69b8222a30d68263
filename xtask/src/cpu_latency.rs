//! Keeps the processors out of deep sleep while system tests run. This never fails: without the
//! right to do it, the processors stay as they are.
//!
//! The links of a test's world are kernel queues, which depend on the kernel's timers. If this
//! machine is virtual, its host may wake a sleeping processor late, and then a link carries less
//! than its rate: on a busy host 15 of 20 Mbit/s. A test cannot distinguish that from a broken
//! guarantee, so tests keep the processors awake. Experiments run on the machine as it is.

use std::fs::{File, OpenOptions};
use std::io::Write;

/// Keeps the processors out of deep sleep while the returned file is open (Linux:
/// Documentation/power/pm_qos_interface.rst). `None` if the kernel does not offer this, or not to
/// this user.
#[must_use]
pub fn forbid_deep_sleep() -> Option<File> {
    let mut file = OpenOptions::new()
        .write(true)
        .open("/dev/cpu_dma_latency")
        .ok()?;
    file.write_all(&0_i32.to_ne_bytes()).ok()?;
    Some(file)
}
