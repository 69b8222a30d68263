//! How many cases a property is tried with.

use proptest::prelude::ProptestConfig;

/// So many, or as many as `make fuzz` and `cargo xtask miri` ask for.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(usual),
    }
}
