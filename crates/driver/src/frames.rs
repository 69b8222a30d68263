//! Who holds each frame of the driver's memory: nobody, the driver, or the kernel, to fill or to send.
//!
//! ```text
//!          take                 sending               completed
//!  free ─────────▶ the driver's ─────────▶ being sent ─────────▶ free
//!    ▲               │    ▲  ▲
//!    └──── give ─────┘    │  └── received ── being filled ◀── filling ── the driver's
//! ```
//! The kernel says by *address* what it has done with, and it is believed only about what it was given: a frame that comes
//! back from where it is not is [`Strange`] and changes nothing. Numbers of completions are never counted on, since
//! kernels differ in what they complete (a frame that was refused may never be). So
//! free + driver's + filling + sending is always all.

/// Frames of one size, side by side from address 0.
#[derive(Debug)]
pub struct Frames {
    size: u32,
    free: Vec<u32>,
    held: Vec<Holder>,
    counts: [u32; 4],
}

/// Who holds a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Free,
    /// The driver, who reads or writes it.
    Driver,
    /// The kernel, which will write a received frame there.
    Filling,
    /// The kernel, which is to send it.
    Sending,
}

/// Who has how many. The four sum to `total` at every moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// All.
    pub total: u32,
    /// Those that are there to be taken.
    pub free: u32,
    /// The driver.
    pub driver: u32,
    /// The kernel, to fill.
    pub filling: u32,
    /// The kernel, to send.
    pub sending: u32,
}

/// A frame that was not where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {address:#x} is no frame that was {expected:?}")]
pub struct Strange {
    /// The address.
    pub address: u64,
    /// Where it would have been.
    pub expected: Holder,
}

impl Frames {
    /// So many, all free.
    pub fn new(count: u32, size: u32) -> Frames {
        Frames {
            size,
            free: (0..count).rev().collect(),
            held: vec![Holder::Free; count as usize],
            counts: [count, 0, 0, 0],
        }
    }

    /// A free frame's address; it is the driver's now.
    #[inline]
    pub fn take(&mut self) -> Option<u64> {
        let number = self.free.pop()?;
        self.set(number as usize, Holder::Driver);
        Some(u64::from(number) * u64::from(self.size))
    }

    /// A frame changes hands. `address` may be any inside of it; says where it begins.
    #[inline]
    pub fn pass(&mut self, address: u64, from: Holder, to: Holder) -> Result<u64, Strange> {
        let number = address / u64::from(self.size);
        match self.held.get(number as usize) {
            Some(holder) if *holder == from && from != Holder::Free => {
                self.set(number as usize, to);
                if to == Holder::Free {
                    self.free.push(number as u32);
                }
                Ok(number * u64::from(self.size))
            }
            _ => Err(Strange {
                address,
                expected: from,
            }),
        }
    }

    /// How many this holder has.
    pub fn count(&self, holder: Holder) -> u32 {
        self.counts[holder as usize]
    }

    /// How many there are.
    pub fn total(&self) -> u32 {
        self.held.len() as u32
    }

    /// Who has how many. Those that are free are counted where they are taken from, the others as they change hands: the sum
    /// says something.
    pub fn tally(&self) -> Tally {
        Tally {
            total: self.total(),
            free: self.free.len() as u32,
            driver: self.count(Holder::Driver),
            filling: self.count(Holder::Filling),
            sending: self.count(Holder::Sending),
        }
    }

    /// Panics if the ledger does not balance. For tests; linear.
    pub fn invariants(&self) {
        assert_eq!(self.counts.iter().sum::<u32>(), self.total(), "all frames");
        for holder in [
            Holder::Free,
            Holder::Driver,
            Holder::Filling,
            Holder::Sending,
        ] {
            let held = self.held.iter().filter(|one| **one == holder).count();
            assert_eq!(held as u32, self.count(holder), "{holder:?}");
        }
        let Tally {
            total,
            free,
            driver,
            filling,
            sending,
        } = self.tally();
        assert_eq!(free, self.count(Holder::Free), "free");
        assert_eq!(free + driver + filling + sending, total, "as it is told");
    }

    fn set(&mut self, number: usize, to: Holder) {
        self.counts[self.held[number] as usize] -= 1;
        self.held[number] = to;
        self.counts[to as usize] += 1;
    }
}

#[cfg(test)]
mod tests;
