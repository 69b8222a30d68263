//! Does traffic keep to its contract? The judge that stands outside.
//!
//! A [`Police`] is told when each packet passed and how long it was, and says of each whether it
//! conforms. It shares no code with the schedulers, so what they send can be shown to it, and
//! what others send too: `netnice check` shows it packet captures.
//!
//! # What is judged
//! | clause | a packet conforms when |
//! |---|---|
//! | `cell pcr cdvt` | GCRA(length / PCR, CDVT) says so |
//! | `… scr mbs` | and GCRA(length / SCR, CDVT + BT) as well, where BT = (MBS - length) (1/SCR - 1/PCR) |
//! | `channel mmax rmax bmax` | it is a message of at most Mmax, and in every interval that ends with it, of length t, there are at most Bmax + Rmax t messages |
//! | `up`, `down`, `both` R with `burst` B | GCRA(length / R, B) says so |
//!
//! GCRA is the standard's ([`gcra`]); with packets of one size the second row is TM 4.0's burst
//! tolerance, (MBS - 1) (1/SCR - 1/PCR) in cells. With packets of any size a burst at the peak
//! rate may hold MBS bytes, the last packet included, so a packet longer than MBS never
//! conforms. `bucket=dual` shapes more strictly than it is judged: both kinds are judged by the
//! same pair. The third row is the linear bounded arrival process of the paper RTC (its sources
//! are Cruz, and Anderson's DASH); for times alone it is GCRA(1/Rmax, (Bmax - 1)/Rmax), because
//! Bmax messages may come at once and the next 1/Rmax later.
//!
//! As the standard wants it, what does not conform changes nothing: it is judged as if it had
//! been dropped, by both rates if either finds it too early. So the first packet that is named
//! is wrong, and each later one is wrong even without those before it.
//!
//! # What time a packet has
//! Any point of it, if it is the same one for all. Where the recording point sees packets end
//! and the contract is about when they start, their lengths shift them against each other by up
//! to (longest - shortest) / link rate, which is what [`Police::with_tolerance`] is for.

pub mod gcra;

use core::fmt;
use core::num::NonZeroU64;

use crate::contract::{Cell, Channel, Contract, MessageRate, Sustained};
use crate::units::{Bytes, Instant, Nanos, Rate};
use gcra::{NANOS_PER_SECOND, Tolerance, VirtualScheduling};

/// A packet, or a message of a channel, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When.
    pub at: Instant,
    /// How long, as the contract counts (of a packet, layer 2 without preamble and gap).
    pub length: Bytes,
}

/// A judge of one flow.
#[derive(Clone, Debug)]
pub struct Police {
    law: Law,
    /// Beyond what the contract allows.
    tolerance: Nanos,
    /// Packets judged so far.
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
    /// A judge of what a cell contract allows.
    pub fn cell(cell: Cell) -> Police {
        let sustained = cell.sustained();
        Police::of(Law::Cell {
            cell,
            peak: VirtualScheduling::new(bits(cell.pcr())),
            sustained: sustained.map(|s| VirtualScheduling::new(bits(s.scr))),
        })
    }

    /// A judge of a channel's messages: each that is shown counts as one.
    pub fn channel(channel: Channel) -> Police {
        let arrivals = VirtualScheduling::new(messages(channel.rmax()));
        Police::of(Law::Channel { channel, arrivals })
    }

    /// A judge of a limit: after silence, as much at once as the rate gives in `burst`.
    pub fn limit(rate: Rate, burst: Nanos) -> Police {
        let bucket = VirtualScheduling::new(bits(rate));
        Police::of(Law::Limit {
            rate,
            burst,
            bucket,
        })
    }

    /// A judge of a whole contract, if exactly one clause of it says what may come when. Which
    /// direction a limit means cannot be seen from outside: what is shown is taken for it.
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

    /// With so much more patience than the contract has.
    pub fn with_tolerance(self, tolerance: Nanos) -> Police {
        Police { tolerance, ..self }
    }

    /// The next packet. Times that go back are judged as they are: such a packet is early.
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

    /// How many packets were judged.
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
    /// Which one, the first that was shown being 1.
    pub number: u64,
    /// The packet.
    pub seen: Seen,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a packet, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Too early for the peak rate.
    AbovePeak {
        /// By so much, beyond every tolerance.
        by: Nanos,
        /// PCR.
        pcr: Rate,
        /// CDVT.
        cdvt: Nanos,
    },
    /// Too early for the sustained rate.
    AboveSustained {
        /// By so much, beyond every tolerance.
        by: Nanos,
        /// SCR.
        scr: Rate,
        /// MBS.
        mbs: Bytes,
    },
    /// Longer than the largest burst at peak rate.
    LongerThanBurst {
        /// MBS.
        mbs: Bytes,
    },
    /// One message too many in some interval.
    AboveArrivals {
        /// So much later it would have conformed.
        by: Nanos,
        /// Rmax.
        rmax: MessageRate,
        /// Bmax.
        bmax: u32,
    },
    /// Longer than the longest message.
    LongerThanMessage {
        /// Mmax.
        mmax: Bytes,
    },
    /// Too early for a limit.
    AboveLimit {
        /// By so much, beyond every tolerance.
        by: Nanos,
        /// The limit.
        rate: Rate,
        /// What may come at once, as time at the limit's rate.
        burst: Nanos,
    },
}

impl Fault {
    /// What it is that does not conform.
    fn noun(&self) -> &'static str {
        match self {
            Fault::AboveArrivals { .. } | Fault::LongerThanMessage { .. } => "message",
            _ => "packet",
        }
    }

    /// How much too early the packet is; nothing if its length is what is wrong.
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

/// Why a contract cannot be judged from when packets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotJudged {
    /// It only promises.
    #[error(
        "nothing in this contract says what may come when: write cell, channel, or one of up, \
         down and both"
    )]
    Nothing,
    /// It says so more than once.
    #[error(
        "several clauses of this contract say what may come when: check one of cell, channel, \
         up, down and both at a time"
    )]
    Several,
}

/// BT at the sustained rate for a packet of this length, rounded down to what the comparison can
/// tell apart; nothing if the packet is longer than the burst.
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
