//! Takes one lock for the whole machine. Two measuring runs at the same time would disturb each
//! other's results, and two runs that load kernel programs would see each other's programs.
//!
//! A verb takes the lock if it makes network namespaces, or if its tests measure or limit times.
//! Miri, loom and `test --unit` do neither and take no lock.
//!
//! The kernel releases the lock at the end of the process, however the process ends. Taking the
//! lock fails if the lock file cannot be opened or locked.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use anyhow::{Context, Result};

/// The lock of the machine, which is held until this value is dropped.
#[must_use]
pub struct MachineLock {
    _file: File,
}

impl MachineLock {
    /// Takes the lock on `netnice-runs.lock` in `/run/lock`, or in `/tmp` if there is no
    /// `/run/lock`. Prints a notice and waits while another run holds it. Fails if the lock file
    /// cannot be opened or locked.
    pub fn take() -> Result<MachineLock> {
        let folder = ["/run/lock", "/tmp"]
            .map(Path::new)
            .into_iter()
            .find(|folder| folder.is_dir());
        let path = folder
            .context("neither /run/lock nor /tmp is there for the lock")?
            .join("netnice-runs.lock");
        MachineLock::take_at(&path)
    }

    fn take_at(path: &Path) -> Result<MachineLock> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(|| format!("cannot open the lock {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!(
                    "xtask: another run on this machine holds {}; waiting for it to end",
                    path.display()
                );
                file.lock()
                    .with_context(|| format!("cannot lock {}", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        Ok(MachineLock { _file: file })
    }
}

#[cfg(test)]
mod tests;
