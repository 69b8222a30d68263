//! The current rates in a compact form ([`WatchDoc`]), for `netnice top`, which requests them
//! repeatedly; and the connections of one target ([`ConnectionsDoc`]), for the same command.
//!
//! [`crate::ShowDoc`] contains every value of every target. [`WatchDoc`] contains only the values
//! of a table that is redrawn each second, so it is much shorter. Rates are in bit/s, times in
//! nanoseconds. Rates, delays and counts of zero are omitted, and so are absent values and empty
//! lists of reasons. No function fails.

use netnice_core::contract::Direction;
use serde::{Deserialize, Serialize};

/// The response to [`crate::Request::Watch`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchDoc {
    /// Time of the last reading, in nanoseconds by the machine's monotonic clock.
    pub at_ns: u64,
    /// Time of the last reading of the processor times, by the same clock; 0 if no target has a
    /// reservation of processor time.
    #[serde(skip_serializing_if = "is_zero")]
    pub processors_at_ns: u64,
    /// The managed links, sorted by name.
    pub links: Vec<WatchedLink>,
    /// The targets, sorted by text.
    pub targets: Vec<Watched>,
}

/// The rates and guarantees of a managed link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchedLink {
    /// The interface.
    pub link: String,
    /// Rate of the link for sending, in bit/s. `None`: sending is not managed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// Rate of the link for receiving, in bit/s. `None`: receiving is not managed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// The promised rate for sending, in bit/s ([`crate::CapacityDoc::held`]).
    #[serde(skip_serializing_if = "is_zero")]
    pub up_held: u64,
    /// The promised rate for receiving, in bit/s ([`crate::CapacityDoc::held`]).
    #[serde(skip_serializing_if = "is_zero")]
    pub down_held: u64,
    /// True if the rate for sending is an estimate.
    #[serde(skip_serializing_if = "crate::request::is_false")]
    pub up_estimated: bool,
    /// True if the rate for receiving is an estimate.
    #[serde(skip_serializing_if = "crate::request::is_false")]
    pub down_estimated: bool,
    /// Reasons why the link is degraded; empty if it is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
}

/// The limits, minima and current traffic of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watched {
    /// The target as text.
    pub target: String,
    /// The command name of the target's first process; absent if the target does not consist of
    /// processes, or if the process has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The user of that process: `root`, or `user` and the name or number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Index in [`WatchDoc::targets`] of the nearest enclosing target. `None`: no target encloses
    /// this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside: Option<usize>,
    /// Effective limit on sending, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// Effective limit on receiving, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// Effective limit on the sum of sending and receiving, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both: Option<u64>,
    /// Minimum for sending (clause `min`), in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// Minimum for receiving (clause `min-down`), in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_down: Option<u64>,
    /// Sent traffic. For a target with a `both` limit: sent and received traffic.
    #[serde(skip_serializing_if = "Traffic::is_zero")]
    pub sends: Traffic,
    /// Received traffic. Zero for a target with a `both` limit, because `sends` includes it.
    #[serde(skip_serializing_if = "Traffic::is_zero")]
    pub receives: Traffic,
    /// Reasons why the target is degraded; empty if it is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
    /// The reserved processor time. Absent if none is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor_time: Option<crate::ProcessorTimeDoc>,
    /// The traffic quotas of its claims.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<crate::TrafficQuotaDoc>,
}

/// The traffic of one target in one direction: rates between the last two readings, and the
/// queueing delay at the last reading. The rates are 0 if these readings are more than 5 s apart,
/// or if the last one is older than 5 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// Rate of the forwarded packets, in bit/s.
    #[serde(skip_serializing_if = "is_zero")]
    pub rate: u64,
    /// Queueing delay of a packet that arrives at the last reading, in nanoseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub wait_ns: u64,
    /// Packets dropped per second, rounded up; 0 only if no packet was dropped.
    #[serde(skip_serializing_if = "is_zero")]
    pub drops: u64,
    /// Number of times per second that a packet waited because the limit was reached, rounded up.
    #[serde(skip_serializing_if = "is_zero")]
    pub held: u64,
}

impl Traffic {
    /// True if all values are 0: nothing was forwarded, delayed, dropped or held back.
    pub fn is_zero(&self) -> bool {
        *self == Traffic::default()
    }
}

impl Watched {
    /// The traffic in one direction.
    pub fn traffic(&self, direction: Direction) -> Traffic {
        match direction {
            Direction::Up => self.sends,
            Direction::Down => self.receives,
        }
    }

    /// The effective limit on one direction, in bit/s; `None` if there is none. A `both` limit
    /// applies to each direction.
    pub fn limit(&self, direction: Direction) -> Option<u64> {
        match direction {
            Direction::Up => self.up.or(self.both),
            Direction::Down => self.down.or(self.both),
        }
    }
}

/// The response to [`crate::Request::Connections`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionsDoc {
    /// The target as text.
    pub target: String,
    /// Time of the reading, in nanoseconds by the machine's monotonic clock.
    pub at_ns: u64,
    /// The connections, those with the most traffic first; at most 200.
    pub connections: Vec<Connection>,
    /// Number of further connections, beyond the 200.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
    /// Number of connections that are not listed because they belong to other users.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub of_others: u64,
}

/// One TCP or UDP connection of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The inode number of the socket.
    pub inode: u64,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Local address and port.
    pub local: String,
    /// Remote address and port; absent without a peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// TCP only: the state, by the kernel's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// TCP: bytes that the peer has acknowledged, if the kernel reports them. UDP: layer-2 bytes
    /// sent since counting began, while programs are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// TCP: bytes received, if the kernel reports them. UDP: as `sent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
