//! Tracks which side holds each frame of the driver's packet memory: no side (the frame is free),
//! the driver, or the kernel, which fills or sends the frame.
//!
//! | from | to | when |
//! |---|---|---|
//! | [`Holder::Free`] | [`Holder::Driver`] | the driver takes a frame, to send or to receive |
//! | [`Holder::Driver`] | [`Holder::Sending`] | the frame is in the transmit ring |
//! | [`Holder::Driver`] | [`Holder::Free`] | the frame is not sent, because it is forbidden |
//! | [`Holder::Sending`] | [`Holder::Free`] | the frame was in the completion ring |
//! | [`Holder::Driver`] | [`Holder::Filling`] | the frame is in the fill ring |
//! | [`Holder::Filling`] | [`Holder::Driver`] | the frame was in the receive ring |
//!
//! The kernel returns frames by address. `Frames::transfer` fails with `UnexpectedFrame` and
//! changes nothing if the address is in no frame of the expected holder. A frame that the kernel
//! never returns (some kernels never complete a refused frame) stays with the kernel. So the
//! numbers of free, driver's, filling and sending frames always add up to the total ([`Tally`]).

/// The frames of the driver's packet memory (the UMEM of AF_XDP): all of one size, side by side
/// from address 0, each with its holder.
#[derive(Debug)]
pub struct Frames {
    size: u32,
    free: Vec<u32>,
    holders: Vec<Holder>,
    counts: [u32; 4],
}

/// The side that may access a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// No side: the frame is free.
    Free,
    /// The driver, which reads or writes it.
    Driver,
    /// The kernel, which will write a received frame there (from the fill ring to the receive
    /// ring).
    Filling,
    /// The kernel, which sends it (from the transmit ring to the completion ring).
    Sending,
}

/// Number of frames of each [`Holder`]. The sum of the other four fields is `total` at every
/// moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Number of all frames.
    pub total: u32,
    /// Number of free frames.
    pub free: u32,
    /// Number of frames that the driver reads or writes.
    pub driver: u32,
    /// Number of frames that the kernel has to fill with received packets.
    pub filling: u32,
    /// Number of frames that the kernel has for sending and has not completed.
    pub sending: u32,
}

/// The error of an address that is in no frame of the expected holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {address:#x} is no frame that was {expected:?}")]
pub(crate) struct UnexpectedFrame {
    /// The address.
    pub(crate) address: u64,
    /// The expected holder.
    pub(crate) expected: Holder,
}

impl Frames {
    /// `count` frames of `size` bytes, all free.
    pub(crate) fn new(count: u32, size: u32) -> Frames {
        Frames {
            size,
            free: (0..count).rev().collect(),
            holders: vec![Holder::Free; count as usize],
            counts: [count, 0, 0, 0],
        }
    }

    /// Adds `count` free frames behind the others.
    pub(crate) fn extend(&mut self, count: u32) {
        let before = self.total();
        self.free.extend((before..before + count).rev());
        let all = (before + count) as usize;
        self.holders.resize(all, Holder::Free);
        self.counts[Holder::Free as usize] += count;
    }

    /// Takes a free frame for the driver and returns its address; `None` if no frame is free.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u64> {
        let number = self.free.pop()?;
        self.set(number as usize, Holder::Driver);
        Some(u64::from(number) * u64::from(self.size))
    }

    /// Changes the holder of a frame. `address` may be any address inside the frame. Returns the
    /// address of the frame's first byte. Fails if `from` is not the frame's holder, or is
    /// [`Holder::Free`].
    #[inline]
    pub(crate) fn transfer(
        &mut self,
        address: u64,
        from: Holder,
        to: Holder,
    ) -> Result<u64, UnexpectedFrame> {
        let number = address / u64::from(self.size);
        match self.holders.get(number as usize) {
            Some(holder) if *holder == from && from != Holder::Free => {
                self.set(number as usize, to);
                if to == Holder::Free {
                    self.free.push(number as u32);
                }
                Ok(number * u64::from(self.size))
            }
            _ => Err(UnexpectedFrame {
                address,
                expected: from,
            }),
        }
    }

    /// Number of frames of this holder.
    pub fn count(&self, holder: Holder) -> u32 {
        self.counts[holder as usize]
    }

    /// Number of all frames.
    pub fn total(&self) -> u32 {
        self.holders.len() as u32
    }

    /// Number of frames per holder. Free frames are counted in the free list and the others by
    /// their transitions, so another sum than `total` shows a fault.
    pub fn tally(&self) -> Tally {
        Tally {
            total: self.total(),
            free: self.free.len() as u32,
            driver: self.count(Holder::Driver),
            filling: self.count(Holder::Filling),
            sending: self.count(Holder::Sending),
        }
    }

    /// Panics if the counts do not match the frames. For tests: the call checks every frame.
    pub fn invariants(&self) {
        assert_eq!(self.counts.iter().sum::<u32>(), self.total(), "all frames");
        for holder in [
            Holder::Free,
            Holder::Driver,
            Holder::Filling,
            Holder::Sending,
        ] {
            let held = self.holders.iter().filter(|one| **one == holder).count();
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
        assert_eq!(free + driver + filling + sending, total, "the tally");
    }

    fn set(&mut self, number: usize, to: Holder) {
        self.counts[self.holders[number] as usize] -= 1;
        self.holders[number] = to;
        self.counts[to as usize] += 1;
    }
}

/// Size of a frame in bytes; it holds the longest packet of common Ethernet. Twice the size would
/// take twice the memory for all frames.
pub(crate) const FRAME: usize = 2048;
/// Largest number of frames that a NIC holds at once for sending.
pub(crate) const MAX_IN_FLIGHT: usize = 2048;

#[cfg(test)]
mod tests;
