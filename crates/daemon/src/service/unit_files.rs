//! Sections of unit files, put in force beside the policy file.
//!
//! They are the policy's claims too, so that a unit has one contract of the administrator's; where the policy file has a
//! rule for the unit, that one wins, as the first. A section takes effect when its file changes, without being asked: it
//! is read again a moment after, and what root has cleared by hand meanwhile stays cleared until its section changes.

use std::path::PathBuf;

use netnice_core::admission::TargetId;

use super::reload::{grow, shrink};
use super::{Clerk, Draft};
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::Host;
use crate::peer::POLICY;
use crate::policy::Rule;
use crate::policy::units::{self, SECTION, Units};

/// A rule of a unit file, and the slot of its target if that is held.
pub(super) type UnitSeat<'u> = (Option<TargetId>, &'u Rule);

impl<H: Host> Clerk<H> {
    /// Looks for unit files in these folders from now on.
    pub fn look_for_units(&mut self, path: Vec<PathBuf>) {
        self.unit_path = path;
    }

    /// The folders in which a change may change what units ask for.
    pub fn unit_folders(&self) -> &std::collections::BTreeSet<PathBuf> {
        &self.units.folders
    }

    /// Reads the unit files again, for one of them has changed or a new instance of a template runs, and puts in force
    /// what has changed.
    pub fn look_at_units(&mut self, now: Now) {
        let units = self.read_units();
        if units == self.units {
            return;
        }
        let adopted = self.adopt_units(units, now);
        self.journal.judge(now, "reading unit files", adopted);
    }

    /// Whether other units run than when their files were read, where that matters.
    pub(super) fn other_instances_run(&mut self) -> bool {
        self.units.templates && self.host.running_units() != self.running
    }

    pub(super) fn read_units(&mut self) -> Units {
        if self.unit_path.is_empty() {
            return Units::default();
        }
        self.running = self.host.running_units();
        units::read(&self.unit_path, &self.running)
    }

    /// Puts in force what unit files ask for now, and leaves the policy file's rules alone.
    fn adopt_units(&mut self, units: Units, now: Now) -> Result<(), Denied> {
        let mut draft = self.draft();
        let mut of_units = self.unit_seats(&draft, &units, None, &mut Vec::new());
        // What has not changed and is not there was cleared by hand.
        of_units.retain(|(slot, rule)| {
            let claims = slot
                .and_then(|slot| draft.ledger.get(slot))
                .map(|h| &h.claims);
            let holds = claims.is_some_and(|claims| claims.iter().any(|claim| claim.by == POLICY));
            let refused = self.unit_faults.contains_key(&rule.target.to_string());
            holds || refused || !self.units.rules.contains(rule)
        });
        let sections: Vec<TargetId> = draft
            .ledger
            .held()
            .filter(|held| held.rule.as_ref().is_some_and(|r| r.starts_with(SECTION)))
            .map(|held| held.entry.id)
            .collect();
        for slot in sections {
            let rule = of_units.iter().find(|(at, _)| *at == Some(slot));
            if rule.is_none() && keeps_faulty(&draft, slot, &units) {
                continue;
            }
            shrink(&mut draft, slot, rule.map(|(_, rule)| *rule), now)?;
        }
        let (draft, refused) = self.grow_units(draft, &of_units, now);
        self.install(draft, |_| Ok(()))?;
        self.keep_units(units, refused, now);
        Ok(())
    }

    /// The rules of unit files, but for those of units that a rule of the policy file is for: one of those that are being
    /// read too, or else one that is in force.
    pub(super) fn unit_seats<'u>(
        &mut self,
        draft: &Draft,
        units: &'u Units,
        of_file: Option<&[(TargetId, &Rule)]>,
        messages: &mut Vec<String>,
    ) -> Vec<UnitSeat<'u>> {
        let mut seats: Vec<UnitSeat<'u>> = Vec::new();
        for rule in &units.rules {
            let slot = match draft.ledger.find(&rule.target) {
                Some(held) => Some(held.entry.id),
                None => self
                    .find_thing(&rule.target)
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
            if seats.iter().all(|(at, _)| at.is_none() || *at != slot) {
                seats.push((slot, rule));
            }
        }
        seats
    }

    /// Makes the rules of unit files the policy's claims, each as far as it fits; tells which did not, and why.
    pub(super) fn grow_units(
        &mut self,
        mut draft: Draft,
        of_units: &[UnitSeat<'_>],
        now: Now,
    ) -> (Draft, Vec<(String, String)>) {
        let mut refused = Vec::new();
        for (_, rule) in of_units {
            let mut attempt = draft.clone();
            let grown = self
                .seat_of(&mut attempt, &rule.target)
                .and_then(|slot| grow(&mut attempt, slot, rule, now));
            match grown {
                Ok(()) => draft = attempt,
                Err(denied) => {
                    let text = format!("{}: {}: {denied}", rule.target, rule.name);
                    refused.push((rule.target.to_string(), text));
                }
            }
        }
        (draft, refused)
    }

    /// Remembers what unit files ask for, and says what of it is not in force.
    pub(super) fn keep_units(
        &mut self,
        units: Units,
        refused: Vec<(String, String)>,
        now: Now,
    ) -> Vec<String> {
        let unclear = units.faults.iter();
        let unclear = unclear.map(|(unit, fault)| (format!("unit:{unit}"), fault.clone()));
        let faults = unclear.chain(refused).collect();
        let before = std::mem::replace(&mut self.unit_faults, faults);
        for (unit, fault) in &self.unit_faults {
            if before.get(unit) != Some(fault) {
                self.journal.warn(now, format!("not in force: {fault}"));
            }
        }
        if units.rules != self.units.rules {
            let text = format!(
                "unit files: sections [X-Netnice] found: {}",
                units.rules.len()
            );
            self.journal.note(now, text);
        }
        self.units = units;
        let said = self.unit_faults.values();
        said.map(|fault| format!("not in force: {fault}")).collect()
    }
}

/// Whether a slot is held by a section that makes no sense now: then it keeps what it had.
pub(super) fn keeps_faulty(draft: &Draft, slot: TargetId, units: &Units) -> bool {
    let Some(held) = draft.ledger.get(slot) else {
        return false;
    };
    let by_section = held.rule.as_ref().is_some_and(|r| r.starts_with(SECTION));
    let of_target = |unit: &String| held.entry.target.to_string() == format!("unit:{unit}");
    by_section && units.faults.keys().any(of_target)
}
