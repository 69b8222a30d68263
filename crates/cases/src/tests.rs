use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

fn judged(bytes: &[u8]) -> String {
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
fn a_name_is_an_outcome_and_a_number() {
    corpus().replay(judged, &["even", "odd-length"]);
}

#[test]
#[should_panic(expected = "odd-length-1.bin")]
fn another_outcome_is_told_with_the_file() {
    corpus().replay(|_| "even".to_owned(), &[]);
}

#[test]
#[should_panic(expected = "nothing is kept of which prime comes")]
fn an_outcome_that_is_not_there_is_told() {
    corpus().replay(judged, &["even", "prime"]);
}

#[test]
#[should_panic(expected = ".rs is no outcome and a number")]
fn what_is_named_otherwise_is_refused() {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
}

/// All results of removing one byte.
fn without_one(bytes: &[u8]) -> Vec<Vec<u8>> {
    let parts = (0..bytes.len()).map(|at| [&bytes[..at], &bytes[at + 1..]].concat());
    parts.collect()
}

#[test]
fn near_is_each_as_it_is_and_changed_in_each_way() {
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
fn some_are_so_many_as_they_are() {
    let all = values(corpus().some(1..4));
    for count in 1..4 {
        assert!(all.iter().any(|some| some.len() == count), "{count}");
    }
    let kept = [&b"ab"[..], b"", b"abcde"];
    assert!(all.iter().flatten().all(|one| kept.contains(&&one[..])));
}
