//! Gives a class to each target that had none while its driver was asked
//! ([`crate::ledger::Ledger::await_driver`]): when the driver serves the target, when the target
//! stays with the classes, and at the latest 3 s after the request. If the kernel refuses the
//! class, the journal gets a warning, and the class is tried again after [`RETRY_CLASSES`]. Nothing
//! here fails.

use std::collections::BTreeMap;

use netnice_core::units::{Instant, Nanos};

use crate::clock::Now;
use crate::flows::Flows;
use crate::flows::network::Network;
use crate::flows::promises::Promises;

impl<N: Network> Flows<N> {
    /// Gives the targets their classes that wait for no driver any more, or have waited for as long
    /// as they may.
    pub(super) fn end_awaiting(&mut self, promises: &mut impl Promises, now: Now) {
        let mut late = std::mem::take(&mut self.redirects.late);
        late.retain(|id| self.is_beginning(*id));
        let mut kept = BTreeMap::new();
        for (id, until) in promises.awaiting() {
            let is_beginning = self.is_beginning(*id);
            if is_beginning && *until > now.monotonic {
                kept.insert(*id, *until);
            } else if is_beginning {
                late.insert(*id);
            }
        }
        self.redirects.late = late;
        let ends = kept.len() < promises.awaiting().len();
        if !ends || self.redirects.classes_due > now.monotonic {
            return;
        }
        if let Err(why) = promises.set_awaiting(kept) {
            let text = format!("cannot give a target its classes: {why}");
            promises.journal().warn(now, text);
            self.redirects.classes_due = now.monotonic.after(RETRY_CLASSES);
        }
    }

    /// When [`Flows::end_awaiting`] has something to do without an event; `None` if no target
    /// waits.
    pub(super) fn awaiting_due(&self, promises: &impl Promises) -> Option<Instant> {
        let first = promises.awaiting().values().min();
        first.map(|until| (*until).max(self.redirects.classes_due))
    }
}

/// The time after which classes are tried again that the kernel has refused.
const RETRY_CLASSES: Nanos = Nanos::from_secs(1);
