//! Tests the transmit check with kept inputs: one test replays the files in `corpus/transmit`, and
//! a property test tries altered copies of them.

use netnice_cases::Corpus;

use super::super::hostile::{correct_lengths, outcome_of};
use super::*;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/transmit"))
}

#[test]
fn kept_frames_have_their_recorded_outcomes() {
    corpus().replay(outcome_of, &OUTCOMES);
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn frames_near_the_corpus_keep_the_rules(bytes in corpus().near(), corrected in any::<bool>()) {
        let mut bytes = bytes;
        if corrected {
            correct_lengths(&mut bytes);
        }
        outcome_of(&bytes);
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
            assert_eq!(outcome_of(&bytes), "length");
            correct_lengths(&mut bytes);
            assert_eq!(outcome_of(&bytes), "allowed");
        }
    }
    for short in [&b""[..], b"a", &[0; 35]] {
        let mut bytes = short.to_vec();
        correct_lengths(&mut bytes);
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
