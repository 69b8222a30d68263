//! What flows have of a link, and what is left for the classes of the kernel.

use netnice_core::contract::IfName;

use super::Reconciler;
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::Host;
use crate::ledger::part::Part;

impl<H: Host> Reconciler<H> {
    /// Says what flows have of a link, and gives the rest to the kernel's classes. It is not written down: the next
    /// daemon asks the drivers.
    ///
    /// # Errors
    /// The kernel refuses the classes; then all is as it was.
    pub(crate) fn set_part(&mut self, link: &IfName, part: Option<Part>) -> Result<(), Denied> {
        let ledger = &mut self.books.ledger;
        let tree = |part: Option<&Part>| part.map(|part| part.tree);
        let same_tree = tree(ledger.part(link)) == tree(part.as_ref());
        let before = ledger.set_part(link, part);
        if same_tree || ledger.link(link.as_str()).is_none() {
            return Ok(());
        }
        let wanted = self.standing.wanted(ledger);
        if let Err(denied) = self.host.apply(&wanted) {
            ledger.set_part(link, before);
            return Err(denied);
        }
        Ok(())
    }

    /// Admits again what was degraded, if there is room for it now.
    pub(crate) fn heal(&mut self, now: Now) {
        let mut held = self.books.ledger.held();
        if held.any(|held| held.refused.is_some()) {
            drop(held);
            let draft = self.draft_by_itself();
            let healed = self.install(draft).map(drop);
            self.journal.judge(now, "admitting again", healed);
        }
    }
}
