//! Decides whether a processor finishes the protocol processing of channels in time.
//! [`Processor::carries`] decides on a set of [`Work`] and fails with [`TimingFault`].
//! [`Processor::admit`] decides on one more piece of work, and [`Processor::divide`] divides a
//! deadline between the processor and a link; both fail with [`TimingRefusal`].
//!
//! The model is that of the paper RTC, sections 3.1 and 3.2. Each channel has a handler, which
//! turns a message into packets. A handler yields to handlers with earlier deadlines at preemption
//! points only, which lie P packets apart (a *block*). Yielding costs a context switch, and a cold
//! cache for the next handler.
//!
//! A job, the processing of one message of N packets, counts as
//!
//! ```text
//! 2 (switch + cache_miss) + first + (N - 1) later + N link_scheduling
//! ```
//!
//! The words are fields of [`Processor`]. The switch counts twice: the processor switches to the
//! job once, and the job may displace another handler once, to which the processor must switch
//! back. A job begins once, so it displaces once, and the cost is not counted for the displaced
//! handler again. The longest piece without interruption is the job's first block.
//!
//! [`super::Handlers`] uses the same test for a reserved part of a processor.
//!
//! # Use
//! Library users, `netnice-sim` (scenarios with a `[processor]`) and the RTC experiment of
//! `netnice-lab` use this module. The daemon does not: of links it admits promises of transmission
//! only ([`Transmitter`]), and the clause `cpu` by [`crate::admission::processors`].

use alloc::vec::Vec;
use core::num::NonZeroU32;

use super::demand::{Demand, Fluid, Growth, LONGEST, Steps};
use super::edf::Blocking;
use super::link::{NANOS_PER_SECOND, Promise, Resolution, Transmitter, at_deadline, at_rate};
use super::supply::Supply;
use super::{
    Alternative, BUDGET, BUDGET_PER_TRY, TimingFault, TimingRefusal, channel_alternative, decide,
    least, slice_alternative,
};
use crate::contract::{Channel, Slice};
use crate::units::{Bytes, Nanos};

/// A processor and its costs of protocol processing (paper RTC, table 1). Each `Nanos` is a
/// processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// C_sw: switching from one handler to another.
    pub switch: Nanos,
    /// C_cm: the cache misses after a switch.
    pub cache_miss: Nanos,
    /// C_1st: processing the first packet of a message.
    pub first: Nanos,
    /// C_p: processing each later packet.
    pub later: Nanos,
    /// C_l: scheduling each packet on the link, which is part of the handler.
    pub link_scheduling: Nanos,
    /// P: packets between two preemption points.
    pub block: NonZeroU32,
    /// The largest packet. A handler cuts a longer message into several packets.
    pub largest: Bytes,
    /// The longest uninterrupted piece of handlers without a deadline; zero if there are none.
    pub leftover: Nanos,
}

/// Work that a processor promises to do in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Each message of a channel is processed by its logical arrival plus the channel's deadline.
    Channel(Channel),
    /// As [`Work::Channel`], by a handler that has costs of its own.
    Handler(HandlerWork),
    /// A slice of every period, for work that can be interrupted at any point.
    Slice(Slice),
}

/// The work of a channel's handler that has costs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandlerWork {
    /// The channel, with the handler's part of its deadline. Its Mmax has no effect on the
    /// processor.
    pub channel: Channel,
    /// Packets of a message of Mmax; at least 1.
    pub packets: u64,
    /// Processor time of each packet besides the costs of [`Processor`].
    pub each: Nanos,
}

impl Work {
    /// The same work for another channel.
    fn of_channel(&self, channel: Channel) -> Work {
        match self {
            Work::Handler(handler) => Work::Handler(HandlerWork {
                channel,
                ..*handler
            }),
            Work::Channel(_) | Work::Slice(_) => Work::Channel(channel),
        }
    }
}

impl Processor {
    /// Decides whether all this work is done in time, for all legal traffic, by a scheduler that
    /// rounds no times. [`Handlers::carries_on_whole`](super::Handlers::carries_on_whole) counts
    /// with the rounding of a scheduler.
    ///
    /// # Errors
    /// [`TimingFault`] if not: the inequality that fails, or that the set was not decided.
    pub fn carries(&self, work: &[Work]) -> Result<(), TimingFault> {
        self.whole().carries(work)
    }

    /// Decides whether one more promise can be made beside the ones that are held.
    ///
    /// # Errors
    /// [`TimingRefusal`] contains the fault, and an alternative if there is one.
    pub fn admit(&self, held: &[Work], requested: &Work) -> Result<(), TimingRefusal> {
        self.whole().admit(held, requested)
    }

    /// Divides a channel's deadline between this processor and the link behind it. The processor
    /// gets the shortest deadline that it can keep, and the link gets the rest. `held` are the
    /// promises of the processor, and `sent` those of the link.
    ///
    /// # Errors
    /// [`TimingRefusal`] of the resource that cannot keep its part. With an alternative in it the
    /// deadline can be divided.
    pub fn divide(
        &self,
        held: &[Work],
        link: &Transmitter,
        sent: &[Promise],
        channel: &Channel,
    ) -> Result<DividedDeadline, TimingRefusal> {
        let work = Work::Channel(*channel);
        self.whole().divide(held, link, sent, (&work, channel))
    }

    /// Number of packets of a message of `length`; at least 1.
    pub fn packets(&self, length: Bytes) -> u64 {
        length.0.div_ceil(self.largest.0.max(1)).max(1)
    }

    /// The time that `packets` packets of one message count as. `begins`: the first packet of the
    /// message is among them, and with it the cost of switching to the handler and back. Saturates.
    pub fn processing(&self, packets: u64, begins: bool) -> Nanos {
        let time = match begins {
            true => self
                .switching(2)
                .saturating_add(self.first_packets(packets)),
            false => u128::from(packets).saturating_mul(self.each()),
        };
        Nanos(u64::try_from(time).unwrap_or(u64::MAX))
    }

    fn whole(&self) -> CpuResource {
        CpuResource {
            processor: *self,
            supply: Supply::WHOLE,
            period: Nanos(0),
            late_end: Nanos(0),
            resolution: Resolution::NONE,
            horizon: Nanos(0),
        }
    }

    pub(super) fn switching(&self, times: u128) -> u128 {
        times * (u128::from(self.switch.0) + u128::from(self.cache_miss.0))
    }

    /// A later packet, with its scheduling on the link.
    fn each(&self) -> u128 {
        u128::from(self.later.0) + u128::from(self.link_scheduling.0)
    }

    /// The duration of the first `count` packets of a message.
    fn first_packets(&self, count: u64) -> u128 {
        let later = u128::from(count.saturating_sub(1)) * u128::from(self.later.0);
        let sent = u128::from(count) * u128::from(self.link_scheduling.0);
        u128::from(self.first.0)
            .saturating_add(later)
            .saturating_add(sent)
    }
}

/// A processor or a part of it, with the properties of the scheduler that runs handlers on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuResource {
    pub processor: Processor,
    pub supply: Supply,
    /// The period of the reservation.
    pub period: Nanos,
    /// How much later than it should the kernel ends a budget ([`Handlers::late_end`]).
    ///
    /// [`Handlers::late_end`]: super::Handlers::late_end
    pub late_end: Nanos,
    /// The scheduler's resolution of time, which the test subtracts from deadlines.
    pub resolution: Resolution,
    /// How long before its logical arrival a message may be processed if no other work is waiting.
    pub horizon: Nanos,
}

impl CpuResource {
    /// As [`Processor::carries`].
    pub(super) fn carries(&self, work: &[Work]) -> Result<(), TimingFault> {
        self.check(work.iter(), BUDGET)
    }

    /// As [`Processor::admit`].
    pub(super) fn admit(&self, held: &[Work], requested: &Work) -> Result<(), TimingRefusal> {
        let Err(fault) = self.check(held.iter().chain([requested]), BUDGET) else {
            return Ok(());
        };
        let fits = |work: Work| self.fits(held, &work);
        let alternative = match requested {
            Work::Channel(channel) | Work::Handler(HandlerWork { channel, .. }) => {
                channel_alternative(channel, |channel| fits(requested.of_channel(channel)))
            }
            Work::Slice(slice) => slice_alternative(slice, |slice| fits(Work::Slice(slice))),
        };
        Err(TimingRefusal { fault, alternative })
    }

    /// As [`Processor::divide`], for the work of this channel's handler.
    pub(super) fn divide(
        &self,
        held: &[Work],
        link: &Transmitter,
        sent: &[Promise],
        (work, channel): (&Work, &Channel),
    ) -> Result<DividedDeadline, TimingRefusal> {
        let refusal = match self.try_divide(held, link, sent, (work, channel)) {
            Ok(divided) => return Ok(divided),
            Err(refusal) => refusal,
        };
        // The alternative in `refusal` suits one resource and may not suit the other one.
        let alternative = match refusal.alternative {
            Some(Alternative::Messages(rate)) => Some((
                Alternative::Messages(rate),
                at_rate(channel, rate.get().into()),
            )),
            _ => {
                let here = least(1..=LONGEST.0, |d| self.fits_at(held, (work, channel), d));
                let there = link.least_deadline(sent, channel);
                here.zip(there).map(|(here, there)| {
                    let both = here.saturating_add(there.0);
                    let alternative = Alternative::Deadline(Nanos(both));
                    (alternative, at_deadline(channel, both))
                })
            }
        };
        let can_divide = |with: &Channel| self.try_divide(held, link, sent, (work, with)).is_ok();
        let alternative = alternative.filter(|(_, with)| with.as_ref().is_some_and(can_divide));
        Err(TimingRefusal {
            fault: refusal.fault,
            alternative: alternative.map(|(alternative, _)| alternative),
        })
    }

    /// As [`CpuResource::divide`]. An alternative in the error is for the resource alone that
    /// refused.
    fn try_divide(
        &self,
        held: &[Work],
        link: &Transmitter,
        sent: &[Promise],
        (work, channel): (&Work, &Channel),
    ) -> Result<DividedDeadline, TimingRefusal> {
        let whole = channel.deadline();
        let here = match self.admit(held, &work.of_channel(*channel)) {
            Err(refusal) => return Err(refusal),
            Ok(()) => least(1..=whole.0, |d| self.fits_at(held, (work, channel), d)),
        };
        let processor = Nanos(here.unwrap_or(whole.0));
        let rest = whole.0 - processor.0;
        let there = at_deadline(channel, rest.max(1)).unwrap_or(*channel);
        link.admit(sent, &Promise::Channel(there))?;
        match rest > 0 {
            true => Ok(DividedDeadline {
                processor,
                link: Nanos(rest),
            }),
            false => Err(TimingRefusal {
                fault: TimingFault::Late {
                    within: whole,
                    due: whole,
                    blocked: Nanos(1),
                    stopped: Nanos(0),
                },
                alternative: None,
            }),
        }
    }

    /// Whether the channel's work with this deadline, in ns, fits beside the held work.
    fn fits_at(&self, held: &[Work], (work, channel): (&Work, &Channel), deadline: u64) -> bool {
        let requested = at_deadline(channel, deadline).map(|channel| work.of_channel(channel));
        requested.is_some_and(|requested| self.fits(held, &requested))
    }

    fn fits(&self, held: &[Work], requested: &Work) -> bool {
        let all = held.iter().chain([requested]);
        self.check(all, BUDGET_PER_TRY).is_ok()
    }

    /// As [`CpuResource::carries`], with the amount of work of one try in a search. False also if
    /// the set is not decided with so much work.
    pub(super) fn carries_at_once<'a>(&self, work: impl Iterator<Item = &'a Work>) -> bool {
        self.check(work, BUDGET_PER_TRY).is_ok()
    }

    fn check<'a>(
        &self,
        work: impl Iterator<Item = &'a Work>,
        budget: u64,
    ) -> Result<(), TimingFault> {
        let demands: Vec<Demand> = work.map(|work| self.demand(work)).collect();
        let scale = self.supply.scale();
        let taken_back = match self.ends_budgets(&demands) {
            true => self.late_end.0,
            false => 0,
        };
        let leftover = u128::from(self.processor.leftover.0) + u128::from(taken_back);
        let late_end = scale.ticks(self.late_end);
        let blocking = Blocking {
            leftover: self.supply.work(leftover),
            ahead: self.supply.delay().saturating_add(late_end),
            horizon: scale.ticks(self.horizon),
        };
        decide(&demands, scale, blocking, (Nanos(0), budget))
    }

    /// False if the handlers never use up more than a budget: so much arrives within a period at
    /// most, and no other work fills the rest.
    fn ends_budgets(&self, demands: &[Demand]) -> bool {
        // In ticks, the work of a whole budget is as long as the period.
        let period = self.supply.scale().ticks(self.period);
        let arrive = demands.iter().map(|demand| demand.arrives_within(period));
        let arrive = arrive.fold(0, u128::saturating_add);
        let fills = self.processor.leftover > Nanos(0) || self.horizon > Nanos(0);
        fills || arrive > period
    }

    fn demand(&self, work: &Work) -> Demand {
        match work {
            Work::Channel(channel) => self.handler_demand(&HandlerWork {
                channel: *channel,
                packets: self.processor.packets(channel.mmax()),
                each: Nanos(0),
            }),
            Work::Handler(handler) => self.handler_demand(handler),
            Work::Slice(slice) => Demand {
                deadline: 0,
                growth: Growth::Fluid(Fluid {
                    burst: 0,
                    slope: self.supply.share(slice),
                }),
                cap: None,
                piece: 0,
                in_leftover: false,
                tested_from: Some(self.supply.scale().ticks(slice.period())),
            },
        }
    }

    fn handler_demand(&self, handler: &HandlerWork) -> Demand {
        let (processor, supply, scale) = (&self.processor, self.supply, self.supply.scale());
        let (channel, packets) = (&handler.channel, handler.packets.max(1));
        let block = packets.min(u64::from(processor.block.get()));
        let per_message = u128::from(channel.rmax().get());
        let period = NANOS_PER_SECOND * scale.ticks(Nanos(1));
        let deadline = scale.ticks(channel.deadline());
        let loss = self.resolution.of(deadline, period / per_message, scale);
        let deadline = deadline.saturating_sub(loss);
        let with_switches = |times, packets| {
            let more = u128::from(packets).saturating_mul(handler.each.0.into());
            let packets = processor.first_packets(packets).saturating_add(more);
            supply.work(processor.switching(times).saturating_add(packets))
        };
        Demand {
            deadline,
            growth: Growth::Steps(Steps {
                cost: with_switches(2, packets),
                numerator: per_message,
                denominator: period,
            }),
            cap: None,
            piece: with_switches(1, block),
            in_leftover: false,
            tested_from: Some(deadline),
        }
    }
}

/// A channel's deadline in two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DividedDeadline {
    /// The deadline of processing, from the logical arrival of a message.
    pub processor: Nanos,
    /// The deadline of sending, from the end of the first part.
    pub link: Nanos,
}
