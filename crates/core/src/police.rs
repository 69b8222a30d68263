//! Conformance of traffic to a contract, measured from outside.
//!
//! A [`Police`] gets the time and the length of each packet and decides whether the packet
//! conforms. It shares no code with the schedulers, so it can check their output, and that of other
//! senders: `netnice check` applies it to packet captures.
//!
//! # Rules
//! - `cell pcr cdvt`: a packet conforms if GCRA(length / PCR, CDVT) accepts it.
//! - `… scr mbs`: GCRA(length / SCR, CDVT + BT) must accept it too, where BT = (MBS - length)
//!   (1/SCR - 1/PCR).
//! - `channel mmax rmax bmax`: a message conforms if it is at most Mmax long, and every interval of
//!   length t that ends with it has at most Bmax + Rmax t messages.
//! - `up`, `down`, `both` R with `burst` B: a packet conforms if GCRA(length / R, B) accepts it.
//!
//! GCRA is the standard's ([`gcra`]). With packets of one size the second rule is TM 4.0's burst
//! tolerance, (MBS - 1) (1/SCR - 1/PCR) in cells. With packets of any size a burst at the peak rate
//! may hold MBS bytes, the last packet included, so a packet longer than MBS never conforms.
//! `bucket=dual` shapes more strictly than this check: both kinds of bucket have the same pair of
//! rules. The third rule is the linear bounded arrival process of the paper RTC (its sources are
//! Cruz, and Anderson's DASH). For times alone it is GCRA(1/Rmax, (Bmax - 1)/Rmax), because Bmax
//! messages may come at once and the next one 1/Rmax later.
//!
//! As in the standard, a packet that does not conform changes no state. It counts as dropped, for
//! both rates, if either rate finds it too early. So the first reported packet violates the
//! contract, and each later one violates it even without the reported ones before it.
//!
//! # Time of a packet
//! The time may be that of any point of the packet, if it is the same point for all packets. If the
//! recording point stamps the ends of packets and the contract is about their starts, different
//! lengths shift packets against each other by up to (longest - shortest) / link rate.
//! [`Police::with_tolerance`] allows for that.

pub mod gcra;

use core::fmt;
use core::num::NonZeroU64;

use crate::contract::{Cell, Channel, Contract, MessageRate, Sustained};
use crate::units::{Bytes, Instant, Nanos, Rate};
use gcra::{NANOS_PER_SECOND, Tolerance, VirtualScheduling};

/// A packet, or a message of a channel, as it was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The time of the observation.
    pub at: Instant,
    /// The length in the contract's unit: for a packet, layer 2 without preamble and gap.
    pub length: Bytes,
}

/// A conformance check for one flow.
#[derive(Clone, Debug)]
pub struct Police {
    law: Law,
    /// Extra tolerance beyond the contract's.
    tolerance: Nanos,
    /// Number of packets checked so far.
    count: u64,
}

#[derive(Clone, Debug)]
enum Law {
    Cell {
        cell: Cell,
        peak: VirtualScheduling,
        sustained: Option<VirtualScheduling>,
    },
    Channel {
        channel: Channel,
        arrivals: VirtualScheduling,
    },
    Limit {
        rate: Rate,
        burst: Nanos,
        bucket: VirtualScheduling,
    },
}

impl Police {
    /// A check for a cell contract.
    pub fn cell(cell: Cell) -> Police {
        let sustained = cell.sustained();
        Police::of(Law::Cell {
            cell,
            peak: VirtualScheduling::new(bits(cell.pcr())),
            sustained: sustained.map(|s| VirtualScheduling::new(bits(s.scr))),
        })
    }

    /// A check for a channel. Each observation counts as one message.
    pub fn channel(channel: Channel) -> Police {
        let arrivals = VirtualScheduling::new(messages(channel.rmax()));
        Police::of(Law::Channel { channel, arrivals })
    }

    /// A check for a limit. After a silence it allows the bytes that `rate` carries in `burst`, at
    /// once.
    pub fn limit(rate: Rate, burst: Nanos) -> Police {
        let bucket = VirtualScheduling::new(bits(rate));
        Police::of(Law::Limit {
            rate,
            burst,
            bucket,
        })
    }

    /// A check for a contract. A limit applies to all observed packets, because their direction is
    /// not visible from outside.
    ///
    /// # Errors
    /// [`NotJudged`] unless exactly one clause of the contract restricts the times of packets.
    pub fn contract(contract: &Contract) -> Result<Police, NotJudged> {
        let burst = contract.burst().unwrap_or(Contract::DEFAULT_BURST);
        let limits = [contract.up(), contract.down(), contract.both()];
        let mut laws = limits
            .into_iter()
            .flatten()
            .map(|rate| Police::limit(rate, burst))
            .chain(contract.cell().map(Police::cell))
            .chain(contract.channel().map(Police::channel));
        match (laws.next(), laws.next()) {
            (Some(police), None) => Ok(police),
            (None, _) => Err(NotJudged::Nothing),
            (Some(_), Some(_)) => Err(NotJudged::Several),
        }
    }

    /// The same check with an extra tolerance.
    pub fn with_tolerance(self, tolerance: Nanos) -> Police {
        Police { tolerance, ..self }
    }

    /// Checks the next packet. If its time is before that of an earlier packet, it counts as early.
    ///
    /// # Errors
    /// [`Violation`] if the packet does not conform.
    pub fn handle(&mut self, seen: Seen) -> Result<(), Violation> {
        self.count = self.count.saturating_add(1);
        self.law
            .judge(seen, self.tolerance)
            .map_err(|fault| Violation {
                number: self.count,
                seen,
                fault,
            })
    }

    /// Number of packets checked so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    fn of(law: Law) -> Police {
        Police {
            law,
            tolerance: Nanos(0),
            count: 0,
        }
    }
}

impl Law {
    fn judge(&mut self, seen: Seen, patience: Nanos) -> Result<(), Fault> {
        let Seen { at, length } = seen;
        match self {
            Law::Cell {
                cell,
                peak,
                sustained,
            } => {
                let (pcr, cdvt) = (cell.pcr(), cell.cdvt());
                let tolerance = time(bits(pcr), &[cdvt, patience]);
                if let Some(by) = peak.earliness(at, tolerance) {
                    return Err(Fault::AbovePeak { by, pcr, cdvt });
                }
                if let (Some(bucket), Some(parts)) = (&*sustained, cell.sustained()) {
                    let Sustained { scr, mbs, .. } = parts;
                    let room = burst_tolerance(pcr, &parts, length);
                    let room = room.ok_or(Fault::LongerThanBurst { mbs })?;
                    let patience = time(bits(scr), &[cdvt, patience]);
                    let tolerance = Tolerance(room.0 + patience.0);
                    if let Some(by) = bucket.earliness(at, tolerance) {
                        return Err(Fault::AboveSustained { by, scr, mbs });
                    }
                }
                for bucket in [Some(peak), sustained.as_mut()].into_iter().flatten() {
                    bucket.accept(at, length_in_bits(length));
                }
            }
            Law::Channel { channel, arrivals } => {
                let (mmax, rmax, bmax) = (channel.mmax(), channel.rmax(), channel.bmax());
                if length > mmax {
                    return Err(Fault::LongerThanMessage { mmax });
                }
                let at_once = i128::from(bmax - 1) * NANOS_PER_SECOND;
                let tolerance = Tolerance(at_once + time(messages(rmax), &[patience]).0);
                if let Some(by) = arrivals.earliness(at, tolerance) {
                    return Err(Fault::AboveArrivals { by, rmax, bmax });
                }
                arrivals.accept(at, 1);
            }
            Law::Limit {
                rate,
                burst,
                bucket,
            } => {
                let tolerance = time(bits(*rate), &[*burst, patience]);
                if let Some(by) = bucket.earliness(at, tolerance) {
                    let (rate, burst) = (*rate, *burst);
                    return Err(Fault::AboveLimit { by, rate, burst });
                }
                bucket.accept(at, length_in_bits(length));
            }
        }
        Ok(())
    }
}

/// A packet that does not conform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {number}, {} long, {fault}", fault.noun(), seen.length)]
pub struct Violation {
    /// Number of the packet, from 1.
    pub number: u64,
    /// The packet.
    pub seen: Seen,
    /// The violated rule.
    pub fault: Fault,
}

/// A violated rule, and the excess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The packet is too early for the peak rate.
    AbovePeak {
        /// Time by which it is too early, beyond every tolerance.
        by: Nanos,
        /// PCR.
        pcr: Rate,
        /// CDVT.
        cdvt: Nanos,
    },
    /// The packet is too early for the sustained rate.
    AboveSustained {
        /// Time by which it is too early, beyond every tolerance.
        by: Nanos,
        /// SCR.
        scr: Rate,
        /// MBS.
        mbs: Bytes,
    },
    /// The packet is longer than the largest burst at peak rate.
    LongerThanBurst {
        /// MBS.
        mbs: Bytes,
    },
    /// An interval has one message too many.
    AboveArrivals {
        /// Time after which the message would conform.
        by: Nanos,
        /// Rmax.
        rmax: MessageRate,
        /// Bmax.
        bmax: u32,
    },
    /// The message is longer than the longest allowed one.
    LongerThanMessage {
        /// Mmax.
        mmax: Bytes,
    },
    /// The packet is too early for a limit.
    AboveLimit {
        /// Time by which it is too early, beyond every tolerance.
        by: Nanos,
        /// The limit.
        rate: Rate,
        /// The amount that may come at once, as time at the limit's rate.
        burst: Nanos,
    },
}

impl Fault {
    /// The noun for the observation in messages.
    fn noun(&self) -> &'static str {
        match self {
            Fault::AboveArrivals { .. } | Fault::LongerThanMessage { .. } => "message",
            _ => "packet",
        }
    }

    /// Time by which the packet is too early; `None` if the violation is its length.
    pub fn by(&self) -> Option<Nanos> {
        match *self {
            Fault::AbovePeak { by, .. }
            | Fault::AboveSustained { by, .. }
            | Fault::AboveArrivals { by, .. }
            | Fault::AboveLimit { by, .. } => Some(by),
            Fault::LongerThanBurst { .. } | Fault::LongerThanMessage { .. } => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::AbovePeak { by, pcr, cdvt } => {
                write!(f, "is {by} too early for pcr {pcr} with cdvt {cdvt}")
            }
            Fault::AboveSustained { by, scr, mbs } => {
                write!(f, "is {by} too early for scr {scr} with mbs {mbs}")
            }
            Fault::LongerThanBurst { mbs } => write!(f, "is longer than mbs {mbs}"),
            Fault::AboveArrivals { by, rmax, bmax } => {
                write!(f, "is {by} too early for rmax {rmax} with bmax {bmax}")
            }
            Fault::LongerThanMessage { mmax } => write!(f, "is longer than mmax {mmax}"),
            Fault::AboveLimit { by, rate, burst } => {
                write!(f, "is {by} too early for {rate} with a burst of {burst}")
            }
        }
    }
}

/// The error of a contract that cannot be checked from the times of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotJudged {
    /// No clause restricts the times of packets.
    #[error(
        "nothing in this contract says what may come when: write cell, channel, or one of up, \
         down and both"
    )]
    Nothing,
    /// Several clauses restrict the times of packets.
    #[error(
        "several clauses of this contract say what may come when: check one of cell, channel, \
         up, down and both at a time"
    )]
    Several,
}

/// BT at the sustained rate for a packet of this length, rounded down to the resolution of the
/// comparison. `None` if the packet is longer than the burst.
fn burst_tolerance(pcr: Rate, parts: &Sustained, length: Bytes) -> Option<Tolerance> {
    let room = i128::from(parts.mbs.0.checked_sub(length.0)?) * 8 * NANOS_PER_SECOND;
    let pcr = i128::from(pcr.bits_per_second());
    let more = pcr - i128::from(parts.scr.bits_per_second());
    // room · more / pcr without leaving 128 bits: room = whole · pcr + rest.
    let (whole, rest) = (room / pcr, room % pcr);
    Some(Tolerance(whole * more + rest * more / pcr))
}

/// The sum of some tolerances at a rate.
fn time(rate: NonZeroU64, parts: &[Nanos]) -> Tolerance {
    Tolerance(parts.iter().map(|part| Tolerance::of(*part, rate).0).sum())
}

fn bits(rate: Rate) -> NonZeroU64 {
    NonZeroU64::new(rate.bits_per_second()).unwrap_or(NonZeroU64::MIN)
}

fn messages(rate: MessageRate) -> NonZeroU64 {
    NonZeroU64::new(u64::from(rate.get())).unwrap_or(NonZeroU64::MIN)
}

fn length_in_bits(length: Bytes) -> u128 {
    u128::from(length.0) * 8
}

#[cfg(test)]
mod tests;
