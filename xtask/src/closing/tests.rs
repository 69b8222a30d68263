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
        took: Duration::from_millis(20),
    };
    assert_eq!(Closing::parse(GOOD), Some(good));
    let bad = Closing {
        failed_runner: true,
        passed: 3,
        failed: 2,
        ignored: 0,
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
