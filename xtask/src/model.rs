//! The tests of the ring under loom, which runs two threads in every order that there is, with every value that each
//! may see under the memory model. What is tried is in `crates/ring/src/model.rs`.
//!
//! loom takes the place of the atomics, by a flag of the compiler for the whole build. So it has a target folder of its
//! own, or each run would make cargo build everything anew.

use anyhow::{Result, bail};

use crate::setup::{self, Use};
use crate::suite;
use crate::tree::Tree;

/// `loom [FILTER]`: every model, or those whose name has the filter.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    let filter = parse(words)?;
    setup::ensure(tree, Use::Build)?;
    suite::cargo(tree)
        .args(["test", "--release", "--package", RING, "--lib"])
        .args(filter)
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", tree.target.join("loom"))
        .run()
}

/// Fails if these arguments make no sense.
pub fn reads(words: &[&str]) -> Result<()> {
    parse(words).map(drop)
}

fn parse<'a>(words: &[&'a str]) -> Result<Option<&'a str>> {
    match words {
        [] => Ok(None),
        [filter] if !filter.starts_with('-') => Ok(Some(filter)),
        _ => bail!("loom takes one filter; got '{}'", words.join(" ")),
    }
}

const RING: &str = "netnice-ring";
