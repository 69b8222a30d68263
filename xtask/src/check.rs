//! Runs the checks that precede each review of a change: formatting, lints, the project's rules
//! ([`crate::tidy`]), the lists of packaged files, documentation and dependencies. They run no
//! test, and need root only to install a missing package. The verb fails if a needed package cannot
//! be installed, and at the first check that fails. If the database of security advisories cannot
//! be fetched, the verb prints a notice and does not check advisories.

use anyhow::Result;

use crate::cargo_tools::CargoTool;
use crate::package;
use crate::setup::{self, Use};
use crate::step::{self, Step};
use crate::tidy;
use crate::tree::Tree;

/// Checks formatting, lints, the project's rules, documentation without warnings, and dependencies.
/// Fails at the first check that fails, or if a needed package cannot be installed.
pub fn run(tree: &Tree) -> Result<()> {
    // clippy runs the build scripts, and they compile the eBPF programs.
    setup::ensure(tree, Use::Build)?;
    let cargo = || Step::new(step::cargo()).folder(&tree.root);
    cargo().args(["fmt", "--all", "--check"]).run()?;
    cargo()
        .args(["fmt", "--check", "--manifest-path", FUZZ])
        .run()?;
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
    package::check(tree)?;
    cargo()
        .args([
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
            "--quiet",
        ])
        // The build documents private items too, so links to them are valid.
        .env(
            "RUSTDOCFLAGS",
            "-D warnings -A rustdoc::private_intra_doc_links",
        )
        .run()?;
    dependencies(tree)?;
    eprintln!("check: ok");
    Ok(())
}

/// Checks licences, sources and advisories of foreign crates with `deny.toml`.
fn dependencies(tree: &Tree) -> Result<()> {
    let program = DENY.ensure(tree)?;
    let deny = || {
        Step::new(&program)
            .folder(&tree.root)
            .args(["--log-level", "warn"])
            .no_input()
    };
    let check = ["check", "--hide-inclusion-graph"];
    let kinds = ["licenses", "bans", "sources"];
    deny().args(check).args(kinds).run()?;
    // With `fuzz/deny.toml`.
    deny()
        .args(["--manifest-path", FUZZ])
        .args(check)
        .args(kinds)
        .run()?;
    // The advisories are a git repository on a forge that not every machine can reach.
    let fetched = deny().args(["fetch", "db"]).env("GIT_TERMINAL_PROMPT", "0");
    if let Some(why) = fetched.try_quietly()? {
        eprintln!("check: advisories were not checked: their database cannot be fetched: {why}");
        return Ok(());
    }
    deny()
        .args(["--offline"])
        .args(check)
        .args(["advisories"])
        .run()
}

/// The workspace of code that needs a nightly compiler.
const FUZZ: &str = "fuzz/Cargo.toml";
/// Built without optimisation: the build takes half the time, and a check takes a second.
const DENY: CargoTool = CargoTool {
    name: "cargo-deny",
    version: "0.20.2",
    build: &["--no-default-features", "--debug"],
};
