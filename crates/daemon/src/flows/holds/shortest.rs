//! Finds the shortest deadline of a held promise ([`Flows::shortest`]). No call fails.
//!
//! A bisection finds the deadline, up to [`PRECISION`] or 1/256 of it, whichever is more; its first
//! steps halve the exponent, so it makes at most 16 tests. A test asks the sums
//! ([`super::super::promised_flows`]) first, and then the exact test with the work of one try.
//!
//! From the held deadline on the promises are kept with [`FURTHER`] more flows too, if that is
//! possible: with each [`DUE_PER_CALL`] flows more a packet may wait for one more. Otherwise
//! programs that set up channels at the same moment would exclude each other. If it is not
//! possible, the deadline is the shortest without further flows.
//!
//! Beyond [`MOST_EXACT`] promises the bisection asks only the sums, and only about intervals from
//! the deadline on: shorter ones contain no work of the new promise, so they change nothing. The
//! result is then tested once with all promises. The deadline can be longer by an eighth.

use netnice_core::admission::timing::Promise;
use netnice_core::contract::{Change, Contract, IfName, Setting};
use netnice_core::sched::DUE_PER_CALL;
use netnice_core::units::Nanos;

use super::super::Flows;
use super::super::admission::{Further, LinkCapacity};
use super::super::network::Network;

impl<N: Network> Flows<N> {
    /// The contract with the shortest deadline that fits on a link, as the module says; `None` if
    /// its own deadline does not fit either, or if that is not decided with little work.
    pub(super) fn shortest(
        &mut self,
        link: &IfName,
        capacity: &LinkCapacity,
        longest: &Contract,
    ) -> Option<Contract> {
        let channel = longest.channel()?;
        let (below, highest) = (channel.processing().0, channel.deadline().0);
        let with = |deadline: u64| {
            let channel = channel.resized(channel.mmax(), channel.rmax(), Nanos(deadline));
            let change = Change {
                channel: Some(Setting::Set(channel.ok()?)),
                ..Change::default()
            };
            longest.apply(&change).ok()
        };
        let none = Further::default();
        let further = |deadline: u64| Further::beside(FURTHER, Nanos(deadline - below));
        if self.promise_count(link) >= MOST_EXACT {
            let found = least(below, highest, |deadline| {
                let fits =
                    |one: &Contract| self.fit_with_further(link, capacity, further(deadline), one);
                with(deadline).filter(fits)
            })?;
            let is_kept = self.fit_with_further(link, capacity, none, &found)
                || capacity.fits_beside(&self.known_promises(link, capacity)?, none, &found);
            return is_kept.then_some(found);
        }
        let promises = self.known_promises(link, capacity)?;
        let mut fits = |contract: &Contract, further: Further| {
            self.fit_with_further(link, capacity, further, contract)
                || capacity.fits_beside(&promises, further, contract)
        };
        let roomy = least(below, highest, |deadline| {
            let fits_both = |one: &Contract| fits(one, none) && fits(one, further(deadline));
            with(deadline).filter(fits_both)
        });
        let mut tight = |deadline| with(deadline).filter(|one| fits(one, none));
        roomy.or_else(|| least(below, highest, &mut tight))
    }

    /// The promises of a link at the largest rate; `None` if one is impossible at it.
    fn known_promises(&self, link: &IfName, capacity: &LinkCapacity) -> Option<Vec<Promise>> {
        let held = self.promises(link, None).into_iter();
        let promises = held.filter_map(|one| capacity.promise(capacity.max_direct, &one));
        promises.collect::<Result<_, _>>().ok()
    }
}

/// The result of `fitting` for the smallest value above `below` and up to `highest` for which there
/// is one, up to the precision of the module; `None` if there is none for `highest`. Larger values
/// than a fitting one must fit too.
pub(in super::super) fn least<T>(
    below: u64,
    highest: u64,
    mut fitting: impl FnMut(u64) -> Option<T>,
) -> Option<T> {
    let mut best = fitting(highest)?;
    let (mut low, mut high) = (below, highest);
    while high.saturating_sub(low) > (high / PARTS).max(PRECISION.0) {
        let from = low.max(PRECISION.0);
        let middle = match high / from {
            0 | 1 => low + (high - low) / 2,
            _ => (u128::from(from) * u128::from(high)).isqrt() as u64,
        };
        match fitting(middle) {
            Some(found) => (high, best) = (middle, found),
            None => low = middle,
        }
    }
    Some(best)
}

/// The held deadline is longer than the shortest one by at most this time, or by one of [`PARTS`]
/// parts of it.
const PRECISION: Nanos = Nanos(1_000);
const PARTS: u64 = 256;
/// Flows for which a held promise leaves room.
const FURTHER: usize = DUE_PER_CALL as usize;
/// Beyond this number of promises the exact test would take milliseconds for each hold.
const MOST_EXACT: usize = 128;
