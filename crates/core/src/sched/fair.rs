//! Start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996): who is served next so that
//! everybody's service grows in the same ratio.
//!
//! Each flow has a start tag; the least one is served. Virtual time is the start tag in service;
//! a flow that joins starts there or where its last packet ended, whichever is later, so silence
//! is no credit; a served packet moves the tag on by its length over the flow's weight. Over any
//! interval in which two flows are backlogged, their service per weight then differs by at most
//! one longest packet of each over its weight (theorem 1 there), and by the rounding of tags here:
//! 1/1024 of the same.
//!
//! Tags wrap around. One that is farther ahead than any packet takes it was left behind half the
//! numbers ago and counts as behind.

use super::TAG_QUANTUM;
use super::calendar::{Calendar, Entry, Pool};

/// Flows by start tag.
#[derive(Debug)]
pub(super) struct Fair {
    calendar: Calendar<TAG_QUANTUM>,
    /// Virtual time.
    time: u64,
    /// The greatest tag at which a served packet ended.
    finish: u64,
}

impl Fair {
    pub(super) fn new(name: u8) -> Fair {
        let mut fair = Fair {
            calendar: Calendar::new(name),
            time: 0,
            finish: 0,
        };
        fair.set_time(0);
        fair
    }

    /// Bytes of its calendar.
    pub(super) fn memory(&self) -> usize {
        self.calendar.memory()
    }

    /// Whether there are no entries.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.calendar.is_empty()
    }

    /// Where a flow starts whose last packet ended at `tag`.
    #[inline(always)]
    pub(super) fn start(&self, tag: u64) -> u64 {
        match (0..=FARTHEST).contains(&signed(tag, self.time)) {
            true => tag,
            false => self.time,
        }
    }

    /// A flow joins with a start tag from [`Fair::start`].
    #[inline(always)]
    pub(super) fn join(&mut self, pool: &mut Pool, id: u32, start: u64) {
        let spot = self.calendar.before(start, self.time);
        self.calendar.push(pool, spot, Entry::new(id, 0));
    }

    /// The flow of the least tag. If its entry is old, it has to join again.
    #[inline(always)]
    pub(super) fn take(&mut self, pool: &mut Pool, ahead: impl Fn(u32)) -> Option<u32> {
        let spot = self.calendar.peek()?;
        let entry = self
            .calendar
            .take_ahead(pool, |entry, _| ahead(entry.id()))?;
        if signed(spot.key, self.time) > 0 {
            self.set_time(spot.key);
        }
        Some(entry.id())
    }

    /// A packet was served, and ends at this tag.
    #[inline(always)]
    pub(super) fn served(&mut self, finish: u64) {
        if signed(finish, self.finish) > 0 {
            self.finish = finish;
        }
    }

    /// The end of a busy period, if it is one: nobody is ahead of anybody.
    #[inline(always)]
    pub(super) fn settle(&mut self) {
        if self.calendar.is_empty() && signed(self.finish, self.time) > 0 {
            self.set_time(self.finish);
        }
    }

    /// Panics if anything is wrong; how many entries there are.
    pub(super) fn invariants(&self, pool: &Pool) -> usize {
        self.calendar.invariants(pool)
    }

    /// Keys are compared from a quarter of the numbers before the virtual time on.
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

/// More than any packet takes: 2^24 bytes of weight 1, or 12 s and more of a slow member.
const FARTHEST: i64 = 1 << 60;
