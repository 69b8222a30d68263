//! What direct flows need of the processors, for `cpu auto`: [`Sending`] computes it from the flows
//! and the costs of a packet on this machine, and [`Reconciler::follow_sending`] changes the
//! reservations when the flows change.
//!
//! More is taken as soon as it is needed. Less is kept only after [`LOWER_AFTER`], because a daemon
//! that has just started does not know its flows yet, and programs open flows one by one. If more
//! is needed and does not fit, the target keeps what it has, and the journal and `show` say why.

use std::collections::BTreeMap;

use netnice_core::admission::TargetId;
use netnice_core::admission::packet_costs::{PacketCosts, SendingFlow, needed};
use netnice_core::contract::Slice;
use netnice_core::units::{Instant, Nanos};

use super::Reconciler;
use super::processors::processes_of;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::ledger::{HeldTarget, Ledger};

/// The flows that send, what a packet costs, and which targets follow them.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    /// The flows that are promised a rate, by the process of their program.
    flows: BTreeMap<u32, Vec<SendingFlow>>,
    /// What a packet costs; `None`: not measured.
    costs: Option<PacketCosts>,
    /// True if the flows and costs are those that were followed last.
    is_followed: bool,
    /// True if a target has `cpu auto`.
    pub is_asked: bool,
    /// Since when a target's flows need less than it has, by target id.
    lower_since: BTreeMap<u32, Instant>,
    /// When processes may have come to targets or left them: then flows are followed again.
    due: Instant,
    /// The flows are not followed before this time, because that has failed.
    retry_at: Instant,
}

impl Sending {
    /// Sets the flows that are promised a rate, by the process of their program.
    pub(crate) fn set_flows(&mut self, flows: BTreeMap<u32, Vec<SendingFlow>>) {
        self.is_followed &= self.flows == flows;
        self.flows = flows;
    }

    /// Sets what a packet costs; `None`: not measured.
    pub(crate) fn set_costs(&mut self, costs: Option<PacketCosts>) {
        self.is_followed &= self.costs == costs;
        self.costs = costs;
    }

    /// What the flows of some processes need; `None`: they have none with a promise.
    ///
    /// # Errors
    /// If that is unknown, or more than a processor. The text is for people.
    pub(crate) fn needed(
        &self,
        pids: impl IntoIterator<Item = u32>,
    ) -> Result<Option<Slice>, String> {
        let Some(costs) = &self.costs else {
            return Err(
                "what a packet costs on this machine is not known yet: `netnice doctor --measure` \
                 finds it out"
                    .to_owned(),
            );
        };
        let flows = pids.into_iter().filter_map(|pid| self.flows.get(&pid));
        let flows: Vec<SendingFlow> = flows.flatten().copied().collect();
        needed(costs, &flows).map_err(|error| error.to_string())
    }
}

impl<H: Host> Reconciler<H> {
    /// Gives the targets with `cpu auto` what their flows need now. A failure is logged.
    pub(crate) fn follow_sending(&mut self, now: Now) {
        let Sending {
            is_asked,
            is_followed,
            due,
            retry_at,
            ..
        } = self.sending;
        let is_early = now.monotonic < retry_at || (is_followed && now.monotonic < due);
        if !is_asked || is_early {
            return;
        }
        self.sending.is_followed = true;
        self.sending.due = now.monotonic.after(AGAIN_AFTER);
        let followed = self.try_follow_sending(now);
        if followed.is_err() {
            self.sending.retry_at = now.monotonic.after(RETRY_AFTER);
        }
        self.journal
            .log_result(now, "following what direct flows need", followed);
    }

    fn try_follow_sending(&mut self, now: Now) -> Result<(), RequestError> {
        let members = self.host.members()?;
        let mut changes = Vec::new();
        let mut lower = BTreeMap::new();
        let ledger = &self.books.ledger;
        for held in ledger
            .held()
            .filter(|held| held.entry.contract.has_auto_time())
        {
            let pids = processes_of(&mut self.host, held, ledger, &members);
            let needed = self.sending.needed(pids);
            if is_same(held, &needed) {
                continue;
            }
            if let Ok(needed) = &needed
                && is_less(*needed, held.auto.granted)
            {
                let since = self.sending.lower_since.get(&held.id).copied();
                let since = since.unwrap_or(now.monotonic);
                lower.insert(held.id, since);
                if now.monotonic < since.after(LOWER_AFTER) {
                    continue;
                }
            }
            changes.push((held.entry.id, needed));
        }
        self.sending.lower_since = lower;
        self.note_auto_time();
        if changes.is_empty() {
            return Ok(());
        }
        let mut draft = self.unrequested_draft();
        draft.ledger.set_processors(self.host.processors());
        let slots: Vec<TargetId> = changes.iter().map(|(slot, _)| *slot).collect();
        for (slot, needed) in changes {
            draft.ledger.set_needed_time(slot, needed);
        }
        draft.ledger.heal();
        let texts = slots.iter().filter_map(|slot| {
            let (before, after) = (self.books.ledger.get(*slot)?, draft.ledger.get(*slot)?);
            Some((after.auto.fault().is_some(), change_text(before, after)?))
        });
        let texts: Vec<(bool, String)> = texts.collect();
        self.install(draft)?;
        for (is_short, text) in texts {
            match is_short {
                true => self.journal.warn(now, text),
                false => self.journal.note(now, text),
            }
        }
        Ok(())
    }

    /// Notes whether a target of a ledger has `cpu auto`.
    pub(super) fn note_auto_time(&mut self) {
        let asks = |held: &HeldTarget| held.entry.contract.has_auto_time();
        let ledger: &Ledger = &self.books.ledger;
        self.sending.is_asked = ledger.held().any(asks);
    }
}

/// True if a target was told this need before.
fn is_same(held: &HeldTarget, needed: &Result<Option<Slice>, String>) -> bool {
    match needed {
        // What could not be had is tried again by `Ledger::heal`, with each change.
        Ok(needed) => held.auto.needed == *needed && held.auto.unknown.is_none(),
        Err(why) => held.auto.unknown.as_ref() == Some(why),
    }
}

fn is_less(needed: Option<Slice>, granted: Option<Slice>) -> bool {
    granted.is_some_and(|granted| needed.is_none_or(|needed| granted.is_larger_than(&needed)))
}

/// What has changed for a target; `None`: nothing that people need to know.
fn change_text(before: &HeldTarget, after: &HeldTarget) -> Option<String> {
    let target = &after.entry.target;
    let text = |slice: Option<Slice>| match slice {
        Some(slice) => format!("{} in every {}", slice.slice(), slice.period()),
        None => "no processor time".to_owned(),
    };
    if let Some(why) = after.auto.fault() {
        let has = text(after.reserved());
        return (before.auto.fault() != Some(why))
            .then(|| format!("{target} with cpu auto stays at {has}: {why}"));
    }
    let (was, is) = (before.reserved(), after.reserved());
    (was != is).then(|| format!("{target} with cpu auto has {} now", text(is)))
}

/// For how long a target's flows must need less before it has less.
const LOWER_AFTER: Nanos = Nanos::from_secs(5);
/// How often flows are followed that have not changed.
const AGAIN_AFTER: Nanos = Nanos::from_secs(1);
/// For how long flows are not followed after a failure.
const RETRY_AFTER: Nanos = Nanos::from_secs(10);
