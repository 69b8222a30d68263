//! Processors that do not fall asleep while packets leave at moments of their own.
//!
//! A processor that sleeps takes time to wake up, up to hundreds of microseconds out of a deep state. A virtual one is taken away by its
//! host when it sleeps, and is stopped again and again when it is back: gaps of 120 us between packets of a cell contract came within
//! 30 us (p1 to p99), and come within 3. So while such packets leave the kernel is asked to keep the processors awake (PM QoS,
//! `/dev/cpu_dma_latency`): its idle loop turns instead. That takes power, so it is asked only as long as packets are less than
//! [`HOLD`] apart, and whoever starts a driver can do without it.
//! ```text
//!  packets   | | | | |            |            | | |
//!  awake     ████████████                       ███████
//!                      └─ HOLD ─┘
//! ```

use std::fs::File;
use std::io::{self, Write};

use netnice_core::units::Instant;

/// What is asked of the kernel.
#[derive(Debug)]
pub(super) struct Awake {
    /// Whoever writes to it is heard as long as it is open. Nothing: processors sleep as they like.
    wish: Option<File>,
    asked: bool,
    /// When the last packet left that was to leave at its moment.
    last: Option<Instant>,
}

impl Awake {
    /// Nothing is asked yet.
    pub fn new() -> Awake {
        Awake {
            wish: None,
            asked: false,
            last: None,
        }
    }

    /// From now on it is asked by this, where there is reason.
    pub fn allow(&mut self, wish: File) -> io::Result<()> {
        self.wish = Some(wish);
        self.tell(false)
    }

    /// Packets left that were to leave at their moment.
    pub fn left(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// The thread is about to sleep, until the next packet is to leave if that is known. When it has to be back.
    pub fn rests(&mut self, now: Instant, next: Option<Instant>) -> Option<Instant> {
        let until = self.last.map(|last| Instant(last.0 + HOLD));
        let until = until.filter(|until| now < *until);
        let is_soon = next.is_none_or(|next| next.0.saturating_sub(now.0) <= HOLD);
        let asks = until.is_some() && is_soon;
        if asks != self.asked {
            // Where the kernel does not take it, they sleep.
            let _ = self.tell(asks);
        }
        until.filter(|_| self.asked)
    }

    /// Whether processors are kept awake now.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    fn tell(&mut self, asks: bool) -> io::Result<()> {
        let Some(wish) = &mut self.wish else {
            return Ok(());
        };
        let micros = if asks { 0 } else { WHATEVER };
        wish.write_all(&micros.to_ne_bytes())?;
        self.asked = asks;
        Ok(())
    }
}

/// What the kernel is asked by. Only root may.
pub fn wish() -> io::Result<File> {
    File::options().write(true).open(DEVICE)
}

/// Linux: Documentation/power/pm_qos_interface.rst. A number of 32 bits: in how many microseconds a processor has to be awake.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// The kernel's own default.
const WHATEVER: i32 = 2_000_000_000;
/// Packets of 1500 bytes are so far apart at 600 kbit/s, in ns.
const HOLD: u64 = 20_000_000;

#[cfg(test)]
mod tests;
