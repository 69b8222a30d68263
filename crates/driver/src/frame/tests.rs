use etherparse::{Ipv4Header, SlicedPacket, TransportSlice};
use netnice_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::damage::Damage;
use crate::test_frames::{mend_checksum, udp};

fn ip(frame: &[u8]) -> Ip {
    match read(frame) {
        Ok(Frame::Ip(ip)) => ip,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_packet_ends_by_its_own_length_without_the_padding() {
    for (from, to) in [("10.0.0.1:1", "10.0.0.2:2"), ("[fd00::1]:1", "[fd00::2]:2")] {
        let mut frame = udp(from, to).frame();
        let end = frame.len();
        frame.extend([0xee; 9]);
        let ip = ip(&frame);
        assert_eq!(ip.end, end);
        assert_eq!(ip.end - ip.payload, 8 + b"payload".len());
        assert_eq!(ip.fragment, None);
    }
}

#[test]
fn options_of_ipv4_are_skipped() {
    let mut frame = udp("10.0.0.1:1", "10.0.0.2:2").frame();
    frame.splice(34..34, [1; 8]);
    frame[14] = 0x47;
    let total = frame.len() as u16 - 14;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    mend_checksum(&mut frame);
    let ip = ip(&frame);
    assert_eq!((ip.payload, be16(&frame, ip.payload)), (42, 1));
}

#[test]
fn fragments_are_read_with_their_place_in_the_datagram() {
    for (from, to) in [("10.0.0.1:1", "10.0.0.2:2"), ("[fd00::1]:1", "[fd00::2]:2")] {
        let fragments = udp(from, to).data(&[9; 100]).id(77).fragments(48);
        let found: Vec<_> = fragments.iter().map(|frame| ip(frame).fragment).collect();
        let fragment = |offset, more| {
            Some(Fragment {
                id: 77,
                offset,
                more,
            })
        };
        assert_eq!(
            found,
            [fragment(0, true), fragment(48, true), fragment(96, false)]
        );
        assert!(fragments.iter().all(|frame| ip(frame).protocol == UDP));
    }
}

#[test]
fn every_malformed_header_is_refused_with_its_reason() {
    let v4 = udp("10.0.0.1:1", "10.0.0.2:2").frame();
    let v6 = udp("[fd00::1]:1", "[fd00::2]:2").frame();
    let with = |frame: &[u8], at: usize, bytes: &[u8]| {
        let mut frame = frame.to_vec();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        mend_checksum(&mut frame);
        read(&frame)
    };
    assert_eq!(read(&v4[..13]), Err(Malformed::Short));
    assert_eq!(read(&v4[..33]), Err(Malformed::Short));
    assert_eq!(read(&v6[..53]), Err(Malformed::Short));
    assert_eq!(with(&v4, 14, &[0x65]), Err(Malformed::Version));
    assert_eq!(with(&v6, 14, &[0x45]), Err(Malformed::Version));
    assert_eq!(with(&v4, 14, &[0x44]), Err(Malformed::Length));
    assert_eq!(with(&v4, 16, &[0, 19]), Err(Malformed::Length));
    assert_eq!(with(&v4, 16, &[0, 200]), Err(Malformed::Length));
    assert_eq!(with(&v6, 18, &[0, 200]), Err(Malformed::Length));
    let mut wrong = v4.clone();
    wrong[24] ^= 1;
    assert_eq!(read(&wrong), Err(Malformed::Checksum));
    // A fragment of 15 bytes, which is no multiple of eight and not the last; and one that ends too
    // far.
    assert_eq!(with(&v4, 20, &[0x20, 0]), Err(Malformed::Fragment));
    assert_eq!(with(&v4, 20, &[0x1f, 0xff]), Err(Malformed::Fragment));
}

#[test]
fn a_frame_of_another_ethertype_is_read_as_such() {
    let mut frame = udp("10.0.0.1:1", "10.0.0.2:2").frame();
    frame[12..14].copy_from_slice(&[0x81, 0]);
    assert_eq!(read(&frame), Ok(Frame::Other(0x8100)));
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let ends = prop_oneof![
        Just(("10.0.0.1:1000", "10.0.0.2:53")),
        Just(("[fd00::1]:1000", "[fd00::2]:53"))
    ];
    let shape = (ends, 0..100_usize, any::<u16>(), any::<bool>(), 0..3_usize);
    shape.prop_map(|((from, to), length, id, is_fragment, which)| {
        let datagram = udp(from, to).data(&vec![0x55; length]).id(id);
        match is_fragment {
            true => {
                let fragments = datagram.fragments(32);
                fragments[which.min(fragments.len() - 1)].clone()
            }
            false => datagram.frame(),
        }
    })
}

proptest! {
    #![proptest_config(cases(2000))]

    /// The result agrees with an independent parser's, and every frame that that parser accepts is
    /// read.
    #[test]
    fn headers_are_read_as_by_an_independent_parser(
        frame in any_frame(),
        damage in prop::collection::vec(Damage::any(), 0..3),
        mend in any::<bool>(),
    ) {
        let mut frame = frame;
        damage.iter().for_each(|one| one.apply(&mut frame));
        if mend {
            mend_checksum(&mut frame);
        }
        let ours = read(&frame);
        if let Ok(Frame::Ip(ip)) = &ours {
            prop_assert!(ip.payload <= ip.end && ip.end <= frame.len());
        }
        if let Ok(Frame::Ip(ip)) = &ours && ip.family == Family::V4 {
            let (header, _) = Ipv4Header::from_slice(&frame[14..]).unwrap();
            // That parser drops the reserved bit.
            let right = header.calc_header_checksum() == header.header_checksum;
            prop_assert!(right || frame[20] & 0x80 != 0);
            prop_assert_eq!(ip.source, u128::from(u32::from_be_bytes(header.source)));
            prop_assert_eq!(ip.destination, u128::from(u32::from_be_bytes(header.destination)));
            prop_assert_eq!(ip.protocol, header.protocol.0);
            prop_assert_eq!(ip.end, 14 + usize::from(header.total_len));
            prop_assert_eq!(ip.fragment.is_some(), header.is_fragmenting_payload());
        }
        let theirs = SlicedPacket::from_ethernet(&frame);
        let Ok(theirs) = theirs else { return Ok(()) };
        let Some(TransportSlice::Udp(udp)) = &theirs.transport else { return Ok(()) };
        // That parser takes an IPv6 length of 0 for a jumbogram's.
        let is_jumbo = frame[14] >> 4 == 6 && frame[18..20] == [0, 0];
        if ours == Err(Malformed::Checksum) || !theirs.link_exts.is_empty() || is_jumbo {
            return Ok(());
        }
        let Ok(Frame::Ip(ip)) = ours else { panic!("{ours:?} {theirs:?}") };
        if ip.protocol == UDP {
            prop_assert_eq!(be16(&frame, ip.payload), udp.source_port());
        }
    }

    /// Any input is read without a panic.
    #[test]
    fn any_bytes_are_read_without_a_panic(
        frame in prop::collection::vec(any::<u8>(), 0..120),
        kind in 0..3_u8,
    ) {
        let mut frame = frame;
        if frame.len() > 15 && kind > 0 {
            let (ethertype, version) = [(IPV4, 0x45), (IPV6, 0x60)][usize::from(kind - 1)];
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            frame[14] = version;
        }
        if let Ok(Frame::Ip(ip)) = read(&frame) {
            prop_assert!(ip.payload <= ip.end && ip.end <= frame.len());
        }
    }
}
