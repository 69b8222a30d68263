//! Contracts in unit files: the section `[X-Netnice]` of a service, slice, scope or socket.
//!
//! ```ini
//! # /etc/systemd/system/backup.service.d/50-network.conf
//! [X-Netnice]
//! NetworkUpMax=4mbit
//! NetworkDownMax=20mbit
//! ```
//!
//! The service manager passes over sections whose name begins with `X-` (systemd.unit(5)), so the contract stands where
//! everything else about a unit does, and what `systemctl edit` and `systemctl cat` do with it is right. A file of our
//! own beside the units would have to be kept in step with names, instances, masks and packages; the policy file is
//! there for those who want one.
//!
//! Files are found and laid over one another as systemd does it:
//! - the folders of the search path, the first wins; `$SYSTEMD_UNIT_PATH` is honoured;
//! - the unit's own file, then the `.conf` files of `NAME.d`, of the template's `.d`, of `foo-.service.d` for
//!   `foo-bar.service`, and of `service.d`, in the order of the files' names; of two of the same name, the one in the
//!   more specific folder, then the one earlier in the search path;
//! - the later assignment wins, an empty one (or `infinity`) takes an earlier one back; what is linked to /dev/null or is
//!   empty says nothing.
//!
//! A template has no traffic; its section is for each instance that is named in a folder (as an enabled one is) or runs.
//!
//! **Each unit stands for itself.** Where a section cannot be understood, the unit keeps what it had, and the fault is
//! said with file and line; the others are served. (One bad line in a package must not take the limits of all others
//! away.)

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use netnice_core::contract::Clause;
use netnice_core::target::Target;

use crate::policy::{self, Rule};

mod section;
mod tree;

use section::Assignment;
use tree::Tree;

/// What unit files ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// A rule for each unit that has a section, in the order of their names.
    pub rules: Vec<Rule>,
    /// Units whose section makes no sense, and why.
    pub faults: BTreeMap<String, String>,
    /// The folders in which a change may change all this.
    pub folders: BTreeSet<PathBuf>,
    /// Whether a template has a section: then it matters which instances run.
    pub templates: bool,
}

/// Reads the sections of all units. `running` are the units that have a control group now.
pub fn read(path: &[PathBuf], running: &BTreeSet<String>) -> Units {
    let tree = Tree::read(path);
    let mut units = Units {
        folders: tree.folders(),
        templates: tree.has_template_sections(),
        ..Units::default()
    };
    for name in tree.names(running) {
        match rule(&tree, &name) {
            Ok(rule) => units.rules.extend(rule),
            Err(fault) => drop(units.faults.insert(name, fault)),
        }
    }
    units
}

/// The folders of unit files, those first that win (systemd.unit(5), of the system manager).
pub fn search_path() -> Vec<PathBuf> {
    match std::env::var_os("SYSTEMD_UNIT_PATH") {
        Some(folders) => path_of(&folders.to_string_lossy()),
        None => USUAL.iter().map(PathBuf::from).collect(),
    }
}

/// A search path as the variable says it; an empty last part stands for the usual folders.
fn path_of(text: &str) -> Vec<PathBuf> {
    let (named, usual) = match text.strip_suffix(':') {
        Some(named) => (named, USUAL),
        None => (text, &[][..]),
    };
    let named = named.split(':').filter(|part| !part.is_empty());
    let folders = named.chain(usual.iter().copied()).map(PathBuf::from);
    folders.collect()
}

/// The rule of a unit, if any file of it has a section that asks for something.
fn rule(tree: &Tree, name: &str) -> Result<Option<Rule>, String> {
    let mut settings: BTreeMap<Key, Assignment> = BTreeMap::new();
    for (order, file) in tree.files_of(name).into_iter().enumerate() {
        let text = fs::read_to_string(&file)
            .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
        for assignment in section::read(&file, &text)? {
            let assignment = Assignment {
                order,
                ..assignment
            };
            let known = KEYS.iter().find(|(word, _)| *word == assignment.key);
            let Some((_, key)) = known else {
                return Err(assignment.fault(format!(
                    "{} is no key of [X-Netnice]; there are {}",
                    assignment.key,
                    KEYS.map(|(word, _)| word).join(", ")
                )));
            };
            match assignment.value.as_str() {
                "" | "infinity" => drop(settings.remove(key)),
                _ => drop(settings.insert(*key, assignment)),
            }
        }
    }
    let Some(last) = settings.values().max_by_key(|a| (a.order, a.line)) else {
        return Ok(None);
    };
    let target: Target = format!("unit:{name}")
        .parse()
        .map_err(|error| last.fault(error))?;
    let extra = match settings.get(&Key::Extra) {
        None => false,
        Some(given) => section::flag(given)?,
    };
    let clauses: Vec<(Clause, String, &Assignment)> = settings
        .iter()
        .filter_map(|(key, given)| match key {
            Key::Clause(clause) => Some((*clause, given.value.clone(), given)),
            Key::Extra => None,
        })
        .collect();
    let contract = policy::contract_of(&clauses, last, extra, false)
        .map_err(|(given, reason)| given.fault(reason))?;
    Ok(Some(Rule {
        name: format!("{SECTION}{}", last.file.display()),
        target,
        contract,
        line: last.line,
        unit: true,
    }))
}

/// What a key of the section says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Clause(Clause),
    Extra,
}

/// The keys, in the manner of the service manager's own (`CPUWeight=`, `IOReadBandwidthMax=`).
const KEYS: [(&str, Key); 11] = [
    ("NetworkUpMax", Key::Clause(Clause::Up)),
    ("NetworkDownMax", Key::Clause(Clause::Down)),
    ("NetworkMax", Key::Clause(Clause::Both)),
    ("NetworkUpMin", Key::Clause(Clause::Min)),
    ("NetworkDownMin", Key::Clause(Clause::MinDown)),
    ("NetworkLink", Key::Clause(Clause::On)),
    ("NetworkWeight", Key::Clause(Clause::Weight)),
    ("NetworkPriority", Key::Clause(Clause::Priority)),
    ("NetworkBurst", Key::Clause(Clause::Burst)),
    ("NetworkSlice", Key::Clause(Clause::Slice)),
    ("NetworkSliceExtra", Key::Extra),
];

/// How a rule of a unit file is called, before the name of the file.
pub const SECTION: &str = "section [X-Netnice] of ";

/// systemd.unit(5), table 1, for the system manager.
const USUAL: &[&str] = &[
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];

/// Whether a file says nothing: linked to /dev/null, or empty (a masked unit).
fn is_mask(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|about| !about.is_file() || about.len() == 0)
}

#[cfg(test)]
mod tests;
