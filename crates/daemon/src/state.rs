//! The state file: the ledger and the pending rollbacks, for the next daemon.
//!
//! The file is `state.json` in the runtime folder. Every change writes a new file, which replaces
//! the old one by rename, so the file is always complete. (The direct path's parts of links are not
//! in it.) The file names its boot: after a reboot its content is obsolete and counts as missing
//! (lasting rules are in the policy). It also names its network namespace, because another one has
//! other interfaces. A checksum (CRC-32) covers the version and every byte of the state. A file
//! that cannot be used is not used in part: reading it fails with [`StateError`]. Writing, renaming
//! and removing the file fail with the error of the system call.
//!
//! ```text
//!   {"version": 1, "checksum": "9ae0daaf", "state": {…}}
//! ```

mod books;
mod doc;
mod packet_costs;
mod usage;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use netnice_api::RuntimeDir;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ledger::Ledger;
use crate::ledger::rollbacks::Rollbacks;

pub(crate) use books::Books;
pub(crate) use doc::bytes_of;
pub(crate) use packet_costs::{CostsStore, costs_of};
pub(crate) use usage::{UsageBook, UsageStore};

/// Access to the state file of one runtime folder, boot and network namespace.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    boot: String,
    namespace: u64,
}

/// The content of the state file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// The ledger.
    pub ledger: Ledger,
    /// The pending rollbacks.
    pub rollbacks: Rollbacks,
}

/// Why a state file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// The file's content is not what a daemon wrote: it is not of the format, does not match its
    /// checksum, or contradicts itself.
    #[error("the state file {} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A later version of netnice wrote the file.
    #[error(
        "the state file {} is of version {theirs}, this netniced knows version {VERSION}: run the \
         netniced that wrote \
         it, or remove the file and start again", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The file's version.
        theirs: u32,
    },
    /// The file is of another network namespace.
    #[error(
        "{} belongs to a netniced of another network namespace: start this one there, or give it a \
         folder of its own with \
         --runtime-dir (if that namespace is gone: remove the file, and unmount the folder bpf \
         beside it)",
        path.display()
    )]
    OtherNamespace {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read, written or removed.
    #[error("cannot {what} the state file {}: {source}", path.display())]
    Io {
        /// `read`, `write` or `remove`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

impl Store {
    /// The state file of a runtime folder, for this boot (its id) and this network namespace (its
    /// cookie).
    pub(crate) fn new(folder: &Path, boot: &str, namespace: u64) -> Store {
        Store {
            path: RuntimeDir::choose(Some(folder.to_owned()), None).state(),
            boot: boot.to_owned(),
            namespace,
        }
    }

    /// Reads the state that an earlier daemon has written; `None` if there is none, or if it is of
    /// an earlier boot.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or is of a newer version or another network
    /// namespace.
    pub(crate) fn load(&self) -> Result<Option<State>, StateError> {
        // A daemon that ended while it wrote leaves an incomplete new file.
        let _ = fs::remove_file(self.path.with_extension("json.new"));
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io("read", error)),
        };
        self.parse(&bytes)
    }

    /// Parses the bytes of a state file; `None` if it is of an earlier boot.
    ///
    /// # Errors
    /// If the file is damaged, or is of a newer version or another network namespace.
    pub(crate) fn parse(&self, bytes: &[u8]) -> Result<Option<State>, StateError> {
        let damaged = |reason: String| StateError::Damaged {
            path: self.path.clone(),
            reason,
        };
        let envelope: Envelope =
            serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        let sum = checksum(envelope.version, envelope.state.get());
        if envelope.checksum != sum {
            return Err(damaged(format!(
                "its checksum is {}, and that of its content is {sum}",
                envelope.checksum
            )));
        }
        if envelope.version > VERSION {
            return Err(StateError::Newer {
                path: self.path.clone(),
                theirs: envelope.version,
            });
        }
        let state: doc::StateDoc = serde_json::from_str(envelope.state.get())
            .map_err(|error| damaged(error.to_string()))?;
        if state.boot != self.boot {
            return Ok(None);
        }
        if state.namespace != self.namespace {
            return Err(StateError::OtherNamespace {
                path: self.path.clone(),
            });
        }
        state.restore().map(Some).map_err(damaged)
    }

    /// Writes the state file, and replaces the old one.
    ///
    /// # Errors
    /// If the new file cannot be written or renamed. Then the old one stays.
    pub(crate) fn save(&self, ledger: &Ledger, rollbacks: &Rollbacks) -> Result<(), StateError> {
        let bytes = self.bytes(ledger, rollbacks)?;
        replace(&self.path, &bytes).map_err(|error| self.io("write", error))
    }

    /// The bytes of the state file with this state.
    ///
    /// # Errors
    /// If the state cannot be written as JSON.
    pub(crate) fn bytes(
        &self,
        ledger: &Ledger,
        rollbacks: &Rollbacks,
    ) -> Result<Vec<u8>, StateError> {
        let write = |error: serde_json::Error| self.io("write", error.into());
        let state = doc::StateDoc::new(&self.boot, self.namespace, ledger, rollbacks);
        let state = serde_json::value::to_raw_value(&state).map_err(write)?;
        let envelope = Envelope {
            version: VERSION,
            checksum: checksum(VERSION, state.get()),
            state,
        };
        serde_json::to_vec(&envelope).map_err(write)
    }

    /// Removes the state file, if there is one.
    ///
    /// # Errors
    /// If the system call fails.
    pub(crate) fn remove(&self) -> Result<(), StateError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.io("remove", error)),
            _ => Ok(()),
        }
    }

    /// Renames a damaged file to `state.json.damaged-N`, so that a person can inspect it. Returns
    /// the new path. At most [`MAX_DAMAGED`] (100) are kept; one more replaces the last.
    ///
    /// # Errors
    /// If the system call fails.
    pub(crate) fn rename_damaged(&self) -> Result<PathBuf, StateError> {
        let named = |n| self.path.with_extension(format!("json.damaged-{n}"));
        // A path that cannot be examined counts as taken.
        let aside = (1..MAX_DAMAGED)
            .map(named)
            .find(|aside| aside.try_exists().is_ok_and(|exists| !exists))
            .unwrap_or_else(|| named(MAX_DAMAGED));
        fs::rename(&self.path, &aside).map_err(|error| self.io("write", error))?;
        Ok(aside)
    }

    fn io(&self, what: &'static str, source: io::Error) -> StateError {
        StateError::Io {
            what,
            path: self.path.clone(),
            source,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    version: u32,
    checksum: String,
    state: Box<RawValue>,
}

/// Writes a file beside the one at this path, to the disk, and replaces that one by it. If this
/// fails, the old file stays.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("json.new");
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    });
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}

/// The folder of files that outlive a reboot: `/var/lib/netnice` for the runtime folder
/// `/run/netnice`, else the runtime folder.
fn lasting_folder(runtime: &Path) -> &Path {
    match runtime == Path::new(RuntimeDir::DEFAULT) {
        true => Path::new(LASTING_FOLDER),
        false => runtime,
    }
}

/// The CRC-32 of the version and the state's text, in hexadecimal.
fn checksum(version: u32, state: &str) -> String {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&version.to_be_bytes());
    sum.update(state.as_bytes());
    format!("{:08x}", sum.finalize())
}

/// The version of the file format.
const VERSION: u32 = 1;
const LASTING_FOLDER: &str = "/var/lib/netnice";
/// Largest number of damaged files that are kept.
const MAX_DAMAGED: u32 = 100;

#[cfg(test)]
mod tests;
