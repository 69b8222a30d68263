//! Tests of the history: the content of points, rows of seconds and minutes, and the bound on
//! memory.

use netnice_core::meter::Meter;
use netnice_core::units::{Instant, Nanos};

use super::{History, MAX_MINUTES, MAX_POINTS, MAX_SECONDS, Point, Step};

fn at(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

fn sent(bytes: u64) -> Meter {
    let mut meter = Meter::default();
    meter.up.sent_bytes = bytes;
    meter.down.sent_bytes = 2 * bytes;
    meter.up.dropped_packets = bytes / 100;
    meter.up.queue_delay_ns = 7_000_000;
    meter
}

#[test]
fn a_point_has_the_changes_since_the_one_before() {
    let mut history = History::default();
    history.add(at(1000), &[(1, sent(500))]);
    assert!(
        history.of(1, Step::Second).is_empty(),
        "one reading is no time"
    );
    history.add(at(2000), &[(1, sent(1500)), (2, sent(7))]);
    history.add(at(2100), &[(1, sent(1600))]);
    history.add(at(5000), &[(1, sent(2500)), (2, sent(7))]);
    let point = |at_ms, time_ms, bytes: u64, drops| Point {
        at: at(at_ms),
        time_ms,
        drops,
        bytes: [bytes, 2 * bytes],
        wait_us: 7000,
    };
    assert_eq!(
        history.of(1, Step::Second),
        [point(2000, 1000, 1000, 10), point(5000, 3000, 1000, 10)],
        "an early reading is merged into the next; a late one covers its time"
    );
    assert_eq!(history.of(2, Step::Second), [point(5000, 3000, 0, 0)]);
    assert_eq!(history.of(1, Step::Minute), [point(5000, 4000, 2000, 20)]);
    history.add(at(6000), &[(1, sent(100))]);
    assert_eq!(
        history.of(1, Step::Second)[2].bytes,
        [100, 200],
        "counters that began anew"
    );
    assert!(
        history.of(2, Step::Second).is_empty(),
        "its past goes with a target"
    );
}

#[test]
fn seconds_and_minutes_agree_and_are_bounded() {
    let mut history = History::default();
    let hours = 7 * 3600_u64;
    for second in 0..=hours {
        history.add(at(second * 1000), &[(1, sent(second * 1000))]);
    }
    let seconds = history.of(1, Step::Second);
    let minutes = history.of(1, Step::Minute);
    assert_eq!((seconds.len(), minutes.len()), (MAX_SECONDS, MAX_MINUTES));
    assert!(
        minutes
            .iter()
            .all(|m| m.time_ms == 60_000 && m.bytes == [60_000, 120_000])
    );
    let last_two: u64 = seconds.iter().map(|s| s.bytes[0]).sum();
    assert_eq!(last_two, 120_000);
    let spans: u64 = minutes.windows(2).map(|w| w[1].at.since(w[0].at).0).sum();
    assert_eq!(
        Nanos(spans),
        Nanos::from_secs(60 * (MAX_MINUTES as u64 - 1))
    );
}

#[test]
fn many_targets_share_the_memory_with_shorter_histories() {
    let mut history = History::default();
    let many = 20_000_u32;
    for second in 0..40 {
        let meters: Vec<(u32, Meter)> = (0..many).map(|id| (id, sent(second))).collect();
        history.add(at(second * 1000), &meters);
    }
    let points: usize = (0..many)
        .map(|id| history.of(id, Step::Second).len() + history.of(id, Step::Minute).len())
        .sum();
    assert!(points <= MAX_POINTS, "{points}");
    assert!(history.of(7, Step::Second).len() >= 5);
    assert!(size_of::<Point>() <= 40);
    // The remaining targets may have more points again.
    for second in 40..400 {
        history.add(at(second * 1000), &[(7, sent(second))]);
    }
    assert_eq!(history.of(7, Step::Second).len(), MAX_SECONDS);
}
