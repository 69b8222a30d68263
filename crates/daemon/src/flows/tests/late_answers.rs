//! Tests with a driver that answers late: after its answers, the manager's records match what the
//! driver has done.

use netnice_api::driver::{DriverEvent, DriverMessage};

use super::*;
use crate::flows::driver::ConnectionEvent;

/// Longer than the time limit of a call.
const STALL: Nanos = Nanos::from_secs(6);

#[test]
fn a_program_that_ends_while_the_driver_stalls_leaves_nothing_held() {
    for stall in [STALL, Nanos::from_secs(1_000)] {
        let mut fixture = Fixture::new();
        let client = fixture.attached_client(&Peer::ROOT, 7);
        fixture.opened(&client, "10.0.0.2:1", "min 30mbit");
        fixture.driver_answers = false;
        fixture
            .flows
            .connection_ended(client.connection.number, fixture.now);
        fixture.exchange();
        fixture.advance(STALL);
        fixture.advance(stall);
        let still = fixture.flows.held_ports().len();
        assert_eq!(still, 1, "the driver has the flow yet");
        fixture.answer_pending();
        assert!(fixture.driver.flows.is_empty());
        assert!(fixture.flows.flows.is_empty());
        assert!(fixture.flows.held_ports().is_empty());
        assert_eq!(fixture.direct_part(), None);
    }
}

#[test]
fn a_change_that_timed_out_is_undone_everywhere() {
    for driver_refuses in [false, true] {
        let mut fixture = Fixture::new();
        let client = fixture.attached_client(&Peer::ROOT, 7);
        let flow = fixture.opened(&client, "10.0.0.2:1", "min 10mbit").flow;
        fixture.driver_answers = false;
        let change = DirectRequest::Change(ChangeFlow {
            flow,
            change: "min 30mbit".to_owned(),
        });
        let mut answer = fixture.begin(&client, change);
        fixture.advance(STALL);
        let text = error_text(&answer.try_recv().expect("an answer").response);
        assert!(text.contains("does not answer"), "{text}");
        if driver_refuses {
            fixture.unanswered.clear();
        }
        fixture.answer_pending();
        let at_driver = fixture.driver.flows.values().next().expect("it is there");
        assert_eq!(at_driver.contract, "min 10mbit");
        let known = &fixture.flows.flows[&flow].contract;
        assert_eq!(known.to_string(), "min 10mbit");
        let need = fixture
            .direct_part()
            .expect("a part")
            .need
            .bits_per_second();
        assert!((10_000_000..30_000_000).contains(&need), "{need}");
        // The rate that was not granted is free for another flow.
        fixture.opened(&client, "10.0.0.3:1", "min 70mbit");
    }
}

#[test]
fn a_flow_closed_at_a_stalled_driver_holds_its_port_until_the_answer() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let flow = fixture.opened(&client, "10.0.0.2:1", "min 30mbit").flow;
    fixture.driver_answers = false;
    let mut answer = fixture.begin(&client, DirectRequest::Close(CloseFlow { flow }));
    fixture.advance(STALL);
    let text = answer.try_recv().expect("an answer").response;
    assert!(matches!(text, Response::Done(_)), "{text:?}");
    assert_eq!(fixture.flows.held_ports().len(), 1);
    fixture.answer_pending();
    assert!(fixture.flows.held_ports().is_empty());
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn a_flow_that_timed_out_returns_its_part_of_the_link() {
    for stall in [STALL, Nanos::from_secs(1_000)] {
        let mut fixture = Fixture::new();
        let client = fixture.attached_client(&Peer::ROOT, 7);
        fixture.driver_answers = false;
        let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), "min 30mbit"));
        let _answer = fixture.begin(&client, open);
        fixture.advance(STALL);
        assert_eq!(fixture.direct_part(), None);
        fixture.advance(stall);
        fixture.answer_pending();
        assert!(fixture.driver.flows.is_empty());
        assert_eq!(fixture.direct_part(), None);
        assert!(fixture.flows.calls.is_empty());
    }
}

#[test]
fn earlier_flows_are_taken_over_from_a_late_census() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:1", "min 30mbit");
    fixture.driver_answers = false;
    fixture.restart();
    fixture.advance(Nanos::from_secs(30));
    assert!(fixture.flows.flows.is_empty());
    fixture.answer_pending();
    assert_eq!(fixture.flows.flows.len(), 1);
    assert!(
        fixture
            .direct_part()
            .expect("a part")
            .need
            .bits_per_second()
            >= 30_000_000
    );
}

#[test]
fn a_call_for_an_ended_flow_changes_no_other_flow() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let other = fixture.attached_client(&ANN, 8);
    let flow = fixture.opened(&client, "10.0.0.2:1", "min 10mbit").flow;
    fixture.driver_answers = false;
    let change = DirectRequest::Change(ChangeFlow {
        flow,
        change: "min 30mbit".to_owned(),
    });
    let mut answer = fixture.begin(&client, change);
    // The process ends, and the driver detects it first.
    let (program, _) = fixture.driver.programs.pop_first().expect("it is there");
    let theirs = |flow: &netnice_api::driver::DriverFlow| flow.program == program;
    fixture.driver.flows.retain(|_, flow| !theirs(flow));
    fixture.answer_pending();
    let text = error_text(&answer.try_recv().expect("an answer").response);
    assert!(text.contains("no such flow"), "{text}");
    fixture.opened(&other, "10.0.0.2:1", "");
    let before = fixture.driver.flows.clone();
    let event = DriverMessage::Event(DriverEvent::ProgramEnded { program });
    let event = ConnectionEvent::Message(event, Vec::new());
    fixture
        .flows
        .handle_driver_event(&mut fixture.service, &eth0(), event, fixture.now);
    fixture.exchange();
    assert_eq!(fixture.driver.flows, before);
    assert_eq!(fixture.flows.flows.len(), 1);
    assert_eq!(fixture.flows.held_ports().len(), 1);
    // What was promised to it is free for another flow.
    let next = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&next, "10.0.0.3:1", "min 70mbit");
}
