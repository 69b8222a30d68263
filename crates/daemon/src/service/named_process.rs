//! The process that a request names, checked against its pidfd.

use crate::authority;
use crate::error::RequestError;
use crate::host::{Inventory, Process};
use crate::peer::Peer;

/// A process that a request names by a pidfd.
pub(crate) struct NamedProcess {
    /// Its pid when the pidfd was received.
    pub pid: u32,
    /// Returns true while the process is alive.
    pub lives: Box<dyn Fn() -> bool>,
}

/// The process that a request names, if the peer may limit it. It is looked up by pid. If its pidfd
/// is alive after all steps, the steps concerned this process.
pub(super) fn named_process(
    machine: &mut impl Inventory,
    peer: &Peer,
    named: Option<&NamedProcess>,
    number: Option<u32>,
) -> Result<Process, RequestError> {
    let Some(named) = named else {
        return Err(RequestError::BadUsage(
            "the request needs a pidfd of the process, and none came with it".to_owned(),
        ));
    };
    if let Some(number) = number.filter(|number| *number != named.pid) {
        return Err(RequestError::BadUsage(format!(
            "the request names process {number}, its pidfd is of process {}",
            named.pid
        )));
    }
    let gone = || RequestError::Failed(format!("process {} does not exist (any more)", named.pid));
    let process = machine.process(named.pid).ok_or_else(gone)?;
    if !(named.lives)() {
        return Err(gone());
    }
    authority::may_limit_process(peer, &process)?;
    Ok(process)
}
