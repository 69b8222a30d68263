use netnice_tcp::header::{Flags, Seq, Timestamps};

use super::*;
use crate::headers::FlowAddress;

fn headers(family: u8) -> (Headers, Layout) {
    let [local, remote] = match family {
        4 => ["10.0.0.1:1000", "10.0.0.2:80"],
        _ => ["[fd00::1]:1000", "[fd00::2]:80"],
    }
    .map(|text| text.parse::<SocketAddr>().unwrap());
    let address = FlowAddress {
        local,
        remote,
        local_mac: [2, 0, 0, 0, 0, 1],
        next_hop: [2, 0, 0, 0, 0, 2],
        mtu: 1500,
        hops: 64,
    };
    (Headers::ip(&address, TCP).unwrap(), Layout::new(local.ip()))
}

fn header(timestamps: bool) -> Header {
    let options = Options {
        timestamps: timestamps.then_some(Timestamps { value: 1, echo: 2 }),
        padding: if timestamps { 0 } else { 4 },
        ..Options::default()
    };
    Header {
        source: 1000,
        destination: 80,
        seq: Seq(1),
        ack: Seq(2),
        flags: Flags::ACK,
        window: 3,
        options,
        ..Header::default()
    }
}

#[test]
fn a_written_frame_is_parsed_and_its_payload_has_not_moved() {
    for family in [4, 6] {
        for timestamps in [true, false] {
            let (headers, layout) = headers(family);
            let mut bytes = [0; 2048];
            let payload = layout.payload..layout.payload + 1001;
            bytes[payload.clone()].fill(0xa5);
            let header = header(timestamps);
            let frame = layout.write(&mut bytes, &headers, &header, (1001, true), Sums::Written);
            assert_eq!(frame.start % 8, 0, "docs/reference/ring.md, R40");
            assert_eq!(frame.end, payload.end);
            let segment = parse(&bytes[frame.clone()]).unwrap();
            assert!(!segment.is_partial && !segment.marked);
            assert_eq!(&bytes[frame][segment.payload], &[0xa5; 1001]);
            assert_eq!(segment.from.port(), 1000);
            assert_eq!(segment.header.ack, Seq(2));
        }
    }
}

#[test]
fn a_damaged_segment_is_refused_and_a_partial_checksum_accepted() {
    for family in [4, 6] {
        let (headers, layout) = headers(family);
        let mut bytes = [7; 2048];
        let frame = layout.write(
            &mut bytes,
            &headers,
            &header(true),
            (100, false),
            Sums::Written,
        );
        let frame = &mut bytes[frame];
        let last = frame.len() - 1;
        frame[last] ^= 1;
        assert_eq!(parse(frame).err(), Some(ParseError::Checksum));
        // The kernel of a sender on this machine writes the sum of the pseudo header.
        let length = (frame.len() - layout.lower) as u16;
        let sum = pseudo_header(frame).word(length).folded();
        let at = layout.lower + CHECKSUM_AT;
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        assert!(parse(frame).unwrap().is_partial);
    }
}

#[test]
fn a_congestion_mark_is_found_and_the_header_stays_valid() {
    for family in [4, 6] {
        let (headers, layout) = headers(family);
        let mut bytes = [7; 2048];
        let frame = layout.write(
            &mut bytes,
            &headers,
            &header(true),
            (100, true),
            Sums::Written,
        );
        let frame = &mut bytes[frame];
        let packet = &mut frame[ETHERNET..];
        match family {
            4 => {
                assert_eq!(packet[1] & 3, 2, "ECT(0)");
                packet[1] |= 3;
                packet[10..12].fill(0);
                let sum = Sum::default().add(&packet[..20]).checksum();
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            _ => {
                assert_eq!(packet[1] >> 4 & 3, 2, "ECT(0)");
                packet[1] |= 3 << 4;
            }
        }
        assert!(parse(frame).unwrap().marked);
    }
}

#[test]
fn any_bytes_are_parsed_or_refused() {
    let (headers, layout) = headers(4);
    let mut bytes = [7; 2048];
    let frame = layout.write(
        &mut bytes,
        &headers,
        &header(true),
        (40, false),
        Sums::Written,
    );
    let frame = bytes[frame].to_vec();
    for at in 0..frame.len() {
        for bit in 0..8 {
            let mut damaged = frame.clone();
            damaged[at] ^= 1 << bit;
            let _ = parse(&damaged);
        }
        assert!(parse(&frame[..at]).is_err(), "{at} bytes");
    }
}
