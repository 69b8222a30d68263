//! Reads `flaky.toml`, the list of flaky tests, each with the cause. A test is flaky if it failed
//! in some run and passed when it was repeated alone.
//!
//! ```toml
//! [[test]]
//! program = "netnice-lab::limits"
//! name = "a_flood_above_its_limit_is_slowed_and_burns_nothing"
//! since = "2026-11-22"
//! cause = "the meter loses packets while another test loads an eBPF program"
//! ```
//!
//! An entry is added in the change after the run in which the test was flaky, and deleted when its
//! cause is fixed. A run fails if a listed test is flaky again. Reading fails if the file cannot be
//! read or is malformed; a folder without the file lists no test.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The tests that `flaky.toml` lists.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFlaky {
    #[serde(default)]
    test: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    program: String,
    name: String,
    since: String,
    cause: String,
}

impl KnownFlaky {
    /// Reads `flaky.toml` in this folder; a folder without one lists no test.
    ///
    /// # Errors
    /// If the file cannot be read, has unknown keys, or has an entry without a cause or a date.
    pub fn read(folder: &Path) -> Result<KnownFlaky> {
        let file = folder.join("flaky.toml");
        match std::fs::read_to_string(&file) {
            Ok(text) => KnownFlaky::parse(&text).with_context(|| file.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(KnownFlaky::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    fn parse(text: &str) -> Result<KnownFlaky> {
        let known: KnownFlaky = toml::from_str(text)?;
        for entry in &known.test {
            for (key, value) in [("cause", &entry.cause), ("since", &entry.since)] {
                if value.trim().is_empty() {
                    bail!("{} {}: `{key}` is empty", entry.program, entry.name);
                }
            }
        }
        Ok(known)
    }

    /// The cause of a listed test; `None` if the test is not listed.
    pub fn cause(&self, program: &str, name: &str) -> Option<&str> {
        let entry = self
            .test
            .iter()
            .find(|entry| entry.program == program && entry.name == name)?;
        Some(&entry.cause)
    }
}

#[cfg(test)]
mod tests;
