//! Checks links in Markdown files: each must lead to a file or folder of the tree, and its
//! `#anchor` to a heading in that file. No call fails; a dead link is a complaint.
//!
//! Two kinds of links are checked. The first are relative links and images. The second are words of
//! text or inline code that are paths: they begin with a top folder of the tree
//! (`crates/lab/tests`, `xtask/src/suite.rs`; `*` is any part of a name), or they are source files
//! inside a crate (`tests/driver.rs`). Code blocks and links to other hosts are not checked.
//! Anchors follow GitHub's rule for headings.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::tidy::Complaint;

/// The files, folders and headings that links can lead to.
pub struct LinkTargets {
    /// Files and folders, relative to the root of the tree: `docs`, `docs/reference/ring.md`.
    paths: BTreeSet<String>,
    /// The anchors of each Markdown file.
    anchors: BTreeMap<String, BTreeSet<String>>,
    /// Folders that a path of the tree may begin with.
    tops: BTreeSet<String>,
}

impl LinkTargets {
    /// Collects these files (the path from the root, and the text if it is Markdown) and the
    /// folders in their paths.
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> LinkTargets {
        let mut targets = LinkTargets {
            paths: BTreeSet::new(),
            anchors: BTreeMap::new(),
            tops: BTreeSet::new(),
        };
        for (path, text) in files {
            let folders = path.match_indices('/').map(|(at, _)| &path[..at]);
            targets
                .tops
                .extend(folders.clone().next().map(str::to_owned));
            targets.paths.extend(folders.map(str::to_owned));
            targets.paths.insert(path.to_owned());
            if let Some(text) = text {
                targets.anchors.insert(path.to_owned(), anchors(text));
            }
        }
        targets
    }

    /// True if a file or folder has this path; `*` stands for a part of a name.
    fn has(&self, path: &str) -> bool {
        match path.contains('*') {
            false => self.paths.contains(path),
            true => self.paths.iter().any(|one| matches_pattern(one, path)),
        }
    }
}

/// Complains about every link and path of a Markdown file whose target does not exist. `place` is
/// the file's path from the root of the tree.
pub fn complaints(place: &str, text: &str, targets: &LinkTargets) -> Vec<Complaint> {
    let mut found = link_complaints(place, text, targets);
    let mut in_block = false;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_block = true,
            Event::End(TagEnd::CodeBlock) => in_block = false,
            Event::Text(words) | Event::Code(words) if !in_block => {
                for word in words.split_whitespace() {
                    let fault = path(word, targets);
                    found.extend(fault.map(|fault| complaint(place, text, range.start, fault)));
                }
            }
            _ => {}
        }
    }
    found
}

/// Complains about every link of a Markdown file whose target does not exist.
pub fn link_complaints(place: &str, text: &str, targets: &LinkTargets) -> Vec<Complaint> {
    let mut found = Vec::new();
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        if let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event {
            let fault = link(place, &dest_url, targets);
            found.extend(fault.map(|fault| complaint(place, text, range.start, fault)));
        }
    }
    found
}

/// A complaint about the line of a byte of the text.
fn complaint(place: &str, text: &str, at: usize, what: String) -> Complaint {
    let line = 1 + text[..at].matches('\n').count();
    Complaint::new(format!("{place}:{line}"), what)
}

/// True if a link leads to another host.
pub fn is_external(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// The fault of a link target in this file; `None` if it is valid.
fn link(place: &str, target: &str, targets: &LinkTargets) -> Option<String> {
    if is_external(target) {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let file = match path {
        "" => place.to_owned(),
        _ => match resolve(place, path) {
            Some(file) => file,
            None => return Some(format!("the link '{target}' leads out of the tree")),
        },
    };
    if !targets.has(&file) {
        return Some(format!("the link '{target}': there is no {file}"));
    }
    let anchor = anchor?;
    let headings = targets.anchors.get(&file);
    match headings.is_some_and(|anchors| anchors.contains(anchor)) {
        true => None,
        false => Some(format!(
            "the link '{target}': {file} has no heading with the anchor #{anchor}"
        )),
    }
}

/// Converts `path`, which is relative to the folder of the file `place`, to a path from the root;
/// `None` if it leads above the root.
pub fn resolve(place: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = place.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The fault of a word that looks like a path of the tree; `None` if it is no path or the path
/// exists.
fn path(word: &str, targets: &LinkTargets) -> Option<String> {
    let word = word.trim_start_matches(['(', '"', '\'']);
    let word = word.trim_end_matches([')', '"', '\'', ',', ';', ':', '.', '/', '?', '!']);
    let (top, rest) = word.split_once('/')?;
    // `…` stands for unnamed folders.
    if rest.is_empty() || rest.contains('…') {
        return None;
    }
    let is_there = match targets.tops.contains(top) {
        true => targets.has(word),
        // A path inside a crate that the sentence names.
        false if !top.is_empty() && SOURCES.iter().any(|end| word.ends_with(end)) => {
            let end = format!("/{word}");
            targets.paths.iter().any(|path| path.ends_with(&end))
        }
        false => true,
    };
    (!is_there).then(|| format!("there is no {word} in the tree"))
}

/// Endings of files that must exist in the tree, also if their path begins inside a crate.
const SOURCES: [&str; 4] = [".rs", ".c", ".h", ".md"];

/// True if the path matches the pattern; each `*` matches any characters except `/`.
fn matches_pattern(path: &str, pattern: &str) -> bool {
    let parts = (path.split('/').count(), pattern.split('/').count());
    let mut names = path.split('/').zip(pattern.split('/'));
    parts.0 == parts.1 && names.all(|(name, pattern)| name_matches(name, pattern))
}

fn name_matches(name: &str, pattern: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return name == pattern;
    };
    let Some(rest) = name.strip_prefix(head) else {
        return false;
    };
    let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.any(|at| name_matches(&rest[at..], tail))
}

/// The anchors of a file's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let slug = slug(&heading.take().unwrap_or_default());
                // GitHub numbers the second and later headings with the same name.
                let again = (1..).map(|number| format!("{slug}-{number}"));
                let free = std::iter::once(slug.clone())
                    .chain(again)
                    .find(|slug| !found.contains(slug));
                found.extend(free);
            }
            _ => {}
        }
    }
    found
}

/// GitHub's anchor of a heading: lower-case letters, digits, `_` and `-`. A blank becomes `-`;
/// other characters are left out.
fn slug(heading: &str) -> String {
    let small = heading.trim().to_lowercase();
    let kept = small.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c => c.is_alphanumeric().then_some(c),
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "# Title\n\n## `flow:N`, and *more*: the 2nd\n\n## Again\n\n## Again\n";

    fn complaint_texts(text: &str) -> Vec<String> {
        let files = [
            ("README.md", Some("# Read\n")),
            ("docs/a.md", Some(A)),
            ("docs/top.png", None),
            ("crates/lab/tests/driver.rs", None),
        ];
        let found = complaints("docs/a.md", text, &LinkTargets::of(files));
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_link_must_lead_to_a_file_and_a_heading() {
        let good = "[a](../README.md), [b](a.md#title), [c](#again-1), ![p](top.png), [d](../crates/lab/)\n\
                    [e](https://example.org/x.md#y), [f](#flown-and-more-the-2nd), [g][h]\n\n[h]: ../README.md#read\n";
        assert_eq!(complaint_texts(good), [""; 0]);
        for (text, wanted) in [
            (
                "[a](b.md)",
                "docs/a.md:1: the link 'b.md': there is no docs/b.md",
            ),
            (
                "\n\n![a](x.png)",
                "docs/a.md:3: the link 'x.png': there is no docs/x.png",
            ),
            (
                "[a](README.md)",
                "docs/a.md:1: the link 'README.md': there is no docs/README.md",
            ),
            (
                "[a](../../x)",
                "docs/a.md:1: the link '../../x' leads out of the tree",
            ),
            (
                "[a](../README.md#write)",
                "docs/a.md:1: the link '../README.md#write': README.md has no heading with the anchor #write",
            ),
            (
                "|x|\n|---|\n| [a](#again-2) |",
                "docs/a.md:3: the link '#again-2': docs/a.md has no heading with the anchor #again-2",
            ),
        ] {
            assert_eq!(complaint_texts(text), [wanted], "{text}");
        }
    }

    #[test]
    fn a_path_of_the_tree_must_exist() {
        let good = "`crates/lab`, `crates/lab/tests/*.rs` (docs/a.md). `src/…/x.rs`, `docs/…/x.rs`, `4mbit/s`, crates/, `tests/driver.rs`, `/etc/x.md`\n\n\
                    ```\ncrates/other\n```\n";
        assert_eq!(complaint_texts(good), [""; 0]);
        for (text, wanted) in [
            (
                "x\n`crates/lab/test`",
                "docs/a.md:2: there is no crates/lab/test in the tree",
            ),
            (
                "see (docs/b.md).",
                "docs/a.md:1: there is no docs/b.md in the tree",
            ),
            (
                "`tests/drive.rs`",
                "docs/a.md:1: there is no tests/drive.rs in the tree",
            ),
            (
                "`crates/*/test`",
                "docs/a.md:1: there is no crates/*/test in the tree",
            ),
        ] {
            assert_eq!(complaint_texts(text), [wanted], "{text}");
        }
    }
}
