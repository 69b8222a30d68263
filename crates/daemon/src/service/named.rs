//! The process that a request means.

use crate::authority;
use crate::denied::Denied;
use crate::host::{Inventory, Process};
use crate::peer::Peer;

/// A process that a request means: its number, and whether it still lives, told by its pidfd.
pub(crate) struct Named {
    /// Its number when the pidfd was received.
    pub pid: u32,
    /// Whether it still lives.
    pub lives: Box<dyn Fn() -> bool>,
}

/// The process that a request means, if the peer may limit it. It is read by number; that its pidfd still lives
/// when all is done makes sure that it was this process which was read.
pub(super) fn named(
    machine: &mut impl Inventory,
    peer: &Peer,
    named: Option<&Named>,
    number: Option<u32>,
) -> Result<Process, Denied> {
    let Some(named) = named else {
        return Err(Denied::BadUsage(
            "a process is meant by a pidfd, and none came with the request".to_owned(),
        ));
    };
    if let Some(number) = number.filter(|number| *number != named.pid) {
        return Err(Denied::BadUsage(format!(
            "the request names process {number}, its pidfd is of process {}",
            named.pid
        )));
    }
    let gone = || Denied::Failed(format!("process {} does not exist (any more)", named.pid));
    let process = machine.process(named.pid).ok_or_else(gone)?;
    if !(named.lives)() {
        return Err(gone());
    }
    authority::may_limit_process(peer, &process)?;
    Ok(process)
}
