//! Learns how long before a departure the packet thread has to be awake.
//!
//! A sleep ends late, and the lateness varies: 3 µs on a quiet machine; 50 µs in the median and 120
//! µs at the 98th percentile on a virtual machine with a busy host. So the lead is learnt from each
//! sleep that only the time has ended: a sleep that ends later than the lead raises the lead by
//! [`UP`], and any other lowers it by [`DOWN`]. The lead settles where one sleep in five hundred is
//! later: one in a hundred of a flow's packets may be late, and the machine causes most of those
//! when it stops the thread during the wait.

/// The learnt lead.
#[derive(Debug)]
pub(crate) struct WakeLead {
    nanos: u64,
}

impl WakeLead {
    pub(crate) fn new() -> WakeLead {
        WakeLead { nanos: FIRST }
    }

    /// In ns.
    pub(crate) fn nanos(&self) -> u64 {
        self.nanos
    }

    /// Learns from a sleep that ended `late` ns late.
    pub(crate) fn learn(&mut self, late: u64) {
        self.nanos = match late > self.nanos {
            true => MOST.min(self.nanos + UP),
            false => LEAST.max(self.nanos - DOWN),
        };
    }
}

/// The first lead, in ns.
const FIRST: u64 = 50_000;
/// The duration of one more iteration, in ns.
const LEAST: u64 = 10_000;
/// In ns. A longer lead is not worth its processor time: a sixth of a processor for a flow of 10
/// Mbit/s; and a flow of 100 Mbit/s has a packet each 120 µs.
const MOST: u64 = 200_000;
const UP: u64 = 499 * DOWN;
const DOWN: u64 = 10;

#[cfg(test)]
mod tests;
