//! Shaping inside an overbooked server (paper CELL, section 4.5).
//!
//! A member has a cell contract that its server may not be able to keep. Its parameters are
//! scaled when it is shaped, by one factor for its class: twice the demand, half the rate. So
//! its eligible times follow the rate that it really gets, and prefetching with them. A second
//! clock, the start tag of `sched::fair` with the contracted rate as weight, orders its class, so
//! that equal members stay equal and unequal ones keep their ratio. Credit does not build up
//! beyond CDVT.
//!
//! Times are whole nanoseconds here, packets' lengths in time are rounded up.

use super::deadline;
use super::pace::Pace;
use crate::contract::{self, Bucket};

/// The state of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Start tag in its class.
    pub(super) tag: u64,
    /// TAT of the peak.
    peak_at: u64,
    /// TAT of the bucket.
    bucket_at: u64,
    peak: Pace,
    sustained: Pace,
    /// MBS in bytes and CDVT in ns, rounded down, as words of `deadline`.
    mbs: u16,
    cdvt: u16,
    home: Home,
    dual: bool,
    refill: bool,
}

/// Which server and class a member belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home(u16);

impl Home {
    /// A server (below 2^13) and a class (below 8).
    pub(super) fn new(server: u16, class: u8) -> Home {
        Home(server << 3 | u16::from(class % 8))
    }

    #[inline(always)]
    pub(super) fn server(self) -> usize {
        usize::from(self.0 >> 3)
    }

    #[inline(always)]
    pub(super) fn class(self) -> usize {
        usize::from(self.0 & 7)
    }
}

impl Member {
    /// A member that has never sent.
    pub(super) fn new(contract: &contract::Cell, home: Home) -> Member {
        let peak = Pace::of(contract.pcr());
        let (sustained, mbs, dual) = match contract.sustained() {
            None => (peak, u64::MAX, false),
            Some(s) => (Pace::of(s.scr), s.mbs.0, s.bucket == Bucket::Dual),
        };
        Member {
            tag: 0,
            peak_at: 0,
            bucket_at: 0,
            peak,
            sustained,
            // Both are words of 12 bits.
            mbs: deadline::encode(mbs.saturating_mul(MBS_UNIT)) as u16,
            cdvt: deadline::encode(contract.cdvt().0) as u16,
            home,
            dual,
            refill: false,
        }
    }

    /// The same past under another contract.
    pub(super) fn changed(&self, contract: &contract::Cell) -> Member {
        Member {
            tag: self.tag,
            peak_at: self.peak_at,
            bucket_at: self.bucket_at,
            ..Member::new(contract, self.home)
        }
    }

    #[inline(always)]
    pub(super) fn home(&self) -> Home {
        self.home
    }

    /// The contracted rate, in bit/s, rounded down.
    pub(super) fn rate(&self) -> u64 {
        self.sustained.rate()
    }

    /// The longest packet that can ever be eligible.
    pub(super) fn longest(&self) -> u32 {
        u32::try_from(self.burst()).unwrap_or(u32::MAX)
    }

    /// A packet comes to the empty queue.
    #[inline(always)]
    pub(super) fn wake(&mut self, now: u64) {
        self.peak_at = self.peak_at.max(now);
        self.bucket_at = self.bucket_at.max(now);
    }

    /// When a packet of this length may go.
    #[inline(always)]
    pub(super) fn plan(&mut self, length: u32) -> u64 {
        let room = self.burst().saturating_sub(u64::from(length));
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let tolerance = self.sustained.longer_than(self.peak, room);
        let enough = self.bucket_at.saturating_sub(tolerance);
        let spent = self.refill | (enough > self.peak_at.saturating_add(ROUNDING));
        self.refill = self.dual & spent;
        self.peak_at.max(match self.refill {
            true => self.bucket_at,
            false => enough,
        })
    }

    /// A packet of this length left at `at`; the class is overbooked by `factor / 2^16`.
    #[inline(always)]
    pub(super) fn sent(&mut self, at: u64, length: u32, factor: u64) {
        let patience = self.patience();
        let advance = |tat: u64, pace: Pace| {
            let from = if at <= tat.saturating_add(patience) {
                tat
            } else {
                at
            };
            from.saturating_add(pace.span(length).scaled(factor).ceil())
        };
        self.peak_at = advance(self.peak_at, self.peak);
        self.bucket_at = advance(self.bucket_at, self.sustained);
        self.refill = false;
        self.tag = self
            .tag
            .wrapping_add(self.sustained.span(length).ticks() >> TAG_STEP);
    }

    /// See `sched::cell`.
    pub(super) fn delayed(&mut self, at: u64, bytes: u32) -> bool {
        let least = at.saturating_sub(self.patience());
        let after = |pace: Pace| least.saturating_add(pace.span(bytes).ceil());
        let (peak, bucket) = (after(self.peak), after(self.sustained));
        let moved = peak > self.peak_at || bucket > self.bucket_at;
        self.peak_at = self.peak_at.max(peak);
        self.bucket_at = self.bucket_at.max(bucket);
        moved
    }

    /// CDVT.
    #[inline(always)]
    pub(super) fn patience(&self) -> u64 {
        deadline::decode(u32::from(self.cdvt))
    }

    fn burst(&self) -> u64 {
        deadline::decode(u32::from(self.mbs)) / MBS_UNIT
    }
}

/// Start tags are in 2^-12 ns of the contracted rate: fine enough for 10 Gbit/s, and a packet of
/// 12 s is still inside the calendar.
const TAG_STEP: u32 = 4;

/// Words of `deadline` step by 64: so MBS steps by single bytes.
const MBS_UNIT: u64 = 64;

/// See `sched::cell`; here each packet may round a nanosecond away.
const ROUNDING: u64 = 1000;
