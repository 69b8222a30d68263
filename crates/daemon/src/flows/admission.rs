//! Decides whether the promises to the direct flows of a link fit, and which rate the driver needs
//! for them ([`LinkCapacity`]). The functions are pure. [`LinkCapacity::admit`] fails if the
//! promises are not kept together; the refusal ([`Misfit`]) has the fault, and what would fit.
//!
//! # The split
//! Of a link's rate C, the kernel's classes keep K: what is promised to targets, or 1/50 of C
//! ([`TREE_DIVISOR`]) if that is more, so that a remote login to examine a full link gets through.
//! The direct path has at most C − K. It *needs* the rate R: of [`STEPS`] (64) equal steps up to C
//! − K, a bisection finds the smallest at which the driver's scheduler keeps all promises,
//! including deadlines ([`Transmitter::carries`]); at a lower rate, packets would block each other
//! for longer. With more than [`MAX_SEARCHED`] (512) promises there is no search: promises that the
//! present R can keep leave R as it is; in all other cases R becomes C − K. A quick test on sums
//! ([`super::promised_flows`]) comes first, so that most flows open without the bisection. R is at
//! least 1/100 of C ([`FLOWS_DIVISOR`]), so that flows without a promise get through too. The paths
//! lend each other the rate between R and C − K ([`super::division`]).
//!
//! The driver sends at the rate C, and later by the time that the link takes for what the classes
//! send, which is at most C − R. So it has at least R, as a link of that rate would, and a promise
//! that such a link keeps is kept. A slice is a part of the link C: on a link of the rate R it
//! would take C/R times as long for the same bytes, so that is its length in the test
//! ([`scaled_slice`]).

use netnice_api::driver::{DriverRequest, MIN_PACKET_BYTES, SEND_AHEAD_NS};
use netnice_core::admission::timing::{PacketSizes, Promise, Stops, TimingFault, Transmitter};
use netnice_core::contract::{Change, Contract, Direction, Setting, Slice};
use netnice_core::link::Link;
use netnice_core::sched::{EarlyOrder, Guarantee, Service, Wire};
use netnice_core::units::{Amount, Bytes, Nanos, Rate};

use super::alternatives::Misfit;
use crate::ledger::direct_part::FLOWS_DIVISOR;

/// How far the two paths may send ahead of the link. A long time costs deadlines; with a short one
/// the link stands idle when the driver, or the timer of the kernel's classes, is late by more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkAhead {
    /// The bucket of the filter above the kernel's classes, as time at their rate.
    pub bucket: Nanos,
    /// The work-ahead of the driver.
    pub driver: Nanos,
}

impl WorkAhead {
    /// What admission counts.
    pub(super) const SHORTEST: WorkAhead = WorkAhead {
        bucket: Nanos(15_000),
        driver: Nanos(SEND_AHEAD_NS),
    };

    /// What is tried before [`WorkAhead::SHORTEST`], longest first. With `exact` the driver always
    /// has the shortest work-ahead, since a packet with a time of its own waits for what is in the
    /// device's queue.
    pub(super) fn steps(exact: bool) -> [WorkAhead; 3] {
        [1_000_000, 250_000, 60_000].map(|time| WorkAhead {
            bucket: Nanos(time),
            driver: match exact {
                true => WorkAhead::SHORTEST.driver,
                false => Nanos(time),
            },
        })
    }
}

/// Flows beside those with promises. They must have room too, where work is due within intervals of
/// at least `shortest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Further {
    pub flows: usize,
    pub shortest: Nanos,
}

impl Further {
    /// Further flows from the deadline of a message on the link on. The scheduler's resolution
    /// makes that deadline shorter by less than 1/16 and 2 us ([`Resolution::SCHEDULER`]).
    ///
    /// [`Resolution::SCHEDULER`]: netnice_core::admission::timing::Resolution::SCHEDULER
    pub(super) fn beside(flows: usize, deadline: Nanos) -> Further {
        let lost = deadline.0 / 16 + 2_000;
        Further {
            flows,
            shortest: Nanos(deadline.0.saturating_sub(lost)),
        }
    }
}

/// The capacity of a link for direct flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkCapacity {
    /// The link's sending rate.
    pub link_rate: Rate,
    /// The rate that the kernel's classes keep.
    pub tree: Rate,
    /// The largest rate of the direct path.
    pub max_direct: Rate,
    overhead: Bytes,
    horizon: Nanos,
    longest: Bytes,
    stops: Option<Stops>,
}

impl LinkCapacity {
    /// The capacity of a link with `promised` to targets of the kernel path. `None` if the link has
    /// no sending rate or not enough is left. `stops` is what the machine takes from the driver.
    pub(super) fn on(
        link: &Link,
        promised: Amount,
        mtu: u32,
        stops: Option<Stops>,
    ) -> Option<LinkCapacity> {
        let link_rate = link.usable(Direction::Up)?;
        let bits = link_rate.bits_per_second();
        let tree = Rate::new((bits / TREE_DIVISOR).max(promised.0)).unwrap_or(Rate::MIN);
        let max_direct = Rate::new(bits.saturating_sub(tree.bits_per_second()))?;
        let capacity = LinkCapacity {
            link_rate,
            tree,
            max_direct,
            overhead: link.overhead,
            horizon: link.horizon,
            stops,
            longest: Bytes(u64::from(mtu) + ETHERNET_HEADER),
        };
        (max_direct >= capacity.least()).then_some(capacity)
    }

    /// The rate of the direct path when nothing is promised to its flows.
    pub(super) fn least(&self) -> Rate {
        let bits = self.link_rate.bits_per_second() / FLOWS_DIVISOR;
        Rate::new(bits).unwrap_or(Rate::MIN)
    }

    /// The length of the longest frame: the MTU and the Ethernet header.
    pub(super) fn longest(&self) -> Bytes {
        self.longest
    }

    /// Bytes that the wire adds to each packet.
    pub(super) fn overhead(&self) -> u64 {
        self.overhead.0
    }

    /// How long before its logical arrival a packet of a channel may leave; 0 by default.
    pub(super) fn horizon(&self) -> Nanos {
        self.horizon
    }

    /// The stops that admission counts; `None` if the policy names none.
    pub(super) fn stops(&self) -> Option<Stops> {
        self.stops
    }

    /// The link's parameters for a driver, beside kernel classes of this rate. `ahead` is that of
    /// [`LinkCapacity::work_ahead`].
    pub(super) fn wire_request(&self, tree: Rate, ahead: Option<WorkAhead>) -> DriverRequest {
        DriverRequest::Wire {
            rate: self.link_rate.bits_per_second(),
            kernel_rate: tree.bits_per_second(),
            overhead: self.overhead.0,
            horizon_ns: self.horizon.0,
            ahead_ns: ahead.map_or(LONGEST_AHEAD, |ahead| ahead.driver).0,
        }
    }

    /// The rate that the direct path needs for these contracts; the least one if there are none.
    ///
    /// # Errors
    /// The fault, if the contracts are not kept even with [`LinkCapacity::max_direct`].
    pub(super) fn need(&self, contracts: &[Contract]) -> Result<Rate, TimingFault> {
        let carries = |rate: Rate| self.carries(rate, contracts);
        if contracts.is_empty() {
            return Ok(self.least());
        }
        carries(self.max_direct)?;
        let step = |n: u64| {
            let bits =
                u128::from(self.max_direct.bits_per_second()) * u128::from(n) / u128::from(STEPS);
            Rate::new(bits as u64)
                .unwrap_or(Rate::MIN)
                .max(self.least())
        };
        let (mut low, mut high) = (1, STEPS);
        while low < high && contracts.len() <= MAX_SEARCHED {
            let middle = low + (high - low) / 2;
            match carries(step(middle)) {
                Ok(()) => high = middle,
                Err(_) => low = middle + 1,
            }
        }
        Ok(step(high))
    }

    /// The rate needed with one more contract; `present` is the rate needed for `held`, if known.
    ///
    /// # Errors
    /// The fault, and what would fit ([`super::alternatives`]).
    pub(super) fn admit(
        &self,
        held: &[Contract],
        requested: &Contract,
        present: Option<Rate>,
    ) -> Result<Rate, Misfit> {
        let present = present.unwrap_or(self.least()).max(self.least());
        if present <= self.max_direct && promise_of(requested).is_none() {
            return Ok(present);
        }
        let all: Vec<Contract> = held.iter().chain([requested]).cloned().collect();
        // With many promises a single test is slow, and one more often fits into the present rate.
        if all.len() > MAX_SEARCHED
            && present <= self.max_direct
            && self.carries(present, &all).is_ok()
        {
            return Ok(present);
        }
        self.need(&all).map_err(|fault| Misfit {
            instead: self.alternative(held, requested),
            fault,
        })
    }

    /// Decides whether a driver of this rate keeps all these contracts, by the exact test.
    ///
    /// # Errors
    /// The fault, if it does not.
    pub(super) fn carries(&self, rate: Rate, contracts: &[Contract]) -> Result<(), TimingFault> {
        let promises: Result<Vec<Promise>, TimingFault> = contracts
            .iter()
            .filter_map(|contract| self.promise(rate, contract))
            .collect();
        self.transmitter(rate, contracts.len(), WorkAhead::SHORTEST)
            .carries(&promises?)
    }

    /// How far both paths may send ahead of the link: the longest of [`WorkAhead::steps`] with
    /// which a driver of this rate keeps all promises. `None` if none of them has a deadline.
    /// `exact`: see [`WorkAhead::steps`].
    pub(super) fn work_ahead(
        &self,
        rate: Rate,
        contracts: &[Contract],
        exact: bool,
    ) -> Option<WorkAhead> {
        if !contracts.iter().any(has_deadline) {
            return None;
        }
        let promises = contracts.iter().filter_map(|c| self.promise(rate, c));
        let promises: Vec<Promise> = promises.flatten().collect();
        let fits = |ahead: &WorkAhead| {
            let transmitter = self.transmitter(rate, contracts.len(), *ahead);
            transmitter.carries_at_once(&promises)
        };
        let longer = WorkAhead::steps(exact)
            .into_iter()
            .filter(|_| contracts.len() <= MAX_SEARCHED);
        Some(longer.into_iter().find(fits).unwrap_or(WorkAhead::SHORTEST))
    }

    /// The longest time that the kernel's classes take of the link ahead of their rate, with a
    /// filter of this bucket above them. A change of the filter's rate fills the bucket again, so
    /// two buckets count (docs/reference/contracts.md, "The kernel path beside deadlines").
    fn ahead_of_classes(&self, bucket: Nanos) -> Nanos {
        let longest = Bytes(self.longest.0 + VLAN_TAG + self.overhead.0);
        let one = bucket.max(self.link_rate.time_for(longest));
        Nanos(one.0.saturating_mul(2))
    }

    /// The link at this rate, with so many flows, if both paths send so far ahead of it.
    pub(super) fn transmitter(&self, rate: Rate, flows: usize, ahead: WorkAhead) -> Transmitter {
        let by_classes = self.ahead_of_classes(ahead.bucket);
        let wire = Wire {
            rate,
            overhead: self.overhead,
            ahead: Nanos(by_classes.0.saturating_add(ahead.driver.0)),
            horizon: self.horizon,
            early: EarlyOrder::AfterLeftOver,
            longest: self.longest,
        };
        let flows = u32::try_from(flows).unwrap_or(u32::MAX);
        Transmitter {
            stops: self.stops,
            ..Transmitter::of(&wire, self.longest, flows)
        }
    }

    /// The promise of a contract at a driver of this rate; `None` if it promises nothing.
    pub(super) fn promise(
        &self,
        rate: Rate,
        contract: &Contract,
    ) -> Option<Result<Promise, TimingFault>> {
        // Rates do not count the overhead of the wire, so a flow of short packets takes more of the
        // link than one of long packets.
        let sizes = PacketSizes::new(Bytes(MIN_PACKET_BYTES), self.longest)?;
        let (guarantee, max) = match promise_of(contract)? {
            PromiseKind::Rate(min) => return Some(Ok(Promise::Min(min, sizes))),
            PromiseKind::Guarantee(guarantee, max) => (guarantee, max),
        };
        Some(Ok(match (guarantee, max) {
            (Guarantee::Slice { slice, .. }, _) => {
                match scaled_slice(slice, self.link_rate, rate) {
                    Some(slice) => Promise::Slice(slice, sizes),
                    None => {
                        return Some(Err(TimingFault::Share {
                            millionths: 1_000_001,
                        }));
                    }
                }
            }
            (Guarantee::Cell(cell), _) => Promise::Cell(cell, sizes),
            (Guarantee::Channel(channel), None) => Promise::Channel(channel),
            (Guarantee::Channel(channel), Some((rate, burst))) => {
                Promise::Limited(channel, rate, burst)
            }
        }))
    }
}

/// The promise in a contract.
enum PromiseKind {
    Rate(Rate),
    Guarantee(Guarantee, Option<(Rate, Nanos)>),
}

fn promise_of(contract: &Contract) -> Option<PromiseKind> {
    match Service::of(contract).ok()? {
        Service::Share { min, .. } => min.map(PromiseKind::Rate),
        Service::Slice { slice, weight } => Some(PromiseKind::Guarantee(
            Guarantee::Slice { slice, weight },
            None,
        )),
        // The server of its class is promised in its place.
        Service::Cell(cell) if cell.class().is_some() => None,
        Service::Cell(cell) => Some(PromiseKind::Guarantee(Guarantee::Cell(cell), None)),
        Service::Channel(channel) => {
            Some(PromiseKind::Guarantee(Guarantee::Channel(channel), None))
        }
        Service::Limited { guarantee, max } => Some(PromiseKind::Guarantee(guarantee, Some(max))),
    }
}

/// True if a contract contains a promise.
pub(super) fn is_promised(contract: &Contract) -> bool {
    promise_of(contract).is_some()
}

/// True if a contract promises a deadline.
pub(super) fn has_deadline(contract: &Contract) -> bool {
    matches!(promise_of(contract), Some(PromiseKind::Guarantee(..)))
}

/// True if a contract promises a time for each packet or message.
pub(super) fn has_exact_times(contract: &Contract) -> bool {
    contract.cell().is_some() || contract.channel().is_some()
}

/// True if a contract is in a class of the link's server.
pub(super) fn is_member(contract: &Contract) -> bool {
    contract.cell().is_some_and(|cell| cell.class().is_some())
}

/// The contract without the clauses that promise something.
pub(super) fn best_effort(contract: &Contract) -> Contract {
    let change = Change {
        min: contract.min(Direction::Up).map(|_| Setting::Clear),
        slice: contract.slice().map(|_| Setting::Clear),
        cell: contract.cell().map(|_| Setting::Clear),
        channel: contract.channel().map(|_| Setting::Clear),
        ..Change::default()
    };
    contract.apply(&change).unwrap_or_default()
}

/// The slice for a driver that has `rate` of the link; `None` if it would exceed its period.
fn scaled_slice(slice: Slice, capacity: Rate, rate: Rate) -> Option<Slice> {
    let (whole, part) = (capacity.bits_per_second(), rate.bits_per_second());
    let time = (u128::from(slice.slice().0) * u128::from(whole)).div_ceil(u128::from(part));
    let time = u64::try_from(time).ok()?;
    Slice::new(Nanos(time), slice.period(), slice.extra()).ok()
}

/// The kernel's classes keep at least 1/50 of the link.
const TREE_DIVISOR: u64 = 50;
/// Number of steps in the search for the needed rate.
const STEPS: u64 = 64;
/// With more promises than this, a test takes long: the needed rate is then set to the maximum
/// without a search.
pub(super) const MAX_SEARCHED: usize = 512;
/// Length of an Ethernet header, in bytes.
const ETHERNET_HEADER: u64 = 14;
/// Length of a VLAN tag, in bytes.
const VLAN_TAG: u64 = 4;
/// How far the driver sends ahead of the link while no promise has a deadline.
const LONGEST_AHEAD: Nanos = Nanos(1_000_000);

#[cfg(test)]
mod tests;
