//! Tests of the division of a link between both paths.

use netnice_core::units::{Amount, Rate};
use proptest::prelude::*;

use super::*;
use crate::flows::division::{LinkNeeds, Split, SplitUse};

fn mbit(n: u64) -> Rate {
    Rate::new(n * 1_000_000).expect("a rate")
}

#[test]
fn unused_rate_of_one_side_is_lent_to_the_other() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "");
    let whole = |fixture: &Fixture| {
        fixture.driver.rate
            + fixture
                .direct_part()
                .expect("a part")
                .tree
                .bits_per_second()
    };
    assert_eq!(whole(&fixture), 100_000_000);
    let half = fixture.driver.rate;
    assert!((45_000_000..55_000_000).contains(&half), "{half}");
    // The classes use their whole rate, the flow nothing.
    let mut sent = 0;
    for _ in 0..10 {
        let tree = fixture.direct_part().expect("a part").tree;
        sent += tree.bits_per_second() / 8 / 5;
        fixture.service.host().sent.insert("eth0".to_owned(), sent);
        fixture.now.monotonic = fixture.now.monotonic.after(Nanos::from_millis(200));
        fixture.flows.balance(fixture.now);
        fixture.exchange();
        assert_eq!(whole(&fixture), 100_000_000);
    }
    assert!(fixture.driver.rate < 10_000_000, "{}", fixture.driver.rate);
    // Then the flow and the classes both use all they get.
    for _ in 0..10 {
        let tree = fixture.direct_part().expect("a part").tree;
        sent += tree.bits_per_second() / 8 / 5;
        fixture.service.host().sent.insert("eth0".to_owned(), sent);
        fixture.driver.totals.sent_bytes += fixture.driver.rate / 8 / 5;
        fixture.now.monotonic = fixture.now.monotonic.after(Nanos::from_millis(200));
        fixture.flows.balance(fixture.now);
        fixture.exchange();
        assert_eq!(whole(&fixture), 100_000_000);
    }
    assert_eq!(fixture.driver.rate, half);
}

/// The driver knows the rate of the classes before it sends its first packet, and how to count what
/// they send.
#[test]
fn a_driver_gets_the_counter_of_the_classes_once() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "");
    fixture.opened(&client, "10.0.0.2:6001", "min 20mbit");
    assert_eq!(fixture.driver.counters, [1]);
    // The driver of an earlier daemon gets it again: the map may be another one.
    fixture.restart();
    assert_eq!(fixture.driver.counters, [1, 1]);
}

/// The driver sends on the whole link, so a slice is the same at every division.
#[test]
fn the_driver_has_slices_as_they_were_granted() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "slice 10ms/50ms extra");
    fixture.opened(&client, "10.0.0.2:6001", "min 20mbit");
    let at_driver = |fixture: &Fixture| {
        let mut flows = fixture.driver.flows.values();
        let flow = flows.find(|flow| flow.number == 1).expect("it is there");
        (flow.contract.clone(), flow.granted.clone())
    };
    let granted = ("slice 10ms/50ms extra".to_owned(), None);
    assert_eq!(at_driver(&fixture), granted);
    fixture.restart();
    assert_eq!(at_driver(&fixture), granted);
}

/// The longer the driver may send ahead, the less of the link does a stop of the driver cost.
#[test]
fn a_driver_sends_far_ahead_while_no_packet_has_a_time_of_its_own() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "min 10mbit");
    assert_eq!(fixture.driver.ahead_ns, 1_000_000);
    fixture.opened(&client, "10.0.0.2:6001", "slice 8ms/100ms");
    assert_eq!(fixture.driver.ahead_ns, 1_000_000);
    // A packet of the MTU takes 121 us: so short a period leaves no time for 1 ms of other packets.
    let short = fixture.opened(&client, "10.0.0.2:6002", "slice 500us/2500us");
    let ahead = fixture.driver.ahead_ns;
    assert!((20_000..1_000_000).contains(&ahead), "{ahead}");
    fixture.close(&client, short.flow);
    assert_eq!(fixture.driver.ahead_ns, 1_000_000);
    for exact in [
        "cell pcr=1mbit,cdvt=50ms",
        "channel mmax=1500,rmax=10/s,bmax=1,deadline=50ms",
    ] {
        let exact = fixture.opened(&client, "10.0.0.2:6003", exact);
        assert_eq!(fixture.driver.ahead_ns, 20_000);
        fixture.close(&client, exact.flow);
        assert_eq!(fixture.driver.ahead_ns, 1_000_000);
    }
}

/// The classes keep their half while the driver is busy. What they do not use of it is not charged
/// to the driver.
#[test]
fn idle_classes_keep_their_half_beside_a_busy_driver() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "");
    let half = fixture.driver.rate;
    for _ in 0..10 {
        fixture.driver.totals.sent_bytes += 100_000_000 / 8 / 5;
        fixture.now.monotonic = fixture.now.monotonic.after(Nanos::from_millis(200));
        fixture.flows.balance(fixture.now);
        fixture.exchange();
    }
    assert_eq!(fixture.driver.rate, half);
}

proptest! {
    #[test]
    fn each_side_keeps_what_it_needs_for_any_use(
        tree in 2u64..50,
        need in 1u64..50,
        used in proptest::collection::vec((0u64..120, 0u64..120), 1..20),
    ) {
        let whole = LinkNeeds { capacity: mbit(100), tree: mbit(tree), need: mbit(need) };
        let mut split: Split = whole.halved();
        prop_assert!(whole.is_valid(split));
        for (driver, tree) in used {
            let used = SplitUse {
                driver: Amount(driver * 1_000_000),
                tree: Amount(tree * 1_000_000),
            };
            split = whole.next(split, used);
            prop_assert!(whole.is_valid(split), "{split:?}");
        }
    }
}
