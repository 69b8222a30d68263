//! Start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996): flows get service in the ratio of
//! their weights. Flow numbers with start tags go into a [`FairQueue`], and the flow with the least
//! tag comes out. No function of this module fails.
//!
//! Each flow has a *start tag*, a number, and the flow with the least tag is served. The *virtual
//! time* is the tag of the flow that was served last; when no flow is left, it advances to the
//! greatest tag that a served packet has reached. A flow that joins starts at the virtual time, or
//! at its own tag if that is greater, so silence gives no credit. A served packet advances the tag
//! of its flow by its length over the flow's weight. Over any interval in which two flows are
//! backlogged, their service per weight then differs by at most one longest packet of each over its
//! weight (theorem 1 of the paper), plus the rounding of tags here: 1/1024 of that.
//!
//! Tags wrap around. One packet advances a tag by less than [`FARTHEST`]. So a tag that is farther
//! ahead of virtual time than [`FARTHEST`] is an old tag, and counts as behind.

use super::TAG_QUANTUM;
use super::calendar::{Calendar, Pool, QueueEntry};

/// Flows by start tag.
#[derive(Debug)]
pub(super) struct FairQueue {
    calendar: Calendar<TAG_QUANTUM>,
    /// Virtual time.
    time: u64,
    /// The greatest tag at which a served packet ended.
    finish: u64,
}

impl FairQueue {
    /// An empty queue. `name` is the number of its calendar in the pool, below 64.
    pub(super) fn new(name: u8) -> FairQueue {
        let mut fair = FairQueue {
            calendar: Calendar::new(name),
            time: 0,
            finish: 0,
        };
        fair.set_time(0);
        fair
    }

    /// Bytes of the calendar.
    pub(super) fn memory(&self) -> usize {
        self.calendar.memory()
    }

    /// Whether there are no entries.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.calendar.is_empty()
    }

    /// The start tag of a flow whose last packet ended at `tag`.
    #[inline(always)]
    pub(super) fn start(&self, tag: u64) -> u64 {
        match (0..=FARTHEST).contains(&signed(tag, self.time)) {
            true => tag,
            false => self.time,
        }
    }

    /// Inserts a flow with a start tag from [`FairQueue::start`].
    #[inline(always)]
    pub(super) fn join(&mut self, pool: &mut Pool, id: u32, start: u64) {
        let bucket = self.calendar.bucket_before(start, self.time);
        self.calendar.push(pool, bucket, QueueEntry::new(id, 0));
    }

    /// Takes the flow with the least tag; `None` if there are no entries. The entry may be stale;
    /// then the flow has to join again.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        pool: &mut Pool,
        mut prefetch_flow: impl FnMut(u32),
    ) -> Option<u32> {
        let bucket = self.calendar.peek()?;
        let entry = self
            .calendar
            .take_with_lookahead(pool, |entry, _| prefetch_flow(entry.id()))?;
        if signed(bucket.key, self.time) > 0 {
            self.set_time(bucket.key);
        }
        Some(entry.id())
    }

    /// A packet was served and ends at this tag.
    #[inline(always)]
    pub(super) fn served(&mut self, finish: u64) {
        if signed(finish, self.finish) > 0 {
            self.finish = finish;
        }
    }

    /// Ends a busy period, if no entries are left: virtual time advances to the last end of a
    /// packet.
    #[inline(always)]
    pub(super) fn settle(&mut self) {
        if self.calendar.is_empty() && signed(self.finish, self.time) > 0 {
            self.set_time(self.finish);
        }
    }

    /// Panics if the state is inconsistent. Returns the number of entries.
    pub(super) fn invariants(&self, pool: &Pool) -> usize {
        self.calendar.invariants(pool)
    }

    /// Keys are compared by their distance from a quarter of the range before the virtual time.
    fn set_time(&mut self, time: u64) {
        self.time = time;
        self.calendar.base = time.wrapping_sub(1 << 62);
    }
}

/// `a - b` of numbers that wrap around.
#[inline(always)]
fn signed(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}

/// More than any packet advances a tag. A packet of less than 2^24 bytes advances it by less than
/// 2^50 at weight 1, and by less than 2^59 in the start tags of members.
const FARTHEST: i64 = 1 << 60;
