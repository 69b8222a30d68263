//! What each user has, and of how much, as `netnice show --users --json` prints it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The whole document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsersDoc {
    /// The version of this document's form.
    pub version: u32,
    /// The quotas of each user, in the order in which they are shown.
    pub quotas: Vec<QuotaDoc>,
    /// The users who have something, by number; others than root and the group `netnice` see themselves. Root and the group
    /// have no quotas and are not told.
    pub users: Vec<UserDoc>,
}

impl UsersDoc {
    /// The version that is written here.
    pub const VERSION: u32 = 1;
}

/// One quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaDoc {
    /// Its key in `[quotas]` of the policy file.
    pub quota: String,
    /// `count`, `bytes` or `ns`.
    pub unit: String,
    /// What each user may have.
    pub limit: u64,
}

/// What one user has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDoc {
    /// The user.
    pub uid: u32,
    /// How much of each quota, by its key. What is limited request by request, and not counted over time, is left out.
    pub used: BTreeMap<String, u64>,
    /// Requests that wait now because the user is over the service time.
    pub waiting: u64,
}
