//! Packages the crates for authors of other programs, and tests each package alone.
//!
//! ```text
//!  cargo package ──▶ NAME-VERSION.crate ──tar──▶ a workspace with the unpacked packages only
//!                                                  └──▶ cargo test, for each package
//! ```
//! The workspace is in cargo's target folder and is made anew each time. Its packages use each
//! other instead of those of a registry, where they need not be. It takes the versions of foreign
//! crates from the `Cargo.lock` of the tree. So the tests see no file of the tree that is not
//! packaged, and the manifests are those that a registry would get.
//!
//! [`check`] compares only the manifests and lists of files, in a second. A verb fails if cargo
//! refuses to package a crate, if a package lacks a file of [`FILES`] or an entry of [`ENTRIES`],
//! if a package cannot be unpacked, or if a test fails.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::step::{self, Step};
use crate::tree::Tree;

/// Packages the crates, and runs the tests of the packages outside the tree. Fails if a crate
/// cannot be packaged, or if a test of a package fails.
pub fn run(tree: &Tree) -> Result<()> {
    check(tree)?;
    // Without a build here: the tests build the packages.
    let words = ["package", "--no-verify", "--allow-dirty", "--quiet"];
    cargo(&tree.root).args(words).args(selected()).run()?;
    let workspace = unpack(tree)?;
    for name in CRATES {
        cargo(&workspace)
            .args(["test", "--quiet", "--package", name])
            .env("CARGO_TARGET_DIR", tree.target.join("packaged"))
            .run()
            .with_context(|| format!("the tests of the package {name} fail outside the tree"))?;
    }
    eprintln!("package: ok, {}", CRATES.join(", "));
    Ok(())
}

/// Checks that each package has the files and the metadata that a registry and its users need.
/// Fails if one of them is missing, or if cargo fails.
pub fn check(tree: &Tree) -> Result<()> {
    for name in CRATES {
        let list = cargo(&tree.root)
            .args(["package", "--list", "--allow-dirty", "--package", name])
            .capture()?;
        let manifest = crate_folder(tree, name)?.join("Cargo.toml");
        let manifest = fs::read_to_string(&manifest)
            .with_context(|| format!("cannot read {}", manifest.display()))?;
        let missing = missing(&list, &manifest);
        if !missing.is_empty() {
            bail!("the package {name} lacks {}", missing.join(", "));
        }
    }
    Ok(())
}

/// The files of [`FILES`] that are not in the list of a package, and the entries of [`ENTRIES`]
/// that are not in its manifest.
fn missing(list: &str, manifest: &str) -> Vec<&'static str> {
    let has_file = |file: &str| list.lines().any(|line| line == file);
    let has_entry = |entry: &str| {
        let key = |line: &str| line.split(['.', ' ', '=']).next() == Some(entry);
        manifest.lines().any(key)
    };
    let files = FILES.into_iter().filter(|file| !has_file(file));
    let entries = ENTRIES.into_iter().filter(|entry| !has_entry(entry));
    files.chain(entries).collect()
}

/// Unpacks the packages into a new workspace. Returns its folder.
fn unpack(tree: &Tree) -> Result<PathBuf> {
    let folder = tree.target.join("packaged-workspace");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let version = env!("CARGO_PKG_VERSION");
    let names: Vec<(&str, String)> = CRATES
        .iter()
        .map(|name| (*name, format!("{name}-{version}")))
        .collect();
    for (_, package) in &names {
        let file = tree.target.join(format!("package/{package}.crate"));
        Step::new("tar")
            .args(["--extract", "--gzip", "--file"])
            .args([&file])
            .folder(&folder)
            .run()?;
    }
    fs::write(folder.join("Cargo.toml"), workspace_manifest(&names))?;
    let lock = tree.root.join("Cargo.lock");
    fs::copy(&lock, folder.join("Cargo.lock"))
        .with_context(|| format!("cannot copy {}", lock.display()))?;
    Ok(folder)
}

/// The manifest of a workspace of these packages, as (name, folder).
fn workspace_manifest(packages: &[(&str, String)]) -> String {
    let members: Vec<String> = packages
        .iter()
        .map(|(_, folder)| format!("\"{folder}\""))
        .collect();
    let patches: String = packages
        .iter()
        .map(|(name, folder)| format!("{name} = {{ path = \"{folder}\" }}\n"))
        .collect();
    let members = members.join(", ");
    format!(
        "[workspace]\nresolver = \"3\"\nmembers = [{members}]\n\n[patch.crates-io]\n{patches}\n\
         [profile.dev]\ndebug = \"line-tables-only\"\n"
    )
}

fn crate_folder<'a>(tree: &'a Tree, name: &str) -> Result<&'a Path> {
    let found = tree.crates.iter().find(|one| one.name == name);
    let found = found.with_context(|| format!("the workspace has no crate {name}"))?;
    Ok(&found.folder)
}

fn cargo(folder: &Path) -> Step {
    Step::new(step::cargo()).folder(folder)
}

/// The arguments that select all packages.
fn selected() -> impl Iterator<Item = &'static str> {
    CRATES.into_iter().flat_map(|name| ["--package", name])
}

/// The crates for authors, and those of ours that they or their tests use; each after those that it
/// uses.
pub const CRATES: [&str; 7] = [
    "netnice-cases",
    "netnice-scripts",
    "netnice-core",
    "netnice-ring",
    "netnice-tcp",
    "netnice-api",
    "netnice-stack",
];

/// Files that each package has.
const FILES: [&str; 4] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT", "src/lib.rs"];

/// Entries of each manifest. Cargo requires a part of them when a package is uploaded.
const ENTRIES: [&str; 6] = [
    "description",
    "readme",
    "keywords",
    "categories",
    "license",
    "rust-version",
];

#[cfg(test)]
mod tests;
