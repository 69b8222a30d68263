//! The recorded history of targets ([`HistoryDoc`]), as `netnice show --history --json` prints it:
//! rates, drops and queueing delays in successive intervals (*points*) of about a second or a
//! minute. Each quantity is a column with one value for each point. The types are plain data, and
//! no function fails.

use serde::{Deserialize, Serialize};

/// The response to [`crate::Request::History`], and the output of `netnice show --history --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryDoc {
    /// Version of this document's format.
    pub version: u32,
    /// End of the newest point, in nanoseconds since 1970 by the wall clock.
    pub until_ns: u64,
    /// Usual length of a point, in nanoseconds: a second or a minute. [`TargetHistory::time_ns`]
    /// has the measured length of each point.
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
    /// Current effective limit on sending, in bit/s. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// Current effective limit on receiving, in bit/s. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// Current effective limit on the sum of both directions, in bit/s. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both: Option<u64>,
    /// Length of each point, in nanoseconds, rounded down to milliseconds.
    pub time_ns: Vec<u64>,
    /// Mean rate of sending in each point, in bit/s. For a target with a `both` limit: of sending
    /// and receiving together.
    pub up_rate: Vec<u64>,
    /// Mean rate of receiving in each point, in bit/s. 0 for a target with a `both` limit.
    pub down_rate: Vec<u64>,
    /// Packets dropped in each point, in both directions together.
    pub dropped_packets: Vec<u64>,
    /// Longest queueing delay that was measured in each point, in nanoseconds.
    pub queue_delay_ns: Vec<u64>,
}
