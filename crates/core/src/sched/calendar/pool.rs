//! The chunks that buckets are made of, of all calendars of one scheduler.
//!
//! A bucket is a ring of chunks, known by its last one: `tail.next` is the first. Entries are
//! appended at the tail and taken from the front; only the first and the last chunk of a bucket
//! are ever partly used. Chunk 0 stands for "none".

use alloc::vec::Vec;

/// Chunks, and which of them are free.
#[derive(Debug)]
pub(in crate::sched) struct Pool {
    chunks: Vec<Chunk>,
    /// The first free chunk, or none.
    free: u32,
    /// How many entries there may be at most: every one might need a chunk of its own.
    reserved: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Chunk {
    entries: [u32; ENTRIES],
    /// The next chunk of the bucket; of the last one, the first.
    next: u32,
    /// Where the first entry stands, and behind the last one (4 bits each); home (24 bits).
    about: u32,
}

/// No chunk.
pub(in crate::sched) const NOWHERE: u32 = 0;

/// Where an entry stands: chunk and position.
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

/// Which bucket a chunk belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home(u32);

impl Home {
    /// Calendar (up to 64), ring (up to 8) and bucket (up to 2^14), in 23 bits; never zero.
    #[inline(always)]
    pub(super) fn new(name: u8, ring: u8, bucket: u16) -> Home {
        Home(u32::from(bucket) | u32::from(ring) << 14 | u32::from(name) << 17 | 1 << 23)
    }

    pub(super) fn name(self) -> u8 {
        (self.0 >> 17 & 63) as u8
    }

    pub(super) fn ring(self) -> u8 {
        (self.0 >> 14 & 7) as u8
    }

    pub(super) fn bucket(self) -> u16 {
        (self.0 & 0x3fff) as u16
    }
}

impl Chunk {
    #[inline(always)]
    fn start(&self) -> usize {
        (self.about & 15) as usize
    }

    #[inline(always)]
    fn end(&self) -> usize {
        (self.about >> 4 & 15) as usize
    }
}

impl Pool {
    pub(in crate::sched) fn new() -> Pool {
        let mut pool = Pool {
            chunks: Vec::new(),
            free: NOWHERE,
            reserved: 0,
        };
        pool.reserve(1);
        pool
    }

    /// Makes room for so many more entries. Only here memory is asked for (and not touched).
    pub(in crate::sched) fn reserve(&mut self, entries: usize) {
        self.reserved += entries;
        let wanted = self.reserved + 1;
        self.chunks
            .reserve(wanted.saturating_sub(self.chunks.len()));
        if self.chunks.is_empty() {
            self.chunks.push(Chunk::EMPTY);
        }
    }

    /// Bytes that chunks in use or once used take.
    pub(in crate::sched) fn memory(&self) -> usize {
        self.chunks.len() * size_of::<Chunk>()
    }

    /// Appends to the bucket of this tail, if the tail has room.
    #[inline(always)]
    pub(super) fn append(&mut self, tail: u32, entry: u32) -> Option<Place> {
        let chunk = &mut self.chunks[tail as usize];
        let end = chunk.end();
        *chunk.entries.get_mut(end)? = entry;
        chunk.about += 1 << 4;
        Some(Place::new(tail, end))
    }

    /// Appends a chunk with an entry to the bucket of this tail.
    #[inline(always)]
    pub(super) fn grow(&mut self, tail: u32, entry: u32) -> (u32, Place) {
        let new = self.allocate();
        let old = &mut self.chunks[tail as usize];
        let (first, home) = (old.next, old.about >> 8);
        old.next = new;
        self.fill(new, first, home, entry)
    }

    /// Begins a bucket with an entry.
    #[inline(always)]
    pub(super) fn start(&mut self, home: Home, entry: u32) -> (u32, Place) {
        let new = self.allocate();
        self.fill(new, new, home.0, entry)
    }

    /// Takes the first entry of a bucket; says whether there are more. `ahead` gets the entry
    /// that stands [`AHEAD`] places behind.
    #[inline(always)]
    pub(super) fn take_first(&mut self, tail: u32, ahead: impl FnOnce(u32)) -> Option<(u32, bool)> {
        let first = self.chunks[tail as usize].next;
        let chunk = &mut self.chunks[first as usize];
        let (start, end) = (chunk.start(), chunk.end());
        let entry = *chunk.entries.get(start)?;
        chunk.about += 1;
        let next = chunk.next;
        if start + 1 < end {
            if start + AHEAD < end {
                ahead(chunk.entries[(start + AHEAD) % ENTRIES]);
            } else if first != tail {
                let next = &self.chunks[next as usize];
                let position = next.start() + start + AHEAD - end;
                ahead(next.entries[position % ENTRIES]);
            }
            return Some((entry, true));
        }
        self.release(first);
        if first == tail {
            return Some((entry, false));
        }
        self.chunks[tail as usize].next = next;
        let behind = &self.chunks[next as usize];
        crate::prefetch::soon(&self.chunks[behind.next as usize]);
        ahead(behind.entries[(behind.start() + AHEAD - 1) % ENTRIES]);
        Some((entry, true))
    }

    /// The entry at a place, if the place is in use.
    pub(super) fn get(&self, place: Place) -> Option<u32> {
        let chunk = self.chunks.get(place.chunk())?;
        let inside = (chunk.start()..chunk.end()).contains(&place.position());
        inside.then(|| chunk.entries[place.position()])
    }

    pub(super) fn home(&self, place: Place) -> Home {
        Home(self.chunks[place.chunk()].about >> 8)
    }

    /// Takes away the entry at a place of this tail's bucket: the bucket's first entry moves
    /// there. Says which one that is, unless it is the one taken away, and whether any is left.
    pub(super) fn remove(&mut self, tail: u32, place: Place) -> (Option<u32>, bool) {
        let first = self.chunks[tail as usize].next;
        let front = Place::new(first, self.chunks[first as usize].start());
        let Some((entry, left)) = self.take_first(tail, |_| ()) else {
            return (None, false);
        };
        let moved = (front != place).then(|| {
            self.chunks[place.chunk()].entries[place.position()] = entry;
            entry
        });
        (moved, left)
    }

    /// Panics if a bucket is not as the module says; how many entries it has.
    pub(super) fn invariants(&self, tail: u32, name: u8, ring: u8, bucket: u16) -> usize {
        let home = Home::new(name, ring, bucket).0;
        let first = self.chunks[tail as usize].next;
        let (mut at, mut entries) = (first, 0);
        loop {
            let chunk = &self.chunks[at as usize];
            assert_eq!(chunk.about >> 8, home, "a chunk of another bucket");
            assert!(chunk.start() < chunk.end(), "an empty chunk in a bucket");
            assert!(at == first || chunk.start() == 0, "a gap in the middle");
            assert!(
                at == tail || chunk.end() == ENTRIES,
                "a short chunk in the middle"
            );
            entries += chunk.end() - chunk.start();
            if at == tail {
                return entries;
            }
            at = chunk.next;
        }
    }

    #[inline(always)]
    fn fill(&mut self, new: u32, first: u32, home: u32, entry: u32) -> (u32, Place) {
        let chunk = &mut self.chunks[new as usize];
        chunk.entries[0] = entry;
        chunk.next = first;
        chunk.about = home << 8 | 1 << 4;
        (new, Place::new(new, 0))
    }

    #[inline(always)]
    fn allocate(&mut self) -> u32 {
        let free = self.free;
        if free != NOWHERE {
            self.free = self.chunks[free as usize].next;
            return free;
        }
        self.chunks.push(Chunk::EMPTY);
        (self.chunks.len() - 1) as u32
    }

    #[inline(always)]
    fn release(&mut self, chunk: u32) {
        self.chunks[chunk as usize].about = 0;
        self.chunks[chunk as usize].next = self.free;
        self.free = chunk;
    }
}

impl Chunk {
    const EMPTY: Chunk = Chunk {
        entries: [0; ENTRIES],
        next: NOWHERE,
        about: 0,
    };
}

/// Entries of a chunk: what 64 bytes hold beside a link and a word.
const ENTRIES: usize = 14;

/// How far behind the first entry the one stands whose flow is prefetched.
const AHEAD: usize = 10;
