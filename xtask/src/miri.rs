//! Runs the tests of core and of the ring under Miri. Miri interprets the tests and stops at
//! undefined behaviour, such as a read of uninitialized memory, an access outside an allocation, or
//! a shared and a mutable reference to the same memory at the same time.
//!
//! The only `unsafe` code of the library of core is the prefetch hint, which is left out under
//! Miri, so this run checks the code of the standard library that core calls. The ring reads and
//! writes shared memory with `unsafe` code; Miri checks the tests that need neither a memory file
//! nor a doorbell, over memory of the process. Interpretation takes some hundred times as long as
//! execution. So each property tries one case ([`CASES`]), and tests marked `cfg_attr(miri,
//! ignore)` are left out.
//!
//! Miri is a component of the nightly toolchain; rustup installs both if they are missing. The verb
//! fails if the build or a test fails, or if rustup cannot install them.

use anyhow::Result;

use crate::args;
use crate::nightly::Nightly;
use crate::setup::{self, Use};
use crate::tree::Tree;

/// Runs `miri [FILTER]`: every test of core and of the ring that is not left out under Miri, or
/// those of them whose name contains the filter. Fails for the reasons that the module names.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    let filter = args::filter("miri", words)?;
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
        // Properties read their number of cases from the environment.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .env("PROPTEST_CASES", CASES)
        .run()
}

const CORE: &str = "netnice-core";
const RING: &str = "netnice-ring";
const CASES: &str = "1";
