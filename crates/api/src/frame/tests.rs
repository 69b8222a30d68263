use proptest::prelude::*;

use super::{Decoder, FrameError, LONGEST_REQUEST, encode};

/// Decodes all messages in bytes that are pushed in pieces.
fn decode(pieces: &[&[u8]], limit: usize) -> Result<Vec<Vec<u8>>, FrameError> {
    let mut decoder = Decoder::new(limit);
    let mut bodies = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        while let Some(body) = decoder.poll()? {
            bodies.push(body);
        }
    }
    Ok(bodies)
}

#[test]
fn a_message_of_the_limit_passes_and_one_byte_more_does_not() {
    let longest = vec![b'x'; LONGEST_REQUEST];
    let frame = encode(&longest, LONGEST_REQUEST).expect("as long as allowed");
    assert_eq!(decode(&[&frame], LONGEST_REQUEST), Ok(vec![longest]));
    let longer = vec![b'x'; LONGEST_REQUEST + 1];
    let too_long = FrameError::TooLong {
        length: LONGEST_REQUEST + 1,
        limit: LONGEST_REQUEST,
    };
    assert_eq!(encode(&longer, LONGEST_REQUEST), Err(too_long));
    let frame = encode(&longer, usize::MAX).expect("by another's limit");
    assert_eq!(decode(&[&frame], LONGEST_REQUEST), Err(too_long));
}

#[test]
fn a_length_above_the_limit_is_refused_before_its_bytes_arrive() {
    let mut decoder = Decoder::new(10);
    decoder.push(&[0xff, 0xff, 0xff, 0xff]);
    let refused = decoder.poll();
    assert!(matches!(
        refused,
        Err(FrameError::TooLong { limit: 10, .. })
    ));
    decoder.push(&[0, 0, 0, 1, b'x']);
    assert_eq!(decoder.poll(), refused);
    assert_eq!(
        decoder.buffered(),
        0,
        "nothing more is kept for a refused sender"
    );
    assert_eq!(decode(&[&[0, 0, 0, 0]], 10), Err(FrameError::Empty));
    assert_eq!(encode(&[], 10), Err(FrameError::Empty));
}

#[test]
fn a_partial_message_is_reported() {
    let mut decoder = Decoder::new(10);
    assert!(!decoder.has_partial_message());
    decoder.push(&[0, 0, 0, 2, b'x']);
    assert_eq!(decoder.poll(), Ok(None));
    assert!(decoder.has_partial_message());
    decoder.push(b"y");
    assert_eq!(decoder.poll(), Ok(Some(b"xy".to_vec())));
    assert!(!decoder.has_partial_message());
}

proptest! {
    #[test]
    fn encoded_messages_are_decoded_from_any_pieces(
        bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..200), 0..8),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let bytes: Vec<u8> = bodies.iter().flat_map(|b| encode(b, 200).unwrap()).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        prop_assert_eq!(decode(&pieces, 200), Ok(bodies));
    }

    #[test]
    fn the_decoder_never_buffers_more_than_was_sent(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..16),
    ) {
        let mut decoder = Decoder::new(100);
        let mut sent = 0;
        for piece in &pieces {
            sent += piece.len();
            decoder.push(piece);
            while let Ok(Some(body)) = decoder.poll() {
                prop_assert!((1..=100).contains(&body.len()));
            }
            prop_assert!(decoder.buffered() <= sent.min(104));
        }
    }
}
