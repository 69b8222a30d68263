//! What flows ask of the rest of the daemon: the one way from here to the ledger, to the class trees and to the machine.
//!
//! What is promised to all flows of a link is one [`Part`] in the ledger, beside what targets of the kernel path are
//! promised, so neither path promises what the other has. Which flow is promised what is known here alone.

use netnice_api::direct::Term;
use netnice_core::contract::IfName;
use netnice_core::link::Link;
use netnice_core::units::Amount;

use crate::clock::Now;
use crate::denied::Denied;
use crate::host::Process;
use crate::journal::Journal;
use crate::ledger::part::Part;
use crate::peer::Peer;
use crate::quotas::Quotas;

/// See the module.
pub(crate) trait Promises {
    /// Whether a peer may have flows at all, by the policy.
    ///
    /// # Errors
    /// Why not. Where the policy cannot be read, only the privileged may.
    fn may_use(&self, peer: &Peer) -> Result<(), Denied>;
    /// What a user may have at a time, by the policy.
    fn quotas(&self) -> &Quotas;
    /// Whether drivers keep processors awake while packets leave that have a moment to leave at, by the policy.
    fn keeps_awake(&self) -> bool;
    /// What a link's driver throws away, by the policy. None: the policy cannot be read.
    fn discards(&self, link: &IfName) -> Option<&[Vec<Term>]>;
    /// The process of this number.
    fn process(&mut self, pid: u32) -> Option<Process>;
    /// The managed links.
    fn links(&self) -> Vec<IfName>;
    /// A managed link.
    fn link(&self, name: &IfName) -> Option<Link>;
    /// What is promised to targets of the kernel path for sending on a link: to each, and together.
    fn promised_to_targets(&self, link: &Link) -> (Vec<(String, Amount)>, Amount);
    /// What flows have of a link.
    fn part(&self, link: &IfName) -> Option<Part>;
    /// Says what flows have of a link from now on, and gives the rest to the kernel's classes. It is not written down: the
    /// next daemon asks the drivers.
    ///
    /// # Errors
    /// The kernel refuses the classes; then all is as it was.
    fn set_part(&mut self, link: &IfName, part: Option<Part>) -> Result<(), Denied>;
    /// Bytes that the kernel's classes have sent on a link so far, of all who use it.
    fn sent_by_classes(&self, link: &IfName) -> Option<u64>;
    /// Admits again what was degraded, if there is room for it now: flows have given some back.
    fn heal(&mut self, now: Now);
    /// The journal.
    fn journal(&mut self) -> &mut Journal;
}
