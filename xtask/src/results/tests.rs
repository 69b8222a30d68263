use super::*;

/// A report in the form of cargo-nextest 0.9.151: a pass, a failure, a flaky test of a profile with
/// retries, and a test that prints why it cannot run.
const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4" failures="1" errors="0" time="3.2">
  <testsuite name="netnice-lab::limits" tests="4" disabled="0" errors="0" failures="1">
    <testcase name="holds" classname="netnice-lab::limits" time="1.500">
      <system-out>running 1 test</system-out>
    </testcase>
    <testcase name="breaks" classname="netnice-lab::limits" time="0.500">
      <failure message="thread panicked" type="test failure with exit code 101">at limits.rs</failure>
    </testcase>
    <testcase name="wavers" classname="netnice-lab::limits" time="0.200">
      <flakyFailure message="thread panicked" type="test failure with exit code 101"/>
    </testcase>
    <testcase name="lacks" classname="netnice-lab::limits" time="0.010">
      <system-out>running 1 test
test skipped: this kernel has no MPTCP
test lacks ... ok</system-out>
    </testcase>
  </testsuite>
</testsuites>"#;

fn tests() -> Vec<TestResult> {
    read_junit(REPORT).expect("a report")
}

/// Results in which all tests passed except those with these outcomes.
fn results(outcomes: &[(&str, Outcome)]) -> Results {
    let mut results = Results::default();
    results.add(vec![test("good", Outcome::Passed)]);
    for (name, outcome) in outcomes {
        results.add(vec![test(name, outcome.clone())]);
    }
    results
}

fn test(name: &str, outcome: Outcome) -> TestResult {
    TestResult {
        program: "p".to_owned(),
        name: name.to_owned(),
        outcome,
        took: Duration::ZERO,
    }
}

fn closing_line(results: &Results) -> String {
    let text = results.summary(&KnownFlaky::default()).to_string();
    text.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_report_gives_all_four_outcomes() {
    let outcomes: Vec<_> = tests()
        .into_iter()
        .map(|test| (test.name, test.outcome))
        .collect();
    let expected = [
        ("holds", Outcome::Passed),
        ("breaks", Outcome::Failed),
        ("wavers", Outcome::Flaky),
        (
            "lacks",
            Outcome::Skipped("this kernel has no MPTCP".to_owned()),
        ),
    ];
    assert_eq!(
        outcomes,
        expected.map(|(name, outcome)| (name.to_owned(), outcome))
    );
    assert!(read_junit("no report").is_err());
}

#[test]
fn the_closing_line_counts_each_outcome_separately() {
    let mut results = Results::default();
    results.add(tests());
    assert_eq!(
        closing_line(&results),
        "1 passed, 1 failed, 1 skipped; 1 flaky: netnice-lab::limits wavers \
         (add each to flaky.toml with its cause)"
    );
    let good = self::results(&[]);
    assert_eq!(closing_line(&good), "1 passed, 0 failed, 0 skipped");
    assert!(good.faults(&KnownFlaky::default()).is_empty());
}

#[test]
fn a_test_that_passes_at_the_second_try_is_flaky_and_does_not_fail_the_run() {
    let mut results = results(&[("a", Outcome::Failed)]);
    assert_eq!(results.faults(&KnownFlaky::default()), ["1 failed"]);
    results.add_second_try(&[test("a", Outcome::Passed)]);
    assert!(results.faults(&KnownFlaky::default()).is_empty());
    assert!(closing_line(&results).starts_with("1 passed, 0 failed, 0 skipped; 1 flaky: p a"));
}

#[test]
fn a_test_that_fails_again_or_is_skipped_at_the_second_try_has_failed() {
    for second in [Outcome::Failed, Outcome::Skipped(String::new())] {
        let mut results = results(&[("a", Outcome::Failed)]);
        results.add_second_try(&[test("a", second)]);
        assert_eq!(results.faults(&KnownFlaky::default()), ["1 failed"]);
    }
}

#[test]
fn a_third_flaky_test_fails_the_run() {
    let flaky = |names: &[&str]| {
        let all: Vec<_> = names.iter().map(|name| (*name, Outcome::Flaky)).collect();
        results(&all).faults(&KnownFlaky::default())
    };
    assert!(flaky(&["a", "b"]).is_empty());
    assert_eq!(
        flaky(&["a", "b", "c"]),
        ["3 tests are flaky, at most 2 may be"]
    );
}

#[test]
fn a_flaky_test_that_is_listed_already_fails_the_run() {
    let listed = toml::from_str(
        "[[test]]\nprogram = 'p'\nname = 'a'\nsince = '2026-11-22'\ncause = 'the meter'\n",
    )
    .expect("a list");
    let faults = results(&[("a", Outcome::Flaky)]).faults(&listed);
    assert_eq!(
        faults,
        ["p a is flaky again; flaky.toml lists it already (the meter)"]
    );
    assert!(results(&[("b", Outcome::Flaky)]).faults(&listed).is_empty());
}

#[test]
fn a_broken_step_and_a_run_of_nothing_fail() {
    let mut broken = results(&[]);
    broken.add_broken("unit tests");
    assert_eq!(
        broken.faults(&KnownFlaky::default()),
        ["failed step: unit tests"]
    );
    let nothing = Results::default();
    assert_eq!(nothing.faults(&KnownFlaky::default()), ["no test passed"]);
}

#[test]
fn the_lab_prints_the_mark_that_is_read_here() {
    let tree = crate::tree::Tree::find().expect("cargo metadata");
    let testbed =
        std::fs::read_to_string(tree.root.join("crates/lab/src/testbed.rs")).expect("the lab");
    assert!(testbed.contains(&format!("\"{SKIP_MARK}{{reason}}\"")));
}
