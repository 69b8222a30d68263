//! The reconciler: makes the present state of the machine the desired one, and keeps it so.
//!
//! ```text
//!   a request ──> draft of the ledger ──────┐
//!   ends, new instances, expired changes ───┤─> desired state ──> installed ──> state file
//!   objects removed by other programs ──────┘         (or all stays as before)
//! ```
//!
//! - [`Finder`] finds what a target consists of, and adds it to a [`Draft`].
//! - [`Reconciler::install`] puts a draft into force: in the kernel, the state file and the ledger,
//!   or in none of them. A change that no request caused stays in force even if the file cannot be
//!   written; the file is written later.
//! - [`sweep`] follows changes on the machine: processes end, control groups and executables are
//!   created again.
//! - [`rollback`] rolls back changes whose time is over, whose process has ended, or that were not
//!   confirmed in time.
//! - [`repair`] restores what other programs have removed.
//! - [`traffic_quotas`] keeps the traffic quotas: their periods, usage and `then` rates.
//! - [`start`] takes over from an earlier daemon.
//!
//! Time is always an argument. A call fails if an object does not exist or its name is unknown, if
//! admission refuses, or if the kernel or the state file fails; then the former state stays in
//! force.

mod ancestry;
pub(crate) mod desired;
mod direct_parts;
mod draft;
mod duration;
pub(crate) mod estimates;
mod finder;
mod install;
mod link_speeds;
mod preview;
mod processors;
pub(crate) mod repair;
mod rollback;
mod sending;
mod start;
mod sweep;
mod traffic_quotas;
mod user_quotas;

use std::collections::BTreeMap;

use netnice_core::contract::IfName;
use netnice_core::target::Target;
use netnice_core::units::Instant;
use netnice_kernel::enforce::{Adoption, ContainerPlacement};
use netnice_kernel::plan::Desired;

pub(crate) use draft::Draft;
pub(crate) use duration::ChangeDuration;
pub(crate) use finder::{Finder, consists_of};
pub(crate) use sending::Sending;
pub(crate) use start::SavedState;
pub(crate) use traffic_quotas::UsageWriter;
pub(crate) use user_quotas::UserAmounts;

use crate::clock::Now;
use crate::error::RequestError;
use crate::host::{Act, Host};
use crate::journal::Journal;
use crate::ledger::{Body, HeldTarget, Ledger};
use crate::processors::Keeper;
use crate::state::{Books, Store};
use desired::{desired, expected_groups};
use estimates::Estimates;
use repair::Repairs;

/// The machine and the books, and how the state in force differs from the books.
pub(crate) struct Reconciler<H> {
    /// The machine.
    pub host: H,
    /// The desired state: the ledger and the pending rollbacks, with their file.
    pub books: Books,
    /// How the state in force differs from it now.
    pub deviations: Deviations,
    /// The journal.
    pub journal: Journal,
    /// What is known of the estimated links.
    pub estimates: Estimates,
    /// The time from which the speeds of links are read again.
    speeds_due: Instant,
    /// The time from which the facts about the processors are read again.
    processors_due: Instant,
    /// The file of the usage of traffic quotas.
    pub usage_writer: UsageWriter,
    /// The reservations of processor time in force.
    pub processors: Keeper,
    /// What direct flows need of the processors.
    pub sending: Sending,
}

/// How the state in force differs from the desired one.
#[derive(Default)]
pub(crate) struct Deviations {
    /// Links that are left out because the kernel refuses their classes, with the reason.
    pub broken: BTreeMap<IfName, String>,
    /// The recent repairs of what other programs removed.
    pub repairs: Repairs,
    /// How held containers are connected to this network namespace, by target id.
    pub placements: BTreeMap<u32, ContainerPlacement>,
}

impl Deviations {
    /// The desired kernel state of a ledger, without the links in [`Deviations::broken`].
    pub(crate) fn desired_state(&self, ledger: &Ledger) -> Desired {
        let mut wanted = desired(ledger);
        let broken = |name: &str| self.broken.keys().any(|link| link.as_str() == name);
        wanted.links.retain(|link| !broken(&link.name));
        wanted
    }
}

impl<H: Host> Reconciler<H> {
    /// A reconciler with empty books. Without `store` no state file is written.
    pub(crate) fn new(host: H, store: Option<Store>) -> Reconciler<H> {
        Reconciler {
            host,
            books: Books::new(store),
            deviations: Deviations::default(),
            journal: Journal::default(),
            estimates: Estimates::default(),
            speeds_due: Instant::default(),
            processors_due: Instant::default(),
            usage_writer: UsageWriter::default(),
            processors: Keeper::default(),
            sending: Sending::default(),
        }
    }

    /// A draft for a change that a request causes: the present ledger and rollbacks.
    pub(crate) fn draft(&self) -> Draft {
        Draft::of(&self.books)
    }

    /// A draft for a change that no request caused, see [`Draft::unrequested`].
    pub(crate) fn unrequested_draft(&self) -> Draft {
        Draft {
            unrequested: true,
            ..self.draft()
        }
    }

    /// A finder on this machine and the present ledger.
    pub(crate) fn finder(&mut self) -> Finder<'_, H> {
        Finder::new(&mut self.host, &self.books.ledger)
    }

    /// Installs a draft and writes the state file. Before that, degraded targets and claims that
    /// are set aside are admitted again in the draft, as far as they fit ([`Ledger::heal`]).
    ///
    /// # Errors
    /// If the kernel fails, or the state file cannot be written and a request caused the change.
    /// Then the former state is restored.
    pub(crate) fn install(&mut self, draft: Draft) -> Result<Adoption, RequestError> {
        self.install_if(draft, |_| Ok(()))
    }

    /// As [`Reconciler::install`]. `still` checks, after installing and before writing, that the
    /// change is still valid.
    ///
    /// # Errors
    /// As [`Reconciler::install`], and if `still` fails. Then the former state is restored.
    pub(crate) fn install_if(
        &mut self,
        mut draft: Draft,
        still: impl FnOnce(&mut H) -> Result<(), RequestError>,
    ) -> Result<Adoption, RequestError> {
        for target in draft.ledger.heal() {
            tracing::info!("{target} fits again");
        }
        let usage = self.prepare_usage(&mut draft)?;
        let installed = self.install_draft(draft, still);
        self.settle_usage(installed.is_ok().then_some(usage));
        installed
    }

    /// Installs a draft whose degraded targets and traffic quotas are settled.
    fn install_draft(
        &mut self,
        mut draft: Draft,
        still: impl FnOnce(&mut H) -> Result<(), RequestError>,
    ) -> Result<Adoption, RequestError> {
        #[cfg(debug_assertions)]
        draft.ledger.assert_invariants();
        self.find_inherited(&mut draft)?;
        let before = self.deviations.desired_state(&self.books.ledger);
        let after = self.deviations.desired_state(&draft.ledger);
        // Sockets may carry the ids that the draft assigned, even if it is dropped afterwards.
        self.books.ledger.skip_ids(draft.ledger.next_id());
        let first = !self.host.is_enforcing() && after != Desired::default();
        if first && let Err(error) = self.books.save_before_first() {
            match draft.unrequested {
                // The file is written later, as with every change that no request caused.
                true => {
                    tracing::warn!(%error, "the first change takes effect without a state file")
                }
                false => return Err(error),
            }
        }
        let mut installed = install::install(&mut self.host, &before, &after, &draft.acts);
        if installed.is_err() && self.host.audit(true).is_ok_and(|faults| !faults.is_empty()) {
            // Another program has removed kernel objects of netnice that the change may need.
            let restored = self.host.reconcile();
            installed = restored
                .and_then(|()| install::install(&mut self.host, &before, &after, &draft.acts));
        }
        let kept = installed.and_then(|installed| {
            let kept = self
                .keep_processors(Some(&draft.ledger))
                .and_then(|()| still(&mut self.host))
                .and_then(|()| self.save(&draft));
            match kept {
                Ok(()) => Ok(installed),
                Err(error) => {
                    installed.roll_back(&mut self.host, &before);
                    self.restore_processors();
                    Err(error)
                }
            }
        });
        if first && kept.is_err() {
            self.books.save_after_failure(self.host.is_enforcing());
        }
        let installed = kept?;
        self.books.ledger = draft.ledger;
        self.books.rollbacks = draft.rollbacks;
        self.note_auto_time();
        self.expect_groups();
        self.place_containers();
        Ok(installed.adoption)
    }

    /// Finds the targets that the members of closed names inherit from their ancestors.
    fn find_inherited(&mut self, draft: &mut Draft) -> Result<(), RequestError> {
        for act in &mut draft.acts {
            if let Act::Release {
                outer_targets,
                by_descent,
            } = act
            {
                let (before, after) = (&self.books.ledger, &draft.ledger);
                *by_descent = ancestry::inherited(&mut self.host, before, after, outer_targets)?;
            }
        }
        Ok(())
    }

    fn save(&mut self, draft: &Draft) -> Result<(), RequestError> {
        let in_force = self.host.is_enforcing();
        let unrequested = draft.unrequested;
        self.books
            .save(&draft.ledger, &draft.rollbacks, unrequested, in_force)
    }

    /// Writes the state file again if an earlier write failed.
    pub(crate) fn write_again(&mut self, now: Now) {
        let in_force = self.host.is_enforcing();
        self.books.write_again(in_force, &mut self.journal, now);
    }

    /// Registers in the kernel the targets of control groups that will be created.
    fn expect_groups(&mut self) {
        if let Err(error) = self
            .host
            .expect_groups(&expected_groups(&self.books.ledger))
        {
            // Then the daemon binds these groups a moment after their creation.
            tracing::warn!(%error, "cannot register the control groups that are expected");
        }
    }

    /// Determines the interfaces that connect held containers to this network namespace, and limits
    /// the traffic there. A failure is logged.
    pub(crate) fn place_containers(&mut self) {
        let is_container = |held: &&HeldTarget| matches!(held.entry.target, Target::Container(_));
        let mut containers = self.books.ledger.held().filter(is_container).peekable();
        if self.deviations.placements.is_empty() && containers.peek().is_none() {
            return;
        }
        let path = |held: &HeldTarget| match &held.body {
            Body::Cgroup(bound) => bound.as_ref().map(|bound| bound.path.clone()),
            _ => None,
        };
        let groups = containers.map(|held| (held.id, path(held))).collect();
        match self.host.place_containers(&groups) {
            Ok(placements) => self.deviations.placements = placements,
            Err(error) => tracing::warn!(%error, "cannot find the interfaces of containers"),
        }
    }

    /// Describes what the installation of a draft would change, and for which targets and links, a
    /// line for each.
    pub(crate) fn preview(&self, draft: &Draft) -> Vec<String> {
        preview::preview(&self.books.ledger, draft)
    }
}
