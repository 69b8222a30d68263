use super::*;

const GOOD: &str = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s";
const BAD: &str = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s";

#[test]
fn reads_what_the_runner_says() {
    let good = Closing {
        failed_runner: false,
        passed: 12,
        failed: 0,
        ignored: 1,
        second: 0,
        took: Duration::from_millis(20),
    };
    assert_eq!(Closing::parse(GOOD), Some(good));
    let bad = Closing {
        failed_runner: true,
        passed: 3,
        failed: 2,
        ignored: 0,
        second: 0,
        took: Duration::from_secs(1),
    };
    assert_eq!(Closing::parse(BAD), Some(bad));
    assert_eq!(Closing::parse("test limits::holds ... ok"), None);
}

#[test]
fn adds_up_and_names_the_runner() {
    let mut ledger = Ledger::default();
    ledger.line("\u{1b}[1m\u{1b}[32m     Running\u{1b}[0m unittests src/lib.rs (target/debug/deps/netnice_core-0a1b2c)");
    ledger.line(GOOD);
    ledger.line("   Doc-tests netnice_core");
    ledger.line(GOOD);
    ledger.took("unit tests", Duration::from_secs(61));
    let text = ledger.to_string();
    assert!(text.contains("documentation, 0.0 s\n"), "{text}");
    assert!(text.contains("    61 s  unit tests\n"), "{text}");
    assert!(
        text.contains("netnice_core: unittests src/lib.rs"),
        "{text}"
    );
    assert!(text.contains("netnice_core: documentation"), "{text}");
    assert!(
        text.ends_with("test result: ok. 24 passed; 0 failed; 2 ignored"),
        "{text}"
    );
}

#[test]
fn any_failure_fails_the_whole() {
    let mut failed = Ledger::default();
    failed.line(GOOD);
    failed.line(BAD);
    assert!(
        failed
            .to_string()
            .ends_with("test result: FAILED. 15 passed; 2 failed; 1 ignored")
    );

    let mut broken = Ledger::default();
    broken.line(GOOD);
    broken.broke("unit tests");
    assert!(
        broken.total().failed_runner,
        "a build that failed has no closing line"
    );
    assert!(
        Ledger::default().total().failed_runner,
        "a run of nothing proves nothing"
    );
}

const LIMITS: &str = "     Running tests/limits.rs (target/release/deps/limits-8c3ab61b)";
/// As the runner writes it: what each said, then their names.
const TWO_FAILED: &str = "
failures:

---- down stdout ----
    thread 'down' panicked

failures:
    down
    up
";

fn two_failed() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.line(LIMITS);
    TWO_FAILED.lines().for_each(|line| ledger.line(line));
    ledger.line(BAD);
    ledger
}

#[test]
fn a_test_that_passes_when_it_runs_again_is_forgiven_and_told_of() {
    use std::os::unix::process::ExitStatusExt;
    let mut ledger = two_failed();
    ledger.ended("system tests", std::process::ExitStatus::from_raw(101 << 8));
    let names = ["down", "up"].map(|name| ("limits".to_owned(), name.to_owned()));
    assert_eq!(ledger.failures(), names);
    ledger.forgive("limits", "up");
    assert!(ledger.total().failed_runner, "one is left");
    ledger.forgive("limits", "up");
    ledger.forgive("other", "down");
    assert!(ledger.total().failed_runner, "neither is it");
    ledger.forgive("limits", "down");
    assert!(
        ledger.to_string().ends_with(
            "test result: ok. 5 passed; 0 failed; 0 ignored; 2 passed at the second try"
        ),
        "{ledger}"
    );
}

#[test]
fn a_runner_that_was_killed_is_not_forgiven() {
    use std::os::unix::process::ExitStatusExt;
    let failed = std::process::ExitStatus::from_raw(101 << 8);
    let mut ledger = two_failed();
    ledger.line("     Running tests/shell.rs (target/release/deps/shell-0a)");
    ledger.ended("system tests", failed);
    for test in ["up", "down"] {
        ledger.forgive("limits", test);
    }
    assert!(ledger.total().failed_runner, "{ledger}");

    let mut unbuilt = Ledger::default();
    unbuilt.line(GOOD);
    unbuilt.ended("unit tests", failed);
    assert!(unbuilt.total().failed_runner, "{unbuilt}");

    let mut later = two_failed();
    later.ended("system tests", failed);
    later.ended("more of them", failed);
    for test in ["up", "down"] {
        later.forgive("limits", test);
    }
    assert!(later.total().failed_runner, "{later}");
}
