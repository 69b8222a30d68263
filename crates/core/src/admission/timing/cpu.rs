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
//! # Use
//! Library users, `netnice-sim` (scenarios with a `[processor]`) and the RTC experiment of
//! `netnice-lab` use this module. The daemon does not: of links it admits promises of transmission
//! only ([`Transmitter`]), and the clause `cpu` by [`crate::admission::processors`].

use alloc::vec::Vec;
use core::num::NonZeroU32;

use super::demand::{Demand, Fluid, Growth, LONGEST, Scale, Steps, ratio_up};
use super::edf::Blocking;
use super::link::{NANOS_PER_SECOND, Promise, Transmitter, at_deadline, at_rate};
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
    /// A slice of every period, for work that can be interrupted at any point.
    Slice(Slice),
}

impl Processor {
    /// Decides whether all this work is done in time, for all legal traffic.
    ///
    /// # Errors
    /// [`TimingFault`] if not: the inequality that fails, or that the set was not decided.
    pub fn carries(&self, work: &[Work]) -> Result<(), TimingFault> {
        self.check(work.iter(), BUDGET)
    }

    /// Decides whether one more promise can be made beside the ones that are held.
    ///
    /// # Errors
    /// [`TimingRefusal`] contains the fault, and an alternative if there is one.
    pub fn admit(&self, held: &[Work], requested: &Work) -> Result<(), TimingRefusal> {
        let Err(fault) = self.check(held.iter().chain([requested]), BUDGET) else {
            return Ok(());
        };
        let fits = |work: Work| self.fits(held, &work);
        let alternative = match requested {
            Work::Channel(channel) => {
                channel_alternative(channel, |channel| fits(Work::Channel(channel)))
            }
            Work::Slice(slice) => slice_alternative(slice, |slice| fits(Work::Slice(slice))),
        };
        Err(TimingRefusal { fault, alternative })
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
        let refusal = match self.try_divide(held, link, sent, channel) {
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
                let here = least(1..=LONGEST.0, |d| self.fits_at(held, channel, d));
                let there = link.least_deadline(sent, channel);
                here.zip(there).map(|(here, there)| {
                    let both = here.saturating_add(there.0);
                    let alternative = Alternative::Deadline(Nanos(both));
                    (alternative, at_deadline(channel, both))
                })
            }
        };
        let can_divide = |with: &Channel| self.try_divide(held, link, sent, with).is_ok();
        let alternative = alternative.filter(|(_, with)| with.as_ref().is_some_and(can_divide));
        Err(TimingRefusal {
            fault: refusal.fault,
            alternative: alternative.map(|(alternative, _)| alternative),
        })
    }

    /// As [`Processor::divide`]. An alternative in the error is for the resource alone that
    /// refused.
    fn try_divide(
        &self,
        held: &[Work],
        link: &Transmitter,
        sent: &[Promise],
        channel: &Channel,
    ) -> Result<DividedDeadline, TimingRefusal> {
        let whole = channel.deadline();
        let here = match self.admit(held, &Work::Channel(*channel)) {
            Err(refusal) => return Err(refusal),
            Ok(()) => least(1..=whole.0, |d| self.fits_at(held, channel, d)),
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

    /// Whether the channel with this deadline, in ns, fits beside the held work.
    fn fits_at(&self, held: &[Work], channel: &Channel, deadline: u64) -> bool {
        let requested = at_deadline(channel, deadline).map(Work::Channel);
        requested.is_some_and(|requested| self.fits(held, &requested))
    }

    fn fits(&self, held: &[Work], requested: &Work) -> bool {
        let all = held.iter().chain([requested]);
        self.check(all, BUDGET_PER_TRY).is_ok()
    }

    fn check<'a>(
        &self,
        work: impl Iterator<Item = &'a Work>,
        budget: u64,
    ) -> Result<(), TimingFault> {
        let demands: Vec<Demand> = work.map(|work| self.demand(work)).collect();
        let blocking = Blocking {
            leftover: u128::from(self.leftover.0),
            ..Blocking::default()
        };
        decide(&demands, Scale::NANOS, blocking, budget)
    }

    fn demand(&self, work: &Work) -> Demand {
        let deadline = match work {
            Work::Channel(channel) => u128::from(channel.deadline().0),
            Work::Slice(slice) => u128::from(slice.period().0),
        };
        match work {
            Work::Channel(channel) => {
                let packets = channel.mmax().0.div_ceil(self.largest.0.max(1));
                let block = packets.min(u64::from(self.block.get()));
                Demand {
                    deadline,
                    growth: Growth::Steps(Steps {
                        cost: self.switching(2).saturating_add(self.packets(packets)),
                        numerator: u128::from(channel.rmax().get()),
                        denominator: NANOS_PER_SECOND,
                    }),
                    cap: None,
                    piece: self.switching(1).saturating_add(self.packets(block)),
                    in_leftover: false,
                    tested_from: Some(deadline),
                }
            }
            Work::Slice(slice) => Demand {
                deadline: 0,
                growth: Growth::Fluid(Fluid {
                    burst: 0,
                    slope: ratio_up(u128::from(slice.slice().0), u128::from(slice.period().0)),
                }),
                cap: None,
                piece: 0,
                in_leftover: false,
                tested_from: Some(deadline),
            },
        }
    }

    fn switching(&self, times: u128) -> u128 {
        times * (u128::from(self.switch.0) + u128::from(self.cache_miss.0))
    }

    /// The duration of the first `count` packets of a message.
    fn packets(&self, count: u64) -> u128 {
        let later = u128::from(count.saturating_sub(1)) * u128::from(self.later.0);
        let sent = u128::from(count) * u128::from(self.link_scheduling.0);
        u128::from(self.first.0)
            .saturating_add(later)
            .saturating_add(sent)
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
