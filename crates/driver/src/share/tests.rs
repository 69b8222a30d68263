use super::*;

#[test]
fn a_flow_gets_its_part_and_what_it_saved() {
    // A tenth of the time, one microsecond saved: a packet of 100 ns every microsecond.
    let mut share = Share::new(100_000, Nanos(1000));
    let mut admit = |now| share.admit(Nanos(0), Nanos(100), Instant(now));
    let at_once = (0..20).filter(|_| admit(0)).count();
    assert_eq!(at_once, 10);
    let later = (1..=1000_u64)
        .flat_map(|k| [k * 1000; 3])
        .filter(|now| admit(*now))
        .count();
    assert_eq!(later, 1000);
    assert_eq!((0..20).filter(|_| admit(1_000_000_000)).count(), 10);
}

#[test]
fn looks_are_charged_too_but_no_debt_grows_for_ever() {
    let mut share = Share::new(500_000, Nanos(1000));
    for k in 0..1_000_000 {
        // It takes 100 of every 10 ns: far more than it has.
        share.admit(Nanos(50), Nanos(50), Instant(10 * k));
    }
    let end = 10_000_000;
    assert!(!share.admit(Nanos(0), Nanos(1), Instant(end)));
    assert!(share.admit(Nanos(0), Nanos(1), Instant(end + 2_100)));
    // Time that goes back gives nothing.
    assert!(!share.admit(Nanos(0), Nanos(1000), Instant(0)));
}

#[test]
fn what_a_look_costs_is_learned() {
    let mut cost = Cost::default();
    let begin = cost.look;
    cost.saw(0, Nanos(1_000_000));
    assert_eq!(cost.look, begin);
    // One frame a round, five microseconds each.
    (0..1000).for_each(|_| cost.saw(1, Nanos(5_000)));
    assert!((4_800..=4_900).contains(&cost.look.0), "{:?}", cost.look);
    // One round in which the driver was stopped for a second.
    cost.saw(1, Nanos(1_000_000_000));
    assert!(cost.look.0 < 5_300, "{:?}", cost.look);
    // Sixty-four together.
    (0..1000).for_each(|_| cost.saw(64, Nanos(64 * 160)));
    assert!((50..=120).contains(&cost.look.0), "{:?}", cost.look);
}

#[test]
fn it_says_when_half_of_it_is_there_again() {
    // A tenth, of which a millisecond is saved up.
    let mut share = Share::new(100_000, Nanos::from_millis(1));
    let mut now = Instant(1_000_000_000);
    while share.admit(Nanos(100), Nanos(900), now) {
        now.0 += 1;
    }
    let then = share.recovers();
    let wait = then.0 - now.0;
    assert!((4_900_000..=5_010_000).contains(&wait), "{wait}");
    // Half a millisecond of work, and no more.
    let paid = (0..1000)
        .filter(|_| share.admit(Nanos(100), Nanos(900), then))
        .count();
    assert!((498..=500).contains(&paid), "{paid}");
}

#[test]
fn without_a_part_it_never_is() {
    let mut share = Share::new(0, Nanos(0));
    assert!(!share.admit(Nanos(1), Nanos(1), Instant(5)));
    assert!(share.recovers() >= Instant(5));
}
