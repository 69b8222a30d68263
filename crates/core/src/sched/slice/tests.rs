//! Compares the slice shaper with a model of Atropos (VERT, NTCP) that counts period by period,
//! with the waking rule of the constant-bandwidth server.

use alloc::vec::Vec;

use netnice_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::units::Nanos;

/// A naive model: it goes through every period.
struct Naive {
    slice: i64,
    period: u64,
    ends: u64,
    left: i64,
}

impl Naive {
    fn begin(&mut self, at: u64) {
        self.left = self.left.min(0) + self.slice;
        self.ends = at + self.period;
    }

    fn to(&mut self, now: u64) {
        while now >= self.ends {
            self.begin(self.ends);
        }
    }

    fn wake(&mut self, now: u64) {
        if now >= self.ends {
            // Each whole period slept repays a slice of debt. The new period begins now.
            while now >= self.ends + self.period {
                self.left = (self.left + self.slice).min(0);
                self.ends += self.period;
            }
            return self.begin(now);
        }
        // left / (ends - now) > slice / period.
        let until = i128::from(self.ends - now);
        let (left, slice) = (i128::from(self.left), i128::from(self.slice));
        if left > 0 && left * i128::from(self.period) > slice * until {
            self.left = 0;
            self.begin(now);
        }
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn the_shaper_follows_atropos(
        part in 1_u64..100,
        period in 100_u64..100_000,
        steps in prop::collection::vec((0_u8..3, 1_u64..300_000), 1..100),
    ) {
        let slice = (period * part / 100).max(1);
        let contract = contract::Slice::new(Nanos(slice), Nanos(period), false).unwrap();
        let mut ours = SliceState::new(&contract);
        let mut naive = Naive { slice: slice as i64, period, ends: 0, left: 0 };
        let mut now = 0;
        for (verb, amount) in steps {
            match verb {
                0 => now += amount,
                1 => {
                    ours.wake(now);
                    naive.wake(now);
                }
                _ => {
                    let (eligible, deadline) = ours.plan(now);
                    naive.to(now);
                    // The naive model waits period by period until the slice has a rest.
                    let mut later = Naive { ..naive };
                    let mut expected = now;
                    while later.left <= 0 {
                        expected = later.ends;
                        later.to(expected);
                    }
                    prop_assert_eq!((eligible, deadline), (expected, later.ends));
                    now = eligible;
                    naive.to(now);
                    ours.sent(now, amount / 3);
                    naive.left -= (amount / 3) as i64;
                }
            }
        }
    }
}

#[test]
fn extreme_values_have_defined_results() {
    let contract = contract::Slice::new(Nanos(1), Nanos(10_000_000_000), true).unwrap();
    let mut slice = SliceState::new(&contract);
    slice.wake(u64::MAX - 5);
    assert_eq!(slice.plan(u64::MAX - 5), (u64::MAX - 5, u64::MAX));
    for _ in 0..3 {
        slice.sent(u64::MAX, u64::MAX);
    }
    let plans: Vec<_> = (0..3).map(|_| slice.plan(u64::MAX)).collect();
    assert!(plans.iter().all(|plan| *plan == plans[0]));
}
