//! Puts the sections of unit files into force, beside the policy file.
//!
//! A section (`[X-Netnice]`) is a claim of the policy, as a rule of the policy file is. A target
//! has only one claim of the policy: if the policy file has a rule for a unit, the unit's section
//! has no effect. All unit files are read again 200 ms after one of them changes, with the policy
//! file, and, if a section applies to several units, when the set of running units has changed.
//! Errors go to the journal.
//!
//! If a section is invalid, its unit keeps the former contract. If a section does not fit, it is
//! not in force, and the journal has the reason; limits from its former text stay. The sections of
//! other units are independent of it. A unit that root has cleared stays cleared until its section
//! changes or the policy file is read again.

use netnice_core::admission::TargetId;

use super::processors;
use super::reload::{reduce_claim, set_claim};
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{Host, Inventory};
use crate::peer::POLICY;
use crate::policy::units::{SECTION, Units};
use crate::policy::{Rule, Rules};
use crate::reconcile::{Draft, Finder, Reconciler};

/// A rule of a unit file, and the slot of its target if that is held.
pub(super) type UnitSlot<'u> = (Option<TargetId>, &'u Rule);

/// Reads the unit files again and puts changes into force. The caller calls it after a change of a
/// unit file, or of the set of running units. Errors are logged.
pub(super) fn reload_units<H: Host>(reconciler: &mut Reconciler<H>, rules: &mut Rules, now: Now) {
    let units = rules.read_units(&mut reconciler.host);
    if units == rules.units {
        return;
    }
    let adopted = adopt_units(reconciler, rules, units, now);
    reconciler
        .journal
        .log_result(now, "reading unit files", adopted);
}

/// Puts the sections of unit files into force, without a change to the policy file's rules.
fn adopt_units<H: Host>(
    reconciler: &mut Reconciler<H>,
    rules: &mut Rules,
    units: Units,
    now: Now,
) -> Result<(), RequestError> {
    let mut draft = reconciler.draft();
    let mut of_units = unit_slots(
        &mut reconciler.finder(),
        &draft,
        &units,
        None,
        &mut Vec::new(),
    );
    // A rule that has not changed and is not in force was cleared by root.
    of_units.retain(|(slot, rule)| {
        let claims = slot
            .and_then(|slot| draft.ledger.get(slot))
            .map(|h| &h.claims);
        let holds = claims.is_some_and(|claims| claims.iter().any(|claim| claim.by == POLICY));
        let refused = rules.unit_faults.contains_key(&rule.target.to_string());
        holds || refused || !rules.units.rules.contains(rule)
    });
    let asked = of_units.iter().map(|(slot, rule)| (*slot, &rule.contract));
    let facts = (&mut reconciler.host, &reconciler.sending);
    processors::look_up_contracts(facts, &mut draft.ledger, asked);
    let sections: Vec<TargetId> = draft
        .ledger
        .held()
        .filter(|held| held.rule.as_ref().is_some_and(|r| r.starts_with(SECTION)))
        .map(|held| held.entry.id)
        .collect();
    for slot in sections {
        let rule = of_units.iter().find(|(at, _)| *at == Some(slot));
        if rule.is_none() && keeps_contract(&draft, slot, &units) {
            continue;
        }
        reduce_claim(&mut draft, slot, rule.map(|(_, rule)| *rule), now)?;
    }
    let (draft, refused) = set_unit_claims(&mut reconciler.finder(), draft, &of_units, now);
    reconciler.install(draft)?;
    rules.keep_units(units, refused, &mut reconciler.journal, now);
    Ok(())
}

/// The rules of unit files with the slots of their targets, without the rules of units for which
/// the policy file has a rule too. `of_file` has the rules of a policy file that is being read;
/// with `None`, the rules in force count. `messages` gets a message about each rule that is left
/// out because of one in `of_file`. Of two rules for one slot, the first is returned.
pub(super) fn unit_slots<'u>(
    finder: &mut Finder<'_, impl Inventory>,
    draft: &Draft,
    units: &'u Units,
    of_file: Option<&[(TargetId, &Rule)]>,
    messages: &mut Vec<String>,
) -> Vec<UnitSlot<'u>> {
    let mut slots: Vec<UnitSlot<'u>> = Vec::new();
    for rule in &units.rules {
        let slot = match draft.ledger.find(&rule.target) {
            Some(held) => Some(held.entry.id),
            None => finder
                .find_non_process(&rule.target)
                .ok()
                .and_then(|(body, ..)| draft.ledger.find_alias(&body))
                .map(|held| held.entry.id),
        };
        let mut read = of_file.unwrap_or_default().iter();
        if let Some((_, first)) = read.find(|(at, _)| Some(*at) == slot) {
            messages.push(format!(
                "{} does not hold: rule {} of the policy file is for {} too",
                rule.name, first.name, rule.target
            ));
            continue;
        }
        let held = slot.and_then(|slot| draft.ledger.get(slot));
        let ruled = held.and_then(|held| held.rule.as_ref());
        if of_file.is_none() && ruled.is_some_and(|rule| !rule.starts_with(SECTION)) {
            continue;
        }
        if slots.iter().all(|(at, _)| at.is_none() || *at != slot) {
            slots.push((slot, rule));
        }
    }
    slots
}

/// Makes the rules of unit files claims of the policy, each if it fits. Returns the draft with
/// them, and the targets whose rules do not fit, with the reasons.
pub(super) fn set_unit_claims(
    finder: &mut Finder<'_, impl Inventory>,
    mut draft: Draft,
    of_units: &[UnitSlot<'_>],
    now: Now,
) -> (Draft, Vec<(String, String)>) {
    let mut refused = Vec::new();
    for (_, rule) in of_units {
        let mut attempt = draft.clone();
        let grown = finder
            .slot_of_future(&mut attempt, &rule.target)
            .and_then(|slot| set_claim(&mut attempt, slot, rule, now));
        match grown {
            Ok(()) => draft = attempt,
            Err(error) => {
                let text = format!("{}: {}: {error}", rule.target, rule.name);
                refused.push((rule.target.to_string(), text));
            }
        }
    }
    (draft, refused)
}

/// True if the target's contract comes from a section of a unit file that is invalid now. Then the
/// target keeps the contract.
pub(super) fn keeps_contract(draft: &Draft, slot: TargetId, units: &Units) -> bool {
    let Some(held) = draft.ledger.get(slot) else {
        return false;
    };
    let by_section = held.rule.as_ref().is_some_and(|r| r.starts_with(SECTION));
    let of_target = |unit: &String| held.entry.target.to_string() == format!("unit:{unit}");
    by_section && units.faults.keys().any(of_target)
}
