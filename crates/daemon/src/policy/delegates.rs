//! The clause `delegate` of a rule: the user's name is replaced by the user id. Fails if the user
//! is not in `/etc/passwd`, or if the rule has no minimum.

use netnice_core::contract::{Change, Contract};

use crate::name_files;

/// A contract with the id of the user who may divide its minimums, in place of the name.
pub(super) fn with_user_id(contract: Contract) -> Result<Contract, String> {
    contract
        .check_delegate()
        .map_err(|error| error.to_string())?;
    let Some(delegate) = contract
        .delegate()
        .filter(|delegate| delegate.uid().is_none())
    else {
        return Ok(contract);
    };
    let uid = name_files::number_of_user(delegate.as_str()).ok_or_else(|| {
        format!("delegate: there is no user {delegate} in /etc/passwd; write the user's number")
    })?;
    let change = Change::default().with_delegate(uid);
    contract.apply(&change).map_err(|error| error.to_string())
}
