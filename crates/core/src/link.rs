//! A managed link: an interface whose rate is known, so that parts of it can be promised.
//!
//! A link is managed once somebody says what it carries: the operator, or the driver that
//! reports a speed. Sending can be promised up to the whole rate. Receiving cannot: the queue
//! that decides is at the other end of the wire, and it only stays empty while less arrives than
//! fits. So receive guarantees, and the stage that keeps them, run at [`RECEIVE_PERCENT`] of the
//! receive rate.

use core::fmt;

use crate::contract::{Direction, IfName};
use crate::units::{Bytes, Rate};

/// An interface that guarantees can be given on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The interface.
    pub name: IfName,
    /// What it carries in the sending direction; nothing if that is not managed.
    pub up: Option<Capacity>,
    /// What it carries in the receiving direction; nothing if that is not managed.
    pub down: Option<Capacity>,
    /// Bytes that the wire adds to each packet beyond layer 2 (24 for Ethernet's preamble, check
    /// sum and gap); counted with every packet.
    pub overhead: Bytes,
}

impl Link {
    /// More bytes for each packet than any link layer adds.
    pub const MOST_OVERHEAD: Bytes = Bytes(512);

    /// The capacity in one direction, as it was given.
    pub fn capacity(&self, direction: Direction) -> Option<Capacity> {
        match direction {
            Direction::Up => self.up,
            Direction::Down => self.down,
        }
    }

    /// What can be promised in one direction: all of the sending rate, 97 % of the receiving
    /// rate, rounded down. Nothing if the direction is not managed, or if 97 % of its rate is
    /// below the smallest rate.
    pub fn usable(&self, direction: Direction) -> Option<Rate> {
        let rate = self.capacity(direction)?.rate;
        match direction {
            Direction::Up => Some(rate),
            Direction::Down => rate.portion(RECEIVE_PERCENT, 100),
        }
    }
}

/// What a link carries, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// Layer-2 bit/s.
    pub rate: Rate,
    /// Where the rate is known from.
    pub source: CapacitySource,
}

/// Where a link's rate is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CapacitySource {
    /// Somebody typed it.
    Operator,
    /// The driver of the interface reports this speed.
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

/// Of the receive rate, what is promised and let through: measured to keep the sender's queue
/// empty against TCP and against UDP that fits the wire.
pub const RECEIVE_PERCENT: u64 = 97;
