//! Draining targets: targets with a limit, a code point, `yield` or a traffic quota whose last
//! process has ended.
//! Packets may still wait in their queues, and the kernel still sends the data in the send buffers
//! of their sockets. So a draining target keeps these until no packet has come or waited for
//! [`QUIET_TIME`] (3 s), and at most for [`MAX_DRAIN_TIME`] (60 s).
//!
//! Two other kinds of targets become draining targets too. A limited target that an unprivileged
//! user clears becomes one if nothing else is in force ([`Ledger::stay_loaded`]). After the loss of
//! the state file, limits found in the kernel become draining targets, because their claims and
//! members are unknown; they stay in force until root clears everything. No function fails.

use netnice_core::admission::TargetId;
use netnice_core::contract::Contract;
use netnice_core::units::{Instant, Nanos};

use super::{ClosedTarget, Ledger};

/// A closed target whose limit is still in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrainingTarget {
    /// The target's slot, which is in use until the draining target is removed.
    pub slot: TargetId,
    /// The target's id.
    pub id: u32,
    /// The slot of the target around this one, if there is one.
    pub parent: Option<TargetId>,
    /// The target's limits, its code point and whether it yields.
    pub contract: Contract,
    /// The time at which the target ended.
    pub since: Instant,
    /// The time of the latest reading at which packets of the target had come, or were waiting.
    pub moved: Instant,
    /// Number of packets that the target had offered by that time, in both directions together.
    pub offered: u64,
    /// True if the target was found in the kernel after the loss of the state file. Such a target
    /// stays until root clears everything.
    pub found: bool,
    /// The unprivileged user in whose quota `targets` the target counts until it is removed; `None`
    /// if it counts for no user.
    pub user: Option<u32>,
    /// The keys of the traffic quotas that hold its packets. Not in the state file.
    pub quotas: Vec<u64>,
}

impl Ledger {
    /// The draining targets.
    pub(crate) fn draining(&self) -> impl Iterator<Item = &DrainingTarget> {
        self.draining.values()
    }

    /// Keeps the limit, the code point, `yield` and the traffic quotas of a closed target as a
    /// draining target. No effect if it has none of them.
    pub(crate) fn keep_draining(&mut self, closed: &ClosedTarget, now: Instant) {
        let entry = &closed.held.entry;
        let contract = closed.held.in_force();
        let quotas = self.quotas_around(&closed.held);
        let marked = contract.dscp().is_some() || contract.yields();
        if !contract.is_limited() && !marked && quotas.is_empty() {
            return;
        }
        let draining = DrainingTarget {
            slot: entry.id,
            id: closed.held.id,
            parent: entry.parent,
            // What yields has no guarantee.
            contract: match contract.yields() {
                true => contract.clone().into_owned(),
                false => contract.without_guarantees(),
            },
            since: now,
            moved: now,
            offered: 0,
            found: false,
            user: closed.held.user(),
            quotas,
        };
        self.draining.insert(entry.id, draining);
    }

    /// Keeps a closed target as a draining target if nothing else is in force. Unloading the eBPF
    /// programs and loading them again takes long, and a user who sets and clears a limit in turn
    /// would cause it each time. Such a draining target counts for no user.
    pub(crate) fn stay_loaded(&mut self, closed: &ClosedTarget, now: Instant) {
        if self.is_empty() {
            self.keep_draining(closed, now);
            for draining in self.draining.values_mut() {
                draining.user = None;
            }
        }
    }

    /// Restarts the quiet time of all draining targets at `now`, after a time without observation.
    pub(crate) fn restart_quiet_time(&mut self, now: Instant) {
        for draining in self.draining.values_mut() {
            draining.moved = now;
        }
    }

    /// Removes the draining targets whose time is over. `traffic` returns, for an id, the number of
    /// packets offered so far and of packets that wait. Returns true if a draining target was
    /// removed.
    pub(crate) fn expire_draining(
        &mut self,
        now: Instant,
        traffic: impl Fn(u32) -> (u64, u64),
    ) -> bool {
        let before = self.draining.len();
        self.draining.retain(|_, draining| {
            if draining.found {
                return true;
            }
            let (offered, waiting) = traffic(draining.id);
            if offered != draining.offered || waiting > 0 {
                draining.offered = offered;
                draining.moved = now;
            }
            now.since(draining.moved) < QUIET_TIME && now.since(draining.since) < MAX_DRAIN_TIME
        });
        self.draining.len() != before
    }

    /// Adds a draining target as the state file has it, or as it was found in the kernel.
    pub(crate) fn restore_draining(&mut self, draining: DrainingTarget) {
        self.next_id = self.next_id.max(draining.id.saturating_add(1));
        self.draining.insert(draining.slot, draining);
    }

    /// Removes all draining targets.
    pub(crate) fn forget_draining(&mut self) {
        self.draining.clear();
    }
}

/// Time without a moving packet after which a draining target is removed. It is longer than TCP's
/// first few retransmission timeouts, so a connection that has data left sends within this time.
const QUIET_TIME: Nanos = Nanos::from_secs(3);

/// Longest time for which a draining target is kept. A connection of an ended program whose peer
/// does not read would keep its class for longer.
const MAX_DRAIN_TIME: Nanos = Nanos::from_secs(60);
