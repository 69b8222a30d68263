//! The state of the daemon ([`ShowDoc`]), as `netnice show --json` prints it.
//!
//! Rates are integers in bit/s, times in nanoseconds, sizes in bytes. Everything that changes
//! without a request is under `counters`, except [`TargetDoc::command`], [`TargetDoc::user`],
//! [`FlowDoc::state`], [`UnconfirmedDoc::left_ns`], and [`CapacityDoc::rate`] if the operator did
//! not set the rate.
//! Absent values are omitted, except the capacities of a [`LinkDoc`] and [`TargetDoc::installed`],
//! which are null. No function fails.

use std::collections::BTreeMap;

use netnice_core::contract::{Bucket, Contract, Delegate, Direction, ReceiveShare, Slice};
use netnice_core::link::{Capacity, CapacitySource, Link};
use netnice_core::meter::{COUNTERS, DirectionCounters, Meter};
use netnice_core::units::Amount;
use serde::{Deserialize, Serialize};

use crate::budgets::BudgetDoc;
use crate::classes::LinkServerDoc;
use crate::driver::FlowCounts;

/// The output of `netnice show --json`: links, targets and flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShowDoc {
    /// Version of this document's format.
    pub version: u32,
    /// The managed links, sorted by name.
    pub links: Vec<LinkDoc>,
    /// The targets, sorted by text.
    pub targets: Vec<TargetDoc>,
    /// The flows of the direct path, sorted by number, at most 10,000. Root and the group `netnice`
    /// see all flows, other users their own.
    #[serde(default)]
    pub direct: Vec<FlowDoc>,
    /// The changes that will be undone unless they are confirmed, by number. Root sees all, other
    /// users their own. Absent if there is none, and if the request names a target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<UnconfirmedDoc>,
    /// The inode number of the network namespace in which all of this holds: that of
    /// `/proc/PID/ns/net` of each process there. Absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_namespace: Option<u64>,
    /// The traffic of every program. `netnice show --all` and `netnice top` add it; the daemon's
    /// response to [`crate::Request::Show`] has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<Box<crate::ProgramsDoc>>,
}

impl ShowDoc {
    /// The version that this release writes.
    pub const VERSION: u32 = 1;
}

/// A change that will be undone unless it is confirmed, in the output of `netnice show --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnconfirmedDoc {
    /// The number for [`crate::Request::Confirm`].
    pub number: u64,
    /// The user who made the change.
    pub uid: u32,
    /// What was changed: targets and links.
    pub what: Vec<String>,
    /// The time until the change is undone, in nanoseconds.
    pub left_ns: u64,
}

/// A flow of the direct path, in the output of `netnice show --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowDoc {
    /// The flow's number as a target, for example `flow:7`.
    pub flow: String,
    /// The interface.
    pub link: String,
    /// The driver's access to the interface: `native`, `generic` or `fallback`.
    pub mode: String,
    /// Process number of the program; 0 if it is not known.
    pub pid: u32,
    /// Command name of the program.
    pub program: String,
    /// User id of the program; 0 if it is not known.
    pub uid: u32,
    /// The user of the program: `root`, or `user` and the name or number.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// `open`, or what holds the flow up: `link down`, `no next hop` (the next hop does not
    /// answer), `suspended` (the driver drops what arrives, because the receive budget is used up),
    /// `moving` (the route leads over another link, to which the program is to take the flow), or
    /// `closing`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Protocol and addresses.
    #[serde(rename = "speaks")]
    pub endpoint: String,
    /// The granted contract.
    pub contract: ContractDoc,
    /// Hardware address of the next hop. Absent while the next hop does not answer, for flows to
    /// any host, and for flows of an EtherType.
    #[serde(rename = "station", default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<String>,
    /// Path MTU, in bytes.
    pub mtu: u32,
    /// Reasons why the flow is degraded; empty if it is not.
    pub degraded: Vec<String>,
    /// The counters.
    pub counters: FlowCountersDoc,
}

/// The counters of a flow, and when they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCountersDoc {
    /// Time of the reading, in nanoseconds by the machine's monotonic clock.
    pub at_ns: u64,
    /// The counts; all 0 if the driver did not report them within half a second.
    #[serde(flatten)]
    pub counts: FlowCounts,
}

/// A managed link, in the output of `netnice show --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDoc {
    /// The interface.
    pub link: String,
    /// Capacity for sending. `None`: sending is not managed.
    pub up: Option<CapacityDoc>,
    /// Capacity for receiving. `None`: receiving is not managed.
    pub down: Option<CapacityDoc>,
    /// Bytes that the wire adds to each packet.
    pub overhead: u64,
    /// How long before its logical arrival a packet of a `channel` may leave, in nanoseconds.
    /// Absent if it is 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub horizon_ns: u64,
    /// The addresses of the hosts that are probed to estimate the rates. Absent if no rate is an
    /// estimate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<String>,
    /// The overbooked server. Absent if the link has no classes for direct flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<LinkServerDoc>,
    /// True if the interface exists and the kernel has not refused the classes of the link.
    pub installed: bool,
    /// Reasons why the link is degraded; empty if it is not.
    pub degraded: Vec<String>,
    /// Counters of the traffic without a target. The rates are those of the whole interface.
    pub counters: CountersDoc,
}

/// The capacity of a link in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityDoc {
    /// Rate of the link in this direction, in bit/s.
    pub rate: u64,
    /// Source of the rate: `operator` (the operator gave it), `driver` (the interface's driver
    /// reported it) or `estimate` (it is estimated from delays, and changes while the link is
    /// used).
    pub source: String,
    /// Lower bound of an estimate, in bit/s. Absent if the rate is no estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// Upper bound of an estimate, in bit/s. Absent if the rate is no estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// The part of the rate that can be guaranteed, in bit/s.
    pub usable: u64,
    /// The promised rate, in bit/s: the sum of the guarantees of all targets that are in no target
    /// with a guarantee of its own, and for sending also what direct flows need.
    pub held: u64,
}

/// A target in the output of `netnice show --json`: its contracts, its state and its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetDoc {
    /// The target as text.
    pub target: String,
    /// The command name of the target's first process; absent if the target does not consist of
    /// processes, or if the process has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The user of that process: `root`, or `user` and the name or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The requested contract, merged from all claims.
    pub contract: ContractDoc,
    /// The division of the target's minimums, if a user may divide them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetDoc>,
    /// The claims with a schedule, in the order of their latest change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduleDoc>,
    /// The claims with a traffic quota, in the order of their latest change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<TrafficQuotaDoc>,
    /// The effective contract: the contract in force, with its link named, and with the limits of
    /// the enclosing targets where these are lower. Guarantees and users' claims that do not fit at
    /// present are not in force, so `contract` can have more than `effective`.
    pub effective: ContractDoc,
    /// The values in the kernel. `None`: the target has neither a limit, a class on a link nor a
    /// code point.
    pub installed: Option<InstalledDoc>,
    /// The reserved processor time. Absent if none is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_time: Option<ProcessorTimeDoc>,
    /// Reasons why the target is degraded; empty if it is not.
    pub degraded: Vec<String>,
    /// The counters.
    pub counters: CountersDoc,
}

/// Processor time that is reserved for a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorTimeDoc {
    /// The reserved time of one processor in every period.
    pub reserved: SliceDoc,
    /// The numbers of the processors on which the target may run. Empty: all that are online.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<u32>,
    /// How the reservation is kept. Absent while nothing keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ProcessorStatusDoc>,
    /// What the target's flows need, if the contract says `cpu auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed: Option<SliceDoc>,
    /// Why the target has less than its flows need. Absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short: Option<String>,
}

/// How a reservation of processor time is kept, and what the target has used of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorStatusDoc {
    /// The way: `exact` (SCHED_DEADLINE) or `group` (a control group).
    pub way: String,
    /// Why it is kept this way.
    pub reason: String,
    /// The number of threads of the target.
    pub threads: u64,
    /// Processor time that was used since the reservation began, in nanoseconds.
    pub used_ns: u64,
    /// Periods in which the reserved time was used up. The kernel counts them for a group with a
    /// quota, so not for the way `exact` and not with extra.
    pub exhausted: u64,
    /// Periods in which time was wanted and not given.
    pub missed: u64,
    /// The threads to which their program gave a part of the reserved time, oldest part first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<ThreadPartDoc>,
}

/// A part of a reservation of processor time, which one thread has exactly (SCHED_DEADLINE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadPartDoc {
    /// Thread id.
    pub thread: u32,
    /// The time in each period of the reservation, in nanoseconds.
    pub time_ns: u64,
}

/// The traffic quota of a claim, and how much of it has passed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficQuotaDoc {
    /// The user id of the claim; 0 for rules of the policy.
    pub uid: u32,
    /// The quota, as contract text.
    pub quota: String,
    /// The bytes that may pass in a period.
    pub bytes: u64,
    /// Wire bytes that have passed in the present period.
    pub used: u64,
    /// Bytes that may still pass in it.
    pub left: u64,
    /// Packets that did not fit in it.
    pub refused: u64,
    /// The begin of the present period, in nanoseconds since 1970.
    pub start_ns: u64,
    /// The end of the present period, in nanoseconds since 1970.
    pub end_ns: u64,
    /// The end of the present period, in the zone of the quota, as text.
    pub ends: String,
    /// True if the quota is used up: nothing passes, or `then` holds.
    pub spent: bool,
    /// The limit after the quota, in bit/s. Absent: nothing passes then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<u64>,
}

/// A claim that counts in some hours of the week only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleDoc {
    /// The user id of the claim; 0 for rules of the policy.
    pub uid: u32,
    /// The claim's other clauses, as contract text.
    pub contract: String,
    /// The schedule, as contract text.
    pub when: String,
    /// True if the claim counts now.
    pub active: bool,
    /// The time of the next change, in nanoseconds since 1970. Absent if there is none within two
    /// weeks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_ns: Option<u64>,
    /// That time in the zone of the schedule, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A contract, clause by clause; absent clauses are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContractDoc {
    /// Limit on sending, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// Limit on receiving, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// Limit on the sum of sending and receiving, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both: Option<u64>,
    /// Minimum for sending, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// Minimum for receiving, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_down: Option<u64>,
    /// The link of the guarantees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Weight in the left-over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Priority in the left-over; 0 is first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Burst of the limits: the time at the limit's rate, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_ns: Option<u64>,
    /// Code point (DSCP) of the packets that the target sends, 0 to 63.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
    /// True if the target uses only bandwidth of links that no other traffic uses.
    #[serde(rename = "yield", skip_serializing_if = "std::ops::Not::not")]
    pub yields: bool,
    /// The user id of the delegate: this user divides the target's minimums among own programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegate: Option<u32>,
    /// A slice of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<SliceDoc>,
    /// A slice of a processor's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<SliceDoc>,
    /// Set if the slice of a processor's time is what the target's flows need; true: with a share
    /// of the left-over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_auto: Option<bool>,
    /// A cell contract.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<CellDoc>,
    /// A real-time channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<ChannelDoc>,
    /// The part of the driver's time for received packets that a flow has for certain, in
    /// millionths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<u32>,
    /// The id of the user whose claim decides a clause, by the clause's keyword.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set_by: BTreeMap<String, u32>,
}

/// A slice: so much time in every period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceDoc {
    /// Length of the slice, in nanoseconds.
    pub slice_ns: u64,
    /// Length of the period, in nanoseconds.
    pub period_ns: u64,
    /// True if the target also gets a share of the left-over.
    pub extra: bool,
}

/// A cell contract: rates with tolerances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellDoc {
    /// Peak cell rate, in bit/s.
    pub pcr: u64,
    /// Cell delay variation tolerance, in nanoseconds.
    pub cdvt_ns: u64,
    /// Sustainable cell rate, in bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scr: Option<u64>,
    /// Maximum burst size, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbs: Option<u64>,
    /// Spending rule of the token bucket: `single` or `dual`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// Class of the link's overbooked server. Absent if the contract is promised by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<u8>,
}

/// A real-time channel: messages of bounded size and rate, each with a deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelDoc {
    /// Largest message, in bytes.
    pub mmax: u64,
    /// Largest rate, in messages per second.
    pub rmax: u32,
    /// Largest number of messages in a burst.
    pub bmax: u32,
    /// Largest delay of a message, in nanoseconds.
    pub deadline_ns: u64,
    /// The part of the delay for the program's processing, in nanoseconds.
    #[serde(default)]
    pub processing_ns: u64,
    /// What happens to messages beyond the contract: `block`, `decay`, `space`, `drop` or
    /// `best-effort`.
    #[serde(default)]
    pub overload: String,
}

/// The values that are installed in the kernel for a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstalledDoc {
    /// The path on which the target is served: always `kernel` in this release.
    pub path: String,
    /// Rate of the class that limits sending, or both directions together, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// Rate of the class that limits receiving, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// Guaranteed rate for sending, on the link, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// Guaranteed rate for receiving, on the link, in bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_down: Option<u64>,
    /// The burst, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u64>,
    /// The queues inside the class: `fq_codel` for a target without a limit, which has a class on a
    /// link only, if the kernel has fq_codel; else `sparse+bulk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// The code point that packets get when they are sent, 0 to 63: that of this target, or of one
    /// around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
}

/// Counters of a target or a link, by the names of [`netnice_core::meter::COUNTERS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountersDoc {
    /// Time of the reading, in nanoseconds by the machine's monotonic clock.
    pub at_ns: u64,
    /// Counters for sending.
    pub up: BTreeMap<String, u64>,
    /// Counters for receiving.
    pub down: BTreeMap<String, u64>,
    /// Bit/s sent over about the last second, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_rate: Option<u64>,
    /// Bit/s received over about the last second, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_rate: Option<u64>,
}

impl CountersDoc {
    /// The counters of `meter`, read at `at_ns`, without rates.
    pub fn new(at_ns: u64, meter: &Meter) -> CountersDoc {
        let named = |flow: &DirectionCounters| {
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

    /// The same counters with the rates of about the last second, in bit/s.
    pub fn with_rates(self, up: Amount, down: Amount) -> CountersDoc {
        CountersDoc {
            up_rate: Some(up.0),
            down_rate: Some(down.0),
            ..self
        }
    }

    /// The rate over about the last second in one direction, in bit/s; `None` if it was not
    /// measured.
    pub fn rate(&self, direction: Direction) -> Option<Amount> {
        match direction {
            Direction::Up => self.up_rate.map(Amount),
            Direction::Down => self.down_rate.map(Amount),
        }
    }

    /// The counter of this name in one direction; 0 if there is none.
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
            dscp: contract.dscp().map(|dscp| dscp.get()),
            yields: contract.yields(),
            delegate: contract.delegate().and_then(Delegate::uid),
            slice: contract.slice().map(SliceDoc::from),
            cpu: contract
                .cpu()
                .and_then(|time| time.slice())
                .map(SliceDoc::from),
            cpu_auto: contract
                .cpu()
                .filter(|_| contract.has_auto_time())
                .map(|time| time.extra()),
            cell: contract.cell().map(|cell| CellDoc {
                pcr: bits(cell.pcr()),
                cdvt_ns: cell.cdvt().0,
                scr: cell.sustained().map(|s| bits(s.scr)),
                mbs: cell.sustained().map(|s| s.mbs.0),
                bucket: cell.sustained().map(|s| match s.bucket {
                    Bucket::Single => "single".to_string(),
                    Bucket::Dual => "dual".to_string(),
                }),
                class: cell.class(),
            }),
            channel: contract.channel().map(|channel| ChannelDoc {
                mmax: channel.mmax().0,
                rmax: channel.rmax().get(),
                bmax: channel.bmax(),
                deadline_ns: channel.deadline().0,
                processing_ns: channel.processing().0,
                overload: channel.overload().word().to_string(),
            }),
            receive: contract.receive().map(ReceiveShare::millionths),
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
    /// The document of `link`. `held` are the promised rates ([`CapacityDoc::held`]) for sending
    /// and for receiving. The caller adds state and counters.
    pub fn new(link: &Link, held: [Amount; 2]) -> LinkDoc {
        let capacity = |direction: Direction, held: Amount| {
            let capacity = link.capacity(direction)?;
            let Capacity { rate, source } = capacity;
            let bounds = capacity.bounds();
            Some(CapacityDoc {
                rate: rate.bits_per_second(),
                source: match source {
                    CapacitySource::Operator => "operator".to_string(),
                    CapacitySource::Driver => "driver".to_string(),
                    CapacitySource::Estimate(_) => "estimate".to_string(),
                },
                min: bounds.map(|bounds| bounds.min().bits_per_second()),
                max: bounds.map(|bounds| bounds.max().bits_per_second()),
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
            horizon_ns: link.horizon.0,
            ..LinkDoc::default()
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests;
