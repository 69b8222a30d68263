//! Finds the paths of the project: the repository, cargo's target folder, and the crates of the
//! workspace.
//!
//! All of them come from `cargo metadata`, so `CARGO_TARGET_DIR` and a new crate need no change
//! here. Fails if cargo fails or prints another form of metadata.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::step::{self, Step};

/// The workspace as cargo reports it.
pub struct Tree {
    /// The folder with the workspace's `Cargo.toml`.
    pub root: PathBuf,
    /// The folder that cargo builds into.
    pub target: PathBuf,
    /// Every workspace member.
    pub crates: Vec<Crate>,
}

/// A package of the workspace, with its dependencies and targets.
pub struct Crate {
    /// The name of the package.
    pub name: String,
    /// The folder with its `Cargo.toml`.
    pub folder: PathBuf,
    /// Names of the direct dependencies of all kinds (normal, build, dev).
    pub dependencies: Vec<String>,
    /// Dependencies of the built code (normal, build); only tests and benchmarks use the others.
    pub build_dependencies: Vec<String>,
    /// Kind and name of each target, as cargo lists them: `("test", "limits")`.
    pub targets: Vec<(String, String)>,
}

impl Tree {
    /// Gets from cargo the workspace for which `cargo xtask` was called. Fails if cargo did not
    /// start this process, or if cargo's metadata cannot be read. (The folder in which xtask was
    /// built may be another one, because two clones may share a target folder.)
    pub fn find() -> Result<Tree> {
        let here = std::env::var_os("CARGO_MANIFEST_DIR")
            .context("not run by cargo: use `cargo xtask`")?;
        let here = Path::new(&here);
        let root = here.parent().context("xtask has no parent folder")?;
        Tree::of(root)
    }

    /// The crates of `fuzz/`, a workspace of its own for code that needs a nightly compiler. Fails
    /// as [`Tree::find`] does.
    pub fn fuzz_crates(&self) -> Result<Vec<Crate>> {
        Ok(Tree::of(&self.root.join("fuzz"))?.crates)
    }

    /// Gets the workspace in a folder from cargo.
    fn of(root: &Path) -> Result<Tree> {
        let text = Step::new(step::cargo())
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .folder(root)
            .capture()?;
        Tree::from_metadata(&text)
    }

    /// Parses the output of `cargo metadata --format-version 1 --no-deps`. Fails if the text has
    /// another form.
    pub fn from_metadata(text: &str) -> Result<Tree> {
        let all: Value = serde_json::from_str(text).context("cargo metadata is not JSON")?;
        let crates = list(&all, "packages")?
            .iter()
            .map(Crate::from_metadata)
            .collect::<Result<_>>()?;
        Ok(Tree {
            root: PathBuf::from(word(&all, "workspace_root")?),
            target: PathBuf::from(word(&all, "target_directory")?),
            crates,
        })
    }

    /// The folder with the release programs, which tests get.
    pub fn programs(&self) -> PathBuf {
        self.target.join("release")
    }
}

impl Crate {
    fn from_metadata(package: &Value) -> Result<Crate> {
        let manifest = PathBuf::from(word(package, "manifest_path")?);
        let (mut dependencies, mut build_dependencies) = (Vec::new(), Vec::new());
        for one in list(package, "dependencies")? {
            let name = word(one, "name")?;
            dependencies.push(name.to_owned());
            if one["kind"] != "dev" {
                build_dependencies.push(name.to_owned());
            }
        }
        let mut targets = Vec::new();
        for target in list(package, "targets")? {
            for kind in list(target, "kind")? {
                let kind = kind.as_str().context("a target's kind is not text")?;
                targets.push((kind.to_owned(), word(target, "name")?.to_owned()));
            }
        }
        Ok(Crate {
            name: word(package, "name")?.to_owned(),
            folder: manifest
                .parent()
                .context("a manifest has no folder")?
                .to_owned(),
            dependencies,
            build_dependencies,
            targets,
        })
    }

    /// True if the crate has a target of this kind (`"test"`, `"bench"`, `"bin"`).
    pub fn has(&self, kind: &str) -> bool {
        self.targets.iter().any(|(k, _)| k == kind)
    }
}

fn word<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("cargo metadata: no text under '{key}'"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key]
        .as_array()
        .with_context(|| format!("cargo metadata: no list under '{key}'"))
}
