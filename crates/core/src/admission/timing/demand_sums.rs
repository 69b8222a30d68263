//! A quick test of many promises on one link ([`DemandSums`]). Its cost does not depend on their
//! number, so a link with tens of thousands of promises admits one more in microseconds.
//!
//! # The test
//! The exact test (`edf`) requires h(t) + b(t) ≤ t for every t from the shortest relative deadline
//! on, where h is the sum of the demand bound functions and b the blocking. This module keeps h at
//! fixed *points* t_0 < t_1 < … < t_m only, eight in each octave from 4 us to 2.4 hours
//! ([`LONGEST`]). h does not fall, so for every t of [t_j, t_(j+1)) it is at most h(t_(j+1)), and
//!
//! ```text
//! h(t_(j+1)) + b ≤ t_j       for every j, with b the largest blocking
//! ```
//!
//! is sufficient there. From t_m on, all promises are below their lines, which have begun by then,
//! and whose slopes together are at most one; so it is sufficient that the lines fit at t_m.
//!
//! The test never accepts a set that the exact test refuses. It may not accept a set that uses more
//! than 8/9 of the time before some deadline; the caller then asks the exact test. h at a point is
//! a sum of whole numbers, so a promise that is removed leaves no trace.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::TimingFault;
use super::demand::{Demand, LONGEST, WHOLE};
use super::link::{Promise, Transmitter};
use crate::units::Nanos;

/// The demands of a set of promises on one link, at fixed lengths of interval. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandSums {
    /// The link that the demands are computed for.
    link: Transmitter,
    /// The points, in ticks, ascending.
    points: Vec<u128>,
    /// The sum of the demand bound functions at each point, in ticks.
    due: Vec<u128>,
    /// The sum of all lines at the last point, in ticks.
    lines: u128,
    /// The sum of all shares, rounded up, in 2^-40.
    share: u128,
    /// The number of promises.
    count: usize,
    /// The number of promises by [`Demand::tested_from`], without those that have none.
    tested_from: BTreeMap<u128, usize>,
    /// The number of promises by [`Demand::piece`].
    pieces: BTreeMap<u128, usize>,
}

impl DemandSums {
    /// The sums of no promise, on this link. Of the link, the rate, the costs of a packet, the
    /// largest packet and the resolution count; its blocking and its stops are those of the link
    /// that [`DemandSums::fits`] gets.
    pub fn new(link: &Transmitter) -> DemandSums {
        let scale = link.scale();
        let points: Vec<u128> = points().map(|time| scale.ticks(time)).collect();
        DemandSums {
            link: *link,
            due: points.iter().map(|_| 0).collect(),
            points,
            lines: 0,
            share: 0,
            count: 0,
            tested_from: BTreeMap::new(),
            pieces: BTreeMap::new(),
        }
    }

    /// The number of promises.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds a promise that is made `times` times.
    ///
    /// # Errors
    /// If the promise alone cannot be kept on this link; then nothing is added.
    pub fn add(&mut self, promise: &Promise, times: usize) -> Result<(), TimingFault> {
        let demand = self.demand(promise)?;
        let (many, last) = (times as u128, self.last());
        for (due, at) in self.due.iter_mut().zip(&self.points) {
            *due += many * demand.due_within(*at);
        }
        self.lines += many * line_at(&demand, last);
        self.share += many * demand.share().1;
        self.count += times;
        if let Some(from) = demand.tested_from {
            *self.tested_from.entry(from).or_default() += times;
        }
        *self.pieces.entry(demand.piece).or_default() += times;
        Ok(())
    }

    /// Removes a promise that was added.
    ///
    /// # Errors
    /// If the promise cannot be added; then nothing is removed.
    pub fn remove(&mut self, promise: &Promise) -> Result<(), TimingFault> {
        let demand = self.demand(promise)?;
        let last = self.last();
        debug_assert!(self.count > 0, "a promise is removed that was not added");
        for (due, at) in self.due.iter_mut().zip(&self.points) {
            *due = due.saturating_sub(demand.due_within(*at));
        }
        self.lines = self.lines.saturating_sub(line_at(&demand, last));
        self.share = self.share.saturating_sub(demand.share().1);
        self.count = self.count.saturating_sub(1);
        if let Some(from) = demand.tested_from {
            take_one(&mut self.tested_from, from);
        }
        take_one(&mut self.pieces, demand.piece);
        Ok(())
    }

    /// True if the link certainly keeps all promises, and `more`. The link must be the one of
    /// [`DemandSums::new`], except for its blocking and its stops; false for another one.
    pub fn fits(&self, link: &Transmitter, more: &[Promise]) -> bool {
        self.fits_from(link, more, Nanos(0))
    }

    /// As [`DemandSums::fits`], for work that is due within intervals of at least `shortest` only.
    pub fn fits_from(&self, link: &Transmitter, more: &[Promise], shortest: Nanos) -> bool {
        if self.link_of(link) != self.link {
            return false;
        }
        let demands: Result<Vec<Demand>, TimingFault> =
            more.iter().map(|promise| self.demand(promise)).collect();
        let Ok(mut demands) = demands else {
            return false;
        };
        demands.extend(link.stops.map(|stops| stops.demand(link.scale())));
        let shares = demands.iter().map(|demand| demand.share().1);
        if shares.fold(self.share, u128::saturating_add) > WHOLE {
            return false;
        }
        let own = self.tested_from.keys().next().copied();
        let tested = demands.iter().filter_map(|demand| demand.tested_from);
        let Some(from) = tested.chain(own).min() else {
            // No promise has a deadline.
            return true;
        };
        let from = from.max(link.scale().ticks(shortest));
        let blocking = link.blocking();
        if from > self.last() || blocking.horizon > self.last() {
            return false;
        }
        let pieces = demands.iter().map(|demand| demand.piece);
        let piece = pieces.chain(self.pieces.keys().next_back().copied()).max();
        let blocked = piece.unwrap_or(0).max(blocking.leftover);
        let blocked = blocked.saturating_add(blocking.ahead);
        let with = |sum: u128, part: &dyn Fn(&Demand) -> u128| {
            let parts = demands.iter().map(part);
            parts.fold(sum.saturating_add(blocked), u128::saturating_add)
        };
        let mut begin = 0;
        for (due, end) in self.due.iter().zip(&self.points) {
            let wanted = |demand: &Demand| demand.due_within(*end);
            if *end > from && with(*due, &wanted) > begin.max(from) {
                return false;
            }
            begin = *end;
        }
        with(self.lines, &|demand| line_at(demand, begin)) <= begin
    }

    /// The demand of a promise. Fails if the promise alone cannot be kept on this link.
    fn demand(&self, promise: &Promise) -> Result<Demand, TimingFault> {
        let demand = self.link.demand(promise)?;
        demand.validate(self.link.scale())?;
        // With a share of at most one, no sum of 2^32 demands exceeds 128 bits.
        match demand.share().1 {
            share if share > WHOLE => Err(TimingFault::Share {
                millionths: u64::try_from(share.saturating_mul(1_000_000) / WHOLE)
                    .unwrap_or(u64::MAX),
            }),
            _ => Ok(demand),
        }
    }

    /// What counts of a link for the demands on it.
    fn link_of(&self, link: &Transmitter) -> Transmitter {
        Transmitter {
            leftover: self.link.leftover,
            ahead: self.link.ahead,
            horizon: self.link.horizon,
            stops: self.link.stops,
            ..*link
        }
    }

    fn last(&self) -> u128 {
        self.points.last().copied().unwrap_or(0)
    }
}

/// The line of a demand at a length that is not below the demand's deadline.
fn line_at(demand: &Demand, t: u128) -> u128 {
    demand.line().at(t.saturating_sub(demand.deadline))
}

fn take_one(counts: &mut BTreeMap<u128, usize>, key: u128) {
    if let Some(count) = counts.get_mut(&key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// The points, ascending.
fn points() -> impl Iterator<Item = Nanos> {
    let octaves = FIRST_OCTAVE..LONGEST.0.ilog2();
    let inside = octaves.flat_map(|octave| (8..16).map(move |part| part << (octave - 3)));
    inside.chain([LONGEST.0]).map(Nanos)
}

/// The first point is 2^12 ns, about 4 us. Promises with a shorter deadline are left to the exact
/// test.
const FIRST_OCTAVE: u32 = 12;

#[cfg(test)]
mod tests;
