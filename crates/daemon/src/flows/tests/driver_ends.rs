//! Tests of the end of a driver: its flows, the requests that wait, the next driver and the
//! journal.

use std::net::IpAddr;

use netnice_kernel::routes::Neighbour;

use super::*;
use crate::flows::driver::ConnectionEvent;

#[test]
fn the_end_of_a_driver_closes_all_flows_and_the_next_attachment_starts_another() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&ANN, 8);
    fixture.opened(&client, "10.0.0.2:1", "");
    fixture.driver.flows.clear();
    fixture.driver.programs.clear();
    end_driver(&mut fixture);
    match client.notifications().as_slice() {
        [FlowNotification::Ended { why }] => assert!(why.contains("has ended"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(fixture.flows.held_ports().is_empty());
    assert_eq!(fixture.direct_part(), None);
    assert!(error_text(&fixture.open(&client, "10.0.0.2:1", "")).contains("attach"));
    let again = fixture.attach(&client, 3);
    assert!(
        matches!(again, Response::Direct(DirectReply::Attached(_))),
        "{again:?}"
    );
    assert_eq!(fixture.driver.starts, 2);
    fixture.opened(&client, "10.0.0.2:1", "");
}

#[test]
fn an_attachment_during_the_end_of_an_idle_driver_starts_another_driver() {
    let mut fixture = Fixture::new();
    let idle = fixture.attached_client(&ANN, 8);
    fixture
        .flows
        .connection_ended(idle.connection.number, fixture.now);
    fixture.exchange();
    fixture.driver_answers = false;
    let client = fixture.client(&ANN, 8);
    let mut answer = fixture.begin_attach(&client);
    fixture.driver_answers = true;
    end_driver(&mut fixture);
    fixture.exchange();
    let text = answer.try_recv().expect("an answer").response;
    let attached = matches!(text, Response::Direct(DirectReply::Attached(_)));
    assert!(attached, "{text:?}");
    assert_eq!(fixture.driver.starts, 2);
}

#[test]
fn clearing_all_ends_flows_and_drivers() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&ANN, 8);
    fixture.opened(&client, "10.0.0.2:1", "");
    fixture.flows.clear(&mut fixture.service, fixture.now);
    fixture.exchange();
    assert!(matches!(
        client.notifications().as_slice(),
        [FlowNotification::Ended { .. }]
    ));
    assert!(fixture.flows.is_idle() && fixture.flows.held_ports().is_empty());
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn an_opening_that_waits_for_its_next_hop_is_answered_although_the_driver_ends() {
    for is_resolved in [true, false] {
        let mut fixture = Fixture::new();
        let client = fixture.attached_client(&ANN, 8);
        let host = IpAddr::from([10, 0, 0, 2]);
        fixture.flows.network.next_hops.remove(&host);
        let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), ""));
        let mut answer = fixture.begin(&client, open);
        end_driver(&mut fixture);
        if is_resolved {
            let mac = Neighbour::Known([7; 6]);
            fixture.flows.network.next_hops.insert(host, mac);
        }
        fixture.advance(Nanos::from_secs(1));
        error_text(&answer.try_recv().expect("an answer").response);
        assert!(fixture.flows.held_ports().is_empty());
    }
}

#[test]
fn the_end_of_a_driver_is_logged_unless_it_had_no_programs() {
    let is_logged = |fixture: &mut Fixture| {
        end_driver(fixture);
        let lines = fixture.service.journal().read(fixture.now, None, None);
        lines.iter().any(|line| line.text.contains("has ended"))
    };
    for flows in [0, 1] {
        let mut fixture = Fixture::new();
        let client = fixture.attached_client(&ANN, 8);
        for _ in 0..flows {
            fixture.opened(&client, "10.0.0.2:1", "");
        }
        assert!(is_logged(&mut fixture), "a program with {flows} flows");
    }
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    fixture
        .flows
        .connection_ended(client.connection.number, fixture.now);
    fixture.exchange();
    assert!(!is_logged(&mut fixture), "it ended for lack of programs");
}

/// Ends the driver of eth0.
fn end_driver(fixture: &mut Fixture) {
    let event = ConnectionEvent::Ended("the driver of eth0 has ended".to_owned());
    fixture
        .flows
        .handle_driver_event(&mut fixture.service, &eth0(), event, fixture.now);
}
