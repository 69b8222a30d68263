//! Describes a draft for a dry run ([`preview`]): what would change for which target and link, a
//! line for each, compared with the present ledger. Targets whose effective contract stays the same
//! have no line. It cannot fail.

use std::collections::BTreeMap;

use super::Draft;
use crate::ledger::{HeldTarget, Ledger, describe_link};
use crate::user_names::user_name;

/// Describes what the installation of a draft would change: links, then the effective contract of
/// each target that gets another one, with the users who asked for it, then the processes, groups
/// and users that would join or leave targets.
pub(super) fn preview(present: &Ledger, draft: &Draft) -> Vec<String> {
    let mut drafted = draft.ledger.clone();
    // The installation admits degraded targets again too.
    drafted.heal();
    let mut lines = link_changes(present, &drafted);
    let by_id = |ledger: &Ledger| -> BTreeMap<u32, HeldTarget> {
        ledger.held().map(|held| (held.id, held.clone())).collect()
    };
    let (before, mut after) = (by_id(present), by_id(&drafted));
    for (id, was) in &before {
        let is = after.remove(id);
        lines.extend(target_change((present, Some(was)), (&drafted, is.as_ref())));
    }
    for is in after.values() {
        lines.extend(target_change((present, None), (&drafted, Some(is))));
    }
    lines.extend(draft.acts.iter().map(ToString::to_string));
    lines
}

fn link_changes(present: &Ledger, drafted: &Ledger) -> Vec<String> {
    let mut lines = Vec::new();
    for was in present.links().map(|managed| &managed.link) {
        match drafted.link(was.name.as_str()).map(|managed| &managed.link) {
            None => lines.push(format!("{} is no longer managed", was.name)),
            Some(is) if is != was => {
                lines.push(format!(
                    "{}; before: {}",
                    describe_link(is),
                    describe_link(was)
                ));
            }
            Some(_) => {}
        }
    }
    let is_new = |name: &str| present.link(name).is_none();
    let links = drafted.links().map(|managed| &managed.link);
    let new = links.filter(|link| is_new(link.name.as_str()));
    lines.extend(new.map(describe_link));
    lines
}

/// The lines about one target, before and after, each with its ledger; none if its effective
/// contract and its state stay the same.
fn target_change(
    (present, was): (&Ledger, Option<&HeldTarget>),
    (drafted, is): (&Ledger, Option<&HeldTarget>),
) -> Vec<String> {
    let Some(held) = is.or(was) else {
        return Vec::new();
    };
    let contract = |ledger: &Ledger, held: Option<&HeldTarget>| {
        let text = held.map(|held| held.effective(ledger).to_string());
        let text = text.filter(|text| !text.is_empty());
        text.unwrap_or_else(|| "no contract".to_owned())
    };
    let (before, after) = (contract(present, was), contract(drafted, is));
    let target = &held.entry.target;
    let mut lines = Vec::new();
    if before != after {
        let askers: Vec<String> = held
            .claims
            .iter()
            .map(|claim| user_name(claim.by.uid))
            .collect();
        lines.push(format!(
            "{target} (asked by {}): {before} -> {after}",
            askers.join(", ")
        ));
    }
    let refused = |held: Option<&HeldTarget>| held.and_then(|held| held.refused.clone());
    match (refused(was), refused(is)) {
        (before, Some(why)) if before.as_ref() != Some(&why) => {
            lines.push(format!("{target} does not fit and is degraded: {why}"));
        }
        (Some(_), None) if is.is_some() => lines.push(format!("{target} fits again")),
        _ => {}
    }
    lines
}
