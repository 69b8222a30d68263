//! Finds circles between the modules of one crate. No call fails.
//!
//! If modules use each other, none of them can be understood, tested or replaced without the
//! others. The check covers the modules directly in `src/`, each with all files below it. A module
//! uses another one if it contains a path to that one that begins with `crate::` or with as many
//! `super::` as lead to the crate's root. Tests may use any module, so files and items for tests
//! are skipped. `lib.rs`, `main.rs` and the folder `bin` connect the others, so they are skipped
//! too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Complaint, lexer};

/// For each module the modules that it uses, each with the first place: the file below `src/`, and
/// the line.
type Uses = BTreeMap<String, BTreeMap<String, (String, usize)>>;

/// Complains about modules that use each other in a circle. For each module, in order of their
/// names, a shortest circle through it is reported, unless a circle that was reported before
/// contains the module. `krate` is the folder of the crate, for the complaints; `files` are its
/// files below `src/` (paths from there) with their texts.
pub fn complaints(krate: &str, files: &[(&str, &str)]) -> Vec<Complaint> {
    let uses = uses(files);
    let mut found = Vec::new();
    let mut reported: BTreeSet<&str> = BTreeSet::new();
    for module in uses.keys() {
        if reported.contains(module.as_str()) {
            continue;
        }
        let Some(circle) = circle(&uses, module) else {
            continue;
        };
        reported.extend(circle.iter().copied());
        found.push(complaint(krate, &uses, &circle));
    }
    found
}

/// The shortest path from a module back to itself.
fn circle<'u>(uses: &'u Uses, start: &'u str) -> Option<Vec<&'u str>> {
    let mut paths = VecDeque::from([vec![start]]);
    let mut seen = BTreeSet::new();
    while let Some(path) = paths.pop_front() {
        let next = path.last().and_then(|last| uses.get(*last));
        for next in next.into_iter().flatten().map(|(name, _)| name.as_str()) {
            if next == start {
                return Some(path);
            }
            if seen.insert(next) {
                let mut longer = path.clone();
                longer.push(next);
                paths.push_back(longer);
            }
        }
    }
    None
}

fn complaint(krate: &str, uses: &Uses, circle: &[&str]) -> Complaint {
    let next = circle.iter().cycle().skip(1);
    let edges = circle.iter().zip(next);
    let steps: Vec<String> = edges
        .filter_map(|(from, to)| {
            let (file, line) = uses.get(*from)?.get(*to)?;
            Some(format!("{from} uses {to} ({file}:{line})"))
        })
        .collect();
    Complaint::new(
        format!("{krate}/src"),
        format!(
            "modules use each other in a circle: {}; move what both sides need to a third module",
            steps.join(", ")
        ),
    )
}

fn uses(files: &[(&str, &str)]) -> Uses {
    let modules: BTreeSet<&str> = files.iter().filter_map(|(file, _)| top(file)).collect();
    let mut uses = Uses::new();
    for (file, text) in files {
        let Some(module) = top(file) else { continue };
        let code = without_tests(&lexer::split(text).code);
        for (name, line) in used_modules(&code, depth(file)) {
            if name != module && modules.contains(name) {
                let of = uses.entry(module.to_owned()).or_default();
                let place = || ((*file).to_owned(), line);
                of.entry(name.to_owned()).or_insert_with(place);
            }
        }
    }
    uses
}

/// The module in `src/` that a file belongs to; `None` for tests and for the root.
fn top(file: &str) -> Option<&str> {
    let is_test = file
        .split('/')
        .any(|part| matches!(part, "tests" | "tests.rs"));
    let first = file.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!is_test && file.ends_with(".rs") && !matches!(name, "lib" | "main" | "bin")).then_some(name)
}

/// The depth of a file's module below the crate's root.
fn depth(file: &str) -> usize {
    let parts = file.split('/').count();
    if file.ends_with("/mod.rs") {
        parts - 1
    } else {
        parts
    }
}

/// The names that follow the crate's root in a text of this depth, each with its line.
fn used_modules(code: &str, depth: usize) -> Vec<(&str, usize)> {
    let up = "super::".repeat(depth);
    let mut found = Vec::new();
    for root in ["crate::", up.as_str()] {
        for (at, _) in code.match_indices(root) {
            let before = &code[..at];
            let is_inner = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if is_inner {
                continue;
            }
            let line = before.matches('\n').count() + 1;
            let rest = &code[at + root.len()..];
            let names = match rest.strip_prefix('{') {
                Some(group) => first_names(group),
                None => vec![word(rest)],
            };
            found.extend(names.into_iter().map(|name| (name, line)));
        }
    }
    found
}

/// The first names of a group in braces. `group` begins behind the first brace.
fn first_names(group: &str) -> Vec<&str> {
    let mut found = vec![word(group.trim_start())];
    let mut open = 0_usize;
    for (at, c) in group.char_indices() {
        match c {
            '{' => open += 1,
            '}' if open == 0 => break,
            '}' => open -= 1,
            ',' if open == 0 => found.push(word(group[at + 1..].trim_start())),
            _ => {}
        }
    }
    found
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Removes items for tests from code; every line break stays.
fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(FOR_TESTS) {
        let (before, item) = rest.split_at(at);
        out.push_str(before);
        let end = FOR_TESTS.len() + item_end(&item[FOR_TESTS.len()..]);
        out.extend(item[..end].chars().filter(|c| *c == '\n'));
        rest = &item[end..];
    }
    out.push_str(rest);
    out
}

/// The end of an item: behind its semicolon, or behind its closing brace.
fn item_end(item: &str) -> usize {
    let mut open = 0_usize;
    for (at, c) in item.char_indices() {
        match c {
            '{' | '(' | '[' => open += 1,
            '}' | ')' | ']' => {
                open = open.saturating_sub(1);
                if c == '}' && open == 0 {
                    return at + 1;
                }
            }
            ';' if open == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

const FOR_TESTS: &str = "#[cfg(test)]";

#[cfg(test)]
mod tests;
