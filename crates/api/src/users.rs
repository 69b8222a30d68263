//! The quotas of unprivileged users, and how much each of these users uses ([`UsersDoc`]), as
//! `netnice show --users --json` prints them. A quota limits what the daemon keeps or does for one
//! user.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The response to [`crate::Request::Users`], and the output of `netnice show --users --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsersDoc {
    /// Version of this document's format.
    pub version: u32,
    /// The quotas, in display order.
    pub quotas: Vec<QuotaDoc>,
    /// The users with any usage, sorted by number. Root and the group `netnice` have no quotas and
    /// are not listed. They see all users; every other user sees only itself.
    pub users: Vec<UserDoc>,
}

impl UsersDoc {
    /// The version that this release writes.
    pub const VERSION: u32 = 1;
}

/// One quota and its limit, the same for every unprivileged user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaDoc {
    /// Its key in `[quotas]` of the policy file.
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
    /// The user as a text: `user` and the name in `/etc/passwd`, or the id if it has none there.
    #[serde(default)]
    pub name: String,
    /// Usage of each quota, by its key. Quotas that apply to a single request and are not counted
    /// over time are omitted.
    pub used: BTreeMap<String, u64>,
    /// Number of requests of the user that wait in the daemon.
    pub waiting: u64,
}
