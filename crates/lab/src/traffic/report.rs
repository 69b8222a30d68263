//! The report that a traffic process prints at its end, as one JSON object. Reading a value from it
//! does not fail; a rate over a span without samples is `None`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::Cumulative;

/// The counts of a traffic process, which it prints at its end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// Start of the traffic (wall clock, ns): the time of `go` if the process waited for it.
    pub started_ns: u64,
    /// End of the traffic (wall clock, ns).
    pub ended_ns: u64,
    /// Payload bytes sent.
    pub sent: u64,
    /// Payload bytes received.
    pub received: u64,
    /// Wire bytes received, as the module defines them.
    pub received_wire: u64,
    /// Send calls: successful writes (TCP), all datagrams (UDP), or probes.
    pub sends: u64,
    /// Datagrams that were not sent, by the name of the error or the reason.
    pub refused: BTreeMap<String, u64>,
    /// Processor time in user mode in ns.
    pub user_ns: u64,
    /// Processor time in the kernel in ns.
    pub system_ns: u64,
    /// Samples over time: wall clock in ns, then the bytes so far: payload sent, wire bytes
    /// received, payload received.
    pub series: Vec<(u64, u64, u64, u64)>,
    /// Round trips of a probe: time of sending (wall clock, ns), and duration in ns.
    pub round_trips: Vec<(u64, u64)>,
    /// When a direct source gave its first packet to the driver (wall clock, ns); 0 if it did not.
    #[serde(default)]
    pub first_ns: u64,
    /// Stops of a direct program's thread: start (wall clock) and length, both in ns.
    #[serde(default)]
    pub stops: Vec<(u64, u64)>,
    /// Segments that a direct TCP program sent again, over the connections that it made and that
    /// were open at its end.
    #[serde(default)]
    pub retransmitted: u64,
    /// UDP probes without a reply; at a direct sink, packets that the driver counted as lost.
    pub lost: u64,
}

impl Report {
    /// Mean rate of received wire bytes between two moments, in bit/s; `None` if the samples do not
    /// span them.
    pub fn received_rate(&self, from_ns: u64, to_ns: u64) -> Option<f64> {
        self.received().rate(from_ns, to_ns)
    }

    /// Received wire bytes over time.
    pub(crate) fn received(&self) -> Cumulative {
        self.series.iter().map(|s| (s.0, s.2)).collect()
    }

    /// Received payload bytes over time.
    pub(crate) fn received_payload(&self) -> Cumulative {
        self.series.iter().map(|s| (s.0, s.3)).collect()
    }

    /// Processor time as a share of one processor: 1 means all of it.
    pub(crate) fn cpu_share(&self) -> f64 {
        (self.user_ns + self.system_ns) as f64
            / self.ended_ns.saturating_sub(self.started_ns).max(1) as f64
    }
}
