//! The counters of targets and their meaning. [`COUNTERS`] declares each counter once: its name,
//! its unit, its meaning, and the function that reads it from [`DirectionCounters`]. Code that
//! shows, exports or sums counters uses this table.
//!
//! A target has one set of counters for each direction ([`Meter`]). The *limiter* is what can delay
//! or drop the target's packets in that direction. Bytes are those of layer 2. `queued_packets`,
//! `queued_bytes` and `queue_delay_ns` are present values (levels); all other counters only grow.
//! One conservation law holds for packets and for bytes:
//!
//! ```text
//! offered = sent + dropped + queued
//! ```
//!
//! [`DirectionCounters::balanced`] checks it. Nothing in this module fails.

use crate::contract::Direction;

/// The counters of one target in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    /// Packets that reached the limiter.
    pub offered_packets: u64,
    /// Bytes that reached the limiter.
    pub offered_bytes: u64,
    /// Packets that left the limiter, for the wire or for the program.
    pub sent_packets: u64,
    /// Bytes that left the limiter, for the wire or for the program.
    pub sent_bytes: u64,
    /// Packets that the limiter dropped, on arrival at a full queue or later.
    pub dropped_packets: u64,
    /// Bytes that the limiter dropped, on arrival at a full queue or later.
    pub dropped_bytes: u64,
    /// Packets in the queue now.
    pub queued_packets: u64,
    /// Bytes in the queue now.
    pub queued_bytes: u64,
    /// Expected waiting time of a packet that arrives now, in nanoseconds: the queued bytes at the
    /// limit's rate. 0 without a limit.
    pub queue_delay_ns: u64,
    /// Number of times that the limit was reached, so that the next packet had to wait.
    pub held_back: u64,
}

impl DirectionCounters {
    /// Whether the module's conservation law holds for packets and for bytes. `false` if a sum
    /// overflows.
    pub fn balanced(&self) -> bool {
        let adds = |sum: u64, parts: [u64; 3]| {
            parts.into_iter().try_fold(0_u64, u64::checked_add) == Some(sum)
        };
        adds(
            self.offered_packets,
            [self.sent_packets, self.dropped_packets, self.queued_packets],
        ) && adds(
            self.offered_bytes,
            [self.sent_bytes, self.dropped_bytes, self.queued_bytes],
        )
    }
}

/// The counters of one target. "With `both`" means here that the target has a limit on the sum of
/// both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Packets that the target sends. With `both`, packets of both directions.
    pub up: DirectionCounters,
    /// Packets that the target receives. With `both` all zero, because `up` counts them.
    pub down: DirectionCounters,
}

impl Meter {
    /// The counters of one direction. With `both`, those of `up` count both directions.
    pub fn counters(&self, direction: Direction) -> &DirectionCounters {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }
}

/// The unit of a counter's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets.
    Packets,
    /// Layer-2 bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// Number of events.
    Times,
}

/// The role of a counter in the module's conservation law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The left side of the law (`offered`): the sum of all [`Role::Part`] counters of the same
    /// unit.
    Total,
    /// One term of the right side of the law: `sent`, `dropped` or `queued`.
    Part,
    /// The counter is not part of the law.
    Alone,
}

/// The declaration of one counter.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// Name in `netnice show --json`. Names in exports are derived from it.
    pub name: &'static str,
    /// Unit of the values that `read` returns.
    pub unit: Unit,
    /// The counter's role in the conservation law.
    pub role: Role,
    /// `true` for a level, which rises and falls; `false` for a count, which only grows.
    pub level: bool,
    /// Meaning, in one line.
    pub description: &'static str,
    /// Reads the counter's value from a [`DirectionCounters`].
    pub read: fn(&DirectionCounters) -> u64,
}

/// The declarations of all counters, one for each field of [`DirectionCounters`].
pub const COUNTERS: [Counter; 10] = [
    Counter {
        name: "offered_packets",
        unit: Unit::Packets,
        role: Role::Total,
        level: false,
        description: "packets that reached the limiter",
        read: |counters| counters.offered_packets,
    },
    Counter {
        name: "offered_bytes",
        unit: Unit::Bytes,
        role: Role::Total,
        level: false,
        description: "bytes that reached the limiter",
        read: |counters| counters.offered_bytes,
    },
    Counter {
        name: "sent_packets",
        unit: Unit::Packets,
        role: Role::Part,
        level: false,
        description: "packets that left the limiter",
        read: |counters| counters.sent_packets,
    },
    Counter {
        name: "sent_bytes",
        unit: Unit::Bytes,
        role: Role::Part,
        level: false,
        description: "bytes that left the limiter",
        read: |counters| counters.sent_bytes,
    },
    Counter {
        name: "dropped_packets",
        unit: Unit::Packets,
        role: Role::Part,
        level: false,
        description: "packets that the limiter dropped, on arrival at a full queue or later",
        read: |counters| counters.dropped_packets,
    },
    Counter {
        name: "dropped_bytes",
        unit: Unit::Bytes,
        role: Role::Part,
        level: false,
        description: "bytes that the limiter dropped, on arrival at a full queue or later",
        read: |counters| counters.dropped_bytes,
    },
    Counter {
        name: "queued_packets",
        unit: Unit::Packets,
        role: Role::Part,
        level: true,
        description: "packets in the queue now",
        read: |counters| counters.queued_packets,
    },
    Counter {
        name: "queued_bytes",
        unit: Unit::Bytes,
        role: Role::Part,
        level: true,
        description: "bytes in the queue now",
        read: |counters| counters.queued_bytes,
    },
    Counter {
        name: "queue_delay_ns",
        unit: Unit::Nanoseconds,
        role: Role::Alone,
        level: true,
        description: "expected waiting time of a packet that arrives now",
        read: |counters| counters.queue_delay_ns,
    },
    Counter {
        name: "held_back",
        unit: Unit::Times,
        role: Role::Alone,
        level: false,
        description: "times that a packet waited because the limit was reached",
        read: |counters| counters.held_back,
    },
];

#[cfg(test)]
mod tests;
