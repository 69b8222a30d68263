//! Who has which buffer, by address. In use + free = total holds at every moment, and giving twice, or what is
//! not ours, is refused: a frame that is counted and not named gets lost where kernels count differently.

/// How many buffers there are, and with whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Handed out.
    pub in_use: u32,
    /// Not handed out.
    pub free: u32,
    /// The sum of the two.
    pub total: u32,
}

/// A set of chunks: those that one side has at the moment.
///
/// Counting is behind a branch, and not `in_use += u32::from(was_new)`: that is lost in optimised builds of Rust 1.95
/// (LLVM 22) where the call is inlined in a loop. The tests of this crate in release mode see it.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    /// The first 64 chunks, which are all that most flows have: at hand where the rest of the flow is.
    first: u64,
    more: Box<[u64]>,
    in_use: u32,
    total: u32,
}

impl Owned {
    /// None of so many.
    pub(crate) fn none_of(total: u32) -> Owned {
        Owned {
            first: 0,
            more: vec![0; (total as usize).div_ceil(64).saturating_sub(1)].into_boxed_slice(),
            in_use: 0,
            total,
        }
    }

    /// Puts one in; false if it was there.
    #[inline]
    pub(crate) fn claim(&mut self, chunk: u32) -> bool {
        let (word, bit) = self.place(chunk);
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.in_use += 1;
        true
    }

    /// Takes one out; false if it was not there.
    #[inline]
    pub(crate) fn release(&mut self, chunk: u32) -> bool {
        let (word, bit) = self.place(chunk);
        if *word & bit == 0 {
            return false;
        }
        *word &= !bit;
        self.in_use -= 1;
        true
    }

    #[inline]
    pub(crate) fn has(&self, chunk: u32) -> bool {
        let word = match chunk / 64 {
            0 => self.first,
            more => self.more[more as usize - 1],
        };
        word & (1 << (chunk % 64)) != 0
    }

    pub(crate) fn balance(&self) -> Balance {
        Balance {
            in_use: self.in_use,
            free: self.total - self.in_use,
            total: self.total,
        }
    }

    /// What must hold at every moment.
    ///
    /// # Panics
    /// If it does not.
    pub(crate) fn invariants(&self) {
        let words = std::iter::once(&self.first).chain(&self.more);
        let counted: u32 = words.map(|word| word.count_ones()).sum();
        assert_eq!(counted, self.in_use, "chunks counted one by one");
        assert!(self.in_use <= self.total);
    }

    #[inline]
    fn place(&mut self, chunk: u32) -> (&mut u64, u64) {
        assert!(chunk < self.total, "chunk {chunk} of {}", self.total);
        let word = match chunk / 64 {
            0 => &mut self.first,
            more => &mut self.more[more as usize - 1],
        };
        (word, 1 << (chunk % 64))
    }
}

/// Frames of equal size in one piece of memory, handed out by address; the one given back last goes out first,
/// while it is still in the cache.
#[derive(Clone, Debug)]
pub struct Pool {
    free: Vec<u32>,
    out: Owned,
    frame_bytes: u32,
}

impl Pool {
    /// So many frames of so many bytes, from address 0 on; all are free.
    pub fn new(frames: u32, frame_bytes: u32) -> Pool {
        assert!(frame_bytes > 0, "a frame of no bytes");
        Pool {
            free: (0..frames).rev().collect(),
            out: Owned::none_of(frames),
            frame_bytes,
        }
    }

    /// Takes a free frame: the address at which it begins.
    #[inline]
    pub fn take(&mut self) -> Option<u64> {
        let frame = self.take_number()?;
        Some(u64::from(frame) * u64::from(self.frame_bytes))
    }

    /// Gives a frame back by any address inside it.
    ///
    /// # Errors
    /// If no frame is there, or it is not out; nothing changes then.
    #[inline]
    pub fn give(&mut self, address: u64) -> Result<(), PoolError> {
        let total = self.out.total;
        let frame = address / u64::from(self.frame_bytes);
        let Some(frame) = u32::try_from(frame).ok().filter(|frame| *frame < total) else {
            let bytes = u64::from(total) * u64::from(self.frame_bytes);
            return Err(PoolError::Foreign { address, bytes });
        };
        match self.give_number(frame) {
            true => Ok(()),
            false => Err(PoolError::NotOut { address }),
        }
    }

    /// True if the frame with this address is out.
    pub fn is_out(&self, address: u64) -> bool {
        let frame = address / u64::from(self.frame_bytes);
        u32::try_from(frame).is_ok_and(|frame| self.is_out_number(frame))
    }

    /// Takes a free frame, by its number.
    #[inline]
    pub(crate) fn take_number(&mut self) -> Option<u32> {
        let frame = self.free.pop()?;
        self.out.claim(frame);
        Some(frame)
    }

    /// Gives a frame back by its number; false if there is none, or it is not out.
    #[inline]
    pub(crate) fn give_number(&mut self, frame: u32) -> bool {
        let was = self.is_out_number(frame) && self.out.release(frame);
        if was {
            self.free.push(frame);
        }
        was
    }

    /// True if the frame with this number is out.
    #[inline]
    pub(crate) fn is_out_number(&self, frame: u32) -> bool {
        frame < self.out.total && self.out.has(frame)
    }

    /// Bytes of a frame.
    pub fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// How many frames are out, and how many are free.
    pub fn balance(&self) -> Balance {
        self.out.balance()
    }

    /// What must hold at every moment: in use + free = total, and no frame is both.
    ///
    /// # Panics
    /// If it does not.
    pub fn invariants(&self) {
        self.out.invariants();
        assert_eq!(self.free.len(), self.out.balance().free as usize);
        assert!(
            self.free.iter().all(|frame| !self.out.has(*frame)),
            "a frame is free and out"
        );
    }
}

/// Why a frame cannot be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No frame is there.
    #[error("address {address:#x} is in no frame: they have {bytes} bytes together")]
    Foreign {
        /// The address.
        address: u64,
        /// Bytes of all frames.
        bytes: u64,
    },
    /// The frame is free already.
    #[error("the frame at address {address:#x} is not out")]
    NotOut {
        /// The address.
        address: u64,
    },
}

#[cfg(all(test, not(loom)))]
mod tests;
