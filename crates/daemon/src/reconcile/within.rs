//! Quotas of what is on the books: a draft that gives a user more than the quota allows is refused.
//!
//! Counted is the result, not the request: whatever way a request takes, what its user would have after it is compared
//! with the limit and with what the user has now. A request that leaves an amount as it is, or makes it less, is never
//! refused, also where the limit was lowered below it.

use std::collections::BTreeSet;

use netnice_kernel::plan::MAX_SLOT;

use super::{Draft, Terms};
use crate::denied::Denied;
use crate::ledger::Ledger;
use crate::ledger::undo::Undos;
use crate::peer::Peer;
use crate::quotas::{Quota, Quotas};
use crate::state::{Books, bytes_of};

/// What a user has on the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OnBooks {
    /// Targets of which the user asks something, and what is left of such targets.
    pub targets: u64,
    /// Changes that wait to be taken back.
    pub undos: u64,
    /// Bytes of the state file.
    pub bytes: u64,
}

impl OnBooks {
    /// Counts them.
    pub(crate) fn of(ledger: &Ledger, undos: &Undos, uid: u32) -> OnBooks {
        let undos_of = undos.iter().filter(|one| is_of(one.by, uid)).count();
        OnBooks {
            targets: ledger.targets_of(uid) as u64,
            undos: undos_of as u64,
            bytes: bytes_of(ledger, undos, uid),
        }
    }

    /// The amounts with their quotas.
    pub(crate) fn amounts(self) -> [(Quota, u64); 3] {
        [
            (Quota::Targets, self.targets),
            (Quota::Undos, self.undos),
            (Quota::StateBytes, self.bytes),
        ]
    }
}

impl Books {
    /// The users without privilege who have something here.
    pub(crate) fn users(&self) -> BTreeSet<u32> {
        let undos = self.undos.iter().map(|one| one.by);
        let undos = undos.filter(|by| !by.privileged).map(|by| by.uid);
        self.ledger.users().chain(undos).collect()
    }
}

impl Draft {
    /// Refuses a draft that gives the peer more than a user may have.
    ///
    /// # Errors
    /// The quota that it goes over; or all users together would leave no room for root and the group.
    pub(crate) fn within(&self, books: &Books, quotas: &Quotas, peer: &Peer) -> Result<(), Denied> {
        if peer.privileged {
            return Ok(());
        }
        let after = OnBooks::of(&self.ledger, &self.undos, peer.uid).amounts();
        let over = |(quota, amount): &(Quota, u64)| *amount > quotas.limit(*quota);
        if after.iter().any(over) {
            let before = OnBooks::of(&books.ledger, &books.undos, peer.uid).amounts();
            for ((quota, after), (_, before)) in after.into_iter().zip(before) {
                if after > before {
                    quotas.check(peer, quota, after)?;
                }
            }
        }
        let users = |ledger: &Ledger| ledger.targets_of_users();
        let (before, after) = (users(&books.ledger), users(&self.ledger));
        if after > before && after > MOST_OF_USERS {
            return Err(Denied::NotAdmitted(format!(
                "refused: users would have {after} targets together, and there is room for {MOST_OF_USERS}: \
                 {KEPT_FOR_PRIVILEGED} of {MAX_SLOT} are kept for root and the group netnice"
            )));
        }
        Ok(())
    }
}

impl Terms {
    /// Refuses a time that is longer than a user's change may wait.
    ///
    /// # Errors
    /// It is.
    pub(crate) fn within(self, quotas: &Quotas, peer: &Peer) -> Result<(), Denied> {
        let longest = self.confirm_ns.max(self.for_ns).unwrap_or(0);
        quotas.check(peer, Quota::UndoTime, longest)
    }
}

fn is_of(by: netnice_core::claims::Claimant, uid: u32) -> bool {
    by.uid == uid && !by.privileged
}

/// Places for targets that no number of users takes from root and the group.
const KEPT_FOR_PRIVILEGED: usize = 1_024;
/// What all users have together at most.
const MOST_OF_USERS: usize = MAX_SLOT as usize - KEPT_FOR_PRIVILEGED;
