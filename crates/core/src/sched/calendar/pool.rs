//! The memory of calendars: the nodes of all buckets of all calendars of one scheduler or pacer.
//!
//! A bucket is a circular list of nodes. Its last node (the *tail*) identifies the bucket: the link
//! of the tail leads to the first node. Entries are appended at the tail and taken from the first
//! node. Nodes are also moved from bucket to bucket as a whole, so a node at any position may be
//! partly filled. Node 0 means "none": it is marked as full, so that nothing is appended to it. No
//! function fails.

use alloc::vec::Vec;

use super::QueueEntry;

/// All nodes, and a list of the free ones.
#[derive(Debug)]
pub(in crate::sched) struct Pool {
    nodes: Vec<Node>,
    /// The first free node, or none.
    free: u32,
    /// The largest number of entries. Each of them could need a node of its own.
    reserved: usize,
}

/// [`NODE_ENTRIES`] entries, the link at [`NEXT`] and the header at [`HEADER`]. It is one array, so
/// that any four bits are a valid index.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Node([u32; 16]);

/// The value that means no node.
pub(in crate::sched) const NONE: u32 = 0;

/// The position of an entry: its node, and its index in the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sched) struct EntryPosition(u32);

impl EntryPosition {
    #[inline(always)]
    fn new(node: u32, index: usize) -> EntryPosition {
        EntryPosition(node << 4 | index as u32)
    }

    fn node(self) -> usize {
        (self.0 >> 4) as usize
    }

    fn index(self) -> usize {
        (self.0 & 15) as usize
    }
}

/// A copy of the entries of one node, in order.
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
    pub(in crate::sched) fn first(&self) -> QueueEntry {
        QueueEntry(self.words[self.at as usize % 16])
    }
}

impl Iterator for Run {
    type Item = QueueEntry;

    #[inline(always)]
    fn next(&mut self) -> Option<QueueEntry> {
        let entry = (self.at < self.end).then(|| self.first());
        self.at += 1;
        entry
    }
}

/// The bucket that a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketId(u32);

impl BucketId {
    /// Calendar (up to 64) and slot (up to 2^17), in 24 bits; never zero.
    #[inline(always)]
    pub(super) fn new(name: u8, slot: u32) -> BucketId {
        BucketId(slot | u32::from(name) << 17 | 1 << 23)
    }

    /// The number of the calendar.
    pub(super) fn name(self) -> u8 {
        (self.0 >> 17 & 63) as u8
    }

    /// The number of the bucket in the calendar.
    pub(super) fn slot(self) -> u32 {
        self.0 & 0x1_ffff
    }
}

impl Node {
    #[inline(always)]
    fn start(&self) -> usize {
        (self.0[HEADER] & 15) as usize
    }

    #[inline(always)]
    fn end(&self) -> usize {
        (self.0[HEADER] >> 4 & 15) as usize
    }

    #[inline(always)]
    fn entry(&self, index: usize) -> u32 {
        self.0[index % 16]
    }
}

impl Pool {
    /// A pool that allocates no more memory until more than `entries` entries are reserved.
    pub(in crate::sched) fn with_capacity(entries: usize) -> Pool {
        let mut pool = Pool {
            // One node for "none", and one as in `reserve`.
            nodes: Vec::with_capacity(entries + 2),
            free: NONE,
            reserved: 0,
        };
        pool.reserve(1);
        pool
    }

    /// Reserves memory for `entries` more entries. Only this function and [`Pool::with_capacity`]
    /// allocate. The reserved memory is not written.
    pub(in crate::sched) fn reserve(&mut self, entries: usize) {
        self.reserved += entries;
        let wanted = self.reserved + 1;
        self.nodes.reserve(wanted.saturating_sub(self.nodes.len()));
        if self.nodes.is_empty() {
            self.nodes.push(Node::FULL);
        }
    }

    /// Bytes of the nodes that are or were in use. Reserved memory that was never touched does not
    /// count.
    pub(in crate::sched) fn memory(&self) -> usize {
        self.nodes.len() * size_of::<Node>()
    }

    /// The address and the capacity of the nodes.
    #[cfg(test)]
    pub(in crate::sched) fn address_and_capacity(&self) -> (usize, usize) {
        (self.nodes.as_ptr().addr(), self.nodes.capacity())
    }

    /// Appends an entry to the bucket with this tail, if the tail has room. "None" as tail has no
    /// room.
    #[inline(always)]
    pub(super) fn append(&mut self, tail: u32, entry: u32) -> Option<EntryPosition> {
        let node = &mut self.nodes[tail as usize];
        let header = node.0[HEADER];
        let end = node.end();
        if end >= NODE_ENTRIES {
            return None;
        }
        node.0[end % 16] = entry;
        node.0[HEADER] = header + (1 << 4);
        Some(EntryPosition::new(tail, end))
    }

    /// Appends a node with an entry to the bucket with this tail. Returns the node, which is the
    /// new tail, and the entry's position.
    #[inline(always)]
    pub(super) fn append_node(&mut self, tail: u32, entry: u32) -> (u32, EntryPosition) {
        let new = self.allocate();
        let old = &mut self.nodes[tail as usize];
        let (first, bucket_id) = (old.0[NEXT], old.0[HEADER] >> 8);
        old.0[NEXT] = new;
        self.fill(new, first, bucket_id, entry)
    }

    /// Starts a bucket with an entry. Returns its node and the entry's position.
    #[inline(always)]
    pub(super) fn start_bucket(&mut self, bucket_id: BucketId, entry: u32) -> (u32, EntryPosition) {
        let new = self.allocate();
        self.fill(new, new, bucket_id.0, entry)
    }

    /// The node after a node. After a tail it is the bucket's first.
    #[inline(always)]
    pub(super) fn next_node(&self, node: u32) -> u32 {
        self.nodes[node as usize].0[NEXT]
    }

    /// Takes the first entry of a bucket's first node. Returns the entry, and whether the node
    /// has more. If it has not, the caller must call [`Pool::drop_first`].
    #[inline(always)]
    pub(super) fn take(&mut self, first: u32) -> (u32, bool) {
        let node = &mut self.nodes[first as usize];
        let header = node.0[HEADER];
        let start = node.start();
        node.0[HEADER] = header + 1;
        (node.entry(start), start + 1 < (header >> 4 & 15) as usize)
    }

    /// A copy of the entries of a node. The node does not change.
    #[inline(always)]
    pub(super) fn run(&self, node: u32) -> Run {
        let node = &self.nodes[node as usize];
        Run {
            words: node.0,
            at: node.start() as u32,
            end: node.end() as u32,
        }
    }

    /// Releases the first node of the bucket with this tail. Returns the node after it; `None` if
    /// it was the only one.
    #[inline(always)]
    pub(super) fn drop_first(&mut self, first: u32, tail: u32) -> Option<u32> {
        let next = self.detach_first(first, tail);
        self.release(first);
        next
    }

    /// Prefetches a node.
    #[inline(always)]
    pub(super) fn prefetch(&self, node: u32) {
        if let Some(node) = self.nodes.get(node as usize) {
            crate::prefetch::first_line(node);
        }
    }

    /// The first entry of a node and its number of entries; `None` if an entry of it has been
    /// taken.
    #[inline(always)]
    pub(super) fn unread(&self, node: u32) -> Option<(u32, u32)> {
        let node = &self.nodes[node as usize];
        (node.start() == 0).then(|| (node.entry(0), node.end() as u32))
    }

    /// The bits in which the entries of a node differ from the first one.
    #[inline(always)]
    pub(super) fn differences(&self, node: u32) -> u32 {
        let node = &self.nodes[node as usize];
        let (first, end) = (node.0[0], node.end());
        let entries = node.0[..NODE_ENTRIES].iter().enumerate();
        entries.fold(0, |found, (at, entry)| match at < end {
            true => found | (entry ^ first),
            false => found,
        })
    }

    /// Detaches the first node of the bucket with this tail. Returns the node after it; `None` if
    /// it was the only one.
    #[inline(always)]
    pub(super) fn detach_first(&mut self, first: u32, tail: u32) -> Option<u32> {
        if first == tail {
            return None;
        }
        let next = self.next_node(first);
        self.nodes[tail as usize].0[NEXT] = next;
        Some(next)
    }

    /// Appends a detached node to the bucket with this tail, or starts a bucket with it.
    #[inline(always)]
    pub(super) fn attach(&mut self, tail: u32, new: u32, bucket_id: BucketId) {
        let first = match tail {
            NONE => new,
            tail => core::mem::replace(&mut self.nodes[tail as usize].0[NEXT], new),
        };
        let node = &mut self.nodes[new as usize];
        node.0[NEXT] = first;
        node.0[HEADER] = bucket_id.0 << 8 | node.0[HEADER] & 0xff;
    }

    /// Whether a node is in use in a bucket.
    #[inline(always)]
    pub(super) fn is_in(&self, node: u32, bucket_id: BucketId) -> bool {
        self.nodes[node as usize].0[HEADER] >> 8 == bucket_id.0
    }

    /// Calls `each` for each entry of a node. Returns their number.
    #[inline(always)]
    pub(super) fn for_each(&self, node: u32, mut each: impl FnMut(u32)) -> u32 {
        let node = &self.nodes[node as usize];
        crate::prefetch::first_line(&self.nodes[node.0[NEXT] as usize]);
        for index in node.start()..node.end() {
            each(node.entry(index));
        }
        (node.end() - node.start()) as u32
    }

    /// The entry at `position`; `None` if the position is not in use.
    pub(super) fn get(&self, position: EntryPosition) -> Option<u32> {
        let node = self.nodes.get(position.node())?;
        let inside = (node.start()..node.end()).contains(&position.index());
        inside.then(|| node.entry(position.index()))
    }

    /// The bucket that has the entry at `position`.
    pub(super) fn bucket_id(&self, position: EntryPosition) -> BucketId {
        BucketId(self.nodes[position.node()].0[HEADER] >> 8)
    }

    /// Removes the entry at `position`. The first entry of its bucket, which begins with the node
    /// `first`, moves there. Returns the moved entry, unless it is the removed one, and whether
    /// `first` has more entries, as [`Pool::take`] does.
    pub(super) fn remove(&mut self, first: u32, position: EntryPosition) -> (Option<u32>, bool) {
        let front = EntryPosition::new(first, self.nodes[first as usize].start());
        let (entry, left) = self.take(first);
        let moved = (front != position).then(|| {
            self.nodes[position.node()].0[position.index()] = entry;
            entry
        });
        (moved, left)
    }

    /// Panics if a bucket differs from the module's description. Returns its number of entries.
    pub(super) fn invariants(&self, tail: u32, bucket_id: BucketId) -> usize {
        let first = self.next_node(tail);
        let (mut at, mut entries) = (first, 0);
        loop {
            let node = &self.nodes[at as usize];
            assert_eq!(node.0[HEADER] >> 8, bucket_id.0, "a node of another bucket");
            assert!(node.start() < node.end(), "an empty node in a bucket");
            assert!(at == first || node.start() == 0, "a gap in the middle");
            entries += node.end() - node.start();
            if at == tail {
                return entries;
            }
            at = self.next_node(at);
        }
    }

    #[inline(always)]
    fn fill(&mut self, new: u32, first: u32, bucket_id: u32, entry: u32) -> (u32, EntryPosition) {
        let node = &mut self.nodes[new as usize];
        node.0[0] = entry;
        node.0[NEXT] = first;
        node.0[HEADER] = bucket_id << 8 | 1 << 4;
        (new, EntryPosition::new(new, 0))
    }

    #[inline(always)]
    fn allocate(&mut self) -> u32 {
        let free = self.free;
        if free != NONE {
            self.free = self.next_node(free);
            return free;
        }
        self.nodes.push(Node::FULL);
        (self.nodes.len() - 1) as u32
    }

    #[inline(always)]
    fn release(&mut self, node: u32) {
        let free = core::mem::replace(&mut self.free, node);
        let node = &mut self.nodes[node as usize];
        node.0[HEADER] = 0;
        node.0[NEXT] = free;
    }
}

impl Node {
    /// A node without entries and without room.
    const FULL: Node = {
        let mut words = [0; 16];
        words[HEADER] = (NODE_ENTRIES << 4 | NODE_ENTRIES) as u32;
        Node(words)
    };
}

/// Number of entries in a node: 64 bytes less a link and a header.
const NODE_ENTRIES: usize = 14;

/// Index of the link to the next node of the bucket. The last node links to the first.
const NEXT: usize = 14;

/// Index of the header: the index of the first entry and the index behind the last one (4 bits
/// each), and the bucket (24 bits).
const HEADER: usize = 15;
