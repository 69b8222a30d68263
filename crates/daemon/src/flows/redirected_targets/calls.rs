//! Begins, changes and ends the redirection of a target: starts the driver of its link, asks it,
//! and handles its answers. A target that cannot be redirected gets a fault with the reason.
//! Nothing here fails.

use std::rc::Rc;

use netnice_api::driver::{DriverReply, DriverRequest};
use netnice_core::contract::IfName;
use netnice_core::units::{Amount, Instant, Nanos};
use netnice_kernel::enforce::MAX_REDIRECTS;

use super::admit::LONGEST_HOLD;
use super::{Phase, Place};
use crate::clock::Now;
use crate::flows::admission::LinkCapacity;
use crate::flows::driver::Start;
use crate::flows::network::{Network, Nic};
use crate::flows::promises::{LONGEST_WAIT, Promises};
use crate::flows::{CallPurpose, Flows, LinkState};
use crate::ledger::redirects::RedirectableTarget;

impl<N: Network> Flows<N> {
    /// Begins to redirect a target, or goes on with it as far as the driver is ready.
    pub(super) fn begin_redirect(
        &mut self,
        promises: &mut impl Promises,
        target: &RedirectableTarget,
        now: Now,
    ) {
        let fault = self.redirects.faults.get(&target.id);
        let pause = self.redirects.pauses.get(&target.link);
        let waits = fault.is_some_and(|fault| fault.retry > now.monotonic)
            || pause.is_some_and(|pause| pause.until > now.monotonic);
        if waits {
            return;
        }
        self.redirects.faults.remove(&target.id);
        let link = &target.link;
        let Some(state) = self.link_states.get(link) else {
            if target.starts_driver
                && let Err(why) = self.start_driver_for_targets(promises, link, now)
            {
                self.redirects.set_fault(target, why, now);
            }
            return;
        };
        if state.is_fallback() {
            let why = match &state.why_not_native {
                Some(why) => format!("the driver of {link} has no AF_XDP: {why}"),
                None => format!("the driver of {link} has no AF_XDP"),
            };
            return self.redirects.set_fault(target, why, now);
        }
        // Any driver may have places in use that only its census tells.
        let mut states = self.link_states.values();
        if !state.has_xdp() || states.any(LinkState::may_have_places) {
            return;
        }
        let free = (0..MAX_REDIRECTS as u16).find(|n| !self.redirects.places.contains_key(n));
        let Some(number) = free else {
            let why = format!("all {MAX_REDIRECTS} places for redirected targets are in use");
            return self.redirects.set_fault(target, why, now);
        };
        let place = Place {
            link: link.clone(),
            target: target.id,
            contract: Rc::new(target.contract.clone()),
            rate: target.rate,
            starts_driver: target.starts_driver,
            phase: Phase::Asked,
            open_until: self.open_until(promises, target, now),
            is_end_asked: false,
        };
        self.redirects.places.insert(number, place);
        if let Err(why) = self.ask_driver(promises, number, now) {
            self.remove_place(number);
            self.store_fewer_places(promises, now);
            self.settle_link(promises, link, now);
            self.redirects.set_fault(target, why, now);
        }
    }

    /// Until when a target whose driver is asked now has no ceiling in the classes, see
    /// [`Place::open_until`].
    fn open_until(
        &self,
        promises: &impl Promises,
        target: &RedirectableTarget,
        now: Now,
    ) -> Option<Instant> {
        if let Some(until) = promises.awaiting().get(&target.id) {
            return Some(*until);
        }
        let had_its_time = self.redirects.late.contains(&target.id)
            || self.redirects.pauses.contains_key(&target.link);
        (!had_its_time).then(|| now.monotonic.after(LONGEST_WAIT))
    }

    /// The interface of a link that can have redirected targets.
    ///
    /// # Errors
    /// The reason, if it can have none.
    pub(super) fn nic_for_targets(&mut self, link: &IfName) -> Result<Nic, String> {
        let nic = self.nic(link).map_err(|error| error.to_string())?;
        match nic.mac {
            Some(mac) if mac != [0; 6] => Ok(nic),
            _ => Err(format!(
                "{link} has no Ethernet address, and the driver needs an Ethernet interface"
            )),
        }
    }

    /// Starts the driver of a link for targets alone.
    ///
    /// # Errors
    /// If the link cannot have one.
    fn start_driver_for_targets(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        now: Now,
    ) -> Result<(), String> {
        let nic = self.nic_for_targets(link)?;
        let managed = promises.link(link);
        let capacity =
            managed.and_then(|link| LinkCapacity::on(&link, Amount(0), nic.mtu, promises.stops()));
        let capacity = capacity.ok_or_else(|| format!("{link} has no sending rate"))?;
        let start = Start {
            rate: capacity.least().bits_per_second(),
            overhead: capacity.overhead(),
            keep_awake: promises.keeps_awake(),
            // `Drivers` sets it.
            write_stops: false,
        };
        let state = LinkState {
            nic: Some(nic),
            ..LinkState::default()
        };
        self.connect_driver(link, state, Some(start), now);
        Ok(())
    }

    /// Admits the contract of a place, which is in the records as asked, and sends it to the
    /// driver.
    ///
    /// # Errors
    /// The reason, if the kernel cannot make the redirect pair or the contract does not fit.
    fn ask_driver(
        &mut self,
        promises: &mut impl Promises,
        number: u16,
        now: Now,
    ) -> Result<(), String> {
        let Some(place) = self.redirects.places.get(&number) else {
            return Ok(());
        };
        let (link, target) = (place.link.clone(), place.target);
        let contract = Rc::clone(&place.contract);
        // From now on the classes need not keep the target's rate, and the link has its pair.
        self.store_places(promises)?;
        let hold = self.admit_target(promises, &link, target, &contract, now)?;
        let queued = promises.drain_time(&link, target);
        let queued = queued.map_err(|error| error.to_string())?;
        let hold = Nanos(hold.0.saturating_add(queued.0).min(LONGEST_HOLD.0));
        self.send_redirects(promises, &link, now)?;
        let ask = DriverRequest::Redirect {
            place: u32::from(number),
            target,
            contract: contract.to_string(),
            hold_ns: hold.0,
        };
        let purpose = CallPurpose::Redirect {
            place: number,
            target,
        };
        self.call(&link, ask, None, purpose, now);
        Ok(())
    }

    /// Gives the driver of a link the redirect pair and the map, if it has others.
    ///
    /// # Errors
    /// The reason, if the link has no pair.
    pub(super) fn send_redirects(
        &mut self,
        promises: &impl Promises,
        link: &IfName,
        now: Now,
    ) -> Result<(), String> {
        let pair = promises.redirect_pair(link);
        let pair = pair.map_err(|error| error.to_string())?;
        let pair = pair.ok_or_else(|| format!("the kernel has no redirect pair of {link}"))?;
        let Some(state) = self.link_states.get_mut(link) else {
            return Ok(());
        };
        let known = (pair.map_id, pair.far_index);
        if state.redirect_pair.replace(known) != Some(known) {
            let ask = DriverRequest::Redirects { iface: pair.far };
            self.call(link, ask, Some(pair.map), CallPurpose::SetRate, now);
        }
        Ok(())
    }

    /// Begins anew with the targets of a link if its redirect pair was made anew: the driver ends
    /// all places when it gets another pair. Returns true if it was.
    pub(in crate::flows) fn renew_redirects(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        now: Now,
    ) -> bool {
        let state = self.link_states.get(link);
        let Some(known) = state.and_then(|state| state.redirect_pair) else {
            return false;
        };
        let pair = promises.redirect_pair(link).ok().flatten();
        if pair.is_none_or(|pair| (pair.map_id, pair.far_index) == known) {
            // Without a pair, the repair of the kernel's objects makes it again.
            return false;
        }
        for number in self.redirects.places_of(link) {
            self.remove_place(number);
        }
        self.store_fewer_places(promises, now);
        self.settle(promises, link, now);
        true
    }

    /// Changes the contract of a place. If the new one does not fit, the target goes to the
    /// classes.
    pub(super) fn change_redirect(
        &mut self,
        promises: &mut impl Promises,
        number: u16,
        target: &RedirectableTarget,
        now: Now,
    ) {
        let Some(place) = self.redirects.places.get_mut(&number) else {
            return;
        };
        if matches!(place.phase, Phase::Restored(_)) {
            return;
        }
        place.contract = Rc::new(target.contract.clone());
        place.rate = target.rate;
        place.starts_driver = target.starts_driver;
        if let Err(why) = self.ask_driver(promises, number, now) {
            self.end_places(promises, &[number], now);
            self.redirects.set_fault(target, why, now);
        }
    }

    /// Ends places: first the kernel gives the targets back to their classes, then the drivers are
    /// asked to end them. A number is free again when the driver has answered.
    pub(super) fn end_places(&mut self, promises: &mut impl Promises, numbers: &[u16], now: Now) {
        let mut links: Vec<IfName> = Vec::new();
        for number in numbers {
            let Some(place) = self.redirects.places.get_mut(number) else {
                continue;
            };
            place.phase = Phase::Ending;
            let (link, target) = (place.link.clone(), place.target);
            self.set_target_promise(&link, target, None);
            links.push(link);
        }
        if links.is_empty() {
            return;
        }
        self.store_fewer_places(promises, now);
        for number in numbers {
            self.ask_end(*number, now);
        }
        links.sort();
        links.dedup();
        for link in links {
            self.settle_link(promises, &link, now);
        }
    }

    /// Asks the driver of a place to end it, once.
    pub(super) fn ask_end(&mut self, number: u16, now: Now) {
        let Some(place) = self.redirects.places.get_mut(&number) else {
            return;
        };
        if std::mem::replace(&mut place.is_end_asked, true) {
            return;
        }
        let link = place.link.clone();
        let ask = DriverRequest::EndRedirect {
            place: u32::from(number),
        };
        let purpose = CallPurpose::EndRedirect { place: number };
        self.call(&link, ask, None, purpose, now);
    }

    /// Handles the answer to a request to redirect a target, or to change its contract. `answer` is
    /// `None` if none came in time.
    pub(in crate::flows) fn handle_redirect_answer(
        &mut self,
        promises: &mut impl Promises,
        (number, target): (u16, u32),
        answer: Option<&DriverReply>,
        now: Now,
    ) {
        let known = self.redirects.places.get_mut(&number);
        let Some(place) = known.filter(|place| place.target == target) else {
            return;
        };
        if !matches!(place.phase, Phase::Asked | Phase::Active) {
            return;
        }
        let link = &place.link;
        let why = match answer {
            Some(DriverReply::Done) if place.phase == Phase::Active => return,
            Some(DriverReply::Done) => {
                place.phase = Phase::Active;
                match self.store_places(promises) {
                    Ok(()) => return,
                    Err(why) => why,
                }
            }
            Some(DriverReply::Failed { why }) => format!("the driver of {link} refuses: {why}"),
            Some(_) => format!("the answer of the driver of {link} does not match the call"),
            None => format!("the driver of {link} does not answer"),
        };
        self.give_up_place(promises, number, &why, now);
    }

    /// Gives a target back to its classes, which cannot be redirected for the reason `why`.
    fn give_up_place(&mut self, promises: &mut impl Promises, number: u16, why: &str, now: Now) {
        let Some(place) = self.redirects.places.get(&number) else {
            return;
        };
        let target = RedirectableTarget {
            id: place.target,
            link: place.link.clone(),
            contract: (*place.contract).clone(),
            rate: place.rate,
            starts_driver: place.starts_driver,
        };
        if let Some(name) = promises.name_of(target.id) {
            let text = format!(
                "the kernel's classes serve {name} on {}: {why}",
                target.link
            );
            promises.journal().warn(now, text);
        }
        self.end_places(promises, &[number], now);
        self.redirects.set_fault(&target, why.to_owned(), now);
    }

    /// Frees a place that the driver has ended.
    pub(in crate::flows) fn redirect_ended(
        &mut self,
        promises: &mut impl Promises,
        number: u16,
        now: Now,
    ) {
        let known = self.redirects.places.get(&number);
        if known.is_some_and(|place| place.phase == Phase::Ending) {
            self.redirects.places.remove(&number);
            self.store_fewer_places(promises, now);
            for fault in self.redirects.faults.values_mut() {
                let is_full = fault.why.starts_with("all ");
                if is_full {
                    fault.retry = now.monotonic;
                }
            }
        }
    }
}

impl LinkState {
    /// True while an earlier daemon's driver has not told its places.
    fn may_have_places(&self) -> bool {
        self.mode.is_empty() && !self.is_census_late
    }
}
