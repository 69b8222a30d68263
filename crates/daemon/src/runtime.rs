//! The runtime folder: it is made here, it is root's alone, and one daemon at a time has it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use netnice_api::RuntimeDir;
use netnice_kernel::trust::{self, Distrust};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Why a runtime folder cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// Another daemon has it.
    #[error(
        "another netniced (process {holder}) serves {}; stop it first, or give this one a folder of its own with \
         --runtime-dir", folder.display()
    )]
    Taken {
        /// The folder.
        folder: PathBuf,
        /// Who has it, as they said.
        holder: String,
    },
    /// Others could write it, or put another one in its place.
    #[error(
        "the runtime folder {} is not root's alone: {why}; make it root's and writable by root alone (chown root, chmod \
         755), with all that is around it, or name another one with --runtime-dir", folder.display()
    )]
    Unsafe {
        /// The folder.
        folder: PathBuf,
        /// Why.
        why: Distrust,
    },
    /// It cannot be used.
    #[error("cannot use the runtime folder {}: {source}", folder.display())]
    Unusable {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// A runtime folder that is ours until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Runtime {
    lock: Flock<File>,
    folder: PathBuf,
    /// Whether the folder was made here.
    made: bool,
}

impl Runtime {
    /// Makes the folder, and locks it.
    pub fn take(folder: &Path) -> Result<Runtime, RuntimeError> {
        let unusable = |source| RuntimeError::Unusable {
            folder: folder.to_owned(),
            source,
        };
        let made = !folder.exists();
        if made {
            fs::create_dir_all(folder).map_err(unusable)?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(unusable)?;
        }
        trust::check(folder).map_err(|why| RuntimeError::Unsafe {
            folder: folder.to_owned(),
            why,
        })?;
        let path = folder.join(LOCK);
        // A daemon that leaves removes the file: then what was locked is no longer what has the name.
        let mut lock = loop {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(&path)
                .map_err(unusable)?;
            let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => lock,
                Err((_, Errno::EWOULDBLOCK)) => {
                    let holder = fs::read_to_string(&path).unwrap_or_default();
                    return Err(RuntimeError::Taken {
                        folder: folder.to_owned(),
                        holder: holder.trim().to_owned(),
                    });
                }
                Err((_, errno)) => return Err(unusable(errno.into())),
            };
            let locked = lock.metadata().map_err(unusable)?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == locked) {
                break lock;
            }
        };
        let said = lock
            .set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        said.map_err(unusable)?;
        Ok(Runtime {
            lock,
            folder: folder.to_owned(),
            made,
        })
    }

    /// Leaves the folder as it was found, but for what must outlive this daemon.
    pub fn leave(self) {
        let _ = fs::remove_file(self.folder.join(LOCK));
        // Fails while a driver lives.
        let whole = RuntimeDir::choose(Some(self.folder.clone()), None);
        let _ = fs::remove_dir(whole.drivers());
        if self.made {
            // Fails where something is in force, and so in the folder.
            let _ = fs::remove_dir(&self.folder);
        }
        drop(self.lock);
    }
}

/// The file in the folder that is locked.
pub const LOCK: &str = "lock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_at_a_time_has_a_folder() {
        let folder = std::env::temp_dir().join(format!("netnice-lock-{}", std::process::id()));
        let first = Runtime::take(&folder).expect("the first has it");
        let second = Runtime::take(&folder);
        let Err(RuntimeError::Taken { holder, .. }) = second else {
            panic!("a second one was let in: {second:?}");
        };
        assert_eq!(holder, std::process::id().to_string());
        first.leave();
        assert!(!folder.exists(), "it is left as it was found");
        Runtime::take(&folder).expect("it is free again").leave();
    }
}
