//! Looks up the process that a request names by a pidfd, and checks that the peer may limit it
//! ([`named_process`], [`living_process`]). Fails if there is no pidfd, the request names another
//! pid, the process has ended, or the peer may not limit it; `named_process` also if the process is
//! in another network namespace (without `only`: with all its living descendants).

use crate::authority;
use crate::error::RequestError;
use crate::host::{Inventory, Process};
use crate::peer::Peer;

/// A process that a request names by a pidfd.
pub(crate) struct NamedProcess {
    /// The pid of the process when the pidfd was received.
    pub pid: u32,
    /// Returns true while the process lives. It checks the pidfd, so a reused pid does not count.
    pub lives: Box<dyn Fn() -> bool>,
}

/// Looks up the process that a request names. `number` is the pid in the request, if it has one.
///
/// The function looks up the process by its pid, and then checks that the process of the pidfd
/// still lives: so the pid was not reused before the look-up.
///
/// # Errors
/// If the request has no pidfd, `number` is not the pid of the pidfd, the process has ended, or the
/// peer may not limit it. If the process is in another network namespace, and so are all its living
/// descendants; with `only`, whatever its descendants are.
pub(super) fn named_process(
    machine: &mut impl Inventory,
    peer: &Peer,
    named: Option<&NamedProcess>,
    number: Option<u32>,
    only: bool,
) -> Result<Process, RequestError> {
    let process = living_process(machine, peer, named, number)?;
    if let Err(elsewhere) = process.check_network()
        && (only || !has_family_here(machine, process.root.pid))
    {
        return Err(elsewhere);
    }
    Ok(process)
}

/// As [`named_process`], for a process in any network namespace.
///
/// # Errors
/// If the request has no pidfd, `number` is not the pid of the pidfd, the process has ended, or the
/// peer may not limit it.
pub(super) fn living_process(
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

/// True if a descendant of a process is in the daemon's network namespace.
fn has_family_here(machine: &mut impl Inventory, pid: u32) -> bool {
    let family = machine.family(pid);
    let mut processes = family.into_iter().filter_map(|pid| machine.process(pid));
    processes.any(|process| process.in_own_network == Some(true))
}
