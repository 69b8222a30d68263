use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

fn outcome_of(bytes: &[u8]) -> String {
    match bytes.len() % 2 {
        0 => "even".to_owned(),
        _ => "odd-length".to_owned(),
    }
}

/// Many values of a strategy, the same in every run.
fn values<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    let mut next = || strategy.new_tree(&mut runner).expect("a value").current();
    (0..500).map(|_| next()).collect()
}

#[test]
fn a_file_name_holds_an_outcome_and_a_number() {
    corpus().replay(outcome_of, &["even", "odd-length"]);
}

#[test]
#[should_panic(expected = "odd-length-1.bin")]
fn an_unexpected_outcome_fails_with_the_file_name() {
    corpus().replay(|_| "even".to_owned(), &[]);
}

#[test]
#[should_panic(expected = "no kept input has the outcome prime")]
fn a_missing_outcome_fails_with_its_name() {
    corpus().replay(outcome_of, &["even", "prime"]);
}

#[test]
#[should_panic(expected = ".rs: the file name is not an outcome and a number")]
fn a_file_with_another_name_is_refused() {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
}

/// All results of removing one byte.
fn without_one(bytes: &[u8]) -> Vec<Vec<u8>> {
    let parts = (0..bytes.len()).map(|at| [&bytes[..at], &bytes[at + 1..]].concat());
    parts.collect()
}

#[test]
fn near_returns_inputs_unchanged_and_with_each_kind_of_change() {
    let all = values(corpus().near());
    for kept in [&b"ab"[..], b"", b"abcde"] {
        assert!(all.iter().any(|bytes| bytes == kept), "{kept:?}");
    }
    let kept = b"abcde";
    let differs = |bytes: &[u8]| kept.iter().zip(bytes).filter(|(a, b)| a != b).count();
    let is_set = |bytes: &[u8]| bytes.len() == kept.len() && differs(bytes) == 1;
    assert!(all.iter().any(|bytes| is_set(bytes)));
    assert!(all.iter().any(|bytes| without_one(kept).contains(bytes)));
    assert!(
        all.iter()
            .any(|bytes| without_one(bytes).contains(&kept.to_vec()))
    );
    let longest = all.iter().map(Vec::len).max();
    assert!(longest < Some(kept.len() + CHANGES.end), "{longest:?}");
}

#[test]
fn some_returns_the_requested_number_of_unchanged_inputs() {
    let all = values(corpus().some(1..4));
    for count in 1..4 {
        assert!(all.iter().any(|some| some.len() == count), "{count}");
    }
    let kept = [&b"ab"[..], b"", b"abcde"];
    assert!(all.iter().flatten().all(|one| kept.contains(&&one[..])));
}
