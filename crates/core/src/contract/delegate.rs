//! The clause `delegate`: which user may divide the minimums of a target among own programs inside
//! it. A target whose contract has this clause is a *budget* of that user. A text that is not the
//! name or number of a user does not parse. [`Contract::check_delegate`] refuses a contract that
//! delegates minimums and has none.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use super::{Change, Clause, Contract, ContractError, Setting};

/// The user who may divide a budget: the name as typed, or the user id. The daemon replaces a name
/// by its id before it stores a contract.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delegate(String);

impl Delegate {
    /// The user with this id.
    pub fn of_uid(uid: u32) -> Delegate {
        Delegate(uid.to_string())
    }

    /// The user id; `None` for a name.
    pub fn uid(&self) -> Option<u32> {
        self.0.parse().ok()
    }

    /// The name or number as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Delegate {
    type Err = ();

    /// Parses a name of the same form as in a target `user:NAME`, or a number.
    fn from_str(text: &str) -> Result<Delegate, ()> {
        let first = text.chars().next();
        let good = text.len() <= LONGEST_NAME
            && first.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.@$".contains(c));
        // A number that is no user id would be looked up as a name.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        match good && (!is_number || text.parse::<u32>().is_ok()) {
            true => Ok(Delegate(text.to_string())),
            false => Err(()),
        }
    }
}

impl fmt::Display for Delegate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Clause {
    /// Whether the clause divides a link among targets, by a rate, a weight or a priority. A user
    /// without privilege may name these clauses for programs inside a budget of that user.
    pub fn is_share(self) -> bool {
        matches!(
            self,
            Clause::Min | Clause::MinDown | Clause::On | Clause::Weight | Clause::Priority
        )
    }
}

impl Contract {
    /// The user who may divide the minimums of this contract; `None` if it is no budget, or has no
    /// minimum.
    pub fn delegate(&self) -> Option<&Delegate> {
        let has_minimum = self.min.is_some() || self.min_down.is_some();
        self.delegate.as_ref().filter(|_| has_minimum)
    }

    /// Checks that the contract has minimums if it delegates them.
    ///
    /// # Errors
    /// [`ContractError::NothingDelegated`] if it has none.
    pub fn check_delegate(&self) -> Result<(), ContractError> {
        match self.delegate.is_some() && self.delegate().is_none() {
            true => Err(ContractError::NothingDelegated),
            false => Ok(()),
        }
    }
}

impl Change {
    /// The first named clause, in the order of [`Clause`], that only root and the group `netnice`
    /// may use, even inside a budget; `None` if there is none.
    pub fn needs_privilege_in_budget(&self) -> Option<Clause> {
        let clauses = self.clauses().into_iter();
        clauses
            .filter(|clause| !clause.is_share())
            .find(|clause| clause.needs_privilege())
    }

    /// The same change with this user id in place of the user's name.
    pub fn with_delegate(self, uid: u32) -> Change {
        Change {
            delegate: Some(Setting::Set(Delegate::of_uid(uid))),
            ..self
        }
    }
}

/// In bytes, as in a target `user:NAME`.
const LONGEST_NAME: usize = 64;
