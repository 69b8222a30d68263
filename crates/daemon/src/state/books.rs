//! [`Books`]: the ledger and the pending rollbacks, and the state file that stores both. The file
//! is removed when the books are empty and nothing is in force in the kernel. Saving fails if the
//! file cannot be written and a request caused the change.

use super::{Store, UsageBook};
use crate::clock::Now;
use crate::error::RequestError;
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::ledger::rollbacks::Rollbacks;

/// The ledger and the pending rollbacks in force, and the state file.
#[derive(Default)]
pub(crate) struct Books {
    /// The ledger.
    pub ledger: Ledger,
    /// The pending rollbacks.
    pub rollbacks: Rollbacks,
    /// How much of each traffic quota has passed.
    pub usage: UsageBook,
    /// The state file; `None`: nothing is written.
    store: Option<Store>,
    /// True if a change without a request could not be written yet.
    unwritten: bool,
}

impl Books {
    /// Empty books. Without `store` no state file is written.
    pub(crate) fn new(store: Option<Store>) -> Books {
        Books {
            store,
            ..Books::default()
        }
    }

    /// Writes a ledger and rollbacks that will replace those of the books. `unrequested`: no
    /// request caused the change, so it takes effect even if it cannot be written now;
    /// [`Books::write_again`] writes it later. `in_force`: the kernel has state of the daemon.
    ///
    /// # Errors
    /// If the file cannot be written and a request caused the change.
    pub(crate) fn save(
        &mut self,
        ledger: &Ledger,
        rollbacks: &Rollbacks,
        unrequested: bool,
        in_force: bool,
    ) -> Result<(), RequestError> {
        let written = self.write(ledger, rollbacks, in_force);
        self.unwritten = written.is_err() && (unrequested || self.unwritten);
        match unrequested {
            true => Ok(()),
            false => written,
        }
    }

    /// Writes the present books after a change that no request caused. If that fails,
    /// [`Books::write_again`] writes them later.
    pub(crate) fn save_present(&mut self, in_force: bool) {
        let written = self.write(&self.ledger, &self.rollbacks, in_force);
        self.unwritten |= written.is_err();
    }

    /// Writes the present books before a change while nothing is in force. A daemon that finds
    /// limits in force without a state file keeps them, whatever their origin. So a daemon that is
    /// killed before it writes this change must leave a state file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn save_before_first(&self) -> Result<(), RequestError> {
        self.write(&self.ledger, &self.rollbacks, true)
    }

    /// Writes the books again after a change that followed [`Books::save_before_first`] has failed.
    /// If that fails too, [`Books::write_again`] writes them later.
    pub(crate) fn save_after_failure(&mut self, in_force: bool) {
        self.save_present(in_force);
    }

    /// Writes the state file if an earlier write failed. The result is logged.
    pub(crate) fn write_again(&mut self, in_force: bool, journal: &mut Journal, now: Now) {
        if !self.unwritten {
            return;
        }
        let written = self.write(&self.ledger, &self.rollbacks, in_force);
        self.unwritten = written.is_err();
        journal.log_result(now, "writing the state file", written);
    }

    fn write(
        &self,
        ledger: &Ledger,
        rollbacks: &Rollbacks,
        in_force: bool,
    ) -> Result<(), RequestError> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let nothing = ledger.is_empty() && rollbacks.iter().next().is_none();
        let written = match nothing && !in_force {
            true => store.remove(),
            false => store.save(ledger, rollbacks),
        };
        written.map_err(|error| RequestError::Failed(error.to_string()))
    }
}
