use std::os::unix::fs::FileExt;

use netnice_cases::cases;
use netnice_core::contract::{Contract, Weight};
use netnice_core::policer::{Observation, Policer};
use netnice_core::units::Nanos;
use netnice_ring::layout::Budget;
use proptest::prelude::*;

use super::*;
use crate::protocol::EtherType;
use crate::story::{PEER, udp};
use crate::template::Sends;

mod rig;

use rig::*;

#[test]
fn each_gets_its_slice_and_every_byte_leaves_as_it_was_submitted() {
    let mut rig = rig(100_000_000);
    let slices = [4, 8, 12];
    let mut talkers = slices.map(|ms| rig.talker(5000 + ms as u16, slice(ms), None));
    rig.run(1_000_000_000, &mut talkers);
    for (ms, talker) in slices.iter().zip(&talkers) {
        let counters = rig.turn.counters(talker.opened.flow).unwrap();
        // 1500 bytes are 120 us; ten periods.
        let due = 10 * ms * 1_000_000 / 120_000;
        assert!(
            counters.sent.abs_diff(due) <= 2,
            "{ms} ms: {counters:?}, due {due}"
        );
        let port = talker.port.to_be_bytes();
        let its: Vec<_> = rig
            .card
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
fn what_may_not_leave_comes_back_and_says_so() {
    let mut rig = rig(1_000_000_000);
    rig.now.0 = 5_000_000;
    let best = Service::best_effort(Weight::default());
    let mut talker = rig.talker(5000, best, None);
    let forged = udp("10.0.0.1:5001", "10.0.0.2:9").frame();
    let long = udp("10.0.0.1:5000", "10.0.0.2:9").data(&[0; 1473]).frame();
    for _ in 0..LONG {
        assert!(talker.submits(&long));
    }
    assert!(talker.submits(&forged) && talker.says(10));
    while rig.transmit() != Next::Idle {
        rig.now.0 += 1000;
    }
    talker.collects();
    let count = |status| talker.back.iter().filter(|one| **one == status).count();
    let counts = [Status::TOO_LONG, Status::FORBIDDEN, Status::DONE].map(count);
    assert_eq!(counts, [LONG, 1, 1]);
    // A record has a stamp only if it was sent.
    for (status, stamp) in talker.back.iter().zip(&talker.stamps) {
        assert_eq!(*stamp >= 5_000_000, *status == Status::DONE, "{status:?}");
        assert!(
            *status == Status::DONE || *stamp == 0,
            "{status:?}: {stamp}"
        );
    }
    assert_eq!(rig.card.sent.len(), 1);
}

/// A packet of one byte is never sent, but it takes the link's time of the shortest packet.
#[test]
fn whatever_is_short_counts_as_the_shortest_packet() {
    let mut rig = rig(100_000_000);
    let limited = Service::of(&contract("up 1mbit burst 1ms")).unwrap();
    let mut talker = rig.talker(5000, limited, None);
    for ms in 1..=100 {
        while talker.submits(&[0]) {}
        rig.run(ms * 1_000_000, &mut []);
    }
    talker.collects();
    let back = talker.back.len() as u64;
    // 12,500 bytes in 100 ms, and 125 of the burst.
    let most = (12_500 + 125) / netnice_api::driver::MIN_PACKET_BYTES + 1;
    assert!((most - 10..=most).contains(&back), "{back} of {most}");
}

#[test]
fn a_card_without_room_loses_nothing() {
    let mut rig = rig(1_000_000_000);
    let best = Service::best_effort(Weight::default());
    let mut talkers = [rig.talker(5000, best, None)];
    rig.card.room = 3;
    for _ in 0..10 {
        assert!(talkers[0].says(100));
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
    assert_eq!(rig.card.sent.len(), 3);
    let flow = talkers[0].opened.flow;
    let held = |rig: &Rig| rig.turn.balance(flow).unwrap().in_use;
    assert_eq!(held(&rig), 1, "what leaves next");
    rig.card.room = ROOM;
    for _ in 0..100 {
        rig.now.0 += 10_000;
        rig.transmit();
    }
    assert_eq!(rig.card.sent.len(), 10);
    assert_eq!(held(&rig), 0);
}

#[test]
fn who_breaks_the_ring_is_expelled_and_nobody_else_notices() {
    let mut rig = rig(100_000_000);
    let mut talkers = [
        rig.talker(5000, slice(10), None),
        rig.talker(5001, slice(10), None),
    ];
    rig.run(200_000_000, &mut talkers);
    let [good, mut bad] = talkers;
    bad.collects();
    let before = rig.turn.counters(good.opened.flow).unwrap().sent;
    // All indices and records of this flow are invalid from now on.
    let place = bad.opened.place;
    let area = SHAPE.plan().unwrap().area() as usize;
    bad.memory
        .write_all_at(&vec![0xff; area], place.offset)
        .unwrap();
    let mut talkers = [good];
    rig.run(400_000_000, &mut talkers);
    // If the driver has not read its ring since, a received frame makes it do so.
    rig.turn.receive(&to(5001, 10), rig.now);
    rig.turn.publish();
    let expelled = rig.turn.poll_expelled().expect("it is expelled");
    assert_eq!(expelled.program, bad.program);
    let breach = expelled.breach;
    assert!(breach.rule_number() > 0, "{breach}");
    assert_eq!(bad.attachment.ended(), Some(breach.rule_number()));
    // Writes of this program and frames for it have no effect now.
    let was = rig.turn.counters(bad.opened.flow);
    rig.turn.receive(&to(5001, 10), rig.now);
    rig.transmit();
    assert!(rig.turn.poll_expelled().is_none(), "it is said once");
    assert_eq!(rig.turn.counters(bad.opened.flow), was);
    rig.turn.detach(bad.program, rig.now);
    assert!(rig.turn.counters(bad.opened.flow).is_none());
    let after = rig.turn.counters(talkers[0].opened.flow).unwrap().sent;
    assert!((after - before).abs_diff(2 * 83) <= 2, "{before} {after}");
    rig.turn.invariants();
}

#[test]
fn who_primes_nothing_loses_its_own_packets_alone() {
    let mut rig = rig(100_000_000);
    let mut talkers = [
        rig.talker(5000, slice(1), None),
        rig.talker(5001, slice(1), None),
    ];
    for _ in 0..4 {
        assert!(talkers[0].primes(2048));
    }
    assert!(talkers[1].primes(2048) && talkers[1].primes(64));
    let mut to_group = udp("10.0.0.2:9", "224.1.1.1:77").data(&[3; 300]);
    to_group.macs = (PEER, Mac([1, 0, 0x5e, 1, 1, 1]));
    for frame in [
        to(5000, 100),
        to(5001, 200),
        to_group.frame(),
        to_group.frame(),
    ] {
        rig.turn.receive(&frame, rig.now);
        rig.turn.publish();
        rig.turn.invariants();
    }
    assert_eq!(
        talkers[0].hears(),
        [to(5000, 100), to_group.frame(), to_group.frame()]
    );
    assert_eq!(talkers[1].hears(), [to(5001, 200)]);
    let lost = rig.turn.counters(talkers[1].opened.flow).unwrap();
    assert_eq!((lost.too_short, lost.no_buffer), (1, 1));
    let kept = rig.turn.counters(talkers[0].opened.flow).unwrap();
    assert_eq!((kept.delivered, kept.received), (3, 3));
}

#[test]
fn parts_that_a_flow_in_order_does_not_get_are_counted_to_it() {
    let mut rig = rig(100_000_000);
    let open = Open {
        reassembly: Reassembly::InOrder,
        ..asks(5000, slice(1), None)
    };
    let mut talker = rig.talker_by(5000, &open);
    while talker.primes(2048) {}
    let datagram = udp("10.0.0.2:9", "10.0.0.1:5000").received();
    let parts = datagram.data(&[1; 100]).parts(32);
    for k in [0, 1, 3, 2] {
        rig.turn.receive(&parts[k], rig.now);
    }
    rig.turn.publish();
    assert_eq!(talker.hears(), [parts[0].clone(), parts[1].clone()]);
    let flow = talker.opened.flow;
    let counters = rig.turn.counters(flow).unwrap();
    assert_eq!((counters.received, counters.out_of_order), (2, 2));
    assert_eq!(crate::setup::counts(&counters).out_of_order, 2);
    let closed = rig.turn.close(flow, rig.now).unwrap();
    assert_eq!(closed.counters, counters);
}

#[test]
fn a_flooded_flow_is_cut_before_the_copy() {
    let mut rig = rig(100_000_000);
    let share = Share::new(10_000, Nanos(1_000));
    let mut talkers = [
        rig.talker(5000, slice(1), Some(share)),
        rig.talker(5001, slice(1), None),
    ];
    let (mut heard, mut other) = (0, 0);
    // A packet each 200 ns for the first flow, a twentieth of that for the other, for 10 ms.
    for k in 0..50_000_u64 {
        while talkers[0].primes(2048) {}
        while talkers[1].primes(2048) {}
        rig.now = Instant(200 * k);
        rig.turn.receive(&to(5000, 18), rig.now);
        if k % 20 == 0 {
            rig.turn.receive(&to(5001, 18), rig.now);
            other += 1;
        }
        rig.turn.publish();
        heard += talkers[0].hears().len();
        if k % 20 == 0 {
            assert_eq!(talkers[1].hears().len(), 1);
        }
    }
    let counters = rig.turn.counters(talkers[0].opened.flow).unwrap();
    assert_eq!(counters.delivered, heard as u64);
    assert_eq!(counters.received, 50_000);
    // Suspended until half of a microsecond is saved up again, at 1 %.
    let flow = talkers[0].opened.flow;
    let (shut, until) = rig.turn.poll_shut().expect("it is flooded");
    let wait = until.0 - rig.now.0;
    assert_eq!(shut, flow);
    assert!((50_000..=150_000).contains(&wait), "{wait}");
    assert_eq!(rig.turn.poll_shut(), None);
    rig.turn.shut_out(flow, 7);
    let (before, counters) = (counters, rig.turn.counters(flow).unwrap());
    assert_eq!(counters.received, before.received + 7);
    assert_eq!(counters.over_share, before.over_share + 7);
    assert_eq!(talkers[0].flow.lost(Loss::OverBudget), counters.over_share);
    rig.turn.invariants();
    // 1 % of 10 ms is 100 us. A packet takes 200 ns of it; the look-ups of dropped packets take the
    // rest.
    assert!(counters.delivered <= 600, "{counters:?}");
    assert_eq!(
        rig.turn.counters(talkers[1].opened.flow).unwrap().delivered,
        other
    );
}

proptest! {
    #![proptest_config(cases(150))]

    /// For any actions of programs and any received frames: each submitted record returns once,
    /// each sent packet is allowed by a template, and no program gets another program's packet.
    #[test]
    fn nothing_is_lost_and_nothing_is_mixed_up(
        steps in prop::collection::vec((0..8_u8, 0..3_usize, 0..1600_usize, 0..3_000_000_u64), 1..150),
    ) {
        let mut rig = rig(50_000_000);
        let services = [slice(10), Service::best_effort(Weight::default()), slice(30)];
        let mut talkers: Vec<Talker> = services.iter().enumerate()
            .map(|(k, service)| rig.talker(5000 + k as u16, *service, None)).collect();
        for (what, whose, length, later) in steps {
            let talker = &mut talkers[whose];
            match what {
                0..=2 => { talker.says(length); }
                3 => { talker.submits(&to(talker.port, length)); }
                4 => { talker.primes(length.max(8) as u32 / 8 * 8); }
                5 => {
                    let frame = to(talker.port, length.min(1400));
                    rig.turn.receive(&frame, rig.now);
                    rig.turn.publish();
                    prop_assert!(talkers[whose].hears().iter().all(|heard| *heard == frame));
                }
                6 => rig.card.room = length,
                _ => {
                    rig.now.0 += later;
                    rig.transmit();
                }
            }
        }
        rig.card.room = ROOM;
        for _ in 0..4_000 {
            talkers.iter_mut().for_each(Talker::collects);
            let is_done = |talker: &Talker| talker.back.len() as u64 == talker.submitted;
            match rig.transmit() {
                Next::Idle if talkers.iter().all(is_done) => break,
                Next::Wait(at) => rig.now = at,
                Next::Idle | Next::Again | Next::Full => {}
            }
        }
        let mut left = 0;
        for talker in &mut talkers {
            talker.collects();
            prop_assert_eq!(talker.back.len() as u64, talker.submitted);
            let done = talker.back.iter().filter(|status| **status == Status::DONE).count();
            let counters = rig.turn.counters(talker.opened.flow).unwrap();
            prop_assert_eq!(done as u64, counters.sent);
            left += done;
        }
        prop_assert_eq!(rig.card.sent.len(), left);
        for frame in &rig.card.sent {
            let port = u16::from_be_bytes([frame[34], frame[35]]);
            prop_assert!((5000..5003).contains(&port) && frame.len() <= 1514 && frame[..6] == PEER.0);
        }
    }
}

#[test]
fn records_that_are_too_long_are_looked_at_no_more_often_than_the_contract_sends() {
    let mut rig = rig(1_000_000_000);
    let slow: Contract = "up 1mbit".parse().unwrap();
    let mut talker = rig.talker(5000, Service::of(&slow).unwrap(), None);
    let long = udp("10.0.0.1:5000", "10.0.0.2:9").data(&[0; 1473]).frame();
    let mut turns = 0;
    // One second, at each time that the driver asks for.
    while rig.now.0 < 1_000_000_000 {
        while talker.submits(&long) {}
        turns += 1;
        rig.now = match rig.transmit() {
            Next::Wait(at) => at.max(Instant(rig.now.0 + 1)),
            next => panic!("it is to go round at once: {next:?}"),
        };
        talker.collects();
    }
    let back = talker.back.len();
    assert!(talker.back.iter().all(|one| *one == Status::TOO_LONG));
    // 82 packets of 1,514 bytes in a second, and the burst.
    assert!((80..=100).contains(&back), "{back}");
    assert!(turns <= 2 * back + 2, "{turns} turns for {back}");
}

#[test]
fn a_flow_that_is_refused_leaves_its_place_to_others() {
    let mut rig = rig(100_000_000);
    let best = Service::best_effort(Weight::default());
    rig.talker(5000, best, None);
    // Room for one flow, and no more.
    let budget = Budget {
        flows: 1,
        bytes: SHAPE.plan().unwrap().bytes(),
    };
    let program = rig.turn.attach(ProgramMemory::create(budget).unwrap());
    for _ in 0..100 {
        let why = rig.turn.open(program, &asks(5000, best, None), rig.now);
        assert!(matches!(why, Err(OpenError::Match(Refused::Taken))));
        rig.turn.invariants();
    }
    rig.turn
        .open(program, &asks(5001, best, None), rig.now)
        .unwrap();
}

#[test]
fn a_turn_looks_at_so_many_flows_and_those_that_follow_at_the_others() {
    let flows = 2 * NEWS + 1;
    let mut rig = rig(100_000_000_000);
    rig.card.room = 0;
    let mut talkers: Vec<Talker> = (0..flows)
        .map(|k| {
            let mut open = asks(
                1000 + k as u16,
                Service::best_effort(Weight::default()),
                None,
            );
            // A group has fewer members.
            open.matches.truncate(1);
            rig.talker_by(1000 + k as u16, &open)
        })
        .collect();
    for talker in &mut talkers {
        assert!(talker.says(100));
    }
    for (looked, next) in [
        (NEWS, Next::Again),
        (2 * NEWS, Next::Again),
        (flows, Next::Full),
    ] {
        assert_eq!(rig.transmit(), next);
        assert_eq!(rig.turn.looked, looked);
        let known = rig.turn.flows.iter().flatten();
        assert_eq!(known.filter(|flow| flow.head.is_some()).count(), looked);
    }
    rig.card.room = ROOM;
    rig.run(1_000_000, &mut []);
    assert_eq!(rig.card.sent.len(), flows, "each of them once");
    for talker in &mut talkers {
        talker.collects();
        assert_eq!(talker.back, [Status::DONE]);
    }
}

/// The driver is stopped in each round: `stops` returns the delays in us before the choice and
/// after it. None of 5,000 such frames is early. Returns the time that they took, in ns.
fn stopped(sends: Option<Sends>, frame: &[u8], stops: impl Fn(usize) -> (u64, u64)) -> u64 {
    let contract = contract("cell pcr=10mbit,cdvt=500us");
    let mut rig = rig(1_000_000_000);
    let mut open = asks(5000, Service::of(&contract).unwrap(), None);
    open.sender.sends = sends.unwrap_or(open.sender.sends);
    let mut talker = rig.talker_by(5000, &open);
    let mut police = Policer::contract(&contract).unwrap();
    let mut seen = 0;
    for round in 0_usize.. {
        while talker.submits(frame) {}
        let next = rig.turn.transmit(&mut rig.card, rig.now);
        let (late, behind) = stops(round);
        let left = Instant(rig.now.0 + behind * 1_000);
        rig.turn.left(|| left);
        rig.turn.publish();
        for frame in rig.card.sent.drain(..) {
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
    let counters = rig.turn.counters(talker.opened.flow).unwrap();
    assert_eq!(counters.sent, seen);
    rig.turn.invariants();
    rig.now.0
}

#[test]
fn whoever_is_stopped_before_the_card_is_never_early_afterwards() {
    let frame = udp("10.0.0.1:5000", "10.0.0.2:9").data(&[0; 1500 - 28 - 14]);
    // Each delay within the tolerance and both together beyond it, or each beyond it.
    let stops = [0, 3, 260, 499, 501, 240, 7, 700, 30];
    let took = stopped(None, &frame.frame(), |round| {
        let late = round * 7 % (stops.len() - 1);
        (stops[late], stops[round % stops.len()])
    });
    assert!(took < 1_900 * 5_000_000, "{took} ns for 5,000 packets");
}

/// A delay counts the length that was charged.
#[test]
fn nor_is_it_with_packets_that_count_as_longer_ones() {
    let mut frame = [0; 20];
    frame[..6].copy_from_slice(&PEER.0);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let kind = Sends::EtherType(EtherType::new(0x88b5).unwrap());
    let stops = |round: usize| (0, if round.is_multiple_of(50) { 5_000 } else { 0 });
    stopped(Some(kind), &frame, stops);
}

#[test]
fn what_a_card_that_is_never_done_still_has_is_not_forgotten_and_the_rest_is() {
    let mut rig = rig(1_000_000_000);
    let contract = contract("cell pcr=100mbit,cdvt=500us");
    let service = Service::of(&contract).unwrap();
    let mut talkers = [rig.talker(5000, service, None)];
    rig.run(1_000_000_000, &mut talkers);
    let sent = rig.turn.counters(talkers[0].opened.flow).unwrap().sent;
    assert!(sent > 3 * HELD as u64, "{sent}");
    let leaving = rig.turn.under_way();
    assert!((HELD..=2 * HELD + BATCH).contains(&leaving), "{leaving}");
    // The packets have left by then, and the next one is not early.
    let by = Instant(rig.now.0 + 3_000_000);
    rig.turn.left(|| by);
    assert_eq!(rig.turn.under_way(), 0);
    rig.now = by;
    while talkers[0].says(1500 - 28 - 14) {}
    let Next::Wait(at) = rig.turn.transmit(&mut rig.card, rig.now) else {
        panic!("all that was delayed is behind it");
    };
    assert!(at > by, "{at:?}");
}

#[test]
fn a_message_that_waited_behind_another_has_its_deadline_from_when_it_came() {
    let mut rig = rig(10_000_000);
    let service = |typed| Service::of(&contract(typed)).unwrap();
    let two = service("channel mmax=1500B,rmax=100/s,bmax=2,deadline=30ms");
    let one = service("channel mmax=1500B,rmax=10/s,bmax=1,deadline=20ms");
    let (mut first, mut second) = (rig.talker(5000, two, None), rig.talker(6000, one, None));
    assert!(first.says(1400) && first.says(1400));
    // Its two messages are read, and nothing leaves for 29 ms.
    rig.card.room = 0;
    rig.transmit();
    rig.card.room = ROOM;
    rig.now = Instant(29_000_000);
    assert!(second.says(1400));
    while rig.card.sent.len() < 3 {
        let Next::Wait(at) = rig.transmit() else {
            continue;
        };
        rig.now = at;
    }
    // Deadlines at 30, 40 and 49 ms.
    let port = |frame: &Vec<u8>| u16::from_be_bytes([frame[34], frame[35]]);
    let order: Vec<u16> = rig.card.sent.iter().map(port).collect();
    assert_eq!(order, [5000, 5000, 6000]);
}

#[test]
fn a_word_of_a_program_that_is_gone_means_nobody() {
    let mut rig = rig(100_000_000);
    let gone = rig.talker(5000, slice(4), None);
    assert!(rig.turn.detach(gone.program, rig.now).is_some());
    let here = rig.talker(5000, slice(4), None);
    assert_eq!(rig.turn.programs().collect::<Vec<_>>(), [here.program]);
    assert_ne!(here.program, gone.program);
    assert!(rig.turn.detach(gone.program, rig.now).is_none());
    assert!(rig.turn.client(gone.program).is_none());
    assert!(rig.turn.counters(here.opened.flow).is_some());
    rig.turn.invariants();
}
