//! Shaping to a cell contract (paper CELL, section 4.3): the Generic Cell Rate Algorithm turned
//! around, so that it says when a packet may go instead of whether it may.
//!
//! ```text
//! peak       eligible at TAT
//! single     and at TATs - BT, the burst tolerance of its length
//! dual       like single while the bucket has enough; else at TATs, when it is full again
//! sent at t  since = t < eligible + CDVT ? eligible : t
//!            TAT   = max(TAT, since) + length / PCR
//!            TATs  = max(TATs, since) + length / SCR
//! ```
//! TAT is the theoretical arrival time of the peak's GCRA, TATs the sustained one's, that is the
//! moment at which the bucket will be full. BT = (MBS - length) (1/SCR - 1/PCR), so that a burst
//! at the peak rate holds MBS bytes, its last packet included. Both are computed when the flow
//! is served, and at no other time.
//!
//! # A late packet costs no rate
//! What contention makes late counts from when it might have gone, not from when it left, as long as
//! it is not later than CDVT: the flow catches up. Waiting for the bucket is not lateness: the peak
//! counts from the end of that wait too, or a pause that is shorter than CDVT would be caught up as well.
//! Then a policer with tolerance CDVT stays silent: its own TAT, and TATs likewise, is never more than CDVT
//! ahead of ours (it takes max(t, TAT) + T where we take max(TAT, since) + T, and t is less than
//! since + CDVT), and we send at or after ours. This also holds of what leaves after it was decided on,
//! if that is before eligible + CDVT ([`super::Scheduler::delayed`]).

use super::pace::{Moment, Pace, WHOLE};
use super::{PATIENCE_DIGITS, finest};
use crate::contract::{self, Bucket};

/// The state of a shaped flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// TAT, the nanoseconds of a [`Moment`]; the rest is in `peak_part`.
    peak_at: u64,
    /// TATs, likewise; the rest is in `bucket_part`.
    bucket_at: u64,
    /// When the packet that was planned last may go.
    eligible: u64,
    /// 1 / PCR.
    peak: Pace,
    /// 1 / SCR. Without a sustained rate it is the peak's, and the bucket never lacks anything.
    sustained: Pace,
    /// MBS in bytes, at most 2^32 - 1.
    mbs: u32,
    /// CDVT in ns, at most 2^32 - 1 (4.3 s); a longer one is used in part.
    cdvt: u32,
    peak_part: u16,
    bucket_part: u16,
    /// How wide the place of a wait may be.
    finest: u8,
    /// The bucket is spent as a whole.
    dual: bool,
    /// It is spent: nothing before it is full.
    refill: bool,
}

impl Cell {
    /// A flow that has never sent.
    pub(super) fn new(contract: &contract::Cell) -> Cell {
        let peak = Pace::of(contract.pcr());
        let (sustained, mbs, dual) = match contract.sustained() {
            None => (peak, u32::MAX, false),
            Some(s) => (Pace::of(s.scr), clamp(s.mbs.0), s.bucket == Bucket::Dual),
        };
        let cdvt = clamp(contract.cdvt().0);
        Cell {
            peak_at: 0,
            bucket_at: 0,
            eligible: 0,
            peak,
            sustained,
            mbs,
            cdvt,
            // Below 64.
            finest: finest(u64::from(cdvt)) as u8,
            peak_part: WHOLE,
            bucket_part: WHOLE,
            dual,
            refill: false,
        }
    }

    /// The same past under another contract: no credit comes from changing it.
    pub(super) fn changed(&self, contract: &contract::Cell) -> Cell {
        Cell {
            peak_at: self.peak_at,
            peak_part: self.peak_part,
            bucket_at: self.bucket_at,
            bucket_part: self.bucket_part,
            ..Cell::new(contract)
        }
    }

    /// The longest packet that can ever be eligible.
    pub(super) fn longest(&self) -> u32 {
        self.mbs
    }

    /// A packet comes to the empty queue: time that passed in silence is no credit.
    #[inline(always)]
    pub(super) fn wake(&mut self, now: u64) {
        if self.peak_at < now {
            (self.peak_at, self.peak_part) = (now, WHOLE);
        }
        if self.bucket_at < now {
            (self.bucket_at, self.bucket_part) = (now, WHOLE);
        }
    }

    /// When a packet of this length (at most [`Cell::longest`]) may go, and by when it must. Without branches: what flows of
    /// many contracts do next cannot be predicted.
    #[inline(always)]
    pub(super) fn plan(&mut self, length: u32) -> (u64, u64) {
        let (peak, full) = (self.peak_at, self.bucket_at);
        let room = self.mbs - length;
        // TATs - BT: the bucket has enough for this packet.
        let enough = full.saturating_sub(self.sustained.longer_than(self.peak, room));
        // What only arithmetic rounded away is waited for.
        let spent = self.refill | (enough > peak + ROUNDING);
        self.refill = self.dual & spent;
        self.eligible = peak.max(if self.refill { full } else { enough });
        (self.eligible, self.deadline())
    }

    /// From when on the packet that was planned last may go.
    #[inline(always)]
    pub(super) fn eligible(&self) -> u64 {
        self.eligible
    }

    /// By when the packet that was planned last must go.
    #[inline(always)]
    pub(super) fn deadline(&self) -> u64 {
        self.eligible + u64::from(self.cdvt)
    }

    /// The same cell for a [`super::Pacer`], whose waits are in units of 2^`digits` ns and may end half of CDVT late: nobody
    /// else counts on the rest of it.
    pub(super) fn paced(self, digits: u32) -> Cell {
        let half = (self.cdvt | 1).ilog2().saturating_sub(1);
        Cell {
            // Below 32.
            finest: half.saturating_sub(digits) as u8,
            ..self
        }
    }

    /// How wide the place of a wait may be in a [`super::Pacer`], as a binary logarithm. The pause of a dual bucket, which is
    /// longer than what is between two packets, ends as sharply as anywhere.
    #[inline(always)]
    pub(super) fn finest_paced(&self) -> u32 {
        let sharper = u32::from(self.refill) * (PATIENCE_DIGITS - 1);
        u32::from(self.finest).saturating_sub(sharper)
    }

    /// How wide the place of a wait may be, as a binary logarithm.
    #[inline(always)]
    pub(super) fn finest(&self) -> u32 {
        u32::from(self.finest)
    }

    /// How far a packet of this length and the next are apart at the peak rate, in whole nanoseconds.
    #[inline(always)]
    pub(super) fn spacing(&self, length: u32) -> u64 {
        self.peak.span(length).ticks() >> 16
    }

    /// The packet that was planned last, of this length, left at `at`.
    #[inline(always)]
    pub(super) fn sent(&mut self, at: u64, length: u32) {
        let late = at >= self.deadline();
        let since = if late { at } else { self.eligible };
        let tat = from(self.peak_tat(), since, late).later(self.peak.span(length));
        (self.peak_at, self.peak_part) = (tat.nanos, tat.part);
        let tat = from(self.bucket_tat(), since, late).later(self.sustained.span(length));
        (self.bucket_at, self.bucket_part) = (tat.nanos, tat.part);
        self.refill = false;
    }

    /// Packets of so many bytes, which were said to be sent, left at `at` only. Whether that changes anything.
    pub(super) fn delayed(&mut self, at: u64, bytes: u32) -> bool {
        let least = Moment::at(at.saturating_sub(u64::from(self.cdvt)));
        let peak = least.after(self.peak.span(bytes));
        let bucket = least.after(self.sustained.span(bytes));
        let moved = peak > self.peak_tat() || bucket > self.bucket_tat();
        let (peak, bucket) = (peak.max(self.peak_tat()), bucket.max(self.bucket_tat()));
        (self.peak_at, self.peak_part) = (peak.nanos, peak.part);
        (self.bucket_at, self.bucket_part) = (bucket.nanos, bucket.part);
        moved
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
}

/// From where a theoretical arrival time advances: itself, or a later nanosecond. (Who is not late keeps the part of a nanosecond
/// that waiting for a whole one took.)
#[inline(always)]
fn from(tat: Moment, since: u64, late: bool) -> Moment {
    let kept = since + u64::from(late) <= tat.nanos;
    Moment {
        nanos: if kept { tat.nanos } else { since },
        part: if kept { tat.part } else { WHOLE },
    }
}

/// More than a burst's roundings add up to: a nanosecond each time, and 2^-16 ns for each packet.
const ROUNDING: u64 = 100;

fn clamp(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
