//! The time that a sender and a processor have: [`Standstills`] of a sender, and a
//! [`ProcessorTime`], which may be a reservation that gives its time as late as it may.
//! [`Standstills::new`] fails with [`ChainError`].

use netnice_core::admission::timing::Stops;
use netnice_core::contract::Slice;
use netnice_core::units::Nanos;

use super::error::ChainError;

/// The times for which the machine stops the sender of a link, inside an allowance. While the
/// sender stands still, it reads no queue and hands no packet to the device. What the device has
/// already been given is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standstills {
    allowance: Stops,
    /// Begin and end, in ns; ascending, with time between them.
    times: Vec<(u64, u64)>,
}

impl Standstills {
    /// Standstills from begin to end, in ascending order. Admission counts with the allowance.
    ///
    /// # Errors
    /// [`ChainError::Standstill`] if one is empty or begins before the end of the one before;
    /// [`ChainError::Allowance`] if they are longer than the allowance in an interval of its
    /// period.
    pub fn new(allowance: Stops, times: &[(Nanos, Nanos)]) -> Result<Standstills, ChainError> {
        let mut last = None;
        for (begin, end) in times {
            if begin >= end || last.is_some_and(|last| last >= *begin) {
                let (begin, end) = (*begin, *end);
                return Err(ChainError::Standstill { begin, end });
            }
            last = Some(*end);
        }
        let standstills = Standstills {
            allowance,
            times: times.iter().map(|(begin, end)| (begin.0, end.0)).collect(),
        };
        standstills.within_allowance()?;
        Ok(standstills)
    }

    /// The allowance.
    pub fn allowance(&self) -> Stops {
        self.allowance
    }

    /// Begin and end of each standstill, in ns.
    pub(super) fn times(&self) -> &[(u64, u64)] {
        &self.times
    }

    /// The interval with the longest sum begins with a standstill, or ends with one.
    fn within_allowance(&self) -> Result<(), ChainError> {
        let (period, most) = (self.allowance.period().0, self.allowance.time().0);
        let from_begins = self.times.iter().map(|(begin, _)| *begin);
        let to_ends = self.times.iter().map(|(_, end)| end.saturating_sub(period));
        for begin in from_begins.chain(to_ends) {
            let until = begin.saturating_add(period);
            let first = self.times.partition_point(|(_, end)| *end <= begin);
            let inside = self.times[first..].iter().take_while(|(at, _)| *at < until);
            let sum: u64 = inside
                .map(|(at, end)| until.min(*end) - begin.max(*at))
                .sum();
            if sum > most {
                let (begin, period) = (Nanos(begin), Nanos(period));
                let (sum, most) = (Nanos(sum), Nanos(most));
                return Err(ChainError::Allowance {
                    begin,
                    period,
                    sum,
                    most,
                });
            }
        }
        Ok(())
    }
}

/// When a processor works: always, or in a reservation. The reservation gives its time at the end
/// of each period, but at the begin of every [`EARLY`]th one. So in the period behind that one the
/// time comes as late as any reservation may give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessorTime {
    /// The reserved time and its period; `None` for the whole processor.
    pub reservation: Option<Slice>,
    /// What is lost of the reserved time in each period, at its begin, in ns.
    pub lost: u64,
    /// The time in the first period at which the simulation begins, in ns.
    pub phase: u64,
}

impl ProcessorTime {
    /// The time after which the places of a reservation repeat, in ns.
    pub(super) fn cycle(reservation: &Slice) -> u64 {
        EARLY * reservation.period().0
    }

    /// The earliest time from `now` on at which the processor can begin work, in ns.
    pub(super) fn next(&self, now: u64) -> u64 {
        let Some(slice) = &self.reservation else {
            return now;
        };
        let at = now.saturating_add(self.phase);
        let number = at / slice.period().0;
        let (begin, end) = self.given(slice, number);
        let next = match at {
            _ if at < begin => begin,
            _ if at < end => at,
            _ => self.given(slice, number + 1).0,
        };
        next - self.phase
    }

    /// The time at which work of `takes` ends that begins at `now`, or as soon as the processor can
    /// begin it, in ns.
    pub(super) fn end_of(&self, now: u64, takes: u64) -> u64 {
        let Some(slice) = &self.reservation else {
            return now.saturating_add(takes);
        };
        let (mut at, mut rest) = (self.next(now) + self.phase, takes);
        loop {
            let number = at / slice.period().0;
            let (begin, end) = self.given(slice, number);
            let from = at.max(begin);
            if rest <= end.saturating_sub(from) {
                return from + rest - self.phase;
            }
            rest -= end.saturating_sub(from);
            at = (number + 1) * slice.period().0;
        }
    }

    /// Begin and end of the useful time in a period.
    fn given(&self, slice: &Slice, number: u64) -> (u64, u64) {
        let (time, period) = (slice.slice().0, slice.period().0);
        let place = match number.is_multiple_of(EARLY) {
            true => 0,
            false => period - time,
        };
        let begin = number * period + place;
        (begin + self.lost, begin + time)
    }
}

/// A reservation gives its time early in one of so many periods.
const EARLY: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: u64) -> Nanos {
        Nanos::from_millis(time)
    }

    fn standstills(times: &[(u64, u64)]) -> Result<Standstills, ChainError> {
        let allowance = Stops::new(ms(2), ms(10)).expect("an allowance");
        let times: Vec<(Nanos, Nanos)> = times.iter().map(|(b, e)| (ms(*b), ms(*e))).collect();
        Standstills::new(allowance, &times)
    }

    #[test]
    fn standstills_stay_inside_their_allowance() {
        assert!(standstills(&[(5, 7), (15, 17), (40, 41), (42, 43), (50, 51)]).is_ok());
        let above = |begin, sum| {
            Err(ChainError::Allowance {
                begin: ms(begin),
                period: ms(10),
                sum: ms(sum),
                most: ms(2),
            })
        };
        assert_eq!(standstills(&[(5, 8)]), above(5, 3));
        // An interval that ends with a standstill holds most.
        assert_eq!(standstills(&[(0, 2), (9, 11)]), above(0, 3));
        assert_eq!(standstills(&[(0, 1), (1, 2)]).map(|_| ()), {
            let (begin, end) = (ms(1), ms(2));
            Err(ChainError::Standstill { begin, end })
        });
    }

    #[test]
    fn a_reservation_gives_its_time_as_late_as_it_may_behind_an_early_one() {
        let slice = Slice::new(ms(3), ms(10), false).expect("a slice");
        let time = ProcessorTime {
            reservation: Some(slice),
            lost: 1_000_000,
            phase: ms(3).0,
        };
        // The early time of the first period has just ended: the next one begins 2 (P - Q) later,
        // and the first millisecond of it is lost.
        assert_eq!(time.next(0), ms(15).0);
        assert_eq!(time.end_of(0, ms(2).0), ms(17).0);
        assert_eq!(time.end_of(0, ms(3).0), ms(26).0);
        assert_eq!(time.next(ms(17).0), ms(25).0);
        assert_eq!(time.end_of(ms(16).0, ms(1).0), ms(17).0);
        // The eighth period is an early one, right behind a late one.
        assert_eq!(time.next(ms(77).0), ms(78).0);
        let whole = ProcessorTime {
            reservation: None,
            ..time
        };
        assert_eq!((whole.next(5), whole.end_of(5, 7)), (5, 12));
    }
}
