//! How a budget is divided ([`BudgetDoc`]): the minimums of a target that a user divides among own
//! programs inside it, as `netnice show --json` and `netnice show --users --json` print them. The
//! types are plain data, and no function fails.

use serde::{Deserialize, Serialize};

/// The minimums of a target that a user divides among own programs inside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetDoc {
    /// The target as text.
    pub target: String,
    /// The user id of the delegate: this user divides the minimums.
    pub uid: u32,
    /// `root`, or `user` and the name or number.
    pub user: String,
    /// The link.
    pub link: String,
    /// For sending; absent without a minimum in this direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<BudgetPartDoc>,
    /// For receiving; absent without a minimum in this direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<BudgetPartDoc>,
}

/// One direction of a budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetPartDoc {
    /// The minimum that the user may divide, in bit/s.
    pub min: u64,
    /// The sum of the minimums inside it, in bit/s.
    pub used: u64,
    /// What the user may still promise, in bit/s.
    pub left: u64,
}
