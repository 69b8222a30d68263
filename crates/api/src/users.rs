//! The resource usage and quotas of each user, as `netnice show --users --json` prints them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The whole document.
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

/// One quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaDoc {
    /// Its key in `[quotas]` of the policy file.
    pub quota: String,
    /// `count`, `bytes` or `ns`.
    pub unit: String,
    /// The limit for each user.
    pub limit: u64,
}

/// The usage of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDoc {
    /// The user.
    pub uid: u32,
    /// Usage of each quota, by its key. Quotas that apply to a single request and are not counted
    /// over time are omitted.
    pub used: BTreeMap<String, u64>,
    /// Requests that are waiting because the user has exceeded the service time.
    pub waiting: u64,
}
