//! Segments that were joined and are cut again by a naive formula are those that were sent.

use std::os::unix::net::UnixDatagram;

use proptest::prelude::*;

use super::*;
use crate::protocol::Transport;
use crate::template::{Sender, Sends, Template};
use crate::test_frames::{Datagram, OWN, PEER, complete_tcp, endpoint};

/// A segment: its connection, what it does to the sequence, and its headers.
#[derive(Clone, Debug)]
struct Segment {
    connection: u8,
    is_v6: bool,
    /// Bytes that are left out before it.
    gap: u32,
    payload: usize,
    flags: u8,
    ack: u32,
    window: u16,
    options: Option<u32>,
    tos: u8,
    may_be_fragmented: bool,
}

/// A full segment of a connection in which nothing changes.
fn plain(connection: u8) -> Segment {
    Segment {
        connection,
        is_v6: false,
        gap: 0,
        payload: 1000,
        flags: TCP_ACK,
        ack: 7,
        window: 100,
        options: Some(5),
        tos: 0,
        may_be_fragmented: false,
    }
}

fn ends(segment: &Segment) -> (&'static str, String) {
    let number = 100 + segment.connection;
    match segment.is_v6 {
        false => ("10.0.0.1:5000", format!("10.0.0.{number}:80")),
        true => ("[fd00::1]:5000", format!("[fd00::{number}]:80")),
    }
}

/// The frame of a segment at this sequence number, with right checksums.
fn frame(segment: &Segment, sequence: u32) -> Vec<u8> {
    let (from, to) = ends(segment);
    let mut header = Vec::new();
    if let Some(stamp) = segment.options {
        header.extend([1, 1, 8, 10]);
        header.extend(stamp.to_be_bytes());
        header.extend([0; 4]);
    }
    let options = header.len();
    let payload = (0..segment.payload).map(|at| (sequence as usize + at) as u8);
    header.extend(payload);
    let datagram = Datagram {
        macs: (OWN, PEER),
        transport: Transport::Tcp,
        from: endpoint(from),
        to: endpoint(&to),
        id: 0,
        data: header,
    };
    let mut frame = datagram.frame();
    let family = Family::of(datagram.from.ip());
    let tcp = family.headers_end();
    match family {
        Family::V4 => {
            frame[ETHERNET + 1] = segment.tos;
            frame[ETHERNET + V4_FLAGS] = if segment.may_be_fragmented { 0 } else { 0x40 };
        }
        Family::V6 => frame[ETHERNET + 1] = segment.tos << 4,
    }
    crate::test_frames::mend_checksum(&mut frame);
    let put =
        |frame: &mut [u8], at, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
    put(&mut frame, tcp + TCP_SEQUENCE_AT, &sequence.to_be_bytes());
    put(&mut frame, tcp + TCP_ACK_AT, &segment.ack.to_be_bytes());
    frame[tcp + TCP_OFFSET_AT] = ((20 + options) as u8 / 4) << 4;
    frame[tcp + TCP_FLAGS_AT] = segment.flags;
    put(&mut frame, tcp + TCP_WINDOW, &segment.window.to_be_bytes());
    complete_tcp(&mut frame);
    frame
}

/// Cuts a packet as the kernel does, by the virtio-net header before it.
fn cut(message: &[u8]) -> Vec<Vec<u8>> {
    let word = |at: usize| usize::from(u16::from_ne_bytes([message[at], message[at + 1]]));
    let frame = &message[size_of::<VirtioHeader>()..];
    if message[..2] == [0; 2] {
        assert_eq!(message[..10], [0; 10]);
        return vec![frame.to_vec()];
    }
    assert_eq!(message[0], NEEDS_CHECKSUM);
    let (payload, segment, tcp) = (word(2), word(4), word(6));
    assert_eq!(word(8), TCP_CHECKSUM);
    let is_v4 = frame[12..14] == [8, 0];
    let (kind, segment) = match (message[1], is_v4) {
        // One segment, whose checksum is left.
        (0, _) => {
            assert_eq!(segment, 0);
            (0, frame.len() - payload)
        }
        (kind, true) => (kind - GSO_TCP_V4, segment),
        (kind, false) => (kind - GSO_TCP_V6, segment),
    };
    assert_eq!(kind, 0);
    let whole = |length: usize| (length as u16).to_be_bytes();
    // The packet's own lengths and sums are right.
    let ip = match is_v4 {
        true => (ETHERNET + 2, ETHERNET),
        false => (ETHERNET + 4, ETHERNET + 40),
    };
    assert_eq!(frame[ip.0..ip.0 + 2], whole(frame.len() - ip.1));
    let mut sum: u64 = (TCP_CHECKSUM as u64 - 10) + (frame.len() - tcp) as u64;
    let addresses = if is_v4 { tcp - 8..tcp } else { tcp - 32..tcp };
    sum += addresses
        .step_by(2)
        .map(|at| u64::from(be16(frame, at)))
        .sum::<u64>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    assert_eq!(
        u64::from(be16(frame, tcp + TCP_CHECKSUM)),
        sum,
        "of the pseudo header"
    );
    let pieces = frame[payload..].chunks(segment);
    let last = pieces.len() - 1;
    assert_eq!(last > 0, message[1] != 0);
    let piece = |(number, piece): (usize, &[u8])| {
        let mut one = frame[..payload].to_vec();
        one.extend(piece);
        let length = whole(one.len() - ip.1);
        one[ip.0..ip.0 + 2].copy_from_slice(&length);
        crate::test_frames::mend_checksum(&mut one);
        let sequence = be32(frame, tcp + TCP_SEQUENCE_AT).wrapping_add((number * segment) as u32);
        one[tcp + TCP_SEQUENCE_AT..tcp + TCP_SEQUENCE_AT + 4]
            .copy_from_slice(&sequence.to_be_bytes());
        if number < last {
            one[tcp + TCP_FLAGS_AT] &= !(TCP_PSH | TCP_FIN);
        }
        complete_tcp(&mut one);
        one
    };
    pieces.enumerate().map(piece).collect()
}

fn template(is_v6: bool) -> Template {
    let local = if is_v6 {
        "[fd00::1]:5000"
    } else {
        "10.0.0.1:5000"
    };
    Template::new(&Sender {
        mac: OWN,
        next_hop: Some(PEER),
        longest: 1514,
        sends: Sends::Ports {
            transport: Transport::Tcp,
            local: endpoint(local),
            remote: None,
        },
    })
    .expect("a sender")
}

/// Sends segments, and returns what arrives: the number of packets, and the segments.
fn pass(segments: &[Segment], most: usize, flush_after: usize) -> (usize, [Vec<Vec<u8>>; 2]) {
    let (own, peer) = UnixDatagram::pair().unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut packets = LongPackets::of(own.into(), true);
    let templates = [false, true].map(template);
    let mut sequences = std::collections::HashMap::new();
    let (mut sent, mut arrived, mut count) = (Vec::new(), Vec::new(), 0);
    let mut read = |arrived: &mut Vec<Vec<u8>>| {
        let mut buffer = vec![0; 70_000];
        while let Ok(length) = peer.recv(&mut buffer) {
            count += 1;
            assert!(length <= 10 + most.max(1514));
            arrived.extend(cut(&buffer[..length]));
        }
    };
    for (number, segment) in segments.iter().enumerate() {
        let key = (segment.connection, segment.is_v6);
        let sequence = sequences.entry(key).or_insert(u32::MAX - 5000);
        *sequence = sequence.wrapping_add(segment.gap);
        let frame = frame(segment, *sequence);
        *sequence = sequence.wrapping_add(segment.payload as u32);
        let template = &templates[usize::from(segment.is_v6)];
        let done = packets.send(most, |place| {
            place[..frame.len()].copy_from_slice(&frame);
            template.check(&mut place[..frame.len()])
        });
        done.expect("room").expect("allowed");
        sent.push(frame);
        if number % flush_after == flush_after - 1 {
            assert_eq!(packets.flush().unwrap(), Flushed::All);
        }
        read(&mut arrived);
    }
    assert_eq!(packets.flush().unwrap(), Flushed::All);
    read(&mut arrived);
    assert_eq!(packets.counts(), (segments.len() as u64, 0));
    (count, [sent, arrived])
}

/// The segments by connection, in order.
fn by_connection(frames: &[Vec<u8>]) -> Vec<(Vec<u8>, Vec<&Vec<u8>>)> {
    let mut all: Vec<(Vec<u8>, Vec<&Vec<u8>>)> = Vec::new();
    for frame in frames {
        let family = match be16(frame, ETHERTYPE_AT) {
            IPV4 => Family::V4,
            _ => Family::V6,
        };
        let tcp = family.headers_end();
        let key = frame[tcp - 8..tcp + 4].to_vec();
        match all.iter_mut().find(|(known, _)| *known == key) {
            Some((_, frames)) => frames.push(frame),
            None => all.push((key, vec![frame])),
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

fn segment() -> impl Strategy<Value = Segment> {
    let rare = |value| prop_oneof![20 => Just(0u32), 1 => Just(value)];
    let flags = prop_oneof![20 => Just(TCP_ACK), 3 => Just(TCP_ACK | TCP_PSH), 1 => any::<u8>()];
    let payload =
        prop_oneof![10 => Just(1000usize), 2 => Just(0), 2 => Just(999), 1 => 1..1400usize];
    let fields = (
        rare(1),
        rare(1),
        prop_oneof![9 => Just(Some(5)), 1 => Just(Some(6)), 1 => Just(None)],
    );
    let ip = (
        prop_oneof![20 => Just(0u8), 1 => Just(2)],
        prop::bool::weighted(0.03),
    );
    (0..4u8, any::<bool>(), rare(1), payload, flags, fields, ip).prop_map(
        |(connection, is_v6, gap, payload, flags, (ack, window, options), (tos, may))| Segment {
            connection,
            is_v6,
            gap,
            payload,
            flags,
            ack,
            window: 100 + window as u16,
            options,
            tos,
            may_be_fragmented: may,
        },
    )
}

proptest! {
    #[test]
    fn cut_packets_are_the_segments_that_were_sent(
        segments in prop::collection::vec(segment(), 1..120),
        most in prop_oneof![Just(70_000usize), Just(5000), Just(0)],
        flush_after in 1..70usize,
    ) {
        let (_, [sent, arrived]) = pass(&segments, most, flush_after);
        for (sent, arrived) in by_connection(&sent).iter().zip(&by_connection(&arrived)) {
            for (number, (sent, arrived)) in sent.1.iter().zip(&arrived.1).enumerate() {
                prop_assert_eq!(sent, arrived, "segment {}", number);
            }
        }
        prop_assert_eq!(by_connection(&sent), by_connection(&arrived));
    }
}

#[test]
fn segments_of_a_connection_leave_in_one_packet() {
    let (count, _) = pass(&vec![plain(0); 60], 70_000, 64);
    assert_eq!(count, 1);
    // At most as long as the caller allows, and as a packet of IP can be.
    assert_eq!(pass(&vec![plain(0); 60], 10_100, 64).0, 6);
    assert_eq!(pass(&vec![plain(0); 70], 100_000, 100).0, 2);
    let both: Vec<_> = (0..60).map(|number| plain(number % 2)).collect();
    assert_eq!(pass(&both, 70_000, 64).0, 2);
    let of = |is_v6| Segment { is_v6, ..plain(0) };
    let both: Vec<_> = (0..60).map(|number| of(number % 2 == 0)).collect();
    assert_eq!(pass(&both, 70_000, 64).0, 2);
}

#[test]
fn what_differs_stays_alone() {
    let other = |change: &dyn Fn(&mut Segment)| {
        let mut last = plain(0);
        change(&mut last);
        pass(&[plain(0), plain(0), last, plain(0)], 70_000, 64).0
    };
    assert_eq!(other(&|_| ()), 1);
    assert_eq!(
        other(&|one| one.payload = 900),
        2,
        "a short one ends its packet"
    );
    assert_eq!(other(&|one| one.flags |= TCP_PSH), 2, "PSH ends its packet");
    assert_eq!(
        other(&|one| one.payload = 1001),
        2,
        "a longer one begins another"
    );
    assert_eq!(
        other(&|one| one.gap = 1),
        2,
        "a gap begins another, which goes on"
    );
    assert_eq!(other(&|one| one.ack = 8), 3);
    assert_eq!(other(&|one| one.window = 8), 3);
    assert_eq!(other(&|one| one.options = Some(6)), 3);
    assert_eq!(other(&|one| one.options = None), 3);
    assert_eq!(other(&|one| one.tos = 3), 3);
    assert_eq!(other(&|one| one.may_be_fragmented = true), 3);
    for alone in [crate::frame::TCP_SYN, crate::frame::TCP_RST, 0x20, 0x80] {
        assert_eq!(other(&|one| one.flags |= alone), 3, "{alone:#x}");
    }
}

#[test]
fn more_connections_than_places_leave_too() {
    let many: Vec<_> = (0..100).map(|number| plain(number % 20)).collect();
    let (count, [sent, arrived]) = pass(&many, 70_000, 1000);
    assert!(count <= 100, "{count}");
    assert_eq!(by_connection(&sent), by_connection(&arrived));
}

#[test]
fn a_refused_frame_leaves_nothing() {
    let (own, peer) = UnixDatagram::pair().unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut packets = LongPackets::of(own.into(), true);
    let done = packets.send(70_000, |place| template(false).check(&mut place[..60]));
    assert!(done.expect("room").is_err());
    assert_eq!(packets.flush().unwrap(), Flushed::All);
    assert!(peer.recv(&mut [0]).is_err());
}

/// A program's memory with the segments of a connection, and the runs that they are sent in.
struct Runs {
    rings: netnice_ring::driver::DriverRings,
    _memory: netnice_ring::driver::ProgramMemory,
    flow: netnice_ring::program::ProgramRings,
}

impl Runs {
    fn new() -> Runs {
        use netnice_ring::{Budget, Shape};
        let shape = Shape {
            chunk_bytes: 2048,
            chunks: 64,
            transmit_entries: 256,
            receive_entries: 16,
        };
        let budget = Budget {
            flows: 1,
            bytes: 1 << 20,
        };
        let mut memory = netnice_ring::driver::ProgramMemory::create(budget).unwrap();
        let rings = memory.open(shape).unwrap();
        let attachment = memory.handles().attach().unwrap();
        let flow = attachment.flow(rings.location()).unwrap();
        Runs {
            rings,
            _memory: memory,
            flow,
        }
    }

    /// Sends these segments as one run.
    fn send(&mut self, packets: &mut LongPackets, frames: &[Vec<u8>], most: usize) -> bool {
        let family = match be16(&frames[0], ETHERTYPE_AT) {
            IPV4 => Family::V4,
            _ => Family::V6,
        };
        let flags_at = family.headers_end() + TCP_FLAGS_AT;
        let mut pieces = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            let chunk = self.flow.chunk().unwrap();
            let bytes = &mut self.flow.bytes_mut(chunk).unwrap()[..frame.len()];
            bytes.copy_from_slice(frame);
            if number == 0 {
                bytes[flags_at] = frames[frames.len() - 1][flags_at];
            }
            pieces.push(netnice_ring::program::Piece {
                chunk,
                start: 0,
                length: frame.len() as u32,
            });
        }
        self.flow.submit_segments(&pieces).unwrap();
        self.flow.publish();
        let netnice_ring::driver::Taken::Record(record) = self.rings.take().unwrap() else {
            panic!("no record");
        };
        let mut own = [0; 128];
        let length = self.rings.read_first(&record, &mut own);
        let parts = crate::template::Parts {
            begin: 0,
            end: pieces.len(),
        };
        let mut payloads = Vec::new();
        let template = template(family == Family::V6);
        let run = template.check_segments(
            &mut own[..length],
            (&record, parts),
            |part, skip| self.rings.shared(&record.pairs()[part], skip),
            &mut payloads,
            None,
        );
        packets.send_run(most, &run.expect("allowed"))
    }

    /// What a program does that has its memory back.
    fn overwrite(&mut self) {
        let chunks: Vec<_> = std::iter::from_fn(|| self.flow.chunk()).collect();
        let location = self.flow.location();
        for chunk in 0..location.shape.chunks {
            if !chunks.iter().any(|held| held.0 == chunk) {
                let pair = netnice_ring::Pair {
                    base: chunk * 2048,
                    length: 2048,
                };
                let bytes = self.rings.shared(&pair, 0);
                // SAFETY: the memory is mapped for writing, and no reference to it exists.
                unsafe { bytes.as_ptr().cast_mut().write_bytes(0xee, bytes.len()) };
            }
        }
    }
}

/// Segments of one connection that follow each other, with timestamps.
fn following(is_v6: bool, payloads: &[usize], flags: u8) -> Vec<Vec<u8>> {
    let mut sequence = u32::MAX - 5000;
    let last = payloads.len() - 1;
    let one = |(number, payload): (usize, &usize)| {
        let segment = Segment {
            is_v6,
            payload: *payload,
            flags: if number == last { flags } else { TCP_ACK },
            ..plain(0)
        };
        let frame = frame(&segment, sequence);
        sequence = sequence.wrapping_add(*payload as u32);
        frame
    };
    payloads.iter().enumerate().map(one).collect()
}

#[test]
fn runs_leave_as_their_segments_joined_with_others() {
    for is_v6 in [false, true] {
        for (most, count) in [(70_000, 1), (3200, 8), (1000, 24), (4000, 8)] {
            let (own, peer) = UnixDatagram::pair().unwrap();
            peer.set_nonblocking(true).unwrap();
            let mut packets = LongPackets::of(own.into(), true);
            let mut runs = Runs::new();
            let mut payloads = vec![1000; 23];
            payloads.push(500);
            let frames = following(is_v6, &payloads, TCP_ACK | TCP_PSH);
            for run in frames.chunks(8) {
                assert!(runs.send(&mut packets, run, most));
            }
            packets.release();
            runs.overwrite();
            assert_eq!(packets.flush().unwrap(), Flushed::All);
            let (mut buffer, mut arrived, mut seen) = (vec![0; 70_000], Vec::new(), 0);
            while let Ok(length) = peer.recv(&mut buffer) {
                seen += 1;
                arrived.extend(cut(&buffer[..length]));
            }
            // The identification of IPv4 means nothing in packets that are not to be fragmented.
            if !is_v6 {
                arrived.iter_mut().for_each(|frame| {
                    frame[ETHERNET + 4..ETHERNET + 6].fill(0);
                    crate::test_frames::mend_checksum(frame);
                });
            }
            assert_eq!(arrived, frames, "at most {most} bytes");
            assert_eq!(seen, count, "at most {most} bytes");
            assert_eq!(packets.counts(), (24, 0));
        }
    }
}

#[test]
fn a_run_joins_the_last_packet_of_its_connection() {
    let (own, peer) = UnixDatagram::pair().unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut packets = LongPackets::of(own.into(), true);
    let mut runs = Runs::new();
    let frames = following(false, &[1000; 10], TCP_ACK);
    let alone = |packets: &mut LongPackets, frame: &[u8]| {
        let done = packets.send(70_000, |place| {
            place[..frame.len()].copy_from_slice(frame);
            template(false).check(&mut place[..frame.len()])
        });
        done.expect("room").expect("allowed");
    };
    let other = frame(&plain(1), 5);
    alone(&mut packets, &frames[0]);
    alone(&mut packets, &other);
    assert!(runs.send(&mut packets, &frames[1..9], 70_000));
    alone(&mut packets, &frames[9]);
    packets.release();
    let mut buffer = vec![0; 70_000];
    let length = peer.recv(&mut buffer).unwrap();
    assert_eq!(cut(&buffer[..length]), frames);
    let length = peer.recv(&mut buffer).unwrap();
    assert_eq!(cut(&buffer[..length]), [other]);
    assert!(peer.recv(&mut buffer).is_err());
}

#[test]
fn a_program_gets_its_memory_back_although_the_kernel_is_busy() {
    let (own, peer) = UnixDatagram::pair().unwrap();
    own.set_nonblocking(true).unwrap();
    peer.set_nonblocking(true).unwrap();
    // The socket is full.
    let mut filled = 0;
    while own.send(&[0; 1000]).is_ok() {
        filled += 1;
    }
    let mut packets = LongPackets::of(own.into(), true);
    let mut runs = Runs::new();
    let frames = following(true, &[1000; 8], TCP_ACK);
    assert!(runs.send(&mut packets, &frames, 70_000));
    packets.release();
    assert!(packets.is_stuck());
    runs.overwrite();
    let mut buffer = vec![0; 70_000];
    for _ in 0..filled {
        assert_eq!(peer.recv(&mut buffer).unwrap(), 1000);
    }
    assert_eq!(packets.flush().unwrap(), Flushed::All);
    let length = peer.recv(&mut buffer).unwrap();
    assert_eq!(cut(&buffer[..length]), frames);
}
