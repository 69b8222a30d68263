//! Describes a draft for a dry run ([`preview`]): what would change for which target and link, a
//! line for each, compared with the present ledger. Targets whose effective contract stays the same
//! have no line. [`guarantee_changes`] describes which guarantees a change of a link's rate has
//! taken out of force or put in force again. No function fails.

use std::collections::BTreeMap;

use netnice_core::contract::{Change, Contract, Direction};
use netnice_core::units::Amount;

use super::Draft;
use crate::ledger::{HeldTarget, Ledger, ManagedLink, describe_link};
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
    lines.extend(direct_shortages(present, &drafted));
    lines.extend(draft.acts.iter().map(ToString::to_string));
    lines
}

/// A guarantee that is not in force any more, or is in force again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GuaranteeChange {
    /// True if the guarantee is not in force any more.
    pub lost: bool,
    /// The target, who asked, and the guarantee, as a message.
    pub text: String,
}

/// The guarantees that are in force in one of two ledgers only because their target is degraded in
/// the other, oldest target first; then the links whose direct flows do not get what they need any
/// more.
pub(super) fn guarantee_changes(before: &Ledger, after: &Ledger) -> Vec<GuaranteeChange> {
    let mut held: Vec<&HeldTarget> = after.held().collect();
    held.sort_by_key(|held| held.id);
    let of_target = |is: &&HeldTarget| {
        let was = before.by_id(is.id)?;
        let target = &is.entry.target;
        let asked = askers(is);
        match (&was.refused, &is.refused) {
            (None, Some(_)) => {
                let guarantee = guarantee(&was.entry.contract)?;
                let text = format!(
                    "{target} (asked by {asked}) loses {guarantee}, which does not fit any more: \
                     it is degraded until there is room"
                );
                Some(GuaranteeChange { lost: true, text })
            }
            (Some(_), None) => {
                let guarantee = guarantee(&is.entry.contract)?;
                let text = format!("{target} (asked by {asked}) has {guarantee} again");
                Some(GuaranteeChange { lost: false, text })
            }
            _ => share_change(was, is, &asked),
        }
    };
    let mut changes: Vec<GuaranteeChange> = held.iter().filter_map(of_target).collect();
    let shortages = direct_shortages(before, after).into_iter();
    changes.extend(shortages.map(|text| GuaranteeChange { lost: true, text }));
    changes
}

/// The minimums that users have in a budget, and that are in force in only one of two ledgers.
fn share_change(was: &HeldTarget, is: &HeldTarget, asked: &str) -> Option<GuaranteeChange> {
    let target = &is.entry.target;
    let before = guarantee(&was.entry.contract).filter(|_| was.aside.is_none());
    let after = guarantee(&is.entry.contract).filter(|_| is.aside.is_none());
    match (before, after) {
        (Some(guarantee), None) if is.aside.is_some() => Some(GuaranteeChange {
            lost: true,
            text: format!(
                "{target} (asked by {asked}) loses {guarantee}, which has no room in its budget \
                 any more: it is not in force until there is room"
            ),
        }),
        (None, Some(guarantee)) if was.aside.is_some() => Some(GuaranteeChange {
            lost: false,
            text: format!("{target} (asked by {asked}) has {guarantee} again"),
        }),
        _ => None,
    }
}

/// The guarantees of a contract as text; `None` if it has none.
fn guarantee(contract: &Contract) -> Option<String> {
    let all = contract.as_change();
    let guarantee = Change {
        min: all.min,
        min_down: all.min_down,
        slice: all.slice,
        on: all.on,
        ..Change::default()
    };
    contract.is_guaranteed().then(|| guarantee.to_string())
}

/// A message for each link whose rate has changed so that direct flows do not get what they need
/// there. The flow manager then takes back promises to flows.
fn direct_shortages(before: &Ledger, after: &Ledger) -> Vec<String> {
    let shortage = |managed: &ManagedLink| {
        let link = &managed.link;
        let was = before.link(link.name.as_str())?;
        let part = after.direct_part(&link.name)?;
        let usable = Amount::from(link.usable(Direction::Up)?);
        let [promised, _] = after.promised_to_targets(link);
        let left = usable.less(promised);
        let is_short = was.link.up != link.up && left < part.need.into();
        is_short.then(|| {
            format!(
                "direct flows on {} need {:#} and have at most {left:#}: the youngest of them \
                 lose their promises until there is room",
                link.name,
                Amount::from(part.need)
            )
        })
    };
    after.links().filter_map(shortage).collect()
}

/// The users who asked for a target, as text.
fn askers(held: &HeldTarget) -> String {
    let askers = held.claims.iter().map(|claim| user_name(claim.by.uid));
    askers.collect::<Vec<String>>().join(", ")
}

fn link_changes(present: &Ledger, drafted: &Ledger) -> Vec<String> {
    let mut lines = Vec::new();
    for before in present.links() {
        let was = &before.link;
        let Some(after) = drafted.link(was.name.as_str()) else {
            lines.push(format!("{} is no longer managed", was.name));
            continue;
        };
        if after.link != *was {
            lines.push(format!(
                "{}; before: {}",
                describe_link(&after.link),
                describe_link(was)
            ));
        }
        if after.classes != before.classes {
            lines.push(format!(
                "{}: {}; before: {}",
                was.name, after.classes, before.classes
            ));
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
        lines.push(format!(
            "{target} (asked by {}): {before} -> {after}",
            askers(held)
        ));
    }
    let of_links: Refused = |held| held.refused.as_ref();
    let of_processors: Refused = |held| held.time_refused.as_ref();
    for refused in [of_links, of_processors] {
        match (was.and_then(refused), is.and_then(refused)) {
            (before, Some(why)) if before != Some(why) => {
                lines.push(format!("{target} does not fit and is degraded: {why}"));
            }
            (Some(_), None) if is.is_some() => lines.push(format!("{target} fits again")),
            _ => {}
        }
    }
    lines
}

/// Why something of a target is not in force; `None` if it is.
type Refused = fn(&HeldTarget) -> Option<&String>;
