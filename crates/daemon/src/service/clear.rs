//! `netnice clear`: withdraws claims, and closes targets without claims. For root, `--all` also
//! removes links and remnants.

use netnice_api::{Clear, ClearWhat, Done};
use netnice_core::admission::TargetId;
use netnice_core::claims::Claim;
use netnice_core::contract::IfName;
use netnice_core::target::Target;

use crate::authority;
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::Host;
use crate::journal::Kind;
use crate::ledger::undo::{Cleared, Undo};
use crate::ledger::{Ledger, Managed};
use crate::peer::Peer;
use crate::policy::rule_title;
use crate::quotas::Quotas;
use crate::reconcile::{Draft, Reconciler, Terms};

/// What was withdrawn, for a rollback if it is for a limited time.
#[derive(Default)]
struct Taken {
    targets: Vec<Cleared>,
    links: Vec<Managed>,
    messages: Vec<String>,
}

/// Withdraws the peer's claim on a target, or all its claims.
pub(super) fn clear<H: Host>(
    reconciler: &mut Reconciler<H>,
    quotas: &Quotas,
    peer: &Peer,
    clear: &Clear,
    now: Now,
) -> Result<Done, Denied> {
    let terms = Terms {
        confirm_ns: clear.confirm_ns,
        for_ns: clear.for_ns,
        until: clear.until,
    };
    reconciler.check_terms(terms)?;
    terms.within(quotas, peer)?;
    let mut draft = reconciler.draft();
    let mut taken = Taken::default();
    match &clear.what {
        ClearWhat::All => clear_all(&reconciler.books.ledger, &mut draft, &mut taken, peer, now)?,
        ClearWhat::Target(text) => {
            let target: Target = text.parse()?;
            let slot = reconciler.finder().lookup(&target)?.entry.id;
            taken.take_back(&mut draft, slot, peer, now)?;
        }
    }
    let Taken {
        targets,
        links,
        messages,
    } = taken;
    if clear.dry_run {
        let steps = reconciler.preview(&draft);
        return Ok(Done {
            plan: Some(messages.into_iter().chain(steps).collect()),
            ..Done::default()
        });
    }
    reconciler.forget_ended(&mut draft);
    if terms.is_lasting() {
        // A permanent clear also ends the wait of claims that were cleared for a limited time.
        match (&clear.what, peer.uid) {
            (ClearWhat::All, 0) => draft.undos.forget_all(),
            (_, uid) => draft.undos.forget_cleared(|one, claim| {
                let same = |target: &Cleared| target.target == one.target;
                targets.iter().any(same) && (uid == 0 || claim.by.uid == uid)
            }),
        }
    }
    let confirm = match targets.is_empty() && links.is_empty() {
        true => None,
        false => draft.wait(terms, peer, Undo::Cleared { targets, links }, now),
    };
    draft.within(&reconciler.books, quotas, peer)?;
    reconciler.install(draft)?;
    let who = authority::user(peer.uid);
    for message in &messages {
        let text = format!("{who}: {message}");
        reconciler.journal.tell(now, peer.user(), Kind::Done, text);
    }
    Ok(Done {
        messages: messages.into_iter().chain(terms.remarks()).collect(),
        confirm,
        ..Done::default()
    })
}

/// Clears all that the peer may clear; for root also links and remnants.
fn clear_all(
    present: &Ledger,
    draft: &mut Draft,
    taken: &mut Taken,
    peer: &Peer,
    now: Now,
) -> Result<(), Denied> {
    let mut slots: Vec<TargetId> = present.held().map(|held| held.entry.id).collect();
    // Inner targets first, so that no target is moved that will be closed anyway.
    slots.sort_by_key(|slot| std::cmp::Reverse(present.around(*slot).count()));
    let mut cleared = 0;
    for slot in slots {
        match taken.take_back(draft, slot, peer, now) {
            Ok(()) => cleared += 1,
            Err(Denied::NotPermitted(_)) if peer.uid != 0 => {}
            Err(denied) => return Err(denied),
        }
    }
    taken.messages = vec![count(cleared, "target", "cleared")];
    if peer.uid != 0 {
        return Ok(());
    }
    let names: Vec<IfName> = present.links().map(|m| m.link.name.clone()).collect();
    for name in &names {
        taken
            .links
            .extend(draft.ledger.link(name.as_str()).cloned());
        draft.ledger.unmanage(name)?;
        draft.undos.forget_link(name);
    }
    if !names.is_empty() {
        taken
            .messages
            .push(count(names.len(), "link", "given back"));
    }
    let left = draft.ledger.remnants().filter(|left| left.found).count();
    if left > 0 {
        taken
            .messages
            .push(count(left, "limit", "of a lost state lifted"));
    }
    draft.ledger.forget_remnants();
    Ok(())
}

impl Taken {
    /// Withdraws a peer's claim on a target, and closes the target if no claim is left.
    fn take_back(
        &mut self,
        draft: &mut Draft,
        slot: TargetId,
        peer: &Peer,
        now: Now,
    ) -> Result<(), Denied> {
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
            draft.undos.supersede(held.id, target, by, &change);
        }
        draft.ledger.admit(slot, claims, now.wall_ns)?;
        let left = draft.ledger.get(slot).map(|held| held.claims.effective());
        self.messages.push(format!(
            "{target} keeps what others asked: {}",
            left.map(ToString::to_string).unwrap_or_default()
        ));
        Ok(())
    }
}

fn count(number: usize, what: &str, done: &str) -> String {
    match number {
        1 => format!("1 {what} {done}"),
        n => format!("{n} {what}s {done}"),
    }
}
