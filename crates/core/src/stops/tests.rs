use alloc::string::ToString;

use super::*;

#[test]
fn a_stop_is_recorded_from_20_us_on() {
    let at = |micros: u64| Instant(1_000_000 + micros * 1_000);
    assert_eq!(woken(at(0), Instant(at(20).0 - 1)), None);
    let stop = woken(at(0), at(20)).expect("a stop");
    assert_eq!((stop.start, stop.end()), (at(0), at(20)));
    assert_eq!(stop.kind, StopKind::Late);
    // A thread that woke before the time, by an event.
    assert_eq!(woken(at(50), at(0)), None);
    assert_eq!(still(at(0), at(19)), None);
    assert_eq!(
        still(at(0), at(300)).map(|stop| stop.length.0),
        Some(300_000)
    );
}

#[test]
fn work_excuses_nothing_that_it_explains() {
    let (from, explained) = (Instant(5_000), Nanos(30_000));
    assert_eq!(slow(from, Instant(54_999), explained), None);
    let stop = slow(from, Instant(55_000), explained).expect("a stop");
    assert_eq!((stop.start, stop.length), (Instant(35_000), Nanos(20_000)));
    assert_eq!(slow(from, Instant(0), explained), None);
    assert_eq!(slow(Instant(u64::MAX), Instant(u64::MAX), explained), None);
}

#[test]
fn counts_add_up() {
    let mut counts = StopCounts::default();
    for (kind, micros) in [
        (StopKind::Late, 20),
        (StopKind::Slow, 70),
        (StopKind::Late, 30),
    ] {
        counts.add(&Stop {
            start: Instant(1),
            length: Nanos::from_micros(micros),
            kind,
        });
    }
    assert_eq!(counts.by_kind, [2, 0, 1]);
    assert_eq!(counts.number(), 3);
    assert_eq!(counts.total, Nanos::from_micros(120));
    assert_eq!(counts.longest, Nanos::from_micros(70));
}

#[test]
fn the_text_of_a_stop_is_read_back() {
    for kind in StopKind::ALL {
        let stop = Stop {
            start: Instant(u64::MAX),
            length: Nanos(25_000),
            kind,
        };
        assert_eq!(stop.to_string().parse(), Ok(stop));
    }
    for text in [
        "",
        "1 2",
        "1 2 asleep",
        "1 2 late 3",
        "-1 2 late",
        "1  2 late",
    ] {
        assert_eq!(text.parse::<Stop>(), Err(NotAStop), "{text}");
    }
}
