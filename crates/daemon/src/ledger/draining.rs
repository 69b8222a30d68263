//! Draining targets: targets whose last process has ended, while packets wait in their queues or
//! data in the send buffers of their sockets, which the kernel still sends. A draining target keeps
//! the limit until no packet has moved for [`QUIET_TIME`], or for at most [`MAX_DRAIN_TIME`].
//!
//! After the loss of the state file, limits found in the kernel become draining targets too,
//! because their claims and members are unknown. They stay in force until root clears everything.

use netnice_core::admission::TargetId;
use netnice_core::contract::Contract;
use netnice_core::units::{Instant, Nanos};

use super::{ClosedTarget, Ledger};

/// A target that has ended while packets of it still wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrainingTarget {
    /// Its slot, which is in use until the draining target goes.
    pub slot: TargetId,
    /// Its id.
    pub id: u32,
    /// The slot of the target around it.
    pub parent: Option<TargetId>,
    /// Its limits.
    pub contract: Contract,
    /// The time at which the target ended.
    pub since: Instant,
    /// The time at which the last movement of its packets was seen.
    pub moved: Instant,
    /// Packets offered by that time.
    pub offered: u64,
    /// True if it was found in the kernel after the loss of the state file; then it stays until
    /// everything is cleared.
    pub found: bool,
    /// The unprivileged user who had a claim on it. It counts for that user until it goes.
    pub user: Option<u32>,
}

impl Ledger {
    /// The draining targets.
    pub(crate) fn draining(&self) -> impl Iterator<Item = &DrainingTarget> {
        self.draining.values()
    }

    /// Keeps the limit of a closed target as a draining target.
    pub(crate) fn keep_draining(&mut self, closed: &ClosedTarget, now: Instant) {
        let entry = &closed.held.entry;
        if !entry.contract.is_limited() {
            return;
        }
        let draining = DrainingTarget {
            slot: entry.id,
            id: closed.held.id,
            parent: entry.parent,
            contract: entry.contract.without_guarantees(),
            since: now,
            moved: now,
            offered: 0,
            found: false,
            user: closed.held.user(),
        };
        self.draining.insert(entry.id, draining);
    }

    /// Keeps a closed target as a draining target if nothing else is in force: unloading the eBPF
    /// programs and loading them again takes long, and a user who toggles a limit would cause it
    /// each time. It counts for no user, because there is at most one.
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

    /// Removes the draining targets that are over. `traffic` returns, for an id, the packets
    /// offered so far and the packets waiting. Returns true if a draining target was removed.
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

    /// Adds a draining target as it was before a restart.
    pub(crate) fn restore_draining(&mut self, draining: DrainingTarget) {
        self.next_id = self.next_id.max(draining.id.saturating_add(1));
        self.draining.insert(draining.slot, draining);
    }

    /// Removes all draining targets.
    pub(crate) fn forget_draining(&mut self) {
        self.draining.clear();
    }
}

/// Longer than TCP's first few retransmissions: a connection that has data left sends within this
/// time.
const QUIET_TIME: Nanos = Nanos::from_secs(3);

/// Bound for a connection of an ended program with a peer that does not read: it does not keep a
/// class for longer.
const MAX_DRAIN_TIME: Nanos = Nanos::from_secs(60);
