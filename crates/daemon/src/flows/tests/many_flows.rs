//! Tests of links with more promises than are searched for: the sums admit, and never more than the
//! exact test.

use std::rc::Rc;

use super::super::admission::MAX_SEARCHED;
use super::*;
use crate::flows::promised_flows::PromiseHolder;

/// Attaches a program and opens so many flows with contracts of three kinds.
fn with_flows(count: u32) -> (Fixture, TestClient) {
    let mut fixture = Fixture::new();
    let client = fixture.client(&Peer::ROOT, 7);
    fixture.attach(&client, count);
    let contracts = [
        "cell pcr=8kbit,cdvt=2s",
        "min 6kbit",
        "cell pcr=5kbit,cdvt=3s",
    ];
    for number in 0..count {
        let to = format!("10.0.0.2:{}", 1 + number);
        fixture.opened(&client, &to, contracts[number as usize % 3]);
    }
    (fixture, client)
}

/// The number of promises in force, which the exact test must grant at the driver's needed rate.
fn kept(fixture: &Fixture) -> usize {
    let state = &fixture.flows.link_states[&eth0()];
    let held = fixture.flows.promised_to_flows(&eth0());
    let (capacity, need) = (state.capacity.expect("known"), state.need.expect("known"));
    let carried = capacity.carries(need, &held);
    assert!(
        need <= capacity.max_direct && carried.is_ok(),
        "{carried:?}"
    );
    held.len()
}

#[test]
fn flows_beyond_the_searched_number_open_and_close_within_what_the_exact_test_grants() {
    let many = MAX_SEARCHED as u32 + 100;
    let (mut fixture, client) = with_flows(many);
    assert_eq!(kept(&fixture), many as usize);
    let promised = fixture.flows.link_states[&eth0()].promised.iter();
    for (holder, contract) in promised {
        let PromiseHolder::Flow(number) = holder else {
            panic!("{holder:?}");
        };
        let flow = &fixture.flows.flows[&number];
        assert!(
            Rc::ptr_eq(&flow.contract, contract),
            "one contract in memory"
        );
    }
    let of_many = fixture.flows.link_states[&eth0()].need;
    for flow in 1..=many - 10 {
        fixture.close(&client, flow);
        if flow % 50 == 0 {
            assert_eq!(kept(&fixture), (many - flow) as usize);
        }
    }
    let state = &fixture.flows.link_states[&eth0()];
    assert!(
        state.need < of_many,
        "few flows need less: {:?}",
        state.need
    );
}

#[test]
fn what_does_not_fit_beside_many_flows_is_refused_and_leaves_nothing() {
    let many = MAX_SEARCHED as u32 + 10;
    let (mut fixture, client) = with_flows(many);
    let before = (kept(&fixture), fixture.direct_part());
    fixture.close(&client, 1);
    let text = error_text(&fixture.open(&client, "10.0.0.3:9", "cell pcr=99mbit,cdvt=1s"));
    assert!(text.contains("does not fit"), "{text}");
    assert_eq!(kept(&fixture), before.0 - 1);
    fixture.opened(&client, "10.0.0.3:9", "cell pcr=8kbit,cdvt=2s");
    assert_eq!((kept(&fixture), fixture.direct_part()), before);
}

#[test]
fn a_slower_link_degrades_the_youngest_of_many_flows_and_restores_them() {
    let many = MAX_SEARCHED + 100;
    let (mut fixture, _client) = with_flows(many as u32);
    fixture.relink("3mbit");
    let some = kept(&fixture);
    assert!((100..many).contains(&some), "{some} promises are kept");
    let oldest = fixture.flows.flows.values().take(some / 2);
    assert!(oldest.into_iter().all(|flow| flow.degraded.is_none()));
    fixture.relink("100mbit");
    assert_eq!(kept(&fixture), many);
}
