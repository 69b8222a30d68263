//! What the service does for flows: see [`Promises`].

use netnice_api::direct::Term;
use netnice_core::contract::{Direction, IfName};
use netnice_core::link::Link;
use netnice_core::units::Amount;

use super::Clerk;
use crate::authority;
use crate::clock::Now;
use crate::denied::Denied;
use crate::flows::promises::Promises;
use crate::host::{Host, Process};
use crate::journal::Journal;
use crate::ledger::part::Part;
use crate::peer::Peer;

impl<H: Host> Promises for Clerk<H> {
    fn may_use(&self, peer: &Peer) -> Result<(), Denied> {
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

    fn keeps_awake(&self) -> bool {
        self.policy.direct_awake
    }

    fn discards(&self, link: &IfName) -> Option<&[Vec<Term>]> {
        let known = self.policy_read || self.policy_fault.is_none();
        let rule = self.policy.links.iter().find(|rule| rule.name == *link);
        known.then(|| rule.map_or(&[][..], |rule| &rule.discard))
    }

    fn process(&mut self, pid: u32) -> Option<Process> {
        self.host.process(pid)
    }

    fn links(&self) -> Vec<IfName> {
        let links = self.ledger.links();
        links.map(|managed| managed.link.name.clone()).collect()
    }

    fn link(&self, name: &IfName) -> Option<Link> {
        let managed = self.ledger.link(name.as_str())?;
        Some(managed.link.clone())
    }

    fn promised_to_targets(&self, link: &Link) -> (Vec<(String, Amount)>, Amount) {
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

    fn part(&self, link: &IfName) -> Option<Part> {
        self.ledger.part(link).copied()
    }

    fn set_part(&mut self, link: &IfName, part: Option<Part>) -> Result<(), Denied> {
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

    fn sent_by_classes(&self, link: &IfName) -> Option<u64> {
        self.host.sent_on(link.as_str())
    }

    fn heal(&mut self, now: Now) {
        let degraded = self.ledger.held().any(|held| held.refused.is_some());
        if degraded {
            let draft = self.draft_by_itself();
            let healed = self.install(draft, |_| Ok(())).map(drop);
            self.journal.judge(now, "admitting again", healed);
        }
    }

    fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }
}

#[cfg(test)]
impl<H: Host> Clerk<H> {
    /// A link carries something else from now on, whatever was promised.
    pub fn force_link(&mut self, managed: crate::ledger::Managed) {
        self.ledger.relink(managed);
    }
}
