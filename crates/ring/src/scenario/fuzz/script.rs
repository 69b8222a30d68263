//! Tests the driver's side with scenarios of a hostile program that are decoded from bytes.
//!
//! The first test replays the files of the folder `corpus`. The name of a file is the outcome of
//! its scenario: the rule of `docs/reference/ring.md` that the program breaks (`r20`, …), `program`
//! if the program's side finds its own rings corrupted, or `whole` if the scenario runs to its end.
//! The test fails if a scenario ends otherwise, or if an outcome has no file. The second test runs
//! altered copies of the files, which may end in any way. Both fail if a call panics or an
//! invariant of the driver's side does not hold.

use netnice_cases::{Corpus, cases};
use proptest::prelude::*;

use super::super::hostile::outcome_of;

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn kept_scenarios_end_as_their_file_names_state() {
    corpus().replay(outcome_of, &OUTCOMES);
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn scenarios_near_the_corpus_keep_the_rules(bytes in corpus().near()) {
        outcome_of(&bytes);
    }
}

/// Every outcome of a scenario. The corpus must have a file for each.
const OUTCOMES: [&str; 14] = [
    "r20", "r21", "r22", "r23", "r30", "r31", "r32", "r40", "r41", "r42", "r43", "r44", "whole",
    "program",
];
