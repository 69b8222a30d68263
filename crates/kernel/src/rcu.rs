//! Shortens the RCU grace periods of a batch of changes.
//!
//! Each time that tcx attaches a program to an interface or detaches one, the kernel waits until
//! every processor has passed a quiescent state (`tcx_entry_sync` in include/net/tcx.h). That takes
//! 15 ms and more, so half a minute for a thousand interfaces with two programs each. While
//! `/sys/kernel/rcu_expedited` is 1, the kernel interrupts the processors instead of waiting, and
//! continues within a millisecond (Documentation/RCU/Design/Expedited-Grace-Periods in the kernel's
//! sources).
//!
//! The setting affects the whole machine, so it lasts for one batch of at least [`MIN_BATCH`] (16)
//! changes only. A file in the runtime folder records that netnice set it: if the daemon is killed
//! meanwhile, the next daemon restores the setting. Nothing here fails: if the setting cannot be
//! changed, the batch takes longer.

use std::fs;
use std::path::{Path, PathBuf};

use crate::retry::with_retries;

/// Grace periods are short while this value lives.
#[derive(Debug)]
pub(crate) struct ShortGracePeriods(Setting);

impl ShortGracePeriods {
    /// Shortens grace periods for a batch of this many changes. Returns `None` if the batch has
    /// fewer than [`MIN_BATCH`] changes, if another program has shortened grace periods, or if they
    /// cannot be shortened (/sys mounted read-only). Then the batch takes longer.
    pub(crate) fn for_batch(runtime: &Path, changes: usize) -> Option<ShortGracePeriods> {
        Setting::new(Path::new(SETTING_PATH), runtime).shorten(changes)
    }

    /// Restores the setting that a daemon left when it was killed during a batch. No effect if
    /// there is no such setting.
    pub(crate) fn restore_after_crash(runtime: &Path) {
        Setting::new(Path::new(SETTING_PATH), runtime).restore_after_crash();
    }
}

impl Drop for ShortGracePeriods {
    fn drop(&mut self) {
        let Setting { path, marker } = &self.0;
        if let Err(error) = fs::write(path, "0") {
            tracing::debug!(%error, "cannot restore {}", path.display());
        }
        let _ = fs::remove_file(marker);
    }
}

/// The kernel's setting, and the file that records that it was set.
#[derive(Debug)]
struct Setting {
    path: PathBuf,
    marker: PathBuf,
}

impl Setting {
    fn new(path: &Path, runtime: &Path) -> Setting {
        Setting {
            path: path.to_owned(),
            marker: runtime.join("rcu-expedited"),
        }
    }

    fn shorten(self, changes: usize) -> Option<ShortGracePeriods> {
        if changes < MIN_BATCH || fs::read_to_string(&self.path).ok()?.trim() != "0" {
            return None;
        }
        fs::write(&self.marker, []).ok()?;
        let short = ShortGracePeriods(self);
        fs::write(&short.0.path, "1").ok()?;
        Some(short)
    }

    fn restore_after_crash(self) {
        // A failed check counts as "yes": a setting left at 1 slows the whole machine, one set to 0
        // only the batch of another program.
        if with_retries(|| self.marker.try_exists()).unwrap_or(true) {
            drop(ShortGracePeriods(self));
        }
    }
}

const SETTING_PATH: &str = "/sys/kernel/rcu_expedited";
/// The smallest batch that is worth the change.
const MIN_BATCH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary folder with a setting file that contains "0". Returns the folder, a function
    /// that opens the setting, and one that reads its value.
    fn fake_setting() -> (tempfile::TempDir, impl Fn() -> Setting, impl Fn() -> String) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (path, runtime) = (folder.path().join("setting"), folder.path().to_owned());
        fs::write(&path, "0\n").expect("the setting is written");
        let read = path.clone();
        let setting = move || Setting::new(&path, &runtime);
        let value = move || {
            let text = fs::read_to_string(&read).expect("the setting is read");
            text.trim().to_owned()
        };
        (folder, setting, value)
    }

    #[test]
    fn a_batch_has_short_grace_periods_until_it_ends() {
        let (_folder, setting, value) = fake_setting();
        let short = setting().shorten(MIN_BATCH);
        let short = short.expect("grace periods can be shortened");
        assert_eq!(value(), "1");
        assert!(setting().marker.exists());
        drop(short);
        assert_eq!(value(), "0");
        assert!(!setting().marker.exists());
    }

    #[test]
    fn a_small_batch_and_a_setting_of_another_program_change_nothing() {
        let (_folder, setting, value) = fake_setting();
        assert!(setting().shorten(MIN_BATCH - 1).is_none());
        assert_eq!(value(), "0");
        fs::write(setting().path, "1\n").expect("the setting is written");
        assert!(setting().shorten(MIN_BATCH).is_none());
        assert_eq!(value(), "1");
        setting().restore_after_crash();
        assert_eq!(value(), "1", "no marker exists, so another program set it");
    }

    #[test]
    fn the_setting_that_a_killed_daemon_left_is_restored() {
        let (_folder, setting, value) = fake_setting();
        std::mem::forget(setting().shorten(MIN_BATCH));
        setting().restore_after_crash();
        assert_eq!(value(), "0");
        assert!(!setting().marker.exists());
    }

    #[test]
    fn nothing_is_set_without_the_setting_or_a_folder_for_the_marker() {
        let (folder, setting, value) = fake_setting();
        let nowhere = Setting::new(&setting().path, &folder.path().join("none"));
        assert!(nowhere.shorten(MIN_BATCH).is_none());
        assert_eq!(value(), "0");
        fs::remove_file(setting().path).expect("the setting is removed");
        assert!(setting().shorten(MIN_BATCH).is_none());
        assert!(!setting().marker.exists());
    }
}
