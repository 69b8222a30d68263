//! An index of the unit files in the folders of systemd's search path. [`Tree::read`] makes it.
//! [`Tree::files_of`] returns those files of a unit that may have a section `[X-Netnice]`, in the
//! order in which they are merged, and none if the unit is masked. Folders and files that cannot be
//! read are left out, so no function fails.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::{is_mask, section};

/// The unit files in the folders of the search path, as they were when the index was made.
#[derive(Debug, Default)]
pub(super) struct Tree {
    path: Vec<PathBuf>,
    /// The unit file of each name that comes first in the search path.
    fragments: BTreeMap<String, PathBuf>,
    /// Drop-in folders by their name without `.d`, in the order of the search path.
    drop_ins: BTreeMap<String, Vec<PathBuf>>,
    /// The real names of units, by alias: links to a unit of another name.
    aliases: BTreeMap<String, String>,
    /// The folders `.wants`, `.requires` and `.upholds` of units.
    wants: BTreeSet<PathBuf>,
    /// The names in these folders.
    wanted: BTreeSet<String>,
    /// Files that may have a section.
    with_section: BTreeSet<PathBuf>,
}

impl Tree {
    /// Makes the index of these folders, the first of which has precedence.
    pub(super) fn read(path: &[PathBuf]) -> Tree {
        let mut tree = Tree {
            path: path.to_vec(),
            ..Tree::default()
        };
        let mut seen = BTreeSet::new();
        for folder in path {
            // /lib is a link to /usr/lib on most systems.
            let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
            if seen.insert(real) {
                tree.read_folder(folder);
            }
        }
        tree
    }

    fn read_folder(&mut self, folder: &Path) {
        for (name, file) in entries(folder) {
            if let Some(of) = name.strip_suffix(".d").filter(|of| is_unit(of)) {
                for (_, file) in entries(&file).filter(|(name, _)| name.ends_with(".conf")) {
                    self.note_section(&file);
                }
                self.drop_ins.entry(of.to_owned()).or_default().push(file);
            } else if [".wants", ".requires", ".upholds"]
                .iter()
                .any(|end| name.ends_with(end))
            {
                self.wanted.extend(entries(&file).map(|(name, _)| name));
                self.wants.insert(file);
            } else if is_unit(&name) && !self.fragments.contains_key(&name) {
                if let Some(real) = alias(&file, &name) {
                    self.aliases.insert(name.clone(), real);
                }
                self.note_section(&file);
                self.fragments.insert(name, file);
            }
        }
    }

    fn note_section(&mut self, file: &Path) {
        if fs::read_to_string(file).is_ok_and(|text| section::may_have_section(&text)) {
            self.with_section.insert(file.to_owned());
        }
    }

    /// The folders in which a change may affect the contracts of units.
    pub(super) fn folders(&self) -> BTreeSet<PathBuf> {
        let drop_ins = self.drop_ins.values().flatten();
        let folders = self.path.iter().chain(drop_ins).chain(&self.wants);
        folders.cloned().collect()
    }

    /// True if a section is for several units: that of a template, or of drop-ins of a template, of
    /// a prefix or of a type.
    pub(super) fn has_shared_sections(&self) -> bool {
        let is_shared = |name: &String| !is_instance_or_plain(name);
        let fragment =
            |(name, file): (&String, &PathBuf)| is_shared(name) && self.with_section.contains(file);
        let drop_in = |(name, folders): (&String, &Vec<PathBuf>)| {
            let within = |file: &PathBuf| {
                file.parent()
                    .is_some_and(|p| folders.iter().any(|f| f == p))
            };
            is_shared(name) && self.with_section.iter().any(within)
        };
        self.fragments.iter().any(fragment) || self.drop_ins.iter().any(drop_in)
    }

    /// The names of the units that may have a section: those with a file, those that another unit
    /// wants or requires, and the running ones.
    pub(super) fn names(&self, running: &BTreeSet<String>) -> BTreeSet<String> {
        if self.with_section.is_empty() {
            return BTreeSet::new();
        }
        let named = self.fragments.keys().chain(self.drop_ins.keys());
        let all = named.chain(&self.wanted).chain(running);
        all.filter(|name| is_instance_or_plain(name) && !self.aliases.contains_key(*name))
            .filter(|name| {
                let files = self.files_of(name);
                files.iter().any(|file| self.with_section.contains(file))
            })
            .cloned()
            .collect()
    }

    /// Those files of a unit that may have a section, in merge order; none if the unit is masked.
    pub(super) fn files_of(&self, name: &str) -> Vec<PathBuf> {
        let template = template_of(name);
        let own = self.fragments.get(name);
        let fragment = own.or_else(|| self.fragments.get(template.as_deref()?));
        if fragment.is_some_and(|file| is_mask(file)) {
            return Vec::new();
        }
        // By file name; of several files with one name, that in the first folder counts.
        let mut by_name: BTreeMap<String, PathBuf> = BTreeMap::new();
        for folder in self.folders_of(name, template.as_deref()) {
            for (file, path) in entries(&folder).filter(|(file, _)| file.ends_with(".conf")) {
                by_name.entry(file).or_insert(path);
            }
        }
        let drop_ins = by_name.into_values().filter(|file| !is_mask(file));
        let all = fragment.cloned().into_iter().chain(drop_ins);
        all.filter(|file| self.with_section.contains(file))
            .collect()
    }

    /// The drop-in folders of a unit, in systemd's order: those of the unit's own name, then those
    /// of each alias, then those of the unit's type. Within one of these groups, the order is that
    /// of the search path, and in one folder of the search path the most specific name comes first.
    fn folders_of(&self, name: &str, template: Option<&str>) -> Vec<PathBuf> {
        let alias = |(alias, real): (&String, &String)| match real == name {
            true => Some(alias.clone()),
            // An alias of the template is one of each instance.
            false if Some(real.as_str()) == template => {
                let (stem, kind) = alias.split_once("@.")?;
                let (_, instance) = name.rsplit_once('.')?.0.split_once('@')?;
                Some(format!("{stem}@{instance}.{kind}"))
            }
            false => None,
        };
        let aliases = self.aliases.iter().filter_map(alias);
        let names = [name.to_owned()].into_iter().chain(aliases);
        let kind = name.rsplit_once('.').map(|(_, kind)| vec![kind.to_owned()]);
        let groups = names.map(|name| drop_in_names(&name)).chain(kind);
        groups
            .flat_map(|names| self.in_search_order(&names))
            .collect()
    }

    /// The drop-in folders of these names, in the order of the search path, and within one folder
    /// of it in the order of the names.
    fn in_search_order(&self, names: &[String]) -> Vec<PathBuf> {
        let folders = names.iter().filter_map(|name| self.drop_ins.get(name));
        let mut folders: Vec<PathBuf> = folders.flatten().cloned().collect();
        folders.sort_by_key(|drop_in| {
            self.path
                .iter()
                .position(|folder| drop_in.parent() == Some(folder))
        });
        folders
    }
}

/// The names whose drop-in folders apply to a unit of this name, apart from its type: the name, the
/// template's, and the prefixes of both that end with a dash; the most specific first.
fn drop_in_names(name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    let Some((stem, kind)) = name.rsplit_once('.') else {
        return names;
    };
    let (prefix, instance) = match stem.split_once('@') {
        Some((prefix, instance)) if !instance.is_empty() => (prefix, format!("@{instance}")),
        Some((prefix, _)) => (prefix, String::new()),
        None => (stem, String::new()),
    };
    if !instance.is_empty() {
        names.extend(drop_in_names(&format!("{prefix}@.{kind}")));
    }
    let end = prefix.strip_suffix('-').unwrap_or(prefix).rfind('-');
    if let Some(end) = end.filter(|end| *end > 0) {
        names.extend(drop_in_names(&format!(
            "{}{instance}.{kind}",
            &prefix[..=end]
        )));
    }
    names
}

/// The real name of a unit file that is a link to a unit of another name.
fn alias(file: &Path, name: &str) -> Option<String> {
    let to = fs::read_link(file).ok()?;
    let real = to.file_name().and_then(OsStr::to_str)?;
    // A link from an instance to its template is not an alias, nor is a mask.
    let other = real != name && is_unit(real) && template_of(name).as_deref() != Some(real);
    other.then(|| real.to_owned())
}

/// `foo@.service` for `foo@bar.service`, and for itself.
fn template_of(name: &str) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.')?;
    let (stem, _) = stem.split_once('@')?;
    Some(format!("{stem}@.{kind}"))
}

/// True for the name of a unit that can run; false for a template, a prefix of units and a type.
fn is_instance_or_plain(name: &str) -> bool {
    let Some((stem, kind)) = name.rsplit_once('.') else {
        return false;
    };
    let prefix = stem.split_once('@').map_or(stem, |(prefix, _)| prefix);
    KINDS.contains(&kind) && template_of(name).as_deref() != Some(name) && !prefix.ends_with('-')
}

/// True for the name of a unit with a control group, for a unit type, and for a prefix of such
/// units.
fn is_unit(name: &str) -> bool {
    let kind = name.rsplit_once('.').map_or(name, |(_, kind)| kind);
    KINDS.contains(&kind)
}

/// The entries of a folder, by name; none if it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = (String, PathBuf)> + use<> {
    let mut found: Vec<(String, PathBuf)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect();
    found.sort();
    found.into_iter()
}

/// The types of units that own a control group.
const KINDS: [&str; 6] = ["service", "slice", "scope", "socket", "mount", "swap"];
