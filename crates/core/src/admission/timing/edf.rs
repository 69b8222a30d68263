//! The schedulability test for non-preemptive earliest deadline first. The demands of all promises
//! and the blocking come in, and an [`Answer`] goes out. No function fails; a set that is not
//! decided within the budget has an answer of its own.
//!
//! # The test
//! Let h(t) be the sum of the demand bound functions (dbf, see `demand`). Let b(t) be the blocking:
//! the longest uninterrupted piece of work that is due later than t or has no deadline and can
//! still come before work that is due within t, plus the work that was handed to the device before
//! its time. All deadlines are kept if
//!
//! ```text
//! h(t) + b(t) ≤ t     for every t from the shortest relative deadline on
//! ```
//!
//! For sporadic jobs (every pattern with their spacing is legal) the condition is also necessary:
//! Jeffay, Stanat and Martel 1991 (theorem 4.1) for deadlines at the end of the period, George,
//! Rivierre and Spuri 1996 (theorem 5) for all deadlines. docs/reference/contracts.md states the
//! condition with the proof that also covers messages of several packets.
//!
//! # The decision
//! 1. Shares above the whole are refused at once.
//! 2. Each dbf lies below a line. If the lines fit at the start of each line, so does h (the test
//!    of Devi 2003 with b). Nearly every set that leaves room is granted here, in O(n log n).
//! 3. Otherwise the exact test decides. A violation lies where b still falls, or within the longest
//!    busy period that begins with the last b, and below (K + b) / (1 - share), where K is the sum
//!    of the offsets of the lines. b is constant on few stretches, and on each of them h + b rises.
//!    So it is enough to check t, then h(t) + b, and so on downwards (quick processor-demand
//!    analysis, Zhang and Burns 2009): if h(t) + b < t, there is no violation between the two.
//! 4. The exact test is short for nearly all sets. After a budget of work the answer is
//!    *undecided*, and the set is refused with that reason.

use alloc::vec::Vec;

use super::demand::{Demand, WHOLE};

/// The answer, with times in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Fits,
    /// The long-term share is above the whole: the sum of the shares, in 2^-40.
    Share(u128),
    /// Within an interval of length `t`, `due` can be due, and `blocked` can come before it.
    Late {
        t: u128,
        due: u128,
        blocked: u128,
    },
    /// The budget is used up.
    Undecided,
}

/// Work besides the demands that can block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocking {
    /// The longest piece of work without a deadline.
    pub leftover: u128,
    /// Work that was handed to the device and cannot be recalled.
    pub ahead: u128,
    /// How long before its eligible time a piece of work may begin if no other work is eligible.
    pub horizon: u128,
}

/// Decides with at most about `budget` evaluations of a single dbf, for intervals of at least
/// `shortest` ticks.
pub(super) fn decide(
    demands: &[Demand],
    blocking: Blocking,
    shortest: u128,
    mut budget: u64,
) -> Answer {
    let (down, up) = demands.iter().fold((0_u128, 0_u128), |(down, up), demand| {
        let (less, more) = demand.share();
        (down.saturating_add(less), up.saturating_add(more))
    });
    if down > WHOLE {
        return Answer::Share(down);
    }
    let Some(from) = demands.iter().filter_map(|demand| demand.tested_from).min() else {
        // No promise has a deadline.
        return Answer::Fits;
    };
    let from = from.max(shortest);
    let stretches = Stretches::new(demands, blocking);
    if up <= WHOLE && lines_fit(demands, &stretches, from) {
        return Answer::Fits;
    }
    let Some(until) = last_suspect(demands, &stretches, up, &mut budget) else {
        return Answer::Undecided;
    };
    for stretch in stretches.within(from, until) {
        match descend(demands, stretch, &mut budget) {
            Answer::Fits => {}
            wrong => return wrong,
        }
    }
    Answer::Fits
}

/// b(t), as a list of its steps.
struct Stretches {
    /// The points at which b falls, ascending, each with b from there on.
    falls: Vec<(u128, u128)>,
    /// b before the first fall.
    first: u128,
}

/// Lengths of interval `from ≤ t < until` on which b(t) is constant.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: u128,
    until: u128,
    blocked: u128,
}

impl Stretches {
    fn new(demands: &[Demand], blocking: Blocking) -> Stretches {
        let mut now = blocking.leftover;
        let mut ends: Vec<(u128, u128)> = Vec::new();
        for demand in demands {
            match demand.in_leftover {
                true => now = now.max(demand.piece),
                // The piece can block all work that is due earlier than the piece. If the piece
                // begins before its eligible time, it can also block work that is due up to the
                // horizon later.
                false => {
                    ends.push((
                        demand.deadline.saturating_add(blocking.horizon),
                        demand.piece,
                    ));
                }
            }
        }
        // From the longest interval downwards, b only rises.
        ends.sort_unstable_by_key(|end| core::cmp::Reverse(end.0));
        let mut falls: Vec<(u128, u128)> = Vec::new();
        for (end, piece) in ends {
            if piece > now {
                match falls.last_mut() {
                    // Several pieces end at the same point.
                    Some((at, _)) if *at == end => {}
                    _ => falls.push((end, now)),
                }
                now = piece;
            }
        }
        falls.reverse();
        let add = |piece: u128| piece.saturating_add(blocking.ahead);
        Stretches {
            falls: falls.into_iter().map(|(at, b)| (at, add(b))).collect(),
            first: add(now),
        }
    }

    /// b(t).
    fn at(&self, t: u128) -> u128 {
        let passed = self.falls.partition_point(|(at, _)| *at <= t);
        match passed.checked_sub(1) {
            Some(last) => self.falls[last].1,
            None => self.first,
        }
    }

    /// The stretches of the interval from `from` to `until`, including its end, shortest first.
    fn within(&self, from: u128, until: u128) -> impl Iterator<Item = Stretch> + '_ {
        let mut at = from;
        let end = until.saturating_add(1);
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let passed = self.falls.partition_point(|(fall, _)| *fall <= at);
            let until = self
                .falls
                .get(passed)
                .map_or(end, |(fall, _)| end.min(*fall));
            let stretch = Stretch {
                from: at,
                until,
                blocked: self.at(at),
            };
            at = until;
            Some(stretch)
        })
    }
}

/// Whether the lines above all dbf fit at the start of each line. Between those points the sum of
/// the lines minus t only falls, since the slopes together are at most one.
fn lines_fit(demands: &[Demand], stretches: &Stretches, from: u128) -> bool {
    let mut begins: Vec<(u128, &Demand)> = demands.iter().map(|d| (d.deadline, d)).collect();
    begins.sort_unstable_by_key(|(at, _)| *at);
    // The sum of all lines that have begun is `sum + slope · t`, in 2^-40.
    let (mut sum, mut slope) = (0_i128, 0_u128);
    let mut next = begins.iter().peekable();
    while let Some((at, first)) = next.next() {
        let mut take = |demand: &Demand| {
            let line = demand.line();
            let (burst, fall) = (
                line.burst.checked_mul(WHOLE)?,
                demand.deadline.checked_mul(line.slope)?,
            );
            sum = sum.checked_add(i128::try_from(burst).ok()?)?;
            sum = sum.checked_sub(i128::try_from(fall).ok()?)?;
            slope = slope.checked_add(line.slope)?;
            Some(())
        };
        if take(first).is_none() {
            return false;
        }
        while let Some((_, more)) = next.next_if(|(then, _)| then == at) {
            if take(more).is_none() {
                return false;
            }
        }
        if next.peek().is_some_and(|(then, _)| *then <= from) {
            continue;
        }
        let t = (*at).max(from);
        // The slope is at most one, and t is a time.
        let Some(lines) = sum.checked_add((slope * t) as i128) else {
            return false;
        };
        let blocked = i128::try_from(stretches.at(t).saturating_mul(WHOLE));
        let room = i128::try_from(t * WHOLE).unwrap_or(i128::MAX);
        match blocked.ok().and_then(|blocked| lines.checked_add(blocked)) {
            Some(wanted) if wanted <= room => {}
            _ => return false,
        }
    }
    true
}

/// A length that the shortest violating interval does not exceed; `None` if the budget does not
/// suffice to find one.
fn last_suspect(
    demands: &[Demand],
    stretches: &Stretches,
    share: u128,
    budget: &mut u64,
) -> Option<u128> {
    let (last_fall, blocking) = match stretches.falls.last() {
        Some((at, b)) => (*at, *b),
        None => (0, stretches.first),
    };
    let by_share = (share < WHOLE).then(|| {
        let offsets = demands.iter().map(Demand::offset);
        let excess = offsets.fold(blocking, u128::saturating_add);
        // excess / (1 - share), without leaving 128 bits.
        let gap = WHOLE - share;
        (excess / gap).saturating_add(1).saturating_mul(WHOLE)
    });
    let by_share = by_share.filter(|bound| *bound <= HORIZON);
    let by_busy = longest_busy(demands, blocking, by_share.unwrap_or(HORIZON), budget);
    by_busy.or(by_share).map(|bound| bound.max(last_fall))
}

/// The longest busy period that begins with `blocking`: the first length within which the arrivals
/// and `blocking` fit. `None` if it is longer than the bound, or if half of the budget does not
/// suffice to find it.
fn longest_busy(demands: &[Demand], blocking: u128, bound: u128, budget: &mut u64) -> Option<u128> {
    let reserve = *budget / 2;
    let mut busy = blocking.saturating_add(1);
    while busy <= bound {
        let left = budget.checked_sub(demands.len() as u64 + 1);
        *budget = left.filter(|left| *left >= reserve)?;
        let arrived = demands.iter().map(|demand| demand.arrives_within(busy));
        let next = arrived.fold(blocking, u128::saturating_add);
        if next <= busy {
            return Some(busy);
        }
        busy = next;
    }
    None
}

/// Searches the stretch for a t with h(t) + b > t, from its end downwards.
fn descend(demands: &[Demand], stretch: Stretch, budget: &mut u64) -> Answer {
    let blocked = stretch.blocked;
    let Some(mut t) = stretch.until.checked_sub(1) else {
        return Answer::Fits;
    };
    while t >= stretch.from {
        let Some(left) = budget.checked_sub(demands.len() as u64 + 1) else {
            return Answer::Undecided;
        };
        *budget = left;
        let due = due_within(demands, t);
        let wanted = due.saturating_add(blocked);
        if wanted > t {
            let steps = demands
                .iter()
                .filter_map(|demand| demand.step_at_or_before(t));
            // The same amount was due already at the last step.
            let step = steps.max().map_or(t, |step| step.max(stretch.from));
            let t = match due_within(demands, step) == due {
                true => step,
                false => t,
            };
            return Answer::Late { t, due, blocked };
        }
        // No work is due within an interval of length zero, and `from` may be zero.
        t = match (wanted < t, t.checked_sub(1)) {
            (true, _) => wanted,
            (false, Some(before)) => before,
            (false, None) => break,
        };
    }
    Answer::Fits
}

fn due_within(demands: &[Demand], t: u128) -> u128 {
    let due = demands.iter().map(|demand| demand.due_within(t));
    due.fold(0, u128::saturating_add)
}

/// The longest interval that is examined: [`super::demand::LONGEST`] at the highest rate.
const HORIZON: u128 = 1 << 83;
