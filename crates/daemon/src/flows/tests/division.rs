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

#[test]
fn the_classes_grow_after_the_driver_has_shrunk() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let flow = fixture.opened(&client, "10.0.0.2:6000", "min 90mbit").flow;
    let before = fixture.direct_part().expect("a part").tree;
    fixture.driver_answers = false;
    let change = ChangeFlow {
        flow,
        change: "min none".to_owned(),
    };
    let mut answer = fixture.begin(&client, DirectRequest::Change(change));
    assert!(answer.try_recv().is_err());
    // The flow needs less now, but the division stays while no side needs more.
    assert_eq!(fixture.direct_part().expect("a part").tree, before);
    let split = Split {
        driver: mbit(40),
        tree: mbit(60),
    };
    let applied = fixture
        .flows
        .apply_split(&mut fixture.service, &eth0(), split, fixture.now);
    applied.expect("applied");
    fixture.exchange();
    let tree = |fixture: &Fixture| fixture.direct_part().expect("a part").tree;
    assert_eq!(tree(&fixture), before, "not before the driver says so");
    fixture
        .flows
        .grow_classes(&mut fixture.service, &eth0(), fixture.now);
    assert_eq!(tree(&fixture), mbit(60));
}

#[test]
fn a_slice_is_the_same_part_of_the_link_at_every_rate_of_the_driver() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "slice 10ms/50ms");
    fixture.opened(&client, "10.0.0.2:6001", "min 20mbit");
    let flow = fixture
        .driver
        .flows
        .values()
        .find(|f| f.number == 1)
        .expect("it is there");
    let contract: netnice_core::contract::Contract = flow.contract.parse().expect("a contract");
    let slice = contract.slice().expect("a slice");
    let rate = u128::from(slice.slice().0) * u128::from(fixture.driver.rate) / 50_000_000;
    assert!(
        (19_990_000..=20_010_000).contains(&rate),
        "{rate} at {}",
        fixture.driver.rate
    );
    // A restarted daemon has the contract as it was requested.
    fixture.restart();
    let number = |flow: &&FlowRecord| flow.number == 1;
    let flow = fixture.flows.flows.values().find(number).expect("it stays");
    let slice = flow.contract.slice().expect("a slice");
    assert_eq!(slice.slice(), Nanos::from_millis(10));
}

/// What the classes do not use is lent to the driver also while a flow has a slice, and the slice
/// stays the same part of the link.
#[test]
fn unused_rate_is_lent_beside_slices() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:6000", "slice 10ms/50ms extra");
    let half = fixture.driver.rate;
    for _ in 0..10 {
        fixture.driver.totals.sent_bytes += fixture.driver.rate / 8 / 5;
        fixture.now.monotonic = fixture.now.monotonic.after(Nanos::from_millis(200));
        fixture.flows.balance(fixture.now);
        fixture.exchange();
    }
    let driver = fixture.driver.rate;
    assert!(
        driver > 90_000_000 && half < 70_000_000,
        "{half} to {driver}"
    );
    let flow = fixture.driver.flows.values().next().expect("it is there");
    let contract: netnice_core::contract::Contract = flow.contract.parse().expect("a contract");
    let slice = contract.slice().expect("a slice");
    assert!(slice.extra());
    let rate = u128::from(slice.slice().0) * u128::from(driver) / 50_000_000;
    assert!(
        (19_990_000..=20_010_000).contains(&rate),
        "{rate} at {driver}"
    );
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
