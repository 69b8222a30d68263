//! The recorded history of targets.

use serde::{Deserialize, Serialize};

/// The response to [`crate::Request::History`], and the output of `netnice show --history --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryDoc {
    /// Version of this document's format.
    pub version: u32,
    /// End of the newest point, in nanoseconds since 1970 by the wall clock.
    pub until_ns: u64,
    /// Usual length of a point, in nanoseconds.
    pub step_ns: u64,
    /// The targets, sorted by text.
    pub targets: Vec<TargetHistory>,
}

impl HistoryDoc {
    /// The version that this release writes.
    pub const VERSION: u32 = 1;
}

/// The history of one target, as columns of equal length, oldest point first. Each point begins
/// where the one before ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetHistory {
    /// The target as text.
    pub target: String,
    /// Current limit on sending, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// Current limit on receiving, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// Current limit on the sum, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both: Option<u64>,
    /// Length of each point, in nanoseconds.
    pub time_ns: Vec<u64>,
    /// Bit/s sent. For a target with a `both` limit: sent and received.
    pub up_rate: Vec<u64>,
    /// Bit/s received.
    pub down_rate: Vec<u64>,
    /// Dropped packets, in both directions.
    pub dropped_packets: Vec<u64>,
    /// Longest queueing delay that was measured, in nanoseconds.
    pub queue_delay_ns: Vec<u64>,
}
