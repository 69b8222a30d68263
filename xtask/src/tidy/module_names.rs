//! Checks the names of Rust modules: each must be a term of the glossary, or a plain word or term
//! of the field that `module_names.txt` lists. No call fails; a refused name is a complaint.
//!
//! A name is that of a `.rs` file or of a folder with such files, below the folder of its crate. A
//! term of the glossary also counts in the plural, with `_` for a blank or a hyphen, and without
//! its hyphens.

use std::collections::{BTreeMap, BTreeSet};

use super::Complaint;

/// The path of the list, for messages.
pub const LIST_FILE: &str = "xtask/src/tidy/module_names.txt";

/// The path of the glossary.
pub const GLOSSARY_FILE: &str = "docs/internals/glossary.md";

/// The list of allowed names: one name a line, sorted; lines with `#` are comments.
pub const LIST: &str = include_str!("module_names.txt");

/// Complains about each module name that is neither a term of the glossary nor in the list, and
/// about names in the list that are not sorted, listed twice or unused. `places` are the paths of
/// the files from the root of the tree.
pub fn complaints<'a>(
    places: impl IntoIterator<Item = &'a str>,
    glossary: &str,
    list: &str,
) -> Vec<Complaint> {
    let mut modules: BTreeMap<&str, &str> = BTreeMap::new();
    for place in places {
        for name in names(place) {
            modules.entry(name).or_insert(place);
        }
    }
    let terms = terms(glossary);
    let listed: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    let mut found = Vec::new();
    for (name, place) in &modules {
        if !listed.contains(name) && !is_term(name, &terms) {
            let what = format!(
                "the module name '{name}' is neither a term of {GLOSSARY_FILE} nor in {LIST_FILE}: \
                 rename the module, or add a plain English word or a term of the field to \
                 {LIST_FILE}, or a term of this project to the glossary"
            );
            found.push(Complaint::new(*place, what));
        }
    }
    for (before, name) in listed.iter().zip(listed.iter().skip(1)) {
        if name <= before {
            let what = format!("'{name}' must not follow '{before}': sort the lines, each once");
            found.push(Complaint::new(LIST_FILE, what));
        }
    }
    for name in &listed {
        if !modules.contains_key(name) {
            let what = format!("no module has the name '{name}': remove the line");
            found.push(Complaint::new(LIST_FILE, what));
        }
    }
    found
}

/// The module names in the path of a Rust file of a crate; empty for other files.
fn names(place: &str) -> Vec<&str> {
    let Some(path) = place.strip_suffix(".rs") else {
        return Vec::new();
    };
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["crates", _, names @ ..] | ["xtask" | "fuzz", names @ ..] => names.to_vec(),
        _ => Vec::new(),
    }
}

/// The terms in the first column of the glossary's table, as module names. A term with a hyphen is
/// there with and without `_` for it.
fn terms(glossary: &str) -> BTreeSet<String> {
    let rows = glossary.lines().filter_map(|line| line.strip_prefix('|'));
    let cells = rows.filter_map(|row| row.split('|').next());
    let mut terms = BTreeSet::new();
    for cell in cells {
        let term = cell.split('(').next().unwrap_or_default();
        let term = term.trim().to_lowercase().replace(' ', "_");
        terms.insert(term.replace('-', ""));
        terms.insert(term.replace('-', "_"));
    }
    terms
}

fn is_term(name: &str, terms: &BTreeSet<String>) -> bool {
    let singular = name.strip_suffix('s').unwrap_or(name);
    terms.contains(name) || terms.contains(singular)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOSSARY: &str = "# Glossary\n\n| word | meaning |\n|---|---|\n\
                            | application (`app:`) | x |\n| next hop | y |\n| wake-up | z |\n";

    fn complaint_texts(places: &[&str], list: &str) -> Vec<String> {
        let found = complaints(places.iter().copied(), GLOSSARY, list);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_module_name_is_in_the_list_or_in_the_glossary() {
        let places = [
            "crates/x/src/lib.rs",
            "crates/x/src/next_hop/wakeups.rs",
            "crates/x/src/application.rs",
            "docs/unknown/a.md",
        ];
        assert_eq!(
            complaint_texts(&places, "# plain words\nlib\nsrc\n"),
            [""; 0]
        );
        let unknown = complaint_texts(&["xtask/src/whom/lib.rs"], "lib\nsrc\n");
        assert_eq!(unknown.len(), 1, "{unknown:?}");
        let start = "xtask/src/whom/lib.rs: the module name 'whom' is neither a term";
        assert!(unknown[0].starts_with(start), "{unknown:?}");
        assert!(unknown[0].contains(LIST_FILE), "{unknown:?}");
    }

    #[test]
    fn the_list_is_sorted_and_has_only_names_in_use() {
        let places = ["fuzz/build.rs", "xtask/src/main.rs"];
        assert_eq!(complaint_texts(&places, "build\nmain\nsrc\n"), [""; 0]);
        for list in [
            "main\nbuild\nsrc\n",
            "build\nmain\nmain\nsrc\n",
            "build\nmain\nother\nsrc\n",
        ] {
            assert_eq!(complaint_texts(&places, list).len(), 1, "{list}");
        }
    }
}
