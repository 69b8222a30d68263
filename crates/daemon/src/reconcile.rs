//! What is desired against what is there: the two are made equal here, and kept so.
//!
//! ```text
//!   a request ──> draft of the ledger ──┐
//!   what ended, came anew, is over ─────┤─> what is desired ──> installed ──> written down
//!   somebody removed what is ours ──────┘        (or all is as it was before)
//! ```
//!
//! - [`Finder`] finds what a target is made of, and takes it into a [`Draft`].
//! - [`Reconciler::install`] makes a draft true: in the kernel, in the state file, in the ledger, or in none of them.
//! - [`sweep`] follows what changes on the machine: processes end, control groups and executables are made anew.
//! - [`rollback`] takes back what was for a time.
//! - [`repair`] puts back what other programs have removed.
//! - [`start`] takes over from an earlier daemon.
//!
//! Time is always an argument.

mod ancestry;
pub(crate) mod desired;
mod draft;
mod finder;
mod install;
mod parts;
pub(crate) mod repair;
mod rollback;
mod start;
mod sweep;
mod terms;
mod within;

use std::collections::BTreeMap;

use netnice_core::contract::IfName;
use netnice_core::target::Target;
use netnice_kernel::enforce::{Adoption, Housing};
use netnice_kernel::plan::Desired;

pub(crate) use draft::Draft;
pub(crate) use finder::{Finder, made_of};
pub(crate) use start::Record;
pub(crate) use terms::Terms;
pub(crate) use within::OnBooks;

use crate::clock::Now;
use crate::denied::Denied;
use crate::host::Host;
use crate::journal::Journal;
use crate::ledger::{Body, Held, Ledger};
use crate::state::{Books, Store};
use desired::{awaited, desired};
use repair::Repairs;

/// The machine and the books, and what is known of the one against the other.
pub(crate) struct Reconciler<H> {
    /// The machine.
    pub host: H,
    /// What should be in force.
    pub books: Books,
    /// What cannot be in force now.
    pub standing: Standing,
    /// What happened.
    pub journal: Journal,
}

/// How what is in force differs from what should be.
#[derive(Default)]
pub(crate) struct Standing {
    /// Links that cannot be served now though their interface is there, and why.
    pub broken: BTreeMap<IfName, String>,
    /// What somebody has removed and was put back.
    pub repairs: Repairs,
    /// How containers are joined to this namespace.
    pub housings: BTreeMap<u32, Housing>,
}

impl Standing {
    /// What should be in force of a ledger, as far as it can be now.
    pub(crate) fn wanted(&self, ledger: &Ledger) -> Desired {
        let mut wanted = desired(ledger);
        let broken = |name: &str| self.broken.keys().any(|link| link.as_str() == name);
        wanted.links.retain(|link| !broken(&link.name));
        wanted
    }
}

impl<H: Host> Reconciler<H> {
    /// With nothing on the books.
    pub(crate) fn new(host: H, store: Option<Store>) -> Reconciler<H> {
        Reconciler {
            host,
            books: Books::new(store),
            standing: Standing::default(),
            journal: Journal::default(),
        }
    }

    /// Starts a change.
    pub(crate) fn draft(&self) -> Draft {
        Draft::of(&self.books)
    }

    /// Starts a change that nobody asks for now.
    pub(crate) fn draft_by_itself(&self) -> Draft {
        Draft {
            by_itself: true,
            ..self.draft()
        }
    }

    /// Finds what targets are made of.
    pub(crate) fn finder(&mut self) -> Finder<'_, H> {
        Finder::new(&mut self.host, &self.books.ledger)
    }

    /// Installs a draft and writes it down.
    ///
    /// # Errors
    /// The kernel or the state file says no; then all is as it was before.
    pub(crate) fn install(&mut self, draft: Draft) -> Result<Adoption, Denied> {
        self.install_if(draft, |_| Ok(()))
    }

    /// The same; `still` is asked between installing and writing whether it is still wanted.
    pub(crate) fn install_if(
        &mut self,
        mut draft: Draft,
        still: impl FnOnce(&mut H) -> Result<(), Denied>,
    ) -> Result<Adoption, Denied> {
        for target in draft.ledger.heal() {
            tracing::info!("{target} fits again");
        }
        #[cfg(debug_assertions)]
        draft.ledger.invariants();
        let before = self.standing.wanted(&self.books.ledger);
        let after = self.standing.wanted(&draft.ledger);
        // Sockets may carry the numbers that a draft gave out, also of one that is thrown away.
        self.books.ledger.skip_ids(draft.ledger.next_id());
        let first = !self.host.is_enforcing() && after != Desired::default();
        if first {
            self.books.keep_before_first()?;
        }
        let mut installed = install::install(&mut self.host, &before, &after, &draft.acts);
        if installed.is_err() && self.host.audit(true).is_ok_and(|faults| !faults.is_empty()) {
            // Somebody has just removed what the change was to build on.
            self.host.reconcile()?;
            installed = install::install(&mut self.host, &before, &after, &draft.acts);
        }
        let kept = installed.and_then(|installed| {
            let kept = still(&mut self.host).and_then(|()| self.keep(&draft));
            match kept {
                Ok(()) => Ok(installed),
                Err(denied) => {
                    installed.take_back(&mut self.host, &before);
                    Err(denied)
                }
            }
        });
        if first && kept.is_err() {
            self.books.keep_after_failure(self.host.is_enforcing());
        }
        let installed = kept?;
        self.books.ledger = draft.ledger;
        self.books.undos = draft.undos;
        self.await_groups();
        self.house();
        Ok(installed.adoption)
    }

    fn keep(&mut self, draft: &Draft) -> Result<(), Denied> {
        let in_force = self.host.is_enforcing();
        let by_itself = draft.by_itself;
        self.books
            .keep(&draft.ledger, &draft.undos, by_itself, in_force)
    }

    /// Writes down what could not be written when it happened.
    pub(crate) fn write_again(&mut self, now: Now) {
        let in_force = self.host.is_enforcing();
        self.books.write_again(in_force, &mut self.journal, now);
    }

    /// Tells the kernel which control groups are whose when they are made.
    fn await_groups(&mut self) {
        if let Err(error) = self.host.await_groups(&awaited(&self.books.ledger)) {
            // They are bound all the same, a moment after they were made.
            tracing::warn!(%error, "control groups that are made anew are not awaited");
        }
    }

    /// Finds out by which interfaces containers are joined to this namespace, and holds what passes there.
    pub(crate) fn house(&mut self) {
        let is_container = |held: &&Held| matches!(held.entry.target, Target::Container(_));
        let mut containers = self.books.ledger.held().filter(is_container).peekable();
        if self.standing.housings.is_empty() && containers.peek().is_none() {
            return;
        }
        let path = |held: &Held| match &held.body {
            Body::Cgroup(bound) => bound.as_ref().map(|bound| bound.path.clone()),
            _ => None,
        };
        let groups = containers.map(|held| (held.id, path(held))).collect();
        match self.host.house(&groups) {
            Ok(housings) => self.standing.housings = housings,
            Err(error) => tracing::warn!(%error, "looking for the interfaces of containers"),
        }
    }

    /// What a draft would do, in words.
    pub(crate) fn preview(&mut self, draft: &Draft) -> Vec<String> {
        let wanted = self.standing.wanted(&draft.ledger);
        let mut lines = self.host.preview(&wanted);
        lines.extend(draft.acts.iter().map(ToString::to_string));
        lines
    }
}
