//! The daemon's responses ([`Response`]) to the requests of clients ([`crate::Request`]): one kind
//! for each kind of result, one for refusals, and one for failures. No function fails.

use serde::{Deserialize, Serialize};

use crate::direct::DirectReply;
use crate::history::HistoryDoc;
use crate::programs::ProgramsDoc;
use crate::show::ShowDoc;
use crate::users::UsersDoc;
use crate::watch::{ConnectionsDoc, WatchDoc};

/// A response of the daemon to a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// The response to [`crate::Request::Ping`].
    Pong(Pong),
    /// The change was made, or would be made (dry run).
    Done(Done),
    /// Links, targets and flows with their contracts, state and counters.
    Shown(ShowDoc),
    /// The usage and quotas of each user.
    Users(UsersDoc),
    /// The current rates of targets and links.
    Watched(WatchDoc),
    /// The connections of a target.
    Connections(ConnectionsDoc),
    /// The traffic of every program.
    Programs(ProgramsDoc),
    /// The recorded history of targets.
    History(HistoryDoc),
    /// How a target is served.
    Explained(Explained),
    /// The composition of a target.
    Found(Found),
    /// The features of this kernel.
    Doctor(DoctorReport),
    /// The log.
    Log(LogLines),
    /// The response to [`crate::Request::Direct`], or a notification.
    Direct(DirectReply),
    /// The request is valid but not granted. Nothing has changed.
    Refused(Refused),
    /// The request is invalid or could not be carried out. Nothing has changed.
    Failed(Failed),
}

/// The response to [`crate::Request::Ping`]: the versions of the protocol and of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// The version of the protocol.
    pub protocol: u32,
    /// The version of the daemon.
    pub daemon: String,
}

/// A change that was made, or would be made in a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Done {
    /// Messages for the user, one line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
    /// The target, as the ledger holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The slot of the target: its number while the ledger holds it, reused afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u16>,
    /// The caller's own claim after the change, as contract text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    /// The effective contract of all claims after the change, as contract text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<String>,
    /// Dry run only: the steps that would be taken, one line each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Vec<String>>,
    /// The number for [`crate::Request::Confirm`], if the change must be confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<u64>,
}

/// How a target is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// Lines for the user.
    pub lines: Vec<String>,
}

/// The composition of a target on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// The processes with these numbers, and their descendants. Empty for a name without a process.
    Processes(Vec<u32>),
    /// A cgroup and all cgroups below it, by its path below the root of the cgroup2 tree.
    Cgroup(String),
    /// Every process that executes the file at this path.
    App(String),
    /// Every process of the user with this id.
    User(u32),
}

/// The features of this kernel and which of them are used, and the state and the faults of the
/// daemon. `netniced --probe --json` prints a report with the features only, and needs no running
/// daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// The features of the kernel, the state and the faults of the daemon, the confinement of the
    /// front process, and the features of the direct path, in this order.
    pub items: Vec<DoctorItem>,
}

/// A feature of this machine, a part of the daemon's state, or a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorItem {
    /// The name of the feature, of the part of the state, or of the thing that has the fault.
    pub name: String,
    /// Whether the feature is available. [`Status::Good`] for a part of the state,
    /// [`Status::Missing`] for a fault.
    pub status: Status,
    /// What was found, and what is used.
    pub detail: String,
    /// What to do about the feature or the fault; absent if nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The availability of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Available and used.
    Good,
    /// Not available; a fallback is used.
    Fallback,
    /// Not available, and something does not work without it.
    Missing,
}

/// The daemon's log, oldest event first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLines {
    /// One line for each event.
    pub lines: Vec<LogLine>,
}

/// One event of the daemon's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Time of the event in nanoseconds since 1970, by the wall clock.
    pub at_ns: u64,
    /// Description of the event, in one line.
    pub text: String,
}

/// A request that is valid but not granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The part of the daemon that refuses.
    pub by: RefusedBy,
    /// The reason, and what would be granted; may have several lines.
    pub text: String,
}

/// The part of the daemon that refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusedBy {
    /// Admission: the request does not fit beside what is promised, or exceeds a quota.
    Admission,
    /// Authorisation: the caller lacks the permission.
    Permission,
}

/// A request that is invalid or could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The reason, and what to try.
    pub text: String,
    /// True if the request itself is invalid.
    pub bad_usage: bool,
    /// The cause, if it is one that programs distinguish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<FailureCause>,
}

/// A cause of a failure for which the socket calls have an errno of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureCause {
    /// The port is in use: EADDRINUSE.
    PortInUse,
    /// No route leads to the host, or none that can be used: ENETUNREACH.
    NoRoute,
    /// The next hop does not answer: EHOSTUNREACH.
    NoAnswer,
    /// The address is not one of this host: EADDRNOTAVAIL.
    ForeignAddress,
    /// There is no such interface: ENODEV.
    NoInterface,
}

impl Response {
    /// The response to an invalid request.
    pub fn bad_usage(text: impl Into<String>) -> Response {
        Response::Failed(Failed {
            text: text.into(),
            bad_usage: true,
            cause: None,
        })
    }

    /// The response to a valid request that could not be carried out.
    pub fn failed(text: impl Into<String>) -> Response {
        Response::Failed(Failed {
            text: text.into(),
            bad_usage: false,
            cause: None,
        })
    }

    /// As [`Response::failed`], with a cause.
    pub fn failed_for(cause: FailureCause, text: impl Into<String>) -> Response {
        Response::Failed(Failed {
            text: text.into(),
            bad_usage: false,
            cause: Some(cause),
        })
    }

    /// The response to a request that does not fit.
    pub fn not_admitted(text: impl Into<String>) -> Response {
        Response::Refused(Refused {
            by: RefusedBy::Admission,
            text: text.into(),
        })
    }

    /// The response to a request for which the caller lacks the permission.
    pub fn not_permitted(text: impl Into<String>) -> Response {
        Response::Refused(Refused {
            by: RefusedBy::Permission,
            text: text.into(),
        })
    }
}
