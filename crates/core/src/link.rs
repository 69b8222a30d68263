//! Managed links. A [`Link`] is an interface whose capacity is known, so that admission can promise
//! parts of that capacity.
//!
//! The capacity is a figure of the operator or of the interface's driver. Admission can promise the
//! whole sending rate. It cannot promise the whole receiving rate: the queue that determines the
//! delay is at the other end of the wire, and that queue stays empty only while less arrives than
//! the wire carries. So receive guarantees, and the stage that enforces them, use
//! [`RECEIVE_PERCENT`] of the receiving rate. Nothing in this module fails.

use core::fmt;

use crate::contract::{Direction, IfName};
use crate::units::{Bytes, Rate};

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
}

impl Link {
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
    /// receiving rate, rounded down. `None` if the direction is not managed, or if 97 % of its rate
    /// is below [`Rate::MIN`].
    pub fn usable(&self, direction: Direction) -> Option<Rate> {
        let rate = self.capacity(direction)?.rate;
        match direction {
            Direction::Up => Some(rate),
            Direction::Down => rate.portion(RECEIVE_PERCENT, 100),
        }
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

/// The source of a link's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CapacitySource {
    /// The operator gave the rate.
    Operator,
    /// The interface's driver reports the rate.
    Driver,
}

impl fmt::Display for CapacitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CapacitySource::Operator => "given by the operator",
            CapacitySource::Driver => "reported by the driver",
        })
    }
}

/// The percentage of the receiving rate that is promised and let through. In measurements at this
/// percentage, the queue at the other end of the wire stayed empty with TCP, and with UDP traffic
/// below the rate of the wire.
pub const RECEIVE_PERCENT: u64 = 97;
