//! Grants and withdraws the promises to the flows of a link, and applies the division of the link
//! between the driver of the direct path and the kernel's classes. [`Flows::admit`] admits or
//! refuses a new or changed flow. [`Flows::settle`] degrades and restores flows when the link or
//! its promises have changed. If the kernel refuses the new rate of the classes, the division
//! stays: `admit` fails with the error, and `settle` writes a warning to the journal.

use std::rc::Rc;

use netnice_api::driver::DriverRequest;
use netnice_core::contract::{Contract, Direction, IfName};
use netnice_core::units::Rate;

use super::admission::{self, LinkCapacity, MAX_SEARCHED};
use super::alternatives::Misfit;
use super::division::LinkNeeds;
use super::network::Network;
use super::promised_flows::PromiseHolder;
use super::promises::{LinkPromises, Promises};
use super::{CallPurpose, FlowRecord, Flows};
use crate::clock::Now;
use crate::error::RequestError;
use crate::ledger::direct_part::DirectPart;

impl<N: Network> Flows<N> {
    /// The capacity that a link has for direct flows at present. `mtu` is that of its interface, in
    /// bytes.
    ///
    /// # Errors
    /// If the link is not managed, has no sending rate, or has too little left for direct flows.
    pub(super) fn link_capacity(
        &self,
        promises: &impl LinkPromises,
        link: &IfName,
        mtu: u32,
    ) -> Result<LinkCapacity, RequestError> {
        let managed = promises.link(link).ok_or_else(|| {
            RequestError::NotAdmitted(format!(
                "refused: {link} is not a managed link: netnice link {link} --rate R makes it one"
            ))
        })?;
        if managed.capacity(Direction::Up).is_none() {
            return Err(RequestError::NotAdmitted(format!(
                "refused: {link} has no sending rate: netnice link {link} --rate R gives it one"
            )));
        }
        let (each, promised) = promises.promised_to_targets(&managed);
        LinkCapacity::on(&managed, promised, mtu, promises.stops()).ok_or_else(|| {
            let mut text = format!(
                "refused: nothing of {link} is left for direct flows: {promised:#} of it are \
                 promised"
            );
            for (who, amount) in each {
                text.push_str(&format!("\n  held        {who}  {amount} up on {link}"));
            }
            RequestError::NotAdmitted(text)
        })
    }

    /// Admits a flow that is recorded already (as opened, or changed from `before`), and divides
    /// the link again.
    ///
    /// # Errors
    /// If the flow does not fit, with what would fit if that is known; if the link has no capacity
    /// for direct flows ([`Flows::link_capacity`]); or if the kernel refuses the classes.
    pub(super) fn admit(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        number: u32,
        before: Option<&Contract>,
        now: Now,
    ) -> Result<(), RequestError> {
        self.fit_new_server(promises, link, now);
        if let Some(flow) = self.flows.get(&number).cloned() {
            self.admit_member(promises, &flow)?;
        }
        self.admit_receive_share(link, number)?;
        self.admit_in_budget(promises, link, number)?;
        let admitted = self.admit_on_link(promises, link, number, before, now);
        if admitted.is_err() {
            self.store_minimums(promises, link, Some(number));
        }
        admitted
    }

    fn admit_on_link(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        number: u32,
        before: Option<&Contract>,
        now: Now,
    ) -> Result<(), RequestError> {
        let Some(flow) = self.flows.get(&number).cloned() else {
            return Ok(());
        };
        let mtu = self.nic_of(link)?.mtu;
        let capacity = self.link_capacity(promises, link, mtu)?;
        let present = self.link_states.get(link).and_then(|state| state.need);
        // A smaller rate may be enough for the changed promise; among many none is searched for.
        let shrinks = before.is_some_and(admission::is_promised);
        let searches = shrinks && self.promise_count(link) <= MAX_SEARCHED;
        let present = present.filter(|_| !searches);
        let present = present.or_else(|| self.server_need(link));
        let before_holds = self.need_after_holds(link, &capacity);
        if let Some(need) = before_holds.or_else(|| self.need_at_once(link, &capacity, present)) {
            return self.divide(promises, link, capacity, Some(need), now);
        }
        let held = self.promises(link, Some(number));
        let need = match capacity.admit(&held, &flow.contract, present) {
            Ok(need) => need,
            Err(_) if self.drop_last_minimum(promises, link, now) => {
                return self.admit_on_link(promises, link, number, before, now);
            }
            Err(misfit) => {
                let asks = format!("flow:{} asks {}", flow.known_number(), flow.contract);
                let of = (link, Some(PromiseHolder::Flow(number)));
                return Err(self.refusal(promises, &capacity, of, &asks, &misfit));
            }
        };
        self.divide(promises, link, capacity, Some(need), now)
    }

    /// The text of a refusal. `asks` begins it: the name of the flow or target, and its contract.
    /// `asking` is the flow or the target; `None` for the link's server.
    pub(super) fn refusal(
        &self,
        promises: &impl LinkPromises,
        capacity: &LinkCapacity,
        (link, asking): (&IfName, Option<PromiseHolder>),
        asks: &str,
        misfit: &Misfit,
    ) -> RequestError {
        let row = |word: &str, text: String| format!("\n  {word:<11} {text}");
        let mut text = format!("refused: {asks} on {link}, which does not fit");
        let managed = promises.link(link);
        let source = managed.as_ref().and_then(|m| m.capacity(Direction::Up));
        let source = source.map_or_else(String::new, |s| format!(", {}", s.source));
        text.push_str(&row(
            "link",
            format!("{link} up {}{source}", capacity.link_rate),
        ));
        let mut holders: Vec<String> = Vec::new();
        if let Some(managed) = &managed {
            let (each, _) = promises.promised_to_targets(managed);
            holders.extend(
                each.iter()
                    .map(|(who, amount)| format!("{who}  {amount} up on {link}")),
            );
        }
        if let Some(server) = self.server_promise(link).filter(|_| asking.is_some()) {
            holders.push(format!("the classes of {link}  {server}"));
        }
        let state = self.link_states.get(link);
        let promised = state.into_iter().flat_map(|state| state.promised.iter());
        // Redirected minimums have given way before, or will.
        let promised = promised.filter(|(holder, _)| {
            Some(*holder) != asking && !matches!(holder, PromiseHolder::Minimum(_))
        });
        let total = promised.clone().count();
        let text_of = |(holder, contract): (PromiseHolder, &Rc<Contract>)| match holder {
            PromiseHolder::Flow(number) => format!("flow:{number}  {contract}"),
            PromiseHolder::Hold(number) => format!("hold:{number}  {contract}"),
            PromiseHolder::Target(id) | PromiseHolder::Minimum(id) => {
                let name = promises.name_of(id);
                format!(
                    "{}  {contract}",
                    name.unwrap_or_else(|| format!("target {id}"))
                )
            }
        };
        holders.extend(promised.take(MAX_LISTED).map(text_of));
        if total > MAX_LISTED {
            holders.push(format!("and {} more", total - MAX_LISTED));
        }
        for (n, holder) in holders.iter().enumerate() {
            let word = if n == 0 { "held" } else { "" };
            text.push_str(&row(word, holder.clone()));
        }
        if let Some(stops) = capacity.stops() {
            text.push_str(&row("stops", format!("{stops}, of the policy")));
        }
        text.push_str(&row("but", misfit.fault.to_string()));
        text.push_str(&row("would fit", misfit.instead.to_string()));
        RequestError::NotAdmitted(text)
    }

    /// Divides a link again. Without flows, redirected targets, held promises or `need`, the
    /// kernel's classes get the whole link.
    pub(super) fn divide(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        capacity: LinkCapacity,
        need: Option<Rate>,
        now: Now,
    ) -> Result<(), RequestError> {
        let Some(state) = self.link_states.get_mut(link) else {
            return Ok(());
        };
        let Some(need) = need.filter(|_| state.is_used()) else {
            (state.split, state.need, state.last_totals) = (None, None, None);
            self.set_idle_part(promises, link)?;
            promises.heal(now);
            return Ok(());
        };
        let whole = LinkNeeds {
            capacity: capacity.link_rate,
            tree: capacity.tree,
            need,
        };
        let split = match state.split {
            Some(split) if whole.is_valid(split) && state.capacity == Some(capacity) => split,
            _ => whole.halved(),
        };
        state.need = Some(need);
        state.capacity = Some(capacity);
        let firm = self.firm_need(link, &capacity, need);
        if let Some(state) = self.link_states.get_mut(link) {
            state.firm_need = Some(firm);
        }
        self.apply_split(promises, link, split, now)
    }

    /// Puts a division into force, and informs the driver.
    ///
    /// # Errors
    /// If the kernel refuses the classes; then the division stays.
    pub(super) fn apply_split(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        split: super::Split,
        now: Now,
    ) -> Result<(), RequestError> {
        let state = self.link_states.get(link);
        let Some((need, capacity)) = state.and_then(|state| Some((state.need?, state.capacity?)))
        else {
            return Ok(());
        };
        let ahead = self.work_ahead(link, &capacity, need, split.driver);
        let Some(state) = self.link_states.get_mut(link) else {
            return Ok(());
        };
        let flows = state.flow_count;
        let part = DirectPart {
            need: state.firm_need.unwrap_or(need).min(need),
            flows,
            tree: split.tree,
            bucket: ahead.map(|ahead| ahead.bucket),
        };
        promises.set_direct_part(link, Some(part))?;
        self.send_path_counter(promises, link, now);
        let Some(state) = self.link_states.get_mut(link) else {
            return Ok(());
        };
        state.split = Some(split);
        let wire = capacity.wire_request(split.tree, ahead);
        if state.wire.replace(wire.clone()) != Some(wire.clone()) {
            self.call(link, wire, None, CallPurpose::SetRate, now);
        }
        // After the rate: the driver refuses a server that exceeds it.
        self.send_server(link, now);
        Ok(())
    }

    /// Gives the driver of a link the counter of the kernel's classes, if it has another one.
    fn send_path_counter(&mut self, promises: &mut impl Promises, link: &IfName, now: Now) {
        let counter = match promises.path_counter(link) {
            Ok(counter) => counter,
            Err(error) => {
                let text =
                    format!("the driver of {link} cannot count what its classes send: {error}");
                return promises.journal().warn(now, text);
            }
        };
        let (Some(counter), Some(state)) = (counter, self.link_states.get_mut(link)) else {
            return;
        };
        let known = (counter.map_id, counter.place);
        if state.path_counter.replace(known) != Some(known) {
            let place = counter.place;
            let ask = DriverRequest::KernelPath { place };
            self.call(link, ask, Some(counter.map), CallPurpose::SetRate, now);
        }
    }

    /// Sends a flow's contract to the driver. A flow that is being opened is skipped: its contract
    /// is sent once it is open.
    pub(super) fn send_contract(&mut self, flow: &FlowRecord, purpose: CallPurpose, now: Now) {
        let Some(at_driver) = flow.at_driver else {
            return;
        };
        let (contract, granted) = self.contracts_for_driver(flow);
        let ask = DriverRequest::Change {
            flow: at_driver,
            contract,
            granted,
        };
        self.call(&flow.link, ask, None, purpose, now);
    }

    /// The contract that the driver serves (without promises while the flow is degraded), and the
    /// granted contract if it differs.
    pub(super) fn contracts_for_driver(&self, flow: &FlowRecord) -> (String, Option<String>) {
        let (served, granted) = (self.served_contract(flow), flow.contract.to_string());
        let other = (granted != served).then_some(granted);
        (served, other)
    }

    fn served_contract(&self, flow: &FlowRecord) -> String {
        match flow.degraded {
            // A member keeps its contract while its server has no slice.
            Some(_) if !admission::is_member(&flow.contract) => {
                admission::best_effort(&flow.contract).to_string()
            }
            _ => flow.contract.to_string(),
        }
    }

    /// Checks the promises of a link after flows have gone or the link has changed: degrades flows
    /// that no longer fit, and restores degraded ones that fit again. Targets that could not be
    /// redirected are tried again.
    pub(super) fn settle(&mut self, promises: &mut impl Promises, link: &IfName, now: Now) {
        self.redirects.retry(link);
        self.settle_link(promises, link, now);
    }

    /// As [`Flows::settle`], without another try of the targets that could not be redirected.
    pub(super) fn settle_link(&mut self, promises: &mut impl Promises, link: &IfName, now: Now) {
        if !self.link_states.contains_key(link) {
            return;
        }
        self.fit_budgets(promises, link, now);
        let settled = match self.capacity_for_targets(promises, link, now) {
            Ok(capacity) => {
                let (need, restored) = self.fit_promises(promises, link, &capacity, now);
                let divided = self.divide(promises, link, capacity, need, now);
                // After the division: the driver serves a promise at the work-ahead that it needs.
                for number in restored {
                    match &divided {
                        Ok(()) => self.send_degraded(number, now),
                        Err(error) => self.degrade(number, error.to_string(), now),
                    }
                }
                divided
            }
            Err(error) => {
                self.end_holds_on(link);
                self.degrade_all(link, &error.to_string(), now);
                self.fit_server(promises, link, None, now);
                if let Some(state) = self.link_states.get_mut(link) {
                    (state.capacity, state.split, state.need) = (None, None, None);
                }
                self.set_idle_part(promises, link)
            }
        };
        if let Err(error) = settled {
            promises
                .journal()
                .warn(now, format!("cannot divide {link}: {error}"));
        }
    }

    /// If the promises to flows do not fit, degrades those that do not fit beside the older ones
    /// that do, and ends the held ones that do not. A flow that fits is not touched. Then restores
    /// degraded ones, oldest first. Returns the needed rate, and the restored flows, whose drivers
    /// are not informed yet.
    fn fit_promises(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        capacity: &LinkCapacity,
        now: Now,
    ) -> (Option<Rate>, Vec<u32>) {
        self.fit_server(promises, link, Some(capacity), now);
        let many = self.promise_count(link) > MAX_SEARCHED;
        let present = self.link_states.get(link).and_then(|state| state.need);
        // With few promises the smallest rate is searched for.
        let present = present.filter(|_| many);
        let before_holds = self.need_after_holds(link, capacity).filter(|_| many);
        let mut need = match before_holds.or_else(|| self.need_at_once(link, capacity, present)) {
            Some(rate) => Ok(rate),
            None => capacity.need(&self.promises(link, None)),
        };
        if need.is_err() {
            let why = format!(
                "{link} has {} for direct flows now, and what was promised does not fit into it",
                capacity.max_direct
            );
            for holder in self.surplus(link, capacity) {
                match holder {
                    PromiseHolder::Flow(number) => self.degrade(number, why.clone(), now),
                    PromiseHolder::Hold(number) => self.end_hold(number),
                    PromiseHolder::Target(id) | PromiseHolder::Minimum(id) => {
                        self.drop_target(promises, link, id, &why, now);
                    }
                }
            }
            need = capacity.need(&self.promises(link, None));
        }
        let no_promise = |flow: &&FlowRecord| {
            let is_member = admission::is_member(&flow.contract);
            flow.link == *link && flow.degraded.is_some() && !is_member
        };
        let degraded: Vec<u32> = match self.link_states.get(link) {
            Some(state) if state.had_degraded => {
                let degraded = self.flows.values().filter(no_promise);
                degraded.map(|flow| flow.number).collect()
            }
            _ => Vec::new(),
        };
        let mut restored = Vec::new();
        for number in degraded {
            let Some(flow) = self.flows.get(&number).cloned() else {
                continue;
            };
            if !self.fits_budget(promises, link, &flow) {
                continue;
            }
            let present = need.as_ref().ok().copied();
            if let Some(with) = self.need_with(link, capacity, &flow.contract, present) {
                need = Ok(with);
                self.restore(number);
                restored.push(number);
                self.store_minimums(promises, link, None);
            }
        }
        (need.ok(), restored)
    }

    /// The rate needed with one more contract; `None` if it does not fit. Beyond [`MAX_SEARCHED`]
    /// promises only the sums decide ([`super::promised_flows`]).
    fn need_with(
        &mut self,
        link: &IfName,
        capacity: &LinkCapacity,
        contract: &Contract,
        present: Option<Rate>,
    ) -> Option<Rate> {
        if self.promise_count(link) > MAX_SEARCHED {
            let mut rates = present.into_iter().chain([capacity.max_direct]);
            return rates.find(|rate| self.fit_at_once(link, capacity, *rate, Some(contract)));
        }
        let held = self.promises(link, None);
        capacity.admit(&held, contract, present).ok()
    }

    /// Checks all links with a driver: their capacity, the promises to targets or the discard
    /// patterns may have changed.
    pub(crate) fn settle_all(&mut self, promises: &mut impl Promises, now: Now) {
        self.settle_classes(promises, now);
        let links: Vec<IfName> = self.link_states.keys().cloned().collect();
        for link in links {
            self.update_policy(promises, &link, now);
            let state = self.link_states.get(&link).filter(|state| state.is_used());
            let Some(known) = state.map(|state| state.capacity) else {
                continue;
            };
            let mtu = self.nic_of(&link).map_or(1_500, |nic| nic.mtu);
            if self.link_capacity(promises, &link, mtu).ok() != known {
                self.settle(promises, &link, now);
            }
        }
        self.settle_redirects(promises, now);
    }
}

/// Largest number of flows that a refusal names.
pub(super) const MAX_LISTED: usize = 20;
