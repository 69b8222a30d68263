//! The traffic of every program on the host ([`ProgramsDoc`]), whether or not it belongs to a
//! target, for `netnice top` and `netnice show --all`. No function fails.
//!
//! Rates are in bit/s, over the time between the last two readings; bytes are those since counting
//! began. Both are layer-2 bytes. Zeros, absent values and empty lists are omitted.

use serde::{Deserialize, Serialize};

/// The response to [`crate::Request::Programs`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramsDoc {
    /// Time of the reading, in nanoseconds by the machine's monotonic clock.
    pub at_ns: u64,
    /// When counting began, by the same clock.
    pub since_ns: u64,
    /// The programs that the caller may see, those with the most traffic first.
    pub list: Vec<ProgramDoc>,
    /// The programs that the caller may see and the list has no room for.
    #[serde(skip_serializing_if = "TrafficSum::is_zero")]
    pub more: TrafficSum,
    /// Programs that the caller may see and that have ended.
    #[serde(skip_serializing_if = "TrafficSum::is_zero")]
    pub ended: TrafficSum,
    /// Traffic of sockets for which no process is known: those of the kernel, and those that were
    /// closed before their process was found.
    #[serde(skip_serializing_if = "TrafficSum::is_zero")]
    pub unknown: TrafficSum,
    /// Traffic of the caller's sockets (for root and the group `netnice`: of any user's) that is
    /// not counted by program, because the table of sockets had no room.
    #[serde(skip_serializing_if = "TrafficSum::is_zero")]
    pub overflow: TrafficSum,
    /// For callers other than root and the group `netnice`: all that they may not see.
    #[serde(skip_serializing_if = "TrafficSum::is_zero")]
    pub others: TrafficSum,
    /// The sum of all of these.
    pub total: TrafficSum,
    /// What is incomplete, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// The traffic of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramDoc {
    /// Process number.
    pub pid: u32,
    /// Start time in clock ticks since boot (proc_pid_stat(5), field 22).
    pub started: u64,
    /// The process's command name.
    pub command: String,
    /// The process's user id.
    pub uid: u32,
    /// The process's user: `root`, or `user` and the name or number.
    pub user: String,
    /// The unit of the system manager to which the process belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The container to which the process belongs: the first digits of the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The innermost target to which the process belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Sent, in bit/s.
    #[serde(skip_serializing_if = "is_zero")]
    pub up_rate: u64,
    /// Received, in bit/s.
    #[serde(skip_serializing_if = "is_zero")]
    pub down_rate: u64,
    /// Bytes sent.
    #[serde(skip_serializing_if = "is_zero")]
    pub up_bytes: u64,
    /// Bytes received.
    #[serde(skip_serializing_if = "is_zero")]
    pub down_bytes: u64,
    /// Number of sockets that sent or received in the last 10 s.
    #[serde(skip_serializing_if = "is_zero")]
    pub connections: u64,
    /// The process has ended.
    #[serde(skip_serializing_if = "crate::request::is_false")]
    pub ended: bool,
}

/// The traffic of several programs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficSum {
    /// Number of programs; 0 where it is not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub programs: u64,
    /// Sent, in bit/s.
    #[serde(skip_serializing_if = "is_zero")]
    pub up_rate: u64,
    /// Received, in bit/s.
    #[serde(skip_serializing_if = "is_zero")]
    pub down_rate: u64,
    /// Bytes sent.
    #[serde(skip_serializing_if = "is_zero")]
    pub up_bytes: u64,
    /// Bytes received.
    #[serde(skip_serializing_if = "is_zero")]
    pub down_bytes: u64,
}

impl TrafficSum {
    /// True if the sum has no program and no traffic.
    pub fn is_zero(&self) -> bool {
        *self == TrafficSum::default()
    }

    /// Adds another sum. Each amount saturates at 2^64 - 1.
    pub fn add(&mut self, other: TrafficSum) {
        let pairs = [
            (&mut self.programs, other.programs),
            (&mut self.up_rate, other.up_rate),
            (&mut self.down_rate, other.down_rate),
            (&mut self.up_bytes, other.up_bytes),
            (&mut self.down_bytes, other.down_bytes),
        ];
        for (sum, one) in pairs {
            *sum = sum.saturating_add(one);
        }
    }
}

impl From<&ProgramDoc> for TrafficSum {
    fn from(program: &ProgramDoc) -> TrafficSum {
        TrafficSum {
            programs: 1,
            up_rate: program.up_rate,
            down_rate: program.down_rate,
            up_bytes: program.up_bytes,
            down_bytes: program.down_bytes,
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
