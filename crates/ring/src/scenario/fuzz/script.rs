//! Scenarios from bytes. Every test run replays those in `corpus`. The name of each file is the way
//! in which its scenario ends: the number of the rule of docs/reference/ring.md that it breaks, or
//! `whole`. The property test runs variations of them.

use netnice_cases::{Corpus, cases};
use proptest::prelude::*;

use super::super::hostile::judged;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn kept_scenarios_end_as_their_file_names_state() {
    corpus().replay(judged, &ENDS);
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn scenarios_near_those_that_are_kept(bytes in corpus().near()) {
        judged(&bytes);
    }
}

/// Every rule that a program can break, and the other ways in which a scenario can end.
const ENDS: [&str; 14] = [
    "r20", "r21", "r22", "r23", "r30", "r31", "r32", "r40", "r41", "r42", "r43", "r44", "whole",
    "program",
];
