//! The chunks of the buckets of all calendars of one scheduler.
//!
//! A bucket is a ring of chunks. Its last chunk identifies it: `tail.next` is the first. Entries
//! are appended at the tail and taken from the front. A chunk that was moved as a whole may be
//! partly filled at any position. Chunk 0 means "none": it is full and stays full.

use alloc::vec::Vec;

use super::Entry;

/// All chunks, and a list of the free ones.
#[derive(Debug)]
pub(in crate::sched) struct Pool {
    chunks: Vec<Chunk>,
    /// The first free chunk, or none.
    free: u32,
    /// The largest number of entries. Each of them could need a chunk of its own.
    reserved: usize,
}

/// [`ENTRIES`] entries, the link at [`NEXT`] and a description at [`ABOUT`]. It is one array, so
/// that any four bits are a valid index.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Chunk([u32; 16]);

/// No chunk.
pub(in crate::sched) const NOWHERE: u32 = 0;

/// The position of an entry: chunk and index in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sched) struct Place(u32);

impl Place {
    #[inline(always)]
    fn new(chunk: u32, position: usize) -> Place {
        Place(chunk << 4 | position as u32)
    }

    fn chunk(self) -> usize {
        (self.0 >> 4) as usize
    }

    fn position(self) -> usize {
        (self.0 & 15) as usize
    }
}

/// A copy of the entries of one chunk, in order.
#[derive(Clone, Copy, Debug)]
pub(in crate::sched) struct Run {
    words: [u32; 16],
    at: u32,
    end: u32,
}

impl Run {
    /// Number of entries that are left.
    #[inline(always)]
    pub(in crate::sched) fn len(&self) -> u32 {
        self.end - self.at
    }

    /// The first entry. There must be one.
    #[inline(always)]
    pub(in crate::sched) fn first(&self) -> Entry {
        Entry(self.words[self.at as usize % 16])
    }
}

impl Iterator for Run {
    type Item = Entry;

    #[inline(always)]
    fn next(&mut self) -> Option<Entry> {
        let entry = (self.at < self.end).then(|| self.first());
        self.at += 1;
        entry
    }
}

/// The bucket that a chunk belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home(u32);

impl Home {
    /// Calendar (up to 64) and slot (up to 2^17), in 24 bits; never zero.
    #[inline(always)]
    pub(super) fn new(name: u8, slot: u32) -> Home {
        Home(slot | u32::from(name) << 17 | 1 << 23)
    }

    pub(super) fn name(self) -> u8 {
        (self.0 >> 17 & 63) as u8
    }

    pub(super) fn slot(self) -> u32 {
        self.0 & 0x1_ffff
    }
}

impl Chunk {
    #[inline(always)]
    fn start(&self) -> usize {
        (self.0[ABOUT] & 15) as usize
    }

    #[inline(always)]
    fn end(&self) -> usize {
        (self.0[ABOUT] >> 4 & 15) as usize
    }

    #[inline(always)]
    fn entry(&self, position: usize) -> u32 {
        self.0[position % 16]
    }
}

impl Pool {
    /// A pool that allocates no more memory until more than `entries` entries are reserved.
    pub(in crate::sched) fn with_capacity(entries: usize) -> Pool {
        let mut pool = Pool {
            // One chunk for "none", and one as in `reserve`.
            chunks: Vec::with_capacity(entries + 2),
            free: NOWHERE,
            reserved: 0,
        };
        pool.reserve(1);
        pool
    }

    /// Reserves memory for `entries` more entries. It is the only function that allocates, and it
    /// does not touch the memory.
    pub(in crate::sched) fn reserve(&mut self, entries: usize) {
        self.reserved += entries;
        let wanted = self.reserved + 1;
        self.chunks
            .reserve(wanted.saturating_sub(self.chunks.len()));
        if self.chunks.is_empty() {
            self.chunks.push(Chunk::FULL);
        }
    }

    /// Bytes of the chunks that are or were in use. Reserved memory that was never touched does not
    /// count.
    pub(in crate::sched) fn memory(&self) -> usize {
        self.chunks.len() * size_of::<Chunk>()
    }

    /// The address and the capacity of the chunks.
    #[cfg(test)]
    pub(in crate::sched) fn room(&self) -> (usize, usize) {
        (self.chunks.as_ptr().addr(), self.chunks.capacity())
    }

    /// Appends an entry to the bucket with this tail, if the tail has room. "None" as tail has no
    /// room.
    #[inline(always)]
    pub(super) fn append(&mut self, tail: u32, entry: u32) -> Option<Place> {
        let chunk = &mut self.chunks[tail as usize];
        let about = chunk.0[ABOUT];
        let end = chunk.end();
        if end >= ENTRIES {
            return None;
        }
        chunk.0[end % 16] = entry;
        chunk.0[ABOUT] = about + (1 << 4);
        Some(Place::new(tail, end))
    }

    /// Appends a chunk with an entry to the bucket with this tail.
    #[inline(always)]
    pub(super) fn grow(&mut self, tail: u32, entry: u32) -> (u32, Place) {
        let new = self.allocate();
        let old = &mut self.chunks[tail as usize];
        let (first, home) = (old.0[NEXT], old.0[ABOUT] >> 8);
        old.0[NEXT] = new;
        self.fill(new, first, home, entry)
    }

    /// Starts a bucket with an entry.
    #[inline(always)]
    pub(super) fn start(&mut self, home: Home, entry: u32) -> (u32, Place) {
        let new = self.allocate();
        self.fill(new, new, home.0, entry)
    }

    /// The chunk behind a chunk. Behind a tail it is the bucket's first.
    #[inline(always)]
    pub(super) fn behind(&self, chunk: u32) -> u32 {
        self.chunks[chunk as usize].0[NEXT]
    }

    /// Takes the first entry of a bucket's first chunk. Returns the entry, and whether the chunk
    /// has more. If it has not, the caller must call [`Pool::drop_first`].
    #[inline(always)]
    pub(super) fn take(&mut self, first: u32) -> (u32, bool) {
        let chunk = &mut self.chunks[first as usize];
        let about = chunk.0[ABOUT];
        let start = chunk.start();
        chunk.0[ABOUT] = about + 1;
        (chunk.entry(start), start + 1 < (about >> 4 & 15) as usize)
    }

    /// A copy of the entries of a chunk. The chunk does not change.
    #[inline(always)]
    pub(super) fn run(&self, chunk: u32) -> Run {
        let chunk = &self.chunks[chunk as usize];
        Run {
            words: chunk.0,
            at: chunk.start() as u32,
            end: chunk.end() as u32,
        }
    }

    /// Releases the first chunk of the bucket with this tail. Returns the chunk behind it, if any.
    #[inline(always)]
    pub(super) fn drop_first(&mut self, first: u32, tail: u32) -> Option<u32> {
        let next = self.detach_first(first, tail);
        self.release(first);
        next
    }

    /// Prefetches a chunk.
    #[inline(always)]
    pub(super) fn prefetch(&self, chunk: u32) {
        if let Some(chunk) = self.chunks.get(chunk as usize) {
            crate::prefetch::first_line(chunk);
        }
    }

    /// The first entry of a chunk and its number of entries; `None` if an entry of it has been
    /// taken.
    #[inline(always)]
    pub(super) fn untouched(&self, chunk: u32) -> Option<(u32, u32)> {
        let chunk = &self.chunks[chunk as usize];
        (chunk.start() == 0).then(|| (chunk.entry(0), chunk.end() as u32))
    }

    /// The bits in which the entries of a chunk differ from the first one.
    #[inline(always)]
    pub(super) fn differences(&self, chunk: u32) -> u32 {
        let chunk = &self.chunks[chunk as usize];
        let (first, end) = (chunk.0[0], chunk.end());
        let entries = chunk.0[..ENTRIES].iter().enumerate();
        entries.fold(0, |found, (at, entry)| match at < end {
            true => found | (entry ^ first),
            false => found,
        })
    }

    /// Detaches the first chunk of the bucket with this tail. Returns the chunk behind it, if any.
    #[inline(always)]
    pub(super) fn detach_first(&mut self, first: u32, tail: u32) -> Option<u32> {
        if first == tail {
            return None;
        }
        let next = self.behind(first);
        self.chunks[tail as usize].0[NEXT] = next;
        Some(next)
    }

    /// Appends a detached chunk to the bucket with this tail, or starts a bucket with it.
    #[inline(always)]
    pub(super) fn attach(&mut self, tail: u32, new: u32, home: Home) {
        let first = match tail {
            NOWHERE => new,
            tail => core::mem::replace(&mut self.chunks[tail as usize].0[NEXT], new),
        };
        let chunk = &mut self.chunks[new as usize];
        chunk.0[NEXT] = first;
        chunk.0[ABOUT] = home.0 << 8 | chunk.0[ABOUT] & 0xff;
    }

    /// Whether a chunk is in use in a bucket.
    #[inline(always)]
    pub(super) fn belongs(&self, chunk: u32, home: Home) -> bool {
        self.chunks[chunk as usize].0[ABOUT] >> 8 == home.0
    }

    /// Calls `ahead` for each entry of a chunk. Returns their number.
    #[inline(always)]
    pub(super) fn announce(&self, chunk: u32, ahead: impl Fn(u32)) -> u32 {
        let chunk = &self.chunks[chunk as usize];
        crate::prefetch::first_line(&self.chunks[chunk.0[NEXT] as usize]);
        for position in chunk.start()..chunk.end() {
            ahead(chunk.entry(position));
        }
        (chunk.end() - chunk.start()) as u32
    }

    /// The entry at `place`, if the position is in use.
    pub(super) fn get(&self, place: Place) -> Option<u32> {
        let chunk = self.chunks.get(place.chunk())?;
        let inside = (chunk.start()..chunk.end()).contains(&place.position());
        inside.then(|| chunk.entry(place.position()))
    }

    pub(super) fn home(&self, place: Place) -> Home {
        Home(self.chunks[place.chunk()].0[ABOUT] >> 8)
    }

    /// Removes the entry at `place`. The first entry of its bucket, which begins with the chunk
    /// `first`, moves there. Returns the moved entry, unless it is the removed one, and whether
    /// `first` has more entries, as [`Pool::take`] does.
    pub(super) fn remove(&mut self, first: u32, place: Place) -> (Option<u32>, bool) {
        let front = Place::new(first, self.chunks[first as usize].start());
        let (entry, left) = self.take(first);
        let moved = (front != place).then(|| {
            self.chunks[place.chunk()].0[place.position()] = entry;
            entry
        });
        (moved, left)
    }

    /// Panics if a bucket differs from the module's description. Returns its number of entries.
    pub(super) fn invariants(&self, tail: u32, home: Home) -> usize {
        let first = self.behind(tail);
        let (mut at, mut entries) = (first, 0);
        loop {
            let chunk = &self.chunks[at as usize];
            assert_eq!(chunk.0[ABOUT] >> 8, home.0, "a chunk of another bucket");
            assert!(chunk.start() < chunk.end(), "an empty chunk in a bucket");
            assert!(at == first || chunk.start() == 0, "a gap in the middle");
            entries += chunk.end() - chunk.start();
            if at == tail {
                return entries;
            }
            at = self.behind(at);
        }
    }

    #[inline(always)]
    fn fill(&mut self, new: u32, first: u32, home: u32, entry: u32) -> (u32, Place) {
        let chunk = &mut self.chunks[new as usize];
        chunk.0[0] = entry;
        chunk.0[NEXT] = first;
        chunk.0[ABOUT] = home << 8 | 1 << 4;
        (new, Place::new(new, 0))
    }

    #[inline(always)]
    fn allocate(&mut self) -> u32 {
        let free = self.free;
        if free != NOWHERE {
            self.free = self.behind(free);
            return free;
        }
        self.chunks.push(Chunk::FULL);
        (self.chunks.len() - 1) as u32
    }

    #[inline(always)]
    fn release(&mut self, chunk: u32) {
        let free = core::mem::replace(&mut self.free, chunk);
        let chunk = &mut self.chunks[chunk as usize];
        chunk.0[ABOUT] = 0;
        chunk.0[NEXT] = free;
    }
}

impl Chunk {
    /// A chunk without entries and without room.
    const FULL: Chunk = {
        let mut words = [0; 16];
        words[ABOUT] = (ENTRIES << 4 | ENTRIES) as u32;
        Chunk(words)
    };
}

/// Number of entries in a chunk: 64 bytes less a link and a word.
const ENTRIES: usize = 14;

/// Index of the link to the next chunk of the bucket. The last chunk links to the first.
const NEXT: usize = 14;

/// Index of the description: the index of the first entry and the index behind the last one (4 bits
/// each), and the home (24 bits).
const ABOUT: usize = 15;
