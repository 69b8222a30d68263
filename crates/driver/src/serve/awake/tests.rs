use std::io::{Read, Seek};

use super::*;

const MS: u64 = 1_000_000;

/// Requests into a file, and a reader of the requests so far.
fn asking() -> (Awake, impl FnMut() -> Vec<i32>) {
    let path = std::env::temp_dir().join(format!(
        "netnice-awake-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let wish = File::create(&path).expect("a file");
    let mut seen = File::open(&path).expect("the same");
    std::fs::remove_file(&path).expect("removed");
    let awake = Awake {
        wish: Some(wish),
        ..Awake::new()
    };
    let read = move || {
        let mut bytes = Vec::new();
        seen.rewind().expect("a file");
        seen.read_to_end(&mut bytes).expect("read");
        let words = bytes.chunks_exact(4);
        words
            .map(|word| i32::from_ne_bytes(word.try_into().expect("four")))
            .collect()
    };
    (awake, read)
}

#[test]
fn processors_are_kept_awake_from_a_packet_on_until_no_more_come() {
    let (mut awake, mut asked) = asking();
    let (start, later) = (Instant(1_000 * MS), |ms: u64| Instant((1_000 + ms) * MS));
    assert_eq!(awake.rests(start, None), None);
    assert!(asked().is_empty());
    // A packet each millisecond, with and without a known next departure.
    for ms in 0..100 {
        awake.left(later(ms));
        let next = (ms % 2 == 0).then(|| later(ms + 1));
        assert_eq!(awake.rests(later(ms), next), Some(later(ms + 20)));
        assert!(awake.is_asked());
    }
    assert_eq!(asked(), [0]);
    assert_eq!(awake.rests(later(118), None), Some(later(119)));
    assert_eq!(awake.rests(later(119), None), None);
    assert_eq!(asked(), [0, WHATEVER]);
    assert!(!awake.is_asked());
}

#[test]
fn packets_that_are_far_apart_are_slept_for() {
    let (mut awake, mut asked) = asking();
    for second in 1..10 {
        let now = Instant(1_000 * MS * second);
        awake.left(now);
        let next = Some(Instant(now.0 + 1_000 * MS));
        assert_eq!(awake.rests(now, next), None);
    }
    assert!(asked().is_empty());
}

#[test]
fn where_nothing_can_be_asked_they_sleep() {
    let mut awake = Awake::new();
    awake.left(Instant(MS));
    assert_eq!(awake.rests(Instant(MS), None), None);
    assert!(!awake.is_asked());
}
