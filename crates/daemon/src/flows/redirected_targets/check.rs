//! Checks a request to set a target before it is installed: whether the driver of the link can keep
//! its cell contract or slice beside all other promises there. The check fails if a cell contract
//! cannot be redirected at all, or if a cell contract, or a slice beside other promises, does not
//! fit. It also tells whether the driver or the kernel's classes will serve the target.

use std::collections::BTreeSet;

use netnice_core::contract::{Contract, IfName};

use crate::error::RequestError;
use crate::flows::Flows;
use crate::flows::network::Network;
use crate::flows::promised_flows::PromiseHolder;
use crate::flows::promises::{LedgerPromises, LinkPromises, ServedBy, TargetDraft};
use crate::ledger::redirects::{RedirectPhase, RedirectPlace, RedirectableTarget};
use crate::ledger::{HeldTarget, Ledger};

impl<N: Network> Flows<N> {
    /// Checks a request to set a target, and returns what will serve the target. A target with a
    /// minimum alone counts as one of the classes.
    ///
    /// # Errors
    /// If the driver cannot keep what the request asks.
    pub(crate) fn check_target(
        &mut self,
        request: &TargetDraft<'_>,
    ) -> Result<ServedBy, RequestError> {
        let wanted = request.draft.redirectable(&BTreeSet::new());
        check_cells(request, &wanted)?;
        let Some(held) = request.draft.get(request.slot) else {
            return Ok(ServedBy::Classes);
        };
        let Some(target) = wanted.iter().find(|target| target.id == held.id) else {
            return Ok(ServedBy::Classes);
        };
        let is_cell = target.contract.cell().is_some();
        let nic = match self.nic_for_targets(&target.link) {
            Ok(nic) => nic,
            Err(why) if is_cell => return Err(refusal_of(held, &why)),
            Err(_) => return Ok(ServedBy::Classes),
        };
        let is_same = request
            .present
            .redirectable(&BTreeSet::new())
            .contains(target);
        let pauses = self.redirects.pauses.contains_key(&target.link);
        let has_no_driver = match self.link_states.get(&target.link) {
            Some(state) => state.is_fallback(),
            None => pauses,
        };
        if is_same || has_no_driver {
            return Ok(ServedBy::Classes);
        }
        let fits = self.check_fit(request, &wanted, target, nic.mtu)?;
        Ok(match fits && !pauses {
            true => ServedBy::Driver,
            false => ServedBy::Classes,
        })
    }

    /// Checks that a target fits at the driver beside all others that are there or will be. Returns
    /// false for a slice that does not fit, although no other promise is there: the kernel's
    /// classes serve it. Fails if a target does not fit otherwise.
    fn check_fit(
        &self,
        request: &TargetDraft<'_>,
        wanted: &[RedirectableTarget],
        target: &RedirectableTarget,
        mtu: u32,
    ) -> Result<bool, RequestError> {
        let link = &target.link;
        // Minimums go to the classes if the driver needs the rate.
        let served = |one: &&RedirectableTarget| {
            let is_refused = || self.redirects.faults.contains_key(&one.id);
            one.link == *link && (one.id == target.id || !is_refused())
        };
        let served: Vec<&RedirectableTarget> = wanted.iter().filter(served).collect();
        let ledger = with_places(request.draft, link, &served);
        let promises = LedgerPromises {
            ledger: &ledger,
            stops: request.stops,
        };
        let mut held: Vec<Contract> = self.promised_to_flows_alone(link);
        held.extend(self.server_promise(link).cloned());
        let others = served.iter().filter(|one| one.id != target.id);
        held.extend(others.map(|one| one.contract.clone()));
        let is_lone_slice = held.is_empty() && target.contract.slice().is_some();
        let capacity = match self.link_capacity(&promises, link, mtu) {
            Ok(capacity) => capacity,
            Err(_) if is_lone_slice => return Ok(false),
            Err(error) => return Err(error),
        };
        let misfit = match capacity.admit(&held, &target.contract, None) {
            Ok(_) => return Ok(true),
            Err(_) if is_lone_slice => return Ok(false),
            Err(misfit) => misfit,
        };
        let name = promises.name_of(target.id).unwrap_or_default();
        let asks = format!("{name} asks {}", target.contract);
        let of = (link, Some(PromiseHolder::Target(target.id)));
        Err(self.refusal(&promises, &capacity, of, &asks, &misfit))
    }

    /// The promises on a link to flows, and those held for flows, without redirected targets.
    fn promised_to_flows_alone(&self, link: &IfName) -> Vec<Contract> {
        let state = self.link_states.get(link);
        let promised = state.into_iter().flat_map(|state| state.promised.iter());
        let flows = promised.filter(|(holder, _)| {
            matches!(holder, PromiseHolder::Flow(_) | PromiseHolder::Hold(_))
        });
        flows.map(|(_, contract)| (**contract).clone()).collect()
    }
}

/// A ledger in which these targets of a link are redirected, and no others.
fn with_places(ledger: &Ledger, link: &IfName, served: &[&RedirectableTarget]) -> Ledger {
    let mut ledger = ledger.clone();
    let mut places = ledger.redirects().clone();
    places.retain(|_, place| place.link != *link);
    let prepared = served.iter().map(|target| RedirectPlace {
        link: link.clone(),
        target: target.id,
        rate: target.rate,
        phase: RedirectPhase::Prepared,
        begins: true,
    });
    // The numbers do not matter here.
    places.extend((u16::MAX / 2..).zip(prepared));
    ledger.set_redirects(places);
    ledger
}

/// Checks that the request leaves no cell contract where no driver can keep it.
fn check_cells(
    request: &TargetDraft<'_>,
    wanted: &[RedirectableTarget],
) -> Result<(), RequestError> {
    let cells = request.draft.held();
    let cells = cells.filter(|held| held.entry.contract.cell().is_some());
    for held in cells {
        if wanted.iter().any(|target| target.id == held.id) {
            continue;
        }
        let before = request.present.by_id(held.id);
        let was_fine = before.is_some_and(|before| {
            before.entry.contract.cell().is_some()
                && request.present.redirect_fault(before).is_none()
        });
        let is_own = held.entry.id == request.slot;
        if let Some(fault) = request
            .draft
            .redirect_fault(held)
            .filter(|_| is_own || was_fine)
        {
            return Err(refusal_of(held, &fault));
        }
    }
    Ok(())
}

/// The refusal of a cell contract that no driver can keep.
fn refusal_of(held: &HeldTarget, why: &str) -> RequestError {
    let contract = &held.entry.contract;
    let cell = contract
        .cell()
        .map(|cell| cell.to_string())
        .unwrap_or_default();
    let on = contract
        .on()
        .map(|on| format!(" on {on}"))
        .unwrap_or_default();
    let target = &held.entry.target;
    RequestError::NotAdmitted(format!(
        "refused: {target} asks cell {cell}{on}, which no driver can keep: {why}"
    ))
}
