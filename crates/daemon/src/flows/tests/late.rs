//! A driver that answers late: the records match what it did in the end.

use netnice_api::driver::{DriverEvent, DriverMessage};

use super::*;
use crate::flows::driver::Heard;

/// Longer than the time limit of a call.
const STALL: Nanos = Nanos::from_secs(6);

#[test]
fn a_program_that_leaves_while_the_driver_stalls_leaves_nothing_held() {
    for stall in [STALL, Nanos::from_secs(1_000)] {
        let mut stage = Stage::new();
        let seat = stage.program(&Peer::ROOT, 7);
        stage.opened(&seat, "10.0.0.2:1", "min 30mbit");
        stage.answers = false;
        stage.flows.left(seat.guest.number, stage.now);
        stage.pump();
        stage.pass(STALL);
        stage.pass(stall);
        let still = stage.flows.held_ports().len();
        assert_eq!(still, 1, "the driver has the flow yet");
        stage.answer_late();
        assert!(stage.driver.flows.is_empty());
        assert!(stage.flows.flows.is_empty());
        assert!(stage.flows.held_ports().is_empty());
        assert_eq!(stage.part(), None);
    }
}

#[test]
fn a_change_that_was_refused_for_want_of_an_answer_is_in_force_nowhere() {
    for driver_refuses in [false, true] {
        let mut stage = Stage::new();
        let seat = stage.program(&Peer::ROOT, 7);
        let flow = stage.opened(&seat, "10.0.0.2:1", "min 10mbit").flow;
        stage.answers = false;
        let change = DirectRequest::Change(ChangeFlow {
            flow,
            change: "min 30mbit".to_owned(),
        });
        let mut answer = stage.begin(&seat, change);
        stage.pass(STALL);
        let told = words(&answer.try_recv().expect("an answer").response);
        assert!(told.contains("does not answer"), "{told}");
        if driver_refuses {
            stage.unanswered.clear();
        }
        stage.answer_late();
        let at_driver = stage.driver.flows.values().next().expect("it is there");
        assert_eq!(at_driver.contract, "min 10mbit");
        let known = &stage.flows.flows[&flow].contract;
        assert_eq!(known.to_string(), "min 10mbit");
        let need = stage.part().expect("a part").need.bits_per_second();
        assert!((10_000_000..30_000_000).contains(&need), "{need}");
        // The rate that was not granted is free for another flow.
        stage.opened(&seat, "10.0.0.3:1", "min 70mbit");
    }
}

#[test]
fn a_flow_that_is_closed_while_the_driver_stalls_holds_its_port_until_it_is() {
    let mut stage = Stage::new();
    let seat = stage.program(&Peer::ROOT, 7);
    let flow = stage.opened(&seat, "10.0.0.2:1", "min 30mbit").flow;
    stage.answers = false;
    let mut answer = stage.begin(&seat, DirectRequest::Close(CloseFlow { flow }));
    stage.pass(STALL);
    let told = answer.try_recv().expect("an answer").response;
    assert!(matches!(told, Response::Done(_)), "{told:?}");
    assert_eq!(stage.flows.held_ports().len(), 1);
    stage.answer_late();
    assert!(stage.flows.held_ports().is_empty());
    assert_eq!(stage.part(), None);
}

#[test]
fn what_was_refused_for_want_of_an_answer_gives_its_part_of_the_link_back() {
    for stall in [STALL, Nanos::from_secs(1_000)] {
        let mut stage = Stage::new();
        let seat = stage.program(&Peer::ROOT, 7);
        stage.answers = false;
        let open = DirectRequest::Open(udp("0.0.0.0:0", Some("10.0.0.2:1"), "min 30mbit"));
        let _answer = stage.begin(&seat, open);
        stage.pass(STALL);
        assert_eq!(stage.part(), None);
        stage.pass(stall);
        stage.answer_late();
        assert!(stage.driver.flows.is_empty());
        assert_eq!(stage.part(), None);
        assert!(stage.flows.calls.is_empty());
    }
}

#[test]
fn the_classes_grow_however_late_the_driver_says_that_it_has_shrunk() {
    let mut stage = Stage::new();
    let seat = stage.program(&Peer::ROOT, 7);
    stage.opened(&seat, "10.0.0.2:1", "");
    stage.answers = false;
    stage.flows.balance(stage.now);
    let mbit = |n: u64| Rate::new(n * 1_000_000).expect("a rate");
    let split = Split {
        wire: mbit(30),
        tree: mbit(70),
    };
    let applied = stage
        .flows
        .apply(&mut stage.service, &eth0(), split, stage.now);
    applied.expect("applied");
    stage.pump();
    stage.pass(STALL);
    stage.answer_late();
    assert_eq!(stage.driver.rate, 30_000_000);
    assert_eq!(stage.part().expect("a part").tree, mbit(70));
    assert!(!stage.flows.lanes[&eth0()].asked_totals);
}

#[test]
fn flows_of_before_are_found_however_late_the_driver_tells_of_them() {
    let mut stage = Stage::new();
    let seat = stage.program(&Peer::ROOT, 7);
    stage.opened(&seat, "10.0.0.2:1", "min 30mbit");
    stage.answers = false;
    stage.restart();
    stage.pass(Nanos::from_secs(30));
    assert!(stage.flows.flows.is_empty());
    stage.answer_late();
    assert_eq!(stage.flows.flows.len(), 1);
    assert!(stage.part().expect("a part").need.bits_per_second() >= 30_000_000);
}

#[test]
fn what_is_asked_of_a_flow_before_its_end_is_heard_changes_no_other() {
    let mut stage = Stage::new();
    let seat = stage.program(&Peer::ROOT, 7);
    let other = stage.program(&ANN, 8);
    let flow = stage.opened(&seat, "10.0.0.2:1", "min 10mbit").flow;
    stage.answers = false;
    let change = DirectRequest::Change(ChangeFlow {
        flow,
        change: "min 30mbit".to_owned(),
    });
    let mut answer = stage.begin(&seat, change);
    // The process ends, and the driver detects it first.
    let (program, _) = stage.driver.programs.pop_first().expect("it is there");
    let theirs = |flow: &netnice_api::driver::DriverFlow| flow.program == program;
    stage.driver.flows.retain(|_, flow| !theirs(flow));
    stage.answer_late();
    let told = words(&answer.try_recv().expect("an answer").response);
    assert!(told.contains("no such flow"), "{told}");
    stage.opened(&other, "10.0.0.2:1", "");
    let before = stage.driver.flows.clone();
    let event = DriverMessage::Event(DriverEvent::ProgramEnded { program });
    let heard = Heard::Said(event, Vec::new());
    stage
        .flows
        .heard(&mut stage.service, &eth0(), heard, stage.now);
    stage.pump();
    assert_eq!(stage.driver.flows, before);
    assert_eq!(stage.flows.flows.len(), 1);
    assert_eq!(stage.flows.held_ports().len(), 1);
    // What was promised to it is free for another flow.
    let next = stage.program(&Peer::ROOT, 7);
    stage.opened(&next, "10.0.0.3:1", "min 70mbit");
}
