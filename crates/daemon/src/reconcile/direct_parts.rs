//! Sets the part of a link that the direct path has ([`DirectPart`], in the ledger), and gives the
//! rest of the link's rate to the kernel's classes; sets the places of redirected targets; and
//! gives classes to targets that no longer wait for their driver. If the kernel refuses a change,
//! the former state stays. Also admits degraded targets again when flows have released rate.

use std::collections::BTreeMap;

use netnice_core::contract::IfName;
use netnice_core::units::Instant;
use netnice_kernel::plan::Desired;

use super::Reconciler;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::ledger::direct_part::DirectPart;
use crate::ledger::redirects::RedirectPlace;

impl<H: Host> Reconciler<H> {
    /// Sets the direct path's part of a link (`None`: it has no flow there), and gives the rest to
    /// the kernel's classes. The part is not in the state file: the next daemon asks the drivers.
    ///
    /// # Errors
    /// If the kernel refuses the classes. Then the former part stays.
    pub(crate) fn set_direct_part(
        &mut self,
        link: &IfName,
        part: Option<DirectPart>,
    ) -> Result<(), RequestError> {
        let ledger = &mut self.books.ledger;
        let tree = |part: Option<&DirectPart>| part.map(|part| (part.tree, part.bucket));
        let same_tree = tree(ledger.direct_part(link)) == tree(part.as_ref());
        let before = ledger.set_direct_part(link, part);
        if same_tree || ledger.link(link.as_str()).is_none() {
            return Ok(());
        }
        let wanted = self.deviations.desired_state(ledger);
        if let Err(error) = self.host.apply(&wanted) {
            ledger.set_direct_part(link, before);
            return Err(error);
        }
        Ok(())
    }

    /// Replaces the places of redirected targets, puts them into force, and writes them to the
    /// state file.
    ///
    /// # Errors
    /// If the kernel refuses them. Then the former places stay.
    pub(crate) fn set_redirects(
        &mut self,
        places: BTreeMap<u16, RedirectPlace>,
    ) -> Result<(), RequestError> {
        let before = self.deviations.desired_state(&self.books.ledger);
        let former = self.books.ledger.set_redirects(places);
        if let Err(error) = self.apply_unless(&before) {
            self.books.ledger.set_redirects(former);
            return Err(error);
        }
        let in_force = self.host.is_enforcing();
        self.books.save_present(in_force);
        Ok(())
    }

    /// Replaces the targets that have no class until their driver serves them, and gives the others
    /// their classes. They are not in the state file.
    ///
    /// # Errors
    /// If the kernel refuses the classes. Then the former targets stay.
    pub(crate) fn set_awaiting(
        &mut self,
        targets: BTreeMap<u32, Instant>,
    ) -> Result<(), RequestError> {
        let before = self.deviations.desired_state(&self.books.ledger);
        let former = self.books.ledger.set_awaiting(targets);
        self.apply_unless(&before).inspect_err(|_| {
            self.books.ledger.set_awaiting(former);
        })
    }

    /// Puts the desired state of the ledger into force if it differs from `before`. Fails if the
    /// kernel refuses it.
    fn apply_unless(&mut self, before: &Desired) -> Result<(), RequestError> {
        let wanted = self.deviations.desired_state(&self.books.ledger);
        match wanted == *before {
            true => Ok(()),
            false => self.host.apply(&wanted),
        }
    }

    /// Admits degraded targets again, as far as they fit. An error goes to the journal.
    pub(crate) fn heal(&mut self, now: Now) {
        let mut held = self.books.ledger.held();
        if held.any(|held| held.refused.is_some()) {
            drop(held);
            let draft = self.unrequested_draft();
            let healed = self.install(draft).map(drop);
            self.journal.log_result(now, "admitting again", healed);
        }
    }
}
