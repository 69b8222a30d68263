//! Permissions: which peer may request what. Pure: it judges facts that the caller has gathered.
//!
//! ```text
//!                              root, group netnice      any other user
//!   limit a process            any                      own: same real user, and dumpable
//!   limit name:N               any                      if all its processes are the user's own
//!   limit app, cgroup, unit,   any                      none: they may hold others' processes
//!     user
//!   reserve, weigh, order      any                      never
//!   have direct flows          of any process           of own ones; none if the policy forbids it
//!   withdraw                   root: any claim;         own claim
//!                              group: own claim
//!   links, policy, clear all   all                      of `clear --all`: own claims
//! ```

use netnice_core::contract::Change;
use netnice_core::target::Target;

use crate::error::RequestError;
use crate::host::Process;
use crate::peer::Peer;

/// Checks that a peer may use the clauses of a change.
pub(crate) fn may_request(peer: &Peer, change: &Change) -> Result<(), RequestError> {
    match change.needs_privilege() {
        Some(clause) if !peer.privileged => Err(RequestError::NotPermitted(format!(
            "{clause} is for root and the group netnice; up, down, both and burst are for all"
        ))),
        _ => Ok(()),
    }
}

/// Checks that a peer may limit a process, or let it join a target.
pub(crate) fn may_limit_process(peer: &Peer, process: &Process) -> Result<(), RequestError> {
    let Process { root, name, .. } = process;
    if peer.privileged {
        return Ok(());
    }
    if process.uid != peer.uid {
        return Err(RequestError::NotPermitted(format!(
            "process {} ({name}) belongs to {}, not to you; ask root or a member of the group \
             netnice",
            root.pid,
            user_name(process.uid),
        )));
    }
    if !process.dumpable {
        return Err(RequestError::NotPermitted(format!(
            "process {} ({name}) is not dumpable (it changed its user or asked for that), so \
             only root and the group netnice may limit it",
            root.pid,
        )));
    }
    Ok(())
}

/// Checks that a peer may limit a target that is not a process. `owner` is the user of all its
/// processes, if there is exactly one.
pub(crate) fn may_limit_target(
    peer: &Peer,
    target: &Target,
    owner: Option<u32>,
) -> Result<(), RequestError> {
    if peer.privileged || (matches!(target, Target::Name(_)) && owner == Some(peer.uid)) {
        return Ok(());
    }
    let why = match (target, owner) {
        (Target::Name(_), Some(owner)) => {
            format!("it is made of processes of {}", user_name(owner))
        }
        (Target::Name(_), None) => "it is made of processes of several users".to_owned(),
        _ => "it may hold processes of others".to_owned(),
    };
    Err(RequestError::NotPermitted(format!(
        "{target} is for root and the group netnice: {why}; you may limit your own processes"
    )))
}

/// Checks that a peer may change the whole host. `what` names the action in the error.
pub(crate) fn may_manage(peer: &Peer, what: &str) -> Result<(), RequestError> {
    match peer.privileged {
        true => Ok(()),
        false => Err(RequestError::NotPermitted(format!(
            "{what} is for root and the group netnice"
        ))),
    }
}

/// A user's name in a message.
pub(crate) fn user_name(uid: u32) -> String {
    match uid {
        0 => "root".to_owned(),
        uid if uid == crate::peer::POLICY.uid => "the policy file".to_owned(),
        uid => format!("user {uid}"),
    }
}

#[cfg(test)]
mod tests;
