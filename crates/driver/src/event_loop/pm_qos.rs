//! Keeps processors awake while packets of cell contracts leave.
//!
//! A sleeping processor takes time to wake, up to hundreds of microseconds from a deep state. On a
//! virtual machine, the host deschedules a virtual processor that sleeps, and preempts it several
//! times after it runs again. There, gaps of 120 µs between packets of a cell contract varied by
//! 30 µs (1st to 99th percentile), and vary by 3 µs with processors awake.
//!
//! So a [`LatencyRequest`] asks the kernel to keep processors awake (PM QoS,
//! `/dev/cpu_dma_latency`): the kernel's idle loop then spins. This costs power. So the request is
//! withdrawn [`HOLD`] (20 ms) after the last such packet, and earlier if the next departure is
//! known to be more than [`HOLD`] away. With the driver's option `--may-sleep` no request is made.
//! If the kernel refuses a request, processors sleep. Opening the file, or taking a file that
//! cannot be written, fails with the kernel's error.

use std::fs::File;
use std::io::{self, Write};

use netnice_core::units::Instant;

/// The request to the kernel.
#[derive(Debug)]
pub(super) struct LatencyRequest {
    /// A written request holds as long as the file is open. `None`: no request is made.
    device: Option<File>,
    held: bool,
    /// When the last packet of a cell contract left.
    last_packets: Option<Instant>,
}

impl LatencyRequest {
    /// A value without a file and without a request.
    pub(crate) fn new() -> LatencyRequest {
        LatencyRequest {
            device: None,
            held: false,
            last_packets: None,
        }
    }

    /// Takes the file for later requests. Fails if the file cannot be written.
    pub(crate) fn set_device(&mut self, device: File) -> io::Result<()> {
        self.device = Some(device);
        self.request(false)
    }

    /// Records that packets of a cell contract left.
    pub(crate) fn packets_left(&mut self, now: Instant) {
        self.last_packets = Some(now);
    }

    /// Called before a sleep, with the next departure if it is known. Makes or withdraws the
    /// request. Returns the time at which the thread must run again to withdraw it; `None` if no
    /// request holds.
    pub(crate) fn before_sleep(&mut self, now: Instant, next: Option<Instant>) -> Option<Instant> {
        let until = self.last_packets.map(|last| Instant(last.0 + HOLD));
        let until = until.filter(|until| now < *until);
        let is_soon = next.is_none_or(|next| next.0.saturating_sub(now.0) <= HOLD);
        let wanted = until.is_some() && is_soon;
        if wanted != self.held {
            // If the kernel refuses, processors sleep.
            let _ = self.request(wanted);
        }
        until.filter(|_| self.held)
    }

    /// Whether processors are kept awake now.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    fn request(&mut self, low_latency: bool) -> io::Result<()> {
        let Some(device) = &mut self.device else {
            return Ok(());
        };
        let micros = if low_latency { 0 } else { ANY_LATENCY };
        device.write_all(&micros.to_ne_bytes())?;
        self.held = low_latency;
        Ok(())
    }
}

/// Opens the kernel's file for such requests. Needs root. Fails if the file does not exist or may
/// not be opened.
pub(crate) fn open_device() -> io::Result<File> {
    File::options().write(true).open(DEVICE)
}

/// Linux: Documentation/power/pm_qos_interface.rst. The value is the allowed wake-up latency in
/// microseconds, as 32 bits.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// The kernel's own default.
const ANY_LATENCY: i32 = 2_000_000_000;
/// How long a request holds after a packet, in ns. Packets of 1500 bytes at 600 kbit/s are this far
/// apart.
const HOLD: u64 = 20_000_000;

#[cfg(test)]
mod tests;
