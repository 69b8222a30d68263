//! Runs the tests of the ring under loom. loom executes the threads of a test in every possible
//! order, with every value that each may read under the memory model (one test limits the number of
//! preemptions). The tests are in `crates/ring/src/model.rs`.
//!
//! A compiler flag for the whole build replaces the atomics by those of loom. So this build has a
//! target folder of its own; otherwise each change of the flag would rebuild everything. The verb
//! fails if the build or a test fails.

use anyhow::Result;

use crate::args;
use crate::setup::{self, Use};
use crate::suite;
use crate::tree::Tree;

/// Runs `loom [FILTER]`: all tests, or those whose name contains the filter. Fails if a test fails
/// or the build does.
pub fn run(tree: &Tree, words: &[&str]) -> Result<()> {
    let filter = args::filter("loom", words)?;
    setup::ensure(tree, Use::Build)?;
    suite::cargo(tree)
        .args(["test", "--release", "--package", RING, "--lib"])
        .args(filter)
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", tree.target.join("loom"))
        .run()
}

const RING: &str = "netnice-ring";
