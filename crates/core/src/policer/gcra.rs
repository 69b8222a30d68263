//! The Generic Cell Rate Algorithm, in both forms of its definition. Arrival times and lengths come
//! in. Out goes whether an arrival conforms, or else by how much it is too early. No function
//! fails.
//!
//! ITU-T I.371 (annex A) and the ATM Forum's TM 4.0 (section 4.4.2) define GCRA(T, τ) twice. T is
//! the time between two cells at the contracted rate, and τ is the longest time by which a cell may
//! be too early. The definitions are *virtual scheduling*, which stores the theoretical arrival
//! time of the next cell, and a *continuous-state leaky bucket*, which stores the bucket's content
//! and the time of its last update. This module contains both, written from the two flow charts.
//! They share no code with the shapers, and little with each other. Tests show that both accept the
//! same arrivals.
//!
//! A cell or a message is one unit. A packet is as many units as it has bits, so its T is its
//! length over the rate. The arithmetic is exact: a time in ns is stored times the rate R in units
//! per second. So t nanoseconds are stored as the whole number R · t, and the T of one unit as
//! 10^9. Times reach 2^64 ns, rates 2^40 units/s and amounts 2^67 units. A theoretical arrival time
//! is never farther ahead of an accepted arrival than its tolerance and one packet, so no sum here
//! exceeds 2^106.

use core::num::NonZeroU64;

use crate::units::{Instant, Nanos};

/// A tolerance τ at a rate, exact: τ in ns, times the rate in units per second. It may be negative,
/// for a packet that must come later than its theoretical time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tolerance(pub(super) i128);

impl Tolerance {
    /// `time` as a tolerance at a rate in units per second.
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
    /// TAT in ns, times `rate`. Zero before the first arrival, which thus conforms unless τ < 0.
    tat: i128,
}

impl VirtualScheduling {
    /// The state before the first arrival, for a rate in units per second, at most 2^40.
    pub fn new(rate: NonZeroU64) -> VirtualScheduling {
        VirtualScheduling { rate, tat: 0 }
    }

    /// The time by which an arrival at `at` is too early, rounded up to a whole nanosecond; `None`
    /// if it conforms. An arrival later by that time would conform.
    pub fn earliness(&self, at: Instant, tolerance: Tolerance) -> Option<Nanos> {
        let arrival = scaled(at, self.rate);
        shortage_time(self.tat - tolerance.0 - arrival, self.rate)
    }

    /// Accepts an arrival of `units` at `at`. The caller has checked that it conforms.
    pub fn accept(&mut self, at: Instant, units: u128) {
        self.tat = self.tat.max(scaled(at, self.rate)) + increment(units);
    }
}

/// GCRA as a leaky bucket: X is the content in seconds, which drains by one in each second. LCT is
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
    /// LCT; zero before the first arrival, when the bucket is empty.
    last: Instant,
}

impl LeakyBucket {
    /// An empty bucket that drains at a rate in units per second, at most 2^40.
    pub fn new(rate: NonZeroU64) -> LeakyBucket {
        LeakyBucket {
            rate,
            content: 0,
            last: Instant(0),
        }
    }

    /// How much earlier than the earliest conforming time the time `at` is; `None` if a packet at
    /// `at` conforms. The same as [`VirtualScheduling::earliness`].
    pub fn earliness(&self, at: Instant, tolerance: Tolerance) -> Option<Nanos> {
        shortage_time(self.content_at(at) - tolerance.0, self.rate)
    }

    /// Counts a conforming packet of so many units at `at`. The same as
    /// [`VirtualScheduling::accept`].
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

/// T of `units`, multiplied by the rate. More units than 2^67, which no packet has, count as 2^67.
fn increment(units: u128) -> i128 {
    const MOST: u128 = 1 << 67;
    units.min(MOST) as i128 * NANOS_PER_SECOND
}

/// A shortage as time, rounded up; `None` if there is no shortage.
fn shortage_time(shortage: i128, rate: NonZeroU64) -> Option<Nanos> {
    let shortage = u128::try_from(shortage).ok().filter(|short| *short > 0)?;
    let nanos = shortage.div_ceil(u128::from(rate.get()));
    Some(Nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

/// Nanoseconds in a second.
pub(super) const NANOS_PER_SECOND: i128 = 1_000_000_000;
