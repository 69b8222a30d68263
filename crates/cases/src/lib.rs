//! Answers: how many cases a property is tried with, and which inputs are kept for it.
//! May touch: what the environment says to proptest, and the files of a folder that it is given.
//! Must never: be in what users run (tests alone use it), or know what an input means.
//!
//! # A corpus
//! What a stranger can send is judged from bytes. A folder has inputs that are judged again with every test, each in a file named
//! after what comes of it; a property tries what is near them. What it finds is kept there as one more.
//! ```text
//!  checksum-2.bin ──of──▶ Corpus ──replay──▶ is it "checksum" still, and is each outcome there?
//!                            ├──────near───▶ one, with bytes changed
//!                            └──────some───▶ several, to be put together ──changed──▶ bytes changed
//! ```

use std::ops::Range;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::{collection, sample};

/// So many cases, or as many as `make fuzz` and `cargo xtask miri` ask for by `PROPTEST_CASES`.
pub fn cases(usual: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(usual),
    }
}

/// What is kept in a folder.
pub struct Corpus {
    /// In the order of their names: a seed chooses the same on every machine.
    kept: Vec<Kept>,
}

struct Kept {
    file: PathBuf,
    outcome: String,
    bytes: Vec<u8>,
}

impl Corpus {
    /// Reads all files of a folder, whose names are an outcome and a number (`checksum-2.bin`); panics if one is not.
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

    /// Judges all; panics unless that comes of each which came of it when it was kept, and each of these outcomes is there.
    pub fn replay(&self, judged: impl Fn(&[u8]) -> String, outcomes: &[&str]) {
        for kept in &self.kept {
            assert_eq!(judged(&kept.bytes), kept.outcome, "{}", kept.file.display());
        }
        for wanted in outcomes {
            let is_there = self.kept.iter().any(|kept| kept.outcome == *wanted);
            assert!(is_there, "nothing is kept of which {wanted} comes");
        }
    }

    /// One of those that are kept, [`changed`].
    pub fn near(&self) -> impl Strategy<Value = Vec<u8>> + use<> {
        changed(self.one())
    }

    /// So many of those that are kept, as they are; one may be there several times.
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
            panic!("{} is no outcome and a number", file.display());
        };
        Kept {
            outcome: outcome.to_owned(),
            bytes: std::fs::read(&file).expect("a file can be read"),
            file,
        }
    }
}

/// Bytes of which some, or none, have another value, are put in or taken out.
pub fn changed(bytes: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<sample::Index>(), any::<u8>(), 0..4_u8);
    let changes = collection::vec(change, CHANGES);
    (bytes, changes).prop_map(|(mut bytes, changes)| {
        for (at, byte, how) in changes {
            let at = at.index(bytes.len().max(1));
            match how {
                // Twice as often: it leaves all others where they are, which mostly gets further.
                0 | 1 if at < bytes.len() => bytes[at] = byte,
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        bytes
    })
}

/// How many: so few that much of what was kept is left.
const CHANGES: Range<usize> = 0..8;

#[cfg(test)]
mod tests;
