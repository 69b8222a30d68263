//! Conformance of traffic to a contract, decided from the times and lengths of its packets.
//!
//! A [`Policer`] gets the time and the length of each packet ([`Observation`]) and returns a
//! [`Violation`] if the packet does not conform. [`Policer::contract`] fails for a contract that
//! times and lengths cannot check. The policer shares no code with the schedulers, so it can check
//! their output, and that of other senders: `netnice check` applies it to packet captures.
//!
//! # Rules
//! - `cell pcr cdvt`: a packet conforms if GCRA(length / PCR, CDVT) accepts it.
//! - `… scr mbs`: GCRA(length / SCR, CDVT + BT) must accept it too, where BT = (MBS - length)
//!   (1/SCR - 1/PCR).
//! - `channel mmax rmax bmax`: a message conforms if it is at most Mmax long, and every interval of
//!   length t that ends with it has at most Bmax + Rmax t messages.
//! - `up`, `down`, `both` R with `burst` B: a packet conforms if GCRA(length / R, B) accepts it.
//!
//! GCRA is the algorithm of the standard ([`gcra`]). For packets of one size BT, counted in cells,
//! is the burst tolerance of the ATM Forum's TM 4.0, (MBS - 1) (1/SCR - 1/PCR). For packets of any
//! size a burst at the peak rate may hold MBS bytes, the last packet included, so a packet longer
//! than MBS never conforms. Both kinds of bucket have the same pair of rules: a sender with
//! `bucket=dual` shapes more strictly than this check. The third rule is the linear bounded arrival
//! process of the paper RTC (its sources are Cruz, and Anderson's DASH). For times alone it is
//! GCRA(1/Rmax, (Bmax - 1)/Rmax), because Bmax messages may come at once and the next one 1/Rmax
//! later.
//!
//! As in the standard, a packet that does not conform changes no state. If it is too early for one
//! of the two rates, it counts for neither. So the first reported packet violates the contract, and
//! each later one violates it even without the reported ones before it.
//!
//! # Time of a packet
//! The time may be that of any point of the packet, if it is the same point for all packets. If the
//! recording point stamps the ends of packets and the contract is about their starts, different
//! lengths shift packets against each other by up to (longest - shortest) / link rate.
//! [`Policer::with_tolerance`] allows for that.

pub mod gcra;

use core::fmt;
use core::num::NonZeroU64;

use crate::contract::{Cell, Channel, Contract, MessageRate, Sustained};
use crate::units::{Bytes, Instant, Nanos, Rate};
use gcra::{NANOS_PER_SECOND, Tolerance, VirtualScheduling};

/// A packet, or a message of a channel, as it was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The time of the observation.
    pub at: Instant,
    /// The length in the contract's unit: the layer 2 bytes of a packet, without preamble, checksum
    /// and gap, or the bytes of a message.
    pub length: Bytes,
}

/// A check whether the packets of one flow conform to one clause of a contract. Its state is that
/// of the clause's GCRAs.
#[derive(Clone, Debug)]
pub struct Policer {
    rule: Rule,
    /// Extra tolerance beyond the contract's.
    tolerance: Nanos,
    /// Number of packets checked so far.
    count: u64,
}

/// The clause that is checked, with the state of its GCRAs.
#[derive(Clone, Debug)]
enum Rule {
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

impl Policer {
    /// A check of packets against a cell contract.
    pub fn cell(cell: Cell) -> Policer {
        let sustained = cell.sustained();
        Policer::of(Rule::Cell {
            cell,
            peak: VirtualScheduling::new(bits(cell.pcr())),
            sustained: sustained.map(|s| VirtualScheduling::new(bits(s.scr))),
        })
    }

    /// A check of messages against a channel's contract. Each observation counts as one message.
    pub fn channel(channel: Channel) -> Policer {
        let arrivals = VirtualScheduling::new(messages(channel.rmax()));
        Policer::of(Rule::Channel { channel, arrivals })
    }

    /// A check of packets against a limit. After a silence the limit allows at once the bytes that
    /// `rate` carries in `burst`, and one packet more.
    pub fn limit(rate: Rate, burst: Nanos) -> Policer {
        let bucket = VirtualScheduling::new(bits(rate));
        Policer::of(Rule::Limit {
            rate,
            burst,
            bucket,
        })
    }

    /// A check of packets (for a channel: of messages) against a contract. A limit applies to all
    /// observed packets, because an [`Observation`] has no direction.
    ///
    /// # Errors
    /// [`NotCheckable`] unless the contract has exactly one of the clauses `up`, `down`, `both`,
    /// `cell` and `channel`, which restrict the times of packets.
    pub fn contract(contract: &Contract) -> Result<Policer, NotCheckable> {
        let burst = contract.burst().unwrap_or(Contract::DEFAULT_BURST);
        let limits = [contract.up(), contract.down(), contract.both()];
        let mut rules = limits
            .into_iter()
            .flatten()
            .map(|rate| Policer::limit(rate, burst))
            .chain(contract.cell().map(Policer::cell))
            .chain(contract.channel().map(Policer::channel));
        match (rules.next(), rules.next()) {
            (Some(policer), None) => Ok(policer),
            (None, _) => Err(NotCheckable::Nothing),
            (Some(_), Some(_)) => Err(NotCheckable::Several),
        }
    }

    /// The same check with `tolerance` in addition to that of the contract. It replaces an earlier
    /// extra tolerance.
    pub fn with_tolerance(self, tolerance: Nanos) -> Policer {
        Policer { tolerance, ..self }
    }

    /// Checks the next packet. The rules apply to its time as it is, also if that is before the
    /// time of an earlier packet.
    ///
    /// # Errors
    /// [`Violation`] if the packet does not conform. The packet then changes nothing but
    /// [`Policer::count`].
    pub fn handle(&mut self, observation: Observation) -> Result<(), Violation> {
        self.count = self.count.saturating_add(1);
        self.rule
            .check(observation, self.tolerance)
            .map_err(|rule| Violation {
                number: self.count,
                observation,
                rule,
            })
    }

    /// Number of packets checked so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    fn of(rule: Rule) -> Policer {
        Policer {
            rule,
            tolerance: Nanos(0),
            count: 0,
        }
    }
}

impl Rule {
    fn check(&mut self, observation: Observation, extra: Nanos) -> Result<(), ViolatedRule> {
        let Observation { at, length } = observation;
        match self {
            Rule::Cell {
                cell,
                peak,
                sustained,
            } => {
                let (pcr, cdvt) = (cell.pcr(), cell.cdvt());
                let tolerance = tolerance_at(bits(pcr), &[cdvt, extra]);
                if let Some(by) = peak.earliness(at, tolerance) {
                    return Err(ViolatedRule::AbovePeak { by, pcr, cdvt });
                }
                if let (Some(bucket), Some(parts)) = (&*sustained, cell.sustained()) {
                    let Sustained { scr, mbs, .. } = parts;
                    let room = burst_tolerance(pcr, &parts, length);
                    let room = room.ok_or(ViolatedRule::LongerThanBurst { mbs })?;
                    let extra = tolerance_at(bits(scr), &[cdvt, extra]);
                    let tolerance = Tolerance(room.0 + extra.0);
                    if let Some(by) = bucket.earliness(at, tolerance) {
                        return Err(ViolatedRule::AboveSustained { by, scr, mbs });
                    }
                }
                for bucket in [Some(peak), sustained.as_mut()].into_iter().flatten() {
                    bucket.accept(at, length_in_bits(length));
                }
            }
            Rule::Channel { channel, arrivals } => {
                let (mmax, rmax, bmax) = (channel.mmax(), channel.rmax(), channel.bmax());
                if length > mmax {
                    return Err(ViolatedRule::LongerThanMessage { mmax });
                }
                let at_once = i128::from(bmax - 1) * NANOS_PER_SECOND;
                let tolerance = Tolerance(at_once + tolerance_at(messages(rmax), &[extra]).0);
                if let Some(by) = arrivals.earliness(at, tolerance) {
                    return Err(ViolatedRule::AboveArrivals { by, rmax, bmax });
                }
                arrivals.accept(at, 1);
            }
            Rule::Limit {
                rate,
                burst,
                bucket,
            } => {
                let tolerance = tolerance_at(bits(*rate), &[*burst, extra]);
                if let Some(by) = bucket.earliness(at, tolerance) {
                    let (rate, burst) = (*rate, *burst);
                    return Err(ViolatedRule::AboveLimit { by, rate, burst });
                }
                bucket.accept(at, length_in_bits(length));
            }
        }
        Ok(())
    }
}

/// A packet that does not conform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {number}, {} long, {rule}", rule.noun(), observation.length)]
pub struct Violation {
    /// Number of the packet (or message) among all that were checked, from 1.
    pub number: u64,
    /// The packet.
    pub observation: Observation,
    /// The violated rule.
    pub rule: ViolatedRule,
}

/// The rule that a packet or message violates, with the excess and the values of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViolatedRule {
    /// The packet is too early for the peak rate.
    AbovePeak {
        /// Time by which the packet is too early, beyond every tolerance.
        by: Nanos,
        /// PCR, the peak rate of the contract.
        pcr: Rate,
        /// CDVT, the tolerance of the contract.
        cdvt: Nanos,
    },
    /// The packet is too early for the sustained rate.
    AboveSustained {
        /// Time by which the packet is too early, beyond every tolerance.
        by: Nanos,
        /// SCR, the sustained rate of the contract.
        scr: Rate,
        /// MBS, the largest burst at peak rate, in bytes.
        mbs: Bytes,
    },
    /// The packet is longer than the largest burst at peak rate.
    LongerThanBurst {
        /// MBS, the largest burst at peak rate, in bytes.
        mbs: Bytes,
    },
    /// An interval that ends with the message has more messages than the channel allows.
    AboveArrivals {
        /// Time by which the message is too early, beyond every tolerance.
        by: Nanos,
        /// Rmax, the rate of messages of the contract.
        rmax: MessageRate,
        /// Bmax, the largest number of messages in a burst.
        bmax: u32,
    },
    /// The message is longer than the longest allowed one.
    LongerThanMessage {
        /// Mmax, the length of the largest message.
        mmax: Bytes,
    },
    /// The packet is too early for a limit.
    AboveLimit {
        /// Time by which the packet is too early, beyond every tolerance.
        by: Nanos,
        /// The limit.
        rate: Rate,
        /// The amount that may come at once, as time at the limit's rate.
        burst: Nanos,
    },
}

impl ViolatedRule {
    /// The noun for the observation in messages.
    fn noun(&self) -> &'static str {
        match self {
            ViolatedRule::AboveArrivals { .. } | ViolatedRule::LongerThanMessage { .. } => {
                "message"
            }
            _ => "packet",
        }
    }

    /// Time by which the packet is too early; `None` if the violation is its length.
    pub fn by(&self) -> Option<Nanos> {
        match *self {
            ViolatedRule::AbovePeak { by, .. }
            | ViolatedRule::AboveSustained { by, .. }
            | ViolatedRule::AboveArrivals { by, .. }
            | ViolatedRule::AboveLimit { by, .. } => Some(by),
            ViolatedRule::LongerThanBurst { .. } | ViolatedRule::LongerThanMessage { .. } => None,
        }
    }
}

impl fmt::Display for ViolatedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViolatedRule::AbovePeak { by, pcr, cdvt } => {
                write!(f, "is {by} too early for pcr {pcr} with cdvt {cdvt}")
            }
            ViolatedRule::AboveSustained { by, scr, mbs } => {
                write!(f, "is {by} too early for scr {scr} with mbs {mbs}")
            }
            ViolatedRule::LongerThanBurst { mbs } => write!(f, "is longer than mbs {mbs}"),
            ViolatedRule::AboveArrivals { by, rmax, bmax } => {
                write!(f, "is {by} too early for rmax {rmax} with bmax {bmax}")
            }
            ViolatedRule::LongerThanMessage { mmax } => write!(f, "is longer than mmax {mmax}"),
            ViolatedRule::AboveLimit { by, rate, burst } => {
                write!(f, "is {by} too early for {rate} with a burst of {burst}")
            }
        }
    }
}

/// The error of a contract that cannot be checked from the times of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCheckable {
    /// No clause restricts the times of packets.
    #[error(
        "no clause of this contract restricts the times of packets: write one of cell, channel, \
         up, down and both"
    )]
    Nothing,
    /// Several clauses restrict the times of packets.
    #[error(
        "several clauses of this contract restrict the times of packets: write only one of cell, \
         channel, up, down and both"
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
fn tolerance_at(rate: NonZeroU64, parts: &[Nanos]) -> Tolerance {
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
