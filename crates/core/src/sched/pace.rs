//! Time and rate arithmetic of the shapers: how long a packet of some length takes at some rate.
//!
//! Packets of 64 bytes at 100 Gbit/s are 5.12 ns apart, so whole nanoseconds are too coarse to
//! add up. A [`Span`] counts in 2^-16 ns; a moment is nanoseconds and a fraction in the same
//! unit. A [`Pace`] is the inverse of a rate in 2^-32 ns per byte, so that shaping multiplies
//! and never divides.
//!
//! Everything that delays is rounded up (nothing leaves early), at most by 2^-16 ns a packet and
//! by 2^-32 ns a byte: 0.003 ppm of 1 Tbit/s. All sums saturate: at the end of time a flow sleeps
//! for good.

use core::num::NonZeroU64;

use crate::units::Rate;

/// The inverse of a rate: 2^-32 ns per byte, rounded up. At most 2^55 (1 kbit/s).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pace(NonZeroU64);

impl Pace {
    /// The pace of a rate.
    pub(super) fn of(rate: Rate) -> Pace {
        let bits = u128::from(rate.bits_per_second());
        let pace = ((8 * NANOS_PER_SECOND) << 32).div_ceil(bits);
        // The smallest rate is 1 kbit/s, which makes 8·10^6 · 2^32 < 2^55.
        let pace = u64::try_from(pace).ok().and_then(NonZeroU64::new);
        Pace(pace.unwrap_or(NonZeroU64::MAX))
    }

    /// How long so many bytes take, rounded up. Lengths are below 2^24, so this fits.
    #[inline(always)]
    pub(super) fn span(self, bytes: u32) -> Span {
        let exact = u128::from(self.0.get()) * u128::from(bytes);
        Span(((exact + 0xffff) >> 16) as u64)
    }

    /// The rate, in bit/s, rounded down.
    pub(super) fn rate(self) -> u64 {
        (((8 * NANOS_PER_SECOND) << 32) / u128::from(self.0.get())) as u64
    }

    /// How much longer so many bytes take at this pace than at a faster one, rounded down to
    /// whole nanoseconds; zero if the other one is slower.
    #[inline(always)]
    pub(super) fn longer_than(self, faster: Pace, bytes: u32) -> u64 {
        // Both are rounded up: one part less is surely not more than the exact difference.
        let more = self
            .0
            .get()
            .saturating_sub(faster.0.get())
            .saturating_sub(1);
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

/// A point in time with a fraction, as it is stored in a flow: nanoseconds and 2^-16 ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    /// Whole nanoseconds.
    pub(super) nanos: u64,
    /// And so many 2^-16 ns.
    pub(super) part: u16,
}

impl Moment {
    /// A whole nanosecond.
    #[inline(always)]
    pub(super) fn at(nanos: u64) -> Moment {
        Moment { nanos, part: 0 }
    }

    /// The first whole nanosecond that is not before it.
    #[inline(always)]
    pub(super) fn ceil(self) -> u64 {
        self.nanos.saturating_add(u64::from(self.part != 0))
    }

    /// So much later; saturates.
    #[inline(always)]
    pub(super) fn after(self, span: Span) -> Moment {
        let part = u64::from(self.part) + (span.0 & 0xffff);
        Moment {
            nanos: self.nanos.saturating_add((span.0 >> 16) + (part >> 16)),
            part: part as u16,
        }
    }
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests;
