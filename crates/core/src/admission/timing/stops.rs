//! [`Stops`]: the time that a machine takes from the thread that sends. Text such as `2ms/100ms`
//! parses to it, or fails with [`BadStops`].
//!
//! A hypervisor, firmware and the kernel's own work stop a thread whatever its priority. While the
//! thread is stopped, the link it serves sends nothing. A bound on the stops makes the link a
//! resource with a supply: in every interval of length t it sends for at least t - S ⌈t/P⌉
//! (docs/reference/contracts.md, theorem 4). So stops count as one more demand, due at once, of S
//! in every P.

use core::fmt;
use core::str::FromStr;

use super::demand::{Demand, Growth, Scale, Steps};
use crate::units::{Nanos, UnitError};

/// A bound on stops: in every interval as long as the period, the thread stands still for at most
/// the time. The time is above zero and below the period, and the period at most
/// [`Stops::LONGEST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stops {
    time: Nanos,
    period: Nanos,
}

impl Stops {
    /// The longest period: 10 s.
    pub const LONGEST: Nanos = Nanos::from_secs(10);

    /// Stops of at most `time` in every `period`.
    ///
    /// # Errors
    /// [`BadStops`] if the time is zero or not below the period, or the period is too long.
    pub fn new(time: Nanos, period: Nanos) -> Result<Stops, BadStops> {
        match (time, period) {
            (Nanos(0), _) => Err(BadStops::None),
            _ if time >= period => Err(BadStops::Whole { time, period }),
            _ if period > Stops::LONGEST => Err(BadStops::TooLong { period }),
            _ => Ok(Stops { time, period }),
        }
    }

    /// The time that the thread stands still in every period.
    pub fn time(self) -> Nanos {
        self.time
    }

    /// The length of the interval.
    pub fn period(self) -> Nanos {
        self.period
    }

    /// The longest stop time in a closed interval of this length.
    pub fn within(self, interval: Nanos) -> Nanos {
        let count = 1 + interval.0 / self.period.0;
        Nanos(self.time.0.saturating_mul(count))
    }

    /// The stops as a demand.
    pub(super) fn demand(self, scale: Scale) -> Demand {
        Demand {
            deadline: 0,
            growth: Growth::Steps(Steps {
                cost: scale.ticks(self.time),
                numerator: 1,
                denominator: scale.ticks(self.period),
            }),
            cap: None,
            piece: 0,
            in_leftover: false,
            tested_from: None,
        }
    }
}

impl fmt::Display for Stops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.time, self.period)
    }
}

/// Why a text or two times are no stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadStops {
    /// The text has no slash.
    Form(alloc::string::String),
    /// One of the times does not parse.
    Time(UnitError),
    /// The time is zero.
    None,
    /// The time is not below the period.
    Whole {
        /// The time.
        time: Nanos,
        /// The period.
        period: Nanos,
    },
    /// The period is above [`Stops::LONGEST`].
    TooLong {
        /// The period.
        period: Nanos,
    },
}

impl fmt::Display for BadStops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadStops::Form(text) => write!(
                f,
                "stops `{text}` are not TIME/PERIOD: write for example 2ms/100ms"
            ),
            BadStops::Time(error) => write!(f, "stops: {error}"),
            BadStops::None => f.write_str("stops of 0 are none: leave the key out"),
            BadStops::Whole { time, period } => write!(
                f,
                "stops of {time} in every {period} leave no time: the time must be below the period"
            ),
            BadStops::TooLong { period } => write!(
                f,
                "a period of {period} for stops is more than the {} allowed",
                Stops::LONGEST
            ),
        }
    }
}

impl core::error::Error for BadStops {}

impl FromStr for Stops {
    type Err = BadStops;

    fn from_str(text: &str) -> Result<Stops, BadStops> {
        let (time, period) = text
            .split_once('/')
            .ok_or_else(|| BadStops::Form(text.into()))?;
        let parse = |text: &str| text.trim().parse::<Nanos>().map_err(BadStops::Time);
        Stops::new(parse(time)?, parse(period)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn stops_are_a_time_below_a_period() {
        let stops: Stops = "2ms/100ms".parse().expect("stops");
        assert_eq!(
            (stops.time(), stops.period()),
            (Nanos(2_000_000), Nanos(100_000_000))
        );
        assert_eq!(stops.to_string(), "2ms/100ms");
        assert_eq!(stops.within(Nanos(99_999_999)), Nanos(2_000_000));
        assert_eq!(stops.within(Nanos(100_000_000)), Nanos(4_000_000));
        for (text, part) in [
            ("2ms", "are not TIME/PERIOD"),
            ("0ms/100ms", "are none"),
            ("100ms/100ms", "stops of 100ms in every 100ms leave no time"),
            (
                "2ms/11s",
                "a period of 11s for stops is more than the 10s allowed",
            ),
            ("2/100ms", "stops: "),
            ("/", "stops: "),
        ] {
            let error = text.parse::<Stops>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
