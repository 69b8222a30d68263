use std::os::unix::fs::FileExt;

use netnice_cases::cases;
use netnice_core::contract::{Contract, Weight};
use netnice_core::policer::{Observation, Policer};
use netnice_core::units::Nanos;
use netnice_ring::layout::Budget;
use proptest::prelude::*;

use super::*;
use crate::protocol::EtherType;
use crate::template::Sends;
use crate::test_frames::{PEER, udp};

mod messages;
mod rig;
mod runs;
mod segments;
mod tcp_reset;
mod withdraw;

use rig::*;

#[test]
fn each_flow_gets_its_slice_and_every_byte_leaves_as_submitted() {
    let mut rig = rig(100_000_000);
    let slices = [4, 8, 12];
    let mut programs = slices.map(|ms| rig.program(5000 + ms as u16, slice(ms), None));
    rig.run(1_000_000_000, &mut programs);
    for (ms, program) in slices.iter().zip(&programs) {
        let counters = rig.datapath.counters(program.opened.flow).unwrap();
        // 1500 bytes are 120 us; ten periods.
        let due = 10 * ms * 1_000_000 / 120_000;
        assert!(
            counters.sent.abs_diff(due) <= 2,
            "{ms} ms: {counters:?}, due {due}"
        );
        let port = program.port.to_be_bytes();
        let its: Vec<_> = rig
            .sink
            .sent
            .iter()
            .filter(|frame| frame[34..36] == port)
            .collect();
        assert_eq!(its.len() as u64, counters.sent);
        for (k, frame) in its.iter().enumerate() {
            assert!(frame.len() == 1500 && frame[42..].iter().all(|byte| *byte == k as u8));
        }
    }
}

const LONG: usize = 10;

#[test]
fn refused_records_return_with_the_reason() {
    let mut rig = rig(1_000_000_000);
    rig.now.0 = 5_000_000;
    let best = Service::best_effort(Weight::default());
    let mut program = rig.program(5000, best, None);
    let forged = udp("10.0.0.1:5001", "10.0.0.2:9").frame();
    let long = udp("10.0.0.1:5000", "10.0.0.2:9").data(&[0; 1473]).frame();
    for _ in 0..LONG {
        assert!(program.submit(&long));
    }
    assert!(program.submit(&forged) && program.submit_datagram(10));
    while rig.transmit() != Next::Idle {
        rig.now.0 += 1000;
    }
    program.collect();
    let count = |status| {
        program
            .returned
            .iter()
            .filter(|one| **one == status)
            .count()
    };
    let counts = [Status::TOO_LONG, Status::FORBIDDEN, Status::DONE].map(count);
    assert_eq!(counts, [LONG, 1, 1]);
    // A record has a stamp only if it was sent.
    for (status, stamp) in program.returned.iter().zip(&program.stamps) {
        assert_eq!(*stamp >= 5_000_000, *status == Status::DONE, "{status:?}");
        assert!(
            *status == Status::DONE || *stamp == 0,
            "{status:?}: {stamp}"
        );
    }
    assert_eq!(rig.sink.sent.len(), 1);
}

/// A packet of one byte is never sent, but it takes the link's time of the shortest packet.
#[test]
fn a_short_record_is_charged_as_the_shortest_packet() {
    let mut rig = rig(100_000_000);
    let limited = Service::of(&contract("up 1mbit burst 1ms")).unwrap();
    let mut program = rig.program(5000, limited, None);
    for ms in 1..=100 {
        while program.submit(&[0]) {}
        rig.run(ms * 1_000_000, &mut []);
    }
    program.collect();
    let returned = program.returned.len() as u64;
    // 12,500 bytes in 100 ms, and 125 of the burst.
    let most = (12_500 + 125) / netnice_api::driver::MIN_PACKET_BYTES + 1;
    assert!(
        (most - 10..=most).contains(&returned),
        "{returned} of {most}"
    );
}

#[test]
fn a_full_nic_loses_no_packet() {
    let mut rig = rig(1_000_000_000);
    let best = Service::best_effort(Weight::default());
    let mut programs = [rig.program(5000, best, None)];
    rig.sink.room = 3;
    for _ in 0..10 {
        assert!(programs[0].submit_datagram(100));
    }
    assert_eq!(rig.transmit(), Next::Wait(Instant(1_136)));
    for _ in 0..3 {
        rig.now.0 += 10_000;
        rig.transmit();
    }
    for _ in 0..100 {
        rig.now.0 += 10_000;
        assert_eq!(rig.transmit(), Next::Full);
    }
    assert_eq!(rig.sink.sent.len(), 3);
    let flow = programs[0].opened.flow;
    let held = |rig: &Rig| rig.datapath.balance(flow).unwrap().in_use;
    assert_eq!(held(&rig), 1, "what leaves next");
    rig.sink.room = ROOM;
    for _ in 0..100 {
        rig.now.0 += 10_000;
        rig.transmit();
    }
    assert_eq!(rig.sink.sent.len(), 10);
    assert_eq!(held(&rig), 0);
}

#[test]
fn a_protocol_violation_disconnects_only_its_own_program() {
    let mut rig = rig(100_000_000);
    let mut programs = [
        rig.program(5000, slice(10), None),
        rig.program(5001, slice(10), None),
    ];
    rig.run(200_000_000, &mut programs);
    let [good, mut bad] = programs;
    bad.collect();
    let before = rig.datapath.counters(good.opened.flow).unwrap().sent;
    // All indices and records of this flow are invalid from now on.
    let place = bad.opened.location;
    let area = SHAPE.plan().unwrap().area() as usize;
    bad.memory
        .write_all_at(&vec![0xff; area], place.offset)
        .unwrap();
    let mut programs = [good];
    rig.run(400_000_000, &mut programs);
    // If the driver has not read its ring since, a received frame makes it do so.
    rig.datapath.receive(&to(5001, 10), rig.now);
    rig.datapath.publish();
    let disconnected = rig
        .datapath
        .poll_disconnected()
        .expect("it is disconnected");
    assert_eq!(disconnected.program, bad.program);
    let violation = disconnected.violation;
    assert!(violation.rule_number() > 0, "{violation}");
    assert_eq!(bad.attachment.ended(), Some(violation.rule_number()));
    // Writes of this program and frames for it have no effect now.
    let was = rig.datapath.counters(bad.opened.flow);
    rig.datapath.receive(&to(5001, 10), rig.now);
    rig.transmit();
    assert!(
        rig.datapath.poll_disconnected().is_none(),
        "it is reported once"
    );
    assert_eq!(rig.datapath.counters(bad.opened.flow), was);
    rig.datapath.detach(bad.program, rig.now);
    assert!(rig.datapath.counters(bad.opened.flow).is_none());
    let after = rig.datapath.counters(programs[0].opened.flow).unwrap().sent;
    assert!((after - before).abs_diff(2 * 83) <= 2, "{before} {after}");
    rig.datapath.invariants();
}

#[test]
fn a_flow_without_buffers_loses_only_its_own_packets() {
    let mut rig = rig(100_000_000);
    let mut programs = [
        rig.program(5000, slice(1), None),
        rig.program(5001, slice(1), None),
    ];
    for _ in 0..4 {
        assert!(programs[0].prime(2048));
    }
    assert!(programs[1].prime(2048) && programs[1].prime(64));
    let mut to_group = udp("10.0.0.2:9", "224.1.1.1:77").data(&[3; 300]);
    to_group.macs = (PEER, Mac([1, 0, 0x5e, 1, 1, 1]));
    for frame in [
        to(5000, 100),
        to(5001, 200),
        to_group.frame(),
        to_group.frame(),
    ] {
        rig.datapath.receive(&frame, rig.now);
        rig.datapath.publish();
        rig.datapath.invariants();
    }
    assert_eq!(
        programs[0].received(),
        [to(5000, 100), to_group.frame(), to_group.frame()]
    );
    assert_eq!(programs[1].received(), [to(5001, 200)]);
    let lost = rig.datapath.counters(programs[1].opened.flow).unwrap();
    assert_eq!((lost.too_short, lost.no_buffer), (1, 1));
    let kept = rig.datapath.counters(programs[0].opened.flow).unwrap();
    assert_eq!((kept.delivered, kept.received), (3, 3));
}

#[test]
fn fragments_out_of_order_are_counted_to_their_flow() {
    let mut rig = rig(100_000_000);
    let open = FlowParameters {
        reassembly: Reassembly::InOrder,
        ..parameters(5000, slice(1), None)
    };
    let mut program = rig.program_with(5000, &open);
    while program.prime(2048) {}
    let datagram = udp("10.0.0.2:9", "10.0.0.1:5000").received();
    let parts = datagram.data(&[1; 100]).fragments(32);
    for k in [0, 1, 3, 2] {
        rig.datapath.receive(&parts[k], rig.now);
    }
    rig.datapath.publish();
    assert_eq!(program.received(), [parts[0].clone(), parts[1].clone()]);
    let flow = program.opened.flow;
    let counters = rig.datapath.counters(flow).unwrap();
    assert_eq!((counters.received, counters.out_of_order), (2, 2));
    assert_eq!(crate::setup::counts(&counters).out_of_order, 2);
    let closed = rig.datapath.close(flow, rig.now).unwrap();
    assert_eq!(closed.counters, counters);
}

#[test]
fn a_flooded_flow_is_suspended_before_the_copy() {
    let mut rig = rig(100_000_000);
    let budget = ReceiveBudget::new(10_000, Nanos(1_000));
    let mut programs = [
        rig.program(5000, slice(1), Some(budget)),
        rig.program(5001, slice(1), None),
    ];
    let (mut received, mut other) = (0, 0);
    // A packet each 200 ns for the first flow, a twentieth of that for the other, for 10 ms.
    for k in 0..50_000_u64 {
        while programs[0].prime(2048) {}
        while programs[1].prime(2048) {}
        rig.now = Instant(200 * k);
        rig.datapath.receive(&to(5000, 18), rig.now);
        if k % 20 == 0 {
            rig.datapath.receive(&to(5001, 18), rig.now);
            other += 1;
        }
        rig.datapath.publish();
        received += programs[0].received().len();
        if k % 20 == 0 {
            assert_eq!(programs[1].received().len(), 1);
        }
    }
    let counters = rig.datapath.counters(programs[0].opened.flow).unwrap();
    assert_eq!(counters.delivered, received as u64);
    assert_eq!(counters.received, 50_000);
    // Suspended until half of a microsecond is saved up again, at 1 %.
    let flow = programs[0].opened.flow;
    let (suspended, until) = rig.datapath.poll_suspended().expect("it is flooded");
    let wait = until.0 - rig.now.0;
    assert_eq!(suspended, flow);
    assert!((50_000..=150_000).contains(&wait), "{wait}");
    assert_eq!(rig.datapath.poll_suspended(), None);
    rig.datapath.count_dropped(flow, 7);
    let (before, counters) = (counters, rig.datapath.counters(flow).unwrap());
    assert_eq!(counters.received, before.received + 7);
    assert_eq!(counters.over_budget, before.over_budget + 7);
    assert_eq!(
        programs[0].flow.lost(Loss::OverBudget),
        counters.over_budget
    );
    rig.datapath.invariants();
    // 1 % of 10 ms is 100 us. A packet takes 200 ns of it; the look-ups of dropped packets take the
    // rest.
    assert!(counters.delivered <= 600, "{counters:?}");
    assert_eq!(
        rig.datapath
            .counters(programs[1].opened.flow)
            .unwrap()
            .delivered,
        other
    );
}

proptest! {
    #![proptest_config(cases(150))]

    /// For any actions of programs and any received frames: each submitted record returns once,
    /// each sent packet is allowed by a template, and no program gets another program's packet.
    #[test]
    fn every_record_returns_once_and_packets_reach_only_their_flow(
        steps in prop::collection::vec(
            (0..8_u8, 0..3_usize, 0..1600_usize, 0..3_000_000_u64), 1..150),
    ) {
        let mut rig = rig(50_000_000);
        let services = [slice(10), Service::best_effort(Weight::default()), slice(30)];
        let mut programs: Vec<TestProgram> = services.iter().enumerate()
            .map(|(k, service)| rig.program(5000 + k as u16, *service, None)).collect();
        for (what, which, length, later) in steps {
            let program = &mut programs[which];
            match what {
                0..=2 => { program.submit_datagram(length); }
                3 => { program.submit(&to(program.port, length)); }
                4 => { program.prime(length.max(8) as u32 / 8 * 8); }
                5 => {
                    let frame = to(program.port, length.min(1400));
                    rig.datapath.receive(&frame, rig.now);
                    rig.datapath.publish();
                    let received = programs[which].received();
                    prop_assert!(received.iter().all(|received| *received == frame));
                }
                6 => rig.sink.room = length,
                _ => {
                    rig.now.0 += later;
                    rig.transmit();
                }
            }
        }
        rig.sink.room = ROOM;
        for _ in 0..4_000 {
            programs.iter_mut().for_each(TestProgram::collect);
            let is_done =
                |program: &TestProgram| program.returned.len() as u64 == program.submitted;
            match rig.transmit() {
                Next::Idle if programs.iter().all(is_done) => break,
                Next::Wait(at) => rig.now = at,
                Next::Idle | Next::Again | Next::Full => {}
            }
        }
        let mut left = 0;
        for program in &mut programs {
            program.collect();
            prop_assert_eq!(program.returned.len() as u64, program.submitted);
            let done = program.returned.iter().filter(|status| **status == Status::DONE).count();
            let counters = rig.datapath.counters(program.opened.flow).unwrap();
            prop_assert_eq!(done as u64, counters.sent);
            left += done;
        }
        prop_assert_eq!(rig.sink.sent.len(), left);
        for frame in &rig.sink.sent {
            let port = u16::from_be_bytes([frame[34], frame[35]]);
            prop_assert!((5000..5003).contains(&port) && frame.len() <= 1514);
            prop_assert!(frame[..6] == PEER.0);
        }
    }
}

#[test]
fn too_long_records_are_read_no_faster_than_the_contract_sends() {
    let mut rig = rig(1_000_000_000);
    let slow: Contract = "up 1mbit".parse().unwrap();
    let mut program = rig.program(5000, Service::of(&slow).unwrap(), None);
    let long = udp("10.0.0.1:5000", "10.0.0.2:9").data(&[0; 1473]).frame();
    let mut iterations = 0;
    // One second, at each time that the driver asks for.
    while rig.now.0 < 1_000_000_000 {
        while program.submit(&long) {}
        iterations += 1;
        rig.now = match rig.transmit() {
            Next::Wait(at) => at.max(Instant(rig.now.0 + 1)),
            next => panic!("another iteration is wanted at once: {next:?}"),
        };
        program.collect();
    }
    let returned = program.returned.len();
    assert!(program.returned.iter().all(|one| *one == Status::TOO_LONG));
    // 82 packets of 1,514 bytes in a second, and the burst.
    assert!((80..=100).contains(&returned), "{returned}");
    assert!(
        iterations <= 2 * returned + 2,
        "{iterations} iterations for {returned}"
    );
}

/// A flow whose packets are all refused takes none of the link: another best effort has all of it.
/// The refused packets are read no faster than the link could have carried them, however many flows
/// the program has.
#[test]
fn refused_packets_cost_only_their_own_program() {
    const SECOND: u64 = 1_000_000_000;
    let forged = udp("10.0.0.1:6", "10.0.0.2:9").data(&[0; 1458]).frame();
    let long = udp("10.0.0.1:5000", "10.0.0.2:9").data(&[0; 1473]).frame();
    for (refused, with_other) in [(&forged, true), (&long, true), (&forged, false)] {
        let mut rig = rig(100_000_000);
        let best = Service::best_effort(Weight::default());
        let mut violator = rig.program(5000, best, None);
        let mut others = Vec::from_iter(with_other.then(|| rig.program(5001, best, None)));
        let mut iterations = 0;
        while rig.now.0 < SECOND {
            while violator.submit(refused) {}
            for other in &mut others {
                while other.submit_datagram(1458) {}
            }
            iterations += 1;
            rig.now = match rig.transmit() {
                Next::Wait(at) => at,
                // The link is free again at once for the other flow.
                Next::Again => rig.now,
                next => panic!("{next:?}"),
            };
        }
        violator.collect();
        assert!(violator.returned.iter().all(|one| *one != Status::DONE));
        // 120 us for each packet.
        let read = violator.returned.len();
        assert!((4_000..=8_400).contains(&read), "{read} refused packets");
        assert!(iterations <= 40_000, "{iterations} iterations");
        if with_other {
            let sent = rig.sink.sent.len();
            assert!((8_300..=8_400).contains(&sent), "{sent} packets of 8,333");
        }
    }
}

/// After a refused packet a flow continues: with the records behind it, and with those that come
/// during its pause or afterwards. A closed flow's pause does not touch the next flow.
#[test]
fn a_flow_goes_on_after_a_refused_packet() {
    let mut rig = rig(100_000_000);
    let best = Service::best_effort(Weight::default());
    let mut program = rig.program(5000, best, None);
    let forged = udp("10.0.0.1:6", "10.0.0.2:9").data(&[0; 1458]).frame();
    assert!(program.submit(&forged) && program.submit_datagram(10));
    rig.transmit();
    // The scheduler drops its entry of the withdrawn head.
    rig.now.0 = 10;
    assert_eq!(rig.transmit(), Next::Wait(Instant(120_000)), "the pause");
    rig.now.0 = 119_999;
    assert_eq!(rig.transmit(), Next::Wait(Instant(120_000)));
    rig.now.0 = 120_000;
    rig.transmit();
    assert_eq!(rig.sink.sent.len(), 1, "the record behind it");
    rig.now.0 = 1_000_000;
    assert!(program.submit(&forged));
    rig.transmit();
    assert!(program.submit_datagram(10));
    rig.now.0 = 1_100_000;
    rig.transmit();
    assert_eq!(rig.sink.sent.len(), 1);
    rig.now.0 = 1_120_000;
    rig.transmit();
    assert_eq!(rig.sink.sent.len(), 2, "a record of the pause");
    rig.now.0 = 2_000_000;
    assert!(program.submit(&forged));
    rig.transmit();
    rig.now.0 = 3_000_000;
    assert_eq!(rig.transmit(), Next::Idle);
    assert!(program.submit_datagram(10));
    rig.transmit();
    assert_eq!(rig.sink.sent.len(), 3, "a later record");
    assert!(program.submit(&forged));
    rig.now.0 = 4_000_000;
    rig.transmit();
    rig.datapath.detach(program.program, rig.now);
    let mut next = rig.program(5000, best, None);
    assert_eq!(next.opened.flow, program.opened.flow, "the same number");
    assert!(next.submit_datagram(10));
    rig.transmit();
    assert_eq!(rig.sink.sent.len(), 4);
    rig.now.0 = 5_000_000;
    assert_eq!(rig.transmit(), Next::Idle);
}

#[test]
fn a_refused_flow_releases_its_place() {
    let mut rig = rig(100_000_000);
    let best = Service::best_effort(Weight::default());
    rig.program(5000, best, None);
    // Room for one flow, and no more.
    let budget = Budget {
        flows: 1,
        bytes: SHAPE.plan().unwrap().bytes(),
    };
    let program = rig.datapath.attach(ProgramMemory::create(budget).unwrap());
    for _ in 0..100 {
        let why = rig
            .datapath
            .open(program, &parameters(5000, best, None), rig.now);
        assert!(matches!(why, Err(OpenError::Match(MatchError::Taken))));
        rig.datapath.invariants();
    }
    rig.datapath
        .open(program, &parameters(5001, best, None), rig.now)
        .unwrap();
}

#[test]
fn an_iteration_reads_a_bounded_number_of_flows() {
    let flows = 2 * FLOWS_PER_ITERATION + 1;
    let mut rig = rig(100_000_000_000);
    rig.sink.room = 0;
    let mut programs: Vec<TestProgram> = (0..flows)
        .map(|k| {
            let mut open = parameters(
                1000 + k as u16,
                Service::best_effort(Weight::default()),
                None,
            );
            // A group has fewer members.
            open.matches.truncate(1);
            rig.program_with(1000 + k as u16, &open)
        })
        .collect();
    for program in &mut programs {
        assert!(program.submit_datagram(100));
    }
    for (handled, next) in [
        (FLOWS_PER_ITERATION, Next::Again),
        (2 * FLOWS_PER_ITERATION, Next::Again),
        (flows, Next::Full),
    ] {
        assert_eq!(rig.transmit(), next);
        assert_eq!(rig.datapath.handled, handled);
        let known = rig.datapath.flows.iter().flatten();
        assert_eq!(known.filter(|flow| flow.has_head).count(), handled);
    }
    rig.sink.room = ROOM;
    rig.run(1_000_000, &mut []);
    assert_eq!(rig.sink.sent.len(), flows, "each of them once");
    for program in &mut programs {
        program.collect();
        assert_eq!(program.returned, [Status::DONE]);
    }
}

/// The driver is stopped in each iteration: `stops` returns the delays in us before the choice and
/// after it. None of 5,000 such frames is early. Returns the time that they took, in ns.
fn stopped(sends: Option<Sends>, frame: &[u8], stops: impl Fn(usize) -> (u64, u64)) -> u64 {
    let contract = contract("cell pcr=10mbit,cdvt=500us");
    let mut rig = rig(1_000_000_000);
    let mut open = parameters(5000, Service::of(&contract).unwrap(), None);
    open.sender.sends = sends.unwrap_or(open.sender.sends);
    let mut program = rig.program_with(5000, &open);
    let mut police = Policer::contract(&contract).unwrap();
    let mut seen = 0;
    for iteration in 0_usize.. {
        while program.submit(frame) {}
        let next = rig.datapath.transmit(&mut rig.sink, rig.now);
        let (late, behind) = stops(iteration);
        let left = Instant(rig.now.0 + behind * 1_000);
        rig.datapath.all_sent(|| left);
        rig.datapath.publish();
        for frame in rig.sink.sent.drain(..) {
            let length =
                Bytes(frame.len() as u64).max(Bytes(netnice_api::driver::MIN_PACKET_BYTES));
            police.handle(Observation { at: left, length }).unwrap();
            seen += 1;
        }
        if seen >= 5_000 {
            break;
        }
        let Next::Wait(at) = next else { continue };
        rig.now = Instant(left.0.max(at.0 + late * 1_000));
    }
    let counters = rig.datapath.counters(program.opened.flow).unwrap();
    assert_eq!(counters.sent, seen);
    rig.datapath.invariants();
    rig.now.0
}

#[test]
fn no_packet_is_early_after_a_stop_before_the_nic() {
    let frame = udp("10.0.0.1:5000", "10.0.0.2:9").data(&[0; 1500 - 28 - 14]);
    // Each delay within the tolerance and both together beyond it, or each beyond it.
    let stops = [0, 3, 260, 499, 501, 240, 7, 700, 30];
    let took = stopped(None, &frame.frame(), |iteration| {
        let late = iteration * 7 % (stops.len() - 1);
        (stops[late], stops[iteration % stops.len()])
    });
    assert!(took < 1_900 * 5_000_000, "{took} ns for 5,000 packets");
}

/// A delay counts the length that was charged.
#[test]
fn no_packet_is_early_after_a_stop_if_charged_as_longer() {
    let mut frame = [0; 20];
    frame[..6].copy_from_slice(&PEER.0);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let kind = Sends::EtherType(EtherType::new(0x88b5).unwrap());
    let stops = |iteration: usize| {
        (
            0,
            if iteration.is_multiple_of(50) {
                5_000
            } else {
                0
            },
        )
    };
    stopped(Some(kind), &frame, stops);
}

#[test]
fn frames_in_flight_are_bounded_if_the_nic_completes_none() {
    let mut rig = rig(1_000_000_000);
    let contract = contract("cell pcr=100mbit,cdvt=500us");
    let service = Service::of(&contract).unwrap();
    let mut programs = [rig.program(5000, service, None)];
    rig.run(1_000_000_000, &mut programs);
    let sent = rig.datapath.counters(programs[0].opened.flow).unwrap().sent;
    assert!(sent > 3 * MAX_IN_FLIGHT as u64, "{sent}");
    let leaving = rig.datapath.in_flight();
    assert!(
        (MAX_IN_FLIGHT..=2 * MAX_IN_FLIGHT + BATCH).contains(&leaving),
        "{leaving}"
    );
    // The packets have left by then, and the next one is not early.
    let by = Instant(rig.now.0 + 3_000_000);
    rig.datapath.all_sent(|| by);
    assert_eq!(rig.datapath.in_flight(), 0);
    rig.now = by;
    while programs[0].submit_datagram(1500 - 28 - 14) {}
    let Next::Wait(at) = rig.datapath.transmit(&mut rig.sink, rig.now) else {
        panic!("all that was delayed is behind it");
    };
    assert!(at > by, "{at:?}");
}

#[test]
fn a_late_call_for_a_detached_program_finds_no_program() {
    let mut rig = rig(100_000_000);
    let gone = rig.program(5000, slice(4), None);
    assert!(rig.datapath.detach(gone.program, rig.now).is_some());
    let here = rig.program(5000, slice(4), None);
    assert_eq!(rig.datapath.programs().collect::<Vec<_>>(), [here.program]);
    assert_ne!(here.program, gone.program);
    assert!(rig.datapath.detach(gone.program, rig.now).is_none());
    assert!(rig.datapath.memory(gone.program).is_none());
    assert!(rig.datapath.counters(here.opened.flow).is_some());
    rig.datapath.invariants();
}
