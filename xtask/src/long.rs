//! Runs every test (also under Miri and loom, and by fuzzing), the trial of the packages, and every
//! experiment. This takes hours. The verb fails at the first step that fails; without root, a step
//! fails.

use std::time::Instant;

use anyhow::Result;

use crate::deb;
use crate::flaky::KnownFlaky;
use crate::fuzz;
use crate::loom;
use crate::miri;
use crate::nextest::Run;
use crate::package;
use crate::results::Results;
use crate::suite;
use crate::tree::Tree;

/// Runs, in this order: every test that is not ignored; the tests of core and of the ring under
/// Miri; the ring's tests under loom; every property with new cases for half a minute; every target
/// of `fuzz/` for a minute; the tests of the packaged crates; the build of the Debian packages and
/// their trial; the tests that are too long for every day (`#[ignore]`, optimised); every
/// experiment of the lab. Fails at the first of these steps that fails.
pub fn run(tree: &Tree) -> Result<()> {
    suite::test(tree, &[])?;
    miri::run(tree, &[])?;
    loom::run(tree, &[])?;
    fuzz::run(tree, &["--for", "30"])?;
    fuzz::run(tree, &["--learn", "--for", "60"])?;
    package::run(tree)?;
    deb::run(tree, &["--try"])?;
    let _lock = suite::prepare(tree, "make test-long", suite::release)?;
    let started = Instant::now();
    let mut results = Results::default();
    let long = Run {
        what: "long tests",
        profile: "long",
        words: suite::words("--release --workspace --lib --bins --tests --run-ignored only"),
    };
    suite::run_timed(tree, &long, &mut results)?;
    suite::report(&results, &KnownFlaky::read(&tree.root)?, started)?;
    suite::lab(tree)?.args(["all"]).run()
}
