//! Implements [`Promises`] for [`Service`]: the flow manager reaches the policy, the ledger, the
//! kernel's classes, the processes of the machine and the journal through it. The methods fail as
//! the trait states.

use std::collections::{BTreeMap, BTreeSet};

use netnice_api::direct::Term;
use netnice_api::driver::CodePointsDoc;
use netnice_core::admission::timing::Stops;
use netnice_core::contract::{IfName, Slice};
use netnice_core::link::Link;
use netnice_core::link::classes::LinkClasses;
use netnice_core::units::{Amount, Instant, Nanos};
use netnice_kernel::enforce::{PathCounter, Redirects};

use super::Service;
use crate::authority;
use crate::clock::Now;
use crate::error::RequestError;
use crate::flows::promises::{LedgerPromises, LinkPromises, Promises};
use crate::host::{Host, Process};
use crate::journal::Journal;
use crate::ledger::HeldTarget;
use crate::ledger::direct_part::DirectPart;
use crate::ledger::redirects::{RedirectPlace, RedirectableTarget};
use crate::peer::Peer;
use crate::quotas::Quotas;

impl<H: Host> Service<H> {
    fn link_promises(&self) -> LedgerPromises<'_> {
        LedgerPromises {
            ledger: &self.reconciler.books.ledger,
            stops: self.rules.policy.direct.stops,
        }
    }
}

impl<H: Host> LinkPromises for Service<H> {
    fn link(&self, name: &IfName) -> Option<Link> {
        self.link_promises().link(name)
    }

    fn promised_to_targets(&self, link: &Link) -> (Vec<(String, Amount)>, Amount) {
        self.link_promises().promised_to_targets(link)
    }

    fn stops(&self) -> Option<Stops> {
        self.link_promises().stops()
    }

    fn name_of(&self, target: u32) -> Option<String> {
        self.link_promises().name_of(target)
    }
}

impl<H: Host> Promises for Service<H> {
    fn may_use(&self, peer: &Peer) -> Result<(), RequestError> {
        match (self.rules.is_unknown(), self.rules.policy.direct_users) {
            (true, _) => authority::may_manage(
                peer,
                "the direct path of a host whose policy is not in force",
            ),
            (false, false) => authority::may_manage(
                peer,
                "the direct path of this host (direct_users = false in its policy)",
            ),
            (false, true) => Ok(()),
        }
    }

    fn may_have_channels(&self, peer: &Peer) -> bool {
        let known = !self.rules.is_unknown();
        known && self.rules.policy.direct.channel_users.contains(peer.uid)
    }

    fn quotas(&self) -> &Quotas {
        &self.rules.policy.quotas
    }

    fn keeps_awake(&self) -> bool {
        self.rules.policy.direct_awake
    }

    fn code_points(&self) -> Option<CodePointsDoc> {
        let known = !self.rules.is_unknown();
        known.then_some(self.rules.policy.direct.code_points)
    }

    fn reserves_processors(&self) -> bool {
        !self.reconciler.processors.is_idle()
    }

    fn discards(&self, link: &IfName) -> Option<&[Vec<Term>]> {
        let rule = self.rules.of_link(link);
        let known = !self.rules.is_unknown();
        known.then(|| rule.map_or(&[][..], |rule| &rule.discard))
    }

    fn process(&mut self, pid: u32) -> Option<Process> {
        self.reconciler.host.process(pid)
    }

    fn check_unmetered(&mut self, pid: u32) -> Result<(), RequestError> {
        let place = self.reconciler.host.place(pid);
        let ledger = &self.reconciler.books.ledger;
        let Some(held) = ledger.at_place(&place) else {
            return Ok(());
        };
        let mut chain = std::iter::once(held).chain(ledger.around(held.entry.id));
        match chain.find(|held| held.is_metered()) {
            None => Ok(()),
            Some(metered) => Err(RequestError::NotPermitted(format!(
                "process {pid} belongs to {}, which has a traffic quota: flows of the direct path \
                 are not counted, so it may have none",
                metered.entry.target
            ))),
        }
    }

    fn processor_slice(&mut self, pid: u32) -> Option<Slice> {
        let place = self.reconciler.host.place(pid);
        let ledger = &self.reconciler.books.ledger;
        let held = ledger.at_place(&place)?;
        let mut chain = std::iter::once(held).chain(ledger.around(held.entry.id));
        chain.find_map(HeldTarget::reserved)
    }

    fn links(&self) -> Vec<IfName> {
        let links = self.reconciler.books.ledger.links();
        links.map(|managed| managed.link.name.clone()).collect()
    }

    fn classes(&self, link: &IfName) -> LinkClasses {
        let managed = self.reconciler.books.ledger.link(link.as_str());
        managed.map(|managed| managed.classes).unwrap_or_default()
    }

    fn direct_part(&self, link: &IfName) -> Option<DirectPart> {
        self.reconciler.books.ledger.direct_part(link).copied()
    }

    fn set_direct_part(
        &mut self,
        link: &IfName,
        part: Option<DirectPart>,
    ) -> Result<(), RequestError> {
        self.reconciler.set_direct_part(link, part)
    }

    fn budget_of(&mut self, pid: u32, uid: u32, link: &IfName) -> Option<(u32, Amount)> {
        let place = self.reconciler.host.place(pid);
        self.reconciler
            .books
            .ledger
            .budget_for_flows(&place, uid, link)
    }

    fn set_flow_minimums(&mut self, link: &IfName, sums: BTreeMap<u32, Amount>) {
        let ledger = &mut self.reconciler.books.ledger;
        ledger.set_flow_minimums(link, sums);
    }

    fn sent_by_classes(&self, link: &IfName) -> Option<u64> {
        self.reconciler.host.sent_on(link.as_str())
    }

    fn drain_time(&mut self, link: &IfName, id: u32) -> Result<Nanos, RequestError> {
        self.reconciler.host.drain_time(link.as_str(), id)
    }

    fn path_counter(&self, link: &IfName) -> Result<Option<PathCounter>, RequestError> {
        self.reconciler.host.path_counter(link.as_str())
    }

    fn redirectable(&self, minimums_on: &BTreeSet<IfName>) -> Vec<RedirectableTarget> {
        self.reconciler.books.ledger.redirectable(minimums_on)
    }

    fn redirects(&self) -> &BTreeMap<u16, RedirectPlace> {
        self.reconciler.books.ledger.redirects()
    }

    fn set_redirects(&mut self, places: BTreeMap<u16, RedirectPlace>) -> Result<(), RequestError> {
        self.reconciler.set_redirects(places)
    }

    fn awaiting(&self) -> &BTreeMap<u32, Instant> {
        self.reconciler.books.ledger.awaiting()
    }

    fn set_awaiting(&mut self, targets: BTreeMap<u32, Instant>) -> Result<(), RequestError> {
        self.reconciler.set_awaiting(targets)
    }

    fn redirect_pair(&self, link: &IfName) -> Result<Option<Redirects>, RequestError> {
        self.reconciler.host.redirects(link.as_str())
    }

    fn heal(&mut self, now: Now) {
        self.reconciler.heal(now);
    }

    fn journal(&mut self) -> &mut Journal {
        &mut self.reconciler.journal
    }
}

#[cfg(test)]
impl<H: Host> Service<H> {
    /// Sets a link's capacity without a check of the promises on it.
    pub(crate) fn force_link(&mut self, managed: crate::ledger::ManagedLink) {
        self.reconciler.books.ledger.set_capacity(managed);
    }
}
