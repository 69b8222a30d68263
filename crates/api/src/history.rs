//! What targets did a while ago.

use serde::{Deserialize, Serialize};

/// The answer to [`crate::Request::History`], and what `netnice show --history --json` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryDoc {
    /// The version of this document's form.
    pub version: u32,
    /// When the newest point ended, in nanoseconds since 1970 by the wall clock.
    pub until_ns: u64,
    /// How long a point is as a rule.
    pub step_ns: u64,
    /// The targets, by text.
    pub targets: Vec<TargetHistory>,
}

impl HistoryDoc {
    /// The version that is written here.
    pub const VERSION: u32 = 1;
}

/// The past of one target: columns of the same length, the eldest point first. Each point begins where the one before
/// it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetHistory {
    /// Who it is.
    pub target: String,
    /// The limit on what it sends that holds now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// The limit on what it receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// The limit on the sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both: Option<u64>,
    /// How long each point was, in nanoseconds.
    pub time_ns: Vec<u64>,
    /// Bit/s sent; of a target limited by `both`, all of it.
    pub up_rate: Vec<u64>,
    /// Bit/s received.
    pub down_rate: Vec<u64>,
    /// Packets dropped, in both directions.
    pub dropped_packets: Vec<u64>,
    /// The longest wait that was seen.
    pub queue_delay_ns: Vec<u64>,
}
