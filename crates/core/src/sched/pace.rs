//! Time and rate arithmetic of the shapers: the duration of a packet at a rate. No function of this
//! module fails.
//!
//! Packets of 64 bytes at 100 Gbit/s are 5.12 ns apart, so sums in whole nanoseconds would be too
//! coarse. A [`Span`] counts in 2^-16 ns. A [`Moment`] is nanoseconds and a fraction in the same
//! unit. A [`Pace`] is the inverse of a rate in 2^-32 ns per byte, so that shaping multiplies and
//! never divides.
//!
//! Every quantity that delays is rounded up, so no packet leaves early. The error is at most 2^-32
//! ns for each byte (0.03 ppm at 1 Tbit/s, less at lower rates), and 2^-16 ns for each packet (3
//! ppm for packets of 64 bytes at 100 Gbit/s, less for longer packets and at lower rates).
//!
//! # The end of time
//! Times end at [`super::END_OF_TIME`], 2^63 - 1 ns. The upper half of the range of `u64` is left
//! for sums that begin before that time: a packet adds less than 2^47 ns ([`Pace::span`]), a burst
//! less than 2^55, and decisions in advance ([`super::Wire::ahead`]) at most 2^60. So the sums of
//! cells and of the link cannot overflow and are not checked ([`Moment::plus`]). Contracts that
//! change again and again can add any amount; those sums saturate ([`Moment::saturating_plus`]).

use core::num::NonZeroU64;

use crate::units::Rate;

/// The inverse of a rate, in 2^-32 ns per byte, rounded up. At most 2^55 (1 kbit/s).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pace(NonZeroU64);

impl Pace {
    /// The pace of a rate.
    pub(super) fn of(rate: Rate) -> Pace {
        let bits = u128::from(rate.bits_per_second());
        let pace = ((8 * NANOS_PER_SECOND) << 32).div_ceil(bits);
        // The smallest rate is 1 kbit/s, which gives 8·10^6 · 2^32 < 2^55.
        let pace = u64::try_from(pace).ok().and_then(NonZeroU64::new);
        Pace(pace.unwrap_or(NonZeroU64::MAX))
    }

    /// The duration of `bytes`, which are below 2^24, so that it fits. Rounded up.
    #[inline(always)]
    pub(super) fn span(self, bytes: u32) -> Span {
        let exact = u128::from(self.0.get()) * u128::from(bytes);
        Span(((exact + 0xffff) >> 16) as u64)
    }

    /// The rate, in bit/s, rounded down.
    pub(super) fn rate(self) -> u64 {
        (((8 * NANOS_PER_SECOND) << 32) / u128::from(self.0.get())) as u64
    }

    /// The difference between the durations of `bytes` at this pace and at `faster`, which is not
    /// slower. Rounded down to whole nanoseconds.
    #[inline(always)]
    pub(super) fn longer_than(self, faster: Pace, bytes: u32) -> u64 {
        // Both paces are rounded up. One unit less is never more than the exact difference.
        let more = (self.0.get() - faster.0.get()).saturating_sub(1);
        ((u128::from(more) * u128::from(bytes)) >> 32) as u64
    }
}

/// A length of time in 2^-16 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span(u64);

impl Span {
    /// Whole nanoseconds, rounded up.
    #[inline(always)]
    pub(super) fn ceil(self) -> u64 {
        (self.0 >> 16) + u64::from(self.0 & 0xffff != 0)
    }

    /// The number of 2^-16 ns.
    #[inline(always)]
    pub(super) fn ticks(self) -> u64 {
        self.0
    }

    /// `factor / 2^16` times as long, rounded up; saturates.
    #[inline(always)]
    pub(super) fn scaled(self, factor: u64) -> Span {
        let exact = u128::from(self.0) * u128::from(factor);
        Span(u64::try_from((exact + 0xffff) >> 16).unwrap_or(u64::MAX))
    }
}

/// A point in time with a fraction of a nanosecond. Most code needs the first whole nanosecond that
/// is not before the point, so that nanosecond is stored: the value is `nanos - 1 + (part + 1) /
/// 2^16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    /// The first whole nanosecond that is not before this moment.
    pub(super) nanos: u64,
    /// The passed part of the nanosecond before that, in 2^-16 ns, less one.
    pub(super) part: u16,
}

impl Moment {
    /// The moment at the whole nanosecond `nanos`.
    #[inline(always)]
    pub(super) fn at(nanos: u64) -> Moment {
        Moment { nanos, part: WHOLE }
    }

    /// The last whole nanosecond that is not after this moment.
    #[inline(always)]
    pub(super) fn floor(self) -> u64 {
        self.nanos.saturating_sub(u64::from(self.part != WHOLE))
    }

    /// The moment `span` later. The caller must make sure that the sum does not overflow (see "The
    /// end of time" of the module).
    #[inline(always)]
    pub(super) fn plus(self, span: Span) -> Moment {
        let part = span.0 + u64::from(self.part);
        Moment {
            nanos: self.nanos + (part >> 16),
            part: part as u16,
        }
    }

    /// The moment `span` later; saturates.
    #[inline(always)]
    pub(super) fn saturating_plus(self, span: Span) -> Moment {
        let part = span.0.saturating_add(u64::from(self.part));
        Moment {
            nanos: self.nanos.saturating_add(part >> 16),
            part: part as u16,
        }
    }
}

/// The `part` of a whole nanosecond.
pub(super) const WHOLE: u16 = u16::MAX;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests;
