//! Learns how long before a departure the packet thread has to be awake.
//!
//! A sleep ends late, and the lateness varies: 3 µs on a quiet machine; 50 µs in the median and 120
//! µs at the 98th percentile on a virtual machine with a busy host. So the lead is learnt from each
//! sleep before a departure that no event has ended: a sleep that is late by more than the lead
//! raises the lead by [`UP`], and any other lowers it by [`DOWN`]. [`UP`] is 499 times [`DOWN`], so
//! the lead settles where one sleep in 500 is late by more than the lead. The requirement is that
//! at most one packet in 100 of a flow is late. The difference is left for packets that are late
//! because the machine stops the thread between its wake-up and the departure. The lead is between
//! 10 and 200 µs. The caller passes the lateness of each such sleep; no call fails.

/// How long before a departure the packet thread ends its sleep.
#[derive(Debug)]
pub(crate) struct WakeLead {
    nanos: u64,
}

impl WakeLead {
    /// A lead of 50 µs, before any sleep.
    pub(crate) fn new() -> WakeLead {
        WakeLead { nanos: FIRST }
    }

    /// The lead in ns.
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
/// The shortest lead, in ns: the duration of one more iteration.
const LEAST: u64 = 10_000;
/// The longest lead, in ns. A longer lead is not worth its processor time: a sixth of a processor
/// for a flow of 10 Mbit/s; and a flow of 100 Mbit/s has a packet each 120 µs.
pub(super) const MOST: u64 = 200_000;
/// What a late sleep adds to the lead, in ns.
const UP: u64 = 499 * DOWN;
/// What any other sleep subtracts from the lead, in ns.
const DOWN: u64 = 10;

#[cfg(test)]
mod tests;
