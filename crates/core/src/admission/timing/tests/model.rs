//! Compares the schedulability test with a simulated link that sends by earliest deadline first,
//! tick by tick, and with the inequality itself.

use alloc::vec::Vec;

use netnice_cases::cases;
use proptest::prelude::*;

use crate::admission::timing::Stops;
use crate::admission::timing::demand::{Demand, Fluid, Growth, Scale, Steps, WHOLE};
use crate::admission::timing::edf::{Answer, Blocking, decide};
use crate::contract::{Channel, MessageRate};
use crate::units::Nanos;

/// The channel with another deadline.
pub(super) fn at(channel: &Channel, deadline: u64) -> Channel {
    let (mmax, rmax, bmax) = (channel.mmax(), channel.rmax(), channel.bmax());
    Channel::new(mmax, rmax, bmax, Nanos(deadline)).expect("a channel")
}

/// The channel with another rate.
pub(super) fn with_rate(channel: &Channel, rate: u32) -> Channel {
    let rmax = MessageRate::new(rate).expect("a rate");
    Channel::new(channel.mmax(), rmax, channel.bmax(), channel.deadline()).expect("a channel")
}

/// Jobs of `pieces` pieces of `piece` ticks, one each `period` ticks, due `deadline` later.
#[derive(Clone, Copy, Debug)]
struct Task {
    piece: u64,
    pieces: u64,
    period: u64,
    deadline: u64,
}

impl Task {
    /// The task's demand. A tick is the smallest time here, so a piece in the way has begun at
    /// least one tick before.
    fn demand(&self) -> Demand {
        Demand {
            deadline: self.deadline.into(),
            growth: Growth::Steps(Steps {
                cost: u128::from(self.piece * self.pieces),
                numerator: 1,
                denominator: self.period.into(),
            }),
            cap: None,
            piece: u128::from(self.piece - 1),
            in_leftover: false,
            tested_from: Some(self.deadline.into()),
        }
    }
}

/// Simulates earliest deadline first, with each task from its first release on. Returns whether a
/// job is late before `end`. Pieces are not interrupted.
fn misses(tasks: &[Task], first: &[u64], end: u64) -> bool {
    misses_with_stops(tasks, first, end, |_| false)
}

/// As [`misses`], with a sender that stands still in the ticks that `stopped` names: it begins no
/// piece. A piece that has begun goes on, as a packet on the wire does.
fn misses_with_stops(
    tasks: &[Task],
    first: &[u64],
    end: u64,
    stopped: impl Fn(u64) -> bool,
) -> bool {
    // (deadline, ticks left, piece) of the released jobs.
    let mut ready: Vec<(u64, u64, u64)> = Vec::new();
    let mut next: Vec<u64> = first.to_vec();
    let mut now = 0;
    while now < end {
        for (task, next) in tasks.iter().zip(&mut next) {
            while *next <= now {
                ready.push((*next + task.deadline, task.piece * task.pieces, task.piece));
                *next += task.period;
            }
        }
        let Some(at) = (0..ready.len()).min_by_key(|&at| ready[at].0) else {
            now = next.iter().copied().min().unwrap_or(end);
            continue;
        };
        if stopped(now) {
            now += 1;
            if ready.iter().any(|(due, ..)| *due < now) {
                return true;
            }
            continue;
        }
        let (due, left, piece) = &mut ready[at];
        now += *piece;
        *left -= *piece;
        if *left == 0 {
            if now > *due {
                return true;
            }
            ready.swap_remove(at);
        }
        if ready.iter().any(|(due, ..)| *due < now) {
            return true;
        }
    }
    false
}

/// The patterns of the theorem: all at once, or one that begins a tick before all others.
fn worst_patterns(tasks: &[Task]) -> Vec<Vec<u64>> {
    let mut patterns: Vec<Vec<u64>> = alloc::vec![alloc::vec![0; tasks.len()]];
    for early in 0..tasks.len() {
        patterns.push((0..tasks.len()).map(|n| u64::from(n != early)).collect());
    }
    patterns
}

fn small_tasks() -> impl Strategy<Value = Vec<Task>> {
    let task =
        (1_u64..6, 1_u64..4, 3_u64..30, 1_u64..40).prop_map(|(piece, pieces, period, deadline)| {
            Task {
                piece,
                pieces,
                period: period + piece * pieces,
                deadline: deadline + piece * pieces,
            }
        });
    prop::collection::vec(task, 1..5)
}

/// A budget that decides small sets, even those that fill the whole exactly.
const ENOUGH: u64 = 1 << 24;

const FREE: Blocking = Blocking {
    leftover: 0,
    ahead: 0,
    horizon: 0,
};

proptest! {
    #![proptest_config(cases(1000))]

    /// Both halves of the theorem, on sets small enough to be simulated: a refused set misses a
    /// deadline in one of the worst patterns, a granted set in none of them.
    #[test]
    fn the_test_is_exact_for_sporadic_jobs(tasks in small_tasks()) {
        let demands: Vec<Demand> = tasks.iter().map(Task::demand).collect();
        let answer = decide(&demands, FREE, 0, ENOUGH);
        let patterns = worst_patterns(&tasks);
        let late = |end| patterns.iter().any(|first| misses(&tasks, first, end));
        match answer {
            Answer::Fits => prop_assert!(!late(2_000)),
            Answer::Late { t, .. } => prop_assert!(late(2 * t as u64 + 100)),
            // The closer the sum is to the whole, the later the miss.
            Answer::Share(_) => prop_assert!(late(100_000_000)),
            Answer::Undecided => prop_assert!(false, "{answer:?}"),
        }
    }

    /// No other pattern breaks a granted set.
    #[test]
    fn no_pattern_breaks_a_granted_set(
        tasks in small_tasks(), first in prop::collection::vec(0_u64..60, 5),
    ) {
        let demands: Vec<Demand> = tasks.iter().map(Task::demand).collect();
        if decide(&demands, FREE, 0, ENOUGH) == Answer::Fits {
            prop_assert!(!misses(&tasks, &first[..tasks.len()], 2_000));
        }
    }

    /// Theorem 4: stops within their allowance break no granted set, wherever in their period they
    /// are.
    #[test]
    fn stops_within_their_allowance_break_no_granted_set(
        tasks in small_tasks(),
        first in prop::collection::vec(0_u64..60, 5),
        ticks in prop::collection::btree_set(0_u64..60, 1..12),
        spread in any::<bool>(),
        period in 60_u64..200,
        shifts in prop::collection::vec(0_u64..200, 8),
    ) {
        // Stops at once, or anywhere: in every interval of one period, as many ticks as the set
        // has.
        let time = ticks.len() as u64;
        let stopped = |now: u64| match spread {
            true => ticks.contains(&(now % period)),
            false => now % period < time,
        };
        let stops = Stops::new(Nanos(time), Nanos(period)).expect("stops");
        let demands: Vec<Demand> = tasks.iter().map(Task::demand)
            .chain([stops.demand(Scale::NANOS)]).collect();
        if decide(&demands, FREE, 0, ENOUGH) == Answer::Fits {
            let mut patterns = worst_patterns(&tasks);
            patterns.push(first[..tasks.len()].to_vec());
            for first in patterns {
                for shift in [0, 1].into_iter().chain(shifts.iter().copied()) {
                    let late = misses_with_stops(&tasks, &first, 1_000, |now| stopped(now + shift));
                    prop_assert!(!late, "{first:?} {shift}");
                }
            }
        }
    }

    /// The shortcuts to the answer agree with a check of every t, for all curves.
    #[test]
    fn the_answer_is_that_of_the_inequality_at_every_t(
        tasks in small_tasks(),
        fluids in prop::collection::vec(
            (0_u128..9, 0_u128..WHOLE / 4, 0_u128..30, 0_u128..9, any::<bool>()),
            0..3,
        ),
        blocking in (0_u128..4, 0_u128..4, 0_u128..10),
    ) {
        let fluid = |(burst, slope, deadline, piece, in_leftover)| Demand {
            deadline,
            growth: Growth::Fluid(Fluid { burst, slope }),
            cap: (piece % 2 == 0).then_some(Fluid { burst: burst + 4, slope: slope / 2 }),
            piece,
            in_leftover,
            tested_from: None,
        };
        let demands: Vec<Demand> = tasks.iter().map(Task::demand)
            .chain(fluids.into_iter().map(fluid)).collect();
        let blocking = Blocking { leftover: blocking.0, ahead: blocking.1, horizon: blocking.2 };
        let from = tasks.iter().map(|task| u128::from(task.deadline)).min().unwrap_or(0);
        let wrong = |t: u128| {
            let due: u128 = demands.iter().map(|demand| demand.due_within(t)).sum();
            let blocks = |demand: &&Demand| {
                demand.in_leftover || demand.deadline + blocking.horizon > t
            };
            let pieces = demands.iter().filter(blocks).map(|demand| demand.piece);
            due + pieces.fold(blocking.leftover, u128::max) + blocking.ahead > t
        };
        match decide(&demands, blocking, 0, ENOUGH) {
            Answer::Fits => prop_assert!(!(from..from + 1_000).any(wrong)),
            Answer::Late { t, .. } => prop_assert!(t >= from && wrong(t)),
            Answer::Share(share) => prop_assert!(share > WHOLE),
            // Only within a thousandth of the whole.
            Answer::Undecided => {
                let share: u128 = demands.iter().map(|demand| demand.share().1).sum();
                prop_assert!(share.abs_diff(WHOLE) < WHOLE >> 10, "{share}");
            }
        }
    }

    /// With too small a budget the answer is the same or undecided, never another one.
    #[test]
    fn a_small_budget_never_changes_the_answer(tasks in small_tasks(), budget in 0_u64..40) {
        let demands: Vec<Demand> = tasks.iter().map(Task::demand).collect();
        let answer = decide(&demands, FREE, 0, budget);
        if answer != Answer::Undecided {
            prop_assert_eq!(answer, decide(&demands, FREE, 0, ENOUGH));
        }
    }
}

/// Half of the link is promised: kept without stops, refused with them, and broken by them.
#[test]
fn stops_that_are_not_counted_break_a_deadline() {
    let task = Task {
        piece: 2,
        pieces: 1,
        period: 4,
        deadline: 4,
    };
    let stops = Stops::new(Nanos(3), Nanos(10)).expect("stops");
    let (alone, counted) = ([task.demand()], [task.demand(), stops.demand(Scale::NANOS)]);
    assert_eq!(decide(&alone, FREE, 0, ENOUGH), Answer::Fits);
    assert!(matches!(
        decide(&counted, FREE, 0, ENOUGH),
        Answer::Late { due, .. } if due >= 5
    ));
    assert!(misses_with_stops(&[task], &[0], 100, |now| now % 10 < 3));
}
