//! Shaping of a member of an overbooked server (paper CELL, section 4.5; `sched::server` describes
//! servers, their classes, and what uses them today).
//!
//! A member has a cell contract that its server may not be able to keep. The shaper divides the
//! contract's rates by the *factor* of the member's class. The factor is 2, for example, while the
//! class can have half of the rate that its members with packets have contracts for. So the
//! eligible times of a member follow the rate that it gets. A second clock, the start tag of
//! `sched::fair` with the contracted rate as weight, orders the members of a class: equal members
//! get equal service, and unequal ones keep their ratio. Credit does not build up beyond CDVT.
//!
//! No function fails. Times in this module are whole nanoseconds. The duration of a packet is
//! rounded up.

use super::deadline;
use super::pace::Pace;
use crate::contract::{self, Bucket};

/// The state of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberState {
    /// Start tag in its class.
    pub(super) tag: u64,
    /// TAT of the peak.
    peak_at: u64,
    /// TAT of the bucket.
    bucket_at: u64,
    peak: Pace,
    sustained: Pace,
    /// MBS in bytes, at most 2^32 - 1.
    mbs: u32,
    /// CDVT in ns, rounded down, as a code of `deadline` (12 bits), with [`DUAL`] and [`REFILL`]
    /// above it.
    cdvt_and_flags: u16,
    class_id: ClassId,
}

/// The server and the class of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClassId(u16);

impl ClassId {
    /// A server (below 2^13) and a class (below 8).
    pub(super) fn new(server: u16, class: u8) -> ClassId {
        ClassId(server << 3 | u16::from(class % 8))
    }

    /// The number of the server.
    #[inline(always)]
    pub(super) fn server(self) -> usize {
        usize::from(self.0 >> 3)
    }

    /// The number of the class in the server.
    #[inline(always)]
    pub(super) fn class(self) -> usize {
        usize::from(self.0 & 7)
    }
}

impl MemberState {
    /// The state of a member that has not sent.
    pub(super) fn new(contract: &contract::Cell, class_id: ClassId) -> MemberState {
        let peak = Pace::of(contract.pcr());
        let (sustained, mbs, dual) = match contract.sustained() {
            None => (peak, u64::MAX, 0),
            Some(s) if s.bucket == Bucket::Dual => (Pace::of(s.scr), s.mbs.0, DUAL),
            Some(s) => (Pace::of(s.scr), s.mbs.0, 0),
        };
        MemberState {
            tag: 0,
            peak_at: 0,
            bucket_at: 0,
            peak,
            sustained,
            mbs: u32::try_from(mbs).unwrap_or(u32::MAX),
            // Below 2^12.
            cdvt_and_flags: deadline::encode(contract.cdvt().0) as u16 | dual,
            class_id,
        }
    }

    /// The state under another contract. The change gives no credit.
    pub(super) fn changed(&self, contract: &contract::Cell) -> MemberState {
        MemberState {
            tag: self.tag,
            peak_at: self.peak_at,
            bucket_at: self.bucket_at,
            ..MemberState::new(contract, self.class_id)
        }
    }

    /// The server and the class of the member.
    #[inline(always)]
    pub(super) fn class_id(&self) -> ClassId {
        self.class_id
    }

    /// The contracted rate, in bit/s, rounded down.
    pub(super) fn rate(&self) -> u64 {
        self.sustained.rate()
    }

    /// The longest packet that can become eligible.
    pub(super) fn longest(&self) -> u32 {
        self.mbs
    }

    /// A packet arrives at the empty queue.
    #[inline(always)]
    pub(super) fn wake(&mut self, now: u64) {
        self.peak_at = self.peak_at.max(now);
        self.bucket_at = self.bucket_at.max(now);
    }

    /// The eligible time of a packet of this length.
    #[inline(always)]
    pub(super) fn plan(&mut self, length: u32) -> u64 {
        let room = self.mbs.saturating_sub(length);
        let tolerance = self.sustained.longer_than(self.peak, room);
        let enough = self.bucket_at.saturating_sub(tolerance);
        let spent = self.is(REFILL) || enough > self.peak_at.saturating_add(ROUNDING);
        if !(spent && self.is(DUAL)) {
            return self.peak_at.max(enough);
        }
        self.cdvt_and_flags |= REFILL;
        self.peak_at.max(self.bucket_at)
    }

    /// The packet that was planned last, of this length, left at `at`. The class is overbooked by
    /// `factor / 2^16`.
    #[inline(always)]
    pub(super) fn sent(&mut self, at: u64, length: u32, factor: u64) {
        // The same result as when it was planned, unless `handle_late_departure` has moved the
        // clocks since then.
        let eligible = self.plan(length);
        let late = at > eligible.saturating_add(self.cdvt());
        let since = if late { at } else { eligible };
        let advance = |tat: u64, pace: Pace| {
            let span = pace.span(length).scaled(factor).ceil();
            tat.max(since).saturating_add(span)
        };
        self.peak_at = advance(self.peak_at, self.peak);
        self.bucket_at = advance(self.bucket_at, self.sustained);
        self.cdvt_and_flags &= !REFILL;
        self.tag = self
            .tag
            .wrapping_add(self.sustained.span(length).ticks() >> TAG_STEP);
    }

    /// As `CellState::late_departure` in `sched::cell`.
    pub(super) fn late_departure(&mut self, at: u64, bytes: u32) -> bool {
        let least = at.saturating_sub(self.cdvt());
        let after = |pace: Pace| least.saturating_add(pace.span(bytes).ceil());
        let (peak, bucket) = (after(self.peak), after(self.sustained));
        let moved = peak > self.peak_at || bucket > self.bucket_at;
        self.peak_at = self.peak_at.max(peak);
        self.bucket_at = self.bucket_at.max(bucket);
        moved
    }

    /// CDVT in ns, as it is stored: at most 1/128 shorter than in the contract, or 63 ns if that is
    /// more.
    #[inline(always)]
    pub(super) fn cdvt(&self) -> u64 {
        deadline::decode(u32::from(self.cdvt_and_flags & (DUAL - 1)))
    }

    #[inline(always)]
    fn is(&self, flag: u16) -> bool {
        self.cdvt_and_flags & flag != 0
    }
}

/// The bucket is that of [`Bucket::Dual`].
const DUAL: u16 = 1 << 12;

/// The bucket is spent: no packet is eligible before the bucket is full.
const REFILL: u16 = 1 << 13;

/// Start tags are in 2^-12 ns of the contracted rate. That is fine enough for 10 Gbit/s, and a
/// packet of 12 s is still inside the calendar.
const TAG_STEP: u32 = 4;

/// As in `sched::cell`. Here each packet may be rounded by a nanosecond.
const ROUNDING: u64 = 1000;
