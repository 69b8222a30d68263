use proptest::prelude::*;

use super::*;
use crate::headers::{FlowAddress, Headers};

fn packet(six: bool, payload: &[u8]) -> Vec<u8> {
    let address = |four: &str, other: &str| if six { other } else { four }.parse().unwrap();
    let headers = Headers::udp(&FlowAddress {
        local: address("10.0.0.1:1000", "[fd00::1]:1000"),
        remote: address("10.0.0.2:2000", "[fd00::2]:2000"),
        local_mac: [2; 6],
        next_hop: [4; 6],
        mtu: 1500,
        hops: 1,
    });
    let headers = headers.unwrap();
    let mut frame = vec![0; headers.headroom()];
    frame.extend(payload);
    headers.write(&mut frame);
    frame
}

/// Corrects the checksum of an IPv4 header.
fn with_ipv4_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    frame[24..26].fill(0);
    let header = 4 * usize::from(frame[14] & 0xf);
    let checksum = Sum::default().add(&frame[14..14 + header]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

#[test]
fn padding_of_the_link_is_not_payload() {
    for six in [false, true] {
        let mut frame = packet(six, b"four");
        frame.resize(frame.len() + 18, 0xaa);
        let found = parse(&frame, Checks::Verify).unwrap();
        assert_eq!(&frame[found.payload], b"four");
    }
}

#[test]
fn options_of_ipv4_are_skipped() {
    let mut frame = packet(false, b"four");
    frame.splice(34..34, [1, 1, 1, 0]);
    frame[14] = 0x46;
    frame[17] += 4;
    let frame = with_ipv4_checksum(frame);
    let found = parse(&frame, Checks::Verify).unwrap();
    assert_eq!(&frame[found.payload], b"four");
}

#[test]
fn a_wrong_checksum_is_refused_unless_checksums_are_trusted() {
    for six in [false, true] {
        let mut frame = packet(six, b"payload");
        let last = frame.len() - 1;
        frame[last] ^= 1;
        assert_eq!(parse(&frame, Checks::Verify), Err(ParseError::Checksum));
        assert!(parse(&frame, Checks::Trust).is_ok());
        assert_eq!(parse(&frame, Checks::Partial), Err(ParseError::Checksum));
        // IPv4 allows a missing checksum (RFC 768), and IPv6 does not (RFC 8200, section 8.1).
        let at = frame.len() - 7 - 2;
        frame[at..at + 2].fill(0);
        assert_eq!(parse(&frame, Checks::Verify).is_ok(), !six);
    }
    let mut frame = packet(false, b"payload");
    frame[22] ^= 1;
    assert_eq!(
        parse(&frame, Checks::Trust),
        Err(ParseError::Checksum),
        "the header's"
    );
}

#[test]
fn a_partial_checksum_is_accepted_only_if_permitted() {
    for six in [false, true] {
        let mut frame = packet(six, b"payload");
        assert!(parse(&frame, Checks::Partial).is_ok(), "a whole one");
        // A checksum that Linux leaves to the NIC: the folded sum of addresses, protocol and length
        // (CHECKSUM_PARTIAL).
        let udp = frame.len() - 15;
        let addresses = if six { 22..54 } else { 26..34 };
        let mut half = frame[addresses].chunks(2).fold(17 + 15, |sum, pair| {
            sum + u32::from(u16::from_be_bytes([pair[0], pair[1]]))
        });
        while half > 0xffff {
            half = (half & 0xffff) + (half >> 16);
        }
        frame[udp + 6..udp + 8].copy_from_slice(&(half as u16).to_be_bytes());
        assert!(parse(&frame, Checks::Partial).is_ok());
        assert_eq!(parse(&frame, Checks::Verify), Err(ParseError::Checksum));
    }
}

#[test]
fn each_invalid_frame_has_its_error() {
    let change = |six: bool, at: usize, value: u8| {
        let mut frame = packet(six, b"payload");
        frame[at] = value;
        if !six && at != 12 {
            frame = with_ipv4_checksum(frame);
        }
        parse(&frame, Checks::Verify)
    };
    assert_eq!(change(false, 12, 0x88), Err(ParseError::Protocol));
    assert_eq!(change(false, 14, 0x65), Err(ParseError::Protocol));
    assert_eq!(change(false, 23, 6), Err(ParseError::Protocol));
    assert_eq!(change(false, 20, 0x20), Err(ParseError::Fragment));
    assert_eq!(change(false, 21, 1), Err(ParseError::Fragment));
    // The ports are read as a fragment header, whose next header is not UDP.
    assert_eq!(change(true, 20, 44), Err(ParseError::Protocol));
    assert_eq!(change(true, 20, 58), Err(ParseError::Protocol));
    assert_eq!(change(false, 17, 200), Err(ParseError::Short));
    assert_eq!(change(false, 17, 21), Err(ParseError::Short));
    assert_eq!(change(false, 39, 7), Err(ParseError::Short));
    assert_eq!(change(false, 39, 16), Err(ParseError::Short));
    assert_eq!(change(true, 59, 200), Err(ParseError::Short));
}

#[test]
fn a_truncated_frame_is_refused() {
    for six in [false, true] {
        let frame = packet(six, b"payload");
        for length in 0..frame.len() {
            assert!(parse(&frame[..length], Checks::Verify).is_err(), "{length}");
        }
    }
}

/// Fragments of a packet with at most `length` bytes of data each.
fn fragments(six: bool, payload: &[u8], length: usize) -> Vec<Vec<u8>> {
    let frame = packet(six, payload);
    let header = if six { 54 } else { 34 };
    let (head, datagram) = frame.split_at(header);
    let count = datagram.chunks(length).count();
    let part = |(index, bytes): (usize, &[u8])| {
        let (offset, more) = ((index * length) as u16, u16::from(index + 1 < count));
        let mut frame = head.to_vec();
        if six {
            frame[20] = 44;
            let long = (8 + bytes.len()) as u16;
            frame[18..20].copy_from_slice(&long.to_be_bytes());
            frame.extend([17, 0]);
            frame.extend((offset | more).to_be_bytes());
            frame.extend(0x0102_0304u32.to_be_bytes());
        } else {
            frame[16..18].copy_from_slice(&(20 + bytes.len() as u16).to_be_bytes());
            frame[18..20].copy_from_slice(&0x0304u16.to_be_bytes());
            frame[20..22].copy_from_slice(&((offset / 8) | (more << 13)).to_be_bytes());
            frame = with_ipv4_checksum(frame);
        }
        frame.extend(bytes);
        frame
    };
    datagram.chunks(length).enumerate().map(part).collect()
}

#[test]
fn fragments_and_the_reassembled_datagram_are_parsed() {
    for six in [false, true] {
        let payload: Vec<u8> = (0..100).collect();
        let mut whole = Vec::new();
        let frames = fragments(six, &payload, 40);
        assert_eq!(frames.len(), 3);
        let mut key = None;
        for (index, frame) in frames.iter().enumerate() {
            assert_eq!(parse(frame, Checks::Verify), Err(ParseError::Fragment));
            let fragment = parse_fragment(frame).unwrap();
            assert_eq!(
                (fragment.offset as usize, fragment.more),
                (whole.len(), index < 2)
            );
            assert_eq!(fragment.key.id, if six { 0x0102_0304 } else { 0x0304 });
            whole.extend(&frame[fragment.bytes.clone()]);
            key = Some(fragment.key);
        }
        let found = parse_reassembled(&whole, &key.unwrap(), Checks::Verify).unwrap();
        assert_eq!(&whole[found.payload], payload);
        assert_eq!(found.from.port(), 1000);
        whole[50] ^= 1;
        let wrong = parse_reassembled(&whole, &key.unwrap(), Checks::Verify);
        assert_eq!(wrong, Err(ParseError::Checksum));
        // A packet that is not fragmented has no fragment.
        assert!(parse_fragment(&packet(six, b"whole")).is_err());
        for frame in &frames {
            for length in 0..frame.len() {
                assert!(parse_fragment(&frame[..length]).is_err(), "{length}");
            }
        }
    }
}

/// RFC 8200, section 4.5: a fragment that is a whole datagram is independent of other fragments
/// with its identification.
#[test]
fn a_whole_datagram_behind_a_fragment_header_is_no_fragment() {
    let frames = fragments(true, b"payload", 100);
    assert_eq!(frames.len(), 1);
    let found = parse(&frames[0], Checks::Verify).unwrap();
    assert_eq!(&frames[0][found.payload], b"payload");
    assert_eq!(parse_fragment(&frames[0]), Err(ParseError::Protocol));
}

proptest! {
    /// For any frame, the payload that is found lies inside the frame.
    #[test]
    fn the_payload_of_any_frame_lies_inside_the_frame(
        six in any::<bool>(),
        changes in prop::collection::vec((0usize..70, any::<u8>()), 0..8),
        cut in 0usize..80,
        checks in prop::sample::select(vec![Checks::Verify, Checks::Partial, Checks::Trust]),
    ) {
        let mut frame = packet(six, b"payload of a frame");
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(cut.max(20));
        if let Ok(fragment) = parse_fragment(&frame) {
            prop_assert!(fragment.bytes.start >= 34 && fragment.bytes.start <= fragment.bytes.end);
            prop_assert!(fragment.bytes.end <= frame.len());
        }
        if let Ok(found) = parse(&frame, checks) {
            prop_assert!(found.payload.start >= 42 && found.payload.end <= frame.len());
            prop_assert!(found.payload.start <= found.payload.end);
        }
    }

    #[test]
    fn random_bytes_cause_no_panic(frame in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = parse(&frame, Checks::Verify);
    }
}
