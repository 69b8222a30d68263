//! Remnants: targets whose last process has ended, while packets wait in their queues or data in
//! the send buffers of their sockets, which the kernel still sends. A remnant keeps the limit until
//! no packet has moved for [`QUIET`], or for at most [`LONGEST`].
//!
//! After the loss of the state file, limits found in the kernel become remnants too, because their
//! claims and members are unknown. They stay in force until root clears everything.

use netnice_core::admission::TargetId;
use netnice_core::contract::Contract;
use netnice_core::units::{Instant, Nanos};

use super::{Closed, Ledger};

/// A target that has ended while packets of it still wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remnant {
    /// Its slot, which is in use until the remnant goes.
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
    /// The remnants.
    pub(crate) fn remnants(&self) -> impl Iterator<Item = &Remnant> {
        self.remnants.values()
    }

    /// Keeps the limit of a closed target as a remnant.
    pub(crate) fn linger(&mut self, closed: &Closed, now: Instant) {
        let entry = &closed.held.entry;
        if !entry.contract.is_limited() {
            return;
        }
        let remnant = Remnant {
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
        self.remnants.insert(entry.id, remnant);
    }

    /// Keeps a closed target as a remnant if nothing else is in force: unloading the eBPF programs
    /// and loading them again takes long, and a user who toggles a limit would cause it each time.
    /// It counts for no user, because there is at most one.
    pub fn stay_loaded(&mut self, closed: &Closed, now: Instant) {
        if self.is_empty() {
            self.linger(closed, now);
            for remnant in self.remnants.values_mut() {
                remnant.user = None;
            }
        }
    }

    /// Restarts the quiet time of all remnants at `now`, after a time without observation.
    pub(crate) fn look_anew(&mut self, now: Instant) {
        for remnant in self.remnants.values_mut() {
            remnant.moved = now;
        }
    }

    /// Removes the remnants that are over. `traffic` returns, for an id, the packets offered so far
    /// and the packets waiting. Returns true if a remnant was removed.
    pub(crate) fn age(&mut self, now: Instant, traffic: impl Fn(u32) -> (u64, u64)) -> bool {
        let before = self.remnants.len();
        self.remnants.retain(|_, remnant| {
            if remnant.found {
                return true;
            }
            let (offered, waiting) = traffic(remnant.id);
            if offered != remnant.offered || waiting > 0 {
                remnant.offered = offered;
                remnant.moved = now;
            }
            now.since(remnant.moved) < QUIET && now.since(remnant.since) < LONGEST
        });
        self.remnants.len() != before
    }

    /// Adds a remnant as it was before a restart.
    pub(crate) fn restore_remnant(&mut self, remnant: Remnant) {
        self.next_id = self.next_id.max(remnant.id.saturating_add(1));
        self.remnants.insert(remnant.slot, remnant);
    }

    /// Removes all remnants.
    pub(crate) fn forget_remnants(&mut self) {
        self.remnants.clear();
    }
}

/// Longer than TCP's first few retransmissions: a connection that has data left sends within this
/// time.
const QUIET: Nanos = Nanos::from_secs(3);

/// Bound for a connection of an ended program with a peer that does not read: it does not keep a
/// class for longer.
const LONGEST: Nanos = Nanos::from_secs(60);
