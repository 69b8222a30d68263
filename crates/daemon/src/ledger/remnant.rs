//! What is left of a target whose last process has ended: packets in its queues, and data in the send buffers of its
//! sockets, which the kernel goes on sending. They keep to the limit until nothing has moved for [`QUIET`], at most
//! [`LONGEST`].
//!
//! What is found in the kernel after the state file was lost is kept here too: limits of which nobody knows any more
//! who asked for them and whom they hold. They stay in force until root clears all.

use netnice_core::admission::TargetId;
use netnice_core::contract::Contract;
use netnice_core::units::{Instant, Nanos};

use super::{Closed, Ledger};

/// A target that has ended while packets of it still wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remnant {
    /// Its slot, which is taken until it goes.
    pub slot: TargetId,
    /// Its number.
    pub id: u32,
    /// The slot of what was around it.
    pub parent: Option<TargetId>,
    /// Its limits.
    pub contract: Contract,
    /// When it ended.
    pub since: Instant,
    /// When something of it was last seen to move.
    pub moved: Instant,
    /// Packets that it had offered by then.
    pub offered: u64,
    /// Whether it was found, and stays until all is cleared.
    pub found: bool,
    /// The user without privilege who had asked something of it: it counts for that user until it goes.
    pub user: Option<u32>,
}

impl Ledger {
    /// What is left over of targets that have ended.
    pub(crate) fn remnants(&self) -> impl Iterator<Item = &Remnant> {
        self.remnants.values()
    }

    /// Keeps the limit of a target that was just closed.
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

    /// Leaves something of a target that was just closed where nothing else is in force: taking all out of the kernel and
    /// loading it anew takes long, and who toggles a limit would have it done each time. It counts for nobody, as there is
    /// one at most.
    pub fn stay_loaded(&mut self, closed: &Closed, now: Instant) {
        if self.is_empty() {
            self.linger(closed, now);
            for remnant in self.remnants.values_mut() {
                remnant.user = None;
            }
        }
    }

    /// Counts the quiet of all remnants from now: nobody looked at them before.
    pub(crate) fn look_anew(&mut self, now: Instant) {
        for remnant in self.remnants.values_mut() {
            remnant.moved = now;
        }
    }

    /// Looks at the remnants again: `traffic` tells packets offered so far and packets waiting, by number. Tells
    /// whether any remnant went.
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

    /// Takes in a remnant as it was before a restart.
    pub(crate) fn restore_remnant(&mut self, remnant: Remnant) {
        self.next_id = self.next_id.max(remnant.id.saturating_add(1));
        self.remnants.insert(remnant.slot, remnant);
    }

    /// Lets all remnants go.
    pub(crate) fn forget_remnants(&mut self) {
        self.remnants.clear();
    }
}

/// Longer than TCP's first few retransmissions: a connection that has data left is heard of within this time.
const QUIET: Nanos = Nanos::from_secs(3);

/// An ended program's connection that the other side does not read from is not worth a class for longer.
const LONGEST: Nanos = Nanos::from_secs(60);
