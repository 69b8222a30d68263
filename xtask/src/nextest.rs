//! Runs tests with cargo-nextest: a process for each test, groups, time limits, and a report of
//! every outcome.
//!
//! `.config/nextest.toml` defines which tests run in parallel and which alone. This module adds a
//! second try: if at most [`MAX_FLAKY`] + 1 tests failed, they run again *after* all others, one at
//! a time. A test that passes then is flaky: the machine or another test disturbed it. The outcomes
//! come from nextest's report ([`crate::results`]). A run fails if cargo-nextest cannot be
//! installed or run, or if its report cannot be read; a failed test is an outcome and no error.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cargo_tools::CargoTool;
use crate::results::{self, MAX_FLAKY, Results, TestResult};
use crate::step::Step;
use crate::tree::Tree;

/// Installs cargo-nextest if it is missing, and returns its path. Fails if cargo cannot install it.
pub fn ensure(tree: &Tree) -> Result<PathBuf> {
    NEXTEST.ensure(tree)
}

/// One step of a run of tests: a `cargo nextest run`, with a second one for the tests that failed.
pub struct Run<'a> {
    /// The name of this step in the summary.
    pub what: &'a str,
    /// The profile of `.config/nextest.toml`.
    pub profile: &'a str,
    /// Arguments that choose the tests: packages, targets, cargo's profile, filters.
    pub words: Vec<String>,
}

impl Run<'_> {
    /// Runs the tests in the environment that `prepared` gives a step. Then, if at most
    /// [`MAX_FLAKY`] + 1 failed, runs the failed ones again, one at a time. Adds the outcomes to
    /// `results`. Fails if cargo-nextest cannot be installed or run, if `prepared` fails, or if the
    /// report cannot be read; a failed test is an outcome and no error.
    pub fn run(
        &self,
        tree: &Tree,
        prepared: impl Fn(Step) -> Result<Step>,
        results: &mut Results,
    ) -> Result<()> {
        let program = ensure(tree)?;
        let command = || prepared(Step::new(&program).folder(&tree.root));
        let mut own = Results::default();
        let (tests, broken) = self.run_once(tree, command()?, &[])?;
        own.add(tests);
        let failed = own.failed();
        if !failed.is_empty() && failed.len() <= MAX_FLAKY + 1 {
            println!("\n{} failed: a second try, alone", failed.len());
            let expression = filter_expression(&failed);
            let alone = ["--test-threads=1", "-E", &expression];
            let (second, _) = self.run_once(tree, command()?, &alone)?;
            own.add_second_try(&second);
        }
        if broken {
            own.add_broken(self.what);
        }
        results.merge(own);
        Ok(())
    }

    /// Runs the tests. The second value is true if the run failed for another reason than a failed
    /// test.
    fn run_once(
        &self,
        tree: &Tree,
        command: Step,
        more: &[&str],
    ) -> Result<(Vec<TestResult>, bool)> {
        let report = report_in(&store(&tree.root), self.profile);
        // A run that wrote no report must not return the report of an earlier run.
        match std::fs::remove_file(&report) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", report.display()))?;
            }
            _ => {}
        }
        let status = command
            .args(["nextest", "run", "--profile", self.profile])
            .args(["--no-tests=pass"])
            .args(&self.words)
            .args(more)
            .status()?;
        let tests = match std::fs::read_to_string(&report) {
            Ok(text) => results::read_junit(&text)?,
            Err(_) => Vec::new(),
        };
        let failed = tests
            .iter()
            .any(|test| test.outcome == results::Outcome::Failed);
        Ok((tests, !status.success() && !failed))
    }
}

/// The folder into which nextest writes its reports, for the tree at `root`.
pub fn store(root: &Path) -> PathBuf {
    root.join("target/nextest")
}

/// The path of the JUnit report that a run with the nextest profile `profile` writes into `store`.
pub fn report_in(store: &Path, profile: &str) -> PathBuf {
    store.join(profile).join("junit.xml")
}

/// The filter expression that selects these tests and no others.
fn filter_expression(tests: &[&TestResult]) -> String {
    let each: Vec<String> = tests
        .iter()
        .map(|test| format!("(binary_id(={}) & test(={}))", test.program, test.name))
        .collect();
    each.join(" | ")
}

/// The nextest in use. It is built without optimisation, which takes a third of the build time,
/// because nextest mostly waits for tests.
const NEXTEST: CargoTool = CargoTool {
    name: "cargo-nextest",
    version: "0.9.151",
    build: &["--no-default-features", "--debug"],
};

#[cfg(test)]
mod tests;
