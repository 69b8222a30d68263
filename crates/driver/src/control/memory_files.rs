//! Counts the memory files of programs, per user, for as long as each file exists.
//!
//! A program can keep its memory file for any length of time, by a descriptor, a mapping, or an
//! unread message. The file's pages are charged to the driver, which filled them, and cannot be
//! taken back ([`netnice_ring::driver::ProgramMemory::seal`]). So a user is charged for all files
//! that exist, and not only for attached ones. An inotify watch reports the end of a file's last
//! reference of any kind (`IN_DELETE_SELF`; a memory file has no name, so its inode ends with the
//! last reference). The watch itself keeps no file alive.
//! ```text
//!   admit ─▶ keep ─▶ attached ─▶ detached, references left ─▶ IN_DELETE_SELF ─▶ forgotten
//!            └─────────────────── charged to its user ──────────────────┘
//! ```
//! `admit` fails if a file would exceed its user's limit, and `keep` if the file cannot be watched.
//! A file counts with its whole length, touched or not. The kernel may still use pages of a file
//! that has ended (for a `sendfile`, a pipe, a registered buffer). Kernel limits per user bound
//! such pages; they are not counted here.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// The memory files of all users; see the module.
#[derive(Debug)]
pub(crate) struct MemoryFiles {
    watches: OwnedFd,
    /// By watch descriptor: (user, length in bytes).
    files: HashMap<i32, (u32, u64)>,
    users: BTreeMap<u32, MemoryUse>,
}

/// The memory files of one user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    /// Number of files that exist.
    pub(crate) files: u64,
    /// Sum of their lengths, in bytes.
    pub(crate) bytes: u64,
}

/// A requested memory file does not fit: with the user's existing files it would exceed the user's
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ring bytes of user {uid}: {} at most, {} in use by {} that still exist, \
     and {} more are asked for",
    Size(*.limit), Size(.present.bytes), Several(.present.files), Size(*.requested)
)]
pub struct MemoryLimitExceeded {
    /// The user.
    pub(crate) uid: u32,
    /// The limit, in bytes.
    pub(crate) limit: u64,
    /// The user's files at present.
    pub(crate) present: MemoryUse,
    /// The requested length, in bytes.
    pub(crate) requested: u64,
}

impl MemoryFiles {
    /// An empty table.
    ///
    /// # Errors
    /// If inotify is not available.
    pub(crate) fn new() -> io::Result<MemoryFiles> {
        Ok(MemoryFiles {
            watches: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            files: HashMap::new(),
            users: BTreeMap::new(),
        })
    }

    /// Readable when a file has ended; then call [`MemoryFiles::forget_ended`].
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.watches.as_fd()
    }

    /// Checks whether a user may have `requested` bytes more within a limit of `limit` bytes.
    ///
    /// # Errors
    /// If the limit would be exceeded.
    pub(crate) fn admit(
        &mut self,
        uid: u32,
        requested: u64,
        limit: u64,
    ) -> Result<(), MemoryLimitExceeded> {
        let present = self.of(uid);
        if present.bytes.saturating_add(requested) <= limit {
            return Ok(());
        }
        // Some files may have ended since the last check.
        self.forget_ended();
        let present = self.of(uid);
        match present.bytes.saturating_add(requested) <= limit {
            true => Ok(()),
            false => Err(MemoryLimitExceeded {
                uid,
                limit,
                present,
                requested,
            }),
        }
    }

    /// Charges a file to a user until the file ends.
    ///
    /// # Errors
    /// If the file cannot be watched.
    pub(crate) fn keep(&mut self, uid: u32, file: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let watch = inotify::add_watch(&self.watches, path, WatchFlags::DELETE_SELF)?;
        self.files.insert(watch, (uid, bytes));
        let used = self.users.entry(uid).or_default();
        used.files += 1;
        used.bytes += bytes;
        Ok(())
    }

    /// Stops charging for files that have ended.
    pub(crate) fn forget_ended(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watches, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    let ended = self.files.remove(&event.wd());
                    forget(&mut self.users, ended);
                }
                Ok(_) => {}
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
    }

    /// The number and length of one user's files.
    pub(crate) fn of(&self, uid: u32) -> MemoryUse {
        self.users.get(&uid).copied().unwrap_or_default()
    }

    /// The number and length of each user's files, in the order of the user ids.
    pub(crate) fn users(&self) -> impl Iterator<Item = (u32, MemoryUse)> {
        self.users.iter().map(|(uid, used)| (*uid, *used))
    }
}

fn forget(users: &mut BTreeMap<u32, MemoryUse>, ended: Option<(u32, u64)>) {
    let Some((uid, bytes)) = ended else { return };
    let Some(used) = users.get_mut(&uid) else {
        return;
    };
    used.files -= 1;
    used.bytes -= bytes;
    if used.files == 0 {
        users.remove(&uid);
    }
}

/// Formats bytes for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        match (bytes >> 20, bytes >> 10) {
            (mebi @ 1.., _) if bytes.is_multiple_of(1 << 20) => write!(f, "{mebi} MiB"),
            (mebi @ 16.., _) => write!(f, "{mebi} MiB"),
            (_, kibi @ 1..) => write!(f, "{kibi} KiB"),
            _ => write!(f, "{bytes} bytes"),
        }
    }
}

struct Several(u64);

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("1 file"),
            files => write!(f, "{files} files"),
        }
    }
}

#[cfg(test)]
mod tests;
