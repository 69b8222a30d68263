//! Processors that do not fall asleep while system tests run.
//!
//! The cables of a test's world are queues of the kernel, which are as exact as its timers. A virtual processor that sleeps is woken when
//! its host has time: on a busy one cables of 20 Mbit/s carried 15, and what is promised on them could not be told from what they lack.
//! Tests judge netnice, not that; experiments run on the machine as it is.

use std::fs::{File, OpenOptions};
use std::io::Write;

/// As long as it lives processors are kept awake (Linux: Documentation/power/pm_qos_interface.rst). Nothing where the kernel cannot be asked.
#[must_use]
pub fn keep() -> Option<File> {
    let mut wish = OpenOptions::new()
        .write(true)
        .open("/dev/cpu_dma_latency")
        .ok()?;
    wish.write_all(&0_i32.to_ne_bytes()).ok()?;
    Some(wish)
}
