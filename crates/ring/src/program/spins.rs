//! Whether it pays to spin before sleeping ([`Spins`]). It does not where the other side needs the
//! processor of this one.

use std::sync::atomic::{AtomicU32, Ordering};

/// Counts spins that found nothing. Calls of several threads at once may be counted as one.
#[derive(Debug, Default)]
pub(super) struct Spins {
    /// Spins since the last one that found something, at most [`FRUITLESS`], and then waits without
    /// a spin.
    fruitless: AtomicU32,
}

impl Spins {
    /// True if the next wait should begin with a spin.
    pub(super) fn pays(&self) -> bool {
        !(FRUITLESS..PROBE).contains(&self.fruitless.load(Ordering::Relaxed))
    }

    /// Whether there was something at the end of the spin, or at the beginning of a wait without
    /// one.
    pub(super) fn record(&self, found: bool) {
        let next = match self.fruitless.load(Ordering::Relaxed) {
            _ if found => 0,
            PROBE.. => FRUITLESS,
            fruitless => fruitless + 1,
        };
        self.fruitless.store(next, Ordering::Relaxed);
    }
}

/// After so many fruitless spins, waits do not spin.
const FRUITLESS: u32 = 8;
/// After 31 of those, one does.
const PROBE: u32 = FRUITLESS + 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fruitless_spins_become_rare_and_a_fruitful_one_brings_them_back() {
        let spins = Spins::default();
        let wait = |found: bool| {
            let pays = spins.pays();
            spins.record(found);
            pays
        };
        assert!((0..8).all(|_| wait(false)));
        for _ in 0..3 {
            assert_eq!((0..31).filter(|_| wait(false)).count(), 0);
            assert!(wait(false));
        }
        assert!(!wait(false) && !wait(true));
        assert!((0..8).all(|_| wait(false)));
        assert!(!wait(false));
    }
}
