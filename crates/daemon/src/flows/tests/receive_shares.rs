//! Tests of the parts of the time for received packets.

use super::*;

#[test]
fn parts_above_four_fifths_are_refused_with_what_would_fit_and_free_after_a_close() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let first = fixture.opened(&client, "10.0.0.2:6000", "min 10mbit receive 50%");
    assert_eq!(first.contract, "min 10mbit receive 50%");
    let at_driver = fixture.driver.flows.values().next().expect("a flow");
    assert_eq!(at_driver.contract, "min 10mbit receive 50%");
    let refused = fixture.open(&client, "10.0.0.2:6001", "receive 30.01%");
    let text = error_text(&refused);
    for part in [
        "asks receive 30.01% on eth0, which does not fit",
        "flow:1  receive 50%",
        "flows would have 80.01% of the driver's time for received packets, and at most 80%",
        "would fit   at most 30%",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let second = fixture.opened(&client, "10.0.0.2:6001", "receive 30%");
    // A change counts in place of what the flow had.
    let changed = fixture.change(&client, second.flow, "receive 20%");
    assert!(matches!(changed, Response::Done(_)), "{changed:?}");
    let larger = fixture.change(&client, first.flow, "receive 60.5%");
    assert!(
        error_text(&larger).contains("would fit   at most 60%"),
        "{larger:?}"
    );
    fixture.close(&client, second.flow);
    let larger = fixture.change(&client, first.flow, "receive 80%");
    assert!(matches!(larger, Response::Done(_)), "{larger:?}");
}

/// If the change fails at the driver, the flow has its former part again.
#[test]
fn a_part_is_free_only_when_the_driver_has_answered() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let first = fixture.opened(&client, "10.0.0.2:6000", "receive 50%");
    fixture.driver_answers = false;
    let change = ChangeFlow {
        flow: first.flow,
        change: "receive 20%".to_owned(),
    };
    let mut changed = fixture.begin(&client, DirectRequest::Change(change));
    let refused = fixture.open(&client, "10.0.0.2:6001", "receive 60%");
    assert!(
        error_text(&refused).contains("would fit   at most 30%"),
        "{refused:?}"
    );
    fixture.driver_answers = true;
    fixture.answer_pending();
    let changed = changed.try_recv().expect("an answer").response;
    assert!(matches!(changed, Response::Done(_)), "{changed:?}");
    fixture.opened(&client, "10.0.0.2:6001", "receive 60%");
}

#[test]
fn only_root_and_the_group_may_ask_for_a_part() {
    let mut fixture = Fixture::new();
    let user = Peer {
        uid: 1000,
        privileged: false,
        groups: Vec::new(),
    };
    let client = fixture.attached_client(&user, 8);
    let refused = fixture.open(&client, "10.0.0.2:6000", "receive 1%");
    let text = error_text(&refused);
    assert!(
        text.contains("a promise to a flow is for root and the group netnice"),
        "{text}"
    );
}
