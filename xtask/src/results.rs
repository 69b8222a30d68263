//! Collects the outcome of each test, and judges a run ([`Results::faults`]).
//!
//! | outcome | meaning | counted as |
//! |---|---|---|
//! | passed | the test passed at the first try | passed |
//! | failed | the test failed, and did not pass alone (or was not tried again) | failed |
//! | flaky | the test failed, then passed alone | flaky |
//! | skipped | the machine lacks something that the test needs; the test names it | skipped |
//!
//! A run passes if at least one test passed, no test failed, no step failed without a failed test
//! (a build, for example), at most [`MAX_FLAKY`] tests were flaky, and none of these is listed in
//! `flaky.toml` ([`crate::flaky`]).
//!
//! The outcomes come from the JUnit report of cargo-nextest. A test that cannot run prints
//! [`SKIP_MARK`] and the reason on a line of its own, and returns. Rust's test harness has no such
//! outcome, so the report counts the test as passed, and this module corrects that by the mark.
//! Reading fails if the text is not a JUnit report; nothing else here fails.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use quick_junit::{Report, TestCase, TestCaseStatus};

use crate::flaky::KnownFlaky;

/// The outcome of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The test passed at the first try.
    Passed,
    /// The test failed, and did not pass in a second try.
    Failed,
    /// The test failed, then passed alone.
    Flaky,
    /// The test could not run on this machine. Holds the reason.
    Skipped(String),
}

/// One test of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestResult {
    /// The test program as cargo-nextest names it, for example `netnice-lab::limits`.
    pub program: String,
    /// The path of the test inside its program.
    pub name: String,
    /// The outcome, after a second try if there was one.
    pub outcome: Outcome,
    /// Duration of the first try.
    pub took: Duration,
}

impl TestResult {
    /// The name in output: the program, a blank, and the test's path inside the program.
    pub fn id(&self) -> String {
        format!("{} {}", self.program, self.name)
    }
}

/// Reads the report of one run of cargo-nextest.
///
/// # Errors
/// If the text is not a JUnit report.
pub fn read_junit(text: &str) -> Result<Vec<TestResult>> {
    let report = Report::deserialize_from_str(text).context("not a JUnit report")?;
    let programs = report.test_suites.iter();
    Ok(programs
        .flat_map(|program| {
            program.test_cases.iter().map(|case| TestResult {
                program: program.name.to_string(),
                name: case.name.to_string(),
                outcome: outcome(case),
                took: case.time.unwrap_or_default(),
            })
        })
        .collect())
}

fn outcome(case: &TestCase) -> Outcome {
    match &case.status {
        TestCaseStatus::NonSuccess { .. } => Outcome::Failed,
        TestCaseStatus::Success { flaky_runs } if !flaky_runs.is_empty() => Outcome::Flaky,
        TestCaseStatus::Success { .. } => {
            let outputs = [&case.system_out, &case.system_err].into_iter().flatten();
            let reason = outputs.flat_map(|text| text.lines()).find_map(skip_reason);
            reason.map_or(Outcome::Passed, Outcome::Skipped)
        }
        TestCaseStatus::Skipped { message, .. } => {
            Outcome::Skipped(message.as_ref().map_or_else(String::new, |m| m.to_string()))
        }
    }
}

fn skip_reason(line: &str) -> Option<String> {
    let (_, reason) = line.split_once(SKIP_MARK)?;
    Some(reason.trim().to_owned())
}

/// The outcomes of all steps of a run.
#[derive(Debug, Default)]
pub struct Results {
    tests: Vec<TestResult>,
    /// Steps that failed without a failed test: a failed build, a killed runner.
    broken: Vec<String>,
    /// Time of each step.
    steps: Vec<(String, Duration)>,
}

impl Results {
    /// Adds the outcomes of a step's tests.
    pub fn add(&mut self, tests: Vec<TestResult>) {
        self.tests.extend(tests);
    }

    /// Adds a step that failed without a failed test.
    pub fn add_broken(&mut self, step: impl Into<String>) {
        self.broken.push(step.into());
    }

    /// Adds the time that a step took.
    pub fn add_step(&mut self, step: &str, took: Duration) {
        self.steps.push((step.to_owned(), took));
    }

    /// Adds all outcomes of another part of the run.
    pub fn merge(&mut self, other: Results) {
        self.tests.extend(other.tests);
        self.broken.extend(other.broken);
        self.steps.extend(other.steps);
    }

    /// The failed tests.
    pub fn failed(&self) -> Vec<&TestResult> {
        self.tests_with(|outcome| *outcome == Outcome::Failed)
            .collect()
    }

    /// Adds the outcomes of a second try, alone: a test that failed before and passes now is flaky.
    pub fn add_second_try(&mut self, second: &[TestResult]) {
        for test in self.tests.iter_mut() {
            let again = second
                .iter()
                .find(|again| again.program == test.program && again.name == test.name);
            if let Some(again) = again
                && test.outcome == Outcome::Failed
                && again.outcome == Outcome::Passed
            {
                test.outcome = Outcome::Flaky;
            }
        }
    }

    fn tests_with(&self, is: impl Fn(&Outcome) -> bool) -> impl Iterator<Item = &TestResult> {
        self.tests.iter().filter(move |test| is(&test.outcome))
    }

    fn count(&self, is: impl Fn(&Outcome) -> bool) -> usize {
        self.tests_with(is).count()
    }

    /// The reasons why the run does not pass, one line each; empty if it passes.
    pub fn faults(&self, known: &KnownFlaky) -> Vec<String> {
        let mut faults = Vec::new();
        let failed = self.failed();
        if !failed.is_empty() {
            faults.push(format!("{} failed", failed.len()));
        }
        for step in &self.broken {
            faults.push(format!("failed step: {step}"));
        }
        let flaky: Vec<_> = self
            .tests_with(|outcome| *outcome == Outcome::Flaky)
            .collect();
        if flaky.len() > MAX_FLAKY {
            faults.push(format!(
                "{} tests are flaky, at most {MAX_FLAKY} may be",
                flaky.len()
            ));
        }
        for test in flaky {
            if let Some(cause) = known.cause(&test.program, &test.name) {
                faults.push(format!(
                    "{} is flaky again; flaky.toml lists it already ({cause})",
                    test.id()
                ));
            }
        }
        if self.count(|outcome| *outcome == Outcome::Passed) == 0 {
            faults.push("no test passed".to_owned());
        }
        faults
    }

    /// The text about a run; its last line is the verdict.
    pub fn summary(&self, known: &KnownFlaky) -> Summary<'_> {
        Summary {
            results: self,
            faults: self.faults(known),
        }
    }
}

/// Text about a run, see [`Results::summary`].
pub struct Summary<'a> {
    results: &'a Results,
    faults: Vec<String>,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let results = self.results;
        let mut slowest: Vec<&TestResult> = results.tests.iter().collect();
        slowest.sort_by_key(|test| std::cmp::Reverse(test.took));
        for test in slowest.iter().take(SHOWN_SLOWEST) {
            writeln!(f, "{:6.1} s  {}", test.took.as_secs_f64(), test.id())?;
        }
        for (step, took) in &results.steps {
            writeln!(f, "{:6.0} s  step: {step}", took.as_secs_f64())?;
        }
        for test in &results.tests {
            if let Outcome::Skipped(reason) = &test.outcome {
                writeln!(f, "skipped  {}: {reason}", test.id())?;
            }
        }
        for test in results.failed() {
            writeln!(f, "FAILED   {}", test.id())?;
        }
        for fault in &self.faults {
            writeln!(f, "the run does not pass: {fault}")?;
        }
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            results.count(|outcome| *outcome == Outcome::Passed),
            results.count(|outcome| *outcome == Outcome::Failed),
            results.count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        )?;
        let flaky: Vec<String> = results
            .tests_with(|outcome| *outcome == Outcome::Flaky)
            .map(TestResult::id)
            .collect();
        match flaky.is_empty() {
            true => Ok(()),
            false => write!(
                f,
                "; {} flaky: {} (add each to flaky.toml with its cause)",
                flaky.len(),
                flaky.join(", ")
            ),
        }
    }
}

/// The text that a test prints before the reason why it cannot run. `netnice_lab::testbed::skip`
/// prints it.
pub const SKIP_MARK: &str = "test skipped: ";
/// Largest number of flaky tests in a run that passes. If more tests are flaky, the fault is in the
/// machine or in the tree, and not in single tests.
pub const MAX_FLAKY: usize = 2;
const SHOWN_SLOWEST: usize = 12;

#[cfg(test)]
mod tests;
