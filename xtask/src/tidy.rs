//! Checks the project's rules that no compiler checks. Each complaint names the place and the
//! violated rule.
//!
//! - [`layers`]: a dependency only goes to a lower layer, along the "may use" column of
//!   docs/internals/architecture.md; some foreign crates are reserved for some crates.
//! - [`circles`]: modules of one crate do not use each other in a circle.
//! - Sizes: a source file has at most [`MAX_LINES`] lines, in the daemon [`MAX_DAEMON_LINES`]; a
//!   longer one contains several subjects. A line of Rust or C that is a comment has at most
//!   [`MAX_COMMENT`] characters, unless it contains a URL.
//! - Names: no file or folder has a name in [`REFUSED_NAMES`], such as `utils`, with any ending; a
//!   helper belongs to the module of its subject.
//! - [`module_names`]: the name of a module is a term of the glossary, or in a list of plain words.
//! - Opening lines: the documentation of a crate begins with the lines `Answers:`, `May touch:` and
//!   `Must never:`.
//! - `unsafe`: only in the files that [`layers`] lists. (clippy checks that each block has a safety
//!   comment.)
//! - No stubs: neither `todo!` nor `unimplemented!`, nor comments that postpone work
//!   ([`POSTPONED`]).
//! - `anyhow`: only in binaries, the lab, xtask and fuzz; other code has error types.
//! - Merges: no file contains conflict markers.
//! - Machine paths: no file of the tree contains a path of the machine that it was written on.
//! - [`links`]: a link in a document leads to an existing file and heading; a path in a document
//!   exists in the tree.
//! - eBPF sources have the licence that the kernel's verifier requires.
//!
//! Every rule is a function from paths and texts to complaints, without input or output, so the
//! tests of a rule need no tree.
//!
//! [`run`] takes the tree, and prints all complaints. It fails if there is a complaint, or if a
//! file or cargo's metadata cannot be read.

mod circles;
mod layers;
mod lexer;
pub mod links;
mod module_names;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::tree::Tree;

/// Checks the whole tree. Fails if there is a complaint, after printing all of them, and if a file
/// or cargo's metadata cannot be read.
pub fn run(tree: &Tree) -> Result<()> {
    let complaints = inspect(tree)?;
    if complaints.is_empty() {
        eprintln!("tidy: ok");
        return Ok(());
    }
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    bail!("tidy: {} complaint(s)", complaints.len());
}

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Complaint {
    place: String,
    what: String,
}

impl Complaint {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Complaint {
        Complaint {
            place: place.into(),
            what: what.into(),
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

fn inspect(tree: &Tree) -> Result<Vec<Complaint>> {
    let fuzz = tree.fuzz_crates()?;
    let mut found = layers::edges(&tree.crates);
    found.extend(layers::edges(&fuzz));
    for one in tree.crates.iter().chain(&fuzz) {
        let opening = ["src/lib.rs", "src/main.rs"].map(|file| one.folder.join(file));
        match opening.iter().find(|file| file.is_file()) {
            Some(file) => found.extend(opening_lines(
                &display_path(tree, file),
                &read(file)?.unwrap_or_default(),
            )),
            None => found.push(Complaint::new(
                &one.name,
                "has neither src/lib.rs nor src/main.rs",
            )),
        }
    }
    let own = own_paths(tree);
    let files = files(tree)?;
    found.extend(documents(tree, &files)?);
    found.extend(circles_of(tree, &files)?);
    found.extend(module_names_of(tree, &files)?);
    for file in files {
        let place = display_path(tree, &file);
        found.extend(refused_name(&place));
        // A file that is not UTF-8 is no source.
        let Some(text) = read(&file)? else { continue };
        found.extend(machine_paths(&place, &text, &own));
        found.extend(conflict_marks(&place, &text));
        if is_source(&place) {
            found.extend(size(&place, &text));
            found.extend(comments(&place, &text));
        }
        if place.ends_with(".rs") {
            found.extend(rust(&place, &text));
        }
        if place.contains("/bpf/") && (place.ends_with(".c") || place.ends_with(".h")) {
            found.extend(bpf_licence(&place, &text));
        }
    }
    Ok(found)
}

/// Checks the links of all Markdown files.
fn documents(tree: &Tree, files: &[PathBuf]) -> Result<Vec<Complaint>> {
    let mut texts = Vec::new();
    for file in files {
        let place = display_path(tree, file);
        let text = match place.ends_with(".md") {
            true => read(file)?,
            false => None,
        };
        texts.push((place, text));
    }
    let pairs = texts
        .iter()
        .map(|(place, text)| (place.as_str(), text.as_deref()));
    let targets = links::LinkTargets::of(pairs);
    let documents = texts
        .iter()
        .filter_map(|(place, text)| Some((place, text.as_ref()?)));
    let found = documents.flat_map(|(place, text)| links::complaints(place, text, &targets));
    Ok(found.collect())
}

/// Checks the names of all modules.
fn module_names_of(tree: &Tree, files: &[PathBuf]) -> Result<Vec<Complaint>> {
    let glossary = tree.root.join(module_names::GLOSSARY_FILE);
    let glossary = read(&glossary)?.context("the glossary is not UTF-8")?;
    let places: Vec<String> = files.iter().map(|file| display_path(tree, file)).collect();
    let places = places.iter().map(String::as_str);
    Ok(module_names::complaints(
        places,
        &glossary,
        module_names::LIST,
    ))
}

/// Checks each crate for circles between its modules.
fn circles_of(tree: &Tree, files: &[PathBuf]) -> Result<Vec<Complaint>> {
    let mut found = Vec::new();
    for one in &tree.crates {
        let source = one.folder.join("src");
        let mut texts = Vec::new();
        for file in files {
            let Ok(below) = file.strip_prefix(&source) else {
                continue;
            };
            if let Some(text) = read(file)? {
                texts.push((below.display().to_string(), text));
            }
        }
        let texts: Vec<(&str, &str)> = texts
            .iter()
            .map(|(place, text)| (place.as_str(), text.as_str()))
            .collect();
        let krate = display_path(tree, &one.folder);
        found.extend(circles::complaints(&krate, &texts));
    }
    Ok(found)
}

/// Every file of the tree except those of cargo and git.
fn files(tree: &Tree) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![tree.root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)
            .with_context(|| format!("cannot list {}", folder.display()))?
        {
            let entry = entry?;
            let path = entry.path();
            let kind = entry.file_type()?;
            // In a second work tree `.git` is a file with the path of the first one.
            if entry.file_name() == ".git" {
                continue;
            }
            if kind.is_dir() {
                let outputs = [tree.root.join("target"), tree.root.join("fuzz/target")];
                let is_output = path == tree.target || outputs.contains(&path);
                if !is_output {
                    folders.push(path);
                }
            } else if kind.is_file() && entry.file_name() != "Cargo.lock" {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The text of a file; `None` if it is not UTF-8.
fn read(file: &Path) -> Result<Option<String>> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(String::from_utf8(bytes).ok())
}

fn display_path(tree: &Tree, file: &Path) -> String {
    file.strip_prefix(&tree.root)
        .unwrap_or(file)
        .display()
        .to_string()
}

fn is_source(place: &str) -> bool {
    [".rs", ".c", ".h", ".go", ".sh", ".py"]
        .iter()
        .any(|end| place.ends_with(end))
}

fn size(place: &str, text: &str) -> Option<Complaint> {
    let lines = text.lines().count();
    let most = match place.starts_with("crates/daemon/") {
        true => MAX_DAEMON_LINES,
        false => MAX_LINES,
    };
    (lines > most).then(|| {
        Complaint::new(
            place,
            format!("{lines} lines, at most {most}: divide the file by subject"),
        )
    })
}

/// Lines of Rust or C that are comments and too long. A line with an address cannot be wrapped.
fn comments<'a>(place: &'a str, text: &'a str) -> impl Iterator<Item = Complaint> + 'a {
    let is_code = [".rs", ".c", ".h"].iter().any(|end| place.ends_with(end));
    let lines = text.lines().enumerate().filter(move |_| is_code);
    lines.filter_map(move |(at, line)| {
        let length = line.chars().count();
        let is_comment = line.trim_start().starts_with("//") && !line.contains("://");
        (is_comment && length > MAX_COMMENT).then(|| {
            let text = format!(
                "line {}: a comment of {length} columns, at most {MAX_COMMENT}",
                at + 1
            );
            Complaint::new(place, text)
        })
    })
}

fn refused_name(place: &str) -> Option<Complaint> {
    let refused = Path::new(place).components().find_map(|part| {
        let part = part.as_os_str().to_str()?;
        let stem = part.split('.').next().unwrap_or(part);
        REFUSED_NAMES.contains(&stem).then(|| stem.to_owned())
    })?;
    Some(Complaint::new(
        place,
        format!(
            "the name '{refused}' does not say what is inside; move each item to the module of its \
             subject"
        ),
    ))
}

fn opening_lines(place: &str, text: &str) -> Vec<Complaint> {
    let mut lines = text.lines();
    OPENING
        .iter()
        .filter_map(|wanted| {
            let line = lines.next().unwrap_or("");
            let is_present = line
                .strip_prefix(wanted)
                .is_some_and(|rest| !rest.trim().is_empty());
            (!is_present).then(|| {
                Complaint::new(
                    place,
                    format!(
                        "its first doc lines must be '{}…'; missing '{wanted}'",
                        OPENING[0]
                    ),
                )
            })
        })
        .collect()
}

/// Checks the text of one Rust file.
fn rust(place: &str, text: &str) -> Vec<Complaint> {
    let parts = lexer::split(text);
    let mut found = Vec::new();
    if !layers::may_be_unsafe(place) {
        for line in lexer::lines_with_word(&parts.code, "unsafe") {
            found.push(Complaint::new(
                format!("{place}:{line}"),
                "unsafe code outside the places that xtask/src/tidy/layers.rs lists",
            ));
        }
    }
    for stub in ["todo", "unimplemented"] {
        for line in lexer::lines_with_word(&parts.code, stub) {
            let call = parts
                .code
                .lines()
                .nth(line - 1)
                .is_some_and(|code| code.contains(&format!("{stub}!")));
            if call {
                found.push(Complaint::new(
                    format!("{place}:{line}"),
                    format!("{stub}!: a stub"),
                ));
            }
        }
    }
    for word in POSTPONED {
        for line in lexer::lines_with_word(&parts.comments, word) {
            found.push(Complaint::new(
                format!("{place}:{line}"),
                format!("{word}: do the work now, or open an issue"),
            ));
        }
    }
    let is_binary = place.ends_with("/main.rs") || place.contains("/bin/");
    if !is_binary && !layers::may_use_anyhow(place) {
        for line in lexer::lines_with_word(&parts.code, "anyhow") {
            found.push(Complaint::new(
                format!("{place}:{line}"),
                "anyhow outside a binary's main, the lab, xtask and fuzz: use an enum of thiserror",
            ));
        }
    }
    found
}

fn bpf_licence(place: &str, text: &str) -> Option<Complaint> {
    let has_licence = text
        .lines()
        .next()
        .is_some_and(|line| line.contains(BPF_LICENCE));
    (!has_licence).then(|| {
        Complaint::new(
            place,
            format!("the first line must contain '{BPF_LICENCE}'"),
        )
    })
}

/// Paths that only this machine has: the tree, its outputs and the home folder. Short paths are
/// left out because they are too common.
fn own_paths(tree: &Tree) -> Vec<String> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    [Some(tree.root.clone()), Some(tree.target.clone()), home]
        .into_iter()
        .flatten()
        .filter(|path| path.components().count() > 2)
        .map(|path| path.display().to_string())
        .collect()
}

/// Complains about absolute paths into folders that exist on one machine only.
fn machine_paths(place: &str, text: &str, own: &[String]) -> Vec<Complaint> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let known = MACHINE_FOLDERS.iter().map(|folder| format!("/{folder}/"));
        if let Some(path) = known
            .chain(own.iter().cloned())
            .find(|path| starts_a_path(line, path))
        {
            let place = format!("{place}:{}", number + 1);
            found.push(Complaint::new(
                place,
                format!("'{path}' is a path of one machine"),
            ));
        }
    }
    found
}

/// Complains about the conflict markers of a merge.
fn conflict_marks(place: &str, text: &str) -> Option<Complaint> {
    let is_mark = |line: &str| {
        ["<<<<<<<", ">>>>>>>"].iter().any(|mark| {
            line.strip_prefix(mark)
                .is_some_and(|rest| rest.starts_with(' '))
        })
    };
    let number = text.lines().position(is_mark)? + 1;
    let place = format!("{place}:{number}");
    Some(Complaint::new(place, "an unresolved merge conflict"))
}

/// True if `path` occurs at the beginning of a path, not inside a longer one.
fn starts_a_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at].ends_with(|before: char| {
            before.is_alphanumeric() || matches!(before, '_' | '-' | '.' | '}' | '*')
        })
    })
}

const OPENING: [&str; 3] = ["//! Answers:", "//! May touch:", "//! Must never:"];
const MAX_LINES: usize = 700;
/// In characters. rustfmt wraps code, and leaves comments as they are.
const MAX_COMMENT: usize = 100;
/// The daemon has the most parts of all crates.
const MAX_DAEMON_LINES: usize = 500;
const REFUSED_NAMES: [&str; 6] = ["utils", "util", "common", "helpers", "helper", "types"];
const POSTPONED: [&str; 3] = ["TODO", "FIXME", "XXX"];
const BPF_LICENCE: &str = "SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause";
const MACHINE_FOLDERS: [&str; 4] = ["work", "farm", "builds", "Users"];

#[cfg(test)]
mod tests;
