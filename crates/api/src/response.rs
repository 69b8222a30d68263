//! What the daemon may answer.

use serde::{Deserialize, Serialize};

use crate::direct::DirectAnswer;
use crate::history::HistoryDoc;
use crate::show::ShowDoc;
use crate::users::UsersDoc;
use crate::watch::{ConnectionsDoc, WatchDoc};

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// To [`crate::Request::Ping`].
    Pong(Pong),
    /// The change was made, or would be.
    Done(Done),
    /// The state.
    Shown(ShowDoc),
    /// What each user has.
    Users(UsersDoc),
    /// What moves.
    Watched(WatchDoc),
    /// The connections of a target.
    Connections(ConnectionsDoc),
    /// What targets did a while ago.
    History(HistoryDoc),
    /// How a target is served.
    Explained(Explained),
    /// What a target is made of.
    Found(Found),
    /// What this kernel offers.
    Doctor(DoctorReport),
    /// What happened.
    Log(LogLines),
    /// To [`crate::Request::Direct`]; or news, which is no answer to anything.
    Direct(DirectAnswer),
    /// Understood, but not granted; nothing has changed.
    Refused(Refused),
    /// Not understood or not possible; nothing has changed.
    Failed(Failed),
}

/// Who answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// The version of the protocol.
    pub protocol: u32,
    /// The version of the daemon.
    pub daemon: String,
}

/// A change that was made, or of a dry run would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Done {
    /// What a person should know, one line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
    /// The target, as it is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u16>,
    /// The caller's own claim after the change, as contract text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    /// What holds after the change, all claims together, as contract text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<String>,
    /// Of a dry run: what would be done, one line each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Vec<String>>,
    /// The number by which the change is to be confirmed, if it waits for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<u64>,
}

/// How a target is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// Lines for a person.
    pub lines: Vec<String>,
}

/// What a target is made of on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// Processes, and what descends from them.
    Processes(Vec<u32>),
    /// A control group and all below it, by its path below the root of the cgroup2 tree.
    Cgroup(String),
    /// Whatever executes the file at this path.
    App(String),
    /// Whatever runs as this user.
    User(u32),
}

/// What this kernel offers and what is used. `netniced --probe --json` prints one, so that it can
/// be asked for without a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// What was looked at, in the order in which it matters.
    pub items: Vec<DoctorItem>,
}

/// One thing that the kernel has or lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorItem {
    /// What it is.
    pub name: String,
    /// How it stands.
    pub status: Status,
    /// What was found, and what is used.
    pub detail: String,
    /// What would make it better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// How one thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// There, and used.
    Good,
    /// Not there; something else is used instead.
    Fallback,
    /// Not there, and something does not work without it.
    Missing,
}

/// What happened, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLines {
    /// One event each.
    pub lines: Vec<LogLine>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When, in nanoseconds since 1970 by the wall clock.
    pub at_ns: u64,
    /// What, in one line.
    pub text: String,
}

/// A request that was understood but not granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Who refuses.
    pub by: Gate,
    /// Why, and what would be granted; may have several lines.
    pub text: String,
}

/// Who refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// It does not fit.
    Admission,
    /// The caller may not.
    Permission,
}

/// A request that was not understood, or could not be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Why, and what to try.
    pub text: String,
    /// Whether the request itself makes no sense.
    pub bad_usage: bool,
}

impl Response {
    /// A request that makes no sense.
    pub fn bad_usage(text: impl Into<String>) -> Response {
        Response::Failed(Failed {
            text: text.into(),
            bad_usage: true,
        })
    }

    /// A request that makes sense but could not be done.
    pub fn failed(text: impl Into<String>) -> Response {
        Response::Failed(Failed {
            text: text.into(),
            bad_usage: false,
        })
    }

    /// A request that does not fit.
    pub fn not_admitted(text: impl Into<String>) -> Response {
        Response::Refused(Refused {
            by: Gate::Admission,
            text: text.into(),
        })
    }

    /// A request that the caller may not make.
    pub fn not_permitted(text: impl Into<String>) -> Response {
        Response::Refused(Refused {
            by: Gate::Permission,
            text: text.into(),
        })
    }
}
