//! [`Rules`] holds the administrator's rules, which are read from the policy file and from unit
//! files, and the reasons why some of them are not in force. [`Rules::read_units`] reads the unit
//! files; `service::reload` reads the policy file. An error becomes such a reason; no method fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use netnice_core::contract::IfName;

use super::units::{self, Units};
use super::{LinkRule, Policy};
use crate::clock::Now;
use crate::host::Inventory;
use crate::journal::Journal;

/// The rules that were read last, and why some of them are not in force.
#[derive(Default)]
pub(crate) struct Rules {
    /// The policy in force.
    pub policy: Policy,
    /// The path of the policy file; `None` in tests without one.
    pub path: Option<PathBuf>,
    /// Why the present policy file is not in force; `None` if it is.
    pub fault: Option<String>,
    /// True if a policy has been in force since the start of the daemon.
    pub loaded: bool,
    /// The sections of unit files.
    pub units: Units,
    /// Why sections of unit files are not in force, by the target as text.
    pub unit_faults: BTreeMap<String, String>,
    /// The folders of unit files; empty in tests.
    unit_path: Vec<PathBuf>,
    /// The units that had a control group when the files were read.
    running: BTreeSet<String>,
}

impl Rules {
    /// True if the policy file could not be put into force, and no policy was in force since the
    /// daemon started.
    pub(crate) fn is_unknown(&self) -> bool {
        self.fault.is_some() && !self.loaded
    }

    /// The rule of the policy for a link; `None` if there is none.
    pub(crate) fn of_link(&self, link: &IfName) -> Option<&LinkRule> {
        self.policy.links.iter().find(|rule| rule.name == *link)
    }

    /// Sets the folders of unit files, in order of precedence.
    pub(crate) fn set_unit_path(&mut self, path: Vec<PathBuf>) {
        self.unit_path = path;
    }

    /// The folders in which a change may affect the contracts of units.
    pub(crate) fn unit_folders(&self) -> &BTreeSet<PathBuf> {
        &self.units.folders
    }

    /// True if a section applies to several units and the running units have changed since the
    /// files were read.
    pub(crate) fn instances_changed(&self, machine: &mut impl Inventory) -> bool {
        self.units.shared && machine.running_units() != self.running
    }

    /// Reads the unit files again and returns their contracts, without putting them into force.
    /// Nothing is read if no folders are set.
    pub(crate) fn read_units(&mut self, machine: &mut impl Inventory) -> Units {
        if self.unit_path.is_empty() {
            return Units::default();
        }
        self.running = machine.running_units();
        units::read(&self.unit_path, &self.running)
    }

    /// Stores the sections of unit files that were read, and logs what has changed. `refused` are
    /// the targets whose section does not fit, with the reason. Returns a message for each section
    /// that is not in force.
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
        let faults = self.unit_faults.values();
        faults
            .map(|fault| format!("not in force: {fault}"))
            .collect()
    }

    /// Sets the path of the policy file.
    pub(crate) fn set_path(&mut self, path: &Path) {
        self.path = Some(path.to_owned());
    }
}
