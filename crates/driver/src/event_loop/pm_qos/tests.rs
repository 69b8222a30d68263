use std::io::{Read, Seek};

use super::*;

const MS: u64 = 1_000_000;

/// Requests into a file, and a reader of the requests so far.
fn request_into_a_file() -> (LatencyRequest, impl FnMut() -> Vec<i32>) {
    let path = std::env::temp_dir().join(format!(
        "netnice-awake-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let device = File::create(&path).expect("a file");
    let mut seen = File::open(&path).expect("the same");
    std::fs::remove_file(&path).expect("removed");
    let request = LatencyRequest {
        device: Some(device),
        ..LatencyRequest::new()
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
    (request, read)
}

#[test]
fn processors_are_kept_awake_while_packets_follow_each_other() {
    let (mut request, mut requests) = request_into_a_file();
    let (start, later) = (Instant(1_000 * MS), |ms: u64| Instant((1_000 + ms) * MS));
    assert_eq!(request.before_sleep(start, None), None);
    assert!(requests().is_empty());
    // A packet each millisecond, with and without a known next departure.
    for ms in 0..100 {
        request.packets_left(later(ms));
        let next = (ms % 2 == 0).then(|| later(ms + 1));
        assert_eq!(request.before_sleep(later(ms), next), Some(later(ms + 20)));
        assert!(request.is_held());
    }
    assert_eq!(requests(), [0]);
    assert_eq!(request.before_sleep(later(118), None), Some(later(119)));
    assert_eq!(request.before_sleep(later(119), None), None);
    assert_eq!(requests(), [0, ANY_LATENCY]);
    assert!(!request.is_held());
}

#[test]
fn processors_may_sleep_between_packets_that_are_far_apart() {
    let (mut request, mut requests) = request_into_a_file();
    for second in 1..10 {
        let now = Instant(1_000 * MS * second);
        request.packets_left(now);
        let next = Some(Instant(now.0 + 1_000 * MS));
        assert_eq!(request.before_sleep(now, next), None);
    }
    assert!(requests().is_empty());
}

#[test]
fn without_the_device_no_request_is_made() {
    let mut request = LatencyRequest::new();
    request.packets_left(Instant(MS));
    assert_eq!(request.before_sleep(Instant(MS), None), None);
    assert!(!request.is_held());
}
