//! The request `reserve`: a program gives threads of its own a part of the processor time that is
//! reserved for its target ([`reserve`]). The ledger admitted the whole, so the request takes
//! nothing from other targets, and plain users may make it for their own programs. A target of
//! several users is divided by root and the group `netnice` only, because a part is taken from all
//! other threads of the target.

use netnice_api::{Done, Reserve};
use netnice_core::target::Target;
use netnice_core::units::Nanos;

use super::named_process::{NamedProcess, living_process};
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::journal::EventKind;
use crate::peer::Peer;
use crate::reconcile::Reconciler;
use crate::user_names::user_name;

/// Gives a thread of the named process a part of the reservation in force, or takes it back.
///
/// # Errors
/// If the request has no pidfd or the process has ended, the peer may not limit it, the thread is
/// not one of its threads, no reservation of the process is in force, the peer may not divide it,
/// or the part does not fit.
pub(super) fn reserve<H: Host>(
    reconciler: &mut Reconciler<H>,
    peer: &Peer,
    reserve: &Reserve,
    named: Option<&NamedProcess>,
    now: Now,
) -> Result<Done, RequestError> {
    let Reserve { thread, time_ns } = *reserve;
    let process = living_process(&mut reconciler.host, peer, named, None)?;
    let pid = process.root.pid;
    if reconciler.host.process_of(thread) != Some(pid) {
        return Err(RequestError::NotPermitted(format!(
            "thread {thread} is not a thread of process {pid} ({})",
            process.name
        )));
    }
    let keeper = &mut reconciler.processors;
    keeper.now = now.monotonic;
    let group = keeper.group_of_thread(&mut reconciler.host, thread);
    let ledger = &reconciler.books.ledger;
    let found =
        group.and_then(|(id, pids)| Some((ledger.by_id(id)?.entry.target.clone(), id, pids)));
    let Some((target, id, pids)) = found else {
        return Err(RequestError::NotAdmitted(format!(
            "refused: no processor time is reserved for process {pid} ({}); reserve it first: \
             netnice set pid:{pid} --cpu 2ms/10ms",
            process.name
        )));
    };
    may_divide(&mut reconciler.host, peer, &target, &pids)?;
    let keeper = &mut reconciler.processors;
    let text = match time_ns.map(Nanos) {
        Some(time) => {
            let holder = (id, &*target.to_string());
            keeper.give_part(&mut reconciler.host, holder, thread, time)?;
            format!("thread {thread} has {time} of the processor time of {target} exactly")
        }
        None => {
            keeper.take_part(&mut reconciler.host, id, thread)?;
            format!("thread {thread} has no part of the processor time of {target}")
        }
    };
    let logged = format!("{}: {text}", user_name(peer.uid));
    reconciler
        .journal
        .log(now, peer.user(), EventKind::Done, logged);
    Ok(Done {
        target: Some(target.to_string()),
        ..Done::default()
    })
}

/// Checks that a peer may divide the processor time of a target with these processes.
fn may_divide<H: Host>(
    host: &mut H,
    peer: &Peer,
    target: &Target,
    pids: &[u32],
) -> Result<(), RequestError> {
    let mut of_others = || {
        let uids = pids.iter().filter_map(|pid| Some(host.process(*pid)?.uid));
        uids.filter(|uid| *uid != peer.uid).count() > 0
    };
    // Users start an executable independently of each other.
    match !peer.privileged && (matches!(target, Target::App(_)) || of_others()) {
        false => Ok(()),
        true => Err(RequestError::NotPermitted(format!(
            "the processor time of {target} is for processes of several users: only root and the \
             group netnice may divide it"
        ))),
    }
}
