//! The processor time that a driver's packet thread gets while a program has an exact reservation
//! ([`driver_reservation`]), and the least with which it does what it did ([`least_reservation`]).
//! The kernel prefers threads with such a reservation (SCHED_DEADLINE) to those of SCHED_FIFO, so
//! the packet thread needs one of its own. No call fails.

use netnice_core::contract::Slice;
use netnice_core::units::Nanos;

/// The reservation of a packet thread that has used so much of a processor lately, in parts of a
/// million, its waiting awake included: in each millisecond twice as much, at least 10 % and at
/// most 60 % of a processor. The second half is for what comes suddenly. (Twice the use without
/// waiting awake was too little: the kernel stopped the thread when packets were due.)
pub(crate) fn driver_reservation(used_ppm: u32) -> Slice {
    reservation(u64::from(used_ppm) * 2)
}

/// What such a packet thread needs at least: a quarter more than it has used, at least 10 % and at
/// most 60 % of a processor. For more than this no reservation in force ends.
pub(crate) fn least_reservation(used_ppm: u32) -> Slice {
    reservation(u64::from(used_ppm) * 5 / 4)
}

fn reservation(wanted_ppm: u64) -> Slice {
    let share = wanted_ppm.clamp(LEAST_PPM, u64::from(MOST_PPM));
    let budget = Nanos(PERIOD.0 * share / 1_000_000);
    Slice::new(budget, PERIOD, false).expect("the budget is between 0 and the period")
}

/// The period: a packet whose time has come waits no longer if the budget is used up.
const PERIOD: Nanos = Nanos::from_millis(1);
const LEAST_PPM: u64 = 100_000;
/// The largest share of a processor that is reserved for a packet thread, in parts of a million.
pub(super) const MOST_PPM: u32 = 600_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(used_ppm: u32) -> u64 {
        let slice = driver_reservation(used_ppm);
        assert_eq!((slice.period(), slice.extra()), (PERIOD, false));
        slice.slice().0
    }

    #[test]
    fn a_reservation_is_twice_the_use_within_its_bounds() {
        assert_eq!(budget(0), 100_000);
        assert_eq!(budget(50_000), 100_000);
        assert_eq!(budget(50_001), 100_002);
        assert_eq!(budget(123_456), 246_912);
        assert_eq!(budget(300_000), 600_000);
        assert_eq!(budget(300_001), 600_000);
        assert_eq!(budget(u32::MAX), 600_000);
    }

    #[test]
    fn the_least_is_a_quarter_more_than_the_use_within_the_same_bounds() {
        let budget = |used_ppm| least_reservation(used_ppm).slice().0;
        assert_eq!([0, 80_000].map(budget), [100_000, 100_000]);
        assert_eq!([200_000, 480_000].map(budget), [250_000, 600_000]);
        assert_eq!(budget(u32::MAX), 600_000);
    }
}
