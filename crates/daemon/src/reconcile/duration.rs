//! [`ChangeDuration`]: how long a change holds. It is permanent, or it is rolled back after a time,
//! when a process ends, or if it is not confirmed in time. A change that is not permanent adds
//! pending rollbacks to its draft. Only the check of the times can fail.

use netnice_api::Until;
use netnice_core::contract::{Change, Contract};
use netnice_core::target::Target;
use netnice_core::units::Nanos;

use super::Draft;
use crate::clock::Now;
use crate::error::RequestError;
use crate::ledger::ProcessId;
use crate::ledger::rollbacks::{self, Undo};
use crate::peer::Peer;

/// The conditions under which a change is rolled back. A change without any is permanent.
#[derive(Clone, Copy)]
pub(crate) struct ChangeDuration {
    /// Nanoseconds until the change is rolled back unless it is confirmed (`--confirm`).
    pub confirm_ns: Option<u64>,
    /// Nanoseconds until the change is rolled back (`--for`).
    pub for_ns: Option<u64>,
    /// The process at whose end the change is rolled back (`--until-exit`).
    pub until: Option<Until>,
}

impl ChangeDuration {
    /// True if the change is permanent.
    pub(crate) fn is_lasting(self) -> bool {
        self.confirm_ns.is_none() && self.for_ns.is_none() && self.until.is_none()
    }

    /// Checks the times.
    ///
    /// # Errors
    /// If a time is zero or exceeds [`Nanos::MAX`] (366 days).
    pub(crate) fn check(self) -> Result<(), RequestError> {
        let longest = Nanos::MAX;
        for (option, time) in [("--confirm", self.confirm_ns), ("--for", self.for_ns)] {
            match time {
                Some(0) => {
                    return Err(RequestError::BadUsage(format!(
                        "{option}: the time is zero"
                    )));
                }
                Some(time) if time > longest.0 => {
                    return Err(RequestError::BadUsage(format!(
                        "{option}: {} is longer than the longest time, {longest}",
                        Nanos(time)
                    )));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Remarks for the response to a change with `for_ns` or `until`: when it is rolled back.
    pub(crate) fn remarks(self) -> Vec<String> {
        let after = self.for_ns.map(Nanos);
        let after = after.map(|time| format!("this will be taken back in {time}"));
        let until = self.until.map(|until| until.pid);
        let until = until.map(|pid| format!("this will be taken back when process {pid} ends"));
        after.into_iter().chain(until).collect()
    }
}

impl Draft {
    /// Adds `undo` to the pending rollbacks, once for each condition of `duration`. Returns the
    /// number with which the change is confirmed; `None` if it need not be.
    pub(crate) fn add_rollback(
        &mut self,
        duration: ChangeDuration,
        peer: &Peer,
        undo: Undo,
        now: Now,
    ) -> Option<u64> {
        let mut push = |time: Option<u64>, confirmable| {
            let at = now.monotonic.after(Nanos(time?));
            let by = peer.claimant();
            Some(self.rollbacks.push(at, confirmable, by, undo.clone()))
        };
        push(duration.for_ns, false);
        let number = push(duration.confirm_ns, true);
        if let Some(Until { pid, started }) = duration.until {
            let root = ProcessId { pid, started };
            self.rollbacks.push_until(root, peer.claimant(), undo);
        }
        number
    }

    /// Records a change of the peer's claim on a target, given by its id and name: removes pending
    /// rollbacks of the same clauses, and adds those of the change itself. `before` is the claim
    /// before the change. For a clause with a removed rollback, the new rollback restores what the
    /// removed one would have restored. Returns the number with which the change is confirmed;
    /// `None` if it need not be.
    pub(crate) fn add_claim_rollback(
        &mut self,
        (id, target): (u32, &Target),
        duration: ChangeDuration,
        peer: &Peer,
        change: &Change,
        before: &Contract,
        now: Now,
    ) -> Option<u64> {
        let first = self
            .rollbacks
            .supersede(id, target, peer.claimant(), change);
        if duration.is_lasting() {
            return None;
        }
        let change = rollbacks::merged(&rollbacks::inverse(change, before), &first);
        self.add_rollback(
            duration,
            peer,
            Undo::Claim {
                id,
                change: Box::new(change),
            },
            now,
        )
    }
}
