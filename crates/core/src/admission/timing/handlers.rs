//! Decides whether channel handlers that share a reservation of processor time finish in time, and
//! searches for the least reservation with which they do. [`Handlers::carries`] fails with
//! [`TimingFault`]. [`Handlers::admit`], [`Handlers::divide`] and [`Handlers::reserve`] fail with
//! [`TimingRefusal`].
//!
//! A program's handlers run on the processor time that the program has reserved: Q in every period
//! P. In each period the kernel switches to the program once, and the program loses the costs of a
//! switch (`switch` and `cache_miss` of [`Processor`]) from Q. With the rest, Q', the handlers have
//! a processor Q'/P as fast, with 2 (P - Q') more in the way (`supply`). That is a scaling of the
//! test for the whole processor: times stay, and costs are multiplied by P/Q'. So the times in a
//! [`TimingFault`] are those of the reservation: work counts with the time that the reservation
//! takes for it, and what is in the way includes 2 (P - Q').
//!
//! **Budgets that end late.** The kernel ends a budget up to [`Handlers::late_end`] later than it
//! should (at its next tick), and takes that time back from the budgets that follow. So the
//! handlers of other reservations may keep the processor for so much longer, which is in the way
//! once. The own handlers lose so much work if they use a budget up. They do not if what arrives in
//! a period takes at most the budget, no handler without a deadline uses the rest, and no message
//! is processed early.
//!
//! On several processors, the kernel's scheduler of deadlines gives every reservation its time by
//! the end of each period only while the reservations are not too many
//! ([`Processors::keeps_deadlines`](crate::admission::processors::Processors::keeps_deadlines)).
//! So reservations for handlers are offered by
//! [`Processors::longest_exact`](crate::admission::processors::Processors::longest_exact).
//!
//! [`Processor`]: super::Processor

use alloc::vec::Vec;

use super::cpu::{CpuResource, DividedDeadline, HandlerWork, Processor, Work};
use super::link::{Promise, Resolution, Transmitter};
use super::supply::Supply;
use super::{Alternative, TimingFault, TimingRefusal, least};
use crate::contract::Slice;
use crate::units::Nanos;

/// Handlers that one scheduler runs on a reservation of processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handlers {
    /// The costs of protocol processing.
    pub processor: Processor,
    /// Time resolution of the scheduler, which the test subtracts from deadlines.
    pub resolution: Resolution,
    /// How long before its logical arrival a message may be processed if no other work is waiting.
    pub horizon: Nanos,
    /// How much later than it should the kernel ends the budget of a reservation. It takes that
    /// time back from the budgets that follow.
    pub late_end: Nanos,
}

impl Handlers {
    /// The handlers of an exact scheduler, which processes no message early.
    pub fn new(processor: Processor) -> Handlers {
        Handlers {
            processor,
            resolution: Resolution::NONE,
            horizon: Nanos(0),
            late_end: Nanos(0),
        }
    }

    /// Periods that are worth trying for a reservation: from 200 µs to 1 s, each at most a quarter
    /// longer than the one before.
    pub fn periods() -> impl Iterator<Item = Nanos> {
        let next = |us: &u64| Some(us + us / 4).filter(|us| *us <= 1_000_000);
        core::iter::successors(Some(200), next).map(Nanos::from_micros)
    }

    /// Decides whether all this work is done in time on a reservation, for all legal traffic.
    ///
    /// # Errors
    /// [`TimingFault`] if not: the inequality that fails, that the set was not decided, or that the
    /// reservation is not longer than the switch to it.
    pub fn carries(&self, reservation: &Slice, work: &[Work]) -> Result<(), TimingFault> {
        self.resource(reservation)?.carries(work)
    }

    /// Decides whether one more promise can be made beside the ones that are held, on this
    /// reservation.
    ///
    /// # Errors
    /// [`TimingRefusal`] contains the fault, and an alternative if there is one.
    pub fn admit(
        &self,
        reservation: &Slice,
        held: &[Work],
        requested: &Work,
    ) -> Result<(), TimingRefusal> {
        let resource = self.resource(reservation).map_err(without_alternative)?;
        resource.admit(held, requested)
    }

    /// As [`Handlers::carries`], on a whole processor that does nothing else.
    ///
    /// # Errors
    /// As [`Handlers::carries`].
    pub fn carries_on_whole(&self, work: &[Work]) -> Result<(), TimingFault> {
        self.whole().carries(work)
    }

    /// As [`Handlers::admit`], on a whole processor that does nothing else.
    ///
    /// # Errors
    /// As [`Handlers::admit`].
    pub fn admit_on_whole(&self, held: &[Work], requested: &Work) -> Result<(), TimingRefusal> {
        self.whole().admit(held, requested)
    }

    /// As [`Processor::divide`], on this reservation. [`HandlerWork::channel`] is the channel as
    /// the link has it: the whole deadline, and Mmax with the headers of all packets.
    ///
    /// # Errors
    /// As [`Processor::divide`].
    pub fn divide(
        &self,
        reservation: &Slice,
        held: &[Work],
        link: &Transmitter,
        sent: &[Promise],
        handler: &HandlerWork,
    ) -> Result<DividedDeadline, TimingRefusal> {
        let resource = self.resource(reservation).map_err(without_alternative)?;
        let work = Work::Handler(*handler);
        resource.divide(held, link, sent, (&work, &handler.channel))
    }

    /// The reservation of the least share on which all this work is done in time, in whole
    /// microseconds. `offers` are the longest reservations that can be had, one for each period to
    /// try; each result is no longer than the offer of its period. Of equal shares the one with the
    /// longest period is chosen, because the kernel switches least often. `None` if no offer
    /// carries the work, or if that was not decided in bounded time. If the work needs nearly the
    /// whole time of a reservation, the result can be slightly above the least one, because each
    /// try of the search is bounded. There are at most 20 tries for each offer.
    pub fn least_reservation(&self, work: &[Work], offers: &[Slice]) -> Option<Slice> {
        let of_offer = |offer: &Slice| {
            let range = Slice::LEAST_CPU.0 / MICROSECOND..=offer.slice().0 / MICROSECOND;
            let time = least(range, |us| {
                let reservation = with_time(offer, us);
                let resource = reservation.and_then(|slice| self.resource(&slice).ok());
                resource.is_some_and(|resource| resource.carries_at_once(work.iter()))
            });
            time.and_then(|us| with_time(offer, us))
        };
        let longest_period = |slice: &Slice| core::cmp::Reverse(slice.period());
        offers.iter().filter_map(of_offer).min_by(|a, b| {
            let (ours, theirs) = (share(a, b), share(b, a));
            ours.cmp(&theirs)
                .then_with(|| longest_period(a).cmp(&longest_period(b)))
        })
    }

    /// The least reservation that keeps one more promise beside the ones that are held, as
    /// [`Handlers::least_reservation`].
    ///
    /// # Errors
    /// [`TimingRefusal`] if no offer carries them. The alternative is the best over all offers: the
    /// shortest deadline, else the highest rate of messages, or the longest slice. Asked for at
    /// once with the same offers, it is granted. The fault is that of the offer with the
    /// alternative; without an alternative it is that of the offer with the largest share.
    pub fn reserve(
        &self,
        held: &[Work],
        requested: &Work,
        offers: &[Slice],
    ) -> Result<Slice, TimingRefusal> {
        let all: Vec<Work> = held.iter().chain([requested]).copied().collect();
        if let Some(least) = self.least_reservation(&all, offers) {
            return Ok(least);
        }
        let whole_microseconds = |offer: &Slice| with_time(offer, offer.slice().0 / MICROSECOND);
        let mut offers: Vec<Slice> = offers.iter().filter_map(whole_microseconds).collect();
        offers.sort_by(|a, b| share(b, a).cmp(&share(a, b)));
        let mut refusals = offers.iter().map(|offer| {
            let admitted = self.admit(offer, held, requested);
            // A search may find too little in its amount of work where a single test does not.
            admitted
                .err()
                .unwrap_or(without_alternative(TimingFault::Undecided))
        });
        let first = refusals.next().unwrap_or(without_alternative(
            self.nothing_reserved(Nanos(0), Nanos(0)),
        ));
        Err(refusals.fold(first, better))
    }

    fn resource(&self, reservation: &Slice) -> Result<CpuResource, TimingFault> {
        let supply = Supply::of(reservation, self.lost().0);
        let (slice, period) = (reservation.slice(), reservation.period());
        Ok(CpuResource {
            processor: self.processor,
            supply: supply.ok_or_else(|| self.nothing_reserved(slice, period))?,
            period,
            late_end: self.late_end,
            resolution: self.resolution,
            horizon: self.horizon,
        })
    }

    fn whole(&self) -> CpuResource {
        CpuResource {
            processor: self.processor,
            supply: Supply::WHOLE,
            period: Nanos(0),
            late_end: Nanos(0),
            resolution: self.resolution,
            horizon: self.horizon,
        }
    }

    /// What the program loses of its time in every period.
    fn lost(&self) -> Nanos {
        Nanos(u64::try_from(self.processor.switching(1)).unwrap_or(u64::MAX))
    }

    fn nothing_reserved(&self, slice: Nanos, period: Nanos) -> TimingFault {
        TimingFault::NothingReserved {
            slice,
            period,
            lost: self.lost(),
        }
    }
}

/// The refusal with the better alternative; the first one if none is better.
fn better(first: TimingRefusal, second: TimingRefusal) -> TimingRefusal {
    let is_better = match (first.alternative, second.alternative) {
        (Some(Alternative::Deadline(a)), Some(Alternative::Deadline(b))) => b < a,
        (Some(Alternative::Deadline(_)), _) => false,
        (_, Some(Alternative::Deadline(_))) => true,
        (Some(Alternative::Messages(a)), Some(Alternative::Messages(b))) => b > a,
        (Some(Alternative::Slice(a)), Some(Alternative::Slice(b))) => b > a,
        (None, Some(_)) => true,
        _ => false,
    };
    match is_better {
        true => second,
        false => first,
    }
}

fn without_alternative(fault: TimingFault) -> TimingRefusal {
    TimingRefusal {
        fault,
        alternative: None,
    }
}

/// A number that orders `a` and `b` by their shares: `share(a, b) < share(b, a)` if the share of
/// `a` is the smaller one.
fn share(a: &Slice, b: &Slice) -> u128 {
    u128::from(a.slice().0) * u128::from(b.period().0)
}

/// A reservation of so many microseconds in the period of `offer`; `None` for 0 or more than the
/// period.
fn with_time(offer: &Slice, us: u64) -> Option<Slice> {
    Slice::new(Nanos(us * MICROSECOND), offer.period(), offer.extra()).ok()
}

const MICROSECOND: u64 = 1_000;
