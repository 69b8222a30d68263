//! Events in the life of an open flow.

use netnice_api::driver::{DriverEvent, DriverMessage};
use netnice_kernel::routes::Neighbour;
use std::net::IpAddr;

use super::*;
use crate::flows::driver::Heard;

fn host(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

#[test]
fn a_station_that_is_not_known_is_asked_for_and_waited_for() {
    let mut stage = Stage::new();
    let seat = stage.program(&ANN, 8);
    stage.flows.network.stations.remove(&host(2));
    let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), ""));
    let mut answer = stage.begin(&seat, open.clone());
    assert!(answer.try_recv().is_err());
    assert_eq!(stage.flows.network.solicited, [host(2)]);
    stage
        .flows
        .network
        .stations
        .insert(host(2), Neighbour::Known([7; 6]));
    stage.changed(Change::Neighbour {
        index: 2,
        next_hop: host(2),
    });
    let told = answer.try_recv().expect("an answer").response;
    let Response::Direct(DirectReply::Opened(opened)) = told else {
        panic!("{told:?}");
    };
    assert_eq!(opened.next_hop, Some([7; 6]));
    // A neighbour that never answers is waited for one second.
    stage.flows.network.stations.remove(&host(2));
    let mut answer = stage.begin(&seat, open);
    stage.pass(Nanos::from_millis(900));
    assert!(answer.try_recv().is_err());
    stage.pass(Nanos::from_millis(100));
    let told = words(&answer.try_recv().expect("an answer").response);
    assert!(told.contains("10.0.0.2 does not answer"), "{told}");
    assert_eq!(stage.flows.held_ports().len(), 1);
}

#[test]
fn hosts_of_flows_to_any_host_are_asked_for_one_by_one() {
    let mut stage = Stage::new();
    let seat = stage.program(&ANN, 8);
    let open = DirectRequest::Open(udp("10.0.0.100:0", None, ""));
    let opened = stage.tell(&seat, open);
    let Some(Response::Direct(DirectReply::Opened(opened))) = opened else {
        panic!("{opened:?}");
    };
    assert_eq!(opened.next_hop, None);
    let to = DirectRequest::NextHop(FindNextHop {
        to: [10, 1, 2, 3].into(),
    });
    let told = stage.tell(&seat, to);
    let Some(Response::Direct(DirectReply::NextHop(hop))) = told else {
        panic!("{told:?}");
    };
    assert_eq!((hop.mac, hop.mtu), ([2, 0, 0, 0, 0, 1], 1400));
}

#[test]
fn a_station_that_changes_is_told_to_driver_and_program() {
    let mut stage = Stage::new();
    let mut seat = stage.program(&ANN, 8);
    let flow = stage.opened(&seat, "10.0.0.2:1", "").flow;
    let hop = |stage: &Stage| {
        stage
            .driver
            .flows
            .values()
            .next()
            .and_then(|flow| flow.next_hop)
    };
    stage
        .flows
        .network
        .stations
        .insert(host(2), Neighbour::Known([9; 6]));
    stage.changed(Change::Neighbour {
        index: 2,
        next_hop: host(2),
    });
    assert_eq!(hop(&stage), Some([9; 6]));
    let mac = Some([9; 6]);
    assert_eq!(seat.heard(), [FlowNotification::NextHop { flow, mac }]);
    stage
        .flows
        .network
        .stations
        .insert(host(2), Neighbour::Failed);
    stage.changed(Change::Neighbour {
        index: 2,
        next_hop: host(2),
    });
    assert_eq!(hop(&stage), None);
    assert_eq!(
        seat.heard(),
        [FlowNotification::NextHop { flow, mac: None }]
    );
    // The kernel is regularly told that the next hop is in use.
    stage.flows.network.solicited.clear();
    stage.flows.tick(stage.now);
    assert_eq!(stage.flows.network.solicited, [host(2)]);
}

#[test]
fn a_flow_whose_way_leads_elsewhere_is_closed_and_told_where() {
    let mut stage = Stage::new();
    let mut seat = stage.program(&ANN, 8);
    let flow = stage.opened(&seat, "10.0.0.2:1", "").flow;
    stage.opened(&seat, "10.0.0.3:1", "");
    stage.flows.network.moved.insert(host(2), 3);
    stage.changed(Change::Routes);
    match seat.heard().as_slice() {
        [FlowNotification::Closed { flow: closed, why }] => {
            assert_eq!(*closed, flow);
            assert!(why.contains("leads over eth1 now"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(stage.driver.flows.len(), 1);
    assert_eq!(stage.flows.held_ports().len(), 1);
}

#[test]
fn a_flow_whose_way_moves_while_it_is_being_opened_is_refused_and_closed() {
    let mut stage = Stage::new();
    let mut seat = stage.program(&ANN, 8);
    stage.answers = false;
    let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), ""));
    let mut answer = stage.begin(&seat, open);
    stage.flows.network.moved.insert(host(2), 3);
    stage.changed(Change::Routes);
    stage.answer_late();
    let told = words(&answer.try_recv().expect("an answer").response);
    assert!(told.contains("leads over eth1 now"), "{told}");
    assert_eq!(seat.heard(), [], "there was no flow to tell of");
    assert!(stage.driver.flows.is_empty());
    assert!(stage.flows.flows.is_empty());
    assert!(stage.flows.held_ports().is_empty());
    assert_eq!(stage.part(), None);
}

#[test]
fn who_leaves_while_a_flow_is_being_opened_leaves_nothing() {
    let mut stage = Stage::new();
    let seat = stage.program(&ANN, 8);
    stage.answers = false;
    let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), ""));
    let _answer = stage.begin(&seat, open);
    stage.flows.left(seat.guest.number, stage.now);
    stage.pump();
    stage.answer_late();
    assert!(stage.driver.flows.is_empty() && stage.driver.programs.is_empty());
    assert!(stage.flows.flows.is_empty());
    assert!(stage.flows.held_ports().is_empty());
    assert_eq!(stage.part(), None);
}

#[test]
fn a_link_that_goes_down_and_comes_up_is_told() {
    let mut stage = Stage::new();
    let mut seat = stage.program(&ANN, 8);
    stage.opened(&seat, "10.0.0.2:1", "");
    stage.flows.network.up = false;
    stage.changed(Change::Routes);
    stage.flows.network.up = true;
    stage.changed(Change::Routes);
    let up = |up| FlowNotification::Link { up };
    assert_eq!(seat.heard(), [up(false), up(true)]);
    assert_eq!(stage.driver.flows.len(), 1);
}

#[test]
fn a_driver_that_ends_closes_all_and_the_next_attachment_starts_one_anew() {
    let mut stage = Stage::new();
    let mut seat = stage.program(&ANN, 8);
    stage.opened(&seat, "10.0.0.2:1", "");
    stage.driver.flows.clear();
    stage.driver.programs.clear();
    let heard = Heard::Ended("the driver of eth0 has ended".to_owned());
    stage
        .flows
        .heard(&mut stage.service, &eth0(), heard, stage.now);
    match seat.heard().as_slice() {
        [FlowNotification::Ended { why }] => assert!(why.contains("has ended"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(stage.flows.held_ports().is_empty());
    assert_eq!(stage.part(), None);
    assert!(words(&stage.open(&seat, "10.0.0.2:1", "")).contains("attach"));
    let again = stage.attach(&seat, 3);
    assert!(
        matches!(again, Response::Direct(DirectReply::Attached(_))),
        "{again:?}"
    );
    assert_eq!(stage.driver.starts, 2);
    stage.opened(&seat, "10.0.0.2:1", "");
}

#[test]
fn who_is_expelled_hears_by_which_rule_and_the_others_go_on() {
    let mut stage = Stage::new();
    let (mut bad, good) = (stage.program(&ANN, 8), stage.program(&Peer::ROOT, 7));
    stage.opened(&bad, "10.0.0.2:1", "");
    stage.opened(&good, "10.0.0.3:1", "");
    let program = stage.driver.flows.values().next().expect("a flow").program;
    let why = "R12: the cursor went back".to_owned();
    let event = DriverMessage::Event(DriverEvent::ProgramDisconnected { program, why });
    stage.flows.heard(
        &mut stage.service,
        &eth0(),
        Heard::Said(event, Vec::new()),
        stage.now,
    );
    match bad.heard().as_slice() {
        [FlowNotification::Ended { why }] => assert!(why.contains("R12"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(stage.flows.held_ports().len(), 1);
    assert_eq!(stage.part().expect("a part").flows, 1);
}

#[test]
fn a_daemon_that_starts_anew_keeps_flows_that_are_there() {
    let mut stage = Stage::new();
    let seat = stage.program(&Peer::ROOT, 7);
    stage.opened(&seat, "10.0.0.2:1", "");
    let kept = stage.opened(&seat, "10.0.0.3:1", "min 30mbit");
    stage.close(&seat, 1);
    stage.restart();
    assert_eq!(stage.driver.flows.len(), 1);
    assert_eq!(
        stage.flows.flows.keys().copied().collect::<Vec<_>>(),
        [kept.flow]
    );
    assert_eq!(
        stage.flows.held_ports(),
        [match kept.endpoint {
            Endpoint::Udp { local, .. } => local,
            other => panic!("{other:?}"),
        }]
    );
    assert!(stage.part().expect("a part").need.bits_per_second() >= 30_000_000);
    // The program ends.
    let program = *stage.driver.programs.keys().next().expect("it is there");
    let event = DriverMessage::Event(DriverEvent::ProgramEnded { program });
    stage.flows.heard(
        &mut stage.service,
        &eth0(),
        Heard::Said(event, Vec::new()),
        stage.now,
    );
    assert!(stage.flows.flows.is_empty());
    assert_eq!(stage.part(), None);
}

#[test]
fn what_no_longer_fits_is_degraded_and_heals() {
    let mut stage = Stage::new();
    let mut seat = stage.program(&Peer::ROOT, 7);
    stage.opened(&seat, "10.0.0.2:1", "min 30mbit");
    stage.opened(&seat, "10.0.0.3:1", "min 50mbit");
    // The link gets a lower rate, as after a restart with another driver.
    stage.relink("60mbit");
    match seat.heard().as_slice() {
        [FlowNotification::Degraded { flow: 2, why }] => {
            assert!(why.contains("does not fit"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    let told = |stage: &Stage, number| {
        let flow = stage
            .driver
            .flows
            .values()
            .find(|flow| flow.number == number);
        flow.expect("it is there").contract.clone()
    };
    assert_eq!(
        (told(&stage, 1).as_str(), told(&stage, 2).as_str()),
        ("min 30mbit", "none")
    );
    stage.relink("100mbit");
    assert_eq!(told(&stage, 2), "min 50mbit");
}

#[test]
fn what_was_not_kept_is_known_to_a_daemon_that_starts_anew_and_heals_there() {
    let mut stage = Stage::new();
    let seat = stage.program(&Peer::ROOT, 7);
    stage.opened(&seat, "10.0.0.2:1", "min 30mbit");
    stage.opened(&seat, "10.0.0.3:1", "min 50mbit up 60mbit");
    stage.relink("60mbit");
    // A younger flow fits, and keeps its promise.
    stage.opened(&seat, "10.0.0.4:1", "min 10mbit");
    stage.restart();
    let known = |stage: &Stage, number| {
        let flow = &stage.flows.flows[&number];
        (flow.contract.to_string(), flow.degraded.is_some())
    };
    let told = |stage: &Stage, number| {
        let flows = stage.driver.flows.values();
        let mut theirs = flows.filter(|flow| flow.number == number);
        theirs.next().expect("it is there").contract.clone()
    };
    assert_eq!(known(&stage, 1), ("min 30mbit".to_owned(), false));
    assert_eq!(known(&stage, 2), ("up 60mbit min 50mbit".to_owned(), true));
    assert_eq!(known(&stage, 3), ("min 10mbit".to_owned(), false));
    assert_eq!(told(&stage, 2), "up 60mbit");
    stage.relink("100mbit");
    assert_eq!(known(&stage, 2), ("up 60mbit min 50mbit".to_owned(), false));
    assert_eq!(told(&stage, 2), "up 60mbit min 50mbit");
    // It stays so after a restart.
    stage.restart();
    assert_eq!(known(&stage, 2), ("up 60mbit min 50mbit".to_owned(), false));
}

#[test]
fn a_driver_that_does_not_answer_is_not_waited_for_and_what_it_did_is_taken_back() {
    let mut stage = Stage::new();
    let seat = stage.program(&ANN, 8);
    stage.answers = false;
    let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), ""));
    let mut answer = stage.begin(&seat, open);
    stage.pass(Nanos::from_secs(6));
    let told = words(&answer.try_recv().expect("an answer").response);
    assert!(told.contains("does not answer"), "{told}");
    assert!(stage.flows.held_ports().is_empty());
    stage.answer_late();
    assert!(stage.driver.flows.is_empty(), "the late flow is closed");
}

#[test]
fn a_driver_that_refuses_leaves_nothing_held() {
    let mut stage = Stage::new();
    let seat = stage.program(&Peer::ROOT, 7);
    stage.driver.refuses = Some("no room in the memory file".to_owned());
    let told = words(&stage.open(&seat, "10.0.0.2:1", "min 30mbit"));
    assert!(told.contains("no room"), "{told}");
    assert!(stage.flows.held_ports().is_empty());
    assert_eq!(stage.part(), None);
}

#[test]
fn who_leaves_while_being_attached_is_detached() {
    let mut stage = Stage::new();
    let first = stage.program(&ANN, 8);
    stage.answers = false;
    let seat = stage.seat(&ANN, 8);
    let attach = DirectRequest::Attach(Attach {
        iface: None,
        flows: 1,
        bytes: 4096,
    });
    let _answer = stage.begin(&seat, attach);
    stage.flows.left(seat.guest.number, stage.now);
    stage.answer_late();
    assert_eq!(stage.driver.programs.len(), 1);
    drop(first);
}

#[test]
fn who_attaches_while_a_driver_ends_for_want_of_flows_gets_the_next_one() {
    let mut stage = Stage::new();
    let idle = stage.program(&ANN, 8);
    stage.flows.left(idle.guest.number, stage.now);
    stage.pump();
    stage.answers = false;
    let seat = stage.seat(&ANN, 8);
    let attach = DirectRequest::Attach(Attach {
        iface: None,
        flows: 1,
        bytes: 4096,
    });
    let mut answer = stage.begin(&seat, attach);
    stage.answers = true;
    let heard = Heard::Ended("the driver of eth0 has ended".to_owned());
    stage
        .flows
        .heard(&mut stage.service, &eth0(), heard, stage.now);
    stage.pump();
    let told = answer.try_recv().expect("an answer").response;
    let attached = matches!(told, Response::Direct(DirectReply::Attached(_)));
    assert!(attached, "{told:?}");
    assert_eq!(stage.driver.starts, 2);
}

#[test]
fn clearing_all_ends_flows_and_drivers() {
    let mut stage = Stage::new();
    let mut seat = stage.program(&ANN, 8);
    stage.opened(&seat, "10.0.0.2:1", "");
    stage.flows.clear(&mut stage.service, stage.now);
    stage.pump();
    assert!(matches!(
        seat.heard().as_slice(),
        [FlowNotification::Ended { .. }]
    ));
    assert!(stage.flows.is_idle() && stage.flows.held_ports().is_empty());
    assert_eq!(stage.part(), None);
}

#[test]
fn a_connection_whose_program_ended_counts_for_its_user_until_it_ends_too() {
    let mut stage = Stage::new();
    let mut seats = Vec::new();
    for n in 0..64 {
        let seat = stage.program(&ANN, 8);
        let programs = stage.driver.programs.clone();
        let program = *programs.keys().next_back().expect("a program");
        // The process that it attached with ends at once, and the connection stays.
        stage.driver.programs.remove(&program);
        let event = DriverMessage::Event(DriverEvent::ProgramEnded { program });
        let heard = Heard::Said(event, Vec::new());
        stage
            .flows
            .heard(&mut stage.service, &eth0(), heard, stage.now);
        assert_eq!(stage.flows.sessions.len(), 0, "{n}");
        seats.push(seat);
    }
    let one_more = stage.seat(&ANN, 8);
    let said = words(&stage.attach(&one_more, 1));
    assert!(said.contains("65 programs on the direct path"), "{said}");
    assert!(said.contains("`programs` in [quotas]"), "{said}");
    // One of them may attach again, and one that ends frees a place.
    let again = stage.attach(&seats[0], 1);
    assert!(matches!(again, Response::Direct(DirectReply::Attached(_))));
    stage.flows.left(seats[1].guest.number, stage.now);
    let now = stage.attach(&one_more, 1);
    assert!(matches!(now, Response::Direct(DirectReply::Attached(_))));
}
