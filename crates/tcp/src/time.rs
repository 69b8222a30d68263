//! Points in time.

use std::ops::Add;
use std::time::Duration;

/// A point in time: nanoseconds since a point that the caller chooses, for example the start of
/// the machine. All times of one connection count from the same point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The point that the others count from.
    pub const ZERO: Instant = Instant(0);

    /// `nanos` nanoseconds after [`Instant::ZERO`].
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Nanoseconds since [`Instant::ZERO`].
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Milliseconds since [`Instant::ZERO`], rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The time since `earlier`; 0 if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at the largest `Instant`, which is 584 years after [`Instant::ZERO`].
    fn add(self, length: Duration) -> Instant {
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }
}
