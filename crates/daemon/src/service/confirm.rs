//! `netnice confirm`: keeps a change that would be rolled back, by dropping its pending rollback.
//! Fails if there is no such rollback, the peer may not confirm it, or the kernel or the state file
//! fails.

use netnice_api::{Confirm, Done};

use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::journal::EventKind;
use crate::ledger::rollbacks::PendingRollback;
use crate::peer::Peer;
use crate::reconcile::Reconciler;
use crate::user_names::user_name;

/// True if a peer may confirm a change: root any, every other user own ones.
pub(super) fn may_confirm(peer: &Peer, waiting: &PendingRollback) -> bool {
    peer.uid == 0 || waiting.by.uid == peer.uid
}

/// Keeps the change with the number in the request. Root may confirm changes of all users.
///
/// # Errors
/// If no change with this number that the peer may confirm waits to be confirmed, or if the kernel
/// or the state file fails.
pub(super) fn confirm<H: Host>(
    reconciler: &mut Reconciler<H>,
    peer: &Peer,
    confirm: &Confirm,
    now: Now,
) -> Result<Done, RequestError> {
    let mut draft = reconciler.draft();
    let number = confirm.id;
    let confirmed = draft
        .rollbacks
        .confirm(number, |waiting| may_confirm(peer, waiting));
    confirmed.ok_or_else(|| {
        RequestError::Failed(format!(
            "no change of yours with number {number} waits to be confirmed; `netnice confirm` lists \
             those that do, and `netnice log` shows what was taken back"
        ))
    })?;
    reconciler.install(draft)?;
    let who = user_name(peer.uid);
    let text = format!("{who} confirmed change {number}");
    reconciler
        .journal
        .log(now, peer.user(), EventKind::Done, text);
    Ok(Done {
        messages: vec![format!("change {number} is kept")],
        ..Done::default()
    })
}
