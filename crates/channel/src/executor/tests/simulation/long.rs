//! The long form of the proofs: 10,000 sets of channels, in tenths that are tests of their own.
//!
//! `cargo test --release -p netnice-channel --lib -- --ignored simulation::long` runs all.

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::proofs::cases_of_channels;

/// Sets that the numbers of a range determine: nothing is missed at the source, and nothing at the
/// sink.
fn nothing_is_missed(sets: std::ops::Range<u64>) {
    for number in sets {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&number.to_le_bytes());
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut runner = TestRunner::new_with_rng(Config::default(), random);
        let case = cases_of_channels().new_tree(&mut runner).expect("a case");
        let case = case.current();
        assert_eq!(case.fault(), None, "{number}: {case:?}");
        assert_eq!(case.fault_at_the_sink(), None, "{number}: {case:?}");
    }
}

macro_rules! tenths {
    ($($name:ident $tenth:literal),*) => {
        $(
            #[test]
            #[ignore = "minutes: a tenth of the sets"]
            fn $name() {
                nothing_is_missed($tenth * 1_000..($tenth + 1) * 1_000);
            }
        )*
    };
}

tenths!(
    tenth_0 0, tenth_1 1, tenth_2 2, tenth_3 3, tenth_4 4, tenth_5 5, tenth_6 6, tenth_7 7,
    tenth_8 8, tenth_9 9
);
