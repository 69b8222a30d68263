use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

fn options() -> impl Strategy<Value = Options> {
    let block = (any::<u32>(), any::<u32>()).prop_map(|(left, right)| SackBlock {
        left: Seq(left),
        right: Seq(right),
    });
    (
        proptest::option::of(any::<u16>()),
        proptest::option::of(0_u8..15),
        any::<bool>(),
        proptest::option::of((any::<u32>(), any::<u32>())),
        proptest::collection::vec(block, 0..5),
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, blocks)| {
            let mut options = Options {
                mss,
                window_scale,
                sack_permitted,
                timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
                ..Options::default()
            };
            blocks
                .into_iter()
                .for_each(|block| options.sack.push(block));
            options
        })
}

proptest! {
    #![proptest_config(cases(256))]

    /// What was written is read again, except SACK blocks that did not fit.
    #[test]
    fn a_written_header_is_read_again(
        options in options(),
        numbers in any::<(u16, u16, u32, u32, u8, u16, u16)>(),
        payload in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let (source, destination, seq, ack, flags, window, urgent) = numbers;
        let header = Header {
            source, destination, seq: Seq(seq), ack: Seq(ack), flags: Flags(flags), window, urgent,
            options,
        };
        let mut bytes = vec![0xff; header.length()];
        prop_assert!(bytes.len() <= Header::MAX_LENGTH);
        prop_assert_eq!(header.write(&mut bytes), bytes.len());
        bytes.extend(&payload);
        let (read, offset) = Header::parse(&bytes).unwrap();
        prop_assert_eq!(&bytes[offset..], &payload[..]);
        let kept = read.options.sack.as_slice().len();
        prop_assert_eq!(read.options.sack.as_slice(), &options.sack.as_slice()[..kept]);
        let mut expected = header;
        expected.options.sack = read.options.sack;
        prop_assert_eq!(read, expected);
    }

    /// Any bytes are read or refused; what is read can be written.
    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), words in 0_u8..16) {
        if let Some(byte) = bytes.get_mut(12) {
            *byte = words << 4;
        }
        if let Ok((header, offset)) = Header::parse(&bytes) {
            prop_assert!(offset <= bytes.len());
            let mut again = vec![0; header.length()];
            header.write(&mut again);
        }
    }
}

#[test]
fn damaged_options_are_refused() {
    let mut bytes = [0_u8; 24];
    bytes[12] = 6 << 4;
    for (option, refused) in [
        ([MSS, 4, 5, 180], None),
        ([MSS, 3, 5, END], Some(MSS)),
        ([MSS, 5, 5, 180], Some(MSS)),
        ([WINDOW_SCALE, 3, 200, END], None),
        ([PAD, PAD, PAD, SACK], Some(SACK)),
        ([SACK, 4, 0, 0], Some(SACK)),
        ([99, 4, 0, 0], None),
        ([99, 0, 0, 0], Some(99)),
        ([END, 99, 0, 0], None),
    ] {
        bytes[20..].copy_from_slice(&option);
        let error = Header::parse(&bytes).err();
        assert_eq!(error, refused.map(HeaderError::Option), "{option:?}");
    }
    bytes[20..].copy_from_slice(&[WINDOW_SCALE, 3, 200, END]);
    let (header, _) = Header::parse(&bytes).unwrap();
    assert_eq!(header.options.window_scale, Some(14));
}

#[test]
fn lengths_that_contradict_are_refused() {
    assert_eq!(Header::parse(&[0; 19]), Err(HeaderError::Short(19)));
    let mut bytes = [0_u8; 24];
    for (words, expected) in [(4, false), (5, true), (6, true), (7, false)] {
        bytes[12] = words << 4;
        assert_eq!(Header::parse(&bytes).is_ok(), expected, "{words} words");
    }
}
