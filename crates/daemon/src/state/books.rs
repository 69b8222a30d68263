//! The books: what is held and what waits to be taken back, and the file that both are kept in.

use super::Store;
use crate::clock::Now;
use crate::denied::Denied;
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::ledger::undo::Undos;

/// See the module.
#[derive(Default)]
pub(crate) struct Books {
    /// Who holds what.
    pub ledger: Ledger,
    /// What waits to be taken back.
    pub undos: Undos,
    /// None: nothing is written down.
    store: Option<Store>,
    /// Something happened by itself that could not be written down.
    unwritten: bool,
}

impl Books {
    /// Empty ones.
    pub(crate) fn new(store: Option<Store>) -> Books {
        Books {
            store,
            ..Books::default()
        }
    }

    /// Writes down what is about to be true. `by_itself`: nobody asked for it, so it happens though it cannot be written
    /// now; then [`Books::write_again`] does it later. `in_force`: the kernel holds something of ours.
    ///
    /// # Errors
    /// The file cannot be written, and somebody asked for the change.
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

    /// Writes down that nothing is held, before the first thing is put in force. What is found in force without any
    /// state file is kept, whoever asked for it; a daemon that is killed before its first change is written down must
    /// not leave that.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn keep_before_first(&self) -> Result<(), Denied> {
        self.write(&self.ledger, &self.undos, true)
    }

    /// Writes down that the first thing was not put in force after all.
    pub(crate) fn keep_after_failure(&mut self, in_force: bool) {
        let written = self.write(&self.ledger, &self.undos, in_force);
        self.unwritten |= written.is_err();
    }

    /// Writes down what could not be written when it happened.
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
