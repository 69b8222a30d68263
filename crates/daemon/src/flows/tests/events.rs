//! Tests of what happens to open flows, and to flows that are being opened, when next hops, routes,
//! links, programs or the daemon change or end.

use netnice_api::driver::{DriverEvent, DriverMessage};
use netnice_kernel::routes::Neighbour;
use std::net::IpAddr;

use super::*;
use crate::flows::driver::ConnectionEvent;

fn host(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

#[test]
fn opening_waits_for_the_resolution_of_the_next_hop() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    fixture.flows.network.next_hops.remove(&host(2));
    let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), ""));
    let mut answer = fixture.begin(&client, open.clone());
    assert!(answer.try_recv().is_err());
    assert_eq!(fixture.flows.network.solicited, [host(2)]);
    fixture
        .flows
        .network
        .next_hops
        .insert(host(2), Neighbour::Known([7; 6]));
    fixture.changed(RouteChange::Neighbour {
        index: 2,
        next_hop: host(2),
    });
    let text = answer.try_recv().expect("an answer").response;
    let Response::Direct(DirectReply::Opened(opened)) = text else {
        panic!("{text:?}");
    };
    assert_eq!(opened.next_hop, Some([7; 6]));
    // A neighbour that never answers is waited for one second.
    fixture.flows.network.next_hops.remove(&host(2));
    let mut answer = fixture.begin(&client, open);
    fixture.advance(Nanos::from_millis(900));
    assert!(answer.try_recv().is_err());
    fixture.advance(Nanos::from_millis(100));
    let text = error_text(&answer.try_recv().expect("an answer").response);
    assert!(text.contains("10.0.0.2 does not answer"), "{text}");
    assert_eq!(fixture.flows.held_ports().len(), 1);
}

#[test]
fn a_flow_to_any_host_resolves_each_host_on_request() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    let open = DirectRequest::Open(udp("10.0.0.100:0", None, ""));
    let opened = fixture.request(&client, open);
    let Some(Response::Direct(DirectReply::Opened(opened))) = opened else {
        panic!("{opened:?}");
    };
    assert_eq!(opened.next_hop, None);
    let to = DirectRequest::NextHop(FindNextHop {
        to: [10, 1, 2, 3].into(),
    });
    let text = fixture.request(&client, to);
    let Some(Response::Direct(DirectReply::NextHop(hop))) = text else {
        panic!("{text:?}");
    };
    assert_eq!((hop.mac, hop.mtu), ([2, 0, 0, 0, 0, 1], 1400));
}

#[test]
fn a_changed_next_hop_reaches_driver_and_program() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&ANN, 8);
    let flow = fixture.opened(&client, "10.0.0.2:1", "").flow;
    let hop = |fixture: &Fixture| {
        fixture
            .driver
            .flows
            .values()
            .next()
            .and_then(|flow| flow.next_hop)
    };
    fixture
        .flows
        .network
        .next_hops
        .insert(host(2), Neighbour::Known([9; 6]));
    fixture.changed(RouteChange::Neighbour {
        index: 2,
        next_hop: host(2),
    });
    assert_eq!(hop(&fixture), Some([9; 6]));
    let mac = Some([9; 6]);
    assert_eq!(
        client.notifications(),
        [FlowNotification::NextHop { flow, mac }]
    );
    fixture
        .flows
        .network
        .next_hops
        .insert(host(2), Neighbour::Failed);
    fixture.changed(RouteChange::Neighbour {
        index: 2,
        next_hop: host(2),
    });
    assert_eq!(hop(&fixture), None);
    assert_eq!(
        client.notifications(),
        [FlowNotification::NextHop { flow, mac: None }]
    );
    // The manager confirms to the kernel every 5 s that the next hop is in use.
    fixture.flows.network.solicited.clear();
    fixture.flows.tick(fixture.now);
    assert_eq!(fixture.flows.network.solicited, [host(2)]);
}

#[test]
fn a_flow_whose_route_moves_to_another_link_is_closed_with_that_link_named() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&ANN, 8);
    let flow = fixture.opened(&client, "10.0.0.2:1", "").flow;
    fixture.opened(&client, "10.0.0.3:1", "");
    fixture.flows.network.moved.insert(host(2), 3);
    fixture.changed(RouteChange::Routes);
    match client.notifications().as_slice() {
        [FlowNotification::Closed { flow: closed, why }] => {
            assert_eq!(*closed, flow);
            assert!(why.contains("leads over eth1 now"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.driver.flows.len(), 1);
    assert_eq!(fixture.flows.held_ports().len(), 1);
}

#[test]
fn a_flow_whose_route_moves_during_opening_is_refused_and_closed() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&ANN, 8);
    fixture.driver_answers = false;
    let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), ""));
    let mut answer = fixture.begin(&client, open);
    fixture.flows.network.moved.insert(host(2), 3);
    fixture.changed(RouteChange::Routes);
    fixture.answer_pending();
    let text = error_text(&answer.try_recv().expect("an answer").response);
    assert!(text.contains("leads over eth1 now"), "{text}");
    assert_eq!(client.notifications(), [], "there was no flow to tell of");
    assert!(fixture.driver.flows.is_empty());
    assert!(fixture.flows.flows.is_empty());
    assert!(fixture.flows.held_ports().is_empty());
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn a_program_that_ends_during_opening_leaves_nothing_held() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    fixture.driver_answers = false;
    let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), ""));
    let _answer = fixture.begin(&client, open);
    fixture
        .flows
        .connection_ended(client.connection.number, fixture.now);
    fixture.exchange();
    fixture.answer_pending();
    assert!(fixture.driver.flows.is_empty() && fixture.driver.programs.is_empty());
    assert!(fixture.flows.flows.is_empty());
    assert!(fixture.flows.held_ports().is_empty());
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn programs_are_notified_when_a_link_goes_down_and_up() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&ANN, 8);
    fixture.opened(&client, "10.0.0.2:1", "");
    fixture.flows.network.up = false;
    fixture.changed(RouteChange::Routes);
    fixture.flows.network.up = true;
    fixture.changed(RouteChange::Routes);
    let up = |up| FlowNotification::Link { up };
    assert_eq!(client.notifications(), [up(false), up(true)]);
    assert_eq!(fixture.driver.flows.len(), 1);
}

#[test]
fn a_disconnected_program_gets_the_violated_rule_and_others_continue() {
    let mut fixture = Fixture::new();
    let (mut bad, good) = (
        fixture.attached_client(&ANN, 8),
        fixture.attached_client(&Peer::ROOT, 7),
    );
    fixture.opened(&bad, "10.0.0.2:1", "");
    fixture.opened(&good, "10.0.0.3:1", "");
    let program = fixture
        .driver
        .flows
        .values()
        .next()
        .expect("a flow")
        .program;
    let why = "R12: the cursor went back".to_owned();
    let event = DriverMessage::Event(DriverEvent::ProgramDisconnected { program, why });
    fixture.flows.handle_driver_event(
        &mut fixture.service,
        &eth0(),
        ConnectionEvent::Message(event, Vec::new()),
        fixture.now,
    );
    match bad.notifications().as_slice() {
        [FlowNotification::Ended { why }] => assert!(why.contains("R12"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.flows.held_ports().len(), 1);
    assert_eq!(fixture.direct_part().expect("a part").flows, 1);
}

#[test]
fn a_restarted_daemon_takes_over_open_flows() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:1", "");
    let kept = fixture.opened(&client, "10.0.0.3:1", "min 30mbit");
    fixture.close(&client, 1);
    fixture.restart();
    assert_eq!(fixture.driver.flows.len(), 1);
    assert_eq!(
        fixture.flows.flows.keys().copied().collect::<Vec<_>>(),
        [kept.flow]
    );
    assert_eq!(
        fixture.flows.held_ports(),
        [match kept.endpoint {
            Endpoint::Udp { local, .. } => local,
            other => panic!("{other:?}"),
        }]
    );
    assert!(
        fixture
            .direct_part()
            .expect("a part")
            .need
            .bits_per_second()
            >= 30_000_000
    );
    // The program ends.
    let program = *fixture.driver.programs.keys().next().expect("it is there");
    let event = DriverMessage::Event(DriverEvent::ProgramEnded { program });
    fixture.flows.handle_driver_event(
        &mut fixture.service,
        &eth0(),
        ConnectionEvent::Message(event, Vec::new()),
        fixture.now,
    );
    assert!(fixture.flows.flows.is_empty());
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn the_routes_of_flows_that_are_taken_over_are_checked_without_a_route_event() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    fixture.opened(&client, "10.0.0.2:1", "");
    fixture.opened(&client, "10.0.0.3:1", "");
    fixture.flows.network.moved.insert(host(2), 3);
    fixture.restart();
    assert_eq!(fixture.driver.flows.len(), 2);
    let due = fixture.flows.next_due().expect("the check of the routes");
    let wait = due.since(fixture.now.monotonic);
    assert!(wait <= Nanos::from_millis(100), "{wait}");
    fixture.advance(wait);
    assert_eq!(fixture.driver.flows.len(), 1, "one route leads over eth1");
    assert_eq!(fixture.flows.next_due(), None);
}

#[test]
fn a_flow_taken_over_without_its_groups_port_holds_no_other_port() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    let group = "239.1.1.1:5000".parse().expect("an address");
    let open = OpenFlow {
        endpoint: Endpoint::Group {
            local: "0.0.0.0:0".parse().expect("an address"),
            group,
        },
        ..udp("0.0.0.0:0", None, "")
    };
    fixture
        .request(&client, DirectRequest::Open(open))
        .expect("an answer");
    assert_eq!(fixture.flows.held_ports().len(), 2);
    fixture.restart_with_taken(&[group]);
    assert_eq!(fixture.flows.flows.len(), 1, "the flow continues");
    assert!(fixture.flows.held_ports().is_empty());
}

#[test]
fn a_promise_that_no_longer_fits_is_degraded_and_restored_later() {
    let mut fixture = Fixture::new();
    let mut client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:1", "min 30mbit");
    let cell = "cell pcr=50mbit,cdvt=50ms";
    fixture.opened(&client, "10.0.0.3:1", cell);
    // The link gets a lower rate, as after a restart with another driver.
    fixture.relink("60mbit");
    match client.notifications().as_slice() {
        [FlowNotification::Degraded { flow: 2, why }] => {
            assert!(why.contains("does not fit"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    let text = |fixture: &Fixture, number| {
        let flow = fixture
            .driver
            .flows
            .values()
            .find(|flow| flow.number == number);
        flow.expect("it is there").contract.clone()
    };
    assert_eq!(
        (text(&fixture, 1).as_str(), text(&fixture, 2).as_str()),
        ("min 30mbit", "none")
    );
    fixture.relink("100mbit");
    assert_eq!(text(&fixture, 2), cell);
}

#[test]
fn on_a_slower_link_promises_to_flows_give_way_to_those_to_targets() {
    let mut fixture = Fixture::new();
    fixture.set(7, "min 20mbit");
    let mut client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:1", "min 30mbit");
    fixture.opened(&client, "10.0.0.3:1", "min 10mbit");
    client.notifications();
    let told = |fixture: &mut Fixture, rate: &str| {
        let answer = fixture.link(rate);
        fixture.flows.settle_all(&mut fixture.service, fixture.now);
        fixture.exchange();
        match answer {
            Response::Done(done) => done.messages.join("\n"),
            other => panic!("{other:?}"),
        }
    };
    let degraded = |fixture: &Fixture| {
        let flows = [1, 2].map(|number| fixture.flows.flows[&number].degraded.is_some());
        let targets = fixture.service.ledger().held();
        let targets = targets.filter(|held| held.refused.is_some()).count();
        (flows, targets)
    };
    let text = told(&mut fixture, "40mbit");
    assert!(text.contains("direct flows on eth0 need"), "{text}");
    assert!(text.contains("have at most 20 Mbit/s"), "{text}");
    assert!(!text.contains("pid:7"), "{text}");
    // The older flow does not fit, the younger one does.
    assert_eq!(degraded(&fixture), ([true, false], 0));
    let notified = client.notifications();
    let is_older =
        |one: &FlowNotification| matches!(one, FlowNotification::Degraded { flow: 1, .. });
    assert!(
        notified.len() == 1 && is_older(&notified[0]),
        "{notified:?}"
    );
    let text = told(&mut fixture, "100mbit");
    assert!(!text.contains("direct flows"), "{text}");
    assert_eq!(degraded(&fixture), ([false, false], 0));
}

#[test]
fn a_restarted_daemon_restores_degraded_promises_too() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.opened(&client, "10.0.0.2:1", "min 30mbit");
    fixture.opened(&client, "10.0.0.3:1", "min 50mbit up 60mbit");
    fixture.relink("60mbit");
    // A younger flow fits, and keeps its promise.
    fixture.opened(&client, "10.0.0.4:1", "min 10mbit");
    fixture.restart();
    let known = |fixture: &Fixture, number| {
        let flow = &fixture.flows.flows[&number];
        (flow.contract.to_string(), flow.degraded.is_some())
    };
    let text = |fixture: &Fixture, number| {
        let flows = fixture.driver.flows.values();
        let mut theirs = flows.filter(|flow| flow.number == number);
        theirs.next().expect("it is there").contract.clone()
    };
    assert_eq!(known(&fixture, 1), ("min 30mbit".to_owned(), false));
    assert_eq!(
        known(&fixture, 2),
        ("up 60mbit min 50mbit".to_owned(), true)
    );
    assert_eq!(known(&fixture, 3), ("min 10mbit".to_owned(), false));
    assert_eq!(text(&fixture, 2), "up 60mbit");
    fixture.relink("100mbit");
    assert_eq!(
        known(&fixture, 2),
        ("up 60mbit min 50mbit".to_owned(), false)
    );
    assert_eq!(text(&fixture, 2), "up 60mbit min 50mbit");
    // It stays so after a restart.
    fixture.restart();
    assert_eq!(
        known(&fixture, 2),
        ("up 60mbit min 50mbit".to_owned(), false)
    );
}

#[test]
fn a_call_times_out_and_its_late_result_is_undone() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&ANN, 8);
    fixture.driver_answers = false;
    let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), ""));
    let mut answer = fixture.begin(&client, open);
    fixture.advance(Nanos::from_secs(6));
    let text = error_text(&answer.try_recv().expect("an answer").response);
    assert!(text.contains("does not answer"), "{text}");
    assert!(fixture.flows.held_ports().is_empty());
    fixture.answer_pending();
    assert!(fixture.driver.flows.is_empty(), "the late flow is closed");
}

#[test]
fn a_flow_that_the_driver_refuses_leaves_nothing_held() {
    let mut fixture = Fixture::new();
    let client = fixture.attached_client(&Peer::ROOT, 7);
    fixture.driver.refuses = Some("no room in the memory file".to_owned());
    let text = error_text(&fixture.open(&client, "10.0.0.2:1", "min 30mbit"));
    assert!(text.contains("no room"), "{text}");
    assert!(fixture.flows.held_ports().is_empty());
    assert_eq!(fixture.direct_part(), None);
}

#[test]
fn a_program_that_ends_during_its_attachment_is_detached() {
    let mut fixture = Fixture::new();
    let first = fixture.attached_client(&ANN, 8);
    fixture.driver_answers = false;
    let client = fixture.client(&ANN, 8);
    let _answer = fixture.begin_attach(&client);
    fixture
        .flows
        .connection_ended(client.connection.number, fixture.now);
    fixture.answer_pending();
    assert_eq!(fixture.driver.programs.len(), 1);
    drop(first);
}

#[test]
fn a_connection_counts_for_its_user_until_it_ends_although_its_program_has_ended() {
    let mut fixture = Fixture::new();
    let mut clients = Vec::new();
    for n in 0..64 {
        let client = fixture.attached_client(&ANN, 8);
        let programs = fixture.driver.programs.clone();
        let program = *programs.keys().next_back().expect("a program");
        // The process that it attached with ends at once, and the connection stays.
        fixture.driver.programs.remove(&program);
        let event = DriverMessage::Event(DriverEvent::ProgramEnded { program });
        let event = ConnectionEvent::Message(event, Vec::new());
        fixture
            .flows
            .handle_driver_event(&mut fixture.service, &eth0(), event, fixture.now);
        assert_eq!(fixture.flows.sessions.len(), 0, "{n}");
        clients.push(client);
    }
    let one_more = fixture.client(&ANN, 8);
    let refusal = error_text(&fixture.attach(&one_more, 1));
    assert!(
        refusal.contains("65 programs on the direct path"),
        "{refusal}"
    );
    assert!(refusal.contains("`programs` in [quotas]"), "{refusal}");
    // One of them may attach again, and one that ends frees a place.
    let again = fixture.attach(&clients[0], 1);
    assert!(matches!(again, Response::Direct(DirectReply::Attached(_))));
    fixture
        .flows
        .connection_ended(clients[1].connection.number, fixture.now);
    let now = fixture.attach(&one_more, 1);
    assert!(matches!(now, Response::Direct(DirectReply::Attached(_))));
}
