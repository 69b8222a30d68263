//! Shortens the RCU grace periods of a batch of changes.
//!
//! Each time that tcx attaches a program to an interface or detaches one, the kernel waits until
//! every processor has passed a quiescent state (`tcx_entry_sync` in include/net/tcx.h). That takes
//! 15 ms and more, so half a minute for a thousand interfaces. While `/sys/kernel/rcu_expedited` is
//! 1, the kernel interrupts the processors instead of waiting, and continues within a millisecond
//! (Documentation/RCU/Design/Expedited-Grace-Periods in the kernel's sources).
//!
//! The setting affects the whole machine, so it lasts for one batch of changes only. A file in the
//! runtime folder records that it was set, so that it does not outlive a daemon that is killed
//! meanwhile.

use std::fs;
use std::path::{Path, PathBuf};

/// Grace periods are short while this value lives.
#[derive(Debug)]
pub(crate) struct Short(Files);

impl Short {
    /// Shortens grace periods for a batch of this many changes. Returns `None` if the batch is
    /// small, if another program has shortened them, or if they cannot be shortened (/sys mounted
    /// read-only). Then the batch takes longer.
    pub fn for_batch(runtime: &Path, changes: usize) -> Option<Short> {
        Files::new(Path::new(SETTING), runtime).shorten(changes)
    }

    /// Restores the setting that a daemon left when it was killed during a batch.
    pub fn end_left_over(runtime: &Path) {
        Files::new(Path::new(SETTING), runtime).end_left_over();
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        let Files { setting, note } = &self.0;
        if let Err(error) = fs::write(setting, "0") {
            tracing::debug!(%error, "setting {} back", setting.display());
        }
        let _ = fs::remove_file(note);
    }
}

/// The kernel's setting, and the file that records that it was set.
#[derive(Debug)]
struct Files {
    setting: PathBuf,
    note: PathBuf,
}

impl Files {
    fn new(setting: &Path, runtime: &Path) -> Files {
        Files {
            setting: setting.to_owned(),
            note: runtime.join("rcu-expedited"),
        }
    }

    fn shorten(self, changes: usize) -> Option<Short> {
        if changes < BATCH || fs::read_to_string(&self.setting).ok()?.trim() != "0" {
            return None;
        }
        fs::write(&self.note, []).ok()?;
        let short = Short(self);
        fs::write(&short.0.setting, "1").ok()?;
        Some(short)
    }

    fn end_left_over(self) {
        if self.note.exists() {
            drop(Short(self));
        }
    }
}

const SETTING: &str = "/sys/kernel/rcu_expedited";
/// The smallest batch that is worth the change.
const BATCH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a setting that is "0".
    fn folder() -> (tempfile::TempDir, impl Fn() -> Files, impl Fn() -> String) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (setting, runtime) = (folder.path().join("setting"), folder.path().to_owned());
        fs::write(&setting, "0\n").expect("it is written");
        let read = setting.clone();
        let files = move || Files::new(&setting, &runtime);
        let reads = move || {
            fs::read_to_string(&read)
                .expect("it is read")
                .trim()
                .to_owned()
        };
        (folder, files, reads)
    }

    #[test]
    fn a_batch_has_short_grace_periods_until_it_ends() {
        let (_folder, files, setting) = folder();
        let short = files().shorten(BATCH).expect("they can be made short");
        assert_eq!(setting(), "1");
        assert!(files().note.exists());
        drop(short);
        assert_eq!(setting(), "0");
        assert!(!files().note.exists());
    }

    #[test]
    fn a_small_batch_and_one_beside_somebody_elses_leave_the_setting_alone() {
        let (_folder, files, setting) = folder();
        assert!(files().shorten(BATCH - 1).is_none());
        assert_eq!(setting(), "0");
        fs::write(&files().setting, "1\n").expect("it is written");
        assert!(files().shorten(BATCH).is_none());
        assert_eq!(setting(), "1");
        files().end_left_over();
        assert_eq!(setting(), "1", "nobody has noted that it was set");
    }

    #[test]
    fn what_a_killed_daemon_has_left_is_ended() {
        let (_folder, files, setting) = folder();
        std::mem::forget(files().shorten(BATCH));
        files().end_left_over();
        assert_eq!(setting(), "0");
        assert!(!files().note.exists());
    }

    #[test]
    fn without_the_setting_or_a_place_for_the_note_nothing_is_set() {
        let (folder, files, setting) = folder();
        let nowhere = Files::new(&files().setting, &folder.path().join("none"));
        assert!(nowhere.shorten(BATCH).is_none());
        assert_eq!(setting(), "0");
        fs::remove_file(files().setting).expect("it is removed");
        assert!(files().shorten(BATCH).is_none());
        assert!(!files().note.exists());
    }
}
