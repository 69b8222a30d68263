//! Reads contracts from unit files of systemd: the section `[X-Netnice]` of a unit that has a
//! control group (service, slice, scope, socket, mount, swap). The result is [`Units`].
//!
//! ```ini
//! # /etc/systemd/system/backup.service.d/50-network.conf
//! [X-Netnice]
//! NetworkUpMax=4mbit
//! NetworkDownMax=20mbit
//! ```
//!
//! The service manager ignores sections whose name begins with `X-` (systemd.unit(5)). So the
//! contract is beside the other settings of the unit, and `systemctl edit` and `systemctl cat` work
//! for it. Contracts that do not belong in a unit's files can be in the policy file.
//!
//! Files are found and merged as systemd does it:
//! - Of the unit files with one name, the one in the first folder of the search path counts.
//!   `$SYSTEMD_UNIT_PATH` replaces the search path, or precedes it if it ends with a colon.
//! - The unit's own file comes first. After it come the `.conf` files of `NAME.d`, of its
//!   template's `.d`, of `foo-.service.d` for `foo-bar.service`, of the same folders of the unit's
//!   aliases, and of `service.d`, in the order of the files' names. Of several files with one name,
//!   only the first counts: those in folders of the unit's own name, template and prefixes come
//!   before those of aliases, and these before those in `service.d`; then those earlier in the
//!   search path come first, then those in the folder that this list names first.
//! - A later assignment replaces an earlier one. An empty one, or `infinity`, removes it.
//! - A unit whose own file is empty or a link to /dev/null (a masked unit) has no section. A
//!   `.conf` file of this kind has no effect.
//!
//! A template has no traffic. Its section applies to each instance that is named in a folder (as an
//! enabled one is) or runs. The section of a prefix or a type applies to those of its units that
//! are named in a folder or run.
//!
//! If a section is invalid or a file cannot be read, [`Units::faults`] has the error with the file,
//! and with the line if there is one, and `service::unit_files` leaves the unit its former
//! contract. The sections of other units are independent of it, so one bad line in a package does
//! not remove the limits of other units. No function fails.

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

/// The contracts in unit files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Units {
    /// A rule for each unit with a section, in the order of their names.
    pub rules: Vec<Rule>,
    /// The errors of invalid sections, by the unit's name.
    pub faults: BTreeMap<String, String>,
    /// The folders in which a change may affect the rules.
    pub folders: BTreeSet<PathBuf>,
    /// True if a template, a prefix or a type has a section: then the rules depend on the units
    /// that run.
    pub shared: bool,
}

/// Reads the sections of all units in the folders `path`, the first of which has precedence.
/// `running` are the names of the units that have a control group now.
pub(crate) fn read(path: &[PathBuf], running: &BTreeSet<String>) -> Units {
    let tree = Tree::read(path);
    let mut units = Units {
        folders: tree.folders(),
        shared: tree.has_shared_sections(),
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

/// The folders of unit files, in order of precedence (systemd.unit(5), for the system manager):
/// those of `$SYSTEMD_UNIT_PATH`, or the default ones.
pub(crate) fn search_path() -> Vec<PathBuf> {
    match std::env::var_os("SYSTEMD_UNIT_PATH") {
        Some(folders) => path_of(&folders.to_string_lossy()),
        None => DEFAULT_PATH.iter().map(PathBuf::from).collect(),
    }
}

/// Parses a search path. A colon at its end stands for the default folders.
fn path_of(text: &str) -> Vec<PathBuf> {
    let (named, default_path) = match text.strip_suffix(':') {
        Some(named) => (named, DEFAULT_PATH),
        None => (text, &[][..]),
    };
    let named = named.split(':').filter(|part| !part.is_empty());
    let folders = named.chain(default_path.iter().copied()).map(PathBuf::from);
    folders.collect()
}

/// The rule of a unit; `None` if no assignment is left of the sections in its files. An error has
/// the file, and the line if the file could be read.
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
                    "{} is not a key of [X-Netnice]; the keys are {}",
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
    let flag = |key| settings.get(&key).map_or(Ok(false), section::flag);
    let (extra, cpu_extra) = (flag(Key::Extra)?, flag(Key::ProcessorTimeExtra)?);
    let mut clauses: Vec<(Clause, String, &Assignment)> = Vec::new();
    for (key, given) in &settings {
        match key {
            Key::Clause(Clause::Yield) if !section::flag(given)? => {}
            Key::Clause(Clause::Yield) => {
                clauses.push((Clause::Yield, policy::yield_text(true), given));
            }
            Key::Clause(clause) => clauses.push((*clause, given.value.clone(), given)),
            Key::Extra | Key::ProcessorTimeExtra => {}
        }
    }
    let contract = policy::contract_of(&clauses, last, extra, cpu_extra)
        .map_err(|(given, reason)| given.fault(reason))?;
    Ok(Some(Rule {
        name: format!("{SECTION}{}", last.file.display()),
        target,
        contract,
        line: last.line,
        unit: true,
    }))
}

/// The meaning of a key of the section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Clause(Clause),
    Extra,
    ProcessorTimeExtra,
}

/// The keys, named like the service manager's own (`CPUWeight=`, `IOReadBandwidthMax=`).
const KEYS: [(&str, Key); 18] = [
    ("NetworkUpMax", Key::Clause(Clause::Up)),
    ("NetworkDownMax", Key::Clause(Clause::Down)),
    ("NetworkMax", Key::Clause(Clause::Both)),
    ("NetworkUpMin", Key::Clause(Clause::Min)),
    ("NetworkDownMin", Key::Clause(Clause::MinDown)),
    ("NetworkLink", Key::Clause(Clause::On)),
    ("NetworkWeight", Key::Clause(Clause::Weight)),
    ("NetworkPriority", Key::Clause(Clause::Priority)),
    ("NetworkBurst", Key::Clause(Clause::Burst)),
    ("NetworkDSCP", Key::Clause(Clause::Dscp)),
    ("NetworkYield", Key::Clause(Clause::Yield)),
    ("NetworkDelegate", Key::Clause(Clause::Delegate)),
    ("NetworkSlice", Key::Clause(Clause::Slice)),
    ("NetworkSliceExtra", Key::Extra),
    ("ProcessorTime", Key::Clause(Clause::Cpu)),
    ("ProcessorTimeExtra", Key::ProcessorTimeExtra),
    ("NetworkQuota", Key::Clause(Clause::Quota)),
    ("NetworkWhen", Key::Clause(Clause::When)),
];

/// The start of the name of a unit file's rule; the file's path follows.
pub(crate) const SECTION: &str = "section [X-Netnice] of ";

/// The default folders of unit files: systemd.unit(5), table 1, for the system manager.
const DEFAULT_PATH: &[&str] = &[
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

/// True if a file has no effect: it is empty, or a link to /dev/null (a masked unit).
fn is_mask(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|about| !about.is_file() || about.len() == 0)
}

#[cfg(test)]
mod tests;
