//! Tests the receive demultiplexer with kept inputs: one test replays the files in
//! `corpus/receive`, and a property test tries altered copies of them.

use netnice_cases::Corpus;

use super::super::hostile::{correct_lengths, outcome_of};
use super::*;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/receive"))
}

#[test]
fn kept_frames_have_their_recorded_verdicts() {
    corpus().replay(outcome_of, &OUTCOMES);
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn frames_near_the_corpus_keep_the_rules(bytes in corpus().near(), corrected in any::<bool>()) {
        let mut bytes = bytes;
        if corrected {
            correct_lengths(&mut bytes);
        }
        outcome_of(&bytes);
    }
}

/// Every outcome of a frame here.
const OUTCOMES: [&str; 13] = [
    "nothing",
    "one",
    "several",
    "held",
    "unclaimed",
    "short",
    "version",
    "length",
    "checksum",
    "source",
    "fragment",
    "transport",
    "conflict",
];
