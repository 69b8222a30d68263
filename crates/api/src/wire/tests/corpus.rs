//! Decodes messages from untrusted bytes. Every test run replays the streams in the folder
//! `corpus`; the name of each file is the kind of the last message in it. The property test decodes
//! altered streams.

use netnice_cases::{Corpus, changed};

use super::super::hostile::{correct_lengths, outcome_of};

use super::*;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[test]
fn corpus_messages_have_their_recorded_outcomes() {
    let outcomes = [
        "nothing", "request", "call", "json", "version", "cut", "toolong", "empty",
    ];
    corpus().replay(outcome_of, &outcomes);
}

proptest! {
    /// One to three concatenated streams, with some bytes changed, inserted or removed.
    #[test]
    fn streams_near_the_corpus_decode_without_a_panic(
        bytes in changed(corpus().some(1..4).prop_map(|streams| streams.concat())),
    ) {
        outcome_of(&bytes);
    }
}

#[test]
fn the_lengths_of_frames_are_corrected() {
    let two = [b"\0\0\0\x02{}".as_slice(), b"\0\0\0\x03[1]"].concat();
    let mended = |stream: &[u8]| {
        let mut stream = stream.to_vec();
        correct_lengths(&mut stream);
        stream
    };
    assert_eq!(mended(&two), two);
    // The last frame takes the rest of the stream, or ends with it.
    assert_eq!(mended(b"\0\0\0\x02{} "), b"\0\0\0\x03{} ");
    assert_eq!(mended(&two[..12]), b"\0\0\0\x02{}\0\0\0\x02[1");
    assert_eq!(mended(b"\0\0\0\0{}"), b"\0\0\0\x02{}");
    for short in [&b""[..], b"\0\0\0\x02"] {
        assert_eq!(mended(short), short);
    }
}
