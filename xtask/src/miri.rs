//! The tests of core and of the ring under Miri, which interprets them and stops where Rust defines nothing: a read of what was
//! never written, references that contradict each other, an index that leads out of bounds.
//!
//! Core's one room of `unsafe` is the prefetch hint, which is left out under Miri; the rest says that it needs
//! none, and here that is tried, down into the standard library. The ring is made of `unsafe`: what of it needs no
//! memory file and no doorbell is tried here, over memory of the process. Interpreting takes some hundred times as long as
//! running. So properties are tried with [`CASES`] cases each, and what is marked `cfg_attr(miri, ignore)` is
//! left out.
//!
//! Miri is a component of the nightly toolchain; rustup brings both where they are missing.

use anyhow::{Result, bail};

use crate::nightly::Nightly;
use crate::setup::{self, Use};
use crate::tree::Tree;

/// `miri [FILTER]`: every test of core and of the ring, or those whose name has the filter.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    let filter = parse(words)?;
    setup::ensure(tree, Use::Build)?;
    let nightly = Nightly::ensure(
        "Miri",
        &["cargo", "miri", "--version"],
        &["miri", "rust-src"],
    )?;
    nightly
        .step("cargo")
        .folder(&tree.root)
        .args(["miri", "test", "--package", CORE, "--package", RING])
        .args(["--lib", "--tests", "--"])
        .args(filter)
        // Properties read from the environment how many cases they try.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .env("PROPTEST_CASES", CASES)
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
        _ => bail!("miri takes one filter; got '{}'", words.join(" ")),
    }
}

const CORE: &str = "netnice-core";
const RING: &str = "netnice-ring";
const CASES: &str = "1";
