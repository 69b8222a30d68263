//! Answers: what libFuzzer tries against the code that reads untrusted input.
//! May touch: the checks of the crates under `cfg(fuzzing)`, the folder `NETNICE_FUZZ_OUTCOMES`.
//! Must never: check by itself: a target and a test call one function, and a test replays findings.
//!
//! # A target
//! ```text
//!  libFuzzer ──bytes──▶ outcome_of ──outcome──▶ one file for each outcome
//!      ▲                      └──panic──▶ a finding
//!      └── new bytes, near those that reached new code; for a `corrected` target every
//!          other time with lengths and checksums made right
//! ```
//! `cargo xtask fuzz --learn` builds and runs the targets; docs/internals/testing.md says what it
//! reports. [`keep`] panics if it cannot write a file; nothing else here fails.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;

#[doc(hidden)]
pub use libfuzzer_sys;

/// Makes the program of a target from a module. Its `outcome_of` gets each input and returns the
/// name of the outcome; a panic in it is a finding. With `corrected` its `correct_lengths`, which
/// makes the lengths and checksums in an input right, is applied to every other new input.
#[macro_export]
macro_rules! target {
    ($judge:path) => {
        use $judge as judge;
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            $crate::keep(bytes, &judge::outcome_of(bytes));
        });
    };
    ($judge:path, corrected) => {
        $crate::target!($judge);
        $crate::libfuzzer_sys::fuzz_mutator!(|bytes: &mut [u8],
                                              size: usize,
                                              most: usize,
                                              seed: u32| {
            let size = match $crate::set_byte(&mut bytes[..size], seed) {
                true => size,
                false => $crate::libfuzzer_sys::fuzzer_mutate(bytes, size, most),
            };
            // What is wrong must be tried too.
            if seed % 2 == 0 {
                judge::correct_lengths(&mut bytes[..size]);
            }
            size
        });
    };
}

/// For one in four values of the random number `seed`, sets one byte to any value and returns true;
/// otherwise, and for no bytes, changes nothing and returns false. libFuzzer itself seldom makes
/// this change, and a field of a header is usually wrong by one byte.
pub fn set_byte(bytes: &mut [u8], seed: u32) -> bool {
    let is_turn = seed >> 1 & 3 == 0 && !bytes.is_empty();
    if is_turn {
        let at = (seed >> 11) as usize % bytes.len();
        bytes[at] = (seed >> 3) as u8;
    }
    is_turn
}

/// Keeps this process's first input of each outcome as `OUTCOME-1.bin`, in the folder that the
/// environment variable `NETNICE_FUZZ_OUTCOMES` names. Without that variable nothing is kept.
///
/// # Panics
/// If the file cannot be written.
pub fn keep(bytes: &[u8], outcome: &str) {
    let mut seen = SEEN.lock().expect("no other thread");
    if seen.contains(outcome) {
        return;
    }
    seen.insert(outcome.to_owned());
    if let Some(folder) = std::env::var_os("NETNICE_FUZZ_OUTCOMES") {
        let file = PathBuf::from(folder).join(format!("{outcome}-1.bin"));
        std::fs::write(&file, bytes)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
    }
}

/// The outcomes of this process.
static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
