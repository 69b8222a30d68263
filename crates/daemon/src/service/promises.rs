//! The clerk's side of the direct path: what its flow manager asks of the ledger, of the class trees, and of the machine.

use netnice_api::direct::Term;
use netnice_core::contract::{Direction, IfName};
use netnice_core::link::Link;
use netnice_core::units::Amount;

use super::{Clerk, Named};
use crate::authority;
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::{Host, Process};
use crate::ledger::part::Part;
use crate::peer::Peer;

impl<H: Host> Clerk<H> {
    /// Whether a peer may have direct flows at all. Where the policy cannot be read nobody knows, so those may whom it cannot
    /// keep out.
    pub fn may_go_direct(&self, peer: &Peer) -> Result<(), Denied> {
        match (&self.policy_fault, self.policy.direct_users) {
            (Some(_), _) if !self.policy_read => authority::may_manage(
                peer,
                "the direct path of a host whose policy is not in force",
            ),
            (_, false) => authority::may_manage(
                peer,
                "the direct path of this host (direct_users = false in its policy)",
            ),
            (_, true) => Ok(()),
        }
    }

    /// Whether drivers keep processors awake while packets leave that have a moment to leave at.
    pub fn keeps_awake(&self) -> bool {
        self.policy.direct_awake
    }

    /// What a link's driver is to throw away. None: nobody knows, for the policy cannot be read.
    pub fn discards(&self, link: &IfName) -> Option<&[Vec<Term>]> {
        let known = self.policy_read || self.policy_fault.is_none();
        let rule = self.policy.links.iter().find(|rule| rule.name == *link);
        known.then(|| rule.map_or(&[][..], |rule| &rule.discard))
    }

    /// The process that asks for flows, if the peer may act for it.
    pub fn program(&mut self, peer: &Peer, named: &Named) -> Result<Process, Denied> {
        self.named(peer, Some(named), None)
    }

    /// A managed link.
    pub fn managed(&self, name: &str) -> Option<Link> {
        let managed = self.ledger.link(name)?;
        Some(managed.link.clone())
    }

    /// What is promised to targets of the kernel path for sending on a link, each and together.
    pub fn promised_to_targets(&self, link: &Link) -> (Vec<(String, Amount)>, Amount) {
        let [together, _] = self.ledger.promised_to_targets(link);
        let usable = link.usable(Direction::Up);
        let each = self.ledger.held().filter_map(|held| {
            let contract = &held.entry.contract;
            let on = contract.on().is_some_and(|on| *on == link.name);
            let min = contract.link_min(Direction::Up, usable.filter(|_| on)?)??;
            Some((held.entry.target.to_string(), min.into()))
        });
        (each.collect(), together)
    }

    /// Says what the direct path has of a link, and gives the rest to the kernel's classes. It is not written down: the
    /// next daemon asks the drivers.
    pub fn set_part(&mut self, link: &IfName, part: Option<Part>) -> Result<(), Denied> {
        let same_tree = {
            let tree = |part: Option<&Part>| part.map(|part| part.tree);
            tree(self.ledger.part(link)) == tree(part.as_ref())
        };
        let before = self.ledger.set_part(link, part);
        if same_tree || self.ledger.link(link.as_str()).is_none() {
            return Ok(());
        }
        let wanted = self.wanted(&self.ledger);
        if let Err(denied) = self.host.apply(&wanted) {
            self.ledger.set_part(link, before);
            return Err(denied);
        }
        Ok(())
    }

    /// Bytes that the kernel's classes have sent on a link so far, of all who use it.
    pub fn sent_by_classes(&self, link: &IfName) -> Option<u64> {
        self.host.sent_on(link.as_str())
    }

    /// Admits again what was degraded, if there is room now: the direct path has given some back.
    pub fn heal(&mut self, now: Now) {
        let degraded = self.ledger.held().any(|held| held.refused.is_some());
        if degraded {
            let draft = self.draft_by_itself();
            let healed = self.install(draft, |_| Ok(())).map(drop);
            self.journal.judge(now, "admitting again", healed);
        }
    }

    /// A link carries something else from now on, whatever was promised.
    #[cfg(test)]
    pub fn force_link(&mut self, managed: crate::ledger::Managed) {
        self.ledger.relink(managed);
    }

    /// Notes something for `netnice log`.
    pub fn note(&mut self, now: Now, text: String) {
        self.journal.note(now, text);
    }
}
