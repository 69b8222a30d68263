use super::*;

fn times(sent: Option<u64>, sends: bool) -> IterationTimes {
    IterationTimes {
        began: Instant(1_000),
        delivered: Instant(1_400),
        sent: sent.map(Instant),
        sends,
    }
}

#[test]
fn each_stretch_of_time_is_charged_to_one_account() {
    let (awake, now) = (Nanos(1_300), Instant(2_100));
    let of = |times: IterationTimes, woken| {
        let mut accounting = TimeAccounting::default();
        let took = accounting.iteration(&times, awake, now, woken);
        assert_eq!(took, accounting.receiving);
        let all = accounting.receiving.0 + accounting.sending.0 + accounting.waiting.0;
        assert_eq!(all, awake.0, "nothing is counted twice");
        (
            accounting.receiving.0,
            accounting.sending.0,
            accounting.waiting.0,
        )
    };
    // Frames only, whatever has woken the thread: all the time is for them. With packets beside
    // them: until delivery, and the notification.
    assert_eq!(
        of(times(Some(1_900), false), WakeReason::Frames),
        (1_300, 0, 0)
    );
    assert_eq!(of(times(Some(1_900), true), WakeReason::Due), (600, 700, 0));
    assert_eq!(of(times(None, true), WakeReason::None), (0, 1_300, 0));
    // A program wrote its doorbell, and its packet is not due; no doorbell was written.
    assert_eq!(of(times(None, false), WakeReason::Request), (0, 1_300, 0));
    assert_eq!(of(times(None, false), WakeReason::None), (0, 0, 1_300));
    assert_eq!(of(times(None, false), WakeReason::Due), (0, 0, 1_300));
}

#[test]
fn a_clock_that_goes_back_adds_no_time() {
    let mut accounting = TimeAccounting::default();
    let took = accounting.iteration(
        &times(Some(9_000), true),
        Nanos(0),
        Instant(0),
        WakeReason::None,
    );
    assert_eq!((took, accounting.sending), (Nanos(400), Nanos(0)));
}

#[test]
fn the_cost_of_a_wakeup_is_learnt_from_a_sample_of_sleeps() {
    let (mut cost, mut readings) = (WakeupCost::new(), 0);
    let mut time = 0;
    for _ in 0..SAMPLE * 100 {
        cost.sleep_begins(|| {
            readings += 1;
            time
        });
        time += 21_000;
        cost.sleep_ended(|| time);
    }
    assert_eq!(readings, 100);
    assert!((20_500..=21_000).contains(&cost.mean().0), "{cost:?}");
    // A sleep that did not take place, and a sleep of a second.
    (0..SAMPLE).for_each(|_| cost.sleep_begins(|| 0));
    cost.sleep_ended(|| 1_000_000_000);
    assert!(cost.mean().0 < 23_000, "{cost:?}");
}
