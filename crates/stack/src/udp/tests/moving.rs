//! Tests of a socket that goes over to the rings of another driver.

use netnice_api::direct::{Endpoint, FlowOpened};
use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

/// What the new driver's daemon says: the first flow of `wire`.
fn opened(wire: &Wire) -> FlowOpened {
    let location = wire.location(0);
    let address = address(false, 1);
    FlowOpened {
        flow: 1,
        slot: location.slot,
        offset: location.offset,
        endpoint: Endpoint::Udp {
            local: address.local,
            remote: Some(address.remote),
        },
        mac: [9; 6],
        next_hop: None,
        mtu: 1400,
        contract: String::new(),
        key: None,
    }
}

/// Moves a socket to the first flow of another wire.
fn move_to(socket: &mut Socket, wire: &Wire) {
    socket.shared = wire.program.shared.clone();
    socket.adopt(1, opened(wire)).unwrap();
}

/// The driver sends so many packets; returns the numbers in them.
fn send_some(wire: &mut Wire, packets: usize) -> Vec<u8> {
    let mut sent = Vec::new();
    while sent.len() < packets
        && let Ok(Taken::Record(record)) = wire.flows[0].take()
    {
        let mut frame = [0; 2048];
        wire.flows[0].read(&record, &mut frame);
        wire.flows[0].give_back(&record, Status::DONE, 1);
        sent.push(frame[42]);
    }
    wire.publish();
    sent
}

/// The driver returns the record that it holds, as when it withdraws the flow.
fn withdraw(wire: &mut Wire) {
    if let Ok(Taken::Record(head)) = wire.flows[0].take() {
        wire.flows[0].give_back(&head, Status::NO_LINK, 0);
    }
    wire.publish();
}

/// A frame for the first socket, with this payload.
fn frame_for_first(payload: u8) -> Vec<u8> {
    let headers = Headers::udp(&address(false, 2)).unwrap();
    let mut frame = vec![payload; 43];
    headers.write(&mut frame);
    frame
}

#[test]
fn a_socket_that_moves_keeps_its_results_its_datagrams_and_its_unsent_packets() {
    let (mut before, mut after) = (Wire::new(), Wire::new());
    let (mut socket, _other) = before.sockets(false);
    for number in 0..8 {
        assert_eq!(socket.try_send(&[number]).unwrap(), u64::from(number));
    }
    assert_eq!(send_some(&mut before, 3), [0, 1, 2]);
    for payload in [50, 51] {
        before.deliver(0, &frame_for_first(payload));
    }
    withdraw(&mut before);
    let slot = socket.slot();
    move_to(&mut socket, &after);
    // The old driver has what it had, and nothing is taken from there any more.
    drop(before);
    assert_eq!((socket.slot(), socket.local_mac()), (slot, [9; 6]));
    assert_eq!(socket.longest(), 1400 - 28);
    let results: Vec<u64> = std::iter::from_fn(|| socket.outcome().unwrap())
        .map(|outcome| {
            assert_eq!(outcome.status, Status::DONE);
            outcome.number
        })
        .collect();
    assert_eq!((results, socket.under_way()), (vec![0, 1, 2], 5));
    // A new packet is behind those that waited.
    assert_eq!(socket.try_send(&[8]).unwrap(), 8);
    assert_eq!(send_some(&mut after, 100), [3, 4, 5, 6, 7, 8]);
    after.deliver(0, &frame_for_first(52));
    after.publish();
    let mut bytes = [0; 10];
    for payload in [50, 51, 52] {
        assert_eq!(socket.try_recv(&mut bytes).unwrap().whole, 1);
        assert_eq!(bytes[0], payload);
    }
    socket.drain(SOON).unwrap();
    let results: Vec<u64> = std::iter::from_fn(|| socket.outcome().unwrap())
        .map(|outcome| outcome.number)
        .collect();
    assert_eq!(results, [3, 4, 5, 6, 7, 8]);
}

#[test]
fn the_packets_of_a_flow_that_was_closed_meanwhile_are_returned_unsent() {
    let (mut before, mut after) = (Wire::new(), Wire::new());
    let (mut socket, _other) = before.sockets(false);
    for number in 0..3 {
        socket.try_send(&[number]).unwrap();
    }
    // The daemon did not wait: the memory reads as zeros.
    let flow = before.flows.remove(0);
    before.memory.close(flow);
    move_to(&mut socket, &after);
    let results: Vec<Outcome> = std::iter::from_fn(|| socket.outcome().unwrap()).collect();
    let numbers: Vec<u64> = results.iter().map(|outcome| outcome.number).collect();
    assert_eq!(numbers, [0, 1, 2]);
    assert!(
        results
            .iter()
            .all(|outcome| outcome.status == Status::NO_LINK)
    );
    socket.try_send(&[3]).unwrap();
    assert_eq!(send_some(&mut after, 100), [3], "nothing of the old memory");
}

#[test]
fn a_socket_whose_buffer_the_program_holds_does_not_move() {
    let wire = Wire::new();
    let (mut socket, _other) = wire.sockets(false);
    socket.id = Some(1);
    let packet = socket.packet().unwrap();
    socket.status.offer_move("eth1".to_string());
    assert!(matches!(socket.receive(), Err(StackError::WouldBlock)));
    assert!(socket.status.moves(), "the offer stays");
    socket.discard(packet);
    // There is no daemon to ask, so it is tried and fails; the flow stays.
    assert!(matches!(socket.receive(), Err(StackError::WouldBlock)));
    assert!(!socket.status.moves());
    assert_eq!(socket.try_send(b"still here").unwrap(), 0);
    socket.id = None;
}

proptest! {
    #![proptest_config(cases(128))]

    /// Over any number of moves at any moment, each packet is sent once, in order, and has one
    /// result; and each received datagram arrives once, in order.
    #[test]
    fn packets_and_datagrams_survive_any_moves(
        steps in proptest::collection::vec((0..6u8, 0..5usize, any::<bool>()), 1..40),
    ) {
        let mut wire = Wire::new();
        let (mut socket, _other) = wire.sockets(false);
        // The wires before: a socket's attachment lives as long as its program.
        let mut former = Vec::new();
        let (mut queued, mut sent) = (0u8, Vec::new());
        let (mut arrived, mut received) = (0u8, Vec::new());
        let mut results = Vec::new();
        for (packets, by_driver, moves) in steps {
            for _ in 0..packets {
                if queued < 200 && socket.try_send(&[queued]).is_ok() {
                    queued += 1;
                }
            }
            sent.extend(send_some(&mut wire, by_driver));
            for _ in 0..by_driver {
                if arrived < 200 {
                    let lost = socket.lost_total();
                    wire.deliver(0, &frame_for_first(arrived));
                    wire.publish();
                    arrived += u8::from(socket.lost_total() == lost);
                }
            }
            if moves {
                withdraw(&mut wire);
                let next = Wire::new();
                move_to(&mut socket, &next);
                former.push(std::mem::replace(&mut wire, next));
            } else {
                while let Some(outcome) = socket.outcome().unwrap() {
                    results.push(outcome);
                }
                let mut bytes = [0; 10];
                while socket.try_recv(&mut bytes).is_ok() {
                    received.push(bytes[0]);
                }
            }
        }
        while socket.under_way() > 0 {
            sent.extend(send_some(&mut wire, 100));
            while let Some(outcome) = socket.outcome().unwrap() {
                results.push(outcome);
            }
        }
        let mut bytes = [0; 10];
        while socket.try_recv(&mut bytes).is_ok() {
            received.push(bytes[0]);
        }
        while let Some(outcome) = socket.outcome().unwrap() {
            results.push(outcome);
        }
        prop_assert_eq!(&sent, &(0..queued).collect::<Vec<_>>());
        prop_assert_eq!(&received, &(0..arrived).collect::<Vec<_>>());
        let numbers: Vec<u64> = results.iter().map(|outcome| outcome.number).collect();
        prop_assert_eq!(numbers, (0..u64::from(queued)).collect::<Vec<_>>());
        prop_assert!(results.iter().all(|outcome| outcome.status == Status::DONE));
        socket.flow.invariants();
    }
}
