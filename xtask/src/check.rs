//! What a change must pass before anybody reads it: cheap, needs no root and no network namespaces.

use anyhow::Result;

use crate::step::{self, Step};
use crate::tidy;
use crate::tree::Tree;

/// Formatting, lints, the rules of the house, and documentation without warnings.
pub fn run(tree: &Tree) -> Result<()> {
    let cargo = || Step::new(step::cargo()).folder(&tree.root);
    cargo().args(["fmt", "--all", "--check"]).run()?;
    cargo()
        .args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ])
        .args(["-D", "clippy::undocumented_unsafe_blocks"])
        .run()?;
    tidy::run(tree)?;
    cargo()
        .args([
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
            "--quiet",
        ])
        // Private items are documented too, so links to them lead somewhere.
        .env(
            "RUSTDOCFLAGS",
            "-D warnings -A rustdoc::private_intra_doc_links",
        )
        .run()?;
    eprintln!("check: ok");
    Ok(())
}
