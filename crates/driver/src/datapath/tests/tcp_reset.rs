//! Tests connections of TCP: which segments may leave joined, the resets when their programs end,
//! and their promotion.

use etherparse::{NetSlice, SlicedPacket, TcpHeader, TransportSlice};
use netnice_core::contract::Weight;
use netnice_ring::connections::ListedConnection;

use super::rig::{Rig, SHAPE, TestProgram, contract, parameters, rig};
use super::*;
use crate::protocol::Transport;
use crate::test_frames::{OWN, PEER, endpoint, mend_checksum};

const V4: [&str; 2] = ["10.0.0.1:5000", "10.0.0.2:80"];
const V6: [&str; 2] = ["[fd00::1]:5000", "[fd00::2]:80"];

/// A program with one flow of TCP, to this remote endpoint or to any host.
fn program(rig: &mut Rig, local: &str, remote: Option<&str>) -> TestProgram {
    let (transport, local) = (Transport::Tcp, endpoint(local));
    let remote = remote.map(endpoint);
    let best = Service::best_effort(Weight::default());
    let mut open = parameters(local.port(), best, None);
    open.sender.sends = Sends::Ports {
        transport,
        local,
        remote,
    };
    open.sender.next_hop = remote.map(|_| PEER);
    open.matches = vec![match remote {
        Some(remote) => Match::Connected {
            transport,
            local,
            remote,
        },
        None => Match::Port { transport, local },
    }];
    assert_eq!(open.shape, SHAPE);
    rig.program_with(local.port(), &open)
}

/// A segment of this host with this sequence number, flags and length of payload.
fn segment([from, to]: [&str; 2], sequence: u32, flags: u8, payload: usize) -> Vec<u8> {
    let mut datagram = udp(from, to).data(&vec![7; payload]);
    datagram.transport = Transport::Tcp;
    let mut frame = datagram.frame();
    let at = frame.len() - payload - 20;
    frame[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
    frame[at + 8..at + 12].copy_from_slice(&999_u32.to_be_bytes());
    frame[at + 13] = flags;
    mend_checksum(&mut frame);
    frame
}

#[test]
fn segments_may_leave_joined_except_under_cell_and_channel() {
    const ACK: u8 = 16;
    let service = |typed: &str| Service::of(&contract(typed)).unwrap();
    let channel = "channel mmax=1500,rmax=100/s,bmax=1,deadline=10ms";
    // 20 us of the link; on a slow link this is less than two segments.
    for (rate, most) in [(10_000_000_000, 25_000), (1_000_000_000, 0)] {
        let mut rig = rig(rate);
        let mut program = program(&mut rig, V4[0], Some(V4[1]));
        let (flow, mut sequence) = (program.opened.flow, 1);
        let mut send = |rig: &mut Rig| {
            assert!(program.submit(&segment(V4, sequence, ACK, 1000)));
            sequence += 1000;
            rig.now.0 += 1_000_000_000;
            rig.transmit();
            std::mem::take(&mut rig.sink.most_joined)
        };
        assert_eq!(send(&mut rig), [most]);
        for (typed, expected) in [
            ("slice 1ms/10ms", most),
            ("cell pcr=10mbit,cdvt=500us", 0),
            ("min 1mbit", most),
            (channel, 0),
            ("up 1mbit", most),
        ] {
            let changed = (service(typed), None);
            rig.datapath.change(flow, changed, rig.now).unwrap();
            assert_eq!(send(&mut rig), [expected], "{typed}");
        }
    }
    let mut rig = rig(10_000_000_000);
    let mut program = rig.program(5000, service("min 1mbit"), None);
    assert!(program.submit_datagram(1000));
    rig.transmit();
    assert_eq!(rig.sink.most_joined, [0], "UDP");
}

/// The frames that leave after all of `segments` have left and the program has been detached.
fn after_the_end(ends: [&str; 2], segments: &[(u32, u8, usize)]) -> Vec<Vec<u8>> {
    let mut rig = rig(1_000_000_000);
    let mut program = program(&mut rig, ends[0], Some(ends[1]));
    for (sequence, flags, payload) in segments {
        assert!(program.submit(&segment(ends, *sequence, *flags, *payload)));
    }
    for _ in 0..100 {
        rig.now.0 += 100_000;
        rig.transmit();
    }
    assert_eq!(rig.sink.sent.len(), segments.len());
    rig.sink.sent.clear();
    assert!(rig.datapath.detach(program.program, rig.now).is_some());
    assert!(rig.sink.sent.is_empty(), "the next iteration sends it");
    rig.now.0 += 100_000;
    rig.transmit();
    assert!(!rig.datapath.has_resets());
    rig.sink.sent
}

/// The header of the only frame, which must be a right RST of this connection.
fn reset(frames: &[Vec<u8>], [from, to]: [&str; 2]) -> TcpHeader {
    let [frame] = frames else {
        panic!("{} frames", frames.len());
    };
    let packet = SlicedPacket::from_ethernet(frame).expect("a packet");
    assert_eq!((&frame[..6], &frame[6..12]), (&PEER.0[..], &OWN.0[..]));
    let Some(TransportSlice::Tcp(tcp)) = &packet.transport else {
        panic!("{packet:?}");
    };
    let header = tcp.to_header();
    let (ends, sum) = match packet.net.as_ref() {
        Some(NetSlice::Ipv4(v4)) => {
            let ip = v4.header().to_header();
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            let ends = (ip.source.into(), ip.destination.into());
            (ends, header.calc_checksum_ipv4(&ip, &[]).expect("short"))
        }
        Some(NetSlice::Ipv6(v6)) => {
            let ip = v6.header().to_header();
            let ends = (ip.source.into(), ip.destination.into());
            (ends, header.calc_checksum_ipv6(&ip, &[]).expect("short"))
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(header.checksum, sum);
    assert_eq!(ends, (endpoint(from).ip(), endpoint(to).ip()));
    let ports = (header.source_port, header.destination_port);
    assert_eq!(ports, (endpoint(from).port(), endpoint(to).port()));
    assert!(header.rst && !header.syn && !header.fin && tcp.payload().is_empty());
    header
}

#[test]
fn the_end_of_a_program_resets_its_connection_behind_what_it_sent() {
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;
    const FIN_ACK: u8 = 17;
    for ends in [V4, V6] {
        let of = |segments: &[(u32, u8, usize)]| reset(&after_the_end(ends, segments), ends);
        // A retransmission is no progress; the numbers wrap.
        let last = of(&[
            (u32::MAX - 50, SYN, 0),
            (u32::MAX - 49, ACK, 100),
            (u32::MAX - 49, ACK, 40),
        ]);
        assert_eq!(last.sequence_number, 50);
        assert!(last.ack && last.acknowledgment_number == 999);
        // Nothing was acknowledged: the peer has not answered.
        let first = of(&[(7, SYN, 0)]);
        assert_eq!((first.sequence_number, first.ack), (8, false));
        // A FIN takes a number, and its end is not known here.
        assert_eq!(of(&[(7, ACK, 3), (10, FIN_ACK, 0)]).sequence_number, 11);
        // Another connection between the same endpoints, with lower numbers.
        let again = of(&[(1_000_000, ACK, 3), (7, SYN, 0), (8, ACK, 0)]);
        assert_eq!(again.sequence_number, 8);
        // The program has reset it, or has sent nothing.
        assert!(after_the_end(ends, &[(7, ACK, 3), (10, RST | ACK, 0)]).is_empty());
        assert!(after_the_end(ends, &[]).is_empty());
    }
}

#[test]
fn only_the_end_of_a_connection_is_reset() {
    let mut rig = rig(1_000_000_000);
    let data = segment(V4, 7, 16, 3);
    // A flow to any host has many connections, and a flow of UDP has none.
    let mut listener = program(&mut rig, V4[0], None);
    let best = Service::best_effort(Weight::default());
    let mut datagrams = rig.program(5001, best, None);
    let mut closed = program(&mut rig, V4[0], Some(V4[1]));
    assert!(listener.submit(&data) && datagrams.submit_datagram(3) && closed.submit(&data));
    for _ in 0..10 {
        rig.now.0 += 100_000;
        rig.transmit();
    }
    assert_eq!(rig.sink.sent.len(), 3);
    // The program closes its flow: it has ended the connection itself.
    assert!(rig.datapath.close(closed.opened.flow, rig.now).is_some());
    for ended in [&listener, &datagrams, &closed] {
        rig.datapath.detach(ended.program, rig.now);
    }
    assert!(!rig.datapath.has_resets());
    // A flow that has moved goes on elsewhere, unless it is reset explicitly.
    for reset in [false, true] {
        let mut moved = program(&mut rig, V4[0], Some(V4[1]));
        assert!(moved.submit(&data));
        rig.now.0 += 100_000;
        rig.transmit();
        rig.datapath.withdraw(moved.opened.flow, rig.now);
        if reset {
            rig.datapath.reset_connection(moved.opened.flow);
        }
        rig.datapath.detach(moved.program, rig.now);
        assert_eq!(rig.datapath.has_resets(), reset);
    }
    // A flow that does not exist.
    rig.datapath.reset_connection(FlowNo(77));
}

/// A connection in the list of a program.
fn listed(peer: &str, sequence: u32) -> ListedConnection {
    let peer = endpoint(peer);
    let mut address = [0; 16];
    match peer.ip() {
        std::net::IpAddr::V4(v4) => address[..4].copy_from_slice(&v4.octets()),
        std::net::IpAddr::V6(v6) => address = v6.octets(),
    }
    ListedConnection {
        address,
        port: peer.port(),
        next_hop: PEER.0,
        sequence,
    }
}

/// Connections of a closed flow of a user to any host, from this endpoint.
fn listed_resets(uid: u32, local: &str, connections: Vec<ListedConnection>) -> ListedResets {
    let sender = crate::template::Sender {
        mac: OWN,
        next_hop: None,
        longest: 1514,
        sends: Sends::Ports {
            transport: Transport::Tcp,
            local: endpoint(local),
            remote: None,
        },
    };
    ListedResets {
        uid,
        template: Template::new(&sender).unwrap(),
        connections,
    }
}

#[test]
fn listed_connections_are_reset() {
    for ends in [V4, V6] {
        let mut rig = rig(1_000_000_000);
        let resets = listed_resets(0, ends[0], vec![listed(ends[1], 77)]);
        rig.datapath.reset_listed(resets);
        rig.transmit();
        let sent = reset(&rig.sink.sent, ends);
        assert_eq!((sent.sequence_number, sent.ack), (77, false));
        assert!(!rig.datapath.has_resets());
    }
}

#[test]
fn an_entry_that_the_flow_could_not_send_to_is_dropped() {
    let mut group_mac = listed("10.0.0.2:80", 1);
    group_mac.next_hop[0] |= 1;
    for bad in [
        listed("224.0.0.1:80", 1),
        listed("255.255.255.255:80", 1),
        listed("0.0.0.0:80", 1),
        group_mac,
    ] {
        let mut rig = rig(1_000_000_000);
        let good = listed("10.0.0.2:80", 5);
        let resets = listed_resets(0, V4[0], vec![bad, good]);
        rig.datapath.reset_listed(resets);
        rig.transmit();
        assert_eq!(reset(&rig.sink.sent, V4).sequence_number, 5);
    }
}

/// Resets until none waits. Returns the time that it took.
fn reset_all(rig: &mut Rig) -> Nanos {
    let began = rig.now;
    while rig.datapath.has_resets() {
        match rig.transmit() {
            Next::Wait(at) => rig.now = rig.now.max(at),
            Next::Idle => {}
            other => panic!("{other:?}"),
        }
    }
    rig.now.since(began)
}

#[test]
fn ten_thousand_listed_connections_are_reset_within_a_second() {
    let peers = |count: u32| -> Vec<ListedConnection> {
        let peer = |k: u32| format!("10.0.{}.{}:{}", k >> 8 & 255, 1 + k % 200, 1 + k % 60_000);
        (0..count).map(|k| listed(&peer(k), k)).collect()
    };
    for (rate, longest) in [(10_000_000, 1_000_000_000), (1_000_000_000, 500_000_000)] {
        let mut rig = rig(rate);
        for part in peers(10_000).chunks(256) {
            rig.datapath
                .reset_listed(listed_resets(0, V4[0], part.to_vec()));
        }
        let took = reset_all(&mut rig);
        assert_eq!(rig.sink.sent.len(), 10_000);
        // 20,000 a second on a fast link, and four fifths of a slow one.
        assert!(took.0 <= longest && took.0 > longest / 2, "{took:?}");
    }
    // One user has at most as many as a list can have. Another user does not wait for them.
    let mut rig = rig(1_000_000_000);
    for part in peers(70_000).chunks(256) {
        rig.datapath
            .reset_listed(listed_resets(1, V4[0], part.to_vec()));
    }
    rig.datapath
        .reset_listed(listed_resets(2, V4[0], vec![listed("10.9.9.9:9", 5); 100]));
    for _ in 0..25 {
        rig.transmit();
        rig.now.0 += 500_000;
    }
    let is_second = |frame: &&Vec<u8>| frame[30..34] == [10, 9, 9, 9];
    assert_eq!(rig.sink.sent.iter().filter(is_second).count(), 100);
    reset_all(&mut rig);
    assert_eq!(rig.sink.sent.len(), 65_536 + 100);
}

#[test]
fn a_connection_that_its_program_says_is_over_is_not_reset() {
    let mut rig = rig(1_000_000_000);
    let mut over = program(&mut rig, V4[0], Some(V4[1]));
    assert!(over.submit(&segment(V4, 7, 16, 3)));
    rig.now.0 += 100_000;
    rig.transmit();
    over.flow.set_connection_over(true);
    rig.datapath.detach(over.program, rig.now);
    assert!(!rig.datapath.has_resets());
}

/// A connection is promoted while its segments arrive: each goes to the listener or to the new
/// flow, in their order.
#[test]
fn a_promoted_connection_takes_its_segments_over_when_it_is_primed() {
    let mut rig = rig(1_000_000_000);
    let mut listener = program(&mut rig, V4[0], None);
    for _ in 0..4 {
        assert!(listener.prime(2048));
    }
    let arrive = |rig: &mut Rig, number: u8| {
        let mut datagram = udp(V4[1], V4[0]).received().data(&[number; 10]);
        datagram.transport = Transport::Tcp;
        rig.datapath.receive(&datagram.frame(), rig.now);
        rig.datapath.publish();
        rig.datapath.invariants();
    };
    let payloads = |program: &mut TestProgram| -> Vec<u8> {
        let frames = program.received();
        frames.iter().map(|frame| frame[frame.len() - 1]).collect()
    };
    arrive(&mut rig, 1);
    let mut promoted = program(&mut rig, V4[0], Some(V4[1]));
    arrive(&mut rig, 2);
    assert_eq!(payloads(&mut listener), [1, 2]);
    assert!(promoted.prime(2048));
    arrive(&mut rig, 3);
    assert_eq!(
        (payloads(&mut listener), payloads(&mut promoted)),
        (vec![], vec![3])
    );
    // From then on it has its own buffers, or loses what finds none.
    arrive(&mut rig, 4);
    assert!(payloads(&mut listener).is_empty());
    let counters = |rig: &Rig, of: &TestProgram| rig.datapath.counters(of.opened.flow).unwrap();
    let its = counters(&rig, &promoted);
    assert_eq!((its.received, its.delivered, its.no_buffer), (2, 1, 1));
    assert_eq!(counters(&rig, &listener).received, 2);
    // A connection without a listener loses what arrives before it is primed.
    rig.datapath.detach(listener.program, rig.now);
    rig.datapath.detach(promoted.program, rig.now);
    let client = program(&mut rig, V4[0], Some(V4[1]));
    arrive(&mut rig, 5);
    let its = counters(&rig, &client);
    assert_eq!((its.received, its.no_buffer), (1, 1));
}

#[test]
fn many_resets_leave_a_few_in_an_iteration_and_none_while_the_link_is_down() {
    let mut rig = rig(1_000_000_000);
    let mut programs: Vec<TestProgram> = (0..40)
        .map(|k| {
            let own = format!("10.0.0.1:{}", 5000 + k);
            let mut one = program(&mut rig, &own, Some(V4[1]));
            assert!(one.submit(&segment([&own, V4[1]], 7, 16, 3)));
            one
        })
        .collect();
    for _ in 0..100 {
        rig.now.0 += 100_000;
        rig.transmit();
    }
    rig.sink.sent.clear();
    for one in programs.drain(..20) {
        rig.datapath.detach(one.program, rig.now);
    }
    rig.sink.room = 1;
    rig.transmit();
    assert_eq!(rig.sink.sent.len(), 1, "the NIC has no more room");
    rig.sink.room = 1000;
    rig.now.0 += 500_000;
    rig.transmit();
    let most = rig.sink.sent.len();
    assert!((2..20).contains(&most), "{most}");
    for _ in 0..5 {
        rig.now.0 += 500_000;
        rig.transmit();
    }
    assert_eq!(rig.sink.sent.len(), 20);
    rig.datapath.set_link(false);
    for one in programs {
        rig.datapath.detach(one.program, rig.now);
    }
    rig.transmit();
    rig.datapath.set_link(true);
    rig.transmit();
    assert_eq!(rig.sink.sent.len(), 20);
}
