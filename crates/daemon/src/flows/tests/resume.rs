//! Tests of attachments that programs resume after a restart of the daemon.

use netnice_api::direct::{FlowList, ListFlows, Resume};

use super::*;

/// Attaches, and returns the program's connection and the secret.
fn attached(fixture: &mut Fixture, peer: &Peer, pid: u32) -> (TestClient, String) {
    let client = fixture.client(peer, pid);
    match fixture.attach(&client, 10) {
        Response::Direct(DirectReply::Attached(attached)) => (client, attached.secret),
        other => panic!("{other:?}"),
    }
}

fn resume(secret: &str) -> DirectRequest {
    DirectRequest::Resume(Resume {
        iface: "eth0".to_owned(),
        secret: secret.to_owned(),
        moves: false,
    })
}

fn list(fixture: &mut Fixture, client: &TestClient, after: u32) -> FlowList {
    match fixture.request(client, DirectRequest::List(ListFlows { after })) {
        Some(Response::Direct(DirectReply::Flows(list))) => list,
        other => panic!("{other:?}"),
    }
}

fn is_attached(answer: &Option<Response>) -> bool {
    matches!(answer, Some(Response::Direct(DirectReply::Attached(_))))
}

#[test]
fn a_program_resumes_its_attachment_and_has_its_flows_again() {
    let mut fixture = Fixture::new();
    let (client, secret) = attached(&mut fixture, &ANN, 8);
    assert_eq!(secret.len(), 32);
    let first = fixture.opened(&client, "10.0.0.2:1", "");
    let second = fixture.opened(&client, "10.0.0.3:1", "up 5mbit");
    fixture.restart();
    let mut client = fixture.client(&ANN, 8);
    assert!(is_attached(&fixture.request(&client, resume(&secret))));
    let listed = list(&mut fixture, &client, 0);
    let numbers: Vec<(u32, u32)> = listed.flows.iter().map(|f| (f.flow, f.slot)).collect();
    assert_eq!(
        numbers,
        [(first.flow, first.slot), (second.flow, second.slot)]
    );
    assert_eq!(listed.flows[1].contract, second.contract);
    assert!(!listed.more);
    assert_eq!(list(&mut fixture, &client, first.flow).flows.len(), 1);
    // It changes, opens and closes flows, and gets notifications.
    let changed = fixture.change(&client, second.flow, "up 6mbit");
    assert!(matches!(changed, Response::Done(_)), "{changed:?}");
    let third = fixture.opened(&client, "10.0.0.4:1", "");
    assert!(third.flow > second.flow);
    fixture.close(&client, first.flow);
    assert_eq!(fixture.driver.flows.len(), 2);
    fixture.flows.network.up = false;
    fixture.changed(RouteChange::Routes);
    assert_eq!(
        client.notifications(),
        [FlowNotification::Link { up: false }]
    );
    // And again at a third daemon. The end of its connection ends its flows, as before.
    fixture.flows.network.up = true;
    fixture.restart();
    let client = fixture.client(&ANN, 8);
    assert!(is_attached(&fixture.request(&client, resume(&secret))));
    assert_eq!(list(&mut fixture, &client, 0).flows.len(), 2);
    let number = client.connection.number;
    fixture.flows.connection_ended(number, fixture.now);
    fixture.exchange();
    assert!(fixture.driver.flows.is_empty() && fixture.driver.programs.is_empty());
    assert!(fixture.flows.held_ports().is_empty());
}

#[test]
fn no_other_process_can_resume_an_attachment() {
    let mut fixture = Fixture::new();
    fixture.service.host().spawn(9, 1000);
    fixture.service.host().spawn(10, 1001);
    let (client, secret) = attached(&mut fixture, &ANN, 8);
    fixture.opened(&client, "10.0.0.2:1", "");
    fixture.restart();
    let bob = Peer {
        uid: 1001,
        ..ANN.clone()
    };
    let text = |answer: Option<Response>| error_text(&answer.expect("an answer"));
    // A child of the program, which has the secret; and a process of another user.
    for (peer, pid) in [(&ANN, 9), (&bob, 10), (&Peer::ROOT, 7)] {
        let other = fixture.client(peer, pid);
        let said = text(fixture.request(&other, resume(&secret)));
        assert!(said.contains("only the process that attached"), "{said}");
        assert!(list_is_refused(&mut fixture, &other));
    }
    // A process that names the program but made the connection itself.
    let mut liar = fixture.client(&ANN, 8);
    liar.connection.pid = 9;
    let said = text(fixture.request(&liar, resume(&secret)));
    assert!(said.contains("only the process that attached"), "{said}");
    // The program's own process without the secret, as after exec.
    let own = fixture.client(&ANN, 8);
    for wrong in [
        "",
        "0",
        &secret[1..],
        &secret.replace('0', "1"),
        &format!("{secret}0"),
    ] {
        let answer = fixture.request(&own, resume(wrong));
        let gone = matches!(answer, Some(Response::Direct(DirectReply::Detached(_))));
        assert!(gone, "{wrong}: {answer:?}");
    }
    // The program itself, once.
    assert!(is_attached(&fixture.request(&own, resume(&secret))));
    let second = fixture.client(&ANN, 8);
    let said = text(fixture.request(&second, resume(&secret)));
    assert!(said.contains("another connection"), "{said}");
    assert_eq!(list(&mut fixture, &own, 0).flows.len(), 1);
    // Nothing of all this has ended a flow.
    assert_eq!(fixture.driver.flows.len(), 1);
}

fn list_is_refused(fixture: &mut Fixture, client: &TestClient) -> bool {
    let answer = fixture.request(client, DirectRequest::List(ListFlows { after: 0 }));
    matches!(answer, Some(Response::Failed(_)))
}

#[test]
fn a_program_that_resumes_before_the_census_waits_for_it() {
    let mut fixture = Fixture::new();
    let (client, secret) = attached(&mut fixture, &ANN, 8);
    fixture.opened(&client, "10.0.0.2:1", "");
    fixture.driver_answers = false;
    fixture.restart();
    let client = fixture.client(&ANN, 8);
    let mut answer = fixture.begin(&client, resume(&secret));
    assert!(answer.try_recv().is_err(), "the driver has not answered");
    fixture.answer_pending();
    let response = answer.try_recv().expect("an answer").response;
    assert!(is_attached(&Some(response)));
    // The program did not get the response: the end of this connection ends nothing.
    let number = client.connection.number;
    fixture.flows.connection_ended(number, fixture.now);
    fixture.exchange();
    assert_eq!(fixture.driver.flows.len(), 1);
    let client = fixture.client(&ANN, 8);
    assert!(is_attached(&fixture.request(&client, resume(&secret))));
    assert_eq!(list(&mut fixture, &client, 0).flows.len(), 1);
}

#[test]
fn a_program_whose_driver_has_ended_gets_the_reason_in_place_of_its_attachment() {
    let mut fixture = Fixture::new();
    let (client, secret) = attached(&mut fixture, &ANN, 8);
    fixture.opened(&client, "10.0.0.2:1", "");
    fixture.driver_answers = false;
    fixture.restart();
    let client = fixture.client(&ANN, 8);
    let mut answer = fixture.begin(&client, resume(&secret));
    fixture.flows.handle_driver_event(
        &mut fixture.service,
        &eth0(),
        driver::ConnectionEvent::Ended("the driver of eth0 was killed".to_owned()),
        fixture.now,
    );
    let why = |answer| match answer {
        Response::Direct(DirectReply::Detached(detached)) => detached.why,
        other => panic!("{other:?}"),
    };
    let waited = why(answer.try_recv().expect("an answer").response);
    assert_eq!(waited, "the driver of eth0 was killed");
    let later = fixture
        .request(&client, resume(&secret))
        .expect("an answer");
    assert!(why(later).contains("has ended while"));
}
