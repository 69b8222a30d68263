//! The books: the ledger and the pending rollbacks, and the file that stores both.

use super::Store;
use crate::clock::Now;
use crate::denied::Denied;
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::ledger::undo::Undos;

/// See the module docs.
#[derive(Default)]
pub(crate) struct Books {
    /// The ledger.
    pub ledger: Ledger,
    /// The pending rollbacks.
    pub undos: Undos,
    /// `None`: nothing is written.
    store: Option<Store>,
    /// True if a change without a request could not be written yet.
    unwritten: bool,
}

impl Books {
    /// Empty books.
    pub(crate) fn new(store: Option<Store>) -> Books {
        Books {
            store,
            ..Books::default()
        }
    }

    /// Writes the state that is about to be in force. `by_itself`: no request caused the change, so
    /// it takes effect even if it cannot be written now; [`Books::write_again`] writes it later.
    /// `in_force`: the kernel has state of the daemon.
    ///
    /// # Errors
    /// If the file cannot be written and a request caused the change.
    pub(crate) fn keep(
        &mut self,
        ledger: &Ledger,
        undos: &Undos,
        by_itself: bool,
        in_force: bool,
    ) -> Result<(), Denied> {
        let kept = self.write(ledger, undos, in_force);
        self.unwritten = kept.is_err() && (by_itself || self.unwritten);
        match by_itself {
            true => Ok(()),
            false => kept,
        }
    }

    /// Writes that nothing is held, before the first change comes into force. State that is found
    /// in force without a state file is kept, whatever its origin. A daemon that is killed before
    /// it writes its first change must not leave that situation.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn keep_before_first(&self) -> Result<(), Denied> {
        self.write(&self.ledger, &self.undos, true)
    }

    /// Writes that the first change has failed.
    pub(crate) fn keep_after_failure(&mut self, in_force: bool) {
        let written = self.write(&self.ledger, &self.undos, in_force);
        self.unwritten |= written.is_err();
    }

    /// Writes the state file again if an earlier write failed.
    pub(crate) fn write_again(&mut self, in_force: bool, journal: &mut Journal, now: Now) {
        if !self.unwritten {
            return;
        }
        let written = self.write(&self.ledger, &self.undos, in_force);
        self.unwritten = written.is_err();
        journal.judge(now, "writing down what has changed", written);
    }

    fn write(&self, ledger: &Ledger, undos: &Undos, in_force: bool) -> Result<(), Denied> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let nothing = ledger.is_empty() && undos.iter().next().is_none();
        let kept = match nothing && !in_force {
            true => store.remove(),
            false => store.save(ledger, undos),
        };
        kept.map_err(|error| Denied::Failed(error.to_string()))
    }
}
