//! Words of shared memory that both sides access at the same time. All access is by atomic
//! operations, so a value that changes during a read is never undefined behaviour.
//!
//! Under `cfg(loom)` the words have loom's types and are in private memory. loom then tries every
//! order in which two threads may access them. The code of the cursors and of the sleeping flag is
//! the same with and without loom.
//!
//! The constructors of [`Word`], [`Words`] and [`SharedRing`] panic if the memory is not inside the
//! region or not aligned, and the words keep the region mapped. This module accesses the memory
//! only as atomics. If the other side's process uses anything but atomics, it harms only itself.

#[cfg(not(loom))]
pub(crate) use mapped::{SharedRing, Word, Words};
#[cfg(loom)]
pub(crate) use modelled::{SharedRing, Word, Words};

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
    use crate::layout::{ENTRY, FLOW_HEADER, FlowLocation, PAGE, Plan, Ring};
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

    /// The shared memory of one ring, as each end uses it: two indices, and entries of two words
    /// each. A driver with many flows waits for this value's cache line, so it has the offsets of
    /// its parts and not their addresses.
    #[derive(Clone)]
    pub(crate) struct SharedRing {
        pub(crate) ring: Ring,
        /// The start of the flow's region.
        flow: NonNull<u8>,
        /// The offset of the first entry from there.
        entries: u32,
        /// The number of entries, a power of two, less 1.
        mask: u32,
        _keeps: Arc<Region>,
    }

    const _: () = assert!(size_of::<SharedRing>() == 32);

    // SAFETY: a `SharedRing` refers to atomics only, and keeps their memory mapped.
    unsafe impl Send for SharedRing {}
    // SAFETY: as for Send.
    unsafe impl Sync for SharedRing {}

    impl SharedRing {
        /// The ring of a flow, at the offsets of the flow's plan.
        pub(crate) fn of(
            region: &Arc<Region>,
            location: &FlowLocation,
            plan: &Plan,
            ring: Ring,
        ) -> SharedRing {
            let (count, at) = (location.shape.entries(ring), plan.ring(ring));
            assert!(count.is_power_of_two());
            let end = at + u64::from(count) * ENTRY;
            SharedRing {
                ring,
                // The header, which holds the indices, and all entries are in the region, and
                // aligned.
                flow: region.at(location.offset, end.max(FLOW_HEADER), PAGE),
                // Of at most MAX_ENTRIES entries in four rings.
                entries: at as u32,
                mask: count - 1,
                _keeps: region.clone(),
            }
        }

        /// The index of the producer.
        #[inline]
        pub(crate) fn producer(&self) -> &AtomicU32 {
            self.index(self.ring.producer())
        }

        /// The index of the consumer.
        #[inline]
        pub(crate) fn consumer(&self) -> &AtomicU32 {
            self.index(self.ring.consumer())
        }

        /// The number of entries, a power of two.
        #[inline]
        pub(crate) fn count(&self) -> u32 {
            self.mask + 1
        }

        /// Prefetches the producer's index.
        #[inline]
        pub(crate) fn prefetch_producer(&self) {
            prefetch::<true>(std::ptr::from_ref(self.producer()).cast());
        }

        /// Prefetches the consumer's index.
        #[inline]
        pub(crate) fn prefetch_consumer(&self) {
            prefetch::<true>(std::ptr::from_ref(self.consumer()).cast());
        }

        /// Prefetches the cache line of the entry at `index`.
        #[inline]
        pub(crate) fn prefetch_entry(&self, index: u32) {
            prefetch::<true>(std::ptr::from_ref(self.entry(index)).cast());
        }

        /// Reads an entry, each half once. Entry `index` is stored at `index` modulo the number of
        /// entries.
        #[inline]
        pub(crate) fn read(&self, index: u32) -> [u64; 2] {
            let [first, second] = self.entry(index);
            [
                first.load(Ordering::Relaxed),
                second.load(Ordering::Relaxed),
            ]
        }

        /// Writes an entry; `index` as for `read`.
        #[inline]
        pub(crate) fn write(&self, index: u32, [first, second]: [u64; 2]) {
            let entry = self.entry(index);
            entry[0].store(first, Ordering::Relaxed);
            entry[1].store(second, Ordering::Relaxed);
        }

        #[inline]
        fn index(&self, offset: u64) -> &AtomicU32 {
            // SAFETY: `of` checked that the flow's header is there and aligned, and the offset is
            // that of an index in it; `_keeps` keeps it mapped. The memory is accessed only as
            // atomics.
            unsafe { self.flow.add(offset as usize).cast().as_ref() }
        }

        #[inline]
        fn entry(&self, index: u32) -> &[AtomicU64; 2] {
            let at = self.entries as usize + (index & self.mask) as usize * ENTRY as usize;
            // SAFETY: as for `index`; `of` checked that `mask + 1` entries are there from `entries`
            // on.
            unsafe { self.flow.add(at).cast().as_ref() }
        }
    }
}

#[cfg(loom)]
mod modelled {
    use std::ops::Deref;

    use loom::sync::Arc;

    use super::{AtomicU32, AtomicU64, Ordering};
    use crate::layout::Ring;

    /// A word of 32 bits, as loom models it.
    #[derive(Clone)]
    pub(crate) struct Word(Arc<AtomicU32>);

    impl Word {
        /// A word with this value.
        pub(crate) fn model(value: u32) -> Word {
            Word(Arc::new(AtomicU32::new(value)))
        }
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

    /// The shared memory of one ring, as loom models it.
    #[derive(Clone)]
    pub(crate) struct SharedRing {
        pub(crate) ring: Ring,
        producer: Word,
        consumer: Word,
        entries: Words,
    }

    impl SharedRing {
        /// A ring of so many entries that are 0, a power of two; the indices are `at`.
        pub(crate) fn model(ring: Ring, entries: u32, at: u32) -> SharedRing {
            SharedRing {
                ring,
                producer: Word::model(at),
                consumer: Word::model(at),
                entries: Words::model(2 * entries as usize),
            }
        }

        pub(crate) fn producer(&self) -> &AtomicU32 {
            &self.producer
        }

        pub(crate) fn consumer(&self) -> &AtomicU32 {
            &self.consumer
        }

        /// The number of entries, a power of two.
        pub(crate) fn count(&self) -> u32 {
            self.entries.len() as u32 / 2
        }

        pub(crate) fn prefetch_producer(&self) {}

        pub(crate) fn prefetch_consumer(&self) {}

        pub(crate) fn prefetch_entry(&self, _index: u32) {}

        pub(crate) fn read(&self, index: u32) -> [u64; 2] {
            let at = 2 * (index & (self.count() - 1)) as usize;
            [
                self.entries[at].load(Ordering::Relaxed),
                self.entries[at + 1].load(Ordering::Relaxed),
            ]
        }

        pub(crate) fn write(&self, index: u32, [first, second]: [u64; 2]) {
            let at = 2 * (index & (self.count() - 1)) as usize;
            self.entries[at].store(first, Ordering::Relaxed);
            self.entries[at + 1].store(second, Ordering::Relaxed);
        }
    }
}
