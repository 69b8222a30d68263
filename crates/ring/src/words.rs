//! Words of shared memory that both sides access at the same time. All access is by atomic
//! operations, so a value that changes during a read is never undefined behaviour.
//!
//! Under `cfg(loom)` the words have loom's types and are in private memory. loom then tries every
//! order in which two threads may access them. The code of the cursors and of the sleeping flag is
//! the same with and without loom.
//!
//! The constructors of [`Word`], [`Words`] and [`Entries`] panic if the memory is not inside the
//! region or not aligned, and the words keep the region mapped. This module accesses the memory
//! only as atomics. If the other side's process uses anything but atomics, it harms only itself.

#[cfg(not(loom))]
pub(crate) use mapped::{Entries, Word, Words};
#[cfg(loom)]
pub(crate) use modelled::{Entries, Word, Words};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
mod mapped {
    use std::ops::Deref;
    use std::ptr::NonNull;
    use std::sync::Arc;

    use super::{AtomicU32, AtomicU64, Ordering};
    use crate::region::{Region, prefetch};

    /// A word of 32 bits.
    #[derive(Clone)]
    pub(crate) struct Word {
        at: NonNull<AtomicU32>,
        _keeps: Arc<Region>,
    }

    // SAFETY: a `Word` is a shared reference to an atomic, and it keeps the memory of that atomic
    // mapped.
    unsafe impl Send for Word {}
    // SAFETY: as for Send.
    unsafe impl Sync for Word {}

    impl Word {
        /// The word at `offset` bytes from the start of the region.
        pub(crate) fn new(region: &Arc<Region>, offset: u64) -> Word {
            Word {
                at: region.at(offset, 4, 4).cast(),
                _keeps: region.clone(),
            }
        }
    }

    impl Word {
        /// Prefetches the word.
        #[inline]
        pub(crate) fn prefetch(&self) {
            prefetch(self.at.as_ptr().cast());
        }
    }

    impl Deref for Word {
        type Target = AtomicU32;

        #[inline]
        fn deref(&self) -> &AtomicU32 {
            // SAFETY: `Region::at` checked that four aligned bytes are there; `_keeps` keeps them
            // mapped.
            unsafe { self.at.as_ref() }
        }
    }

    /// Consecutive words of 64 bits.
    #[derive(Clone)]
    pub(crate) struct Words {
        at: NonNull<AtomicU64>,
        len: usize,
        _keeps: Arc<Region>,
    }

    // SAFETY: a `Words` is a shared reference to atomics, and it keeps their memory mapped.
    unsafe impl Send for Words {}
    // SAFETY: as for Send.
    unsafe impl Sync for Words {}

    impl Words {
        /// `len` words, starting at `offset` bytes from the start of the region.
        pub(crate) fn new(region: &Arc<Region>, offset: u64, len: usize) -> Words {
            Words {
                at: region.at(offset, len as u64 * 8, 8).cast(),
                len,
                _keeps: region.clone(),
            }
        }
    }

    impl Deref for Words {
        type Target = [AtomicU64];

        #[inline]
        fn deref(&self) -> &[AtomicU64] {
            // SAFETY: `Region::at` checked that this many aligned bytes are there; `_keeps` keeps
            // them mapped. The memory is accessed only as atomics.
            unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
        }
    }

    /// The entries of a ring, two words each. Their number is a power of two.
    #[derive(Clone)]
    pub(crate) struct Entries {
        words: Words,
        mask: u32,
    }

    impl Entries {
        /// `entries` entries, starting at `offset` bytes from the start of the region.
        pub(crate) fn new(region: &Arc<Region>, offset: u64, entries: u32) -> Entries {
            assert!(entries.is_power_of_two());
            Entries {
                words: Words::new(region, offset, 2 * entries as usize),
                mask: entries - 1,
            }
        }

        /// The number of entries, a power of two.
        pub(crate) fn count(&self) -> u32 {
            self.mask + 1
        }

        /// Prefetches the cache line of the entry at `index`.
        #[inline]
        pub(crate) fn prefetch(&self, index: u32) {
            let at = 2 * (index & self.mask) as usize;
            prefetch(std::ptr::from_ref(&self.words[at]).cast());
        }

        /// Reads an entry, each half once. Entry `index` is stored at `index` modulo the number of
        /// entries.
        #[inline]
        pub(crate) fn read(&self, index: u32) -> [u64; 2] {
            let at = 2 * (index & self.mask) as usize;
            [
                self.words[at].load(Ordering::Relaxed),
                self.words[at + 1].load(Ordering::Relaxed),
            ]
        }

        /// Writes an entry; `index` as for `read`.
        #[inline]
        pub(crate) fn write(&self, index: u32, [first, second]: [u64; 2]) {
            let at = 2 * (index & self.mask) as usize;
            self.words[at].store(first, Ordering::Relaxed);
            self.words[at + 1].store(second, Ordering::Relaxed);
        }
    }
}

#[cfg(loom)]
mod modelled {
    use std::ops::Deref;

    use loom::sync::Arc;

    use super::{AtomicU32, AtomicU64, Ordering};

    /// A word of 32 bits, as loom models it.
    #[derive(Clone)]
    pub(crate) struct Word(Arc<AtomicU32>);

    impl Word {
        /// A word with this value.
        pub(crate) fn model(value: u32) -> Word {
            Word(Arc::new(AtomicU32::new(value)))
        }

        pub(crate) fn prefetch(&self) {}
    }

    impl Deref for Word {
        type Target = AtomicU32;

        fn deref(&self) -> &AtomicU32 {
            &self.0
        }
    }

    /// Consecutive words of 64 bits, as loom models them.
    #[derive(Clone)]
    pub(crate) struct Words(Arc<Vec<AtomicU64>>);

    impl Words {
        /// So many words that are 0.
        pub(crate) fn model(len: usize) -> Words {
            Words(Arc::new((0..len).map(|_| AtomicU64::new(0)).collect()))
        }
    }

    impl Deref for Words {
        type Target = [AtomicU64];

        fn deref(&self) -> &[AtomicU64] {
            &self.0
        }
    }

    /// The entries of a ring, as loom models them.
    #[derive(Clone)]
    pub(crate) struct Entries(Words);

    impl Entries {
        /// So many entries that are 0; a power of two.
        pub(crate) fn model(entries: u32) -> Entries {
            Entries(Words::model(2 * entries as usize))
        }

        /// The number of entries, a power of two.
        pub(crate) fn count(&self) -> u32 {
            self.0.len() as u32 / 2
        }

        pub(crate) fn prefetch(&self, _index: u32) {}

        pub(crate) fn read(&self, index: u32) -> [u64; 2] {
            let at = 2 * (index & (self.count() - 1)) as usize;
            [
                self.0[at].load(Ordering::Relaxed),
                self.0[at + 1].load(Ordering::Relaxed),
            ]
        }

        pub(crate) fn write(&self, index: u32, [first, second]: [u64; 2]) {
            let at = 2 * (index & (self.count() - 1)) as usize;
            self.0[at].store(first, Ordering::Relaxed);
            self.0[at + 1].store(second, Ordering::Relaxed);
        }
    }
}
