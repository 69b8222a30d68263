//! Tracks which buffers of a set are handed out. A [`Pool`] hands out the buffers (*frames*) of one
//! piece of memory by address, and an `Owned` holds the numbers of the chunks that one side owns.
//! `in_use + free == total` holds after every call. [`Pool::give`] fails with [`PoolError`] for an
//! address that is not in the pool and for a frame that is already free: the ledger has one bit for
//! each buffer, and not only a count.

/// The number of buffers of a set, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Buffers that are handed out.
    pub in_use: u32,
    /// Buffers that are not handed out.
    pub free: u32,
    /// `in_use + free`.
    pub total: u32,
}

/// The set of chunks that one side owns at the moment.
///
/// `claim` and `release` count inside a branch, and do not compute `in_use += u32::from(was_new)`.
/// Optimised builds of Rust 1.95 (LLVM 22) lose that addition where the call is inlined in a loop.
/// The tests of this crate in release mode detect the loss.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    /// The first 64 chunks, stored inline. Most flows have no more.
    first: u64,
    more: Box<[u64]>,
    in_use: u32,
    total: u32,
}

impl Owned {
    /// An empty set; chunk numbers are below `total`.
    pub(crate) fn empty(total: u32) -> Owned {
        Owned {
            first: 0,
            more: vec![0; (total as usize).div_ceil(64).saturating_sub(1)].into_boxed_slice(),
            in_use: 0,
            total,
        }
    }

    /// Adds a chunk. Returns false if the set already contains it.
    #[inline]
    pub(crate) fn claim(&mut self, chunk: u32) -> bool {
        let (word, bit) = self.word_and_bit(chunk);
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.in_use += 1;
        true
    }

    /// Removes a chunk. Returns false if the set does not contain it.
    #[inline]
    pub(crate) fn release(&mut self, chunk: u32) -> bool {
        let (word, bit) = self.word_and_bit(chunk);
        if *word & bit == 0 {
            return false;
        }
        *word &= !bit;
        self.in_use -= 1;
        true
    }

    /// True if the side has this chunk.
    #[inline]
    pub(crate) fn has(&self, chunk: u32) -> bool {
        let word = match chunk / 64 {
            0 => self.first,
            more => self.more[more as usize - 1],
        };
        word & (1 << (chunk % 64)) != 0
    }

    /// The numbers of chunks that the side has (`in_use`) and has not (`free`).
    pub(crate) fn balance(&self) -> Balance {
        Balance {
            in_use: self.in_use,
            free: self.total - self.in_use,
            total: self.total,
        }
    }

    /// Checks that the count matches the set.
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
    fn word_and_bit(&mut self, chunk: u32) -> (&mut u64, u64) {
        assert!(chunk < self.total, "chunk {chunk} of {}", self.total);
        let word = match chunk / 64 {
            0 => &mut self.first,
            more => &mut self.more[more as usize - 1],
        };
        (word, 1 << (chunk % 64))
    }
}

/// Frames of equal size in one piece of memory, handed out by address. [`Pool::take`] returns the
/// frame that was given back last, because it is most likely still in the cache.
#[derive(Clone, Debug)]
pub struct Pool {
    free: Vec<u32>,
    in_use: Owned,
    frame_bytes: u32,
}

impl Pool {
    /// A pool of `frames` free frames of `frame_bytes` bytes each, starting at address 0.
    ///
    /// # Panics
    /// If `frame_bytes` is 0.
    pub fn new(frames: u32, frame_bytes: u32) -> Pool {
        assert!(frame_bytes > 0, "a frame of no bytes");
        Pool {
            free: (0..frames).rev().collect(),
            in_use: Owned::empty(frames),
            frame_bytes,
        }
    }

    /// Takes a free frame and returns the address of its first byte. Returns `None` if no frame is
    /// free.
    #[inline]
    pub fn take(&mut self) -> Option<u64> {
        let frame = self.take_number()?;
        Some(u64::from(frame) * u64::from(self.frame_bytes))
    }

    /// Gives a frame back, by any address inside it.
    ///
    /// # Errors
    /// If the address is in no frame or the frame is not handed out. The pool does not change then.
    #[inline]
    pub fn give(&mut self, address: u64) -> Result<(), PoolError> {
        let total = self.in_use.total;
        let frame = address / u64::from(self.frame_bytes);
        let Some(frame) = u32::try_from(frame).ok().filter(|frame| *frame < total) else {
            let bytes = u64::from(total) * u64::from(self.frame_bytes);
            return Err(PoolError::OutsidePool { address, bytes });
        };
        match self.give_number(frame) {
            true => Ok(()),
            false => Err(PoolError::NotInUse { address }),
        }
    }

    /// True if the frame that contains `address` is handed out; false also if no frame does.
    pub fn is_in_use(&self, address: u64) -> bool {
        let frame = address / u64::from(self.frame_bytes);
        u32::try_from(frame).is_ok_and(|frame| self.is_number_in_use(frame))
    }

    /// Takes a free frame and returns its number; `None` if no frame is free.
    #[inline]
    pub(crate) fn take_number(&mut self) -> Option<u32> {
        let frame = self.free.pop()?;
        self.in_use.claim(frame);
        Some(frame)
    }

    /// Gives a frame back by its number. Returns false if it does not exist or is not handed out.
    #[inline]
    pub(crate) fn give_number(&mut self, frame: u32) -> bool {
        let was = self.is_number_in_use(frame) && self.in_use.release(frame);
        if was {
            self.free.push(frame);
        }
        was
    }

    /// True if the frame with this number is handed out.
    #[inline]
    pub(crate) fn is_number_in_use(&self, frame: u32) -> bool {
        frame < self.in_use.total && self.in_use.has(frame)
    }

    /// Bytes of one frame.
    pub fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// The number of frames that are handed out (`in_use`), of free frames, and of all frames.
    pub fn balance(&self) -> Balance {
        self.in_use.balance()
    }

    /// Checks that `in_use + free == total`, and that no frame is both in use and free.
    ///
    /// # Panics
    /// If one of the two does not hold.
    pub fn invariants(&self) {
        self.in_use.invariants();
        assert_eq!(self.free.len(), self.in_use.balance().free as usize);
        assert!(
            self.free.iter().all(|frame| !self.in_use.has(*frame)),
            "a frame is both free and in use"
        );
    }
}

/// Why a pool does not take a frame back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The address is in no frame.
    #[error("address {address:#x} is outside the pool of {bytes} bytes")]
    OutsidePool {
        /// The address.
        address: u64,
        /// Bytes of all frames.
        bytes: u64,
    },
    /// The frame is already free.
    #[error("the frame at address {address:#x} is already free")]
    NotInUse {
        /// The address.
        address: u64,
    },
}

#[cfg(all(test, not(loom)))]
mod tests;
