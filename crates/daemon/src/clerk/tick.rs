//! What happens by itself: processes end.

use std::collections::{BTreeMap, BTreeSet};

use netnice_core::admission::TargetId;

use super::Clerk;
use crate::clock::Now;
use crate::denied::Denied;
use crate::enforce::Host;
use crate::ledger::Body;

impl<H: Host> Clerk<H> {
    /// Looks at everything that changes by itself. To be called each second.
    pub fn tick(&mut self, now: Now) {
        if let Err(denied) = self.sweep(now).and_then(|()| self.age(now)) {
            self.journal.warn(now, format!("looking around: {denied}"));
        }
    }

    /// Lets go of process targets whose last member has ended.
    pub fn sweep(&mut self, now: Now) -> Result<(), Denied> {
        let of_processes = |body: &Body| matches!(body, Body::Processes { .. });
        if !self.ledger.held().any(|held| of_processes(&held.body)) {
            return Ok(());
        }
        let alive: BTreeSet<u32> = self.host.members()?.values().map(|(own, _)| *own).collect();
        let ended: Vec<TargetId> = self
            .ledger
            .held()
            .filter(|held| of_processes(&held.body) && !alive.contains(&held.id))
            .map(|held| held.entry.id)
            .collect();
        if ended.is_empty() {
            return Ok(());
        }
        let mut draft = self.draft();
        let mut names = Vec::new();
        for slot in ended {
            if let Some(closed) = draft.ledger.close(slot) {
                names.push(closed.held.entry.target.to_string());
                draft.ledger.linger(&closed, now.monotonic);
            }
        }
        self.install(draft, |_| Ok(()))?;
        for name in names {
            self.journal.note(now, format!("{name} has ended"));
        }
        Ok(())
    }

    /// Lets go of what was left over of ended targets, once nothing of it moves any more.
    fn age(&mut self, now: Now) -> Result<(), Denied> {
        if self.ledger.remnants().next().is_none() {
            return Ok(());
        }
        let sample = self.host.sample()?;
        let traffic: BTreeMap<u32, (u64, u64)> = sample
            .targets
            .iter()
            .map(|(id, counts)| {
                let [up, down] = counts.directions;
                let offered = up.offered_packets + down.offered_packets;
                (*id, (offered, up.queued_packets + down.queued_packets))
            })
            .collect();
        let mut draft = self.draft();
        let went = draft.ledger.age(now.monotonic, |id| {
            traffic.get(&id).copied().unwrap_or_default()
        });
        match went {
            true => self.install(draft, |_| Ok(())).map(drop),
            false => {
                self.ledger = draft.ledger;
                Ok(())
            }
        }
    }
}
