//! Shaping to a cell contract (paper CELL, section 4.3): the Generic Cell Rate Algorithm turned
//! around, so that it says when a packet may go instead of whether it may.
//!
//! ```text
//! peak       eligible at TAT
//! single     and at TATs - BT, the burst tolerance of its length
//! dual       like single while the bucket has enough; else at TATs, when it is full again
//! sent at t  TAT  = (t <= TAT + CDVT ? TAT  : t) + length / PCR
//!            TATs = (t <= TATs + CDVT ? TATs : t) + length / SCR
//! ```
//! TAT is the theoretical arrival time of the peak's GCRA, TATs the sustained one's, that is the
//! moment at which the bucket will be full. BT = (MBS - length) (1/SCR - 1/PCR), so that a burst
//! at the peak rate holds MBS bytes, its last packet included. Both are computed when the flow
//! is served, and at no other time.
//!
//! # A late packet costs no rate
//! What contention makes late advances TAT from TAT, not from when it left, as long as it is not
//! later than CDVT: the flow catches up. Then a policer with tolerance CDVT stays silent: its own
//! TAT is never more than CDVT ahead of ours (it takes max(t, TAT) + T where we take TAT + T or
//! t + T), and we send at or after ours.

use super::pace::{Moment, Pace};
use crate::contract::{self, Bucket};

/// The state of a shaped flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// TAT, whole nanoseconds; the rest is in `peak_part`.
    peak_at: u64,
    /// TATs, whole nanoseconds; the rest is in `bucket_part`.
    bucket_at: u64,
    /// 1 / PCR.
    peak: Pace,
    /// 1 / SCR; without sustained rate that of the peak.
    sustained: Pace,
    /// MBS in bytes, at most 2^32 - 1.
    mbs: u32,
    /// CDVT in ns, at most 2^32 - 1 (4.3 s); a longer one is used in part.
    cdvt: u32,
    peak_part: u16,
    bucket_part: u16,
    mode: Mode,
}

/// How the bucket is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// There is none.
    Peak,
    Single,
    /// A burst may begin or go on.
    Dual,
    /// Nothing before the bucket is full.
    Refill,
}

impl Cell {
    /// A flow that has never sent.
    pub(super) fn new(contract: &contract::Cell) -> Cell {
        let peak = Pace::of(contract.pcr());
        let (sustained, mbs, mode) = match contract.sustained() {
            None => (peak, u32::MAX, Mode::Peak),
            Some(s) => {
                let mode = match s.bucket {
                    Bucket::Single => Mode::Single,
                    Bucket::Dual => Mode::Dual,
                };
                (Pace::of(s.scr), clamp(s.mbs.0), mode)
            }
        };
        Cell {
            peak_at: 0,
            bucket_at: 0,
            peak,
            sustained,
            mbs,
            cdvt: clamp(contract.cdvt().0),
            peak_part: 0,
            bucket_part: 0,
            mode,
        }
    }

    /// The same past under another contract: no credit comes from changing it.
    pub(super) fn changed(&self, contract: &contract::Cell) -> Cell {
        let fresh = Cell::new(contract);
        let had_bucket = self.mode != Mode::Peak;
        Cell {
            peak_at: self.peak_at,
            peak_part: self.peak_part,
            bucket_at: if had_bucket {
                self.bucket_at
            } else {
                self.peak_at
            },
            bucket_part: if had_bucket {
                self.bucket_part
            } else {
                self.peak_part
            },
            ..fresh
        }
    }

    /// The longest packet that can ever be eligible.
    pub(super) fn longest(&self) -> u32 {
        self.mbs
    }

    /// A packet comes to the empty queue: time that passed in silence is no credit.
    #[inline(always)]
    pub(super) fn wake(&mut self, now: u64) {
        if self.peak_tat().ceil() < now {
            (self.peak_at, self.peak_part) = (now, 0);
        }
        if self.bucket_tat().ceil() < now {
            (self.bucket_at, self.bucket_part) = (now, 0);
        }
    }

    /// When a packet of this length may go, and by when it must.
    #[inline(always)]
    pub(super) fn plan(&mut self, length: u32) -> (u64, u64) {
        let peak = self.peak_tat().ceil();
        let eligible = match self.mode {
            Mode::Peak => peak,
            Mode::Single => peak.max(self.affordable(length)),
            // A bucket that lacks only what arithmetic rounded away is waited for.
            Mode::Dual if self.affordable(length) <= peak.saturating_add(ROUNDING) => {
                peak.max(self.affordable(length))
            }
            Mode::Dual | Mode::Refill => {
                self.mode = Mode::Refill;
                peak.max(self.bucket_tat().ceil())
            }
        };
        (eligible, eligible.saturating_add(u64::from(self.cdvt)))
    }

    /// A packet of this length left at `at`.
    #[inline(always)]
    pub(super) fn sent(&mut self, at: u64, length: u32) {
        let patience = u64::from(self.cdvt);
        let tat = from(self.peak_tat(), at, patience).after(self.peak.span(length));
        (self.peak_at, self.peak_part) = (tat.nanos, tat.part);
        if self.mode != Mode::Peak {
            let tat = from(self.bucket_tat(), at, patience).after(self.sustained.span(length));
            (self.bucket_at, self.bucket_part) = (tat.nanos, tat.part);
            if self.mode == Mode::Refill {
                self.mode = Mode::Dual;
            }
        }
    }

    #[inline(always)]
    fn peak_tat(&self) -> Moment {
        Moment {
            nanos: self.peak_at,
            part: self.peak_part,
        }
    }

    #[inline(always)]
    fn bucket_tat(&self) -> Moment {
        Moment {
            nanos: self.bucket_at,
            part: self.bucket_part,
        }
    }

    /// When the bucket has enough for a packet of this length: TATs - BT.
    #[inline(always)]
    fn affordable(&self, length: u32) -> u64 {
        let room = self.mbs.saturating_sub(length);
        let tolerance = self.sustained.longer_than(self.peak, room);
        self.bucket_tat().ceil().saturating_sub(tolerance)
    }
}

/// From where a theoretical arrival time advances.
#[inline(always)]
fn from(tat: Moment, at: u64, patience: u64) -> Moment {
    match at <= tat.nanos.saturating_add(patience) {
        true => tat,
        false => Moment::at(at),
    }
}

/// More than a burst's roundings add up to: a nanosecond each time, and 2^-16 ns for each packet.
const ROUNDING: u64 = 100;

fn clamp(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
