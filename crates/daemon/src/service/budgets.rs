//! Budgets in requests and responses: replaces the name in a clause `delegate` by the user id,
//! checks that the user can have programs inside the target, and describes the division of a
//! budget. Fails if there is no such user, or if the target is another user.

use netnice_api::{BudgetDoc, BudgetPartDoc};
use netnice_core::contract::{Change, Contract, Delegate, IfName, Setting};
use netnice_core::units::Amount;

use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{Host, Inventory};
use crate::ledger::{Body, BudgetUse, HeldTarget, Ledger};
use crate::peer::Peer;
use crate::reconcile::Reconciler;
use crate::user_names::user_name;

/// A change with the id of the user who may divide the budget, in place of the name.
///
/// # Errors
/// If there is no user of this name.
pub(super) fn resolved(host: &mut impl Inventory, change: Change) -> Result<Change, RequestError> {
    let Some(Setting::Set(delegate)) = &change.delegate else {
        return Ok(change);
    };
    let uid = match delegate.uid() {
        Some(uid) => uid,
        None => host.user(delegate.as_str())?,
    };
    Ok(change.with_delegate(uid))
}

/// Checks that a budget is not divided by a user who has no program inside it.
///
/// # Errors
/// [`RequestError::BadUsage`] if the target is a user other than the one who divides it.
pub(super) fn check(held: &HeldTarget, contract: &Contract) -> Result<(), RequestError> {
    let divides = contract.delegate().and_then(Delegate::uid);
    match (&held.body, divides) {
        (Body::User(uid), Some(divides)) if *uid != divides => {
            Err(RequestError::BadUsage(format!(
                "{} consists of the processes of {}, so {} has nothing to divide inside it: name \
                 the same user with delegate",
                held.entry.target,
                user_name(*uid),
                user_name(divides)
            )))
        }
        _ => Ok(()),
    }
}

/// Logs which promises a request of a privileged peer has taken out of force or put into force
/// again, and returns the same messages.
pub(super) fn note_lost<H: Host>(
    reconciler: &mut Reconciler<H>,
    before: &Ledger,
    peer: &Peer,
    now: Now,
) -> Vec<String> {
    match peer.privileged {
        true => reconciler.note_guarantees(before, now),
        false => Vec::new(),
    }
}

/// The division of a budget in force; `None` if the target is none.
pub(super) fn document(ledger: &Ledger, held: &HeldTarget) -> Option<BudgetDoc> {
    let uid = held.delegate()?;
    let part = |part: BudgetUse| BudgetPartDoc {
        min: part.min.bits_per_second(),
        used: part.used.0,
        left: Amount::from(part.min).less(part.used).0,
    };
    let [up, down] = ledger.budget_use(held).map(|direction| direction.map(part));
    Some(BudgetDoc {
        target: held.entry.target.to_string(),
        uid,
        user: user_name(uid),
        link: held
            .entry
            .contract
            .on()
            .map_or_else(String::new, IfName::to_string),
        up,
        down,
    })
}

/// The rows of `netnice explain` about budgets: how a budget is divided, or which budget contains
/// the minimums of a user's target.
pub(super) fn rows(ledger: &Ledger, held: &HeldTarget) -> Vec<String> {
    if let Some(budget) = document(ledger, held) {
        let parts = [("up", &budget.up), ("down", &budget.down)];
        let parts = parts.into_iter().filter_map(|(word, part)| {
            let part = part.as_ref()?;
            Some(format!(
                "{} of {} {word} are promised to programs, {} are left",
                Amount(part.used).bits_text(),
                Amount(part.min).bits_text(),
                Amount(part.left).bits_text()
            ))
        });
        let who = format!("{} divides its minimums on {}", budget.user, budget.link);
        return std::iter::once(who).chain(parts).collect();
    }
    let Some((uid, shares)) = held.claims.users_shares() else {
        return Vec::new();
    };
    let on = held.entry.contract.on();
    let budget = ledger.budget_of(held.entry.parent, uid, on);
    let words: Vec<&str> = shares.iter().map(|share| share.word()).collect();
    let inside = budget.map(|budget| {
        let target = &budget.entry.target;
        let who = user_name(uid);
        format!("{} of {who} count inside {target} only", words.join(", "))
    });
    inside.into_iter().collect()
}
