//! Reads the documents that the package `netnice` installs: the manual and the reference. They keep
//! their folders of `docs`, so links between them stay valid. A link to a document that is not
//! installed is replaced by its text. Reading fails if a folder or file cannot be read, or if a
//! page is not UTF-8.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::tidy::links;

/// A file to install.
pub struct Document {
    /// The path below `usr/share/doc/netnice`.
    pub place: String,
    /// The content; in a `.md` file, links to documents that are not installed are replaced.
    pub bytes: Vec<u8>,
}

/// Reads the documents from the tree with this root folder, and replaces links to documents that
/// are not installed by their texts.
///
/// # Errors
/// If a folder or file cannot be read, or a page is not UTF-8.
pub fn read(root: &Path) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    for folder in FOLDERS {
        for (name, bytes) in super::files(&root.join("docs").join(folder))? {
            let place = format!("{folder}/{name}");
            documents.push(Document { place, bytes });
        }
    }
    let installed: BTreeSet<String> = documents.iter().map(|one| one.place.clone()).collect();
    for document in &mut documents {
        if document.place.ends_with(".md") {
            let text = std::str::from_utf8(&document.bytes)
                .with_context(|| format!("{} is not UTF-8", document.place))?;
            document.bytes = without_dead_links(&document.place, text, &installed).into_bytes();
        }
    }
    Ok(documents)
}

/// Replaces each link and image whose target is a file that is not installed by its text. `place`
/// is the path of the page.
fn without_dead_links(place: &str, text: &str, installed: &BTreeSet<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    // The dead link that the parser is in: its range, and the range of its text so far.
    let mut dead = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. })
                if dead.is_none() && is_dead(place, &dest_url, installed) =>
            {
                dead = Some((range, None));
            }
            Event::End(TagEnd::Link | TagEnd::Image) => {
                if let Some((link, label)) = dead.take_if(|(link, _)| *link == range) {
                    out.push_str(&text[copied..link.start]);
                    out.push_str(label.map_or("", |label: std::ops::Range<usize>| &text[label]));
                    copied = link.end;
                }
            }
            _ => {
                if let Some((_, label)) = &mut dead {
                    *label = Some(match label {
                        None => range,
                        Some(before) => before.start..before.end.max(range.end),
                    });
                }
            }
        }
    }
    out.push_str(&text[copied..]);
    out
}

/// True if a link leads to a file that is not installed.
fn is_dead(place: &str, target: &str, installed: &BTreeSet<String>) -> bool {
    if links::is_external(target) {
        return false;
    }
    let path = target.split('#').next().unwrap_or_default();
    let file = links::resolve(place, path);
    !path.is_empty() && file.is_none_or(|file| !installed.contains(&file))
}

/// The folders of `docs` that are installed.
const FOLDERS: [&str; 2] = ["manual", "reference"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::links::{LinkTargets, link_complaints};

    #[test]
    fn every_link_of_the_installed_documents_leads_to_an_installed_document() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let documents = read(&root).expect("documents");
        let texts: Vec<(&str, Option<&str>)> = documents
            .iter()
            .map(|one| (one.place.as_str(), std::str::from_utf8(&one.bytes).ok()))
            .collect();
        let targets = LinkTargets::of(texts.iter().copied());
        let pages: Vec<_> = texts
            .iter()
            .filter(|(place, _)| place.ends_with(".md"))
            .collect();
        assert!(pages.len() > 10, "{pages:?}");
        for (place, text) in pages {
            let complaints = link_complaints(place, text.expect("a page"), &targets);
            assert!(complaints.is_empty(), "{complaints:?}");
        }
    }

    #[test]
    fn a_link_to_a_file_that_is_not_installed_becomes_its_text() {
        let installed = ["manual/a.md", "reference/b.md"].map(str::to_owned);
        let installed = BTreeSet::from(installed);
        for (text, expected) in [
            (
                "see [b](../reference/b.md#c).",
                "see [b](../reference/b.md#c).",
            ),
            (
                "[x](https://example.org/x.md), [y](#z)",
                "[x](https://example.org/x.md), [y](#z)",
            ),
            (
                "([the *new* `c`](../internals/c.md#d), e)",
                "(the *new* `c`, e)",
            ),
            (
                "[a](a.md) [c](c.md) [d](../../d.rs)\n\n![p](p.png)",
                "[a](a.md) c d\n\np",
            ),
            (
                "| [c](c.md) |\n|---|\n| [c][r] |\n\n[r]: c.md",
                "| c |\n|---|\n| c |\n\n[r]: c.md",
            ),
        ] {
            assert_eq!(
                without_dead_links("manual/a.md", text, &installed),
                expected
            );
        }
    }
}
