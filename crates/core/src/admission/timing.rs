//! Admission of promises with deadlines on a link and on a processor.
//!
//! [`crate::admission::admit`] only adds rates. Deadlines need more: a packet in transmission
//! cannot be interrupted, a message consists of many packets, and a rate does not bound the work
//! that is due in a short time. A [`Transmitter`] is a link with its costs of sending. A
//! [`Processor`] is a CPU with its costs of protocol processing (paper RTC, sections 3.2 and 3.3),
//! and [`Handlers`] run on a reserved part of one.
//! Both have a function `carries`, which decides whether a set of promises is kept for all traffic
//! that the contracts allow, and a function `admit`, which decides on one more promise.
//!
//! Every promise is converted to the most work that can be due within an interval (`demand`). One
//! test (`edf`) decides whether a scheduler that serves the earliest deadline first keeps all
//! promises, although packets on the link, and blocks of several packets on the CPU, are not
//! interrupted. The test never grants a set that allowed traffic can break. In general it may
//! refuse a set that would be kept. For channels alone, on a link with an exact scheduler and
//! without batch and horizon, it is exact up to one nanosecond: for each set that it refuses for an
//! inequality, there is allowed traffic that misses a deadline. docs/reference/contracts.md has the
//! theorems, their sources and proofs.
//!
//! A [`TimingRefusal`] contains the reason in numbers ([`TimingFault`]), and an alternative that
//! would fit if one was found. All arithmetic is in whole numbers. The number of steps is bounded
//! for every set of promises (`BUDGET`). A set that is not decided in that number of steps is
//! refused as [`TimingFault::Undecided`].

mod cpu;
mod demand;
mod demand_sums;
mod edf;
mod handlers;
mod link;
mod path;
mod stops;
mod supply;
mod switch_port;

use core::fmt;

pub use cpu::{DividedDeadline, HandlerWork, Processor, Work};
pub use demand_sums::{DemandSums, SumsAnswer};
pub use handlers::Handlers;
pub use link::{PacketSizes, Promise, Resolution, Transmitter};
pub use path::{PathTooLong, share_slack};
pub use stops::{BadStops, Stops};
pub use switch_port::{EnteringChannel, Overloaded, SwitchPort};

use crate::contract::{Channel, MessageRate, Slice};
use crate::units::{Amount, Bytes, Nanos, Rate};
use demand::{Demand, LONGEST, Scale, WHOLE};
use edf::{Answer, Blocking};
use link::{at_deadline, at_rate};

/// The reason why a set of promises cannot be kept, or why one of them cannot be made on this link
/// or processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimingFault {
    /// The promises together need more than the whole resource.
    Share {
        /// The long-term need of all promises, in millionths of the resource, rounded up.
        millionths: u64,
    },
    /// Too much work can be due at once: within the interval `within`, `due` + `blocked` +
    /// `stopped` exceeds its length.
    Late {
        /// Length of the interval.
        within: Nanos,
        /// Work that can be due in it.
        due: Nanos,
        /// Work that may come first although it is due later, or has no deadline.
        blocked: Nanos,
        /// The time for which the machine may stop the sender in it; 0 if no stops are known.
        stopped: Nanos,
    },
    /// The set was not decided in bounded time.
    Undecided,
    /// A reservation of processor time is not longer than the switch to the program that has it.
    NothingReserved {
        /// The reserved time in every period.
        slice: Nanos,
        /// The period; 0 if nothing is offered at all.
        period: Nanos,
        /// The time that the program loses in every period.
        lost: Nanos,
    },
    /// A time is longer than the arithmetic allows.
    TooLong {
        /// The time: of a deadline, a period, one job, or the horizon.
        time: Nanos,
        /// The longest allowed time.
        most: Nanos,
    },
    /// A peak rate is above the link's rate.
    AboveLink {
        /// The peak rate.
        rate: Rate,
        /// The rate of the link.
        link: Rate,
    },
    /// A flow's largest packet is longer than its largest burst.
    LongerThanBurst {
        /// The largest packet.
        packet: Bytes,
        /// The size of the largest burst.
        mbs: Bytes,
    },
    /// A channel's messages need a higher rate than its limit.
    AboveLimit {
        /// The highest long-term rate of the messages, Mmax · Rmax.
        rate: Amount,
        /// The limit.
        max: Rate,
    },
    /// A limit may delay a channel's message beyond its deadline.
    HeldUp {
        /// Duration of the largest message at the limit's rate.
        takes: Nanos,
        /// The burst of the limit, as time at its rate.
        burst: Nanos,
    },
}

impl fmt::Display for TimingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimingFault::Share { millionths } => {
                let (whole, part) = (millionths / 10_000, millionths % 10_000);
                write!(
                    f,
                    "all promises together need {whole}.{part:04} % of the time"
                )
            }
            TimingFault::Late {
                within,
                due,
                blocked,
                stopped: Nanos(0),
            } => write!(
                f,
                "within {within}, up to {due} of work can be due and {blocked} can block it: \
                 {due} + {blocked} > {within}"
            ),
            TimingFault::Late {
                within,
                due,
                blocked,
                stopped,
            } => write!(
                f,
                "within {within}, up to {due} of work can be due, {blocked} can block it, and the \
                 machine can stop the sender for {stopped}: {due} + {blocked} + {stopped} > {within}"
            ),
            TimingFault::Undecided => {
                f.write_str("the set is too close to the limit to be decided in bounded time")
            }
            TimingFault::NothingReserved {
                period: Nanos(0), ..
            } => f.write_str("no processor time can be reserved"),
            TimingFault::NothingReserved {
                slice,
                period,
                lost,
            } => write!(
                f,
                "the {slice} reserved in every {period} of a processor are not longer than the \
                 {lost} that a switch to the program takes"
            ),
            TimingFault::TooLong { time, most } => {
                write!(f, "{time} is longer than the {most} that can be promised")
            }
            TimingFault::AboveLink { rate, link } => {
                write!(f, "the rate {rate} is above the link's {link}")
            }
            TimingFault::LongerThanBurst { packet, mbs } => {
                write!(
                    f,
                    "packets of up to {packet} are longer than its mbs of {mbs}"
                )
            }
            TimingFault::AboveLimit { rate, max } => {
                write!(f, "its messages need {rate}, above its limit {max}")
            }
            TimingFault::HeldUp { takes, burst } => write!(
                f,
                "its limit can delay a message beyond its deadline: a message takes {takes} at the \
                 limit's rate, and the burst is {burst}"
            ),
        }
    }
}

impl core::error::Error for TimingFault {}

/// A refused promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimingRefusal {
    /// The reason.
    pub fault: TimingFault,
    /// An alternative that would fit, of a kind that suits the promise; `None` if none was found.
    pub alternative: Option<Alternative>,
}

impl fmt::Display for TimingRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.fault, f)?;
        match &self.alternative {
            None => Ok(()),
            Some(alternative) => write!(f, "; would fit: {alternative}"),
        }
    }
}

impl core::error::Error for TimingRefusal {}

/// An alternative to the requested promise: one value of the promise is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alternative {
    /// A channel with at least this deadline.
    Deadline(Nanos),
    /// A channel with at most this rate of messages.
    Messages(MessageRate),
    /// A cell contract with at least this CDVT.
    Cdvt(Nanos),
    /// A slice of at most this time.
    Slice(Nanos),
    /// A minimum, or a peak rate, of at most this rate.
    Rate(Rate),
    /// A limit with at least this burst.
    Burst(Nanos),
}

impl fmt::Display for Alternative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Alternative::Deadline(time) => write!(f, "a deadline of at least {time}"),
            Alternative::Messages(rate) => write!(f, "an rmax of at most {rate}"),
            Alternative::Cdvt(time) => write!(f, "a cdvt of at least {time}"),
            Alternative::Slice(time) => write!(f, "a slice of at most {time}"),
            Alternative::Rate(rate) => write!(f, "a rate of at most {rate}"),
            Alternative::Burst(time) => write!(f, "a burst of at least {time}"),
        }
    }
}

/// Decides whether demands fit in all intervals of at least `shortest`, and converts the answer
/// from ticks.
fn decide(
    demands: &[Demand],
    scale: Scale,
    blocking: Blocking,
    (shortest, budget): (Nanos, u64),
) -> Result<(), TimingFault> {
    for demand in demands {
        demand.validate(scale)?;
    }
    if blocking.horizon > scale.ticks(LONGEST) {
        return Err(TimingFault::TooLong {
            time: scale.nanos(blocking.horizon),
            most: LONGEST,
        });
    }
    match edf::decide(demands, blocking, scale.ticks(shortest), budget) {
        Answer::Fits => Ok(()),
        Answer::Undecided => Err(TimingFault::Undecided),
        Answer::Share(share) => {
            let millionths = share.saturating_mul(1_000_000).div_ceil(WHOLE);
            Err(TimingFault::Share {
                millionths: u64::try_from(millionths).unwrap_or(u64::MAX),
            })
        }
        Answer::Late { t, due, blocked } => Err(TimingFault::Late {
            within: scale.nanos_down(t),
            due: scale.nanos(due),
            blocked: scale.nanos(blocked),
            stopped: Nanos(0),
        }),
    }
}

/// The smallest number of a range that `accepts` accepts; `None` if it does not accept the largest.
/// Larger numbers than an accepted one must be accepted too.
fn least(range: core::ops::RangeInclusive<u64>, accepts: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = range.into_inner();
    if low > high || !accepts(high) {
        return None;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        match accepts(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    Some(high)
}

/// The largest number of a range that `accepts` accepts; `None` if it does not accept the smallest.
/// Smaller numbers than an accepted one must be accepted too.
pub(super) fn most(
    range: core::ops::RangeInclusive<u64>,
    accepts: impl Fn(u64) -> bool,
) -> Option<u64> {
    let (low, high) = range.into_inner();
    let mirrored = least(0..=high.checked_sub(low)?, |below| accepts(high - below));
    mirrored.map(|below| high - below)
}

/// The channel's alternative with the shortest deadline that `fits`, else that with the highest
/// rate of messages.
fn channel_alternative(channel: &Channel, fits: impl Fn(Channel) -> bool) -> Option<Alternative> {
    let deadline = least(channel.deadline().0..=LONGEST.0, |deadline| {
        at_deadline(channel, deadline).is_some_and(&fits)
    });
    let messages = || {
        let rate = most(1..=u64::from(channel.rmax().get()), |rate| {
            at_rate(channel, rate).is_some_and(&fits)
        })?;
        MessageRate::new(u32::try_from(rate).ok()?)
    };
    let deadline = deadline.map(|deadline| Alternative::Deadline(Nanos(deadline)));
    deadline.or_else(|| messages().map(Alternative::Messages))
}

/// The slice's alternative with the longest time that `fits`.
fn slice_alternative(slice: &Slice, fits: impl Fn(Slice) -> bool) -> Option<Alternative> {
    let time = most(1..=slice.slice().0, |time| {
        Slice::new(Nanos(time), slice.period(), slice.extra()).is_ok_and(&fits)
    });
    time.map(|time| Alternative::Slice(Nanos(time)))
}

/// The number of evaluations of a single demand bound before a set counts as undecided. They take
/// some tenths of a second of one core. For 65,536 channels they are 256 evaluations of each one.
const BUDGET: u64 = 1 << 24;

/// The same for each set that is tried in the search for an alternative. The search over one value
/// tries at most 44 sets. An alternative that is found fits in any case. For a very large or very
/// full set a better one may exist.
const BUDGET_PER_TRY: u64 = 1 << 19;

#[cfg(test)]
mod tests;
