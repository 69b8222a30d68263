//! Tests of the messages of real-time channels: which arrival and which deadline they have.

use super::*;

fn service(typed: &str) -> Service {
    Service::of(&contract(typed)).unwrap()
}

/// The source ports of the sent frames, in order.
fn order(rig: &Rig) -> Vec<u16> {
    let port = |frame: &Vec<u8>| u16::from_be_bytes([frame[34], frame[35]]);
    rig.sink.sent.iter().map(port).collect()
}

#[test]
fn a_message_behind_another_keeps_the_deadline_of_its_arrival() {
    let mut rig = rig(10_000_000);
    let two = service("channel mmax=1500B,rmax=100/s,bmax=2,deadline=30ms");
    let one = service("channel mmax=1500B,rmax=10/s,bmax=1,deadline=20ms");
    let (mut first, mut second) = (rig.program(5000, two, None), rig.program(6000, one, None));
    assert!(first.submit_datagram(1400) && first.submit_datagram(1400));
    // Its two messages are read, and nothing leaves for 29 ms.
    rig.sink.room = 0;
    rig.transmit();
    rig.sink.room = ROOM;
    rig.now = Instant(29_000_000);
    assert!(second.submit_datagram(1400));
    while rig.sink.sent.len() < 3 {
        let Next::Wait(at) = rig.transmit() else {
            continue;
        };
        rig.now = at;
    }
    // Deadlines at 30, 40 and 49 ms.
    assert_eq!(order(&rig), [5000, 5000, 6000]);
}

/// At 10 ms a program submits a message, and may state its arrival. Its channel has a deadline of
/// 30 ms and a processing of 5 ms. The caller could not look at the rings since `unread`. Checks
/// that the message is due at `due` ms: it leaves behind a message with an earlier deadline, and
/// before one with a later deadline.
fn check_due(unread: u64, arrival: Option<u64>, due: u64) {
    for (bound, first) in [(due - 11, 6000), (due - 9, 5000)] {
        let mut rig = rig(10_000_000);
        let states = "channel mmax=1500B,rmax=100/s,bmax=2,deadline=30ms,processing=5ms";
        let other = format!("channel mmax=1500B,rmax=100/s,bmax=2,deadline={bound}ms");
        let mut states = rig.program(5000, service(states), None);
        let mut other = rig.program(6000, service(&other), None);
        rig.now = Instant(10_000_000);
        rig.datapath.set_unread_since(Instant(unread));
        assert!(match arrival {
            Some(arrival) => states.submit_arrived(1400, arrival),
            None => states.submit_datagram(1400),
        });
        // Its deadline counts from now.
        assert!(other.submit_arrived(1400, u64::MAX));
        while rig.sink.sent.len() < 2 {
            let Next::Wait(at) = rig.transmit() else {
                continue;
            };
            rig.now = at;
        }
        assert_eq!(
            order(&rig)[0],
            first,
            "unread since {unread}, arrival {arrival:?}, deadline {bound} ms"
        );
    }
}

/// The stated arrival of a message counts if it is at most the contract's processing ago. One that
/// is earlier or later counts as the nearest time that does.
#[test]
fn a_stated_arrival_counts_within_the_processing() {
    for (arrival, due) in [
        (6_000_000, 36),
        (0, 35),
        (5_000_000, 35),
        (10_000_000, 40),
        (u64::MAX, 40),
    ] {
        check_due(u64::MAX, Some(arrival), due);
    }
}

/// A caller that could not look at the rings since 8 ms reads them at 10 ms. What it finds may have
/// been submitted at any time since 8 ms: a stated arrival counts from 8 ms less the processing on,
/// and a message without one arrived at 8 ms. A caller that names a later time than now could look
/// until now.
#[test]
fn a_message_arrived_when_the_caller_could_look_last_at_the_earliest() {
    for (unread, arrival, due) in [
        (8_000_000, Some(4_000_000), 34),
        (8_000_000, Some(0), 33),
        (8_000_000, None, 38),
        (8_000_000, Some(u64::MAX), 40),
        (u64::MAX, Some(0), 35),
        (u64::MAX, None, 40),
        (0, Some(0), 30),
    ] {
        check_due(unread, arrival, due);
    }
}
