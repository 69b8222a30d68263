//! The quotas, and how much each user uses of them ([`UsersDoc`]), as `netnice show --users --json`
//! prints them. A quota limits what the daemon keeps or does for one user. Root has no quotas, and
//! only the quota of connections applies to members of the group `netnice`. The types are plain
//! data, and no function fails.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::budgets::BudgetDoc;

/// The response to [`crate::Request::Users`], and the output of `netnice show --users --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsersDoc {
    /// Version of this document's format.
    pub version: u32,
    /// The quotas, in display order.
    pub quotas: Vec<QuotaDoc>,
    /// The users with any usage, sorted by number. Root is not listed. A member of the group
    /// `netnice` is listed with its connections only, because no other quota applies to it. Root
    /// and the group see all users; every other user sees only itself.
    pub users: Vec<UserDoc>,
    /// The budgets in force: all of them for root and the group, those of the user for every other
    /// user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetDoc>,
}

impl UsersDoc {
    /// The version that this release writes.
    pub const VERSION: u32 = 1;
}

/// One quota and its limit. The limit is the same for every user that has the quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaDoc {
    /// The quota's key in `[quotas]` of the policy file.
    pub quota: String,
    /// The unit of the limit and of the usage: `count`, `bytes` or `ns`.
    pub unit: String,
    /// The limit for each user, in `unit`.
    pub limit: u64,
}

/// The usage of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDoc {
    /// User id.
    pub uid: u32,
    /// The name in `/etc/passwd`, or the id as text if it has none there.
    #[serde(default)]
    pub name: String,
    /// Usage by the key of the quota, in the quota's unit. A key is absent if the user uses nothing
    /// of it, or if the quota applies to a single request and has no usage (`undo-time`).
    pub used: BTreeMap<String, u64>,
    /// Number of requests of the user that wait in the daemon.
    pub waiting: u64,
}
