//! Describes for `netnice explain` and `netnice show` whether the driver of a link or the kernel's
//! classes serve a target with a guarantee, and why. Nothing here fails.

use std::collections::BTreeSet;

use netnice_api::{Explained, ShowDoc};
use netnice_core::contract::{Direction, IfName};
use netnice_core::target::Target;

use super::Phase;
use crate::flows::Flows;
use crate::flows::flow_replies::Census;
use crate::flows::network::Network;
use crate::ledger::{HeldTarget, Ledger};
use crate::page::Page;

impl<N: Network> Flows<N> {
    /// Completes the reply to `explain`: it says who serves a target that has a guarantee for
    /// sending.
    pub(crate) fn describe_redirect(
        &self,
        ledger: &Ledger,
        target: &Target,
        reply: &mut Explained,
    ) {
        let Some(held) = ledger.find(target) else {
            return;
        };
        let contract = &held.entry.contract;
        let Some(link) = contract.on().filter(|_| contract.reserves(Direction::Up)) else {
            return;
        };
        let mut page = Page::after(std::mem::take(reply));
        match self.redirects.place_of(held.id, link) {
            Some((_, place)) if place.phase != Phase::Asked => {
                page.row(
                    "driver",
                    &format!("the driver of {link} keeps {}", place.contract),
                );
            }
            _ => {
                let why = self.why_in_classes(ledger, held, link);
                page.row(
                    "classes",
                    &format!("the kernel's classes serve it on {link}: {why}"),
                );
            }
        }
        *reply = page.into();
    }

    /// The id of a target whose packets go to a driver; `None` for any other target.
    pub(crate) fn redirected_target(&self, ledger: &Ledger, target: &Target) -> Option<u32> {
        let held = ledger.find(target)?;
        let (_, place) = self
            .redirects
            .place_of(held.id, held.entry.contract.on()?)?;
        (place.phase == Phase::Active).then_some(held.id)
    }

    /// Adds the counts of a redirected target to its page.
    pub(in crate::flows) fn with_redirect_counts(
        id: u32,
        census: &Census,
        known: Explained,
    ) -> Explained {
        let mut page = Page::after(known);
        let all = census.values().flat_map(|census| &census.redirected);
        let Some(counts) = all.into_iter().find(|doc| doc.target == id) else {
            page.row("counts", "its driver did not tell them in time");
            return page.into();
        };
        let sent = format!("{} packets, {} bytes", counts.sent, counts.sent_bytes);
        page.row("sent", &sent);
        if counts.waiting > 0 {
            let waiting = format!("{} packets, {} bytes", counts.waiting, counts.waiting_bytes);
            page.row("waiting", &waiting);
        }
        if counts.refused > 0 {
            let refused = format!(
                "{} packets, because as many waited as may: their senders slow down",
                counts.refused
            );
            page.row("refused", &refused);
        }
        if counts.dropped > 0 {
            page.row("dropped", &format!("{} packets", counts.dropped));
        }
        page.into()
    }

    /// Marks targets as degraded whose cell contract the kernel's classes serve as a rate, in the
    /// reply to `show`.
    pub(crate) fn describe_redirects(&self, ledger: &Ledger, doc: &mut ShowDoc) {
        let can_be: BTreeSet<u32> = ledger
            .redirectable(&BTreeSet::new())
            .into_iter()
            .map(|target| target.id)
            .collect();
        for shown in &mut doc.targets {
            let Ok(target) = shown.target.parse::<Target>() else {
                continue;
            };
            let held = ledger.find(&target);
            let held = held.filter(|held| held.entry.contract.cell().is_some());
            let fault = held.and_then(|held| match can_be.contains(&held.id) {
                true => self.cell_fault(held.id),
                false => ledger.redirect_fault(held),
            });
            if let Some(why) = fault {
                let text = format!("the kernel's classes serve the cell contract as a rate: {why}");
                shown.degraded.push(text);
            }
        }
    }

    /// Why the cell contract of a target that could be redirected is served by the classes; `None`
    /// if the target has none, or the driver keeps it, or will.
    pub(super) fn cell_fault(&self, target: u32) -> Option<String> {
        let link = self.redirects.wanted.get(&target)?;
        let is_cell = self.redirects.cells.contains(&target);
        self.redirect_why(target, link).filter(|_| is_cell)
    }

    /// Why a target that could be redirected is not; `None` if nothing is known against it.
    pub(super) fn redirect_why(&self, target: u32, link: &IfName) -> Option<String> {
        if self.redirects.place_of(target, link).is_some() {
            return None;
        }
        let fault = self.redirects.faults.get(&target);
        let pause = self.redirects.pauses.get(link);
        let pause = pause.filter(|_| !self.link_states.contains_key(link));
        let why = fault
            .map(|fault| &fault.why)
            .or(pause.map(|pause| &pause.why));
        why.cloned()
    }

    fn why_in_classes(&self, ledger: &Ledger, held: &HeldTarget, link: &IfName) -> String {
        let fault = ledger.redirect_fault(held);
        let known = fault.or_else(|| self.redirect_why(held.id, link));
        known.unwrap_or_else(|| match self.redirects.wanted.contains_key(&held.id) {
            true => format!("the driver of {link} is being asked"),
            false => format!("no driver of {link} runs, and a minimum alone starts none"),
        })
    }
}
