//! Permissions: decides whether a peer may make a request. Pure: the caller gathers the facts. A
//! check fails with [`RequestError::NotPermitted`] and the reason.
//!
//! ```text
//!                              root, group netnice      any other user
//!   limit a process            any                      own: same real user, and dumpable
//!   limit name:N               any                      if all its processes are the user's own
//!   limit app, cgroup, unit,   any                      none: they may hold others' processes
//!     container, user
//!   clauses but up, down,      all                      shares (min, min-down, on, weight,
//!     both, burst, dscp, yield                          priority) inside a budget of the user
//!   dscp                       any code point           those of the policy's dscp_users
//!   direct flows               of any process           of own ones; none if the policy forbids it
//!   channel of a direct flow   any                      the policy's channel_users
//!   close a direct flow        any                      those of own programs
//!   divide processor time      any                      that of own processes only
//!   links, reload the policy   all                      none
//!   clear a target             root: all claims on it   own claim
//!                              group: own claim
//!   clear --all                root: everything         own claims
//!                              group: own claims
//!   confirm                    root: any change         own changes
//!                              group: own changes
//! ```
//!
//! The last three rows are checked elsewhere: by `netnice_core::claims` and the parts of `service`
//! that handle these requests. `service::parts` checks who may divide processor time, and
//! `service::set` who may run as a name that has no process. `flows` reserves privileged ports and
//! protocols other than UDP for root and the group, and checks whether a user may close a flow
//! (`flows::end_flow`).
//! Every peer may make a request that only reads. The response to an unprivileged peer lists no
//! connections, direct flows or quota amounts of other users.

use std::collections::BTreeSet;

use netnice_core::contract::{Change, Clause, Dscp, Setting};
use netnice_core::target::Target;

use crate::error::RequestError;
use crate::host::Process;
use crate::peer::Peer;
use crate::user_names::user_name;

/// Checks that a peer may use the clauses of a change.
///
/// # Errors
/// [`RequestError::NotPermitted`] with the first clause that the peer may not use.
pub(crate) fn may_request(peer: &Peer, change: &Change) -> Result<(), RequestError> {
    clause_allowed(peer, change.needs_privilege())
}

/// As [`may_request`], for the contract of a direct flow. `channels` is true if the policy lets the
/// peer have channels.
///
/// # Errors
/// [`RequestError::NotPermitted`] with the first clause that the peer may not use.
pub(crate) fn may_request_for_flow(
    peer: &Peer,
    change: &Change,
    channels: bool,
) -> Result<(), RequestError> {
    let mut others = change.clone();
    if channels {
        others.channel = None;
    }
    may_request(peer, &others)
}

/// Fails if a peer without privilege names a clause that needs privilege.
fn clause_allowed(peer: &Peer, clause: Option<Clause>) -> Result<(), RequestError> {
    match clause {
        Some(clause) if !peer.privileged => Err(RequestError::NotPermitted(format!(
            "{clause} is for root and the group netnice; up, down, both, burst, dscp, yield, quota and \
             when are for all"
        ))),
        _ => Ok(()),
    }
}

/// As [`may_request`], for a target that may be inside a budget of the peer: the change may also
/// name shares of a link. [`crate::ledger::Ledger::change_claim`] checks that a budget contains the
/// target.
///
/// # Errors
/// [`RequestError::NotPermitted`] with the first clause that the peer may not use.
pub(crate) fn may_request_in_budget(peer: &Peer, change: &Change) -> Result<(), RequestError> {
    clause_allowed(peer, change.needs_privilege_in_budget())
}

/// Checks that a peer may set the code point of a change, if the change sets one. `allowed` are the
/// code points that every user may set.
///
/// # Errors
/// [`RequestError::NotPermitted`] with the code point and the allowed ones.
pub(crate) fn may_mark(
    peer: &Peer,
    change: &Change,
    allowed: &BTreeSet<Dscp>,
) -> Result<(), RequestError> {
    let Some(Setting::Set(dscp)) = &change.dscp else {
        return Ok(());
    };
    if peer.privileged || allowed.contains(dscp) {
        return Ok(());
    }
    let names: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    let others = match names.is_empty() {
        true => "other users may set none".to_owned(),
        false => format!("other users may set {}", names.join(", ")),
    };
    Err(RequestError::NotPermitted(format!(
        "dscp {dscp} is for root and the group netnice; {others} (dscp_users in the policy file)"
    )))
}

/// Checks that a peer may limit a process, let it join a target, or attach it to the direct path.
///
/// # Errors
/// [`RequestError::NotPermitted`] if it may not.
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

/// Checks that a peer may limit a target that is not a process. `owner` is the user
/// of all processes of the target; `None` if they have several users or that is not known.
///
/// # Errors
/// [`RequestError::NotPermitted`] if it may not.
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

/// Checks that a peer may do what concerns the whole host: root and the group `netnice` may. `what`
/// names the action in the error.
///
/// # Errors
/// [`RequestError::NotPermitted`] if the peer is not privileged.
pub(crate) fn may_manage(peer: &Peer, what: &str) -> Result<(), RequestError> {
    match peer.privileged {
        true => Ok(()),
        false => Err(RequestError::NotPermitted(format!(
            "{what} is for root and the group netnice"
        ))),
    }
}

#[cfg(test)]
mod tests;
