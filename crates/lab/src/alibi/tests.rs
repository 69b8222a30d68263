use netnice_cases::cases;
use netnice_core::stops::StopKind;
use netnice_core::units::{Instant, Nanos};
use proptest::prelude::*;

use super::*;

fn stop(start: u64, length: u64) -> Stop {
    Stop {
        start: Instant(start),
        length: Nanos(length),
        kind: StopKind::Late,
    }
}

#[test]
fn without_a_stop_nothing_is_excused() {
    let alibi = Alibi::new(&[], 0, 0.9);
    let verdict = alibi.judge([(100, 100), (200, 205), (300, 311)], 10);
    assert_eq!((verdict.unexcused, verdict.excused), (1, 0));
    assert_eq!(alibi.judge_missing(3, 0, 1_000_000, 120).unexcused, 3);
}

#[test]
fn a_packet_is_excused_by_the_stop_that_covers_it_and_by_no_other() {
    // From 1,000 to 1,500, on a link with nothing else to do.
    let alibi = Alibi::new(&[stop(1_000, 500)], 0, 0.0);
    let judge = |due, left| alibi.judge([(due, left)], 10);
    for (due, left) in [(1_000, 1_510), (1_200, 1_510), (990, 1_500), (1_499, 1_510)] {
        assert_eq!(judge(due, left).excused, 1, "{due} {left}");
    }
    for (due, left) in [
        (900, 1_511 + 100), // later than the stop explains
        (1_200, 1_511),     // beyond the bound after the stop
        (1_500, 1_511),     // due when the stop was over
        (900, 1_000),       // left when the stop began
        (5_000, 5_600),     // a stop long ago
        (100, 700),         // a stop that was to come
    ] {
        assert_eq!(judge(due, left).unexcused, 1, "{due} {left}");
    }
    assert_eq!(judge(1_600, 1_610), Verdict::default());
}

#[test]
fn a_message_is_excused_by_stops_between_its_arrival_and_its_end() {
    // One thread was stopped from 1,000 to 1,500, another one from 1,400 to 1,700.
    let alibi = Alibi::new(&[stop(1_000, 500), stop(1_400, 300)], 0, 0.0);
    for (message, excused) in [
        ([900, 2_000, 2_700], true),
        ([900, 2_000, 2_701], false),
        ([1_300, 2_000, 2_400], true),
        ([1_300, 2_000, 2_401], false),
        ([1_700, 2_000, 2_001], false),
    ] {
        let verdict = alibi.judge_messages([message]);
        let expected = (u64::from(!excused), u64::from(excused));
        assert_eq!(
            (verdict.unexcused, verdict.excused),
            expected,
            "{message:?}"
        );
    }
    assert_eq!(
        alibi.judge_messages([[900, 2_000, 2_000]]),
        Verdict::default()
    );
}

#[test]
fn the_catch_up_is_excused_and_ends() {
    // Half of the time is used: a stop of 500 takes 500 to catch up.
    let alibi = Alibi::new(&[stop(1_000, 500)], 0, 0.5);
    assert_eq!(alibi.excuse(1_500, 1_501), 500);
    assert_eq!(alibi.excuse(1_700, 1_701), 300);
    assert_eq!(alibi.excuse(2_000, 2_001), 0);
    assert_eq!(alibi.judge([(1_700, 2_010)], 10).excused, 1);
    assert_eq!(alibi.judge([(1_700, 2_011)], 10).unexcused, 1);
    assert_eq!(alibi.judge([(2_000, 2_011)], 10).unexcused, 1);
    // Three quarters: three times as long.
    let alibi = Alibi::new(&[stop(1_000, 500)], 0, 0.75);
    assert_eq!(alibi.excuse(2_999, 3_000), 0);
    assert_eq!(alibi.excuse(2_250, 2_251), 250);
    // A second stop comes on top of what is left of the first.
    let alibi = Alibi::new(&[stop(1_000, 500), stop(1_700, 100)], 0, 0.5);
    assert_eq!(alibi.excuse(1_800, 1_801), 400);
}

#[test]
fn slow_work_excuses_nothing() {
    let slow = Stop {
        kind: StopKind::Slow,
        ..stop(1_000, 500)
    };
    let alibi = Alibi::new(&[slow], 0, 0.5);
    assert_eq!(alibi.judge([(1_000, 1_510)], 10).unexcused, 1);
    assert_eq!(alibi.number(), 0);
}

#[test]
fn a_busy_link_loses_what_a_stop_takes_beyond_the_work_ahead() {
    let alibi = Alibi::new(&[stop(1_000, 500), stop(3_000, 20)], 0, 0.0);
    assert_eq!(alibi.taken(0, 5_000, 20), 480);
    assert_eq!(alibi.taken(1_400, 5_000, 20), 80);
    assert_eq!(alibi.taken(0, 5_000, 0), alibi.stopped(0, 5_000));
}

#[test]
fn stops_that_overlap_count_once() {
    let alibi = Alibi::new(&[stop(150, 100), stop(100, 100), stop(120, 20)], 0, 0.0);
    assert_eq!(alibi.stopped(0, 1_000), 150);
    assert_eq!(alibi.stopped(120, 130), 10);
    assert_eq!(alibi.number(), 2);
    let moved = Alibi::new(&[stop(150, 100)], 1_000, 0.0);
    assert_eq!((moved.stopped(0, 1_000), moved.stopped(0, 1_200)), (0, 50));
}

#[test]
fn missing_packets_are_excused_as_far_as_the_time_carries_them() {
    let alibi = Alibi::new(&[stop(1_000, 250)], 0, 0.0);
    let judge = |missing, from, until| {
        let verdict = alibi.judge_missing(missing, from, until, 120);
        (verdict.unexcused, verdict.excused)
    };
    assert_eq!(judge(0, 0, 2_000), (0, 0));
    assert_eq!(judge(2, 0, 2_000), (0, 2));
    assert_eq!(judge(7, 0, 2_000), (4, 3));
    assert_eq!(judge(2, 1_250, 2_000), (2, 0));
    assert_eq!(judge(2, 0, 1_000), (2, 0));
}

#[test]
fn what_exceeds_the_tolerance_is_lost() {
    // A third of the link is free: of a debt, one ns is caught up in two.
    let stops = [stop(1_000, 300), stop(1_400, 300), stop(5_000, 90)];
    let alibi = Alibi::new(&stops, 0, 2.0 / 3.0);
    assert_eq!(alibi.forfeited(0, 9_000, 1_000), 0);
    // The second stop finds 250 of the first.
    assert_eq!(alibi.forfeited(0, 9_000, 500), 50);
    // 200 are left of the first, and 150 when the second begins.
    assert_eq!(alibi.forfeited(0, 9_000, 200), 100 + 250);
    assert_eq!(alibi.forfeited(0, 1_250, 200), 50);
    // A connection that begins in a stop owes nothing of what was before.
    assert_eq!(alibi.forfeited(1_200, 1_300, 60), 40);
    assert_eq!(alibi.forfeited(2_500, 9_000, 80), 10);
    assert_eq!(alibi.without_short(91).forfeited(2_500, 9_000, 80), 0);
    assert_eq!(alibi.without_short(90).forfeited(0, 9_000, 500), 50);
    assert_eq!(Alibi::new(&stops, 0, 0.0).forfeited(0, 9_000, 200), 200);
    assert_eq!(Alibi::new(&stops, 0, 1.0).forfeited(0, 9_000, 0), 690);
}

#[test]
fn stops_delay_work_while_it_lasts() {
    let stops = [stop(1_000, 100), stop(1_150, 30), stop(1_400, 50)];
    let alibi = Alibi::new(&stops, 0, 0.0);
    let delay = |work| alibi.longest_delay(0, 9_000, work);
    assert_eq!((delay(0), delay(49), delay(50)), (100, 100, 130));
    // 270 of work, and 130 of the first two stops.
    assert_eq!((delay(269), delay(270)), (130, 180));
    assert_eq!(alibi.longest_delay(1_001, 9_000, 270), 80);
    assert_eq!(alibi.longest_delay(0, 1_179, 270), 100);
    assert_eq!(Alibi::default().longest_delay(0, 9_000, 270), 0);
}

#[test]
fn a_stop_amid_work_counts_if_the_time_was_stolen() {
    let slow = |start, length| Stop {
        kind: StopKind::Slow,
        ..stop(start, length)
    };
    let stops = [
        slow(100, 50),
        stop(1_000, 10),
        slow(2_000, 70),
        slow(3_000, 40),
    ];
    let counted = |stolen| {
        let alibi = Alibi::with_stolen(&stops, Duration::from_nanos(stolen), 0, 0.0);
        alibi.stopped(0, 9_000)
    };
    // The certain stop needs no such evidence, and uses its part of it up. Then the longest.
    assert_eq!((counted(0), counted(79), counted(80)), (10, 10, 80));
    assert_eq!((counted(129), counted(130), counted(1_000)), (80, 130, 170));
}

#[test]
fn a_log_is_read_up_to_its_last_whole_line() {
    let read = parse("5 20000 late\n9 30000 still\n11 4").expect("a log");
    assert_eq!(read.len(), 2);
    assert_eq!(parse(""), Ok(Vec::new()));
    assert_eq!(parse("5 20000 late\nnonsense\n"), Err(NotAStop));
}

proptest! {
    #![proptest_config(cases(256))]

    /// The excuse of any packet is at most the sum of all stops before it left, and nothing before
    /// the first stop; without catch-up it is what a count of single nanoseconds gives.
    #[test]
    fn no_more_is_excused_than_was_stopped(
        stops in prop::collection::vec((0_u64..2_000, 1_u64..200), 0..8),
        due in 0_u64..2_500,
        late in 0_u64..500,
        used in 0.0_f64..0.99,
    ) {
        let stops: Vec<Stop> = stops.into_iter().map(|(at, length)| stop(at, length)).collect();
        let left = due + late;
        let covered = |at: u64| stops.iter().any(|s| (s.start.0..s.end().0).contains(&at));
        let before = (0..left).filter(|at| covered(*at)).count() as u64;
        let within = (due..left).filter(|at| covered(*at)).count() as u64;
        let excuse = Alibi::new(&stops, 0, used).excuse(due, left);
        prop_assert!(excuse <= before);
        prop_assert!(excuse >= within);
        prop_assert_eq!(Alibi::new(&stops, 0, 0.0).excuse(due, left), within);
    }
}
