//! Quotas of the books: refuses a draft that gives a user more than the quota allows.
//!
//! The result counts, not the request: what the user would have after the request is compared with
//! the limit and with the present amount. A request that does not increase an amount is never
//! refused, even if the limit was lowered below it.

use std::collections::BTreeSet;

use netnice_kernel::plan::MAX_SLOT;

use super::{ChangeDuration, Draft};
use crate::error::RequestError;
use crate::ledger::Ledger;
use crate::ledger::rollbacks::Rollbacks;
use crate::peer::Peer;
use crate::quotas::{Quota, Quotas};
use crate::state::{Books, bytes_of};

/// A user's amounts on the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserAmounts {
    /// Targets on which the user has a claim, and draining targets of such targets.
    pub targets: u64,
    /// Pending rollbacks.
    pub rollbacks: u64,
    /// Bytes of the state file.
    pub bytes: u64,
}

impl UserAmounts {
    /// Counts a user's amounts.
    pub(crate) fn of(ledger: &Ledger, rollbacks: &Rollbacks, uid: u32) -> UserAmounts {
        let rollbacks_of = rollbacks.iter().filter(|one| is_of(one.by, uid)).count();
        UserAmounts {
            targets: ledger.targets_of(uid) as u64,
            rollbacks: rollbacks_of as u64,
            bytes: bytes_of(ledger, rollbacks, uid),
        }
    }

    /// The amounts with their quotas.
    pub(crate) fn amounts(self) -> [(Quota, u64); 3] {
        [
            (Quota::Targets, self.targets),
            (Quota::Rollbacks, self.rollbacks),
            (Quota::StateBytes, self.bytes),
        ]
    }
}

impl Books {
    /// The unprivileged users with an amount on the books.
    pub(crate) fn users(&self) -> BTreeSet<u32> {
        let rollbacks = self.rollbacks.iter().map(|one| one.by);
        let rollbacks = rollbacks.filter(|by| !by.privileged).map(|by| by.uid);
        self.ledger.users().chain(rollbacks).collect()
    }
}

impl Draft {
    /// Checks the peer's amounts after a draft.
    ///
    /// # Errors
    /// If the draft increases an amount beyond its quota, or all unprivileged users together beyond
    /// [`MAX_OF_USERS`] targets.
    pub(crate) fn within(
        &self,
        books: &Books,
        quotas: &Quotas,
        peer: &Peer,
    ) -> Result<(), RequestError> {
        if peer.privileged {
            return Ok(());
        }
        let after = UserAmounts::of(&self.ledger, &self.rollbacks, peer.uid).amounts();
        let over = |(quota, amount): &(Quota, u64)| *amount > quotas.limit(*quota);
        if after.iter().any(over) {
            let before = UserAmounts::of(&books.ledger, &books.rollbacks, peer.uid).amounts();
            for ((quota, after), (_, before)) in after.into_iter().zip(before) {
                if after > before {
                    quotas.check(peer, quota, after)?;
                }
            }
        }
        let users = |ledger: &Ledger| ledger.targets_of_users();
        let (before, after) = (users(&books.ledger), users(&self.ledger));
        if after > before && after > MAX_OF_USERS {
            return Err(RequestError::NotAdmitted(format!(
                "refused: users would have {after} targets together, and there is room for \
                 {MAX_OF_USERS}: \
                 {RESERVED_FOR_PRIVILEGED} of {MAX_SLOT} are kept for root and the group netnice"
            )));
        }
        Ok(())
    }
}

impl ChangeDuration {
    /// Checks the times against the user's quota.
    ///
    /// # Errors
    /// If a time exceeds the quota `undo-time`.
    pub(crate) fn within(self, quotas: &Quotas, peer: &Peer) -> Result<(), RequestError> {
        let longest = self.confirm_ns.max(self.for_ns).unwrap_or(0);
        quotas.check(peer, Quota::RollbackTime, longest)
    }
}

fn is_of(by: netnice_core::claims::Claimant, uid: u32) -> bool {
    by.uid == uid && !by.privileged
}

/// Places for targets that are reserved for root and the group.
const RESERVED_FOR_PRIVILEGED: usize = 1_024;
/// Largest number of targets of all unprivileged users together.
const MAX_OF_USERS: usize = MAX_SLOT as usize - RESERVED_FOR_PRIVILEGED;
