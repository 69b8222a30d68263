//! The long forms of the proofs. Most are divided into ten separate tests. So the finished parts of
//! an interrupted run count, a part can be run by its name, and two processors work in parallel.
//!
//! `cargo test --release -p netnice-sim --lib -- --ignored proofs::long` runs all. With
//! `proofs::long::mixtures_are_kept::tenth_3` in place of `proofs::long` it runs the seeds 3,000 to
//! 3,999 of that test.

use super::chains::{Kind, reserved_channels_are_kept};
use super::{
    admitted_sets_miss_nothing, crowds_miss_nothing, divided_deadlines_are_kept, gaps_of_mixtures,
    mixtures_are_kept, print_gaps, refused_sets_are_broken,
};

/// Ten tests of one proof, with `$seeds` consecutive seeds each.
macro_rules! tenths {
    ($proof:ident, $seeds:literal, $run:expr) => {
        tenths!($proof, $seeds, $run, tenth_0 0, tenth_1 1, tenth_2 2, tenth_3 3, tenth_4 4,
            tenth_5 5, tenth_6 6, tenth_7 7, tenth_8 8, tenth_9 9);
    };
    ($proof:ident, $seeds:literal, $run:expr, $($name:ident $tenth:literal),*) => {
        mod $proof {
            $(
                #[test]
                #[ignore = "up to minutes: a tenth of the sets"]
                fn $name() {
                    $run($tenth * $seeds..($tenth + 1) * $seeds);
                }
            )*
        }
    };
}

tenths!(crowds_miss_nothing, 50, super::crowds_miss_nothing);
tenths!(
    admitted_sets_miss_nothing,
    1_000,
    super::admitted_sets_miss_nothing
);
tenths!(
    divided_deadlines_are_kept,
    1_000,
    super::divided_deadlines_are_kept
);
tenths!(mixtures_are_kept, 1_000, super::mixtures_are_kept);
// Three of five seeds lead to a set that a longer deadline would make fit.
tenths!(refused_sets_are_broken, 1_800, super::a_thousand_are_broken);

tenths!(chains_of_links, 1_000, super::on_links);
tenths!(chains_with_horizons, 1_000, super::with_horizons);
tenths!(chains_of_processors, 1_000, super::on_processors);
tenths!(chains_of_reservations, 1_000, super::on_reservations);

fn on_links(seeds: core::ops::Range<u64>) {
    on_chains(seeds, Kind::Links);
}

fn with_horizons(seeds: core::ops::Range<u64>) {
    on_chains(seeds, Kind::Horizons);
}

fn on_processors(seeds: core::ops::Range<u64>) {
    on_chains(seeds, Kind::Processors);
}

fn on_reservations(seeds: core::ops::Range<u64>) {
    on_chains(seeds, Kind::Reservations);
}

fn on_chains(seeds: core::ops::Range<u64>, kind: Kind) {
    let figures = reserved_channels_are_kept(seeds.clone(), kind);
    eprintln!("{kind:?}, sets {seeds:?}: {figures:?}");
}

fn a_thousand_are_broken(seeds: core::ops::Range<u64>) {
    let (refused, broken) = refused_sets_are_broken(seeds);
    assert!(refused >= 1_000, "only {refused} sets to compare");
    eprintln!("{broken} of {refused} refused sets miss a deadline in some legal pattern");
    assert!(broken * 100 >= refused * 95, "{broken} of {refused}");
}

/// One test, since its result covers all sets together.
#[test]
#[ignore = "a minute: 1,000 sets"]
fn the_gap_of_mixtures() {
    let gaps = gaps_of_mixtures(0..1_000);
    assert!(gaps.len() >= 500, "only {} sets to compare", gaps.len());
    print_gaps(&gaps);
}
