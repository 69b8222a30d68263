//! Replays the inputs of `corpus`, and tries others near them.

use netnice_cases::{Corpus, cases};
use proptest::prelude::*;

use super::endpoint::{Counts, OPERATION, Trial};
use super::{endpoint, segment, stream};
use crate::pair::Random;

fn segments() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/segment"))
}

fn streams() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/stream"))
}

fn endpoints() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/endpoint"))
}

#[test]
fn corpus_endpoints_have_their_recorded_outcomes() {
    let outcomes = ["nothing", "stray", "open", "reset", "cookie", "replaced"];
    endpoints().replay(endpoint::outcome_of, &outcomes);
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

/// Gives `trials` endpoints `operations` random operations each.
fn many_operations(trials: u64, operations: u64) -> Counts {
    let mut all = Counts::default();
    for seed in 0..trials {
        let mut random = Random::new(seed + 1);
        let mut trial = Trial::new(random.next() as u8);
        for _ in 0..operations {
            let mut operation = [0; OPERATION];
            operation[..8].copy_from_slice(&random.next().to_le_bytes());
            operation[8..].copy_from_slice(&random.next().to_le_bytes());
            trial.operate(&operation);
        }
        let counts = trial.counts();
        trial.end();
        all.received += counts.received;
        all.opened += counts.opened;
        all.cookies += counts.cookies;
        all.ended += counts.ended;
        all.replaced += counts.replaced;
        all.sent += counts.sent;
    }
    all
}

#[test]
fn segments_near_connections_end_only_what_they_may() {
    let counts = many_operations(40, 1000);
    assert!(counts.received > 25_000, "{counts:?}");
    for count in [counts.opened, counts.ended, counts.sent] {
        assert!(count > 100, "{counts:?}");
    }
}

#[test]
#[ignore = "ten million segments: a minute in a release build"]
fn ten_million_segments_near_connections_end_only_what_they_may() {
    let began = std::time::Instant::now();
    let counts = many_operations(8_000, 2_000);
    println!("{counts:?} in {:.1?}", began.elapsed());
    assert!(counts.received > 10_000_000, "{counts:?}");
    for count in [counts.opened, counts.cookies, counts.ended, counts.replaced] {
        assert!(count > 100, "{counts:?}");
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn segments_near_the_corpus_are_read_without_a_panic(bytes in segments().near()) {
        segment::outcome_of(&bytes);
    }

    #[test]
    fn endpoints_near_the_corpus_end_only_what_they_may(
        inputs in endpoints().some(1..4),
        random in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut bytes = inputs.concat();
        bytes.extend(random);
        endpoint::outcome_of(&bytes);
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
