//! What a connection has received: the stream in order, and parts that came early.
//!
//! Positions count from the peer's SYN, which has position 0. The queue holds buffers, not bytes:
//! each received payload is one part of one buffer. In-order parts wait until the program consumes
//! them. Parts behind a gap wait in order of their positions, without overlap, until the gap is
//! filled.
//!
//! The *edge* is the position behind what the peer may send. It only moves forward: what was
//! promised stays promised (RFC 9293, section 3.8.6.2.2). The caller says for how many bytes it has
//! empty buffers; the edge never promises more.

use std::collections::VecDeque;

use crate::buffer::{Handle, Slice};

/// A part behind a gap.
#[derive(Clone, Copy, Debug)]
struct Early {
    start: u64,
    payload: Slice,
}

impl Early {
    fn end(&self) -> u64 {
        self.start + u64::from(self.payload.length)
    }
}

/// The receive queue. See the module.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    /// The next position in order.
    next: u64,
    edge: u64,
    ordered: VecDeque<Slice>,
    /// Bytes in `ordered`.
    readable: u64,
    early: VecDeque<Early>,
    /// Bytes in `early`.
    early_bytes: u64,
    /// Position of the peer's FIN.
    fin: Option<u64>,
    /// Ranges that were received behind a gap, the latest first, for SACK blocks: at most
    /// [`MOST_RECENT`].
    recent: Vec<(u64, u64)>,
    /// A range that was received twice, for the next acknowledgement.
    duplicate: Option<(u64, u64)>,
}

/// What became of a received payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It continues the stream; `filled`: it closed a gap, so early parts followed it.
    InOrder { filled: bool },
    /// It waits behind a gap.
    Early,
    /// Nothing of it was new, or there was no room. The buffer is the caller's.
    Nothing,
}

impl ReceiveQueue {
    /// An empty queue, which expects the position behind the SYN.
    pub(crate) fn new(window: u32) -> ReceiveQueue {
        ReceiveQueue {
            next: 1,
            edge: 1 + u64::from(window),
            ordered: VecDeque::new(),
            readable: 0,
            early: VecDeque::new(),
            early_bytes: 0,
            fin: None,
            recent: Vec::new(),
            duplicate: None,
        }
    }

    /// The next position in order.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The position behind what the peer may send.
    pub(crate) fn edge(&self) -> u64 {
        self.edge
    }

    /// Bytes that can be read.
    pub(crate) fn readable(&self) -> u64 {
        self.readable
    }

    /// Bytes that wait behind gaps.
    pub(crate) fn early_bytes(&self) -> u64 {
        self.early_bytes
    }

    /// True if parts wait behind a gap.
    pub(crate) fn has_gap(&self) -> bool {
        !self.early.is_empty()
    }

    /// True if the peer's FIN has been received in order.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.next > fin)
    }

    /// Stores a payload that begins at `start`. `longest_early` is the number of early parts that
    /// may wait. The parts of the payload that are not new are cut off. Passes each buffer that is
    /// free now, except the payload's own, to `release`.
    pub(crate) fn store(
        &mut self,
        start: u64,
        payload: Slice,
        longest_early: usize,
        mut release: impl FnMut(Handle),
    ) -> Stored {
        let whole = (start, start + u64::from(payload.length));
        let mut part = Early { start, payload };
        if whole.0 < self.next {
            self.duplicate = Some((whole.0, whole.1.min(self.next)));
        }
        cut_front(&mut part, self.next);
        cut_back(&mut part, self.edge);
        if let Some(fin) = self.fin {
            cut_back(&mut part, fin);
        }
        if part.payload.length == 0 {
            return Stored::Nothing;
        }
        // Parts that lie inside the new one are replaced by it; the ends are cut off.
        let first = self
            .early
            .partition_point(|early| early.end() <= part.start);
        if let Some(early) = self
            .early
            .get(first)
            .filter(|early| early.start <= part.start)
        {
            let end = early.end();
            if part.start < end {
                self.duplicate = Some((part.start, end.min(part.end())));
            }
            cut_front(&mut part, end);
        }
        if part.payload.length == 0 {
            return Stored::Nothing;
        }
        let mut at = self.early.partition_point(|early| early.start < part.start);
        while let Some(early) = self.early.get(at).copied() {
            if early.end() <= part.end() {
                self.duplicate = Some((early.start, early.end()));
                self.early.remove(at);
                self.early_bytes -= u64::from(early.payload.length);
                release(early.payload.handle);
            } else {
                if early.start < part.end() {
                    self.duplicate = Some((early.start, part.end()));
                }
                cut_back(&mut part, early.start);
                break;
            }
        }
        if part.start == self.next {
            return self.store_in_order(part);
        }
        if self.early.len() >= longest_early {
            return Stored::Nothing;
        }
        // A part that was replaced and did not fit again is no duplicate; the count of early parts
        // is smaller then, so that does not happen.
        at = at.min(self.early.len());
        self.early.insert(at, part);
        self.early_bytes += u64::from(part.payload.length);
        self.note_recent(at);
        Stored::Early
    }

    fn store_in_order(&mut self, part: Early) -> Stored {
        self.take(part);
        let mut filled = false;
        while let Some(early) = self.early.front().copied() {
            if early.start != self.next {
                break;
            }
            self.early.pop_front();
            self.early_bytes -= u64::from(early.payload.length);
            self.take(early);
            filled = true;
        }
        self.forget_recent();
        Stored::InOrder { filled }
    }

    fn take(&mut self, part: Early) {
        self.ordered.push_back(part.payload);
        self.readable += u64::from(part.payload.length);
        self.next = part.end();
    }

    /// Notes the range around the early part `at` as the latest (RFC 2018, section 4).
    fn note_recent(&mut self, at: usize) {
        let (mut left, mut right) = (self.early[at].start, self.early[at].end());
        let mut before = at;
        while before > 0 && self.early[before - 1].end() == left {
            before -= 1;
            left = self.early[before].start;
        }
        let mut after = at + 1;
        while after < self.early.len() && self.early[after].start == right {
            right = self.early[after].end();
            after += 1;
        }
        self.recent
            .retain(|range| range.1 < left || range.0 > right);
        self.recent.insert(0, (left, right));
        self.recent.truncate(MOST_RECENT);
    }

    /// Drops ranges that are in order now.
    fn forget_recent(&mut self) {
        let next = self.next;
        self.recent.retain(|range| range.0 > next);
    }

    /// The SACK blocks for the next acknowledgement: first what was received twice (RFC 2883), then
    /// the ranges behind gaps, the latest first.
    pub(crate) fn blocks(&mut self) -> impl Iterator<Item = (u64, u64)> {
        let duplicate = self.duplicate.take();
        duplicate.into_iter().chain(self.recent.iter().copied())
    }

    /// True if a duplicate waits to be reported.
    pub(crate) fn has_duplicate(&self) -> bool {
        self.duplicate.is_some()
    }

    /// Notes a segment that lies wholly before the next position.
    pub(crate) fn note_old(&mut self, left: u64, right: u64) {
        if left < right {
            self.duplicate = Some((left, right.min(self.next)));
        }
    }

    /// The peer's FIN has position `at`. Returns false if another FIN has another position, or data
    /// behind it was received.
    pub(crate) fn finish(&mut self, at: u64) -> bool {
        if self.next > at && self.fin != Some(at) {
            return false;
        }
        if self.early.back().is_some_and(|last| last.end() > at) {
            return false;
        }
        *self.fin.get_or_insert(at) == at
    }

    /// Consumes the position of the FIN if everything before it was received. Returns true if that
    /// happened now.
    pub(crate) fn take_fin(&mut self) -> bool {
        let now = self.fin == Some(self.next);
        if now {
            self.next += 1;
            // A FIN is accepted at a closed window too.
            self.edge = self.edge.max(self.next);
        }
        now
    }

    /// The first part that can be read.
    pub(crate) fn front(&self) -> Option<Slice> {
        self.ordered.front().copied()
    }

    /// The parts that can be read, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Slice> {
        self.ordered.iter().copied()
    }

    /// The parts behind gaps.
    pub(crate) fn early_parts(&self) -> impl Iterator<Item = Slice> {
        self.early.iter().map(|early| early.payload)
    }

    /// Replaces the buffer of each part by the one that `rename` returns for it.
    pub(crate) fn rename_buffers(&mut self, mut rename: impl FnMut(Handle) -> Handle) {
        let early = self.early.iter_mut().map(|early| &mut early.payload);
        for part in self.ordered.iter_mut().chain(early) {
            part.handle = rename(part.handle);
        }
    }

    /// Consumes `length` bytes of the first part. Returns its buffer if nothing is left of it.
    ///
    /// # Panics
    /// If the first part is shorter.
    pub(crate) fn consume(&mut self, length: u32) -> Option<Handle> {
        let front = self.ordered.front_mut()?;
        assert!(length <= front.length, "more consumed than the part has");
        front.offset += length;
        front.length -= length;
        self.readable -= u64::from(length);
        let handle = front.handle;
        (front.length == 0).then(|| {
            self.ordered.pop_front();
            handle
        })
    }

    /// The last two parts in order, if the last one fits behind the one before in a buffer of
    /// `capacity` bytes of payload. The caller copies the second behind the first, and the second
    /// buffer is free.
    pub(crate) fn merge_last(&mut self, capacity: u32) -> Option<(Slice, Slice)> {
        let last = self.ordered.len().checked_sub(2)?;
        let (to, from) = (self.ordered[last], self.ordered[last + 1]);
        if to.handle == from.handle || to.end() + from.length > capacity {
            return None;
        }
        self.ordered.pop_back();
        self.ordered[last].length += from.length;
        Some((to, from))
    }

    /// Moves the bytes in order together, if that makes at least one buffer free: all buffers but
    /// the first and the last are full then, to their `capacity` of bytes. The caller of this
    /// function copies the second part that `copy` gets behind the end of the first; they may
    /// overlap. Passes each buffer that is free now to `release`.
    ///
    /// What lies in a full buffer is not moved again, so a byte is copied twice at most.
    pub(crate) fn compact(
        &mut self,
        capacity: u32,
        mut copy: impl FnMut(Slice, Slice),
        mut release: impl FnMut(Handle),
    ) {
        let Some(first) = self.ordered.front() else {
            return;
        };
        let needed = (u64::from(first.offset) + self.readable).div_ceil(u64::from(capacity));
        if needed >= self.ordered.len() as u64 {
            return;
        }
        let mut last = 0;
        for at in 1..self.ordered.len() {
            let (to, mut from) = (self.ordered[last], self.ordered[at]);
            if to.end() < capacity {
                let length = from.length.min(capacity - to.end());
                copy(to, Slice { length, ..from });
                self.ordered[last].length += length;
                from.offset += length;
                from.length -= length;
            }
            if from.length == 0 {
                release(from.handle);
                continue;
            }
            let place = Slice { offset: 0, ..from };
            if from.offset > 0 {
                copy(Slice { length: 0, ..place }, from);
            }
            last += 1;
            self.ordered[last] = place;
        }
        self.ordered.truncate(last + 1);
    }

    /// The edge that `free` bytes of empty buffers permit.
    pub(crate) fn possible_edge(&self, free: u64) -> u64 {
        (self.next + self.early_bytes + free).max(self.edge)
    }

    /// Moves the edge forward.
    pub(crate) fn promise(&mut self, edge: u64) {
        self.edge = self.edge.max(edge);
    }

    /// Releases all buffers.
    pub(crate) fn clear(&mut self, mut release: impl FnMut(Handle)) {
        for part in self.ordered.drain(..) {
            release(part.handle);
        }
        self.readable = 0;
        self.clear_early(release);
    }

    /// Releases the buffers of the parts behind gaps.
    pub(crate) fn clear_early(&mut self, mut release: impl FnMut(Handle)) {
        for early in self.early.drain(..) {
            release(early.payload.handle);
        }
        self.early_bytes = 0;
        self.recent.clear();
    }

    /// Checks the queue.
    ///
    /// # Panics
    /// If early parts overlap, or a counter is wrong.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn invariants(&self) {
        let mut at = self.next;
        for early in &self.early {
            assert!(
                early.start > self.next || self.early.is_empty(),
                "an early part in order"
            );
            assert!(early.start >= at, "early parts overlap");
            assert!(early.payload.length > 0);
            at = early.end();
        }
        assert!(at <= self.edge.max(self.next), "data behind the edge");
        let sum: u64 = self
            .early
            .iter()
            .map(|early| u64::from(early.payload.length))
            .sum();
        assert_eq!(sum, self.early_bytes);
        let sum: u64 = self.ordered.iter().map(|part| u64::from(part.length)).sum();
        assert_eq!(sum, self.readable);
    }
}

fn cut_front(part: &mut Early, position: u64) {
    let cut = position
        .saturating_sub(part.start)
        .min(u64::from(part.payload.length));
    part.start += cut;
    // Not more than the length, which has 32 bits.
    part.payload.offset += cut as u32;
    part.payload.length -= cut as u32;
}

fn cut_back(part: &mut Early, position: u64) {
    let cut = part
        .end()
        .saturating_sub(position)
        .min(u64::from(part.payload.length));
    part.payload.length -= cut as u32;
}

/// As many SACK blocks as options have room for (RFC 2018, section 3).
const MOST_RECENT: usize = 4;
