//! The requests that clients send to the daemon ([`Request`]), one type for the parameters of each.
//!
//! Targets, changes and rates are texts in the form of `netnice-core`: `pid:1234`, `up 4mbit down
//! none`, `4mbit`. Durations are in nanoseconds. The types are plain data; the daemon parses the
//! texts, and fails a request with an invalid one.

use serde::{Deserialize, Serialize};

use crate::classes::LinkClassChange;
use crate::direct::DirectRequest;

/// A request of a client to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Report the version of the daemon and of its protocol.
    Ping(Ping),
    /// Change the caller's claim on a target.
    Set(Set),
    /// Give a thread a part of the processor time that is reserved for its program.
    Reserve(Reserve),
    /// Report links, targets and flows with their contracts, state and counters.
    Show(Show),
    /// Report the usage and quotas of each user.
    Users(Users),
    /// Report the current rates, for a table that is redrawn repeatedly.
    Watch(Watch),
    /// Report the connections of a target.
    Connections(Connections),
    /// Report the traffic of every program, whether or not it belongs to a target.
    Programs(Programs),
    /// Report the recorded history of targets.
    History(History),
    /// Report the state of the target that the caller belongs to.
    Own(Own),
    /// Remove claims on targets.
    Clear(Clear),
    /// Manage a link, change it, or stop managing it.
    Link(Box<LinkChange>),
    /// Report how a target is served, which users have claims on it, and which of its traffic the
    /// limits do not cover.
    Explain(Explain),
    /// Report the composition of a target on this machine, whether or not it has a contract.
    Find(Find),
    /// Report the features of this kernel and which of them are used.
    Doctor(Doctor),
    /// Report the log.
    Log(Log),
    /// Confirm a change that was made subject to confirmation.
    Confirm(Confirm),
    /// Read the policy file again.
    Reload(Reload),
    /// Keep what a packet costs on this machine, for the clause `cpu auto`.
    KeepCosts(PacketCostsDoc),
    /// A request about flows of the direct path.
    Direct(DirectRequest),
}

/// The parameters of [`Request::Ping`]: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ping {}

/// The parameters of [`Request::Set`]: change the claim on a target, or add a process to it.
///
/// If the target is a process, the message identifies that process ([`crate::ClientCall`]) and
/// `pid` is omitted. If the target is a name, `pid` can name a process that joins it, and the
/// message identifies that process. For all other targets both are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// The target.
    pub target: String,
    /// The change; omitted if a process only joins an existing target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
    /// The process that joins a named target: the same as the one that the message identifies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The change is `both R` of the paper's short form. If the host's policy sets `input_meter =
    /// false`, it means `up R`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub short: bool,
    /// Exclude the living descendants of the process.
    #[serde(default, skip_serializing_if = "is_false")]
    pub only: bool,
    /// Dry run: only report what would be done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Undo the change unless it is confirmed within this time, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_ns: Option<u64>,
    /// Undo the change after this time, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    /// Undo the change when this process ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

/// The process whose end undoes a change, by its number in the daemon's PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// Process number.
    pub pid: u32,
    /// Start time in clock ticks since boot (proc_pid_stat(5), field 22).
    pub started: u64,
}

/// The parameters of [`Request::Reserve`]: give a thread a part of the processor time that is
/// reserved for its program, take it back, or change it.
///
/// The message identifies the process of the thread ([`crate::ClientCall`]). The part is a time in
/// each period of the reservation, and the parts of all threads sum to at most the reserved time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// Thread id, in the PID namespace of the daemon.
    pub thread: u32,
    /// The time in each period of the reservation, in nanoseconds; absent: the thread gives its
    /// part back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<u64>,
}

/// The parameters of [`Request::Show`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// Report only this target; absent: all targets. A process stands for the target that it
    /// belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// The parameters of [`Request::Users`]: none. Root and the group `netnice` get all users, other
/// users only themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Users {}

/// The parameters of [`Request::Watch`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// Largest age of the counters, in nanoseconds. The daemon reads the counters again if they are
    /// older.
    pub within_ns: u64,
}

/// The parameters of [`Request::Connections`]. Root and the group `netnice` get all connections,
/// other users those of their own sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connections {
    /// The target.
    pub target: String,
    /// The target is a process, and its own connections are meant, not those of the target to
    /// which it belongs. The process need not belong to a target. Or the target is
    /// [`Connections::HOST`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub own: bool,
}

impl Connections {
    /// In place of a target: all sockets of the served network namespace.
    pub const HOST: &str = "all";
}

/// The parameters of [`Request::Programs`]. Root and the group `netnice` get all programs, other
/// users their own and a sum of the others.
///
/// The request begins the counting, if it has not begun: the first response has no traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Programs {
    /// Largest age of the counts, in nanoseconds. The daemon reads them again if they are older,
    /// but at most twice a second.
    pub within_ns: u64,
    /// How long the daemon keeps counting without another request, in nanoseconds. A time below 2 s
    /// counts as 2 s, and one above 30 s as 30 s.
    pub keep_ns: u64,
}

/// The parameters of [`Request::History`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Report only this target; absent: all targets. A process stands for the target that it
    /// belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Length of the reported time before now, in nanoseconds. Up to 120 s, the points are seconds;
    /// beyond that, minutes.
    pub last_ns: u64,
}

/// The parameters of [`Request::Own`]: none. The message identifies the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Own {}

/// The parameters of [`Request::Clear`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clear {
    /// The claims to remove.
    pub what: ClearWhat,
    /// Dry run: only report what would be done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Undo the change unless it is confirmed within this time, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_ns: Option<u64>,
    /// Undo the change after this time, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    /// Undo the change when this process ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

/// The claims that [`Clear`] removes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClearWhat {
    /// The claims on this target that the caller may remove.
    Target(String),
    /// The claims on all targets that the caller may remove. For root: also the managed links and
    /// the draining targets, and the direct flows are closed.
    All,
}

/// The parameters of [`Request::Link`]. What the change omits stays as it is. If the change has no
/// rate, the link gets the rate that the interface's driver reports, unless the change only sets
/// the overhead, the horizon or the classes of a managed link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    /// The interface.
    pub iface: String,
    /// Sending rate as text; `none` or `0`: sending is not managed; [`LinkChange::AUTO`]: the rate
    /// is estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Receiving rate as text; `none` or `0`: receiving is not managed; [`LinkChange::AUTO`]: the
    /// rate is estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_rate: Option<String>,
    /// Lower bound of an estimated sending rate, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<String>,
    /// Upper bound of an estimated sending rate, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<String>,
    /// Lower bound of an estimated receiving rate, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_down: Option<String>,
    /// Upper bound of an estimated receiving rate, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_down: Option<String>,
    /// The addresses of the hosts to probe, for an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<Vec<String>>,
    /// Bytes that the wire adds to each packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<u64>,
    /// The slice of the link's overbooked server as text (`20ms/50ms`); `none`: the smallest one
    /// for the minimums of the classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// A class of the link's overbooked server to add, change or remove.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<LinkClassChange>,
    /// How long before its logical arrival a packet of a `channel` may leave, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub horizon_ns: Option<u64>,
    /// Stop managing the link; the rates and the overhead are ignored.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unmanage: bool,
    /// Dry run: only report what would be done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Undo the change unless it is confirmed within this time, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_ns: Option<u64>,
    /// Undo the change after this time, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    /// Undo the change when this process ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

impl LinkChange {
    /// The text in place of a rate that requests an estimate.
    pub const AUTO: &str = "auto";

    /// Whether the change is about the classes of the link.
    pub fn names_classes(&self) -> bool {
        self.server.is_some() || self.class.is_some()
    }
}

/// The parameters of [`Request::Explain`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    /// The target.
    pub target: String,
}

/// The parameters of [`Request::Find`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Find {
    /// The target.
    pub target: String,
}

/// The parameters of [`Request::Doctor`]: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Doctor {}

/// The parameters of [`Request::Log`]: which part of the daemon's log to report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Report only events within this time before now, in nanoseconds; absent: of any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ns: Option<u64>,
    /// Report only the last lines, at most this number; absent: all lines that the daemon keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u32>,
}

/// The parameters of [`Request::Confirm`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirm {
    /// The number in the response to the change ([`crate::Done::confirm`]).
    pub id: u64,
}

/// The parameters of [`Request::Reload`]: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {}

/// What a program's packets cost on a machine, by protocol. The parameters of
/// [`Request::KeepCosts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketCostsDoc {
    /// Of programs that send by UDP.
    pub udp: PacketCostDoc,
    /// Of programs that send by TCP.
    pub tcp: PacketCostDoc,
}

/// The processor time of a program that sends packets, as a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketCostDoc {
    /// The part of a processor of a program that sends little, in parts of 10^9.
    pub idle_ppb: u64,
    /// For each packet of 1,500 bytes, in picoseconds.
    pub packet_ps: u64,
}

/// True if a message omits a flag of this value.
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}
