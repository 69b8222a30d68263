use super::*;

/// The lead after twenty thousand sleeps with the lateness `late`.
fn learnt(late: impl Fn(u64) -> u64) -> u64 {
    let mut lead = Lead::new();
    (0..20_000).for_each(|number| lead.saw(late(number)));
    lead.nanos()
}

#[test]
fn it_is_as_long_as_all_but_one_in_five_hundred_need() {
    // From 0 to 50 µs, uniformly.
    let seen = learnt(|number| number * 7919 % 50_000);
    assert!((45_000..=60_000).contains(&seen), "{seen}");
}

#[test]
fn a_quiet_machine_needs_little_and_a_bad_one_does_not_get_everything() {
    assert_eq!(learnt(|_| 3_000), LEAST);
    assert_eq!(learnt(|_| 1_000_000), MOST);
}

#[test]
fn one_late_sleep_changes_little() {
    let mut lead = Lead::new();
    lead.saw(3_000_000);
    assert_eq!(lead.nanos(), FIRST + UP);
}
