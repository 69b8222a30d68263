//! The state of the daemon as `netnice show --json` prints it.
//!
//! Rates are integers in bit/s, times in nanoseconds, sizes in bytes. Everything that moves
//! without anybody changing anything is under `counters`; two documents of the same state are
//! equal but for those. What is not there is left out, except in the outermost fields.

use std::collections::BTreeMap;

use netnice_core::contract::{Bucket, Contract, Direction, Slice};
use netnice_core::link::{Capacity, CapacitySource, Link};
use netnice_core::meter::{COUNTERS, Flow, Meter};
use netnice_core::units::Amount;
use serde::{Deserialize, Serialize};

use crate::driver::FlowCounts;

/// The whole document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShowDoc {
    /// The version of this document's form.
    pub version: u32,
    /// The managed links, by name.
    pub links: Vec<LinkDoc>,
    /// The targets, by text.
    pub targets: Vec<TargetDoc>,
    /// The flows of the direct path, by number; others than root and the group `netnice` see their own.
    #[serde(default)]
    pub direct: Vec<FlowDoc>,
}

impl ShowDoc {
    /// The version that is written here.
    pub const VERSION: u32 = 1;
}

/// A flow of the direct path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowDoc {
    /// Its number, as a target: `flow:7`.
    pub flow: String,
    /// The interface.
    pub link: String,
    /// How its driver reaches that: `native`, `generic` or `fallback`.
    pub mode: String,
    /// Whose it is.
    pub pid: u32,
    /// Its command name.
    pub program: String,
    /// Its user.
    pub uid: u32,
    /// What it speaks, between whom.
    pub speaks: String,
    /// What was granted.
    pub contract: ContractDoc,
    /// The station that frames go to; nothing while it does not answer, and for flows to any host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub station: Option<String>,
    /// The longest packet of its way.
    pub mtu: u32,
    /// Why it is not served as it should, if it is not.
    pub degraded: Vec<String>,
    /// What has passed.
    pub counters: FlowCountersDoc,
}

/// What has passed of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCountersDoc {
    /// When this was read, on the machine's monotonic clock.
    pub at_ns: u64,
    /// What.
    #[serde(flatten)]
    pub counts: FlowCounts,
}

/// A managed link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDoc {
    /// The interface.
    pub link: String,
    /// The sending direction.
    pub up: Option<CapacityDoc>,
    /// The receiving direction.
    pub down: Option<CapacityDoc>,
    /// Bytes that the wire adds to each packet.
    pub overhead: u64,
    /// Whether its classes are in the kernel now.
    pub installed: bool,
    /// Why it does not serve as it should, if it does not.
    pub degraded: Vec<String>,
    /// What traffic without a target did on it; the rates are of all that its interface sends and receives.
    pub counters: CountersDoc,
}

/// What a link carries in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityDoc {
    /// Its rate.
    pub rate: u64,
    /// Where that is known from: `operator` or `driver`.
    pub source: String,
    /// What can be promised of it.
    pub usable: u64,
    /// What is promised to top-level targets.
    pub held: u64,
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetDoc {
    /// Who it is.
    pub target: String,
    /// What was asked for it, all claims together.
    pub contract: ContractDoc,
    /// What holds: the contract together with the limits of the targets around it, and with its
    /// link named.
    pub effective: ContractDoc,
    /// What the kernel was told; nothing if nothing is installed.
    pub installed: Option<InstalledDoc>,
    /// Why it is not served as it should, if it is not.
    pub degraded: Vec<String>,
    /// What has passed.
    pub counters: CountersDoc,
}

/// A contract, clause by clause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContractDoc {
    /// Limit on what is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// Limit on what is received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// Limit on the sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both: Option<u64>,
    /// Guarantee for sending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// Guarantee for receiving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_down: Option<u64>,
    /// The link of the guarantees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Share of what is left over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Order in what is left over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Burst of the limits, as time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_ns: Option<u64>,
    /// A slice of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<SliceDoc>,
    /// A slice of a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<SliceDoc>,
    /// A cell contract.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<CellDoc>,
    /// A real-time channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<ChannelDoc>,
    /// Which user's claim decides a clause, by the clause's word.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set_by: BTreeMap<String, u32>,
}

/// A slice per period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceDoc {
    /// The slice.
    pub slice_ns: u64,
    /// The period.
    pub period_ns: u64,
    /// Whether left-over comes beside it.
    pub extra: bool,
}

/// A cell contract.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellDoc {
    /// Peak rate.
    pub pcr: u64,
    /// Tolerance.
    pub cdvt_ns: u64,
    /// Sustained rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scr: Option<u64>,
    /// Largest burst, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbs: Option<u64>,
    /// `single` or `dual`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
}

/// A real-time channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelDoc {
    /// Largest message, in bytes.
    pub mmax: u64,
    /// Messages per second.
    pub rmax: u32,
    /// Messages in a burst.
    pub bmax: u32,
    /// Bound on the delay.
    pub deadline_ns: u64,
}

/// What the kernel was told for a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstalledDoc {
    /// `kernel` or `direct`.
    pub path: String,
    /// The rate of the class that limits sending, or both directions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// The rate of the class that limits receiving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// The guaranteed rate for sending, on the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// The guaranteed rate for receiving, on the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_down: Option<u64>,
    /// The burst, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u64>,
    /// What queues inside: `fq_codel` or `sparse+bulk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
}

/// What has passed, by the names of [`netnice_core::meter::COUNTERS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountersDoc {
    /// When this was read, on the machine's monotonic clock.
    pub at_ns: u64,
    /// Sending.
    pub up: BTreeMap<String, u64>,
    /// Receiving.
    pub down: BTreeMap<String, u64>,
    /// Bit/s sent over the last second or so, if that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_rate: Option<u64>,
    /// Bit/s received over the last second or so, if that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_rate: Option<u64>,
}

impl CountersDoc {
    /// The counters of a target, read at `at_ns`.
    pub fn new(at_ns: u64, meter: &Meter) -> CountersDoc {
        let named = |flow: &Flow| {
            let pair = |counter: &netnice_core::meter::Counter| {
                (counter.name.to_string(), (counter.read)(flow))
            };
            COUNTERS.iter().map(pair).collect()
        };
        CountersDoc {
            at_ns,
            up: named(&meter.up),
            down: named(&meter.down),
            up_rate: None,
            down_rate: None,
        }
    }

    /// The same with the rates of the last second or so.
    pub fn with_rates(self, up: Amount, down: Amount) -> CountersDoc {
        CountersDoc {
            up_rate: Some(up.0),
            down_rate: Some(down.0),
            ..self
        }
    }

    /// The rate of the last second or so in one direction, if it was measured.
    pub fn rate(&self, direction: Direction) -> Option<Amount> {
        match direction {
            Direction::Up => self.up_rate.map(Amount),
            Direction::Down => self.down_rate.map(Amount),
        }
    }

    /// One counter in one direction; zero if it was not read.
    pub fn get(&self, direction: Direction, name: &str) -> u64 {
        let counters = match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        };
        counters.get(name).copied().unwrap_or(0)
    }
}

impl From<&Contract> for ContractDoc {
    fn from(contract: &Contract) -> ContractDoc {
        let bits = |rate: netnice_core::units::Rate| rate.bits_per_second();
        ContractDoc {
            up: contract.up().map(bits),
            down: contract.down().map(bits),
            both: contract.both().map(bits),
            min: contract.min(Direction::Up).map(bits),
            min_down: contract.min(Direction::Down).map(bits),
            on: contract.on().map(ToString::to_string),
            weight: contract.weight().map(|weight| weight.get()),
            priority: contract.priority().map(|priority| priority.get()),
            burst_ns: contract.burst().map(|burst| burst.0),
            slice: contract.slice().map(SliceDoc::from),
            cpu: contract.cpu().map(SliceDoc::from),
            cell: contract.cell().map(|cell| CellDoc {
                pcr: bits(cell.pcr()),
                cdvt_ns: cell.cdvt().0,
                scr: cell.sustained().map(|s| bits(s.scr)),
                mbs: cell.sustained().map(|s| s.mbs.0),
                bucket: cell.sustained().map(|s| match s.bucket {
                    Bucket::Single => "single".to_string(),
                    Bucket::Dual => "dual".to_string(),
                }),
            }),
            channel: contract.channel().map(|channel| ChannelDoc {
                mmax: channel.mmax().0,
                rmax: channel.rmax().get(),
                bmax: channel.bmax(),
                deadline_ns: channel.deadline().0,
            }),
            set_by: BTreeMap::new(),
        }
    }
}

impl From<Slice> for SliceDoc {
    fn from(slice: Slice) -> SliceDoc {
        SliceDoc {
            slice_ns: slice.slice().0,
            period_ns: slice.period().0,
            extra: slice.extra(),
        }
    }
}

impl LinkDoc {
    /// A link with what is promised on it to top-level targets, up and down.
    pub fn new(link: &Link, held: [Amount; 2]) -> LinkDoc {
        let capacity = |direction: Direction, held: Amount| {
            let Capacity { rate, source } = link.capacity(direction)?;
            Some(CapacityDoc {
                rate: rate.bits_per_second(),
                source: match source {
                    CapacitySource::Operator => "operator".to_string(),
                    CapacitySource::Driver => "driver".to_string(),
                },
                usable: link
                    .usable(direction)
                    .map_or(0, |rate| rate.bits_per_second()),
                held: held.0,
            })
        };
        LinkDoc {
            link: link.name.to_string(),
            up: capacity(Direction::Up, held[0]),
            down: capacity(Direction::Down, held[1]),
            overhead: link.overhead.0,
            ..LinkDoc::default()
        }
    }
}

#[cfg(test)]
mod tests;
