//! Does it fit in time? Deadlines on a link and on a processor.
//!
//! [`crate::admission::admit`] counts rates; here is what deadlines need beside that: a packet
//! that has begun cannot be called back, a message is many packets, and being in time on average
//! is being late. A [`Transmitter`] is a link with what sending costs on it, a [`Processor`] a
//! CPU with what protocol processing costs on it (paper RTC, sections 3.2 and 3.3). Both are
//! asked the same way: is a set of promises kept, whatever legal traffic comes
//! (`carries`), and may one more be made (`admit`).
//!
//! Every promise is turned into the most work that can be due within any interval
//! (`demand`), and one test decides whether earliest deadline first keeps them all, although
//! packets (and blocks of P packets on the CPU) are not interrupted (`edf`). For channels
//! alone the test is exact: what it refuses, some legal traffic breaks. For mixtures it is safe.
//! The theorems, their sources and proofs are in docs/reference/contracts.md.
//!
//! A refusal is the inequality that fails, in numbers, and the best that would fit instead.
//! Everything is whole numbers; the running time is bounded whatever the promises are
//! (`BUDGET`), and what could not be decided within it is refused as just that.

mod cpu;
mod demand;
mod edf;
mod link;

use core::fmt;

pub use cpu::{Divided, Processor, Work};
pub use link::{Grain, Promise, Sizes, Transmitter};

use crate::contract::MessageRate;
use crate::units::{Amount, Bytes, Nanos, Rate};
use demand::{Demand, LONGEST, Scale, WHOLE};
use edf::{Answer, InTheWay};

/// A set of promises that cannot all be kept, or one that makes no sense here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All together want more than there is.
    Share {
        /// What they want in the long run, in millionths of the resource, rounded up.
        millionths: u64,
    },
    /// Too much can be due at once.
    Late {
        /// In an interval of this length
        within: Nanos,
        /// so much work can be due,
        due: Nanos,
        /// while this is in the way.
        blocked: Nanos,
    },
    /// Whether it fits is too close to call in bounded time.
    Undecided,
    /// A time that is longer than this arithmetic goes.
    TooLong {
        /// The time, of a deadline, a period, one job, or the horizon.
        time: Nanos,
        /// The longest there may be.
        most: Nanos,
    },
    /// A peak rate above the link's.
    AboveLink {
        /// The peak rate.
        rate: Rate,
        /// What the link sends.
        link: Rate,
    },
    /// Packets that no burst of the contract can hold.
    LongerThanBurst {
        /// The largest packet.
        packet: Bytes,
        /// What a burst may hold.
        mbs: Bytes,
    },
    /// A channel's messages need more than its limit.
    AboveLimit {
        /// Mmax Rmax.
        rate: Amount,
        /// The limit.
        max: Rate,
    },
    /// A limit may hold a channel's message up until it is late.
    HeldUp {
        /// What a message takes at the limit's rate.
        takes: Nanos,
        /// What may pass at once.
        burst: Nanos,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Share { millionths } => {
                let (whole, part) = (millionths / 10_000, millionths % 10_000);
                write!(
                    f,
                    "all promises together want {whole}.{part:04} % of the time"
                )
            }
            Fault::Late {
                within,
                due,
                blocked,
            } => write!(
                f,
                "within {within} up to {due} of work can be due while {blocked} is in the way: \
                 {due} + {blocked} > {within}"
            ),
            Fault::Undecided => f.write_str("whether it fits is too close to be found out"),
            Fault::TooLong { time, most } => {
                write!(f, "{time} is longer than the {most} that can be promised")
            }
            Fault::AboveLink { rate, link } => {
                write!(f, "the rate {rate} is above the link's {link}")
            }
            Fault::LongerThanBurst { packet, mbs } => {
                write!(
                    f,
                    "packets of up to {packet} are longer than its mbs of {mbs}"
                )
            }
            Fault::AboveLimit { rate, max } => {
                write!(f, "its messages need {rate}, above its limit {max}")
            }
            Fault::HeldUp { takes, burst } => write!(
                f,
                "its limit may hold a message up until it is late: one takes {takes} of the \
                 limit, of which {burst} may pass at once"
            ),
        }
    }
}

impl core::error::Error for Fault {}

/// A promise that is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Why.
    pub fault: Fault,
    /// What would fit, if anything of the kind does.
    pub instead: Option<Instead>,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.fault, f)?;
        match &self.instead {
            None => Ok(()),
            Some(instead) => write!(f, "; would fit: {instead}"),
        }
    }
}

impl core::error::Error for Misfit {}

/// What would fit in place of what was asked; nothing else about it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// A channel with a deadline of at least this.
    Deadline(Nanos),
    /// A channel with at most so many messages.
    Messages(MessageRate),
    /// A cell contract with at least this tolerance.
    Cdvt(Nanos),
    /// A slice of at most this.
    Slice(Nanos),
    /// A minimum, or a peak rate, of at most this.
    Rate(Rate),
    /// A limit with a burst of at least this.
    Burst(Nanos),
}

impl fmt::Display for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Instead::Deadline(time) => write!(f, "a deadline of at least {time}"),
            Instead::Messages(rate) => write!(f, "an rmax of at most {rate}"),
            Instead::Cdvt(time) => write!(f, "a cdvt of at least {time}"),
            Instead::Slice(time) => write!(f, "a slice of at most {time}"),
            Instead::Rate(rate) => write!(f, "a rate of at most {rate}"),
            Instead::Burst(time) => write!(f, "a burst of at least {time}"),
        }
    }
}

/// Asks whether demands fit, in the terms of the outside.
fn verdict(demands: &[Demand], scale: Scale, way: InTheWay, budget: u64) -> Result<(), Fault> {
    for demand in demands {
        demand.sound(scale)?;
    }
    if way.horizon > scale.ticks(LONGEST) {
        return Err(Fault::TooLong {
            time: scale.nanos(way.horizon),
            most: LONGEST,
        });
    }
    match edf::decide(demands, way, budget) {
        Answer::Fits => Ok(()),
        Answer::Undecided => Err(Fault::Undecided),
        Answer::Share(share) => {
            let millionths = share.saturating_mul(1_000_000).div_ceil(WHOLE);
            Err(Fault::Share {
                millionths: u64::try_from(millionths).unwrap_or(u64::MAX),
            })
        }
        Answer::Late { t, due, blocked } => Err(Fault::Late {
            within: scale.nanos_down(t),
            due: scale.nanos(due),
            blocked: scale.nanos(blocked),
        }),
    }
}

/// The smallest number in a range that a rule accepts, if the largest one does; the rule accepts
/// whatever is larger than what it accepts.
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

/// The largest number in a range that a rule accepts, if the smallest one is; the rule accepts
/// whatever is smaller than what it accepts.
fn most(range: core::ops::RangeInclusive<u64>, accepts: impl Fn(u64) -> bool) -> Option<u64> {
    let (low, high) = range.into_inner();
    let mirrored = least(0..=high.checked_sub(low)?, |below| accepts(high - below));
    mirrored.map(|below| high - below)
}

/// How many single demand bounds are looked at before a set is given up as undecided: some tenths
/// of a second of one core, for 65,536 channels 256 looks at all of them.
const BUDGET: u64 = 1 << 24;

/// The same for each of the sets that are tried, about 43, to find what would fit instead. What
/// is found fits in any case; in a very large or very full set something better might as well.
const BUDGET_OF_A_TRY: u64 = 1 << 19;

#[cfg(test)]
mod tests;
