//! A promise with a longer deadline takes nothing from the others (theorem 5 of
//! docs/reference/contracts.md): without a horizon, a granted set stays granted.

use super::*;
use crate::admission::timing::demand::Scale;
use crate::admission::timing::link::at_deadline;
use crate::admission::timing::{Handlers, Stops};
use crate::contract::{Channel, Slice};

/// A set on a link and on a processor, and what happens to one channel of it.
#[derive(Clone, Debug)]
struct Relaxation {
    link: Transmitter,
    handlers: Handlers,
    reservation: Slice,
    requested: Vec<Channel>,
    /// Promises of other kinds.
    others: Vec<Promise>,
    /// Which channel, and how much longer its deadline becomes, in ns.
    relaxed: (usize, u64),
    /// Whether each requested channel gets the least deadline that fits.
    tight: bool,
}

/// Channels of long messages, or few channels of single packets, whose deadlines are a few packets
/// long.
fn channels(are_long: bool) -> impl Strategy<Value = Vec<Channel>> {
    let (mmax, rmax, us, count) = match are_long {
        true => (64_u64..20_000, 1_u32..500, 100_u64..40_000, 2..9),
        false => (64_u64..1_500, 1_u32..50, 20_u64..600, 2..5),
    };
    let one = (mmax, rmax, us).prop_map(|(mmax, rmax, us)| {
        let text = format!("channel mmax={mmax}B,rmax={rmax}/s,bmax=2,deadline={us}us");
        let contract: Contract = text.parse().expect("a contract");
        contract.channel().expect("a channel")
    });
    prop::collection::vec(one, count)
}

fn relaxations(horizons: core::ops::Range<u64>) -> impl Strategy<Value = Relaxation> {
    let resolution = prop_oneof![Just(Resolution::NONE), Just(Resolution::SCHEDULER)];
    let leftover = prop_oneof![Just(0_u64), 64_u64..1500];
    let stops = prop::option::of((1_u64..400, 2_000_u64..20_000));
    let machine = (resolution, leftover, 0_u64..50, horizons, stops);
    let processor = (1_u32..6, 30_u64..96, 500_u64..5_000);
    let others = prop::sample::subsequence(
        vec![
            promise("slice 1ms/20ms", 64, 1500),
            promise("cell pcr=5mbit,cdvt=5ms", 1000, 1000),
            promise("min 3mbit", 64, 1500),
        ],
        0..=3,
    );
    let longer = prop_oneof![2_u64..10, 10_u64..300_000, 100_000_u64..50_000_000];
    let channels = prop_oneof![channels(true), channels(false), channels(false)];
    (
        machine,
        processor,
        channels,
        others,
        (any::<usize>(), longer),
        any::<bool>(),
    )
        .prop_map(
            |(machine, (block, part, period), requested, others, relaxed, tight)| {
                let (resolution, leftover, ahead, horizon, stops) = machine;
                let us = Nanos::from_micros;
                let stops =
                    stops.map(|(time, period)| Stops::new(us(time), us(period)).expect("stops"));
                let processor = Processor {
                    switch: us(2),
                    cache_miss: us(3),
                    first: us(20),
                    later: us(10),
                    link_scheduling: us(2),
                    block: NonZeroU32::new(block).expect("above zero"),
                    largest: Bytes(1500),
                    leftover: us(if leftover > 0 { 60 } else { 0 }),
                };
                let time = Nanos(us(period).0 * part / 100);
                Relaxation {
                    link: Transmitter {
                        leftover: Bytes(leftover),
                        ahead: us(ahead),
                        horizon: us(horizon),
                        resolution,
                        stops,
                        ..Transmitter {
                            rate: Rate::new(100_000_000).expect("a rate"),
                            ..gigabit()
                        }
                    },
                    handlers: Handlers {
                        resolution,
                        horizon: us(horizon),
                        ..Handlers::new(processor)
                    },
                    reservation: Slice::new(time, us(period), false).expect("a reservation"),
                    requested,
                    others,
                    relaxed,
                    tight,
                }
            },
        )
}

impl Relaxation {
    /// Grants what fits, with `admit` and `deadline` of a resource. Then the deadline of one
    /// channel becomes longer. Returns the answer of `carries`; `Ok` if no channel was granted.
    fn after<P: Copy>(
        &self,
        mut held: Vec<P>,
        of: impl Fn(Channel) -> P,
        admit: impl Fn(&[P], &P) -> Result<(), super::super::TimingRefusal>,
        carries: impl Fn(&[P]) -> Result<(), TimingFault>,
    ) -> Result<(), TimingFault> {
        let others = held.len();
        let mut granted = Vec::new();
        for requested in &self.requested {
            let least = at_deadline(requested, 1).and_then(|tightest| {
                match admit(&held, &of(tightest)).err()?.alternative {
                    Some(Alternative::Deadline(least)) => at_deadline(requested, least.0),
                    _ => None,
                }
            });
            let channel = least.filter(|_| self.tight).unwrap_or(*requested);
            if admit(&held, &of(channel)).is_ok() {
                held.push(of(channel));
                granted.push(channel);
            }
        }
        let (which, longer) = self.relaxed;
        let Some(which) = which.checked_rem(granted.len()) else {
            return Ok(());
        };
        let deadline = granted[which].deadline().0 + longer;
        held[others + which] = of(at_deadline(&granted[which], deadline).expect("a deadline"));
        carries(&held)
    }

    fn on_link(&self) -> Result<(), TimingFault> {
        let mut others: Vec<Promise> = Vec::new();
        for other in &self.others {
            if self.link.admit(&others, other).is_ok() {
                others.push(*other);
            }
        }
        let admit = |held: &[Promise], one: &Promise| self.link.admit(held, one);
        self.after(others, Promise::Channel, admit, |held| {
            self.link.carries(held)
        })
    }

    fn on_processor(&self) -> Result<(), TimingFault> {
        let admit = |held: &[Work], one: &Work| self.handlers.admit(&self.reservation, held, one);
        let carries = |held: &[Work]| self.handlers.carries(&self.reservation, held);
        self.after(Vec::new(), Work::Channel, admit, carries)
    }

    fn on_whole_processor(&self) -> Result<(), TimingFault> {
        let admit = |held: &[Work], one: &Work| self.handlers.admit_on_whole(held, one);
        let carries = |held: &[Work]| self.handlers.carries_on_whole(held);
        self.after(Vec::new(), Work::Channel, admit, carries)
    }
}

proptest! {
    #![proptest_config(cases(96))]

    /// Theorem 5, beside promises of all kinds, best effort, work-ahead and stops.
    #[test]
    fn a_longer_deadline_is_never_refused_without_a_horizon(set in relaxations(0..1)) {
        prop_assert_eq!(set.on_link(), Ok(()));
        prop_assert_eq!(set.on_processor(), Ok(()));
        prop_assert_eq!(set.on_whole_processor(), Ok(()));
    }

    /// What the theorem needs of the scheduler's resolution: the time that is left of a deadline
    /// does not fall when the deadline grows by two ticks or more.
    #[test]
    fn what_the_resolution_leaves_of_a_deadline_grows_with_it(
        deadline in 0_u64..1 << 40,
        wait in 0_u64..1 << 30,
        longer in 2_u64..1 << 20,
        ticks in prop_oneof![1_u64..4, 1_000_u64..1 << 30],
    ) {
        let scale = Scale::per_nano(ticks);
        let left = |deadline: u64| {
            let (deadline, wait) = (scale.ticks(Nanos(deadline)), scale.ticks(Nanos(wait)));
            deadline.saturating_sub(Resolution::SCHEDULER.of(deadline, wait, scale))
        };
        prop_assert!(left(deadline) <= left(deadline + longer));
    }
}

/// The same sets with horizons: some of them are refused. So the property above can fail.
#[test]
fn with_horizons_some_of_the_same_sets_are_refused() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = relaxations(0..300);
    let refused = (0..400).filter(|_| {
        let set = strategy.new_tree(&mut runner).expect("a set").current();
        set.on_link().is_err() || set.on_processor().is_err() || set.on_whole_processor().is_err()
    });
    let refused = refused.count();
    assert!(refused > 0, "no set is refused");
}

/// Where a nanosecond is one tick, one nanosecond more can leave one less: both parts of the
/// resolution become longer at the same place. So the theorem demands two.
#[test]
fn a_single_tick_more_can_leave_less() {
    let scale = Scale::NANOS;
    let wait = scale.ticks(Nanos::from_millis(1_000));
    let left = |ns: u64| u128::from(ns) - Resolution::SCHEDULER.of(ns.into(), wait, scale);
    let at = 6 * 32 * 113;
    assert_eq!((left(at - 1), left(at)), (left(at) + 1, left(at)));
    assert!(left(at + 1) >= left(at - 1));
}

/// With a horizon a channel can be in the way of work that is due later than its own. A message of
/// 12 us is in the way of one of 10 us that is due within 32 us if it is due in more than 27 us.
/// Up to 32 us it has to be sent within the same 32 us, too.
#[test]
fn with_a_horizon_a_longer_deadline_can_be_refused() {
    let link = Transmitter {
        horizon: Nanos::from_micros(5),
        ..gigabit()
    };
    let short = channel("channel mmax=1250B,rmax=10/s,bmax=1,deadline=32us");
    let is_refused = |link: &Transmitter, us: u64| {
        let text = format!("channel mmax=1500B,rmax=10/s,bmax=1,deadline={us}us");
        link.carries(&[short, channel(&text)]).is_err()
    };
    let refused: Vec<u64> = (24..60).filter(|us| is_refused(&link, *us)).collect();
    assert_eq!(refused, (28..34).collect::<Vec<u64>>());
    let without = Transmitter {
        horizon: Nanos(0),
        ..link
    };
    let refused: Vec<u64> = (24..60).filter(|us| is_refused(&without, *us)).collect();
    assert_eq!(refused, Vec::<u64>::new());
}
