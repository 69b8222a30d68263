//! Who may ask what of whom. Pure: it judges facts that others have gathered.
//!
//! ```text
//!                              root, group netnice      anybody else
//!   limit a process            any                      one's own: same real user, and open to being looked into
//!   limit name:N               any                      where all its processes are one's own
//!   limit app, cgroup, unit,   any                      none: they hold other users' processes, now or later
//!     user
//!   reserve, weigh, order      any                      never
//!   have direct flows          of any process           of one's own, where the policy keeps users off: none
//!   take back                  root: anything;          one's own claim
//!                              group: one's own claim
//!   links, policy, clear all   all                      of `clear --all`: one's own claims
//! ```

use netnice_core::contract::Change;
use netnice_core::target::Target;

use crate::denied::Denied;
use crate::host::Process;
use crate::peer::Peer;

/// Whether a peer may name these clauses at all.
pub fn may_ask(peer: &Peer, change: &Change) -> Result<(), Denied> {
    match change.needs_privilege() {
        Some(clause) if !peer.privileged => Err(Denied::NotPermitted(format!(
            "{clause} is for root and the group netnice; up, down, both and burst are for all"
        ))),
        _ => Ok(()),
    }
}

/// Whether a peer may limit a process, or let it join a target.
pub fn may_limit_process(peer: &Peer, process: &Process) -> Result<(), Denied> {
    let Process { root, name, .. } = process;
    if peer.privileged {
        return Ok(());
    }
    if process.uid != peer.uid {
        return Err(Denied::NotPermitted(format!(
            "process {} ({name}) belongs to {}, not to you; ask root or a member of the group netnice",
            root.pid,
            user(process.uid),
        )));
    }
    if !process.dumpable {
        return Err(Denied::NotPermitted(format!(
            "process {} ({name}) is closed to its own user (it changed identity or asked for it); \
             ask root or a member of the group netnice",
            root.pid,
        )));
    }
    Ok(())
}

/// Whether a peer may limit a target that is not a process; `owner` is the one user whose processes it is made of.
pub fn may_limit_target(peer: &Peer, target: &Target, owner: Option<u32>) -> Result<(), Denied> {
    if peer.privileged || (matches!(target, Target::Name(_)) && owner == Some(peer.uid)) {
        return Ok(());
    }
    let why = match (target, owner) {
        (Target::Name(_), Some(owner)) => format!("it is made of processes of {}", user(owner)),
        (Target::Name(_), None) => "it is made of processes of several users".to_owned(),
        _ => "it may hold processes of others".to_owned(),
    };
    Err(Denied::NotPermitted(format!(
        "{target} is for root and the group netnice: {why}; you may limit your own processes"
    )))
}

/// Whether a peer may do what concerns the whole host; `what` says what.
pub fn may_manage(peer: &Peer, what: &str) -> Result<(), Denied> {
    match peer.privileged {
        true => Ok(()),
        false => Err(Denied::NotPermitted(format!(
            "{what} is for root and the group netnice"
        ))),
    }
}

/// A user in a message.
pub fn user(uid: u32) -> String {
    match uid {
        0 => "root".to_owned(),
        uid if uid == crate::peer::POLICY.uid => "the policy file".to_owned(),
        uid => format!("user {uid}"),
    }
}

#[cfg(test)]
mod tests;
