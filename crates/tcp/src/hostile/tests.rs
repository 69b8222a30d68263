//! Replays the inputs of `corpus`, and tries others near them.

use netnice_cases::{Corpus, cases};
use proptest::prelude::*;

use super::{segment, stream};

fn segments() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/segment"))
}

fn streams() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/stream"))
}

#[test]
fn corpus_segments_have_their_recorded_outcomes() {
    let outcomes = [
        "short",
        "offset",
        "option",
        "sack",
        "timestamps",
        "plain",
        "syn",
    ];
    segments().replay(segment::outcome_of, &outcomes);
}

#[test]
fn corpus_streams_have_their_recorded_outcomes() {
    let outcomes = [
        "nothing",
        "synsent",
        "synreceived",
        "established",
        "finwait1",
        "finwait2",
        "closewait",
        "closing",
        "lastack",
        "timewait",
        "closed",
        "refused",
        "reset",
        "timedout",
        "keepalivefailed",
        "unreachable",
        "aborted",
    ];
    streams().replay(stream::outcome_of, &outcomes);
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn segments_near_the_corpus_are_read_without_a_panic(bytes in segments().near()) {
        segment::outcome_of(&bytes);
    }

    #[test]
    fn streams_near_the_corpus_keep_the_invariants(
        inputs in streams().some(1..4),
        random in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut bytes = inputs.concat();
        bytes.extend(random);
        stream::outcome_of(&bytes);
    }
}
