//! Finds cargo programs of a fixed version; cargo installs a missing one.
//!
//! The search covers the `PATH`, the folder into which cargo installs, and the target folder, and
//! takes the first program of the right version. If no version is found, `cargo install` installs
//! the program into cargo's folder. If another version is found, that one stays unchanged, and the
//! right version is installed into the target folder (`target/tools/NAME-VERSION`).
//!
//! A search fails if cargo cannot install the program, or if the installed program has another name
//! or version.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::step::{self, Step};
use crate::tree::Tree;

/// A program that cargo installs.
pub struct CargoTool {
    /// Name of the package and of its program, for example `cargo-deny`.
    pub name: &'static str,
    /// The only version that is used.
    pub version: &'static str,
    /// Further arguments of `cargo install`, for a shorter build.
    pub build: &'static [&'static str],
}

impl CargoTool {
    /// The path of the program. Builds and installs a missing program.
    ///
    /// # Errors
    /// If cargo cannot install the program (the registry is out of reach, or the build fails), or
    /// if the installed program has another name or version.
    pub fn ensure(&self, tree: &Tree) -> Result<PathBuf> {
        let usual = install_folder().join("bin").join(self.name);
        let usual = usual.is_file().then_some(usual);
        let own = tree.target.join("tools").join(self.folder());
        let file = own.join("bin").join(self.name);
        let places = [step::find_program(self.name), usual, Some(file.clone())];
        let places: Vec<PathBuf> = places.into_iter().flatten().collect();
        if let Some(found) = places.iter().find(|file| self.is_version_of(file)) {
            return Ok(found.clone());
        }
        let has_other = places.iter().any(|other| *other != file && other.is_file());
        self.install(tree, has_other.then_some(&own))?;
        let file = match has_other {
            false => install_folder().join("bin").join(self.name),
            true => file,
        };
        match self.is_version_of(&file) {
            true => Ok(file),
            false => bail!(
                "cargo installed {} {}, but {} is not that program",
                self.name,
                self.version,
                file.display()
            ),
        }
    }

    fn install(&self, tree: &Tree, root: Option<&PathBuf>) -> Result<()> {
        let version = format!("={}", self.version);
        let mut step = Step::new(step::cargo())
            .folder(&tree.root)
            .args(["install", "--locked", self.name, "--version", &version])
            .args(self.build);
        if let Some(root) = root {
            step = step.args(["--root".as_ref(), root.as_os_str()]);
        }
        step.run_quietly()
            .with_context(|| format!("{} {} is missing", self.name, self.version))
    }

    fn is_version_of(&self, file: &Path) -> bool {
        if !file.is_file() {
            return false;
        }
        // Cargo calls the program of `cargo nextest` with that word as its first argument.
        let verb = self.name.strip_prefix("cargo-").unwrap_or(self.name);
        let output = std::process::Command::new(file)
            .args([verb, "--version"])
            .output();
        output.is_ok_and(|output| self.names_version(&String::from_utf8_lossy(&output.stdout)))
    }

    /// True for text such as `cargo-deny 0.20.2`, perhaps with more behind it.
    fn names_version(&self, output: &str) -> bool {
        let line = output.lines().next().unwrap_or("");
        let mut words = line.split_whitespace();
        words.next() == Some(self.name) && words.next() == Some(self.version)
    }

    fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

/// The folder of cargo's configuration and installed programs: `$CARGO_HOME`, else `~/.cargo`.
pub fn cargo_home() -> PathBuf {
    let own = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
    own.unwrap_or_else(home)
}

/// The folder that `cargo install` installs into: `$CARGO_INSTALL_ROOT`, else [`cargo_home`].
fn install_folder() -> PathBuf {
    std::env::var_os("CARGO_INSTALL_ROOT").map_or_else(cargo_home, PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_output_of_a_program() {
        let tool = CargoTool {
            name: "cargo-nextest",
            version: "0.9.1",
            build: &[],
        };
        for (output, is_version) in [
            ("cargo-nextest 0.9.1\n", true),
            (
                "cargo-nextest 0.9.1 (6b3f99457 2026-11-02)\nrelease: 0.9.1\n",
                true,
            ),
            ("cargo-nextest 0.9.151\n", false),
            ("cargo-deny 0.9.1\n", false),
            ("", false),
        ] {
            assert_eq!(tool.names_version(output), is_version, "{output}");
        }
    }
}
