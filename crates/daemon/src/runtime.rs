//! Takes the runtime folder for one daemon: creates it if it does not exist, checks that only root
//! and the user of this process can change it, and locks it. The result is a [`LockedFolder`], or a
//! [`RuntimeError`] if another daemon has locked the folder, others can change it, or a system call
//! fails. The folder also keeps the options of a daemon that is killed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use netnice_api::RuntimeDir;
use netnice_kernel::trust::{self, Distrust};

/// Why a runtime folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RuntimeError {
    /// Another daemon has locked the folder.
    #[error(
        "another netniced (process {holder}) serves {}; stop it first, or give this one a folder \
         of its own with \
         --runtime-dir", folder.display()
    )]
    Taken {
        /// The folder.
        folder: PathBuf,
        /// The content of the lock file: the process id of the other daemon.
        holder: String,
    },
    /// A user other than root and the user of this process can write the folder, or replace it. Or
    /// the folder cannot be checked.
    #[error(
        "users other than root can change the runtime folder {}: {why}; make it and the folders \
         around it root's and \
         writable by root alone (chown root, chmod 755), or name another one with \
         --runtime-dir", folder.display()
    )]
    Unsafe {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        why: Distrust,
    },
    /// A system call failed.
    #[error("cannot use the runtime folder {}: {source}", folder.display())]
    Unusable {
        /// The folder.
        folder: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

/// A locked runtime folder. The lock ends when this value is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct LockedFolder {
    lock: File,
    folder: PathBuf,
    /// True if this daemon created the folder.
    made: bool,
}

impl LockedFolder {
    /// Creates the folder if it does not exist, checks it, and locks it.
    ///
    /// # Errors
    /// If another daemon has locked it, a user other than root and the user of this process can
    /// write or replace it, or a system call fails.
    pub(crate) fn take(folder: &Path) -> Result<LockedFolder, RuntimeError> {
        let unusable = |source| RuntimeError::Unusable {
            folder: folder.to_owned(),
            source,
        };
        let made = !folder.try_exists().map_err(unusable)?;
        if made {
            fs::create_dir_all(folder).map_err(unusable)?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(unusable)?;
        }
        trust::check(folder).map_err(|why| RuntimeError::Unsafe {
            folder: folder.to_owned(),
            why,
        })?;
        let path = folder.join(LOCK);
        // A daemon that stops removes the lock file: then the locked file no longer has the name,
        // and the loop opens the new file.
        let mut lock = loop {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(&path)
                .map_err(unusable)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let holder = fs::read_to_string(&path).unwrap_or_default();
                    return Err(RuntimeError::Taken {
                        folder: folder.to_owned(),
                        holder: holder.trim().to_owned(),
                    });
                }
                Err(TryLockError::Error(error)) => return Err(unusable(error)),
            }
            let locked = file.metadata().map_err(unusable)?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == locked) {
                break file;
            }
        };
        let written = lock
            .set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        written.map_err(unusable)?;
        Ok(LockedFolder {
            lock,
            folder: folder.to_owned(),
            made,
        })
    }

    /// The options that a killed daemon of this folder wrote with [`LockedFolder::write_options`];
    /// `None` if there are none, or if others than root and the user of this process can change
    /// the file.
    pub(crate) fn left_options(&self) -> Option<String> {
        let path = self.folder.join(OPTIONS);
        trust::check(&path).ok()?;
        let file = File::open(path).ok()?;
        let mut options = String::new();
        file.take(LONGEST_OPTIONS)
            .read_to_string(&mut options)
            .ok()?;
        Some(options)
    }

    /// Writes the options of this daemon into a file of the folder, or removes the file. If this
    /// daemon is killed, they remain.
    ///
    /// # Errors
    /// The error of the write. The file is then as before.
    pub(crate) fn write_options(&self, options: Option<&str>) -> io::Result<()> {
        let path = self.folder.join(OPTIONS);
        let Some(options) = options else {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        };
        let new = self.folder.join(format!("{OPTIONS}.new"));
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        let written = file.write_all(options.as_bytes());
        written
            .and_then(|()| fs::rename(&new, path))
            .inspect_err(|_| drop(fs::remove_file(&new)))
    }

    /// Removes the lock file, the file with the options, the folder `drivers` if it is empty, and
    /// the runtime folder if this daemon created it and it is empty. Ends the lock.
    pub(crate) fn release(self) {
        let _ = fs::remove_file(self.folder.join(OPTIONS));
        let _ = fs::remove_file(self.folder.join(LOCK));
        // Fails while the folder has the socket of a driver.
        let whole = RuntimeDir::choose(Some(self.folder.clone()), None);
        let _ = fs::remove_dir(whole.drivers());
        if self.made {
            // Fails while a contract is in force: then the folder contains its pins.
            let _ = fs::remove_dir(&self.folder);
        }
        drop(self.lock);
    }
}

/// The name of the lock file in the folder. It contains the process id of the daemon.
pub(crate) const LOCK: &str = "lock";

/// The name of the file with the daemon's options.
const OPTIONS: &str = "options.json";

/// Length in bytes up to which that file is read.
const LONGEST_OPTIONS: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_daemon_can_take_a_runtime_folder() {
        let folder = std::env::temp_dir().join(format!("netnice-lock-{}", std::process::id()));
        let first = LockedFolder::take(&folder).expect("taken");
        let second = LockedFolder::take(&folder);
        let Err(RuntimeError::Taken { holder, .. }) = second else {
            panic!("a second daemon took it: {second:?}");
        };
        assert_eq!(holder, std::process::id().to_string());
        first.release();
        assert!(!folder.exists(), "it is left as it was found");
        LockedFolder::take(&folder)
            .expect("it is free again")
            .release();
    }

    #[test]
    fn the_options_of_a_killed_daemon_remain_and_those_of_a_stopped_one_do_not() {
        let folder = std::env::temp_dir().join(format!("netnice-options-{}", std::process::id()));
        let killed = LockedFolder::take(&folder).expect("taken");
        assert_eq!(killed.left_options(), None);
        killed.write_options(Some("first")).expect("written");
        drop(killed);
        let stopped = LockedFolder::take(&folder).expect("taken");
        assert_eq!(stopped.left_options(), Some("first".to_owned()));
        stopped.write_options(Some("second")).expect("written");
        stopped.write_options(None).expect("removed");
        assert_eq!(stopped.left_options(), None);
        stopped.write_options(Some("third")).expect("written");
        stopped.release();
        let next = LockedFolder::take(&folder).expect("taken");
        assert_eq!(next.left_options(), None);
        fs::remove_file(folder.join(LOCK)).expect("removed");
        drop(next);
        fs::remove_dir(&folder).expect("removed");
    }
}
