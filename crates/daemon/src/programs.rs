//! The traffic of every program on the host, whether or not it belongs to a target, for
//! `netnice top` and `netnice show --all`.
//!
//! ```text
//!   request ──> counting ──────────────> a thread, while clients ask: reads the kernel's counts
//!                  │                       │   owners: which process has a socket
//!   response <── snapshot <── accounts <───┘   accounts: the sums of programs
//! ```
//!
//! Each request of an unprivileged user is charged to the quota `counting-time` first
//! (`counting_times`).
//!
//! The eBPF programs that count ([`netnice_kernel::usage`]) are attached only while that thread
//! runs. It begins with a request and ends some seconds after the last one. The event loop never
//! waits for it. No function of this module fails; a failure to load or to read is the result of
//! the request.

mod accounts;
mod counting;
mod counting_times;
mod owners;

use std::collections::HashMap;

use netnice_core::units::{Instant, Nanos};
use netnice_kernel::usage::Counts;

pub(crate) use counting::{Counted, ProgramCounting, Submitted};
pub(crate) use counting_times::CountingTimes;

use crate::ledger::ProcessId;

/// The traffic of all programs at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The time of the reading.
    pub at: Instant,
    /// When counting began.
    pub since: Instant,
    /// The time between this reading and the one before; 0 for the first.
    pub interval: Nanos,
    /// The programs with traffic since counting began, in any order.
    pub programs: Vec<ProgramTraffic>,
    /// By user id: programs that ended, and their number.
    pub ended: Vec<(u32, u64, Moved)>,
    /// Sockets for which no process is known.
    pub unknown: Moved,
    /// By user id: sockets for which the kernel's table had no room.
    pub overflow: Vec<(u32, Moved)>,
    /// Packets that are in the kernel's total and in none of its tables.
    pub missing: Moved,
    /// What is incomplete, and why.
    pub remarks: Vec<String>,
    /// What the UDP sockets moved.
    pub datagrams: DatagramBytes,
}

/// By cookie of a UDP socket: bytes sent and received since counting began. The kernel itself does
/// not count them.
pub(crate) type DatagramBytes = HashMap<u64, [u64; 2]>;

/// The traffic of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramTraffic {
    /// The process that runs the program.
    pub process: ProcessId,
    /// The program's real uid, as it was while the process lived.
    pub uid: u32,
    /// The program's command name.
    pub command: String,
    /// The path of the process's control group.
    pub cgroup: Option<String>,
    /// The bytes and packets that the program sent and received.
    pub moved: Moved,
    /// The number of the program's sockets that sent or received recently.
    pub connections: u64,
    /// True if the process has ended.
    pub ended: bool,
}

/// What was counted since counting began, and since the reading before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Since counting began.
    pub all: Counts,
    /// Since the reading before.
    pub recent: Counts,
}

impl Moved {
    /// Adds counts that are new since the reading before.
    fn credit(&mut self, new: Counts) {
        self.all.add(new);
        self.recent.add(new);
    }

    /// Adds the traffic of another program.
    pub(crate) fn add(&mut self, other: Moved) {
        self.all.add(other.all);
        self.recent.add(other.recent);
    }
}
