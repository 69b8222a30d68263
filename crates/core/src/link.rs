//! Managed links. A [`Link`] is an interface whose capacity is known, so that admission can promise
//! parts of that capacity.
//!
//! The capacity is a figure of the operator or of the interface's driver. Admission can promise the
//! whole sending rate. It cannot promise the whole receiving rate: the queue that determines the
//! delay is at the other end of the wire, and that queue stays empty only while less arrives than
//! the wire carries. So receive guarantees, and the stage that enforces them, use
//! [`RECEIVE_PERCENT`] of the receiving rate.
//!
//! The capacity can also be an estimate, which changes while the link is used. Admission promises
//! the lower bound of the estimate, which the operator gives, so that no promise depends on an
//! estimate. Only [`EstimateBounds::new`] can fail.

pub mod classes;

use core::fmt;

use crate::contract::{Direction, IfName};
use crate::units::{Bytes, Nanos, Rate};

/// An interface whose capacity is known; guarantees refer to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The interface's name.
    pub name: IfName,
    /// Capacity in the sending direction; `None` if that direction is not managed.
    pub up: Option<Capacity>,
    /// Capacity in the receiving direction; `None` if that direction is not managed.
    pub down: Option<Capacity>,
    /// Bytes that the wire adds to each packet beyond layer 2 (24 for Ethernet's preamble, checksum
    /// and gap). They count against the link's rate. At most [`Link::MAX_OVERHEAD`].
    pub overhead: Bytes,
    /// How long before its logical arrival a packet of a `channel` may leave, in time that no other
    /// packet uses. At most [`Link::MAX_HORIZON`].
    pub horizon: Nanos,
}

impl Link {
    /// The longest [`Link::horizon`] that the policy file, requests and the command line may set.
    pub const MAX_HORIZON: Nanos = Nanos::from_secs(1);

    /// The largest [`Link::overhead`] that the policy file, requests and the command line may set.
    /// The field itself is not checked.
    pub const MAX_OVERHEAD: Bytes = Bytes(512);

    /// The capacity in one direction, before [`RECEIVE_PERCENT`] is applied; `None` if the
    /// direction is not managed.
    pub fn capacity(&self, direction: Direction) -> Option<Capacity> {
        match direction {
            Direction::Up => self.up,
            Direction::Down => self.down,
        }
    }

    /// The rate that admission can promise in one direction: the whole sending rate, or 97 % of the
    /// receiving rate, rounded down. Of an estimated rate, the lower bound stands for the rate.
    /// `None` if the direction is not managed, or if 97 % of its rate is below [`Rate::MIN`].
    pub fn usable(&self, direction: Direction) -> Option<Rate> {
        let capacity = self.capacity(direction)?;
        portion(capacity.certain(), direction)
    }

    /// The rate of the link's classes in one direction: as [`Link::usable`], but of the present
    /// estimate if the rate is an estimate.
    pub fn shaped(&self, direction: Direction) -> Option<Rate> {
        portion(self.capacity(direction)?.rate, direction)
    }

    /// True if the rate of a direction is an estimate.
    pub fn is_estimated(&self) -> bool {
        let capacities = [self.up, self.down];
        let mut capacities = capacities.iter().flatten();
        capacities.any(|capacity| capacity.bounds().is_some())
    }
}

/// The part of a link's rate that its classes let through.
fn portion(rate: Rate, direction: Direction) -> Option<Rate> {
    match direction {
        Direction::Up => Some(rate),
        Direction::Down => rate.portion(RECEIVE_PERCENT, 100),
    }
}

/// The rate of a link in one direction, and the source of that value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// The rate. It carries the layer 2 bytes of each packet and [`Link::overhead`].
    pub rate: Rate,
    /// The source of the rate.
    pub source: CapacitySource,
}

impl Capacity {
    /// The rate that the link is assumed to carry at any time: the lower bound of an estimate, else
    /// the rate.
    pub fn certain(&self) -> Rate {
        self.bounds().map_or(self.rate, |bounds| bounds.min())
    }

    /// The bounds of the estimate; `None` if the rate is no estimate.
    pub fn bounds(&self) -> Option<EstimateBounds> {
        match self.source {
            CapacitySource::Estimate(bounds) => Some(bounds),
            CapacitySource::Operator | CapacitySource::Driver => None,
        }
    }

    /// This capacity with another rate, for a search of the smallest rate that would do. Of an
    /// estimate, the lower bound becomes that rate, because only this bound can be promised.
    pub(crate) fn with_certain(self, rate: Rate) -> Capacity {
        let source = match self.source {
            CapacitySource::Estimate(bounds) => CapacitySource::Estimate(EstimateBounds {
                min: rate,
                max: bounds.max.max(rate),
            }),
            source => source,
        };
        Capacity { rate, source }
    }
}

/// The bounds of an estimated rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EstimateBounds {
    min: Rate,
    max: Rate,
}

impl EstimateBounds {
    /// Bounds from `min` to `max`; `None` if `min` is above `max`.
    pub fn new(min: Rate, max: Rate) -> Option<EstimateBounds> {
        (min <= max).then_some(EstimateBounds { min, max })
    }

    /// The lower bound: the rate that the link carries at any time, as the operator states.
    pub fn min(self) -> Rate {
        self.min
    }

    /// The upper bound: the highest rate that the link can have.
    pub fn max(self) -> Rate {
        self.max
    }

    /// The rate nearest to `rate` within the bounds.
    pub fn clamp(self, rate: Rate) -> Rate {
        rate.clamp(self.min, self.max)
    }

    /// The rate in the middle, in proportion: the geometric mean of the bounds, rounded down. An
    /// estimate starts from it, and returns to it while the link is idle.
    pub fn middle(self) -> Rate {
        let product =
            u128::from(self.min.bits_per_second()) * u128::from(self.max.bits_per_second());
        let middle = u64::try_from(product.isqrt()).ok().and_then(Rate::new);
        self.clamp(middle.unwrap_or(self.min))
    }
}

/// The source of a link's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CapacitySource {
    /// The operator gave the rate.
    Operator,
    /// The interface's driver reports the rate.
    Driver,
    /// The daemon estimates the rate from delays, within these bounds.
    Estimate(EstimateBounds),
}

impl fmt::Display for CapacitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CapacitySource::Operator => f.pad("given by the operator"),
            CapacitySource::Driver => f.pad("reported by the driver"),
            CapacitySource::Estimate(bounds) => {
                let (min, max) = (bounds.min, bounds.max);
                write!(f, "an estimate from delays, from {min:#} to {max:#}")
            }
        }
    }
}

/// The percentage of the receiving rate that is promised and let through. In measurements at this
/// percentage, the queue at the other end of the wire stayed empty with TCP, and with UDP traffic
/// below the rate of the wire.
pub const RECEIVE_PERCENT: u64 = 97;

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(bits: u64) -> Rate {
        Rate::new(bits).expect("a rate")
    }

    fn estimated(now: u64, min: u64, max: u64) -> Capacity {
        let bounds = EstimateBounds::new(rate(min), rate(max)).expect("bounds");
        Capacity {
            rate: rate(now),
            source: CapacitySource::Estimate(bounds),
        }
    }

    #[test]
    fn only_the_lower_bound_of_an_estimate_can_be_promised() {
        let link = Link {
            name: "eth0".parse().expect("a name"),
            up: Some(estimated(20_000_000, 2_000_000, 100_000_000)),
            down: Some(estimated(40_000_000, 10_000_000, 100_000_000)),
            overhead: Bytes(0),
            horizon: Nanos(0),
        };
        assert_eq!(link.usable(Direction::Up), Some(rate(2_000_000)));
        assert_eq!(link.shaped(Direction::Up), Some(rate(20_000_000)));
        assert_eq!(link.usable(Direction::Down), Some(rate(9_700_000)));
        assert_eq!(link.shaped(Direction::Down), Some(rate(38_800_000)));
        assert!(link.is_estimated());
    }

    #[test]
    fn bounds_are_in_order_and_their_middle_is_inside() {
        assert_eq!(EstimateBounds::new(rate(10_000), rate(9_000)), None);
        for (min, max, middle) in [
            (1_000_000, 100_000_000, 10_000_000),
            (8_000, 8_000, 8_000),
            (1_000_000, 2_000_000, 1_414_213),
        ] {
            let bounds = EstimateBounds::new(rate(min), rate(max)).expect("bounds");
            assert_eq!(bounds.middle(), rate(middle));
            assert_eq!(bounds.clamp(rate(4_000_000_000)), rate(max));
        }
    }
}
