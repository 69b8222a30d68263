//! The promises that the driver of a link keeps, to flows and to redirected targets, and those held
//! for flows ([`PromisedFlows`]), with the sums of their demands ([`DemandSums`]) at the rates of
//! the driver that were asked for last ([`MAX_SUMS`]). With the sums, a flow is admitted or closed
//! beside tens of thousands of others in microseconds. They never accept what does not fit. If they
//! do not accept, the caller asks the exact test ([`super::admission`]), whose time grows with the
//! number of promises, and which names the reason and what would fit. No function fails.

use std::collections::BTreeMap;
use std::rc::Rc;

use netnice_core::admission::timing::{DemandSums, Promise, SumsAnswer};
use netnice_core::contract::{Contract, IfName};
use netnice_core::units::Rate;

use super::Flows;
use super::admission::{self, Further, LinkCapacity, MAX_SEARCHED, WorkAhead};
use super::network::Network;

/// The holder of a promise. The order: first cell contracts and slices of targets, then promises to
/// flows, then held promises. Minimums of targets come last, because the kernel's classes can keep
/// them as well. Of each kind, older ones come before later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PromiseHolder {
    /// The redirected target with this id, which has a cell contract or a slice.
    Target(u32),
    /// The flow with this number.
    Flow(u32),
    /// The hold with this number: a promise for a flow that is opened later ([`super::holds`]).
    Hold(u32),
    /// The redirected target with this id, which has a minimum.
    Minimum(u32),
}

/// The contracts that the driver of a link keeps.
#[derive(Default)]
pub(super) struct PromisedFlows {
    contracts: BTreeMap<PromiseHolder, Rc<Contract>>,
    /// The number of contracts with a deadline.
    with_deadline: usize,
    /// The number of contracts whose packets have times of their own.
    with_exact_times: usize,
    /// The sums that were used last, the last ones first.
    sums: Vec<RateSums>,
}

/// The sums of the demands at one rate of the driver.
struct RateSums {
    capacity: LinkCapacity,
    rate: Rate,
    demands: DemandSums,
    /// The number of contracts that the driver cannot keep even alone, which are in no sum.
    impossible: usize,
}

impl PromisedFlows {
    /// Sets the contract of a holder; `None` if nothing is promised to it any more.
    pub(super) fn set(&mut self, holder: PromiseHolder, contract: Option<&Rc<Contract>>) {
        let before = match contract {
            Some(contract) => self.contracts.insert(holder, Rc::clone(contract)),
            None => self.contracts.remove(&holder),
        };
        if before.as_ref() == contract {
            return;
        }
        let (before, contract) = (before.as_deref(), contract.map(Rc::as_ref));
        let deadline = |contract: Option<&Contract>| {
            usize::from(contract.is_some_and(admission::has_deadline))
        };
        let exact = |contract: Option<&Contract>| {
            usize::from(contract.is_some_and(admission::has_exact_times))
        };
        self.with_deadline += deadline(contract);
        self.with_deadline -= deadline(before);
        self.with_exact_times += exact(contract);
        self.with_exact_times -= exact(before);
        for sums in &mut self.sums {
            if let Some(before) = before {
                sums.remove(before);
            }
            if let Some(contract) = contract {
                sums.add(contract, 1);
            }
        }
    }

    /// The holders and their contracts, in order of precedence.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PromiseHolder, &Rc<Contract>)> + Clone {
        self.contracts
            .iter()
            .map(|(holder, contract)| (*holder, contract))
    }

    /// True if a redirected target has a promise.
    pub(super) fn has_targets(&self) -> bool {
        let first = self.contracts.first_key_value();
        matches!(first, Some((PromiseHolder::Target(_), _))) || self.last_minimum().is_some()
    }

    /// The number of redirected targets.
    pub(super) fn targets(&self) -> usize {
        let is_target = |holder: &&PromiseHolder| {
            matches!(holder, PromiseHolder::Target(_) | PromiseHolder::Minimum(_))
        };
        self.contracts.keys().filter(is_target).count()
    }

    /// True if a promise is held for a flow.
    pub(super) fn has_holds(&self) -> bool {
        let all = PromiseHolder::Hold(0)..=PromiseHolder::Hold(u32::MAX);
        self.contracts.range(all).next().is_some()
    }

    /// The last target with a redirected minimum; `None` if there is none.
    pub(super) fn last_minimum(&self) -> Option<u32> {
        match self.contracts.last_key_value() {
            Some((PromiseHolder::Minimum(id), _)) => Some(*id),
            _ => None,
        }
    }

    /// The number of promises.
    pub(super) fn len(&self) -> usize {
        self.contracts.len()
    }

    /// True if a driver of this rate certainly keeps all promises, and `more`, if both paths send
    /// so far ahead of the link; with `further` flows.
    pub(super) fn fit_at_once<'a>(
        &mut self,
        capacity: &LinkCapacity,
        (rate, ahead, further): (Rate, WorkAhead, Further),
        more: impl Iterator<Item = &'a Contract>,
    ) -> bool {
        let more = more.filter_map(|contract| capacity.promise(rate, contract));
        let Ok(more) = more.collect::<Result<Vec<Promise>, _>>() else {
            return false;
        };
        let flows = self.len() + more.len() + further.flows;
        let transmitter = capacity.transmitter(rate, flows, ahead);
        let known = self
            .sums
            .iter()
            .position(|sums| sums.is_for(capacity, rate));
        let mut sums = match known {
            Some(at) => self.sums.remove(at),
            None => RateSums::of(capacity, rate, &self.contracts),
        };
        let demands = &mut sums.demands;
        let fits = sums.impossible == 0
            && demands.decide(&transmitter, &more, further.shortest) == SumsAnswer::Fits;
        self.sums.insert(0, sums);
        self.sums.truncate(MAX_SUMS);
        fits
    }
}

impl RateSums {
    fn of(
        capacity: &LinkCapacity,
        rate: Rate,
        contracts: &BTreeMap<PromiseHolder, Rc<Contract>>,
    ) -> RateSums {
        let link = capacity.transmitter(rate, 0, WorkAhead::SHORTEST);
        let mut sums = RateSums {
            capacity: *capacity,
            rate,
            demands: DemandSums::new(&link),
            impossible: 0,
        };
        // Flows that were opened one after the other often have equal contracts.
        let all: Vec<&Rc<Contract>> = contracts.values().collect();
        for equal in all.chunk_by(|one, next| one == next) {
            sums.add(equal[0], equal.len());
        }
        sums
    }

    /// True if the demands are the same at this capacity and rate.
    fn is_for(&self, capacity: &LinkCapacity, rate: Rate) -> bool {
        let demands_of = |capacity: &LinkCapacity| {
            let overhead = capacity.overhead();
            (capacity.link_rate, capacity.longest(), overhead)
        };
        self.rate == rate && demands_of(&self.capacity) == demands_of(capacity)
    }

    fn add(&mut self, contract: &Contract, times: usize) {
        let Some(promise) = self.capacity.promise(self.rate, contract) else {
            return;
        };
        let added = promise.and_then(|promise| self.demands.add(&promise, times));
        if added.is_err() {
            self.impossible += times;
        }
    }

    fn remove(&mut self, contract: &Contract) {
        let Some(promise) = self.capacity.promise(self.rate, contract) else {
            return;
        };
        let removed = promise.and_then(|promise| self.demands.remove(&promise));
        if removed.is_err() {
            self.impossible -= 1;
        }
    }
}

impl<N: Network> Flows<N> {
    /// The promises on a link: to its server, its redirected targets, and its flows without flow
    /// `but`, and those held for flows.
    pub(super) fn promises(&self, link: &IfName, but: Option<u32>) -> Vec<Contract> {
        let server = self.server_promise(link).cloned();
        server
            .into_iter()
            .chain(self.promised_but(link, but))
            .collect()
    }

    /// The promises on a link to flows and redirected targets, and those held for flows. Redirected
    /// minimums are not among them, because they give way.
    pub(super) fn promised_to_flows(&self, link: &IfName) -> Vec<Contract> {
        let state = self.link_states.get(link);
        let promised = state.into_iter().flat_map(|state| state.promised.iter());
        let firm = promised.filter(|(holder, _)| !matches!(holder, PromiseHolder::Minimum(_)));
        firm.map(|(_, contract)| (**contract).clone()).collect()
    }

    fn promised_but(
        &self,
        link: &IfName,
        but: Option<u32>,
    ) -> impl Iterator<Item = Contract> + use<'_, N> {
        let state = self.link_states.get(link);
        let promised = state.into_iter().flat_map(|state| state.promised.iter());
        let but = but.map(PromiseHolder::Flow);
        let others = promised.filter(move |(holder, _)| Some(*holder) != but);
        others.map(|(_, contract)| (**contract).clone())
    }

    /// The number of promises on a link: to its server, its flows and its redirected targets.
    pub(super) fn promise_count(&self, link: &IfName) -> usize {
        let state = self.link_states.get(link);
        let flows = state.map_or(0, |state| state.promised.len());
        flows + usize::from(self.server_promise(link).is_some())
    }

    /// True if a driver of this rate certainly keeps all promises of a link, and `more`. False also
    /// if the direct path cannot have this rate.
    pub(super) fn fit_at_once(
        &mut self,
        link: &IfName,
        capacity: &LinkCapacity,
        rate: Rate,
        more: Option<&Contract>,
    ) -> bool {
        let possible = (capacity.least()..=capacity.max_direct).contains(&rate);
        possible
            && self.fit_with(
                link,
                capacity,
                (rate, WorkAhead::SHORTEST, Further::default()),
                more,
            )
    }

    /// As [`Flows::fit_at_once`] at the largest rate, with `further` flows.
    pub(super) fn fit_with_further(
        &mut self,
        link: &IfName,
        capacity: &LinkCapacity,
        further: Further,
        more: &Contract,
    ) -> bool {
        let rate = capacity.max_direct;
        self.fit_with(
            link,
            capacity,
            (rate, WorkAhead::SHORTEST, further),
            Some(more),
        )
    }

    fn fit_with(
        &mut self,
        link: &IfName,
        capacity: &LinkCapacity,
        at: (Rate, WorkAhead, Further),
        more: Option<&Contract>,
    ) -> bool {
        let server = self.server_promise(link).cloned();
        let Some(state) = self.link_states.get_mut(link) else {
            return false;
        };
        let more = server.iter().chain(more);
        state.promised.fit_at_once(capacity, at, more)
    }

    /// The rate that the direct path needs for the promises of a link, if the sums tell: `present`
    /// if that is enough. With more than [`MAX_SEARCHED`] promises also the largest rate, which
    /// they get without a search.
    pub(super) fn need_at_once(
        &mut self,
        link: &IfName,
        capacity: &LinkCapacity,
        present: Option<Rate>,
    ) -> Option<Rate> {
        let largest = (self.promise_count(link) > MAX_SEARCHED).then_some(capacity.max_direct);
        let rates = present.into_iter().chain(largest);
        rates
            .into_iter()
            .find(|rate| self.fit_at_once(link, capacity, *rate, None))
    }

    /// How far both paths of a link may send ahead of it ([`LinkCapacity::work_ahead`]). The driver
    /// has the rate `certain` for certain, and needs `need` of it.
    pub(super) fn work_ahead(
        &mut self,
        link: &IfName,
        capacity: &LinkCapacity,
        need: Rate,
        certain: Rate,
    ) -> Option<WorkAhead> {
        let promised = self.link_states.get(link).map(|state| &state.promised);
        let (with_deadline, with_exact_times) = promised.map_or((0, 0), |flows| {
            (flows.with_deadline, flows.with_exact_times)
        });
        let serves_cells = self
            .server_promise(link)
            .is_some_and(admission::has_deadline);
        if with_deadline == 0 && !serves_cells {
            return None;
        }
        let exact = with_exact_times > 0 || serves_cells;
        let longest = WorkAhead::steps(exact)[0];
        match self.promise_count(link) {
            count if count > MAX_SEARCHED => Some(WorkAhead::SHORTEST),
            // The sums are those at the rate that the driver needs.
            _ if self.fit_with(link, capacity, (need, longest, Further::default()), None) => {
                Some(longest)
            }
            _ => capacity.work_ahead(certain, &self.promises(link, None), exact),
        }
    }

    /// The holders of promises that do not fit beside the promises before them that do, last first.
    /// Beyond [`MAX_SEARCHED`] promises only the sums decide.
    pub(super) fn surplus(&self, link: &IfName, capacity: &LinkCapacity) -> Vec<PromiseHolder> {
        let server = self.server_promise(link).cloned();
        let (mut kept, mut surplus) = (PromisedFlows::default(), Vec::new());
        let state = self.link_states.get(link);
        for (holder, contract) in state.into_iter().flat_map(|state| state.promised.iter()) {
            kept.set(holder, Some(contract));
            let rate = capacity.max_direct;
            let fits = kept.fit_at_once(
                capacity,
                (rate, WorkAhead::SHORTEST, Further::default()),
                server.iter(),
            ) || kept.len() <= MAX_SEARCHED
                && capacity
                    .need(
                        &server
                            .iter()
                            .chain(kept.contracts.values().map(Rc::as_ref))
                            .cloned()
                            .collect::<Vec<_>>(),
                    )
                    .is_ok();
            if !fits {
                kept.set(holder, None);
                surplus.push(holder);
            }
        }
        surplus.reverse();
        surplus
    }
}

/// The number of sums that are kept up to date: at the rate that the driver needs, and at the
/// largest rate, which the search for the deadline of a held promise asks for.
const MAX_SUMS: usize = 2;

#[cfg(test)]
mod tests;
