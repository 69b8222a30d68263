//! Applies the quotas of users to the books (the ledger and the pending rollbacks): refuses a draft
//! that gives an unprivileged user more targets, pending rollbacks or bytes of state than the quota
//! allows, and a change whose time until its rollback exceeds the quota.
//!
//! The amount that the user would have after the request is compared with the limit and with the
//! present amount. An amount that the request does not increase is no reason for a refusal, even if
//! the limit was lowered below it. All unprivileged users together have at most [`MAX_OF_USERS`]
//! targets (6,256).

use std::collections::BTreeSet;

use netnice_kernel::plan::MAX_SLOT;

use super::{ChangeDuration, Draft};
use crate::error::RequestError;
use crate::ledger::Ledger;
use crate::ledger::rollbacks::Rollbacks;
use crate::peer::Peer;
use crate::quotas::{Quota, Quotas};
use crate::state::{Books, bytes_of};

/// What an unprivileged user has on the books, of each resource with a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserAmounts {
    /// Targets on which the user has a claim, and draining targets of such targets.
    pub targets: u64,
    /// Pending rollbacks.
    pub rollbacks: u64,
    /// Bytes that these targets (without draining ones) and rollbacks take in the state file.
    pub bytes: u64,
}

impl UserAmounts {
    /// Counts the amounts of the user `uid`.
    pub(crate) fn of(ledger: &Ledger, rollbacks: &Rollbacks, uid: u32) -> UserAmounts {
        let rollbacks_of = rollbacks.iter().filter(|one| is_of(one.by, uid)).count();
        UserAmounts {
            targets: ledger.targets_of(uid) as u64,
            rollbacks: rollbacks_of as u64,
            bytes: bytes_of(ledger, rollbacks, uid),
        }
    }

    /// Each amount with its quota.
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
    /// Checks the peer's amounts after this draft, compared with those on the books.
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

/// Number of targets that are reserved for root and the group `netnice`.
const RESERVED_FOR_PRIVILEGED: usize = 1_024;
/// Largest number of targets of all unprivileged users together.
const MAX_OF_USERS: usize = MAX_SLOT as usize - RESERVED_FOR_PRIVILEGED;
