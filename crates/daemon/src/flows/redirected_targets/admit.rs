//! Admits the contracts of redirected targets at the driver of a link, beside its flows and its
//! server. [`Flows::admit_target`] fails with the reason if a contract does not fit. When the link
//! or its promises have changed, [`Flows::capacity_for_targets`] gives targets back to the classes
//! that do not fit any more.

use std::rc::Rc;

use netnice_core::contract::{Contract, Direction, IfName};
use netnice_core::units::{Bytes, Nanos, Rate};

use super::Phase;
use crate::clock::Now;
use crate::error::RequestError;
use crate::flows::Flows;
use crate::flows::admission::LinkCapacity;
use crate::flows::network::Network;
use crate::flows::promised_flows::PromiseHolder;
use crate::flows::promises::Promises;
use crate::ledger::redirects::RedirectableTarget;

impl<N: Network> Flows<N> {
    /// Admits the contract of a target at the driver, and divides the link again. Returns for how
    /// long the first packets wait.
    ///
    /// # Errors
    /// The reason, if it does not fit, or the kernel refuses the classes.
    pub(super) fn admit_target(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        target: u32,
        contract: &Rc<Contract>,
        now: Now,
    ) -> Result<Nanos, String> {
        let text = |error: RequestError| error.to_string();
        self.fit_new_server(promises, link, now);
        let mtu = self.nic_of(link).map_err(text)?.mtu;
        let capacity = self.link_capacity(promises, link, mtu).map_err(text)?;
        self.set_target_promise(link, target, Some(contract));
        let present = self.link_states.get(link).and_then(|state| state.need);
        if let Some(need) = self.need_at_once(link, &capacity, present) {
            let divided = self.divide(promises, link, capacity, Some(need), now);
            return divided.map(|()| self.hold(link)).map_err(text);
        }
        self.set_target_promise(link, target, None);
        let held = self.promises(link, None);
        let need = match capacity.admit(&held, contract, present) {
            Ok(need) => need,
            Err(_)
                if contract.min(Direction::Up).is_none()
                    && self.drop_last_minimum(promises, link, now) =>
            {
                return self.admit_target(promises, link, target, contract, now);
            }
            Err(misfit) => {
                let name = promises.name_of(target).unwrap_or_default();
                let asks = format!("{name} asks {contract}");
                let of = (link, Some(PromiseHolder::Target(target)));
                let refusal = self.refusal(promises, &capacity, of, &asks, &misfit);
                return Err(refusal.to_string());
            }
        };
        self.set_target_promise(link, target, Some(contract));
        let divided = self.divide(promises, link, capacity, Some(need), now);
        divided.map(|()| self.hold(link)).map_err(text)
    }

    /// The time in which the kernel's classes of a link send what a full queue of traffic without a
    /// target has.
    fn hold(&self, link: &IfName) -> Nanos {
        let split = self.link_states.get(link).and_then(|state| state.split);
        let hold = split.map(|split| split.tree.time_for(Bytes(QUEUED_BYTES)));
        hold.unwrap_or(LONGEST_HOLD).min(LONGEST_HOLD)
    }

    /// Takes the capacity of a link, after redirected targets have gone back to the classes as far
    /// as they do not fit: minimums that do not fit beside all other promises, and other targets
    /// that do not fit even without flows; of each kind the last one first.
    ///
    /// # Errors
    /// As [`Flows::link_capacity`].
    pub(in crate::flows) fn capacity_for_targets(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        now: Now,
    ) -> Result<LinkCapacity, RequestError> {
        let mtu = self.nic_of(link).map_or(1_500, |nic| nic.mtu);
        loop {
            let capacity = self.link_capacity(promises, link, mtu);
            let state = self.link_states.get(link);
            if !state.is_some_and(|state| state.promised.has_targets()) {
                return capacity;
            }
            let fault = match &capacity {
                Ok(capacity) if self.need_at_once(link, capacity, None).is_some() => None,
                Ok(capacity) => capacity.need(&self.promises(link, None)).err(),
                Err(_) => None,
            };
            let why = match (&capacity, fault) {
                (Ok(_), None) => return capacity,
                (Err(error), _) => error.to_string(),
                (Ok(_), Some(fault)) => format!("it does not fit on {link} now: {fault}"),
            };
            if self.drop_last_minimum(promises, link, now) {
                continue;
            }
            let (last, mut alone) = self.promised_to_targets_alone(link);
            alone.extend(self.server_promise(link).cloned());
            let fits = capacity.as_ref().is_ok_and(|one| one.need(&alone).is_ok());
            match last.filter(|_| !fits) {
                Some(last) => self.drop_target(promises, link, last, &why, now),
                None => return capacity,
            }
        }
    }

    /// The last of a link's redirected targets without those with a minimum, and the contracts of
    /// all of them.
    fn promised_to_targets_alone(&self, link: &IfName) -> (Option<u32>, Vec<Contract>) {
        let state = self.link_states.get(link);
        let promised = state.into_iter().flat_map(|state| state.promised.iter());
        let targets = promised.filter_map(|(holder, contract)| match holder {
            PromiseHolder::Target(id) => Some((id, (**contract).clone())),
            PromiseHolder::Flow(_) | PromiseHolder::Hold(_) | PromiseHolder::Minimum(_) => None,
        });
        let (ids, contracts): (Vec<u32>, Vec<Contract>) = targets.unzip();
        (ids.last().copied(), contracts)
    }

    /// The rate that the direct path needs of a link without redirected minimums. `need` is what it
    /// needs with them.
    pub(in crate::flows) fn firm_need(
        &self,
        link: &IfName,
        capacity: &LinkCapacity,
        need: Rate,
    ) -> Rate {
        let state = self.link_states.get(link);
        if state.is_none_or(|state| state.promised.last_minimum().is_none()) {
            return need;
        }
        let mut firm = self.promised_to_flows(link);
        firm.extend(self.server_promise(link).cloned());
        capacity.need(&firm).unwrap_or(need)
    }

    /// Gives the last redirected minimum of a link back to the classes. Returns true if there was
    /// one.
    pub(in crate::flows) fn drop_last_minimum(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        now: Now,
    ) -> bool {
        let state = self.link_states.get(link);
        let last = state.and_then(|state| state.promised.last_minimum());
        if let Some(id) = last {
            let why = format!("the driver of {link} needs the rate for other promises");
            self.drop_target(promises, link, id, &why, now);
        }
        last.is_some()
    }

    /// Gives a target back to its classes whose contract does not fit any more, without a new
    /// division of the link.
    pub(in crate::flows) fn drop_target(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        target: u32,
        why: &str,
        now: Now,
    ) {
        self.set_target_promise(link, target, None);
        let place = self.redirects.place_of(target, link);
        let Some(number) = place.map(|(number, _)| number) else {
            return;
        };
        if let Some(place) = self.redirects.places.get_mut(&number) {
            place.phase = Phase::Ending;
            let target = RedirectableTarget {
                id: target,
                link: link.clone(),
                contract: (*place.contract).clone(),
                rate: place.rate,
                starts_driver: place.starts_driver,
            };
            self.redirects.set_fault(&target, why.to_owned(), now);
        }
        self.store_fewer_places(promises, now);
        self.ask_end(number, now);
    }
}

/// The most bytes that the classes of a link may still have of a target.
const QUEUED_BYTES: u64 = 164_000;
/// The longest time for which the first packets wait at the driver: what a class of 1 Mbit/s needs
/// for a full queue.
pub(super) const LONGEST_HOLD: Nanos = Nanos::from_millis(1_400);
