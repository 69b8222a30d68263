//! How long before a departure the packet thread has to be awake.
//!
//! A sleep ends late, and how late differs: 3 µs on a quiet machine, 50 in the median and 120 in the 98th percentile on a virtual
//! one whose host is busy. So it is learnt from each sleep that nothing but the time has ended: one that was later than the lead makes
//! it longer by [`UP`], another one shorter by [`DOWN`]. It comes to rest where one in five hundred is later:
//! of a flow's packets one in a hundred may be late, and most of those are the machine's, which stops the thread while it waits.

/// The lead, learnt.
#[derive(Debug)]
pub(crate) struct Lead {
    nanos: u64,
}

impl Lead {
    pub fn new() -> Lead {
        Lead { nanos: FIRST }
    }

    /// In ns.
    pub fn nanos(&self) -> u64 {
        self.nanos
    }

    /// A sleep ended so many ns late.
    pub fn saw(&mut self, late: u64) {
        self.nanos = match late > self.nanos {
            true => MOST.min(self.nanos + UP),
            false => LEAST.max(self.nanos - DOWN),
        };
    }
}

/// Before anything is known.
const FIRST: u64 = 50_000;
/// What it takes to go round the loop once more.
const LEAST: u64 = 10_000;
/// More of a processor than this is not worth it: a sixth of one for a flow of 10 Mbit/s, and one of 100 Mbit/s has a packet each 120 µs.
const MOST: u64 = 200_000;
const UP: u64 = 499 * DOWN;
const DOWN: u64 = 10;

#[cfg(test)]
mod tests;
