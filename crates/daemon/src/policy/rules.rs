//! The rules of the administrator as they are known now: those of the policy file, and those of unit files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use netnice_core::contract::IfName;

use super::units::{self, Units};
use super::{LinkRule, Policy};
use crate::clock::Now;
use crate::host::Inventory;
use crate::journal::Journal;

/// See the module.
#[derive(Default)]
pub(crate) struct Rules {
    /// The policy that is in force.
    pub policy: Policy,
    /// The policy file.
    pub path: Option<PathBuf>,
    /// Why the policy file as it is now is not in force.
    pub fault: Option<String>,
    /// One has been in force since this daemon began.
    pub read: bool,
    /// What unit files ask for.
    pub units: Units,
    /// Sections of unit files that are not in force, by unit, and why.
    pub unit_faults: BTreeMap<String, String>,
    /// Where unit files are looked for; nowhere in tests.
    unit_path: Vec<PathBuf>,
    /// The units that ran when they were read; of interest where templates have a section.
    running: BTreeSet<String>,
}

impl Rules {
    /// What is in force may not be what the file says: nothing of it was ever read.
    pub(crate) fn is_unknown(&self) -> bool {
        self.fault.is_some() && !self.read
    }

    /// The rule of a link.
    pub(crate) fn of_link(&self, link: &IfName) -> Option<&LinkRule> {
        self.policy.links.iter().find(|rule| rule.name == *link)
    }

    /// Looks for unit files in these folders from now on.
    pub(crate) fn look_for_units(&mut self, path: Vec<PathBuf>) {
        self.unit_path = path;
    }

    /// The folders in which a change may change what units ask for.
    pub(crate) fn unit_folders(&self) -> &BTreeSet<PathBuf> {
        &self.units.folders
    }

    /// Whether other units run than when their files were read, where that matters.
    pub(crate) fn other_instances_run(&self, machine: &mut impl Inventory) -> bool {
        self.units.templates && machine.running_units() != self.running
    }

    /// Reads the unit files again.
    pub(crate) fn read_units(&mut self, machine: &mut impl Inventory) -> Units {
        if self.unit_path.is_empty() {
            return Units::default();
        }
        self.running = machine.running_units();
        units::read(&self.unit_path, &self.running)
    }

    /// Remembers what unit files ask for, and says what of it is not in force.
    pub(crate) fn keep_units(
        &mut self,
        units: Units,
        refused: Vec<(String, String)>,
        journal: &mut Journal,
        now: Now,
    ) -> Vec<String> {
        let unclear = units.faults.iter();
        let unclear = unclear.map(|(unit, fault)| (format!("unit:{unit}"), fault.clone()));
        let faults = unclear.chain(refused).collect();
        let before = std::mem::replace(&mut self.unit_faults, faults);
        for (unit, fault) in &self.unit_faults {
            if before.get(unit) != Some(fault) {
                journal.warn(now, format!("not in force: {fault}"));
            }
        }
        if units.rules != self.units.rules {
            let text = format!(
                "unit files: sections [X-Netnice] found: {}",
                units.rules.len()
            );
            journal.note(now, text);
        }
        self.units = units;
        let said = self.unit_faults.values();
        said.map(|fault| format!("not in force: {fault}")).collect()
    }

    /// Says which file is the policy.
    pub(crate) fn follow(&mut self, path: &Path) {
        self.path = Some(path.to_owned());
    }
}
