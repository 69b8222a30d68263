//! Puts the policy file into force, as a whole or not at all. If the file is invalid, or a rule or
//! a link does not fit, the former policy stays in force, and the error has the file, and the line
//! if one is the cause. Sections of unit files are read too, and each is in force if it fits
//! ([`super::unit_files`]).
//!
//! The policy is a claimant ([`POLICY`]), beside root and all users. Reading the file again changes
//! the policy's claims and links; rules that have not changed stay as they are. If a rule's target
//! does not exist yet, the rule waits for it, and its promise is reserved.

use std::path::Path;

use netnice_api::Done;
use netnice_core::admission::TargetId;
use netnice_core::claims::{Claim, Claims};
use netnice_core::contract::{Contract, IfName};
use netnice_core::link::{Capacity, CapacitySource, Link};
use netnice_core::units::{Bytes, Rate};

use super::link::reported_capacity;
use super::processors;
use super::unit_files::{keeps_contract, reload_units, set_unit_claims, unit_slots};
use crate::authority;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{Host, Inventory};
use crate::ledger::ManagedLink;
use crate::peer::POLICY;
use crate::peer::Peer;
use crate::policy::units::Units;
use crate::policy::{LinkRule, Policy, Rule, Rules};
use crate::quotas::{Quota, Quotas};
use crate::reconcile::{Draft, Finder, Reconciler};

/// Reads the policy file again at the request of a peer. The response has a message with the
/// outcome, and one for each rule or section without effect.
///
/// # Errors
/// If the peer is not privileged, the daemon has no policy file, or the file is invalid, does not
/// fit or cannot be installed.
pub(super) fn reload<H: Host>(
    reconciler: &mut Reconciler<H>,
    rules: &mut Rules,
    peer: &Peer,
    now: Now,
) -> Result<Done, RequestError> {
    authority::may_manage(peer, "reading the policy again")?;
    let Some(path) = rules.path.clone() else {
        return Err(RequestError::Failed(
            "this daemon has no policy file".to_owned(),
        ));
    };
    let messages = read_policy(reconciler, rules, &path, now)?;
    Ok(Done {
        messages,
        ..Done::default()
    })
}

/// Reads the policy file and puts it into force. If that fails, the former policy stays in force,
/// the error is logged, and unit files are read alone.
pub(super) fn load_policy<H: Host>(
    reconciler: &mut Reconciler<H>,
    rules: &mut Rules,
    path: &Path,
    now: Now,
) {
    rules.set_path(path);
    if let Err(error) = read_policy(reconciler, rules, path, now) {
        let text = format!("the policy is not in force: {error}");
        reconciler.journal.warn(now, text);
        reload_units(reconciler, rules, now);
    }
}

fn read_policy<H: Host>(
    reconciler: &mut Reconciler<H>,
    rules: &mut Rules,
    path: &Path,
    now: Now,
) -> Result<Vec<String>, RequestError> {
    let result = match Policy::load(path) {
        Ok(policy) => {
            let units = rules.read_units(&mut reconciler.host);
            adopt_policy(reconciler, rules, path, policy, units, now)
        }
        Err(error) => Err(RequestError::BadUsage(error.to_string())),
    };
    rules.fault = result.as_ref().err().map(ToString::to_string);
    result
}

fn adopt_policy<H: Host>(
    reconciler: &mut Reconciler<H>,
    rules: &mut Rules,
    path: &Path,
    policy: Option<Policy>,
    units: Units,
    now: Now,
) -> Result<Vec<String>, RequestError> {
    let at = |line: usize, error: RequestError| {
        RequestError::NotAdmitted(format!("{}:{line}: {error}", path.display()))
    };
    let there = policy.is_some();
    let policy = policy.unwrap_or_else(|| Policy {
        quotas: Quotas::of_file(path),
        ..Policy::default()
    });
    let mut draft = reconciler.draft();
    let mut messages = Vec::new();
    let wanted = rule_slots(
        &mut reconciler.finder(),
        &mut draft,
        &policy,
        &mut messages,
        &at,
    )?;
    let of_units = unit_slots(
        &mut reconciler.finder(),
        &draft,
        &units,
        Some(&wanted),
        &mut messages,
    );
    let of_file = wanted
        .iter()
        .map(|(slot, rule)| (Some(*slot), &rule.contract));
    let asked = of_file.chain(of_units.iter().map(|(slot, rule)| (*slot, &rule.contract)));
    let facts = (&mut reconciler.host, &reconciler.sending);
    processors::look_up_contracts(facts, &mut draft.ledger, asked);
    // First obsolete claims are removed, then links change, then new claims are added. So no
    // request is refused because of a state that exists only in between.
    let slots: Vec<TargetId> = draft.ledger.held().map(|held| held.entry.id).collect();
    for slot in slots {
        let of_file = wanted.iter().find(|(at, _)| *at == slot).map(|(_, r)| *r);
        let of_unit = of_units.iter().find(|(at, _)| *at == Some(slot));
        let rule = of_file.or(of_unit.map(|(_, rule)| *rule));
        if rule.is_none() && keeps_contract(&draft, slot, &units) {
            continue;
        }
        reduce_claim(&mut draft, slot, rule, now)?;
    }
    change_links(&mut reconciler.host, &mut draft, &policy, &at)?;
    for (slot, rule) in &wanted {
        set_claim(&mut draft, *slot, rule, now).map_err(|error| at(rule.line, error))?;
    }
    let (draft, refused) = set_unit_claims(&mut reconciler.finder(), draft, &of_units, now);
    reconciler.install(draft)?;
    let text = match there {
        true => format!(
            "policy {} is in force: rules {}, links {}",
            path.display(),
            wanted.len(),
            policy.links.len()
        ),
        false => format!("there is no policy file {}", path.display()),
    };
    if there {
        reconciler.journal.note(now, text.clone());
    }
    messages.insert(0, text);
    messages.extend(rules.keep_units(units, refused, &mut reconciler.journal, now));
    reconciler
        .journal
        .set_quota(policy.quotas.limit(Quota::LogLines));
    rules.policy = policy;
    rules.loaded = true;
    Ok(messages)
}

/// The slot of each rule's target, which is opened if it is not held. Of two rules for one target,
/// the first counts, and `messages` gets a message about the other.
fn rule_slots<'p>(
    finder: &mut Finder<'_, impl Inventory>,
    draft: &mut Draft,
    policy: &'p Policy,
    messages: &mut Vec<String>,
    at: &impl Fn(usize, RequestError) -> RequestError,
) -> Result<Vec<(TargetId, &'p Rule)>, RequestError> {
    let mut slots: Vec<(TargetId, &Rule)> = Vec::new();
    for rule in &policy.rules {
        let slot = finder.slot_of_future(draft, &rule.target);
        let slot = slot.map_err(|error| at(rule.line, error))?;
        match slots.iter().find(|(taken, _)| *taken == slot) {
            Some((_, first)) => messages.push(format!(
                "rule {} (line {}) never matches: rule {} comes first for {}",
                rule.name, rule.line, first.name, rule.target
            )),
            None => slots.push((slot, rule)),
        }
    }
    Ok(slots)
}

fn change_links(
    machine: &mut impl Inventory,
    draft: &mut Draft,
    policy: &Policy,
    at: &impl Fn(usize, RequestError) -> RequestError,
) -> Result<(), RequestError> {
    let named = |name: &IfName| policy.links.iter().any(|rule| rule.name == *name);
    let gone: Vec<IfName> = draft
        .ledger
        .links()
        .filter(|managed| managed.by == POLICY.uid && !named(&managed.link.name))
        .map(|managed| managed.link.name.clone())
        .collect();
    for rule in &policy.links {
        let managed = change_link(machine, draft, rule);
        managed.map_err(|error| at(rule.line, error))?;
    }
    for name in gone {
        draft.ledger.unmanage(&name)?;
    }
    Ok(())
}

fn change_link(
    machine: &mut impl Inventory,
    draft: &mut Draft,
    rule: &LinkRule,
) -> Result<(), RequestError> {
    let present = draft.ledger.link(rule.name.as_str()).cloned();
    let present = present.filter(ManagedLink::follows_driver);
    let asks_driver = rule.rate.is_none() && rule.down_rate.is_none();
    let Some(present) = present.filter(|_| asks_driver) else {
        let link = link_of_rule(machine, rule)?;
        draft.ledger.manage(link, POLICY.uid)?;
        draft.ledger.set_classes(&rule.name, rule.classes);
        return Ok(());
    };
    // The rule has the driver's speed before and after. That the speed itself has changed, or that
    // the interface reports none now, does not make the policy invalid.
    let link = link_of_rule(machine, rule).unwrap_or(Link {
        overhead: Bytes(rule.overhead),
        horizon: rule.horizon,
        ..present.link
    });
    draft.ledger.set_capacity(ManagedLink {
        link,
        by: POLICY.uid,
        reflectors: Vec::new(),
        classes: rule.classes,
    });
    Ok(())
}

fn link_of_rule(machine: &mut impl Inventory, rule: &LinkRule) -> Result<Link, RequestError> {
    let operator = |rate: Rate| Capacity {
        rate,
        source: CapacitySource::Operator,
    };
    let (mut up, mut down) = (rule.rate.map(operator), rule.down_rate.map(operator));
    if up.is_none() && down.is_none() {
        let reported = reported_capacity(machine, &rule.name)?;
        (up, down) = (Some(reported), Some(reported));
    }
    Ok(Link {
        name: rule.name.clone(),
        up,
        down,
        overhead: Bytes(rule.overhead),
        horizon: rule.horizon,
    })
}

/// Reduces the policy's claim on a target, before the new claims are set. Without a rule, the claim
/// is removed, and a target without other claims is closed. If the rule has changed, the guarantees
/// and the processor time of the claim are removed. A claim whose rule has not changed stays.
///
/// # Errors
/// If the ledger does not admit what is left.
pub(super) fn reduce_claim(
    draft: &mut Draft,
    slot: TargetId,
    rule: Option<&Rule>,
    now: Now,
) -> Result<(), RequestError> {
    let Some(held) = draft.ledger.get(slot).cloned() else {
        return Ok(());
    };
    let claim = held.claims.iter().find(|claim| claim.by == POLICY);
    let left = match (rule, claim) {
        (Some(_), None) => return Ok(()),
        (Some(rule), Some(claim)) if rule.contract == claim.contract => return Ok(()),
        (Some(_), Some(claim)) => {
            let left = claim.contract.without_guarantees();
            left.without_processor_time()
        }
        (None, None) if held.rule.is_none() => return Ok(()),
        (None, _) => Contract::default(),
    };
    let claims = with_policy(&held.claims, left)?;
    if claims.is_empty() && rule.is_none() {
        draft.close(slot);
        return Ok(());
    }
    draft.ledger.admit(slot, claims, now.wall_ns)?;
    draft
        .ledger
        .set_rule(slot, rule.map(|rule| rule.name.clone()));
    Ok(())
}

/// Makes a rule's contract the policy's claim on a target.
///
/// # Errors
/// If the contract conflicts with other claims or does not fit.
pub(super) fn set_claim(
    draft: &mut Draft,
    slot: TargetId,
    rule: &Rule,
    now: Now,
) -> Result<(), RequestError> {
    let Some(held) = draft.ledger.get(slot).cloned() else {
        return Ok(());
    };
    let claimed = held.claims.iter().find(|claim| claim.by == POLICY);
    if claimed.is_none_or(|claim| claim.contract != rule.contract) {
        let claims = with_policy(&held.claims, rule.contract.clone())?;
        draft.ledger.admit(slot, claims, now.wall_ns)?;
    }
    draft.ledger.set_rule(slot, Some(rule.name.clone()));
    Ok(())
}

/// The claims of a target, with `contract` as the claim of the policy; without one if it is empty.
fn with_policy(claims: &Claims, contract: Contract) -> Result<Claims, RequestError> {
    let mut all: Vec<Claim> = claims.iter().filter(|c| c.by != POLICY).cloned().collect();
    let order = claims.iter().map(|claim| claim.order + 1).max();
    if !contract.is_empty() {
        all.push(Claim {
            by: POLICY,
            order: order.unwrap_or(0),
            contract,
        });
    }
    Ok(claims.replace(all)?)
}
