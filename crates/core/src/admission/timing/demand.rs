//! Demand bound functions: the most work that a promise can require within an interval. `link` and
//! `cpu` make a [`Demand`] of each promise, and `edf` evaluates it. [`Demand::validate`] fails if a
//! time is too long for the arithmetic.
//!
//! dbf(t), the demand bound function of a promise, is the most transmission (or processor) time
//! that can both become eligible and be due within an interval of length t. It is zero for t below
//! the relative deadline D of the promise. From D on it is one of two curves, or the smaller one of
//! such a curve and a second fluid curve ([`Demand::cap`]):
//!
//! ```text
//! steps   dbf(t) = cost · (1 + ⌊(t - D) / T⌋)     jobs of one cost, at least T apart
//! fluid   dbf(t) = burst + slope · (t - D)        packets of any size; slices; minimums
//! ```
//!
//! Time is counted in *ticks*. A nanosecond has as many ticks as the link sends bits in a second
//! (on a processor, one). So the transmission of a byte is a whole number of ticks (8 · 10^9) at
//! every rate, and neither the cost of a packet nor a period of a third of a second is rounded: a
//! period is stored as a fraction. Only slopes of fluid curves are rounded, up, to 2^-40 of the
//! link. Times, including the horizon, are at most [`LONGEST`] and rates at most 2^40 bit/s. So
//! ticks stay below 2^83 and all products below 2^128. A value that could exceed that saturates,
//! and the promise is refused.

use super::TimingFault;
use crate::units::{Nanos, Rate};

/// Ticks per nanosecond of some resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale(u64);

impl Scale {
    /// A resource with costs in nanoseconds.
    #[cfg(test)]
    pub(super) const NANOS: Scale = Scale(1);

    /// A resource with this number of ticks per nanosecond; at least 1, at most 2^40.
    pub(super) fn per_nano(ticks: u64) -> Scale {
        Scale(ticks)
    }

    /// The scale of a link with this rate.
    pub(super) fn of(rate: Rate) -> Scale {
        Scale(rate.bits_per_second())
    }

    /// The ticks in `time`, exactly.
    pub(super) fn ticks(self, time: Nanos) -> u128 {
        u128::from(time.0) * u128::from(self.0)
    }

    /// The duration of `bytes` on a link of this scale.
    pub(super) fn bytes(self, bytes: u64) -> u128 {
        u128::from(bytes) * BYTE
    }

    /// Ticks as time, rounded down, for the length of an interval.
    pub(super) fn nanos_down(self, ticks: u128) -> Nanos {
        Nanos(u64::try_from(ticks / u128::from(self.0)).unwrap_or(u64::MAX))
    }

    /// Ticks as time, rounded up, for work.
    pub(super) fn nanos(self, ticks: u128) -> Nanos {
        let nanos = ticks.div_ceil(u128::from(self.0));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The demand of one promise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Demand {
    /// The shortest interval with due work, in ticks.
    pub deadline: u128,
    /// The growth from there.
    pub growth: Growth,
    /// A second bound; the smaller one counts.
    pub cap: Option<Fluid>,
    /// The longest piece that is not interrupted once it has begun, in ticks.
    pub piece: u128,
    /// Whether pieces of the work can also be sent from the left-over, behind all work with a
    /// deadline.
    pub in_leftover: bool,
    /// The shortest interval, in ticks, in which the promise's deadlines must be kept; `None` for a
    /// promise of a rate.
    pub tested_from: Option<u128>,
}

/// The growth of a demand for intervals longer than its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Growth {
    Steps(Steps),
    Fluid(Fluid),
}

/// Jobs of `cost` ticks each, at least `denominator / numerator` ticks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Steps {
    pub cost: u128,
    pub numerator: u128,
    pub denominator: u128,
}

/// `burst` ticks at once, then `slope` / 2^40 of the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fluid {
    pub burst: u128,
    pub slope: u128,
}

impl Demand {
    /// The demand bound function dbf(t): the ticks of the resource that must be served within `t`
    /// ticks after the demand begins. Saturates.
    pub(super) fn due_within(&self, t: u128) -> u128 {
        let Some(beyond) = t.checked_sub(self.deadline) else {
            return 0;
        };
        let due = match self.growth {
            Growth::Steps(steps) => steps.cost.saturating_mul(steps.count(beyond)),
            Growth::Fluid(fluid) => fluid.at(beyond),
        };
        self.cap.map_or(due, |cap| due.min(cap.at(beyond)))
    }

    /// The work that can arrive in an interval of length t, due or not.
    pub(super) fn arrives_within(&self, t: u128) -> u128 {
        let arrives = match self.growth {
            Growth::Steps(steps) => {
                // ⌈t / T⌉: an interval without its end.
                let count = (t * steps.numerator).div_ceil(steps.denominator);
                steps.cost.saturating_mul(count)
            }
            Growth::Fluid(fluid) => fluid.at(t),
        };
        self.cap.map_or(arrives, |cap| arrives.min(cap.at(t)))
    }

    /// The long-term share of the resource, in 2^-40, rounded down and up.
    pub(super) fn share(&self) -> (u128, u128) {
        let own = match self.growth {
            Growth::Fluid(fluid) => (fluid.slope.saturating_sub(1), fluid.slope),
            Growth::Steps(steps) => steps.share(),
        };
        match self.cap {
            Some(cap) if cap.slope < own.1 => (cap.slope.saturating_sub(1), cap.slope),
            _ => own,
        }
    }

    /// A line that dbf never exceeds: its value at the deadline, and its slope.
    pub(super) fn line(&self) -> Fluid {
        // A fluid curve is rounded up to a whole tick.
        let above = |fluid: Fluid| Fluid {
            burst: fluid.burst.saturating_add(1),
            ..fluid
        };
        let own = match self.growth {
            Growth::Fluid(fluid) => above(fluid),
            Growth::Steps(steps) => Fluid {
                burst: steps.cost,
                slope: steps.share().1,
            },
        };
        match self.cap {
            Some(cap) if cap.slope < own.slope => above(cap),
            _ => own,
        }
    }

    /// K of dbf(t) ≤ K + slope · t, rounded up; at least zero. The slope is that of the line.
    pub(super) fn offset(&self) -> u128 {
        let line = self.line();
        line.burst
            .saturating_sub(self.deadline.saturating_mul(line.slope) >> SHIFT)
    }

    /// The last length of interval, not above t, at which dbf makes a step: for a fluid curve, its
    /// deadline. `None` if t is below the deadline.
    pub(super) fn step_at_or_before(&self, t: u128) -> Option<u128> {
        let beyond = t.checked_sub(self.deadline)?;
        match self.growth {
            Growth::Steps(steps) => {
                let done = steps.count(beyond) - 1;
                Some(self.deadline + (done * steps.denominator).div_ceil(steps.numerator))
            }
            Growth::Fluid(_) => Some(self.deadline),
        }
    }

    /// Fails if a time of the promise exceeds the range of the arithmetic.
    pub(super) fn validate(&self, scale: Scale) -> Result<(), TimingFault> {
        let longest = scale.ticks(LONGEST);
        let (period, cost) = match self.growth {
            Growth::Steps(s) => (s.denominator / s.numerator, s.cost),
            Growth::Fluid(f) => (0, f.burst),
        };
        let all = [self.deadline, period, cost, self.piece];
        match all.into_iter().find(|part| *part > longest) {
            Some(part) => Err(TimingFault::TooLong {
                time: scale.nanos(part),
                most: LONGEST,
            }),
            None => Ok(()),
        }
    }
}

impl Steps {
    /// 1 + ⌊x / T⌋.
    fn count(&self, x: u128) -> u128 {
        1 + x * self.numerator / self.denominator
    }

    fn share(&self) -> (u128, u128) {
        let per = self.cost.saturating_mul(self.numerator);
        divide(per, self.denominator)
    }
}

impl Fluid {
    /// `burst` plus `slope` times `x` ticks, in ticks; rounded up, and saturating.
    pub(super) fn at(&self, x: u128) -> u128 {
        let grown = x.saturating_mul(self.slope);
        self.burst.saturating_add(grown.div_ceil(WHOLE))
    }
}

/// a / b in 2^-40, rounded up; saturates.
pub(super) fn ratio_up(a: u128, b: u128) -> u128 {
    divide(a, b).1
}

/// a / b in 2^-40, rounded down and up; saturates.
fn divide(a: u128, b: u128) -> (u128, u128) {
    let (whole, mut rest) = (a / b, a % b);
    if whole >> (127 - SHIFT) != 0 || b >> 127 != 0 {
        return (u128::MAX, u128::MAX);
    }
    if b >> (128 - SHIFT) == 0 {
        // The rest is below b.
        let rest = rest << SHIFT;
        let quotient = (whole << SHIFT) + rest / b;
        return (quotient, quotient + u128::from(!rest.is_multiple_of(b)));
    }
    let mut quotient = whole;
    for _ in 0..SHIFT {
        rest <<= 1;
        quotient <<= 1;
        if rest >= b {
            rest -= b;
            quotient |= 1;
        }
    }
    (quotient, quotient + u128::from(rest != 0))
}

/// The whole resource as a slope.
pub(super) const WHOLE: u128 = 1 << SHIFT;

const SHIFT: u32 = 40;

/// Ticks of a byte: 8 bits, 10^9 ns to the second.
const BYTE: u128 = 8_000_000_000;

/// The longest time in a promise: 2^43 ns, 2.4 hours.
pub(super) const LONGEST: Nanos = Nanos(1 << 43);
