//! [`Supply`]: the part of a processor that a reservation gives. No function fails.
//!
//! A reservation gives a time Q in every period P, at any place of the period. In every interval of
//! length t it gives at least
//!
//! ```text
//! (Q / P) · (t - 2 (P - Q))
//! ```
//!
//! (Shin, Lee, *Periodic resource model for compositional real-time guarantees*, RTSS 2003: the
//! linear lower bound of the supply.) So it is a processor Q/P as fast, on which other work of
//! length 2 (P - Q) may come first. The test of `edf` counts in ticks; here a nanosecond has as
//! many ticks as Q has nanoseconds, and a nanosecond of work takes as many ticks as P has
//! nanoseconds (both divided by their greatest common divisor). So nothing is rounded.

use super::demand::{Scale, ratio_up};
use crate::contract::Slice;
use crate::units::Nanos;

/// A part of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Supply {
    /// Ticks of a nanosecond of time.
    time: u64,
    /// Ticks of a nanosecond of work; at least `time`.
    work: u64,
    /// The time for which a reservation may give nothing at first, in ns.
    delay: u64,
}

impl Supply {
    /// The whole processor.
    pub(super) const WHOLE: Supply = Supply {
        time: 1,
        work: 1,
        delay: 0,
    };

    /// The supply of a reservation that loses `lost` of its time in every period. `None` if nothing
    /// is left.
    pub(super) fn of(reservation: &Slice, lost: u64) -> Option<Supply> {
        let period = reservation.period().0;
        let useful = reservation.slice().0.checked_sub(lost)?;
        let divisor = greatest_divisor(useful, period);
        (useful > 0).then(|| Supply {
            time: useful / divisor,
            work: period / divisor,
            delay: 2 * (period - useful),
        })
    }

    /// The scale of times.
    pub(super) fn scale(self) -> Scale {
        Scale::per_nano(self.time)
    }

    /// The ticks that `nanos` ns of work take. Saturates.
    pub(super) fn work(self, nanos: u128) -> u128 {
        nanos.saturating_mul(self.work.into())
    }

    /// The share of this supply that a slice needs, in 2^-40, rounded up.
    pub(super) fn share(self, slice: &Slice) -> u128 {
        ratio_up(
            self.work(slice.slice().0.into()),
            u128::from(slice.period().0) * u128::from(self.time),
        )
    }

    /// The ticks for which the supply may give nothing at first.
    pub(super) fn delay(self) -> u128 {
        self.scale().ticks(Nanos(self.delay))
    }
}

/// Euclid's algorithm.
fn greatest_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
