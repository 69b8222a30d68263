use super::*;

/// The lead after twenty thousand sleeps with the lateness `late`.
fn learnt(late: impl Fn(u64) -> u64) -> u64 {
    let mut lead = WakeLead::new();
    (0..20_000).for_each(|number| lead.learn(late(number)));
    lead.nanos()
}

#[test]
fn the_lead_suffices_for_all_but_one_sleep_in_five_hundred() {
    // From 0 to 50 µs, uniformly.
    let seen = learnt(|number| number * 7919 % 50_000);
    assert!((45_000..=60_000).contains(&seen), "{seen}");
}

#[test]
fn the_lead_stays_between_its_least_and_its_most() {
    assert_eq!(learnt(|_| 3_000), LEAST);
    assert_eq!(learnt(|_| 1_000_000), MOST);
}

#[test]
fn one_late_sleep_raises_the_lead_by_one_step() {
    let mut lead = WakeLead::new();
    lead.learn(3_000_000);
    assert_eq!(lead.nanos(), FIRST + UP);
}
