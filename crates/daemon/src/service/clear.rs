//! `netnice clear`: withdraws claims, and closes targets that have no claim then. Root withdraws
//! the claims of all users, and with `--all` also removes links and draining targets. Every other
//! user withdraws only own claims. Fails if a named target is not held or the user has no claim on
//! it, if the pending rollback of the clear is invalid or exceeds a quota, or if the kernel or the
//! state file fails. Then no claim has changed.

use netnice_api::{Clear, ClearWhat, Done};
use netnice_core::admission::TargetId;
use netnice_core::claims::Claim;
use netnice_core::contract::IfName;
use netnice_core::target::Target;

use super::budgets;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::journal::EventKind;
use crate::ledger::rollbacks::{Cleared, Undo};
use crate::ledger::{Ledger, ManagedLink};
use crate::peer::Peer;
use crate::policy::rule_title;
use crate::quotas::Quotas;
use crate::reconcile::{ChangeDuration, Draft, Reconciler};
use crate::user_names::user_name;

/// What was withdrawn, for the rollback if there will be one, and for the response.
#[derive(Default)]
struct Withdrawn {
    targets: Vec<Cleared>,
    links: Vec<ManagedLink>,
    messages: Vec<String>,
}

/// Withdraws the peer's claim on a target, or the peer's claims on all targets; for root, the
/// claims of all users. In a dry run, only describes what would be done.
///
/// # Errors
/// For the reasons in the module's documentation.
pub(super) fn clear<H: Host>(
    reconciler: &mut Reconciler<H>,
    quotas: &Quotas,
    peer: &Peer,
    clear: &Clear,
    now: Now,
) -> Result<Done, RequestError> {
    let duration = duration(clear);
    reconciler.check_duration(duration)?;
    duration.within(quotas, peer)?;
    let mut draft = reconciler.draft();
    let mut withdrawn = Withdrawn::default();
    match &clear.what {
        ClearWhat::All => clear_all(
            &reconciler.books.ledger,
            &mut draft,
            &mut withdrawn,
            peer,
            now,
        )?,
        ClearWhat::Target(text) => {
            let target: Target = text.parse()?;
            let found = reconciler.finder().lookup(&target);
            match found.map(|held| held.entry.id) {
                Ok(slot) => withdrawn.withdraw(&mut draft, slot, peer, now)?,
                Err(error) => {
                    let own = |claim: &Claim| peer.uid == 0 || claim.by.uid == peer.uid;
                    let waits = draft.rollbacks.restores(&target, own);
                    if !waits || !duration.is_lasting() {
                        return Err(error);
                    }
                    let is_its = |one: &Cleared, claim: &Claim| one.target == target && own(claim);
                    draft.rollbacks.forget_cleared(is_its);
                    let message = format!("{target} is not restored any more");
                    withdrawn.messages.push(message);
                }
            }
        }
    }
    let Withdrawn {
        targets,
        links,
        messages,
    } = withdrawn;
    if clear.dry_run {
        let steps = reconciler.preview(&draft);
        return Ok(Done {
            plan: Some(messages.into_iter().chain(steps).collect()),
            ..Done::default()
        });
    }
    reconciler.forget_ended(&mut draft);
    if duration.is_lasting() {
        // After a permanent clear, claims that were cleared for a limited time are not restored.
        match (&clear.what, peer.uid) {
            (ClearWhat::All, 0) => draft.rollbacks.forget_all(),
            (_, uid) => draft.rollbacks.forget_cleared(|one, claim| {
                let same = |target: &Cleared| target.target == one.target;
                targets.iter().any(same) && (uid == 0 || claim.by.uid == uid)
            }),
        }
    }
    let confirm = match targets.is_empty() && links.is_empty() {
        true => None,
        false => draft.add_rollback(duration, peer, Undo::Cleared { targets, links }, now),
    };
    draft.within(&reconciler.books, quotas, peer)?;
    let before = reconciler.books.ledger.clone();
    reconciler.install(draft)?;
    let told = budgets::note_lost(reconciler, &before, peer, now);
    if matches!(clear.what, ClearWhat::All) && peer.uid == 0 && duration.is_lasting() {
        reconciler.forget_usage(now);
    }
    let who = user_name(peer.uid);
    for message in &messages {
        let text = format!("{who}: {message}");
        reconciler
            .journal
            .log(now, peer.user(), EventKind::Done, text);
    }
    Ok(Done {
        messages: [messages, told, duration.remarks()].concat(),
        confirm,
        ..Done::default()
    })
}

/// For how long a clear is to last.
pub(super) fn duration(clear: &Clear) -> ChangeDuration {
    ChangeDuration {
        confirm_ns: clear.confirm_ns,
        for_ns: clear.for_ns,
        until: clear.until,
    }
}

/// Clears all that the peer may clear; for root also links and draining targets.
fn clear_all(
    present: &Ledger,
    draft: &mut Draft,
    withdrawn: &mut Withdrawn,
    peer: &Peer,
    now: Now,
) -> Result<(), RequestError> {
    let mut slots: Vec<TargetId> = present.held().map(|held| held.entry.id).collect();
    // Inner targets first. Then closing a target changes the parent of no target that is closed
    // later.
    slots.sort_by_key(|slot| std::cmp::Reverse(present.around(*slot).count()));
    let mut cleared = 0;
    for slot in slots {
        match withdrawn.withdraw(draft, slot, peer, now) {
            Ok(()) => cleared += 1,
            Err(RequestError::NotPermitted(_)) if peer.uid != 0 => {}
            Err(error) => return Err(error),
        }
    }
    withdrawn.messages = vec![count(cleared, "target", "cleared")];
    if peer.uid != 0 {
        return Ok(());
    }
    let names: Vec<IfName> = present.links().map(|m| m.link.name.clone()).collect();
    for name in &names {
        withdrawn
            .links
            .extend(draft.ledger.link(name.as_str()).cloned());
        draft.ledger.unmanage(name)?;
        draft.rollbacks.forget_link(name);
    }
    if !names.is_empty() {
        withdrawn
            .messages
            .push(count(names.len(), "link", "given back"));
    }
    let left = draft.ledger.draining().filter(|left| left.found).count();
    if left > 0 {
        withdrawn
            .messages
            .push(count(left, "limit", "of a lost state lifted"));
    }
    draft.ledger.forget_draining();
    Ok(())
}

impl Withdrawn {
    /// Withdraws a peer's claim on a target (root: all claims), and closes the target if no claim
    /// is left.
    fn withdraw(
        &mut self,
        draft: &mut Draft,
        slot: TargetId,
        peer: &Peer,
        now: Now,
    ) -> Result<(), RequestError> {
        let Some(held) = draft.ledger.get(slot).cloned() else {
            return Ok(());
        };
        let claims = held.claims.clear(peer.claimant())?;
        let target = &held.entry.target;
        let gone = |claim: &&Claim| claims.iter().all(|left| left.by.uid != claim.by.uid);
        self.targets.push(Cleared {
            target: target.clone(),
            body: held.body.clone(),
            place: held.place.clone(),
            claims: held.claims.iter().filter(gone).cloned().collect(),
            rule: held.rule.clone(),
        });
        if claims.is_empty() {
            if let (Some(closed), Some(_)) = (draft.close(slot), peer.user()) {
                draft.ledger.stay_loaded(&closed, now.monotonic);
            }
            self.messages.push(format!("{target} is cleared"));
            if let Some(rule) = &held.rule {
                self.messages.push(format!(
                    "{} asked for it too; it comes back with `netnice reload`",
                    rule_title(rule)
                ));
            }
            return Ok(());
        }
        let by = peer.claimant();
        let whole = held
            .claims
            .iter()
            .find(|claim| claim.by.uid == by.uid)
            .map(|claim| claim.contract.as_change());
        if let Some(change) = whole {
            draft.rollbacks.supersede(held.id, target, by, &change);
        }
        draft.ledger.withdraw(slot, claims, now.wall_ns);
        let left = draft.ledger.get(slot);
        self.messages.push(format!(
            "{target} keeps what others asked: {}",
            left.map(|held| held.claims.effective().to_string())
                .unwrap_or_default()
        ));
        if let Some(why) = left.and_then(|held| held.refused.as_ref()) {
            self.messages
                .push(format!("{target} does not fit now and is degraded: {why}"));
        }
        Ok(())
    }
}

fn count(number: usize, what: &str, done: &str) -> String {
    match number {
        1 => format!("1 {what} {done}"),
        n => format!("{n} {what}s {done}"),
    }
}
