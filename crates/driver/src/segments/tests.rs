use etherparse::TcpHeader;
use netnice_cases::Corpus;
use proptest::prelude::*;

use super::hostile::{correct_lengths, encode, outcome_of, transport_checksum};
use super::*;
use crate::test_frames::{Datagram, OWN, PEER, endpoint};

/// A long packet that this host receives; its checksum is right.
fn long(transport: Transport, v6: bool, payload: usize) -> Vec<u8> {
    let (from, to) = match v6 {
        false => ("10.0.0.9:5000", "10.0.0.1:53"),
        true => ("[fd00::9]:5000", "[fd00::1]:53"),
    };
    let datagram = Datagram {
        macs: (PEER, OWN),
        transport,
        from: endpoint(from),
        to: endpoint(to),
        id: 65_534,
        data: (0..payload).map(|k| (k * 7 + (k >> 8)) as u8).collect(),
    };
    let mut frame = datagram.frame();
    write_checksum(&mut frame);
    frame
}

fn write_checksum(frame: &mut [u8]) {
    let (at, right) = transport_checksum(frame).expect("a packet");
    frame[at..at + 2].copy_from_slice(&right.to_be_bytes());
}

fn merged(merged: Merged) -> Offload {
    Offload {
        merged,
        checksum: Checksum::Unknown,
    }
}

fn segments(frame: &[u8], offload: &Offload, longest: usize) -> Result<Vec<Vec<u8>>, CutError> {
    let mut all = Vec::new();
    let mut own = frame.to_vec();
    cut(&mut own, offload, longest, |one| all.push(one.to_vec()))?;
    Ok(all)
}

#[test]
fn a_long_packet_becomes_the_segments_of_the_wire() {
    for v6 in [false, true] {
        let head = if v6 { 74 } else { 54 };
        let frame = long(Transport::Tcp, v6, 60_000);
        let size = 1514 - head as u16;
        for stated in [Merged::Tcp(size), Merged::Tcp(9000), Merged::Unknown] {
            let all = segments(&frame, &merged(stated), 1514).unwrap();
            assert_eq!(all.len(), 60_000_usize.div_ceil(size.into()), "{stated:?}");
            assert!(all[..all.len() - 1].iter().all(|one| one.len() == 1514));
            let bytes = encode(&merged(stated), 1514, &frame);
            assert_eq!(outcome_of(&bytes), "several");
        }
        // What is stated holds if it is shorter than the longest, and not very short.
        let all = segments(&frame, &merged(Merged::Tcp(1000)), 1514).unwrap();
        assert_eq!(all.len(), 60);
        let all = segments(&frame, &merged(Merged::Tcp(1)), 1514).unwrap();
        assert_eq!(all.len(), 60_000_usize.div_ceil(SHORT_PAYLOAD));
        let all = segments(&frame, &merged(Merged::Tcp(1000)), 0).unwrap();
        assert_eq!(all.len(), 60_000_usize.div_ceil(LEAST_PAYLOAD));
    }
}

#[test]
fn the_flags_are_those_of_the_wire() {
    let mut frame = long(Transport::Tcp, false, 3000);
    let mut header = TcpHeader::from_slice(&frame[34..]).unwrap().0;
    (header.fin, header.psh, header.cwr, header.ece) = (true, true, true, true);
    (header.ack, header.sequence_number) = (true, u32::MAX - 100);
    frame[34..54].copy_from_slice(&header.to_bytes());
    write_checksum(&mut frame);
    let all = segments(&frame, &merged(Merged::Tcp(1000)), 1514).unwrap();
    let fields = |one: &Vec<u8>| (one[34 + 13], be32(one, 38), be16(one, 18));
    let fields: Vec<_> = all.iter().map(fields).collect();
    let (cwr, ece, ack, psh, fin) = (0x80, 0x40, 0x10, 0x08, 0x01);
    let expected = [
        (cwr | ece | ack, u32::MAX - 100, 65_534),
        (ece | ack, 899, 65_535),
        (ece | ack | psh | fin, 1899, 0),
    ];
    assert_eq!(fields, expected);
    for flag in [TCP_SYN, TCP_RST, TCP_URG] {
        frame[34 + 13] = flag;
        write_checksum(&mut frame);
        let lone = segments(&frame, &merged(Merged::Tcp(1000)), 1514);
        assert_eq!(lone, Err(CutError::Flags));
        // A single segment can have any flag.
        let whole = segments(&frame, &merged(Merged::Tcp(3000)), 4000);
        assert_eq!(whole.unwrap().len(), 1);
    }
}

#[test]
fn datagrams_keep_their_borders() {
    for v6 in [false, true] {
        let frame = long(Transport::Udp, v6, 10_500);
        let all = segments(&frame, &merged(Merged::Udp(1000)), 600).unwrap();
        assert_eq!(all.len(), 11);
        let bytes = encode(&merged(Merged::Udp(1000)), 600, &frame);
        assert_eq!(outcome_of(&bytes), "several");
        let many = segments(&frame, &merged(Merged::Udp(82)), 1514);
        assert_eq!(many, Err(CutError::Size));
        let unknown = segments(&frame, &merged(Merged::Unknown), 1514);
        assert_eq!(unknown, Err(CutError::Size));
    }
    // IPv4 without a checksum.
    let mut frame = long(Transport::Udp, false, 3000);
    frame[40..42].fill(0);
    let all = segments(&frame, &merged(Merged::Udp(1000)), 1514).unwrap();
    assert!(all.iter().all(|one| one[40..42] == [0, 0]));
}

#[test]
fn only_a_right_or_partial_checksum_is_replaced() {
    for (transport, at, stated) in [
        (Transport::Tcp, 16, Merged::Tcp(1000)),
        (Transport::Udp, 6, Merged::Udp(1000)),
    ] {
        for v6 in [false, true] {
            let (ip, start) = if v6 { (26..54, 54) } else { (26..34, 34) };
            let frame = long(transport, v6, 3000);
            let mut damaged = frame.clone();
            *damaged.last_mut().unwrap() ^= 1;
            let found = segments(&damaged, &merged(stated), 1514);
            assert_eq!(found, Err(CutError::Checksum));
            // The kernel states that the packet is right.
            for checksum in [Checksum::Valid, Checksum::Partial { start }] {
                let merged = stated;
                let all = segments(&damaged, &Offload { merged, checksum }, 1514).unwrap();
                for one in &all {
                    let (at, right) = transport_checksum(one).unwrap();
                    assert_eq!(be16(one, at), right);
                }
            }
            let tunnel = Offload {
                merged: stated,
                checksum: Checksum::Partial { start: start + 50 },
            };
            assert_eq!(segments(&frame, &tunnel, 1514), Err(CutError::Protocol));
            // The partial checksum of a sender on this machine, by the formula of RFC 9293.
            let addresses = if v6 { 22..54 } else { ip };
            let length = (frame.len() - usize::from(start)) as u32;
            let pseudo = sum(&frame[addresses]) + u32::from(transport.number()) + length;
            let mut partial = frame.clone();
            let at = usize::from(start) + at;
            partial[at..at + 2].copy_from_slice(&fold(pseudo).to_be_bytes());
            assert_eq!(
                segments(&partial, &merged(stated), 1514).unwrap(),
                segments(&frame, &merged(stated), 1514).unwrap()
            );
            let mut one = partial.clone();
            complete(&mut one, Checksum::Partial { start });
            assert_eq!(one, frame);
            for other in [Checksum::Unknown, Checksum::Partial { start: start + 8 }] {
                let mut one = partial.clone();
                complete(&mut one, other);
                assert_eq!(one, partial);
            }
        }
    }
}

#[test]
fn what_is_no_packet_of_the_stated_protocol_is_not_cut() {
    let frame = long(Transport::Tcp, false, 3000);
    let udp = segments(&frame, &merged(Merged::Udp(1000)), 1514);
    assert_eq!(udp, Err(CutError::Protocol));
    let none = segments(&frame, &merged(Merged::Tcp(0)), 1514);
    assert_eq!(none, Err(CutError::Size));
    let short = segments(&frame[..60], &merged(Merged::Tcp(1000)), 1514);
    assert_eq!(short, Err(CutError::Headers));
    let mut header = frame.clone();
    header[46] = 0xf0;
    write_checksum(&mut header);
    assert!(segments(&header, &merged(Merged::Tcp(1000)), 1514).is_ok());
    header[46] = 0x40;
    let header = segments(&header, &merged(Merged::Tcp(1000)), 1514);
    assert_eq!(header, Err(CutError::Headers));
}

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/cut"))
}

#[test]
fn kept_packets_have_their_recorded_outcomes() {
    corpus().replay(outcome_of, &OUTCOMES);
}

proptest! {
    #![proptest_config(netnice_cases::cases(1000))]

    #[test]
    fn packets_near_the_corpus_are_cut_as_by_the_formula(
        bytes in corpus().near(),
        corrected in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if corrected {
            correct_lengths(&mut bytes);
        }
        outcome_of(&bytes);
    }

    #[test]
    fn any_long_packet_is_cut_as_by_the_formula(
        (is_tcp, v6) in any::<(bool, bool)>(),
        payload in 0_usize..65_000,
        size in prop_oneof![1_u16..100, 100_u16..2000, any::<u16>()],
        longest in prop_oneof![0_u16..600, 600_u16..2000],
        (kind, checksum) in (0_usize..4, 0_usize..4),
        flags in any::<u8>(),
    ) {
        let transport = if is_tcp { Transport::Tcp } else { Transport::Udp };
        let mut frame = long(transport, v6, payload);
        if is_tcp {
            frame[if v6 { 67 } else { 47 }] = flags;
            write_checksum(&mut frame);
        }
        let offload = Offload {
            merged: [Merged::No, Merged::Tcp(size), Merged::Udp(size), Merged::Unknown][kind],
            checksum: [
                Checksum::Unknown,
                Checksum::Valid,
                Checksum::Partial { start: 34 },
                Checksum::Partial { start: 54 },
            ][checksum],
        };
        outcome_of(&encode(&offload, longest, &frame));
    }
}

/// Every outcome of a packet.
const OUTCOMES: [&str; 8] = [
    "nothing", "one", "several", "headers", "protocol", "flags", "size", "checksum",
];
