use netnice_api::{CountersDoc, ShowDoc, TargetDoc};
use netnice_core::units::Amount;

use super::{Pace, paces};

/// One target that has sent so much until then.
fn doc(at_ns: u64, sent_bytes: u64, dropped: u64) -> ShowDoc {
    let up = [("sent_bytes", sent_bytes), ("dropped_packets", dropped)];
    ShowDoc {
        targets: vec![TargetDoc {
            target: "pid:7".into(),
            counters: CountersDoc {
                at_ns,
                up: up.map(|(name, n)| (name.to_string(), n)).into(),
                up_rate: Some(77),
                ..CountersDoc::default()
            },
            ..TargetDoc::default()
        }],
        ..ShowDoc::default()
    }
}

#[test]
fn a_pace_is_what_passed_in_the_daemons_own_time() {
    let pace = |rate, drops| Pace {
        rate: Amount(rate),
        drops,
    };
    let second = 1_000_000_000;
    let start = doc(5 * second, 1000, 10);
    let cases = [
        (
            "the first table",
            None,
            doc(6 * second, 2000, 10),
            pace(77, 0),
        ),
        (
            "a second",
            Some(&start),
            doc(6 * second, 2000, 15),
            pace(8000, 5),
        ),
        (
            "half a second",
            Some(&start),
            doc(11 * second / 2, 2000, 15),
            pace(16_000, 10),
        ),
        (
            "three seconds",
            Some(&start),
            doc(8 * second, 2000, 12),
            pace(2666, 0),
        ),
        (
            "counters that began anew",
            Some(&start),
            doc(6 * second, 10, 15),
            pace(77, 0),
        ),
        ("the same reading", Some(&start), start.clone(), pace(77, 0)),
        (
            "much",
            Some(&start),
            doc(6 * second, 1000 + (1 << 37), 10),
            pace(8 << 37, 0),
        ),
    ];
    for (why, before, now, expected) in cases {
        let paces = paces(before, &now);
        assert_eq!(paces["pid:7"][0], expected, "{why}");
        assert_eq!(paces["pid:7"][1], Pace::default(), "{why}");
    }
}

#[test]
fn a_target_that_came_since_has_what_the_daemon_measured() {
    let nobody = ShowDoc::default();
    assert_eq!(
        paces(Some(&nobody), &doc(9, 9, 9))["pid:7"][0].rate,
        Amount(77)
    );
}
