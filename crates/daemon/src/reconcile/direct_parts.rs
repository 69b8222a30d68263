//! The flows' parts of links, and the rates left for the kernel's classes.

use netnice_core::contract::IfName;

use super::Reconciler;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::ledger::direct_part::DirectPart;

impl<H: Host> Reconciler<H> {
    /// Sets the flows' part of a link, and gives the rest to the kernel's classes. The part is not
    /// in the state file: the next daemon asks the drivers.
    ///
    /// # Errors
    /// If the kernel refuses the classes; then all is as before.
    pub(crate) fn set_part(
        &mut self,
        link: &IfName,
        part: Option<DirectPart>,
    ) -> Result<(), RequestError> {
        let ledger = &mut self.books.ledger;
        let tree = |part: Option<&DirectPart>| part.map(|part| part.tree);
        let same_tree = tree(ledger.part(link)) == tree(part.as_ref());
        let before = ledger.set_part(link, part);
        if same_tree || ledger.link(link.as_str()).is_none() {
            return Ok(());
        }
        let wanted = self.deviations.desired_state(ledger);
        if let Err(error) = self.host.apply(&wanted) {
            ledger.set_part(link, before);
            return Err(error);
        }
        Ok(())
    }

    /// Admits degraded targets again, as far as they fit.
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
