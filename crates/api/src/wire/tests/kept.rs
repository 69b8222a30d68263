//! Control messages from bytes. Streams that are kept in `corpus` are judged again with every test, each in a file named
//! after what its last message is; the property tries what is near them.

use netnice_cases::{Corpus, changed};

use super::super::hostile::{judged, mend};

use super::*;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[test]
fn messages_that_are_kept_are_what_they_were() {
    let outcomes = [
        "nothing", "request", "call", "json", "version", "cut", "toolong", "empty",
    ];
    corpus().replay(judged, &outcomes);
}

proptest! {
    /// One to three streams behind each other, with some bytes changed, put in or taken out.
    #[test]
    fn streams_near_those_that_are_kept(
        bytes in changed(corpus().some(1..4).prop_map(|streams| streams.concat())),
    ) {
        judged(&bytes);
    }
}

#[test]
fn a_stream_with_a_byte_more_or_less_is_mended() {
    let two = [b"\0\0\0\x02{}".as_slice(), b"\0\0\0\x03[1]"].concat();
    let mended = |stream: &[u8]| {
        let mut stream = stream.to_vec();
        mend(&mut stream);
        stream
    };
    assert_eq!(mended(&two), two);
    // The last one takes in what is left, or ends where the stream does.
    assert_eq!(mended(b"\0\0\0\x02{} "), b"\0\0\0\x03{} ");
    assert_eq!(mended(&two[..12]), b"\0\0\0\x02{}\0\0\0\x02[1");
    assert_eq!(mended(b"\0\0\0\0{}"), b"\0\0\0\x02{}");
    for short in [&b""[..], b"\0\0\0\x02"] {
        assert_eq!(mended(short), short);
    }
}
