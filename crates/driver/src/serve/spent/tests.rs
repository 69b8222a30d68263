use super::*;

fn round(sent: Option<u64>, sends: bool) -> Round {
    Round {
        began: Instant(1_000),
        handed: Instant(1_400),
        sent: sent.map(Instant),
        sends,
    }
}

#[test]
fn each_stretch_is_for_one_of_three() {
    let (awake, now) = (Nanos(1_300), Instant(2_100));
    let of = |round: Round, woken| {
        let mut spent = Spent::default();
        let took = spent.round(&round, awake, now, woken);
        assert_eq!(took, spent.receiving);
        let all = spent.receiving.0 + spent.sending.0 + spent.waiting.0;
        assert_eq!(all, awake.0, "nothing is counted twice");
        (spent.receiving.0, spent.sending.0, spent.waiting.0)
    };
    // Frames only, whatever has woken the thread: all the time is for them. With packets beside
    // them: until delivery, and the notification.
    assert_eq!(of(round(Some(1_900), false), Woken::Frames), (1_300, 0, 0));
    assert_eq!(of(round(Some(1_900), true), Woken::Due), (600, 700, 0));
    assert_eq!(of(round(None, true), Woken::Not), (0, 1_300, 0));
    // A program wrote its doorbell, and its packet is not due; no doorbell was written.
    assert_eq!(of(round(None, false), Woken::Called), (0, 1_300, 0));
    assert_eq!(of(round(None, false), Woken::Not), (0, 0, 1_300));
    assert_eq!(of(round(None, false), Woken::Due), (0, 0, 1_300));
}

#[test]
fn a_clock_that_goes_back_is_no_time() {
    let mut spent = Spent::default();
    let took = spent.round(&round(Some(9_000), true), Nanos(0), Instant(0), Woken::Not);
    assert_eq!((took, spent.sending), (Nanos(400), Nanos(0)));
}

#[test]
fn what_a_sleep_takes_is_learnt_from_some_of_them() {
    let (mut waking, mut asked) = (Waking::new(), 0);
    let mut time = 0;
    for _ in 0..SAMPLE * 100 {
        waking.falls_asleep(|| {
            asked += 1;
            time
        });
        time += 21_000;
        waking.wakes(|| time);
    }
    assert_eq!(asked, 100);
    assert!((20_500..=21_000).contains(&waking.cost().0), "{waking:?}");
    // A sleep that did not take place, and a sleep of a second.
    (0..SAMPLE).for_each(|_| waking.falls_asleep(|| 0));
    waking.wakes(|| 1_000_000_000);
    assert!(waking.cost().0 < 23_000, "{waking:?}");
}
