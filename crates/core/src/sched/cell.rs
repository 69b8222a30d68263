//! Shaping to a cell contract (paper CELL, section 4.3): the inverse of the Generic Cell Rate
//! Algorithm (GCRA). The GCRA decides whether a packet may go at a time; this module computes the
//! time from which a packet may go. Arrivals, lengths and departure times of packets come in; the
//! eligible time and the deadline of the head go out. No function fails.
//!
//! ```text
//! peak rate only    eligible = TAT
//! single bucket     eligible = max(TAT, TATs - BT)
//! dual bucket       the same while the bucket has enough for the packet;
//!                   else max(TAT, TATs), when the bucket is full again
//! sent at t         since = t < eligible + CDVT ? eligible : t
//!                   TAT   = max(TAT, since) + length / PCR
//!                   TATs  = max(TATs, since) + length / SCR
//! ```
//! TAT is the theoretical arrival time of the peak's GCRA. TATs is that of the sustained rate,
//! which is the time at which the bucket will be full. BT = (MBS - length) (1/SCR - 1/PCR), the
//! burst tolerance, is such that a burst at the peak rate holds MBS bytes, its last packet
//! included. TAT and TATs advance when a packet is sent. A packet that arrives at the empty queue
//! raises both at least to the time of its arrival, so silence gives no credit.
//!
//! # A late packet costs no rate
//! A packet that other flows make late by less than CDVT counts from its eligible time, not from
//! its departure: the flow catches up. A wait for the bucket is no lateness of this kind, so the
//! peak rate counts from the end of that wait too. Otherwise the flow would also catch up a pause
//! that is shorter than CDVT.
//!
//! A policer with tolerance CDVT then finds no violation. The policer's TAT is never more than CDVT
//! ahead of the scheduler's, and likewise its TATs: the policer computes max(t, TAT) + length / PCR
//! where the scheduler computes max(TAT, since) + length / PCR, and t is less than since + CDVT.
//! And the scheduler sends at its own TAT or later. The same is true of a packet that leaves after
//! the decision, if it leaves before eligible + CDVT ([`super::Scheduler::handle_late_departure`]
//! is for those that leave later).

use super::pace::{Moment, Pace, WHOLE};
use super::{LAXITY_DIGITS, max_width};
use crate::contract::{self, Bucket};

/// The state of a shaped flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellState {
    /// Nanoseconds of TAT as a [`Moment`]; `peak_part` is the rest.
    peak_at: u64,
    /// Nanoseconds of TATs as a [`Moment`]; `bucket_part` is the rest.
    bucket_at: u64,
    /// Eligible time of the packet that was planned last.
    eligible: u64,
    /// 1 / PCR.
    peak: Pace,
    /// 1 / SCR. Without a sustained rate it is 1 / PCR, so that the bucket delays no packet.
    sustained: Pace,
    /// MBS in bytes, at most 2^32 - 1.
    mbs: u32,
    /// CDVT in ns, at most 2^32 - 1 (4.3 s). A longer CDVT counts as that.
    cdvt: u32,
    peak_part: u16,
    bucket_part: u16,
    /// The largest width of the calendar's bucket for a wait, as a binary logarithm.
    max_width: u8,
    /// Whether the token bucket is that of [`Bucket::Dual`].
    dual: bool,
    /// Whether the token bucket of a dual contract is spent, so that no packet is eligible before
    /// the bucket is full.
    refill: bool,
}

impl CellState {
    /// The state of a flow that has not sent.
    pub(super) fn new(contract: &contract::Cell) -> CellState {
        let peak = Pace::of(contract.pcr());
        let (sustained, mbs, dual) = match contract.sustained() {
            None => (peak, u32::MAX, false),
            Some(s) => (Pace::of(s.scr), clamp(s.mbs.0), s.bucket == Bucket::Dual),
        };
        let cdvt = clamp(contract.cdvt().0);
        CellState {
            peak_at: 0,
            bucket_at: 0,
            eligible: 0,
            peak,
            sustained,
            mbs,
            cdvt,
            // Below 64.
            max_width: max_width(u64::from(cdvt)) as u8,
            peak_part: WHOLE,
            bucket_part: WHOLE,
            dual,
            refill: false,
        }
    }

    /// The state under another contract. The change gives no credit.
    pub(super) fn changed(&self, contract: &contract::Cell) -> CellState {
        CellState {
            peak_at: self.peak_at,
            peak_part: self.peak_part,
            bucket_at: self.bucket_at,
            bucket_part: self.bucket_part,
            ..CellState::new(contract)
        }
    }

    /// The longest packet that can become eligible.
    pub(super) fn longest(&self) -> u32 {
        self.mbs
    }

    /// A packet arrives at the empty queue. The silence before gives no credit.
    #[inline(always)]
    pub(super) fn wake(&mut self, now: u64) {
        if self.peak_at < now {
            (self.peak_at, self.peak_part) = (now, WHOLE);
        }
        if self.bucket_at < now {
            (self.bucket_at, self.bucket_part) = (now, WHOLE);
        }
    }

    /// The eligible time and the deadline of a packet of this length, at most
    /// [`CellState::longest`]. The code has no branches, because their outcomes would be
    /// unpredictable with flows of many contracts.
    #[inline(always)]
    pub(super) fn plan(&mut self, length: u32) -> (u64, u64) {
        let (peak, full) = (self.peak_at, self.bucket_at);
        let room = self.mbs - length;
        // TATs - BT: the bucket has enough for this packet.
        let enough = full.saturating_sub(self.sustained.longer_than(self.peak, room));
        // A lack that is only a rounding error does not count as a spent bucket. The packet waits
        // for it.
        let spent = self.refill | (enough > peak + ROUNDING);
        self.refill = self.dual & spent;
        self.eligible = peak.max(if self.refill { full } else { enough });
        (self.eligible, self.deadline())
    }

    /// Eligible time of the packet that was planned last.
    #[inline(always)]
    pub(super) fn eligible(&self) -> u64 {
        self.eligible
    }

    /// Deadline of the packet that was planned last.
    #[inline(always)]
    pub(super) fn deadline(&self) -> u64 {
        self.eligible + u64::from(self.cdvt)
    }

    /// The same cell for a [`super::Pacer`], whose waits are in units of at most 2^`digits` ns. A
    /// wait may end late by half of CDVT, because no other component uses the rest of CDVT.
    pub(super) fn paced(self, digits: u32) -> CellState {
        let half = (self.cdvt | 1).ilog2().saturating_sub(1);
        CellState {
            // Below 32.
            max_width: half.saturating_sub(digits) as u8,
            ..self
        }
    }

    /// The largest width of the calendar's bucket for a wait in a [`super::Pacer`], as a binary
    /// logarithm. The pause of a dual token bucket is longer than the time between two packets, so
    /// its calendar bucket is narrower: 1/32 of CDVT, as in the scheduler.
    #[inline(always)]
    pub(super) fn max_width_paced(&self) -> u32 {
        let sharper = u32::from(self.refill) * (LAXITY_DIGITS - 1);
        u32::from(self.max_width).saturating_sub(sharper)
    }

    /// The largest width of the calendar's bucket for a wait, as a binary logarithm.
    #[inline(always)]
    pub(super) fn max_width(&self) -> u32 {
        u32::from(self.max_width)
    }

    /// The time between a packet of this length and the next at the peak rate, in whole
    /// nanoseconds.
    #[inline(always)]
    pub(super) fn spacing(&self, length: u32) -> u64 {
        self.peak.span(length).ticks() >> 16
    }

    /// The packet that was planned last, of this length, left at `at`.
    #[inline(always)]
    pub(super) fn sent(&mut self, at: u64, length: u32) {
        let late = at >= self.deadline();
        let since = if late { at } else { self.eligible };
        let tat = from(self.peak_tat(), since, late).plus(self.peak.span(length));
        (self.peak_at, self.peak_part) = (tat.nanos, tat.part);
        let tat = from(self.bucket_tat(), since, late).plus(self.sustained.span(length));
        (self.bucket_at, self.bucket_part) = (tat.nanos, tat.part);
        self.refill = false;
    }

    /// Packets of `bytes` together, which have counted as sent, left no earlier than `at`. Returns
    /// whether the state changed.
    pub(super) fn late_departure(&mut self, at: u64, bytes: u32) -> bool {
        let least = Moment::at(at.saturating_sub(u64::from(self.cdvt)));
        let peak = least.saturating_plus(self.peak.span(bytes));
        let bucket = least.saturating_plus(self.sustained.span(bytes));
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

/// The time from which a theoretical arrival time advances: its own value, or a later nanosecond. A
/// packet that is not late keeps the part of a nanosecond by which its wait was rounded up.
#[inline(always)]
fn from(tat: Moment, since: u64, late: bool) -> Moment {
    let kept = since + u64::from(late) <= tat.nanos;
    Moment {
        nanos: if kept { tat.nanos } else { since },
        part: if kept { tat.part } else { WHOLE },
    }
}

/// An upper bound of the rounding errors of a burst, in ns: one for each computed time, and 2^-16
/// for each packet.
const ROUNDING: u64 = 100;

fn clamp(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
