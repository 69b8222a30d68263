use netnice_cases::cases;
use netnice_core::units::Nanos;
use proptest::prelude::*;

use super::{Checksum, Encryption, Stage, StageError};
use crate::{ChannelId, PacketHeader};

fn header() -> PacketHeader {
    PacketHeader {
        channel: ChannelId([3; 16]),
        message: 77,
        part: 2,
        count: 5,
    }
}

fn stages() -> [Box<dyn Stage>; 2] {
    let cost = Nanos(0);
    [
        Box::new(Checksum::new(cost)),
        Box::new(Encryption::new(&[5; 32], cost)),
    ]
}

fn sealed(stage: &mut dyn Stage, header: &PacketHeader, payload: &[u8]) -> Vec<u8> {
    let mut buffer = payload.to_vec();
    buffer.resize(payload.len() + stage.overhead(), 0);
    stage.seal(header, &mut buffer, payload.len());
    buffer
}

/// RFC 3720, appendix B.4: 32 bytes of zeros. Our header precedes the payload, so the sum over both
/// is compared.
#[test]
fn the_checksum_is_crc_32c() {
    assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
    let packet = sealed(&mut Checksum::new(Nanos(0)), &header(), b"payload");
    let whole = [&header().encode()[..], b"payload"].concat();
    assert_eq!(packet[7..], crc32c::crc32c(&whole).to_be_bytes());
}

#[test]
fn encryption_hides_the_payload_and_depends_on_key_message_and_part() {
    let one = sealed(
        &mut Encryption::new(&[5; 32], Nanos(0)),
        &header(),
        &[0; 40],
    );
    let other_key = sealed(
        &mut Encryption::new(&[6; 32], Nanos(0)),
        &header(),
        &[0; 40],
    );
    let next = PacketHeader {
        part: 3,
        ..header()
    };
    let other_part = sealed(&mut Encryption::new(&[5; 32], Nanos(0)), &next, &[0; 40]);
    assert!(one[..40] != [0; 40] && one != other_key && one[..40] != other_part[..40]);
}

proptest! {
    #![proptest_config(cases(64))]

    /// What was sealed is opened, and no packet with one changed bit, in header or payload.
    #[test]
    fn a_changed_bit_is_detected(
        payload in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        bit in 0_u32..8,
    ) {
        for mut stage in stages() {
            let packet = sealed(&mut *stage, &header(), &payload);
            let mut same = packet.clone();
            prop_assert_eq!(stage.open(&header(), &mut same), Ok(payload.len()));
            prop_assert_eq!(&same[..payload.len()], &payload[..]);
            let mut changed = packet.clone();
            changed[at.index(packet.len())] ^= 1 << bit;
            prop_assert_eq!(stage.open(&header(), &mut changed), Err(StageError));
            let other = PacketHeader { message: header().message ^ 1 << bit, ..header() };
            prop_assert_eq!(stage.open(&other, &mut packet.clone()), Err(StageError));
            let short = at.index(packet.len());
            prop_assert_eq!(stage.open(&header(), &mut packet.clone()[..short]), Err(StageError));
        }
    }
}
