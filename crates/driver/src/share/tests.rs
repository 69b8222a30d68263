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
fn what_rounds_and_looks_cost_is_learned() {
    // Few frames: 9 us for whatever they are. Many: 160 ns for each, and what all rounds take.
    let mut cost = Cost::default();
    cost.saw(0, Nanos(1_000_000));
    assert_eq!(cost, Cost::default());
    for _ in 0..1000 {
        cost.saw(1, Nanos(9_000));
        cost.saw(64, Nanos(8_800 + 64 * 260));
    }
    assert!((8_700..=8_900).contains(&cost.round.0), "{cost:?}");
    assert!((140..=180).contains(&cost.look.0), "{cost:?}");
    // A round in which the driver was stopped for a second says little, of one frame or of many.
    let before = cost;
    cost.saw(1, Nanos(1_000_000_000));
    assert!(cost.round.0 <= before.round.0 + 2_000, "{cost:?}");
    cost.saw(64, Nanos(1_000_000_000));
    assert!(cost.look.0 <= before.look.0 + 100, "{cost:?}");
    // And what is always so is known soon.
    (0..200).for_each(|_| cost.saw(1, Nanos(3_000)));
    assert!((2_600..=2_900).contains(&cost.round.0), "{cost:?}");
}

#[test]
fn the_first_frame_of_a_round_pays_for_it() {
    let mut cost = Cost::default();
    let (round, look) = (cost.round.0, cost.look.0);
    cost.begin(Nanos(7_000));
    assert_eq!(cost.look(), Nanos(round + 7_000 + look));
    assert_eq!(cost.look(), Nanos(look));
    cost.begin(Nanos(7_000));
    cost.begin(Nanos(0));
    assert_eq!(cost.look(), Nanos(round + look));
}

#[test]
fn it_says_when_half_of_it_is_there_again() {
    // A tenth, of which a millisecond is saved up.
    let mut share = Share::new(100_000, Nanos::from_millis(1));
    let mut now = Instant(1_000_000_000);
    while share.admit(Nanos(100), Nanos(900), now) {
        now.0 += 1;
    }
    assert!(share.is_low());
    let then = share.recovers();
    let wait = then.0 - now.0;
    assert!((4_900_000..=5_010_000).contains(&wait), "{wait}");
    // Half a millisecond of work, and no more.
    share.admit(Nanos(0), Nanos(0), then);
    assert!(!share.is_low());
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
