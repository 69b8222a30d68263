//! Grace periods of RCU, for which many changes in a row wait.
//!
//! Each time that tcx puts a program on an interface or takes one off, the kernel waits until every processor has passed a
//! quiet moment (`tcx_entry_sync` in include/net/tcx.h): 15 ms and more, so half a minute for a thousand interfaces. While
//! `/sys/kernel/rcu_expedited` is 1 it interrupts the processors instead of waiting, and goes on within a millisecond
//! (Documentation/RCU/Design/Expedited-Grace-Periods in the kernel's sources).
//!
//! The setting is the whole machine's, so it lasts as long as one batch of changes. A file in the runtime folder says that
//! it was set, so that it does not outlive a daemon that is killed meanwhile.

use std::fs;
use std::path::{Path, PathBuf};

/// While this lives, grace periods are short.
#[derive(Debug)]
pub(crate) struct Short {
    note: PathBuf,
}

impl Short {
    /// Makes them short for a batch of so many changes. None: the batch is small, somebody else has made them short, or they
    /// cannot be (where /sys is mounted read-only); then it takes its time.
    pub fn for_batch(runtime: &Path, changes: usize) -> Option<Short> {
        if changes < BATCH || fs::read_to_string(SETTING).ok()?.trim() != "0" {
            return None;
        }
        let note = note(runtime);
        fs::write(&note, []).ok()?;
        let short = Short { note };
        fs::write(SETTING, "1").ok()?;
        Some(short)
    }

    /// Ends what a daemon has left that was killed during a batch.
    pub fn end_left_over(runtime: &Path) {
        let note = note(runtime);
        if note.exists() {
            drop(Short { note });
        }
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SETTING, "0") {
            tracing::debug!(%error, "setting {SETTING} back");
        }
        let _ = fs::remove_file(&self.note);
    }
}

fn note(runtime: &Path) -> PathBuf {
    runtime.join("rcu-expedited")
}

const SETTING: &str = "/sys/kernel/rcu_expedited";
/// Fewer changes are not worth it.
const BATCH: usize = 16;
