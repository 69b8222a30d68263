//! Tests records of segments: what leaves is what the segments would have been one by one, each at
//! its own time, and a record returns once.

use netnice_core::contract::Weight;

use super::rig::{Rig, SHAPE, TestProgram, contract, parameters, rig, rig_with};
use super::*;
use crate::protocol::Transport;
use crate::template::Sender;
use crate::template::hostile::{addressed, naive};
use crate::test_frames::{OWN, PEER, complete_tcp, endpoint, mend_checksum, mend_lengths};

const V4: [&str; 2] = ["10.0.0.1:5000", "10.0.0.2:80"];
const V6: [&str; 2] = ["[fd00::1]:5000", "[fd00::2]:80"];
const ACK: u8 = 16;
const PSH: u8 = 8;
const FIN: u8 = 1;
const SYN: u8 = 2;
const PAYLOAD: usize = 1000;

/// A program with the flow of a connection between these endpoints.
fn program(rig: &mut Rig, [from, to]: [&str; 2], service: Service) -> TestProgram {
    let (transport, local, remote) = (Transport::Tcp, endpoint(from), endpoint(to));
    let mut open = parameters(local.port(), service, None);
    open.sender = sender([from, to]);
    open.matches = vec![Match::Connected {
        transport,
        local,
        remote,
    }];
    assert_eq!(open.shape, SHAPE);
    rig.program_with(local.port(), &open)
}

/// A link on which the segments of a record are chosen in one iteration.
fn ahead() -> Rig {
    rig_with(Wire {
        ahead: Nanos(1_000_000),
        ..Wire::new(Rate::new(1_000_000_000).unwrap())
    })
}

/// What such a flow may send.
fn sender([from, to]: [&str; 2]) -> Sender {
    Sender {
        mac: OWN,
        next_hop: Some(PEER),
        longest: 1514,
        sends: Sends::Ports {
            transport: Transport::Tcp,
            local: endpoint(from),
            remote: Some(endpoint(to)),
        },
    }
}

fn best_effort() -> Service {
    Service::best_effort(Weight::default())
}

/// The segments of a record with these lengths of payload, with right checksums. The last one has
/// the flags that are given.
fn segments([from, to]: [&str; 2], flags: u8, payloads: &[usize]) -> Vec<Vec<u8>> {
    let mut sequence = 0xffff_fc00_u32;
    let last = payloads.len() - 1;
    let one = |(number, payload): (usize, &usize)| {
        let data: Vec<u8> = (0..*payload)
            .map(|at| (sequence as usize + at) as u8)
            .collect();
        // A kernel that cuts a packet counts the identification on.
        let mut datagram = udp(from, to).data(&data).id(7 + number as u16);
        datagram.transport = Transport::Tcp;
        let mut frame = datagram.frame();
        let at = frame.len() - payload - 20;
        frame[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
        frame[at + 13] = if number == last { flags } else { ACK };
        mend_checksum(&mut frame);
        complete_tcp(&mut frame);
        sequence = sequence.wrapping_add(*payload as u32);
        frame
    };
    payloads.iter().enumerate().map(one).collect()
}

/// The same as a program writes them: one header, with the flags of the last segment and without a
/// checksum, and room in front of the other payloads.
fn as_written(segments: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let tcp = |frame: &[u8]| if frame[12..14] == [8, 0] { 34 } else { 54 };
    let at = tcp(&segments[0]);
    let flags = segments[segments.len() - 1][at + 13];
    let mut written = segments.to_vec();
    written[0][at + 13] = flags;
    written[0][at + 16..at + 18].fill(0xa5);
    for frame in &mut written[1..] {
        frame[..at + 20].fill(0xa5);
    }
    written
}

impl TestProgram {
    fn submit_segments(&mut self, frames: &[Vec<u8>]) {
        let pieces: Vec<_> = frames
            .iter()
            .map(|frame| {
                let chunk = self.flow.chunk().unwrap();
                self.flow.bytes_mut(chunk).unwrap()[..frame.len()].copy_from_slice(frame);
                netnice_ring::program::Piece {
                    chunk,
                    start: 0,
                    length: frame.len() as u32,
                }
            })
            .collect();
        self.flow.submit_segments(&pieces).unwrap();
        self.flow.publish();
    }
}

#[test]
fn a_record_of_segments_leaves_as_its_segments() {
    for ends in [V4, V6] {
        for (flags, last) in [(ACK, PAYLOAD), (ACK | PSH, 1), (ACK | PSH | FIN, 999)] {
            for before in 0..8 {
                let mut payloads = vec![PAYLOAD; before];
                payloads.push(last);
                let mut rig = ahead();
                let mut program = program(&mut rig, ends, best_effort());
                let segments = segments(ends, flags, &payloads);
                program.submit_segments(&as_written(&segments));
                for _ in 0..20 {
                    rig.now.0 += 100_000;
                    rig.transmit();
                }
                assert_eq!(rig.sink.sent, segments);
                assert_eq!(rig.sink.runs, [segments.len()], "they leave together");
                program.collect();
                assert_eq!(program.returned, [Status::DONE]);
                let counters = rig.datapath.counters(program.opened.flow).unwrap();
                assert_eq!(counters.sent, segments.len() as u64);
                let bytes: usize = segments.iter().map(Vec::len).sum();
                assert_eq!(counters.sent_bytes, bytes as u64);
                assert_eq!(rig.datapath.balance(program.opened.flow).unwrap().in_use, 0);
            }
        }
    }
}

#[test]
fn each_segment_of_a_record_waits_for_its_own_time() {
    let service = Service::of(&contract("cell pcr=10mbit,cdvt=10us")).unwrap();
    let mut rig = rig(1_000_000_000);
    let mut connection = program(&mut rig, V4, service);
    let mut other = program(&mut rig, ["10.0.0.1:5001", "10.0.0.2:81"], best_effort());
    let segments = segments(V4, ACK, &[PAYLOAD; 8]);
    connection.submit_segments(&as_written(&segments));
    // 1054 bytes on the wire take 843.2 us at 10 Mbit/s.
    let mut times = Vec::new();
    while times.len() < 8 {
        let others = super::runs::segments(["10.0.0.1:5001", "10.0.0.2:81"], ACK, &[PAYLOAD]);
        other.submit(&others[0]);
        rig.transmit();
        let own = rig
            .sink
            .sent
            .drain(..)
            .filter(|frame| frame[34..36] == [0x13, 0x88]);
        times.extend(own.map(|frame| (rig.now.0, frame)));
        rig.now.0 += 1_000;
        assert!(rig.now.0 < 10_000_000);
    }
    for (number, (at, frame)) in times.iter().enumerate() {
        let due = number as u64 * 843_200;
        assert!(
            (due.saturating_sub(10_000)..due + 20_000).contains(at),
            "{number} at {at}"
        );
        assert_eq!(*frame, segments[number]);
    }
    connection.collect();
    assert_eq!(connection.returned, [Status::DONE]);
    assert!(rig.datapath.counters(other.opened.flow).unwrap().sent > 100);
}

/// Submits a record of segments, then a good segment. Returns the statuses, the number of frames
/// that left, and the counts of sent and of refused segments.
fn outcome(ends: [&str; 2], frames: &[Vec<u8>]) -> (Vec<Status>, usize, (u64, u64)) {
    let mut rig = rig(1_000_000_000);
    let mut program = program(&mut rig, ends, best_effort());
    program.submit_segments(frames);
    assert!(program.submit(&segments(ends, ACK, &[PAYLOAD])[0]));
    for _ in 0..100 {
        rig.now.0 += 100_000;
        rig.transmit();
    }
    program.collect();
    let counters = rig.datapath.counters(program.opened.flow).unwrap();
    let counts = (counters.sent, counters.forbidden + counters.too_long);
    (program.returned, rig.sink.sent.len(), counts)
}

#[test]
fn a_record_whose_segments_may_not_leave_is_refused_once() {
    let refused = |change: &dyn Fn(&mut Vec<Vec<u8>>), status| {
        let mut written = as_written(&segments(V4, ACK, &[PAYLOAD; 5]));
        change(&mut written);
        let (statuses, left, counts) = outcome(V4, &written);
        assert_eq!(statuses, [status, Status::DONE]);
        assert_eq!(counts, (1, written.len() as u64), "each segment counts");
        assert_eq!(left, 1, "the good one alone");
    };
    let forbidden = Status::FORBIDDEN;
    refused(&|all| all[2].push(0), forbidden);
    refused(&|all| all[2].truncate(1000), forbidden);
    refused(&|all| all[4].push(0), forbidden);
    refused(&|all| all[4].truncate(54), forbidden);
    refused(&|all| all[0].truncate(54), forbidden);
    refused(&|all| all[0].truncate(20), forbidden);
    for flag in [SYN, 4, 32, 128] {
        refused(&|all| all[0][34 + 13] |= flag, forbidden);
    }
    refused(&|all| all[0][34] ^= 1, forbidden);
    refused(&|all| all[0][17] ^= 1, forbidden);
    refused(&|all| all[0][34 + 12] = 0x40, forbidden);
    refused(
        &|all| {
            *all = as_written(&segments(V4, ACK, &[1461; 3]));
        },
        Status::TOO_LONG,
    );
    // Headers of 60 bytes, all of them options, are as good as others.
    let mut written = as_written(&segments(V4, ACK, &[PAYLOAD; 5]));
    written[0][34 + 12] = 0xa0;
    assert_eq!(outcome(V4, &written), (vec![Status::DONE; 2], 6, (6, 0)));
}

#[test]
fn only_flows_of_tcp_send_records_of_segments() {
    let mut rig = rig(1_000_000_000);
    let mut program = rig.program(5000, best_effort(), None);
    let frame = udp("10.0.0.1:5000", "10.0.0.2:9").data(&[0; 100]).frame();
    program.submit_segments(&[frame.clone(), frame.clone()]);
    assert!(program.submit(&frame));
    for _ in 0..10 {
        rig.now.0 += 100_000;
        rig.transmit();
    }
    program.collect();
    assert_eq!(program.returned, [Status::FORBIDDEN, Status::DONE]);
    assert_eq!(rig.sink.sent.len(), 1);
}

#[test]
fn headers_that_change_between_two_segments_are_checked_again() {
    let service = Service::of(&contract("cell pcr=10mbit,cdvt=10us")).unwrap();
    let mut rig = rig(1_000_000_000);
    let mut program = program(&mut rig, V4, service);
    let segments = segments(V4, ACK, &[PAYLOAD; 5]);
    program.submit_segments(&as_written(&segments));
    rig.transmit();
    rig.now.0 += 1_000_000;
    rig.transmit();
    assert_eq!(rig.sink.sent, segments[..2]);
    // The program writes into a buffer that the driver has: another source port.
    let location = program.opened.location;
    let area = location.offset + location.shape.plan().unwrap().area();
    let chunk = (0..64).find(|chunk| {
        let mut bytes = [0; 2];
        let at = area + chunk * 2048 + 34;
        program.memory.read_exact_at(&mut bytes, at).unwrap();
        bytes == [0x13, 0x88]
    });
    let at = area + chunk.expect("the headers") * 2048 + 34;
    program.memory.write_all_at(&[0x13, 0x89], at).unwrap();
    for _ in 0..10 {
        rig.now.0 += 1_000_000;
        rig.transmit();
    }
    assert_eq!(rig.sink.sent.len(), 2, "nothing with another port");
    program.collect();
    assert_eq!(program.returned, [Status::FORBIDDEN]);
    assert_eq!(rig.datapath.balance(program.opened.flow).unwrap().in_use, 0);
}

#[test]
fn a_record_that_the_link_stops_returns_once() {
    let service = Service::of(&contract("cell pcr=10mbit,cdvt=10us")).unwrap();
    for withdraws in [false, true] {
        let mut rig = rig(1_000_000_000);
        let mut program = program(&mut rig, V4, service);
        program.submit_segments(&as_written(&segments(V4, ACK, &[PAYLOAD; 5])));
        rig.transmit();
        assert_eq!(rig.sink.sent.len(), 1);
        match withdraws {
            true => rig.datapath.withdraw(program.opened.flow, rig.now),
            false => rig.datapath.set_link(false),
        }
        for _ in 0..10 {
            rig.now.0 += 1_000_000;
            rig.transmit();
        }
        program.collect();
        assert_eq!(program.returned, [Status::NO_LINK]);
        assert_eq!(rig.sink.sent.len(), 1);
        let counters = rig.datapath.counters(program.opened.flow).unwrap();
        assert_eq!(
            (counters.sent, counters.no_link),
            (1, 4),
            "each segment counts"
        );
        assert_eq!(rig.datapath.balance(program.opened.flow).unwrap().in_use, 0);
    }
}

#[test]
fn segments_without_a_next_hop_cost_no_other_flow_its_link() {
    let sent_beside = |has_next_hop: bool| {
        let mut rig = ahead();
        let mut connection = program(&mut rig, V4, best_effort());
        let mut other = rig.program(5001, best_effort(), None);
        let next_hop = has_next_hop.then_some(PEER);
        rig.datapath
            .readdress(connection.opened.flow, OWN, next_hop, 1514);
        let segments = as_written(&segments(V4, ACK, &[PAYLOAD; 8]));
        while rig.now.0 < 100_000_000 {
            while connection.flow.balance().in_use <= 40 {
                connection.submit_segments(&segments);
            }
            while other.submit_datagram(1458) {}
            rig.transmit();
            connection.collect();
            rig.now.0 += 100_000;
        }
        let sent = |program: &TestProgram| {
            let counters = rig.datapath.counters(program.opened.flow);
            counters.unwrap().sent_bytes
        };
        let statuses = connection.returned.clone();
        (statuses, sent(&connection), sent(&other))
    };
    // 12.5 MB in 100 ms.
    let (statuses, own, other) = sent_beside(true);
    assert!(statuses.iter().all(|status| *status == Status::DONE));
    assert!(own > 5_500_000 && other > 5_500_000, "{own}, {other}");
    let (statuses, own, other) = sent_beside(false);
    assert!(!statuses.is_empty());
    assert!(statuses.iter().all(|status| *status == Status::NO_LINK));
    assert_eq!(own, 0);
    assert!(other > 12_000_000, "{other}");
}

#[test]
fn programs_are_told_whether_segments_leave_joined() {
    let joins = |program: &TestProgram| program.flow.joins();
    let mut rig = rig(10_000_000_000);
    rig.sink.joins = true;
    let program = program(&mut rig, V4, best_effort());
    let udp = rig.program(5001, best_effort(), None);
    rig.transmit();
    assert!(joins(&program) && !joins(&udp));
    let flow = program.opened.flow;
    for (typed, expected) in [
        ("cell pcr=10mbit,cdvt=1ms", false),
        ("slice 1ms/10ms", true),
    ] {
        let service = Service::of(&contract(typed)).unwrap();
        rig.datapath.change(flow, (service, None), rig.now).unwrap();
        assert_eq!(joins(&program), expected, "{typed}");
    }
    let wire = |rate| Wire::new(Rate::new(rate).unwrap());
    rig.datapath.rewire(wire(1_000_000_000), None).unwrap();
    assert!(!joins(&program), "a slow link");
    rig.datapath.rewire(wire(10_000_000_000), None).unwrap();
    assert!(joins(&program));
    rig.sink.joins = false;
    rig.transmit();
    assert!(!joins(&program), "an interface that cuts no packets");
}

/// What leaves of a record of segments, by a naive formula; `None` if it is refused.
fn expected(sender: &Sender, written: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let first = addressed(sender, &written[0]);
    if !naive(sender, &first) {
        return None;
    }
    let tcp = if first[12..14] == [8, 0] { 34 } else { 54 };
    let head = tcp + usize::from(first[tcp + 12] >> 4) * 4;
    let flags = first[tcp + 13];
    let (last, others) = written.split_last()?;
    let lengths = others.iter().all(|frame| frame.len() == first.len());
    let fits = (head + 1..=first.len()).contains(&last.len()) && first.len() > head;
    if !lengths || !fits || flags & (SYN | 4 | 32 | 128) != 0 {
        return None;
    }
    let mut sequence = u32::from_be_bytes(first[tcp + 4..tcp + 8].try_into().unwrap());
    let one = |(number, frame): (usize, &Vec<u8>)| {
        let mut sent = first[..head].to_vec();
        sent.extend(&frame[head..]);
        sent[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
        sequence = sequence.wrapping_add((frame.len() - head) as u32);
        if number + 1 < written.len() {
            sent[tcp + 13] &= !(PSH | FIN);
        }
        if tcp == 34 {
            let id = u16::from_be_bytes([sent[18], sent[19]]).wrapping_add(number as u16);
            sent[18..20].copy_from_slice(&id.to_be_bytes());
        }
        mend_lengths(&mut sent);
        mend_checksum(&mut sent);
        // The pseudo header, and all of the segment.
        sent[tcp + 16..tcp + 18].fill(0);
        let addresses = if tcp == 34 { 26..34 } else { 22..54 };
        let words = |bytes: &[u8]| -> u64 {
            let word = |two: &[u8]| u64::from(two[0]) << 8 | u64::from(*two.get(1).unwrap_or(&0));
            bytes.chunks(2).map(word).sum()
        };
        let mut sum = words(&sent[addresses]) + 6 + (sent.len() - tcp) as u64 + words(&sent[tcp..]);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sent[tcp + 16..tcp + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        sent
    };
    Some(written.iter().enumerate().map(one).collect())
}

proptest! {
    #[test]
    fn any_record_of_segments_leaves_as_its_segments_or_is_refused(
        is_v6 in any::<bool>(),
        (base, last) in prop_oneof![1..1461usize, 1..100usize].prop_flat_map(|base| (Just(base), 1..=base)),
        count in 1..=8usize,
        flags in prop_oneof![Just(ACK), Just(ACK | PSH), any::<u8>()],
        odd in prop::option::weighted(0.2, (0..8usize, 0..1600usize)),
        changes in prop::collection::vec((0..100usize, any::<u8>()), 0..3),
        (mends, together) in any::<(bool, bool)>(),
    ) {
        let ends = if is_v6 { V6 } else { V4 };
        let mut payloads = vec![base; count];
        payloads[count - 1] = last;
        let mut written = as_written(&segments(ends, flags, &payloads));
        for (at, byte) in changes {
            if let Some(place) = written[0].get_mut(at) {
                *place = byte;
            }
        }
        if mends {
            mend_checksum(&mut written[0]);
        }
        if let Some((number, length)) = odd {
            written[number % count].resize(length.max(1), 0xa5);
        }
        let mut rig = if together { ahead() } else { rig(1_000_000_000) };
        let mut program = program(&mut rig, ends, best_effort());
        program.submit_segments(&written);
        for _ in 0..10 {
            rig.now.0 += 1_000_000;
            rig.transmit();
        }
        program.collect();
        let sender = sender(ends);
        let expected = expected(&sender, &written);
        prop_assert_eq!(program.returned.len(), 1);
        prop_assert_eq!(program.returned[0] == Status::DONE, expected.is_some());
        prop_assert!(rig.sink.sent == expected.unwrap_or_default());
        prop_assert_eq!(rig.datapath.balance(program.opened.flow).unwrap().in_use, 0);
    }
}
