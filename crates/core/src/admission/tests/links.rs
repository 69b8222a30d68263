//! Tests of decisions about links with guarantees: a new capacity, and the end of the management.

use super::*;

#[test]
fn a_slower_link_is_refused_with_the_least_capacity_that_fits() {
    let links = [link("eth0 100mbit 100mbit"), link("eth1 10mbit -")];
    let held: Vec<TargetEntry> = [
        "1 unit:a min 40mbit on eth0",
        "2 unit:b slice 10ms/50ms on eth0",
        "3 unit:c min-down 50mbit on eth0",
        "4 unit:d min 10mbit on eth1",
    ]
    .iter()
    .map(|text| entry(text))
    .collect();
    let slower = admit_link(&links, &held, link("eth0 45mbit 100mbit")).expect_err("40 + 9");
    assert_eq!(
        slower.to_string(),
        "refused: eth0: its up guarantees would not fit
  can promise eth0 up 45 Mbit/s (5.625 MB/s)
  held        unit:a.service  40 Mbit/s (5 MB/s) up on eth0
              unit:b.service  9 Mbit/s (1.125 MB/s) up on eth0
  but         49 Mbit/s > 45 Mbit/s
  would fit   at least 50 Mbit/s (6.25 MB/s)"
    );
    admit_link(&links, &held, link("eth0 50mbit 100mbit")).expect("40 + 10");
    let down = admit_link(&links, &held, link("eth0 100mbit 51mbit")).expect_err("49.47");
    assert!(
        down.to_string().contains("at least 51.547 Mbit/s"),
        "{down}"
    );
    let gone = admit_link(&links, &held, link("eth0 100mbit -")).expect_err("held down");
    assert!(
        gone.to_string()
            .contains("unit:c.service  50 Mbit/s (6.25 MB/s) down"),
        "{gone}"
    );
    let unmanaged = admit_unmanage(&links, &held, &links[1].name).expect_err("held");
    assert!(
        unmanaged
            .to_string()
            .contains("eth1 still carries guarantees"),
        "{unmanaged}"
    );
    admit_unmanage(&links, &held[..3], &links[1].name).expect("no guarantee is on eth1");
    assert!(admit_unmanage(&links, &held, &"eth2".parse().unwrap()).is_err());
}

#[test]
fn a_refusal_of_a_capacity_names_the_nearest_that_fits_around_slices() {
    let held = [
        "1 pid:7 up 10mbit",
        "2<1 pid:8 slice 10ms/100ms",
        "3 pid:9 min 40mbit",
    ];
    let held: Vec<TargetEntry> = held.iter().map(|text| entry(text)).collect();
    let links = [link("eth0 80mbit -")];
    let refused = |new: &str| {
        let refusal = admit_link(&links, &held, link(new)).expect_err(new);
        refusal.to_string()
    };
    // From 44.4 to 100 Mbit/s all fits.
    let slow = refused("eth0 20mbit -");
    assert!(
        slow.contains("would fit   at least 44.445 Mbit/s"),
        "{slow}"
    );
    let fast = refused("eth0 200mbit -");
    assert!(fast.contains("pid:7 is limited to up 10 Mbit/s"), "{fast}");
    assert!(fast.contains("would fit   at most 100 Mbit/s"), "{fast}");
}
