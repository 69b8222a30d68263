use netnice_core::contract::Weight;

use super::rig::{parameters, rig, slice, to};
use super::*;

/// The records with a status were decided, and the others stay the program's: none is sent later.
#[test]
fn a_withdrawn_flow_sends_nothing_more_and_every_taken_record_has_a_status() {
    let mut rig = rig(100_000_000);
    let mut program = rig.program(5000, slice(10), None);
    rig.run(50_000_000, std::slice::from_mut(&mut program));
    rig.datapath.withdraw(program.opened.flow, rig.now);
    rig.datapath.invariants();
    let sent = rig.sink.sent.len();
    program.collect();
    let count = |status| {
        program
            .returned
            .iter()
            .filter(|one| **one == status)
            .count()
    };
    assert_eq!(count(Status::DONE), sent, "each sent record has its status");
    assert_eq!(count(Status::NO_LINK), 1, "the head");
    assert_eq!(sent + 1, program.returned.len());
    let left = program.submitted - program.returned.len() as u64;
    assert!(left > 0 && u64::from(program.flow.given()) == left);
    // Further submissions are not taken either, also after the pause of a refused packet.
    rig.run(200_000_000, std::slice::from_mut(&mut program));
    assert_eq!(rig.sink.sent.len(), sent);
    assert!(rig.datapath.close(program.opened.flow, rig.now).is_some());
}

#[test]
fn a_withdrawn_flow_receives_and_a_closed_one_is_ignored() {
    let mut rig = rig(100_000_000);
    let best = Service::best_effort(Weight::default());
    let mut program = rig.program(5000, best, None);
    let flow = program.opened.flow;
    // A refused packet pauses the flow.
    assert!(program.submit(&[0; 60]) && program.submit_datagram(100));
    rig.transmit();
    rig.datapath.withdraw(flow, rig.now);
    rig.run(50_000_000, &mut []);
    assert_eq!(rig.sink.sent.len(), 0);
    assert!(program.prime(2048));
    rig.datapath.receive(&to(5000, 100), rig.now);
    rig.datapath.publish();
    assert_eq!(program.received().len(), 1);
    assert!(rig.datapath.close(flow, rig.now).is_some());
    rig.datapath.withdraw(flow, rig.now);
    rig.datapath.invariants();
}

/// A member of a class leaves the schedule as any other flow.
#[test]
fn a_second_withdrawal_changes_nothing() {
    let mut rig = rig(100_000_000);
    let open = parameters(5000, slice(10), None);
    let mut program = rig.program_with(5000, &open);
    assert!(program.submit_datagram(1000));
    rig.datapath.withdraw(program.opened.flow, rig.now);
    rig.datapath.withdraw(program.opened.flow, rig.now);
    rig.transmit();
    program.collect();
    assert_eq!((program.returned.len(), rig.sink.sent.len()), (0, 0));
}
