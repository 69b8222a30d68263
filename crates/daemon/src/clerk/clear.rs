//! Taking back what was asked.

use netnice_api::{Clear, ClearWhat, Done};
use netnice_core::admission::TargetId;
use netnice_core::claims::ClaimError;
use netnice_core::target::Target;

use super::{Clerk, Draft, release};
use crate::authority;
use crate::clock::Now;
use crate::denied::Denied;
use crate::enforce::Host;
use crate::ledger::Held;
use crate::peer::Peer;

impl<H: Host> Clerk<H> {
    pub(super) fn clear(&mut self, peer: &Peer, clear: &Clear, now: Now) -> Result<Done, Denied> {
        let mut draft = self.draft();
        let messages = match &clear.what {
            ClearWhat::All => self.clear_all(&mut draft, peer, now)?,
            ClearWhat::Target(text) => {
                let target: Target = text.parse()?;
                let held = self.lookup(&target)?.clone();
                take_back(&mut draft, held.entry.id, peer, now)?;
                let left = draft.ledger.get(held.entry.id);
                vec![match left {
                    Some(left) => format!(
                        "{}: still {}, asked by others",
                        held.entry.target, left.entry.contract
                    ),
                    None => format!("{}: cleared", held.entry.target),
                }]
            }
        };
        if clear.dry_run {
            return Ok(Done {
                plan: Some(self.preview(&draft)),
                messages,
                ..Done::default()
            });
        }
        self.install(draft, |_| Ok(()))?;
        let who = authority::user(peer.uid);
        for message in &messages {
            self.journal.note(now, format!("{who} cleared: {message}"));
        }
        Ok(Done {
            messages,
            ..Done::default()
        })
    }

    /// All that the caller may clear; of root everything, links and what is left over too.
    fn clear_all(
        &mut self,
        draft: &mut Draft,
        peer: &Peer,
        now: Now,
    ) -> Result<Vec<String>, Denied> {
        let mut slots: Vec<TargetId> = self.ledger.held().map(|held| held.entry.id).collect();
        // Inner ones first, so that nothing is moved that goes anyway.
        slots.sort_by_key(|slot| std::cmp::Reverse(self.ledger.around(*slot).count()));
        let mut cleared = 0;
        for slot in slots {
            match take_back(draft, slot, peer, now) {
                Ok(()) => cleared += 1,
                Err(Denied::NotPermitted(_)) if peer.uid != 0 => {}
                Err(denied) => return Err(denied),
            }
        }
        let mut messages = vec![format!("{cleared} targets cleared")];
        if peer.uid == 0 {
            let names: Vec<_> = self.ledger.links().map(|m| m.link.name.clone()).collect();
            for name in &names {
                draft.ledger.unmanage(name)?;
            }
            if !names.is_empty() {
                messages.push(format!("{} links given back", names.len()));
            }
            draft.ledger.forget_remnants();
        }
        Ok(messages)
    }

    /// The held target that a person means.
    pub(super) fn lookup(&mut self, target: &Target) -> Result<&Held, Denied> {
        if self.ledger.find(target).is_none()
            && let Ok((body, ..)) = self.find_thing(target)
            && let Some(id) = self.ledger.find_alias(&body).map(|held| held.id)
        {
            return self
                .ledger
                .by_id(id)
                .ok_or_else(|| Denied::Failed(format!("nothing is set for {target}")));
        }
        self.ledger.find(target).ok_or_else(|| {
            Denied::Failed(format!(
                "nothing is set for {target}; `netnice show` lists what is"
            ))
        })
    }
}

/// Takes back what a peer has asked of a target, and lets the target go if nobody asks anything any more.
fn take_back(draft: &mut Draft, slot: TargetId, peer: &Peer, now: Now) -> Result<(), Denied> {
    let Some(held) = draft.ledger.get(slot) else {
        return Ok(());
    };
    let claims = held
        .claims
        .clear(peer.claimant())
        .map_err(|error: ClaimError| Denied::from(error))?;
    if claims.is_empty() {
        if let Some(closed) = draft.ledger.close(slot) {
            draft.acts.extend(release(&closed));
        }
        return Ok(());
    }
    draft.ledger.admit(slot, claims, now.wall_ns)
}
