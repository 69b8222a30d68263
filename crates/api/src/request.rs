//! What a client may ask.
//!
//! Texts are those of `netnice-core`: a target as `pid:1234`, a change as `up 4mbit down none`,
//! a rate as `4mbit`. Durations are in nanoseconds.

use serde::{Deserialize, Serialize};

use crate::direct::DirectRequest;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Is anybody there, and who?
    Ping(Ping),
    /// Change what a target asks for.
    Set(Set),
    /// Tell the state.
    Show(Show),
    /// Tell what each user has, and of how much.
    Users(Users),
    /// Tell what moves, for a table that is drawn again and again.
    Watch(Watch),
    /// Tell the connections of a target.
    Connections(Connections),
    /// Tell what targets did a while ago.
    History(History),
    /// Tell the state of the target that the caller itself belongs to.
    Own(Own),
    /// Take back what was asked.
    Clear(Clear),
    /// Manage a link, change it, or give it back.
    Link(LinkChange),
    /// Say how a target is served, by whom it was asked for, and what is not covered.
    Explain(Explain),
    /// Say what a target is made of on this machine, whether or not it is held.
    Find(Find),
    /// Say what this kernel offers and what is used.
    Doctor(Doctor),
    /// Tell what happened.
    Log(Log),
    /// Keep a change that was made for confirmation.
    Confirm(Confirm),
    /// Read the policy file again.
    Reload(Reload),
    /// Something of direct flows.
    Direct(DirectRequest),
}

/// [`Request::Ping`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ping {}

/// [`Request::Set`]: change what a target asks for, or let a process join it.
///
/// Where the target is a process, the message names that process ([`crate::ClientCall`]) and `pid` is left out. Where
/// the target is a name, `pid` may name a process that joins it, and the message names that process. All other targets
/// come without either.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// The target.
    pub target: String,
    /// The change; none where a process only joins a target that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
    /// The process that joins a named target; it is the one that the message names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The change is `both R` of the paper's short form: where the host's policy sets
    /// `input_meter = false`, it means `up R`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub short: bool,
    /// Not its living descendants too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub only: bool,
    /// Only say what would be done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Undo the change unless it is confirmed within so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_ns: Option<u64>,
    /// Undo the change after so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    /// Undo the change when this process ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

/// A process with whose end a change is undone. It is only looked at, so it is meant by number and start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// Its number.
    pub pid: u32,
    /// When it was started, in clock ticks since boot (proc_pid_stat(5), field 22).
    pub started: u64,
}

/// [`Request::Show`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// Only this target; a process that belongs to a target shows that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// [`Request::Users`]. Root and the group `netnice` are told all users, others themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Users {}

/// [`Request::Watch`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// Counts that were read within so long before now are new enough.
    pub within_ns: u64,
}

/// [`Request::Connections`]. Root and the group `netnice` are told all, others those of their own sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connections {
    /// The target.
    pub target: String,
}

/// [`Request::History`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Only this target; a process that belongs to a target means that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// How long before now. Up to two minutes are told second by second, more minute by minute.
    pub last_ns: u64,
}

/// [`Request::Own`]; the message names the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Own {}

/// [`Request::Clear`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clear {
    /// What is cleared.
    pub what: ClearWhat,
    /// Only say what would be done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Undo the change unless it is confirmed within so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_ns: Option<u64>,
    /// Undo the change after so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    /// Undo the change when this process ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

/// What [`Clear`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClearWhat {
    /// One target.
    Target(String),
    /// All that the caller may clear; of root, everything, managed links too.
    All,
}

/// [`Request::Link`]. Without any rate the link is managed with the speed that its driver
/// reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    /// The interface.
    pub iface: String,
    /// Its sending rate as text, or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Its receiving rate as text, or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_rate: Option<String>,
    /// Bytes that the wire adds to each packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<u64>,
    /// Give the link back.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unmanage: bool,
    /// Only say what would be done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Undo the change unless it is confirmed within so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_ns: Option<u64>,
    /// Undo the change after so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    /// Undo the change when this process ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

/// [`Request::Explain`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    /// The target.
    pub target: String,
}

/// [`Request::Find`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Find {
    /// The target.
    pub target: String,
}

/// [`Request::Doctor`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Doctor {}

/// [`Request::Log`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Only what happened within so long before now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ns: Option<u64>,
    /// Only the latest so many lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u32>,
}

/// [`Request::Confirm`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirm {
    /// The number that the answer to the change gave.
    pub id: u64,
}

/// [`Request::Reload`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {}

/// Left out of a message where it is false.
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}
