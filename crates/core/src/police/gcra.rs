//! The Generic Cell Rate Algorithm, in both forms of its definition.
//!
//! ITU-T I.371 (annex A) and the ATM Forum's TM 4.0 (section 4.4.2) define GCRA(T, τ) twice: as
//! *virtual scheduling*, which keeps the theoretical arrival time of the next cell, and as a
//! *continuous-state leaky bucket*, which keeps the bucket's content and when it was last looked
//! at. Both are here, written down from the two flow charts and from nothing else: no code is
//! shared with what shapes, and little with each other. They judge alike, which the tests show.
//!
//! A cell is one unit; a packet of any size is as many units as it is bits long, so that T is
//! its own length over the rate. Everything is exact: a quantity of time is kept multiplied by
//! the rate, so that what rate R (units per second) gives in t nanoseconds is the whole number
//! R · t, and one unit is 10^9 of it. Times reach 2^64 ns, rates 2^40 units/s and amounts 2^67
//! units; since a theoretical arrival time is never farther ahead of an accepted arrival than
//! its tolerance and one packet, no sum here leaves 2^106.

use core::num::NonZeroU64;

use crate::units::{Instant, Nanos};

/// A tolerance τ at some rate, exact: τ in ns, times the rate in units per second. It may be
/// negative, for a packet that must come later than its theoretical time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tolerance(pub(super) i128);

impl Tolerance {
    /// `time` at a rate of so many units per second.
    pub fn of(time: Nanos, rate: NonZeroU64) -> Tolerance {
        Tolerance(i128::from(time.0) * i128::from(rate.get()))
    }
}

/// GCRA as virtual scheduling: TAT, the theoretical arrival time.
///
/// ```text
/// cell at ta:  ta < TAT - τ   not conforming, TAT stays
///              else           conforming, TAT = max(ta, TAT) + T
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualScheduling {
    /// Units per second.
    rate: NonZeroU64,
    /// TAT in ns, times `rate`. Zero before the first arrival, which is thus always on time.
    tat: i128,
}

impl VirtualScheduling {
    /// At a rate of so many units per second, nothing seen yet.
    pub fn new(rate: NonZeroU64) -> VirtualScheduling {
        VirtualScheduling { rate, tat: 0 }
    }

    /// How much too early an arrival at `at` is; nothing if it conforms. Rounded up to a whole
    /// nanosecond: had it come so much later, it would conform.
    pub fn earliness(&self, at: Instant, tolerance: Tolerance) -> Option<Nanos> {
        let arrival = scaled(at, self.rate);
        lacking(self.tat - tolerance.0 - arrival, self.rate)
    }

    /// Accepts an arrival of so many units.
    pub fn accept(&mut self, at: Instant, units: u128) {
        self.tat = self.tat.max(scaled(at, self.rate)) + increment(units);
    }
}

/// GCRA as a leaky bucket: X, the content, which drains at one per second and second, and LCT,
/// the last conformance time.
///
/// ```text
/// cell at ta:  X' = X - (ta - LCT)
///              X' > τ   not conforming, X and LCT stay
///              else     conforming, X = max(0, X') + T, LCT = ta
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    /// Units per second.
    rate: NonZeroU64,
    /// X in ns, times `rate`. Never negative.
    content: i128,
    /// LCT; the start of time before the first arrival, when the bucket is empty anyway.
    last: Instant,
}

impl LeakyBucket {
    /// An empty bucket that drains at so many units per second.
    pub fn new(rate: NonZeroU64) -> LeakyBucket {
        LeakyBucket {
            rate,
            content: 0,
            last: Instant(0),
        }
    }

    /// As [`VirtualScheduling::earliness`].
    pub fn earliness(&self, at: Instant, tolerance: Tolerance) -> Option<Nanos> {
        lacking(self.content_at(at) - tolerance.0, self.rate)
    }

    /// As [`VirtualScheduling::accept`].
    pub fn accept(&mut self, at: Instant, units: u128) {
        self.content = self.content_at(at).max(0) + increment(units);
        self.last = at;
    }

    /// X' of the definition.
    fn content_at(&self, at: Instant) -> i128 {
        let elapsed = i128::from(at.0) - i128::from(self.last.0);
        self.content - elapsed * i128::from(self.rate.get())
    }
}

/// A time, multiplied by the rate.
fn scaled(at: Instant, rate: NonZeroU64) -> i128 {
    i128::from(at.0) * i128::from(rate.get())
}

/// T of so many units, multiplied by the rate. More units than two to the 67, which no packet
/// has, count as that many.
fn increment(units: u128) -> i128 {
    const MOST: u128 = 1 << 67;
    units.min(MOST) as i128 * NANOS_PER_SECOND
}

/// A shortage as time, rounded up; nothing if there is none.
fn lacking(shortage: i128, rate: NonZeroU64) -> Option<Nanos> {
    let shortage = u128::try_from(shortage).ok().filter(|short| *short > 0)?;
    let nanos = shortage.div_ceil(u128::from(rate.get()));
    Some(Nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

pub(super) const NANOS_PER_SECOND: i128 = 1_000_000_000;
