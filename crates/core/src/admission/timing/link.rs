//! Decides whether a link keeps the deadlines and rates that are promised on it (paper RTC, section
//! 3.3). A [`Transmitter`] converts each [`Promise`] into a demand: the most time on the link that
//! the promise can require within an interval. [`Transmitter::carries`] decides on a set of
//! promises and fails with [`TimingFault`], [`Transmitter::admit`] decides on one more promise and
//! fails with [`TimingRefusal`].

use alloc::vec::Vec;

use super::demand::{Demand, Fluid, Growth, LONGEST, Scale, Steps, ratio_up};
use super::edf::Blocking;
use super::stops::Stops;
use super::{
    Alternative, BUDGET, BUDGET_PER_TRY, TimingFault, TimingRefusal, channel_alternative, decide,
    least, most, slice_alternative,
};
use crate::contract::{Cell, Channel, MessageRate, Overload, Slice};
use crate::sched::{DUE_PER_CALL, Wire};
use crate::units::{Bytes, Nanos, Rate};

/// A link with its costs of sending. L(x), the duration of a packet of x bytes, is `per_packet` +
/// (x + `framing`) / `rate` (paper RTC, section 3.3: C_x + x / B_x, with B_x the smaller one of the
/// bandwidths of the link and of the path to it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmitter {
    /// Rate of the link.
    pub rate: Rate,
    /// Bytes that the link adds to each packet.
    pub framing: Bytes,
    /// Time that a packet takes besides its bytes: C_x.
    pub per_packet: Nanos,
    /// The largest packet. A longer message is sent as several packets, all but the last of this
    /// size.
    pub largest: Bytes,
    /// The largest packet without a deadline (best effort). Its transmission may delay a packet
    /// with a deadline. Zero if there are no such packets.
    pub leftover: Bytes,
    /// Work that may come first although it is due later: the driver's batch, which is handed to
    /// the device before its time and cannot be recalled, and the packets of flows that a scheduler
    /// with bounded calls has not examined yet.
    pub ahead: Nanos,
    /// How long before its logical arrival a channel's packet may leave if no other packet may.
    pub horizon: Nanos,
    /// Time resolution of the scheduler, which the test subtracts from deadlines.
    pub resolution: Resolution,
    /// The time that the machine takes from the thread that sends; `None` if it takes none.
    pub stops: Option<Stops>,
}

/// Time resolution of a scheduler. It has two effects: a packet may become eligible late, and the
/// scheduler may order the packet by a deadline that is earlier than its own. The admission test
/// subtracts both times from every deadline. A divisor of 0 means that its term does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// A constant part: a packet is assumed late by at least this time, and its deadline early by
    /// this time in addition to the part that `early` gives.
    pub least: Nanos,
    /// Divisor: a packet becomes eligible late by at most its wait / `wait`.
    pub wait: u32,
    /// Divisor: a packet becomes eligible late by at most the time between its eligible time and
    /// its deadline / `laxity`. If `wait` is set too, the smaller of the two bounds holds.
    pub laxity: u32,
    /// Divisor: the deadline is early by at most the time between eligible time and deadline /
    /// `early`, plus `least`.
    pub early: u32,
}

impl Resolution {
    /// The resolution of an exact scheduler.
    pub const NONE: Resolution = Resolution {
        least: Nanos(0),
        wait: 0,
        laxity: 0,
        early: 0,
    };

    /// The resolution of [`crate::sched`]. A wait is rounded up by at most 1/1024 of itself or 1/32
    /// of the time between eligible time and deadline, whichever is less, or by 512 ns if that is
    /// more. A deadline is rounded down by at most 1/113 of that time (1/128 and 1/1024) and 576 ns
    /// (64 and 512; [`crate::sched::effective_bound`]).
    pub const SCHEDULER: Resolution = Resolution {
        least: Nanos(576),
        wait: 1024,
        laxity: 32,
        early: 113,
    };

    /// The loss of a deadline, in ticks, if packets wait for up to `wait`.
    pub(super) fn of(self, deadline: u128, wait: u128, scale: Scale) -> u128 {
        let part = |time: u128, parts: u32| time.checked_div(u128::from(parts));
        let least = scale.ticks(self.least);
        let (by_wait, by_laxity) = (part(wait, self.wait), part(deadline, self.laxity));
        let late = match (by_wait, by_laxity) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b).unwrap_or(0),
        };
        late.max(least) + least + part(deadline, self.early).unwrap_or(0)
    }
}

/// The smallest and the largest packet of a flow, in bytes without [`Transmitter::framing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSizes {
    least: Bytes,
    most: Bytes,
}

impl PacketSizes {
    /// The longest supported packet: 16 MiB.
    pub const LONGEST: Bytes = Bytes(1 << 24);

    /// Packet sizes from `least` to `most`, both included. `None` unless `least` is above zero and
    /// at most `most`, and `most` is at most [`PacketSizes::LONGEST`].
    pub fn new(least: Bytes, most: Bytes) -> Option<PacketSizes> {
        let good = 0 < least.0 && least <= most && most <= PacketSizes::LONGEST;
        good.then_some(PacketSizes { least, most })
    }

    /// Packets of one size. `None` as for [`PacketSizes::new`].
    pub fn all(size: Bytes) -> Option<PacketSizes> {
        PacketSizes::new(size, size)
    }

    /// The length of the smallest packet.
    pub fn least(self) -> Bytes {
        self.least
    }

    /// The length of the largest packet.
    pub fn most(self) -> Bytes {
        self.most
    }
}

/// A promise of a link to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Each message of a channel has left by its logical arrival plus the channel's deadline.
    Channel(Channel),
    /// A channel with a limit: the limit's rate, and its burst as time at that rate. A limit on any
    /// other kind of promise changes neither the promise nor its demand.
    Limited(Channel, Rate, Nanos),
    /// Each packet has left by its theoretical time plus CDVT.
    Cell(Cell, PacketSizes),
    /// In every whole period in which the flow always has a packet, it sends for the slice, less
    /// one largest packet.
    Slice(Slice, PacketSizes),
    /// A long-term rate, for packets of these sizes. It has no deadline of its own.
    Min(Rate, PacketSizes),
}

impl Transmitter {
    /// The link of a [`crate::sched::Scheduler`] with at most `flows` flows. Calls of the scheduler
    /// are bounded: of the flows that become eligible at one instant it examines at least
    /// [`DUE_PER_CALL`] before it sends a packet, if there are so many. So the flow with the
    /// earliest deadline may wait for one packet for each further [`DUE_PER_CALL`] flows.
    /// `leftover` is the largest packet without a deadline.
    pub fn of(wire: &Wire, leftover: Bytes, flows: u32) -> Transmitter {
        let calls = flows.div_ceil(DUE_PER_CALL).saturating_sub(1);
        let longest = Bytes(wire.longest.0.saturating_add(wire.overhead.0));
        let not_examined = wire.rate.time_for(longest).0.saturating_mul(calls.into());
        Transmitter {
            rate: wire.rate,
            framing: wire.overhead,
            per_packet: Nanos(0),
            largest: wire.longest,
            leftover,
            ahead: Nanos(wire.ahead.0.saturating_add(not_examined)),
            horizon: wire.horizon,
            resolution: Resolution::SCHEDULER,
            stops: None,
        }
    }

    /// Decides whether all these promises are kept together, for all legal traffic.
    ///
    /// # Errors
    /// [`TimingFault`] if not: the inequality that fails, a promise that is invalid on this link,
    /// or that the set was not decided.
    pub fn carries(&self, promises: &[Promise]) -> Result<(), TimingFault> {
        self.check(promises.iter(), (Nanos(0), BUDGET))
    }

    /// As [`Transmitter::carries`], with the amount of work of one try in a search. False also if
    /// the set is not decided with so much work.
    pub fn carries_at_once(&self, promises: &[Promise]) -> bool {
        self.carries_from(promises, Nanos(0))
    }

    /// As [`Transmitter::carries_at_once`], for work that is due within intervals of at least
    /// `shortest` only.
    pub fn carries_from(&self, promises: &[Promise], shortest: Nanos) -> bool {
        self.check(promises.iter(), (shortest, BUDGET_PER_TRY))
            .is_ok()
    }

    /// Decides whether one more promise can be made beside the ones that are held.
    ///
    /// # Errors
    /// [`TimingRefusal`] contains the fault, and an alternative if there is one.
    pub fn admit(&self, held: &[Promise], requested: &Promise) -> Result<(), TimingRefusal> {
        let Err(fault) = self.check(held.iter().chain([requested]), (Nanos(0), BUDGET)) else {
            return Ok(());
        };
        let fits = |promise: Option<Promise>| {
            promise.is_some_and(|promise| {
                let all = held.iter().chain([&promise]);
                self.check(all, (Nanos(0), BUDGET_PER_TRY)).is_ok()
            })
        };
        let alternative = self.alternative(requested, &fits);
        Err(TimingRefusal { fault, alternative })
    }

    /// The shortest deadline that a channel can have beside the held promises. `None` if no
    /// deadline up to 2.4 hours fits, or if none is found in bounded time.
    pub fn least_deadline(&self, held: &[Promise], channel: &Channel) -> Option<Nanos> {
        let shortest = channel.processing().0.saturating_add(1);
        match self.admit(held, &Promise::Channel(at_deadline(channel, shortest)?)) {
            Ok(()) => Some(Nanos(shortest)),
            Err(refusal) => match refusal.alternative {
                Some(Alternative::Deadline(least)) => Some(least),
                _ => None,
            },
        }
    }

    fn check<'a>(
        &self,
        promises: impl Iterator<Item = &'a Promise>,
        within: (Nanos, u64),
    ) -> Result<(), TimingFault> {
        let stops = self.stops.map(|stops| Ok(stops.demand(self.scale())));
        let demands: Result<Vec<Demand>, TimingFault> =
            promises.map(|p| self.demand(p)).chain(stops).collect();
        let decided = decide(&demands?, self.scale(), self.blocking(), within);
        decided.map_err(|fault| match (fault, self.stops) {
            (
                TimingFault::Late {
                    within,
                    due,
                    blocked,
                    ..
                },
                Some(stops),
            ) => {
                let stopped = stops.within(within);
                let due = Nanos(due.0.saturating_sub(stopped.0));
                TimingFault::Late {
                    within,
                    due,
                    blocked,
                    stopped,
                }
            }
            (fault, _) => fault,
        })
    }

    fn alternative(
        &self,
        requested: &Promise,
        fits: &dyn Fn(Option<Promise>) -> bool,
    ) -> Option<Alternative> {
        match requested {
            Promise::Channel(channel) => {
                channel_alternative(channel, |channel| fits(Some(Promise::Channel(channel))))
            }
            Promise::Limited(channel, max, burst) => {
                let longer = least(burst.0..=LONGEST.0, |burst| {
                    fits(Some(Promise::Limited(*channel, *max, Nanos(burst))))
                });
                let deadline = || {
                    least(channel.deadline().0..=LONGEST.0, |d| {
                        let with = at_deadline(channel, d);
                        fits(with.map(|with| Promise::Limited(with, *max, *burst)))
                    })
                };
                let longer = longer.map(|burst| Alternative::Burst(Nanos(burst)));
                longer.or_else(|| deadline().map(|d| Alternative::Deadline(Nanos(d))))
            }
            Promise::Cell(cell, sizes) => {
                let (pcr, parts) = (cell.pcr(), cell.sustained());
                let with = |cdvt| Cell::new(pcr, Nanos(cdvt), parts).ok();
                let cdvt = least(cell.cdvt().0..=LONGEST.0, |cdvt| {
                    fits(with(cdvt).map(|cell| Promise::Cell(cell, *sizes)))
                });
                cdvt.map(|cdvt| Alternative::Cdvt(Nanos(cdvt)))
            }
            Promise::Slice(slice, sizes) => {
                slice_alternative(slice, |slice| fits(Some(Promise::Slice(slice, *sizes))))
            }
            Promise::Min(rate, sizes) => {
                let range = Rate::MIN.bits_per_second()..=rate.bits_per_second();
                let rate = most(range, |rate| {
                    fits(Rate::new(rate).map(|rate| Promise::Min(rate, *sizes)))
                });
                rate.and_then(Rate::new).map(Alternative::Rate)
            }
        }
    }

    /// The demand of a promise. Fails if the promise is invalid on this link.
    pub(super) fn demand(&self, promise: &Promise) -> Result<Demand, TimingFault> {
        let scale = self.scale();
        match promise {
            Promise::Channel(channel) => Ok(self.channel_demand(channel)),
            Promise::Limited(channel, max, burst) => self
                .behind_limit(channel, *max, *burst)
                .map(|channel| self.channel_demand(&channel)),
            Promise::Cell(cell, sizes) => self.cell_demand(cell, *sizes),
            Promise::Slice(slice, sizes) => {
                let piece = self.packet(sizes.most.0);
                let period = scale.ticks(slice.period());
                let slope = ratio_up(u128::from(slice.slice().0), u128::from(slice.period().0));
                Ok(Demand {
                    deadline: 0,
                    growth: Growth::Fluid(Fluid {
                        burst: piece.saturating_add(self.early_work(slope, period)),
                        slope,
                    }),
                    cap: None,
                    piece,
                    in_leftover: slice.extra(),
                    tested_from: Some(period),
                })
            }
            Promise::Min(rate, sizes) => {
                let piece = self.packet(sizes.most.0);
                let slope = self.slope(*rate, *sizes);
                let due = scale.ticks(rate.time_for(sizes.most));
                Ok(Demand {
                    deadline: 0,
                    growth: Growth::Fluid(Fluid {
                        burst: self.early_work(slope, due),
                        slope,
                    }),
                    cap: None,
                    piece,
                    in_leftover: true,
                    tested_from: None,
                })
            }
        }
    }

    fn channel_demand(&self, channel: &Channel) -> Demand {
        let scale = self.scale();
        let per_message = u128::from(channel.rmax().get());
        let period = NANOS_PER_SECOND * scale.ticks(Nanos(1));
        let deadline = scale.ticks(channel.link_deadline());
        let deadline = self.effective_deadline(deadline, period / per_message);
        Demand {
            deadline,
            growth: Growth::Steps(Steps {
                cost: self.message(channel.mmax()),
                numerator: per_message,
                denominator: period,
            }),
            cap: None,
            piece: self.packet(channel.mmax().min(self.largest).0),
            in_leftover: channel.overload() == Overload::BestEffort,
            tested_from: Some(deadline),
        }
    }

    /// The channel with the part of its deadline that a limit leaves: all packets of a message have
    /// passed the limit by its logical arrival + D + Mmax / max - burst
    /// (docs/reference/contracts.md, theorem 2).
    fn behind_limit(
        &self,
        channel: &Channel,
        max: Rate,
        burst: Nanos,
    ) -> Result<Channel, TimingFault> {
        let rate = channel.rate();
        if rate > max.into() {
            return Err(TimingFault::AboveLimit { rate, max });
        }
        let takes = max.time_for(channel.mmax());
        let resolution = self.resolution;
        let part = |time: u64, parts: u32| time.checked_div(u64::from(parts)).unwrap_or(0);
        let wait = channel.deadline().0.saturating_add(takes.0);
        let late = part(wait, resolution.wait).max(resolution.least.0);
        let short = part(burst.0, resolution.early).saturating_add(resolution.least.0);
        let rest = burst.0.saturating_sub(short).saturating_sub(takes.0);
        let rest = rest.saturating_sub(late).min(channel.link_deadline().0);
        let held = TimingFault::HeldUp { takes, burst };
        let behind = Channel::new(channel.mmax(), channel.rmax(), channel.bmax(), Nanos(rest));
        let behind = behind.map(|behind| behind.with_overload(channel.overload()));
        behind.map_err(|_| held)
    }

    fn cell_demand(&self, cell: &Cell, sizes: PacketSizes) -> Result<Demand, TimingFault> {
        let (scale, pcr) = (self.scale(), cell.pcr());
        if pcr > self.rate {
            let (rate, link) = (pcr, self.rate);
            return Err(TimingFault::AboveLink { rate, link });
        }
        let piece = self.packet(sizes.most.0);
        // One packet of `most` takes most / PCR; in ticks, that many bytes times the link's rate.
        let numerator = u128::from(pcr.bits_per_second());
        let denominator = scale.bytes(sizes.most.0) * scale.ticks(Nanos(1));
        let growth = match sizes.least == sizes.most {
            true => Growth::Steps(Steps {
                cost: piece,
                numerator,
                denominator,
            }),
            false => Growth::Fluid(Fluid {
                burst: piece,
                slope: self.slope(pcr, sizes),
            }),
        };
        // A flow with a spent bucket waits until the bucket is full.
        let full = cell.sustained().map(|parts| parts.scr.time_for(parts.mbs));
        let wait = (denominator / numerator).max(scale.ticks(full.unwrap_or_default()));
        let deadline = self.effective_deadline(scale.ticks(cell.cdvt()), wait);
        let cap = match cell.sustained() {
            None => None,
            Some(parts) if sizes.most > parts.mbs => {
                let (packet, mbs) = (sizes.most, parts.mbs);
                return Err(TimingFault::LongerThanBurst { packet, mbs });
            }
            Some(parts) => {
                let bytes = burst_bytes(parts.mbs.0, sizes.most.0, parts.scr, pcr);
                let packets = bytes / u128::from(sizes.least.0) + 1;
                let each = self.packet(0);
                Some(Fluid {
                    burst: (bytes * scale.bytes(1)).saturating_add(packets.saturating_mul(each)),
                    slope: self.slope(parts.scr, sizes),
                })
            }
        };
        Ok(Demand {
            deadline,
            growth,
            cap,
            piece,
            in_leftover: false,
            tested_from: Some(deadline),
        })
    }

    /// The share of the link that a rate needs if all its packets have the smallest size.
    fn slope(&self, rate: Rate, sizes: PacketSizes) -> u128 {
        let needed = u128::from(rate.bits_per_second()).checked_mul(self.packet(sizes.least.0));
        let bytes = self.scale().bytes(sizes.least.0);
        let given = bytes * u128::from(self.rate.bits_per_second());
        needed.map_or(u128::MAX, |needed| ratio_up(needed, given))
    }

    /// L(x) in ticks.
    fn packet(&self, bytes: u64) -> u128 {
        let scale = self.scale();
        scale.bytes(bytes) + scale.bytes(self.framing.0) + scale.ticks(self.per_packet)
    }

    /// The duration of all packets of a message, in ticks.
    fn message(&self, bytes: Bytes) -> u128 {
        let packets = bytes.0.div_ceil(self.largest.0.max(1));
        let each = self.packet(0);
        self.scale()
            .bytes(bytes.0)
            .saturating_add(each.saturating_mul(u128::from(packets)))
    }

    /// A deadline less the scheduler's rounding, if packets wait for up to `wait`.
    fn effective_deadline(&self, deadline: u128, wait: u128) -> u128 {
        deadline.saturating_sub(self.resolution.of(deadline, wait, self.scale()))
    }

    /// The work that a flow without its own deadline may get too early: the scheduler may order it
    /// as if it were due up to a part of `period` earlier.
    fn early_work(&self, slope: u128, period: u128) -> u128 {
        let early = self.resolution.of(period, period, self.scale());
        Fluid { burst: 0, slope }.at(early)
    }

    pub(super) fn scale(&self) -> Scale {
        Scale::of(self.rate)
    }

    pub(super) fn blocking(&self) -> Blocking {
        let scale = self.scale();
        Blocking {
            leftover: match self.leftover {
                Bytes(0) => 0,
                Bytes(bytes) => self.packet(bytes),
            },
            ahead: scale.ticks(self.ahead),
            horizon: scale.ticks(self.horizon),
        }
    }
}

/// The largest burst of the sustained rate above its slope, in bytes: MBS (1 - SCR / PCR) + largest
/// · SCR / PCR, rounded up. During a burst at the peak rate the slope counts the rest. See
/// docs/reference/contracts.md, theorem 2, the demand of each contract.
fn burst_bytes(mbs: u64, largest: u64, scr: Rate, pcr: Rate) -> u128 {
    let (scr, pcr) = (scr.bits_per_second(), pcr.bits_per_second());
    let part = |bytes: u64, rate: u64| {
        let product = u128::from(bytes) * u128::from(rate);
        product.div_ceil(u128::from(pcr))
    };
    part(mbs, pcr - scr) + part(largest, scr)
}

/// The channel with another deadline, in nanoseconds; `None` for a deadline that leaves no time
/// behind the processing.
pub(super) fn at_deadline(channel: &Channel, deadline: u64) -> Option<Channel> {
    channel
        .resized(channel.mmax(), channel.rmax(), Nanos(deadline))
        .ok()
}

/// The channel with another rate, in messages per second; `None` outside the range of
/// [`MessageRate`].
pub(super) fn at_rate(channel: &Channel, rate: u64) -> Option<Channel> {
    let rmax = MessageRate::new(u32::try_from(rate).ok()?)?;
    channel
        .resized(channel.mmax(), rmax, channel.deadline())
        .ok()
}

/// Nanoseconds in a second.
pub(super) const NANOS_PER_SECOND: u128 = 1_000_000_000;
