//! Redirected targets: the driver of a link keeps the contracts of targets in place of the kernel's
//! classes, for any program. The egress program redirects the targets' packets to the driver.
//!
//! After each event, [`Flows::settle_redirects`] compares the targets that the drivers can serve
//! ([`Promises::redirectable`]) with the places of the map of redirects that are in use:
//!
//! ```text
//!           the link has its pair,            the driver has
//!           the driver is asked               answered: done
//!   classes ─────────────────────> asked ───────────────────> active
//!     ^ ^                            │ refused, no answer       │ no longer wanted, does not fit
//!     │ │                            v                          v
//!     │ └──────────────────────── ending <──────────────────────┘
//!     │    the driver has sent all                              │ the driver has ended
//!     └─────────────────────────────────────────────────────────┘
//! ```
//! The packets of a target go to its classes in all states but active. A target that a request
//! gives to a driver may have no class until the driver has answered, for at most 3 s
//! ([`awaiting`]): its packets stay with those of traffic without a target. A place has its number
//! in the state file, so that the next daemon finds in force what it desires; its driver's census
//! decides which targets continue ([`takeover`]).
//!
//! A target that cannot be redirected stays with the classes, which hold its limits. The reason is
//! kept for `netnice explain`, and the target is tried again when the link has changed, or after
//! [`RETRY`] (60 s). After the end of a driver the targets are redirected again after 1 s, then 2
//! s, 4 s, … 60 s. Nothing here fails.

mod admit;
mod awaiting;
mod calls;
mod check;
mod explain;
mod requests;
mod takeover;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use netnice_core::contract::{Contract, Direction, IfName};
use netnice_core::units::{Amount, Instant, Nanos};

use super::network::Network;
use super::promised_flows::PromiseHolder;
use super::promises::Promises;
use super::{Flows, LinkState};
use crate::clock::Now;
use crate::ledger::redirects::{RedirectPhase, RedirectPlace, RedirectableTarget};

/// The redirected targets of all links, and those that could be redirected.
#[derive(Default)]
pub(super) struct RedirectState {
    /// The places in use, by number.
    places: BTreeMap<u16, Place>,
    /// Why targets that could be redirected are not, by target id.
    faults: BTreeMap<u32, Fault>,
    /// The links whose driver has ended, or could not be started.
    pauses: BTreeMap<IfName, Pause>,
    /// The targets that could be redirected, as of the last settlement, with their links.
    wanted: BTreeMap<u32, IfName>,
    /// Those with a cell contract.
    cells: BTreeSet<u32>,
    /// The targets that have waited for their driver without a class for as long as they may, and
    /// still wait.
    late: BTreeSet<u32>,
    /// Classes that the kernel has refused are not tried again before.
    classes_due: Instant,
    /// Replies to requests that wait until their target is redirected.
    replies: Vec<requests::PendingReply>,
    /// True once the places of the state file were taken in.
    restored: bool,
    /// The next time at which something is to be tried again; `None` if nothing waits.
    due: Option<Instant>,
}

/// A place in use.
struct Place {
    link: IfName,
    target: u32,
    /// What the driver was asked to keep.
    contract: Rc<Contract>,
    rate: Amount,
    /// True for a cell contract or a slice.
    starts_driver: bool,
    phase: Phase,
    /// Until then the classes have no ceiling for the target while the driver is asked; `None` if
    /// they have one, as when it goes back to a driver after the end of one.
    open_until: Option<Instant>,
    /// True if the driver was asked to end the place.
    is_end_asked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// An earlier daemon has left it in this phase. The census of the driver will tell more.
    Restored(RedirectPhase),
    /// The driver was asked, and has not answered.
    Asked,
    /// The packets go to the driver.
    Active,
    /// The packets go to the classes. The driver sends what it still has.
    Ending,
}

/// Why a target is not redirected.
struct Fault {
    link: IfName,
    contract: Contract,
    why: String,
    /// When it is tried again.
    retry: Instant,
}

/// The pause until the targets of a link are redirected again.
struct Pause {
    /// The number of drivers that ended one after the other.
    ends: u32,
    why: String,
    until: Instant,
    /// The time of the last end.
    ended: Instant,
}

impl Place {
    /// When the target gets a ceiling in the classes although the driver has not answered; `None`
    /// if it has one, or the driver has answered.
    fn ceiling_due(&self) -> Option<Instant> {
        self.open_until.filter(|_| self.phase == Phase::Asked)
    }
}

impl RedirectState {
    /// When [`Flows::settle_redirects`] has something to do without an event.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let replies = self.replies.iter().map(|reply| reply.until);
        replies.chain(self.due).min()
    }

    /// The place that serves a target on a link, or will.
    fn place_of(&self, target: u32, link: &IfName) -> Option<(u16, &Place)> {
        let mut places = self.places.iter();
        let found = places.find(|(_, place)| {
            place.target == target && place.link == *link && place.phase != Phase::Ending
        });
        found.map(|(number, place)| (*number, place))
    }

    /// The places of a link.
    fn places_of(&self, link: &IfName) -> Vec<u16> {
        let places = self.places.iter();
        let theirs = places.filter(|(_, place)| place.link == *link);
        theirs.map(|(number, _)| *number).collect()
    }

    fn set_fault(&mut self, target: &RedirectableTarget, why: String, now: Now) {
        let fault = Fault {
            link: target.link.clone(),
            contract: target.contract.clone(),
            why,
            retry: now.monotonic.after(RETRY),
        };
        self.faults.insert(target.id, fault);
    }

    /// Lets the targets of a link be tried again at the next settlement.
    pub(super) fn retry(&mut self, link: &IfName) {
        let theirs = self.faults.values_mut();
        for fault in theirs.filter(|fault| fault.link == *link) {
            fault.retry = Instant(0);
        }
    }

    /// The places as the ledger stores them.
    fn for_ledger(&self) -> BTreeMap<u16, RedirectPlace> {
        let places = self.places.iter().map(|(number, place)| {
            let phase = match place.phase {
                Phase::Restored(phase) => phase,
                Phase::Asked => RedirectPhase::Prepared,
                Phase::Active => RedirectPhase::Active,
                Phase::Ending => RedirectPhase::Ending,
            };
            let stored = RedirectPlace {
                link: place.link.clone(),
                target: place.target,
                // What the direct path needs for minimums is not counted in the ledger.
                rate: match place.starts_driver {
                    true => place.rate,
                    false => Amount(0),
                },
                phase,
                begins: place.open_until.is_some(),
            };
            (*number, stored)
        });
        places.collect()
    }
}

impl<N: Network> Flows<N> {
    /// Redirects the targets that drivers can serve, and ends what is no longer wanted.
    pub(super) fn settle_redirects(&mut self, promises: &mut impl Promises, now: Now) {
        if !self.redirects.restored {
            self.restore_places(promises);
        }
        let links = self.link_states.keys();
        let minimums_on = links.filter(|link| self.may_serve_minimum(link));
        let wanted = promises.redirectable(&minimums_on.cloned().collect());
        if wanted.is_empty() && self.redirects.places.is_empty() {
            self.redirects.faults.clear();
            self.redirects.pauses.clear();
            self.redirects.wanted.clear();
            self.redirects.cells.clear();
            self.end_awaiting(promises, now);
            self.redirects.due = self.awaiting_due(promises);
            return self.send_settled_replies(now);
        }
        let links = wanted.iter().map(|one| (one.id, one.link.clone()));
        self.redirects.wanted = links.collect();
        let cells = wanted.iter().filter(|one| one.contract.cell().is_some());
        self.redirects.cells = cells.map(|one| one.id).collect();
        self.end_unwanted(promises, &wanted, now);
        self.forget_obsolete(&wanted);
        for target in &wanted {
            match self.redirects.place_of(target.id, &target.link) {
                Some((number, place)) if *place.contract != target.contract => {
                    self.change_redirect(promises, number, target, now);
                }
                Some(_) => {}
                None => self.begin_redirect(promises, target, now),
            }
        }
        self.end_late_begins(promises, now);
        self.end_awaiting(promises, now);
        self.set_redirects_due(promises, now);
        self.send_settled_replies(now);
    }

    /// True if the driver of a link may serve minimums: it runs for another reason, and has AF_XDP.
    fn may_serve_minimum(&self, link: &IfName) -> bool {
        let Some(state) = self.link_states.get(link) else {
            return false;
        };
        let mut places = self.redirects.places.values();
        let has_reason = state.flow_count > 0
            || places.any(|place| {
                place.link == *link && place.starts_driver && place.phase != Phase::Ending
            });
        has_reason && state.has_xdp()
    }

    /// Gives the targets a ceiling in the classes whose drivers have not answered for long.
    fn end_late_begins(&mut self, promises: &mut impl Promises, now: Now) {
        let places = self.redirects.places.values_mut();
        let late = places.filter(|place| place.ceiling_due().is_some_and(|at| at <= now.monotonic));
        let ended = late.map(|place| place.open_until = None).count();
        if ended > 0 {
            self.store_fewer_places(promises, now);
        }
    }

    /// Ends the places whose target is no longer to be redirected. Those of an earlier daemon wait
    /// for the census of their driver.
    fn end_unwanted(
        &mut self,
        promises: &mut impl Promises,
        wanted: &[RedirectableTarget],
        now: Now,
    ) {
        let wanted: BTreeSet<(u32, &IfName)> =
            wanted.iter().map(|one| (one.id, &one.link)).collect();
        let places = self.redirects.places.iter();
        let unwanted = places.filter(|(_, place)| {
            matches!(place.phase, Phase::Asked | Phase::Active)
                && !wanted.contains(&(place.target, &place.link))
        });
        let unwanted: Vec<(u16, IfName)> = unwanted
            .map(|(number, place)| (*number, place.link.clone()))
            .collect();
        for (_, link) in &unwanted {
            self.redirects.retry(link);
        }
        let numbers: Vec<u16> = unwanted.into_iter().map(|(number, _)| number).collect();
        self.end_places(promises, &numbers, now);
    }

    /// Forgets faults of targets that are not to be redirected or have another contract now, and
    /// pauses of links without such targets.
    fn forget_obsolete(&mut self, wanted: &[RedirectableTarget]) {
        if self.redirects.faults.is_empty() && self.redirects.pauses.is_empty() {
            return;
        }
        let by_id: BTreeMap<u32, &RedirectableTarget> =
            wanted.iter().map(|one| (one.id, one)).collect();
        self.redirects.faults.retain(|id, fault| {
            let same = |one: &&RedirectableTarget| {
                one.link == fault.link && one.contract == fault.contract
            };
            by_id.get(id).is_some_and(same)
        });
        let links: BTreeSet<&IfName> = wanted.iter().map(|one| &one.link).collect();
        self.redirects.pauses.retain(|link, _| links.contains(link));
    }

    /// Sets when something is to be tried again. Times that are over wait for an event.
    fn set_redirects_due(&mut self, promises: &impl Promises, now: Now) {
        let classes = self.awaiting_due(promises);
        let state = &mut self.redirects;
        let faults = state.faults.values().map(|fault| fault.retry);
        let pauses = state.pauses.values().map(|pause| pause.until);
        let ceilings = state.places.values().filter_map(Place::ceiling_due);
        let all = faults.chain(pauses).chain(ceilings).chain(classes);
        state.due = all.filter(|at| *at > now.monotonic).min();
    }

    /// Stores the places in the ledger, and puts them into force. A failure goes to the journal.
    ///
    /// # Errors
    /// The reason, if the kernel refuses them.
    fn store_places(&mut self, promises: &mut impl Promises) -> Result<(), String> {
        let places = self.redirects.for_ledger();
        if *promises.redirects() == places {
            return Ok(());
        }
        let stored = promises.set_redirects(places);
        stored.map_err(|error| error.to_string())
    }

    /// As [`Flows::store_places`], after places were given up. A failure goes to the journal.
    fn store_fewer_places(&mut self, promises: &mut impl Promises, now: Now) {
        if let Err(why) = self.store_places(promises) {
            let text = format!("cannot give redirected targets back to the classes: {why}");
            promises.journal().warn(now, text);
        }
    }

    /// Forgets the places of a link whose driver has ended, and begins the pause until they are
    /// redirected again.
    pub(super) fn forget_places(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        why: &str,
        now: Now,
    ) {
        let theirs = self.redirects.places_of(link);
        for number in &theirs {
            self.remove_place(*number);
        }
        self.store_fewer_places(promises, now);
        let state = &self.redirects;
        let mut wanted = state.wanted.iter();
        let waits = wanted.any(|(id, on)| on == link && !state.faults.contains_key(id));
        if theirs.is_empty() && !waits {
            // It served no target, as without AF_XDP.
            return;
        }
        self.redirects.retry(link);
        let before = self.redirects.pauses.get(link);
        let before = before.filter(|pause| now.monotonic.since(pause.ended) < FORGIVEN);
        let ends = before.map_or(0, |pause| pause.ends);
        let pause = Nanos(FIRST_PAUSE.0 << ends.min(6)).min(RETRY);
        let pause = Pause {
            ends: ends + 1,
            why: why.to_owned(),
            until: now.monotonic.after(pause),
            ended: now.monotonic,
        };
        self.redirects.pauses.insert(link.clone(), pause);
    }

    /// Removes a place from the records, with its promise.
    fn remove_place(&mut self, number: u16) -> Option<Place> {
        let place = self.redirects.places.remove(&number)?;
        if place.phase != Phase::Ending {
            self.set_target_promise(&place.link, place.target, None);
        }
        Some(place)
    }

    /// Sets the contract of a redirected target among the promises of its link's driver; `None` if
    /// it is not redirected any more.
    fn set_target_promise(&mut self, link: &IfName, target: u32, contract: Option<&Rc<Contract>>) {
        let Some(state) = self.link_states.get_mut(link) else {
            return;
        };
        let is_minimum = contract.is_some_and(|one| one.min(Direction::Up).is_some());
        let minimum = contract.filter(|_| is_minimum);
        let other = contract.filter(|_| !is_minimum);
        state.promised.set(PromiseHolder::Minimum(target), minimum);
        state.promised.set(PromiseHolder::Target(target), other);
    }
}

impl LinkState {
    /// True if the driver has a socket of AF_XDP; false while its mode is unknown.
    fn has_xdp(&self) -> bool {
        !self.mode.is_empty() && !self.is_fallback()
    }

    /// True if the driver has no AF_XDP.
    fn is_fallback(&self) -> bool {
        self.mode == "fallback"
    }
}

/// After this time, a target that could not be redirected is tried again.
const RETRY: Nanos = Nanos::from_secs(60);
/// The pause after the first end of a driver; it doubles with each further one, up to [`RETRY`].
const FIRST_PAUSE: Nanos = Nanos::from_secs(1);
/// An end counts no more for the pause if the driver ran for so long since.
const FORGIVEN: Nanos = Nanos::from_secs(300);
