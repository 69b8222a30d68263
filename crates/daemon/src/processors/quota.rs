//! The quota of a control group that keeps a reservation ([`quota`]). The kernel takes periods from
//! 1 ms to 1 s and budgets from 1 ms, so a shorter slice counts over several of its periods.

use netnice_core::contract::Slice;
use netnice_core::units::Nanos;

/// The budget and the period of a quota with the share of a slice.
///
/// # Errors
/// A reason if the share is so small that a quota of 1 ms in 1 s exceeds it.
pub(super) fn quota(slice: &Slice) -> Result<(Nanos, Nanos), String> {
    let (budget, period) = (slice.slice().0, slice.period().0);
    let times = LEAST.div_ceil(budget).max(LEAST.div_ceil(period));
    let (budget, period) = match period > LONGEST {
        // A shorter period with the same share is a stronger promise.
        true => (scale(budget, LONGEST, period), LONGEST),
        false => (budget * times, period * times),
    };
    match period > LONGEST || budget < LEAST {
        true => Err(format!(
            "cpu {}/{} is less than the kernel's smallest quota of a control group, 1 ms of each \
             second",
            slice.slice(),
            slice.period()
        )),
        false => Ok((Nanos(budget), Nanos(period))),
    }
}

/// The quota of what is left of a slice when threads have `divided` of it exactly: SCHED_DEADLINE
/// does not count in the group's quota. The kernel's smallest quota, 1 ms in 1 s, if less is left.
pub(super) fn quota_of_rest(slice: Slice, divided: Nanos) -> (Nanos, Nanos) {
    let rest = Nanos(slice.slice().0.saturating_sub(divided.0));
    let rest = Slice::new(rest, slice.period(), false).ok();
    let of_rest = rest.and_then(|rest| quota(&rest).ok());
    of_rest.unwrap_or((Nanos(LEAST), Nanos(LONGEST)))
}

fn scale(value: u64, to: u64, from: u64) -> u64 {
    (u128::from(value) * u128::from(to) / u128::from(from)) as u64
}

/// The quota of a group whose only thread has its reservation exactly, by SCHED_DEADLINE: it bounds
/// what the thread starts until the reservation is kept by the group.
pub(super) const LEAST_QUOTA: (Nanos, Nanos) = (Nanos(LEAST), Nanos(100_000_000));
/// The shortest period and the smallest budget, in ns.
const LEAST: u64 = 1_000_000;
/// The longest period, in ns.
const LONGEST: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(budget_us: u64, period_us: u64) -> Result<(u64, u64), String> {
        let (budget, period) = (Nanos::from_micros(budget_us), Nanos::from_micros(period_us));
        let slice = Slice::new(budget, period, false).expect("a slice");
        quota(&slice).map(|(budget, period)| (budget.0 / 1_000, period.0 / 1_000))
    }

    #[test]
    fn a_quota_has_the_share_of_the_slice_in_whole_periods() {
        assert_eq!(of(2_000, 10_000), Ok((2_000, 10_000)));
        assert_eq!(of(100, 1_000), Ok((1_000, 10_000)));
        assert_eq!(of(300, 500), Ok((1_200, 2_000)));
        assert_eq!(of(500_000, 5_000_000), Ok((100_000, 1_000_000)));
        assert_eq!(of(10, 10), Ok((1_000, 1_000)));
    }

    #[test]
    fn the_rest_of_a_divided_slice_has_at_least_the_smallest_quota() {
        let slice = Slice::new(Nanos::from_millis(6), Nanos::from_millis(10), false);
        let rest = |divided_us| {
            let divided = Nanos::from_micros(divided_us);
            let (budget, period) = quota_of_rest(slice.clone().expect("a slice"), divided);
            (budget.0 / 1_000, period.0 / 1_000)
        };
        assert_eq!(rest(5_000), (1_000, 10_000));
        assert_eq!(rest(5_900), (1_000, 100_000));
        for divided in [5_995, 6_000, 7_000] {
            assert_eq!(
                rest(divided),
                (1_000, 1_000_000),
                "{divided} us are divided"
            );
        }
    }

    #[test]
    fn a_share_below_the_smallest_quota_is_refused() {
        let refused = of(9, 10_000).expect_err("0.09 %");
        assert!(refused.contains("9us/10ms"), "{refused}");
        assert!(of(5_000, 10_000_000).is_err(), "0.05 %");
        assert_eq!(of(10, 10_000), Ok((1_000, 1_000_000)));
    }
}
