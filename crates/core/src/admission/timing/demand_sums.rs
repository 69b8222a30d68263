//! A quick and exact decision about many promises on one link ([`DemandSums`]). Its cost hardly
//! depends on their number, so a link with tens of thousands of promises admits one more in
//! microseconds.
//!
//! # The test
//! The exact test (`edf`) requires h(t) + b(t) ≤ t for every t from the shortest relative deadline
//! on, where h is the sum of the demand bound functions and b the blocking. This module looks at
//! *points* t_0 < t_1 < … < t_m, at first at four in each octave from 4 us to 2.4 hours
//! ([`LONGEST`]). Each of the following is sufficient for all t of [t_j, t_(j+1)), with b the
//! largest blocking:
//!
//! ```text
//! l(t_j) + i + b ≤ t_j       l: the sum of the lines above the demand bound functions that have
//!                            begun; i: what the lines that begin in (t_j, t_(j+1)] begin with
//! h(t_(j+1)) + b ≤ t_j
//! ```
//!
//! The first one, because the slopes of all lines together are at most one: so l(t) - t rises only
//! where lines begin (the test of Devi 2003, for whole intervals). It is sufficient for t_(j+1)
//! too, and for all t from t_m on, when all lines have begun. The second one, because h does not
//! fall. On the other hand, h(t_j) + b' > t_j with b' the least blocking is a violation.
//!
//! If none of these tells for some j, a further point divides the interval, and is kept. Let w be
//! h(t_(j+1)) + b. All t from w to t_(j+1) are kept, so the point lies there, half-way, for later
//! and larger promises to be decided by it too; or just below w if h has no step between two
//! points, so that a violation is found. The shortest relative deadline becomes a point first, for
//! most sets that do not fit fail there. h is known at the points where it was needed once. Each
//! costs an evaluation of every promise. After [`MAX_NEW`] of them in one decision, or with
//! [`MAX_POINTS`] points, the answer is *unknown*, and the caller asks the exact test.
//!
//! All sums are of whole numbers, so a promise that is removed leaves no trace.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::TimingFault;
use super::demand::{Demand, Fluid, LONGEST, WHOLE};
use super::link::{Promise, Transmitter};
use crate::units::Nanos;

/// The demands of a set of promises on one link, at some lengths of interval. See the module. Equal
/// if they are of the same promises on the same link, whatever was decided about them.
#[derive(Clone, Debug)]
pub struct DemandSums {
    /// The link that the demands are computed for.
    link: Transmitter,
    /// Ascending.
    points: Vec<Point>,
    /// The promises' demands, and how many promises have each.
    demands: BTreeMap<Demand, usize>,
    /// The sum of all shares, rounded down and up, in 2^-40.
    share: (u128, u128),
    /// The number of promises.
    count: usize,
    /// The number of promises by [`Demand::tested_from`], without those that have none.
    tested_from: BTreeMap<u128, usize>,
    /// The number of promises by [`Demand::piece`].
    pieces: BTreeMap<u128, usize>,
    /// Promises that were added or removed since there are points besides the first ones.
    changes: usize,
}

/// A length of interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    /// The length, in ticks.
    at: u128,
    /// The lines that have begun: their sum there, and the sum of what they began with; in ticks.
    lines: Lines,
    /// The sum of the demand bound functions there, in ticks; `None` if it was never needed.
    due: Option<u128>,
    /// It is one of the first points.
    is_first: bool,
}

/// The sum of lines that have begun at some length, and of what they began with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    sum: u128,
    begins: u128,
}

/// What [`DemandSums::decide`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumsAnswer {
    /// The exact test grants the set.
    Fits,
    /// The exact test refuses the set.
    Misfit,
    /// Only the exact test can tell.
    Unknown,
}

impl PartialEq for DemandSums {
    fn eq(&self, other: &DemandSums) -> bool {
        let first = |sums: &DemandSums| {
            let points = sums.points.iter().filter(|point| point.is_first);
            points.map(|point| point.lines).collect::<Vec<_>>()
        };
        self.link == other.link
            && first(self) == first(other)
            && self.demands == other.demands
            && self.share == other.share
            && self.count == other.count
            && self.tested_from == other.tested_from
            && self.pieces == other.pieces
    }
}

impl Eq for DemandSums {}

impl DemandSums {
    /// The sums of no promise, on this link. Of the link, the rate, the costs of a packet, the
    /// largest packet and the resolution count; its blocking and its stops are those of the link
    /// that [`DemandSums::decide`] gets.
    pub fn new(link: &Transmitter) -> DemandSums {
        let scale = link.scale();
        let point = |time| Point {
            at: scale.ticks(time),
            lines: Lines::default(),
            due: None,
            is_first: true,
        };
        DemandSums {
            link: *link,
            points: points().map(point).collect(),
            demands: BTreeMap::new(),
            share: (0, 0),
            count: 0,
            tested_from: BTreeMap::new(),
            pieces: BTreeMap::new(),
            changes: 0,
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
        let (many, line) = (times as u128, demand.line());
        for point in begun(&mut self.points, &demand) {
            point.lines.sum += many * line_at(&demand, &line, point.at);
            point.lines.begins += many * line.burst;
            if let Some(due) = &mut point.due {
                *due += many * demand.due_within(point.at);
            }
        }
        let (down, up) = demand.share();
        self.share.0 += many * down;
        self.share.1 += many * up;
        self.count += times;
        if let Some(from) = demand.tested_from {
            *self.tested_from.entry(from).or_default() += times;
        }
        *self.pieces.entry(demand.piece).or_default() += times;
        *self.demands.entry(demand).or_default() += times;
        self.handle_change();
        Ok(())
    }

    /// Removes a promise that was added.
    ///
    /// # Errors
    /// If the promise cannot be added; then nothing is removed.
    pub fn remove(&mut self, promise: &Promise) -> Result<(), TimingFault> {
        let demand = self.demand(promise)?;
        let line = demand.line();
        debug_assert!(self.count > 0, "a promise is removed that was not added");
        for point in begun(&mut self.points, &demand) {
            let Lines { sum, begins } = &mut point.lines;
            *sum = sum.saturating_sub(line_at(&demand, &line, point.at));
            *begins = begins.saturating_sub(line.burst);
            if let Some(due) = &mut point.due {
                *due = due.saturating_sub(demand.due_within(point.at));
            }
        }
        let (down, up) = demand.share();
        self.share.0 = self.share.0.saturating_sub(down);
        self.share.1 = self.share.1.saturating_sub(up);
        self.count = self.count.saturating_sub(1);
        if let Some(from) = demand.tested_from {
            take_one(&mut self.tested_from, from);
        }
        take_one(&mut self.pieces, demand.piece);
        take_one(&mut self.demands, demand);
        self.handle_change();
        Ok(())
    }

    /// Decides whether the link keeps all promises, and `more`, for work that is due within
    /// intervals of at least `shortest`. The link must be the one of [`DemandSums::new`], except
    /// for its blocking and its stops; of another one nothing is known.
    pub fn decide(&mut self, link: &Transmitter, more: &[Promise], shortest: Nanos) -> SumsAnswer {
        if self.link_of(link) != self.link {
            return SumsAnswer::Unknown;
        }
        let demands: Result<Vec<Demand>, TimingFault> =
            more.iter().map(|promise| self.demand(promise)).collect();
        let Ok(mut demands) = demands else {
            return SumsAnswer::Unknown;
        };
        demands.extend(link.stops.map(|stops| stops.demand(link.scale())));
        let requested = Requested::new(demands);
        let (down, up) = requested.shares(self.share);
        if down > WHOLE {
            return SumsAnswer::Misfit;
        }
        let own = self.tested_from.keys().next().copied();
        let Some(from) = requested.tested_from().chain(own).min() else {
            // No promise has a deadline.
            return match up <= WHOLE {
                true => SumsAnswer::Fits,
                false => SumsAnswer::Unknown,
            };
        };
        let (from, last) = (from.max(link.scale().ticks(shortest)), self.last());
        let blocking = link.blocking();
        let pieces = requested.demands.iter().map(|demand| demand.piece);
        let piece = pieces.chain(self.pieces.keys().next_back().copied()).max();
        let piece = piece.unwrap_or(0).max(blocking.leftover);
        let most = piece.saturating_add(blocking.ahead);
        if up > WHOLE || from > last || blocking.horizon > last {
            return SumsAnswer::Unknown;
        }
        let least = blocking.leftover.saturating_add(blocking.ahead);
        self.examine(&requested, (least, most), from)
    }

    /// Examines the intervals between the points, from the longest length down to `from`, and
    /// divides those that do not tell. The blocking is between `least` and `most`.
    fn examine(
        &mut self,
        requested: &Requested,
        (least, most): (u128, u128),
        from: u128,
    ) -> SumsAnswer {
        let fails = |at: u128, due: u128| due.saturating_add(least) > at;
        if self.is_violated(requested, least, from) {
            return SumsAnswer::Misfit;
        }
        let mut above = self.lines_with(requested, self.points.len() - 1);
        if above.sum.saturating_add(most) > self.last() {
            return SumsAnswer::Unknown;
        }
        let (mut next, mut new) = (self.points.len(), 0);
        let mut longer_wants = None;
        while let Some(at) = next.checked_sub(1) {
            let end = self.points[at].at;
            if end < from {
                break;
            }
            let before = at.checked_sub(1).map(|before| self.points[before].at);
            if let Some(before) = before {
                let lines = self.lines_with(requested, at - 1);
                let begins = above.begins.saturating_sub(lines.begins);
                let most = lines.sum.saturating_add(begins).saturating_add(most);
                if most <= before {
                    (next, above) = (at, lines);
                    continue;
                }
            }
            let has_room = new < MAX_NEW && self.points.len() < MAX_POINTS;
            let due = match self.points[at].due {
                Some(due) => due,
                None if !has_room => return SumsAnswer::Unknown,
                None => {
                    new += 1;
                    self.find_due(at)
                }
            };
            let due = due.saturating_add(requested.due_within(end));
            let wanted = due.saturating_add(most);
            if wanted > end {
                return match fails(end, due) {
                    true => SumsAnswer::Misfit,
                    false => SumsAnswer::Unknown,
                };
            }
            let begin = before.unwrap_or(0).max(from);
            let first_at_from = before.is_none_or(|before| before < from);
            // Not certain are the lengths from `begin` to below `wanted`.
            let divides = match longer_wants.replace(wanted) == Some(wanted) || wanted == end {
                // A set that does not fit most often fails at the shortest deadline.
                _ if first_at_from => from,
                true => wanted - 1,
                false => wanted + (end - wanted) / 2,
            };
            if wanted <= begin || end == from || before == Some(divides) {
                // If `before` is the only length that is not certain, it is examined next.
                next = at;
                if next > 0 {
                    above = self.lines_with(requested, next - 1);
                }
                continue;
            }
            if !has_room {
                return SumsAnswer::Unknown;
            }
            new += 1;
            self.insert_point(at, divides);
            if first_at_from {
                // The interval is examined again, from the new point on.
                let due = self.find_due(at);
                if fails(from, due.saturating_add(requested.due_within(from))) {
                    return SumsAnswer::Misfit;
                }
                next = at + 2;
                longer_wants = None;
            } else {
                next = at + 1;
                above = self.lines_with(requested, at);
            }
        }
        SumsAnswer::Fits
    }

    /// True if the set fails at a point from `from` on where h is known.
    fn is_violated(&self, requested: &Requested, least: u128, from: u128) -> bool {
        let fails = |point: &Point, requires: u128| {
            let due = point.due.map(|due| due.saturating_add(requires));
            due.is_some_and(|due| due.saturating_add(least) > point.at)
        };
        let tested = self.points.partition_point(|point| point.at < from);
        self.points[tested..].iter().any(|point| {
            // The line is a bound that needs no division.
            fails(point, requested.lines_at(point.at).sum)
                && fails(point, requested.due_within(point.at))
        })
    }

    /// The lines at the point with this index, with those of `requested`.
    fn lines_with(&self, requested: &Requested, index: usize) -> Lines {
        let point = &self.points[index];
        let more = requested.lines_at(point.at);
        Lines {
            sum: point.lines.sum.saturating_add(more.sum),
            begins: point.lines.begins.saturating_add(more.begins),
        }
    }

    /// Inserts a point before the one with this index.
    fn insert_point(&mut self, index: usize, at: u128) {
        let mut lines = Lines::default();
        for (demand, count) in &self.demands {
            if demand.deadline <= at {
                let (many, line) = (*count as u128, demand.line());
                lines.sum += many * line_at(demand, &line, at);
                lines.begins += many * line.burst;
            }
        }
        let point = Point {
            at,
            lines,
            due: None,
            is_first: false,
        };
        self.points.insert(index, point);
    }

    /// Computes what is due at the point with this index, which is known there from now on.
    fn find_due(&mut self, index: usize) -> u128 {
        let at = self.points[index].at;
        let demands = self.demands.iter();
        let due = demands.map(|(demand, count)| *count as u128 * demand.due_within(at));
        *self.points[index].due.insert(due.sum())
    }

    /// Counts a change. After many of them other points may be needed: if there are too many, only
    /// the first ones stay.
    fn handle_change(&mut self) {
        let is_divided = self.points.iter().any(|point| !point.is_first);
        self.changes = if is_divided { self.changes + 1 } else { 0 };
        if self.points.len() >= MAX_POINTS && self.changes > MAX_POINTS {
            self.points.retain(|point| point.is_first);
            self.changes = 0;
        }
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
        self.points.last().map_or(0, |point| point.at)
    }
}

/// The demands that are to be decided beside the sums.
struct Requested {
    demands: Vec<Demand>,
    /// The line above each.
    lines: Vec<Fluid>,
}

impl Requested {
    fn new(demands: Vec<Demand>) -> Requested {
        let lines = demands.iter().map(Demand::line).collect();
        Requested { demands, lines }
    }

    /// The sum of the shares, added to that of others.
    fn shares(&self, others: (u128, u128)) -> (u128, u128) {
        let shares = self.demands.iter().map(Demand::share);
        shares.fold(others, |(down, up), (less, more)| {
            (down.saturating_add(less), up.saturating_add(more))
        })
    }

    fn tested_from(&self) -> impl Iterator<Item = u128> {
        self.demands.iter().filter_map(|demand| demand.tested_from)
    }

    fn due_within(&self, t: u128) -> u128 {
        let due = self.demands.iter().map(|demand| demand.due_within(t));
        due.fold(0, u128::saturating_add)
    }

    /// The lines above the demands. Their sum is a bound of `due_within` without a division.
    fn lines_at(&self, t: u128) -> Lines {
        let mut lines = Lines::default();
        for (demand, line) in core::iter::zip(&self.demands, &self.lines) {
            if demand.deadline <= t {
                lines.sum = lines.sum.saturating_add(line_at(demand, line, t));
                lines.begins = lines.begins.saturating_add(line.burst);
            }
        }
        lines
    }
}

/// The line above a demand at a length that is not below the demand's deadline. It does not
/// overflow: times are below 2^83, and the slope of a demand that [`DemandSums::demand`] accepts is
/// at most [`WHOLE`], 2^40.
fn line_at(demand: &Demand, line: &Fluid, t: u128) -> u128 {
    line.burst + ((t - demand.deadline) * line.slope).div_ceil(WHOLE)
}

/// The points at which a demand has begun.
fn begun<'a>(points: &'a mut [Point], demand: &Demand) -> &'a mut [Point] {
    let first = points.partition_point(|point| point.at < demand.deadline);
    &mut points[first..]
}

fn take_one<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// The first points, ascending.
fn points() -> impl Iterator<Item = Nanos> {
    let octaves = FIRST_OCTAVE..LONGEST.0.ilog2();
    let inside = octaves.flat_map(|octave| (4..8).map(move |part| part << (octave - 2)));
    inside.chain([LONGEST.0]).map(Nanos)
}

/// The first point is 2^12 ns, about 4 us. Promises with a shorter deadline are left to the exact
/// test.
const FIRST_OCTAVE: u32 = 12;

/// Evaluations of all promises in one decision.
const MAX_NEW: usize = 48;
/// Points in all, which every added promise passes. The first ones are 125.
const MAX_POINTS: usize = 512;

#[cfg(test)]
mod tests;
