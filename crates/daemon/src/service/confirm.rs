//! `netnice confirm`: keeps a change that would be rolled back.

use netnice_api::{Confirm, Done};

use crate::authority;
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::Host;
use crate::journal::Kind;
use crate::ledger::undo::Waiting;
use crate::peer::Peer;
use crate::reconcile::Reconciler;

/// Keeps the change of this number.
///
/// # Errors
/// If the number is of no pending change of the peer.
pub(super) fn confirm<H: Host>(
    reconciler: &mut Reconciler<H>,
    peer: &Peer,
    confirm: &Confirm,
    now: Now,
) -> Result<Done, Denied> {
    let mut draft = reconciler.draft();
    let may = |waiting: &Waiting| peer.uid == 0 || waiting.by.uid == peer.uid;
    let number = confirm.id;
    draft.undos.confirm(number, may).ok_or_else(|| {
        Denied::Failed(format!(
            "no change of yours waits to be confirmed as {number}; it may have been taken back already, \
             `netnice log` tells"
        ))
    })?;
    reconciler.install(draft)?;
    let who = authority::user(peer.uid);
    let text = format!("{who} confirmed change {number}");
    reconciler.journal.tell(now, peer.user(), Kind::Done, text);
    Ok(Done {
        messages: vec![format!("change {number} is kept")],
        ..Done::default()
    })
}
