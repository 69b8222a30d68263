//! Answers: how many cases a property test runs, and which inputs are kept for it.
//! May touch: the environment variable of proptest, and the files of a given folder.
//! Must never: be part of a shipped program (only tests use it), or interpret an input.
//!
//! # A corpus
//! Code that parses untrusted input is tested with bytes. A folder keeps inputs, each in a file
//! named after its outcome and a number. The outcome is the text that the tested function returns
//! for the input. Every test run replays all inputs. Property tests alter one of them or combine
//! several. An input that reveals a fault is added to the folder. The functions of [`Corpus`]:
//! ```text
//!  checksum-2.bin ──of──▶ Corpus ──replay──▶ panics if an outcome differs from its file's name, or
//!                            │               if an expected outcome has no input
//!                            ├──────near───▶ one input, altered
//!                            └──────some───▶ several inputs, unaltered, to be combined
//! ```
//! [`Corpus::of`] panics if the folder or a file cannot be read, or if a file's name has no `-`
//! between an outcome and a number.

use std::ops::Range;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::{collection, sample};

/// The configuration of proptest for `usual` cases of a property, or for the number in the
/// environment variable `PROPTEST_CASES` if it is set (by `make fuzz` and `cargo xtask miri`).
pub fn cases(usual: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(usual),
    }
}

/// The inputs that a folder keeps for a property test.
pub struct Corpus {
    /// Sorted by file name, so that a seed chooses the same inputs on every machine.
    kept: Vec<Kept>,
}

struct Kept {
    file: PathBuf,
    outcome: String,
    bytes: Vec<u8>,
}

impl Corpus {
    /// Reads all files of a folder.
    ///
    /// # Panics
    /// If the folder or a file cannot be read, or if a file's name has no `-` between an outcome
    /// and a number (`checksum-2.bin`).
    pub fn of(folder: impl AsRef<Path>) -> Corpus {
        let folder = folder.as_ref();
        let files = folder.read_dir().unwrap_or_else(|error| {
            panic!("no corpus in {}: {error}", folder.display());
        });
        let mut kept: Vec<Kept> = files
            .map(|file| Kept::read(file.expect("a folder can be read").path()))
            .collect();
        kept.sort_by(|a, b| a.file.cmp(&b.file));
        Corpus { kept }
    }

    /// Runs `outcome_of` on all inputs.
    ///
    /// # Panics
    /// If an input's outcome differs from the one in its file name, or if one of `outcomes` has no
    /// input.
    pub fn replay(&self, outcome_of: impl Fn(&[u8]) -> String, outcomes: &[&str]) {
        for kept in &self.kept {
            assert_eq!(
                outcome_of(&kept.bytes),
                kept.outcome,
                "{}",
                kept.file.display()
            );
        }
        for wanted in outcomes {
            let is_there = self.kept.iter().any(|kept| kept.outcome == *wanted);
            assert!(is_there, "no kept input has the outcome {wanted}");
        }
    }

    /// A strategy that yields one of the inputs at random, as [`changed`] alters it.
    pub fn near(&self) -> impl Strategy<Value = Vec<u8>> + use<> {
        changed(self.one())
    }

    /// A strategy that yields several of the inputs at random, unaltered; `count` is the range of
    /// their number. An input may occur several times.
    pub fn some(&self, count: Range<usize>) -> impl Strategy<Value = Vec<Vec<u8>>> + use<> {
        collection::vec(self.one(), count)
    }

    fn one(&self) -> impl Strategy<Value = Vec<u8>> + use<> {
        let all: Vec<Vec<u8>> = self.kept.iter().map(|kept| kept.bytes.clone()).collect();
        sample::select(all)
    }
}

impl Kept {
    fn read(file: PathBuf) -> Kept {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let Some((outcome, _)) = name.rsplit_once('-') else {
            panic!(
                "{}: the file name is not an outcome and a number",
                file.display()
            );
        };
        Kept {
            outcome: outcome.to_owned(),
            bytes: std::fs::read(&file).expect("a file can be read"),
            file,
        }
    }
}

/// A strategy that alters what `bytes` yields by up to seven changes, or not at all. A change
/// replaces, inserts or removes a byte.
pub fn changed(bytes: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<sample::Index>(), any::<u8>(), 0..4_u8);
    let changes = collection::vec(change, CHANGES);
    (bytes, changes).prop_map(|(mut bytes, changes)| {
        for (at, byte, how) in changes {
            let at = at.index(bytes.len().max(1));
            match how {
                // Replacing is twice as likely as removing: the other bytes keep their places, so
                // the tested code reads more of the input.
                0 | 1 if at < bytes.len() => bytes[at] = byte,
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        bytes
    })
}

/// Number of alterations; small, so that most of the input stays.
const CHANGES: Range<usize> = 0..8;

/// The examples of README.md, which are tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;

#[cfg(test)]
mod tests;
