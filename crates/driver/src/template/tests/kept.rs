//! Tests the transmit check with kept inputs: one test replays the files in `corpus/transmit`, and
//! a property test tries altered copies of them.

use netnice_cases::Corpus;

use super::super::hostile::{judged, mend};
use super::*;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/transmit"))
}

#[test]
fn kept_frames_have_their_recorded_outcomes() {
    corpus().replay(judged, &OUTCOMES);
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn frames_near_those_that_are_kept(bytes in corpus().near(), mended in any::<bool>()) {
        let mut bytes = bytes;
        if mended {
            mend(&mut bytes);
        }
        judged(&bytes);
    }
}

/// A payload that is a byte longer or shorter leaves an allowed frame, once lengths and checksum
/// are right.
#[test]
fn mend_corrects_lengths_and_checksums() {
    for (which, from, to) in [
        (0b1_0010, "10.0.0.1:5000", "10.0.0.2:53"),
        (0b1_0011, "[fd00::1]:5000", "[fd00::2]:53"),
    ] {
        for changed in [Vec::new(), vec![0; 6], vec![0; 8]] {
            let right = udp(from, to).data(&[0; 7]).frame();
            let headers = right.len() - 7;
            let mut bytes = [&[which][..], &right[..headers], &changed].concat();
            assert_eq!(judged(&bytes), "length");
            mend(&mut bytes);
            assert_eq!(judged(&bytes), "allowed");
        }
    }
    for short in [&b""[..], b"a", &[0; 35]] {
        let mut bytes = short.to_vec();
        mend(&mut bytes);
        assert_eq!(bytes, short);
    }
}

/// Every outcome.
const OUTCOMES: [&str; 16] = [
    "nothing",
    "allowed",
    "short",
    "long",
    "nexthop",
    "ethertype",
    "version",
    "length",
    "fragment",
    "hops",
    "protocol",
    "checksum",
    "source",
    "destination",
    "sourceport",
    "destinationport",
];
