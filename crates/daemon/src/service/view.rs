//! [`View`], the state of the daemon for requests that only read: the machine, the books, how the
//! state in force differs from them, and the measured values. It also gives the reasons why a
//! target or a link is degraded, and the targets that limit a process ([`View::of_process`], which
//! fails if the process does not exist and no target names it).

use netnice_core::contract::{Clause, Contract, Direction};
use netnice_core::target::Target;
use netnice_kernel::enforce::ContainerPlacement;

use crate::error::RequestError;
use crate::host::{Enforcer, Interface, Inventory};
use crate::ledger::{Body, HeldTarget, Ledger, ManagedLink};
use crate::meter::Measurements;
use crate::processors::Keeper;
use crate::reconcile::estimates::Estimates;
use crate::reconcile::{Deviations, Finder, Reconciler};
use crate::state::Books;
use crate::user_names::user_name;

/// The state of the daemon for requests that only read.
pub(super) struct View<'a, H> {
    /// The machine. Queries need `&mut`, but change nothing on it.
    pub(super) machine: &'a mut H,
    pub(super) books: &'a Books,
    pub(super) deviations: &'a Deviations,
    pub(super) estimates: &'a Estimates,
    pub(super) processors: &'a Keeper,
    pub(super) measurements: &'a Measurements,
}

impl<'a, H> View<'a, H> {
    /// A view of the present state.
    pub(super) fn of(
        reconciler: &'a mut Reconciler<H>,
        measurements: &'a Measurements,
    ) -> View<'a, H> {
        View {
            machine: &mut reconciler.host,
            books: &reconciler.books,
            deviations: &reconciler.deviations,
            estimates: &reconciler.estimates,
            processors: &reconciler.processors,
            measurements,
        }
    }
}

impl<H: Inventory> View<'_, H> {
    /// A finder on this machine and the present ledger.
    pub(super) fn finder(&mut self) -> Finder<'_, H> {
        Finder::new(self.machine, &self.books.ledger)
    }

    /// The target that limits a process: the one that names it (`target`), else the innermost one
    /// that contains it; none if no target does. If the process has joined a name inside its own
    /// target, that one too.
    ///
    /// # Errors
    /// If the process does not exist and no target names it.
    pub(super) fn of_process(
        &mut self,
        target: &Target,
        pid: u32,
    ) -> Result<Vec<HeldTarget>, RequestError> {
        let place = self.machine.place(pid);
        let lives = self.machine.process(pid).is_some();
        let nearest = self.ledger().at_place(&place);
        if let Some(own) = self.ledger().find(target) {
            let slot = own.entry.id;
            let is_inside = |held: &&HeldTarget| {
                let mut around = self.ledger().around(held.entry.id);
                around.any(|outer| outer.entry.id == slot)
            };
            let inside = nearest.filter(is_inside);
            return Ok([own].into_iter().chain(inside).cloned().collect());
        }
        if !lives {
            return Err(RequestError::Failed(format!(
                "process {pid} does not exist"
            )));
        }
        Ok(nearest.into_iter().cloned().collect())
    }
}

impl<'a, H> View<'a, H> {
    /// The ledger.
    pub(super) fn ledger(&self) -> &'a Ledger {
        &self.books.ledger
    }
}

impl<H: Enforcer> View<'_, H> {
    /// The reasons why a target is degraded, as messages; none if it is served as its contract
    /// says.
    pub(super) fn target_faults(&self, held: &HeldTarget, interfaces: &[Interface]) -> Vec<String> {
        let refused = held.refused.iter().chain(&held.time_refused);
        let short = held.auto.fault();
        let refused = refused.chain(short.filter(|_| held.entry.contract.has_auto_time()));
        let mut faults: Vec<String> = refused.chain(&held.aside).cloned().collect();
        let time = self.processors.status(held.id);
        faults.extend(time.and_then(|time| time.shortfall));
        faults.extend(held.claims.set_aside().iter().map(|uid| {
            format!(
                "what {} asks of {} is set aside, for it contradicts what root or the group \
                 netnice asks",
                user_name(*uid),
                held.entry.target
            )
        }));
        if matches!(held.body, Body::Cgroup(None) | Body::App(None)) {
            faults.push(format!("{} is not there now", held.entry.target));
        }
        let placement = self.deviations.placements.get(&held.id);
        if matches!(placement, Some(ContainerPlacement::OwnNetwork(names)) if names.is_empty()) {
            faults.push(format!(
                "{} has a network of its own to which no pair of interfaces leads: nothing of it \
                 is held",
                held.entry.target
            ));
        }
        faults.extend(self.deviations.repairs.given_up.clone());
        let contract = &*held.in_force();
        let Some(managed) = self.ledger().link_of(contract) else {
            faults.extend(missing_link(self.ledger(), contract));
            return faults;
        };
        faults.extend(self.link_faults(managed, interfaces));
        let link = &managed.link.name;
        if contract.min(Direction::Down).is_some()
            && let Some(rate) = self.measurements.rates.overload(link.as_str())
        {
            let usable = managed.link.shaped(Direction::Down);
            faults.push(format!(
                "{link} receives {rate:#}, more than the {:#} that can be shared out here: what is \
                 lost before it \
                 arrives is not netnice's to give, so min-down may not hold",
                usable
                    .map(netnice_core::units::Amount::from)
                    .unwrap_or_default()
            ));
        }
        faults
    }

    /// Why the rates of a link are not estimated now; `None` if they are, or shall not be.
    pub(super) fn estimate_fault(&self, managed: &ManagedLink) -> Option<String> {
        let state = self.estimates.state(&managed.link.name);
        let fault = state
            .filter(|_| managed.link.is_estimated())?
            .fault
            .as_ref()?;
        let name = &managed.link.name;
        Some(format!(
            "{fault}, so under load its rate falls to the least of the estimate; name other hosts \
             with netnice link {name} --probe HOST[,HOST...]"
        ))
    }

    /// Names the targets whose guarantees on a link are not in force, because they do not fit;
    /// `None` if there are none.
    pub(super) fn missing_guarantees(&self, managed: &ManagedLink) -> Option<String> {
        let name = &managed.link.name;
        let degraded = self.ledger().degraded_on(name);
        let mut names: Vec<String> = degraded
            .iter()
            .take(MAX_NAMED)
            .map(|held| held.entry.target.to_string())
            .collect();
        let more = degraded.len() - names.len();
        if more > 0 {
            names.push(format!("{more} more"));
        }
        (!names.is_empty()).then(|| {
            let names = names.join(", ");
            format!("guarantees that do not fit on {name} now and are not in force: {names}")
        })
    }

    /// The reasons why a link is not served, as messages; none if it is served.
    pub(super) fn link_faults(
        &self,
        managed: &ManagedLink,
        interfaces: &[Interface],
    ) -> Vec<String> {
        let link = &managed.link.name;
        let mut faults: Vec<String> = self
            .deviations
            .broken
            .get(link)
            .cloned()
            .into_iter()
            .collect();
        match interfaces.iter().find(|i| i.name == link.as_str()) {
            None => faults.push(format!(
                "interface {link} is gone; its classes come back with it"
            )),
            Some(interface) if !interface.up => faults.push(format!("interface {link} is down")),
            Some(interface) if !self.machine.serves(link.as_str(), interface.index) => {
                if faults.is_empty() {
                    faults.push(format!(
                        "the classes of {link} are not on the interface yet"
                    ));
                }
            }
            Some(_) => {}
        }
        faults
    }
}

/// The reason why the link, weight, priority or `yield` of a contract has no effect, for a contract
/// that has no class on a link. `None` if the contract names none of them, or if it has a weight or
/// priority only and no link is managed.
fn missing_link(ledger: &Ledger, contract: &Contract) -> Option<String> {
    if let Some(link) = contract.on() {
        return Some(format!("{link} is not managed"));
    }
    if contract.yields() && ledger.links().count() == 0 {
        return Some(format!(
            "no link is managed, so {} has no effect",
            Clause::Yield
        ));
    }
    let weighs = contract.weight().is_some() || contract.priority().is_some();
    (weighs && ledger.links().count() > 1).then(|| {
        format!(
            "{} and {} count on a link: several are managed, say which one with --on",
            Clause::Weight,
            Clause::Priority
        )
    })
}

/// Largest number of degraded targets that a message about a link names.
const MAX_NAMED: usize = 10;
