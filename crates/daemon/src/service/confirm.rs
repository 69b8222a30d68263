//! `netnice confirm`: keeps a change that would be rolled back, by dropping its pending rollback.

use netnice_api::{Confirm, Done};

use crate::authority;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::journal::EventKind;
use crate::ledger::rollbacks::PendingRollback;
use crate::peer::Peer;
use crate::reconcile::Reconciler;

/// Keeps the change with the number in the request. Root may confirm changes of all users.
///
/// # Errors
/// If no change with this number that the peer may confirm waits to be confirmed, or if the books
/// cannot be written.
pub(super) fn confirm<H: Host>(
    reconciler: &mut Reconciler<H>,
    peer: &Peer,
    confirm: &Confirm,
    now: Now,
) -> Result<Done, RequestError> {
    let mut draft = reconciler.draft();
    let may = |waiting: &PendingRollback| peer.uid == 0 || waiting.by.uid == peer.uid;
    let number = confirm.id;
    draft.rollbacks.confirm(number, may).ok_or_else(|| {
        RequestError::Failed(format!(
            "no change of yours with number {number} waits to be confirmed; `netnice log` shows \
             whether it was taken \
             back"
        ))
    })?;
    reconciler.install(draft)?;
    let who = authority::user_name(peer.uid);
    let text = format!("{who} confirmed change {number}");
    reconciler
        .journal
        .log(now, peer.user(), EventKind::Done, text);
    Ok(Done {
        messages: vec![format!("change {number} is kept")],
        ..Done::default()
    })
}
