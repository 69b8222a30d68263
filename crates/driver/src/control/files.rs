//! The memory files that programs were given, for as long as each exists, and how many bytes of them each user has.
//!
//! A program keeps its memory file for as long as it likes: a descriptor, a mapping, a message that nobody has read. Its pages
//! are charged to the driver, which filled them, and cannot be taken away ([`netnice_ring::driver::Client::seal`]). So what counts for a
//! user is not what is attached but what exists: an inotify watch tells when the last reference of any kind is gone (`IN_DELETE_SELF`; a
//! memory file has no name, so its inode goes with its last user). The watch itself keeps no file.
//! ```text
//!   admit ─▶ keep ─▶ attached ─▶ detached, and somebody has it ─▶ IN_DELETE_SELF ─▶ forgotten
//!            └──────────────────── counts for its user ──────────────────┘
//! ```
//! A file counts with its whole length, touched or not. Pages of it that the kernel itself still uses when it is gone (of a `sendfile`, a
//! pipe, a registered buffer) are bounded by limits of the kernel for each user, and are not seen here.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// See the module.
#[derive(Debug)]
pub struct Files {
    watches: OwnedFd,
    /// By their watches: whose, and how long.
    files: HashMap<i32, (u32, u64)>,
    users: BTreeMap<u32, Has>,
}

/// What a user has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Has {
    /// Files that exist.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A file is one too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ring bytes of user {uid}: {} at most, {} in use by {} that still exist, and {} more are asked for",
    Size(*.most), Size(.has.bytes), Several(.has.files), Size(*.asked)
)]
pub struct TooMuch {
    /// Whose.
    pub uid: u32,
    /// In bytes.
    pub most: u64,
    /// What there is.
    pub has: Has,
    /// In bytes.
    pub asked: u64,
}

impl Files {
    /// None yet.
    ///
    /// # Errors
    /// If there is no inotify.
    pub fn new() -> io::Result<Files> {
        Ok(Files {
            watches: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            files: HashMap::new(),
            users: BTreeMap::new(),
        })
    }

    /// Readable when a file is gone: [`Files::forget_gone`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watches.as_fd()
    }

    /// Whether a user may have so many bytes more, of at most so many.
    ///
    /// # Errors
    /// If not.
    pub fn admit(&mut self, uid: u32, asked: u64, most: u64) -> Result<(), TooMuch> {
        let has = self.of(uid);
        if has.bytes.saturating_add(asked) <= most {
            return Ok(());
        }
        // Some may be gone since they were looked at last.
        self.forget_gone();
        let has = self.of(uid);
        match has.bytes.saturating_add(asked) <= most {
            true => Ok(()),
            false => Err(TooMuch {
                uid,
                most,
                has,
                asked,
            }),
        }
    }

    /// A user's file, until it is gone.
    ///
    /// # Errors
    /// If it cannot be watched.
    pub fn keep(&mut self, uid: u32, file: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let watch = inotify::add_watch(&self.watches, path, WatchFlags::DELETE_SELF)?;
        self.files.insert(watch, (uid, bytes));
        let has = self.users.entry(uid).or_default();
        has.files += 1;
        has.bytes += bytes;
        Ok(())
    }

    /// Files that are gone do not count any more.
    pub fn forget_gone(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watches, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    let gone = self.files.remove(&event.wd());
                    forget(&mut self.users, gone);
                }
                Ok(_) => {}
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
    }

    /// What a user has.
    pub fn of(&self, uid: u32) -> Has {
        self.users.get(&uid).copied().unwrap_or_default()
    }

    /// Who has how much.
    pub fn users(&self) -> impl Iterator<Item = (u32, Has)> {
        self.users.iter().map(|(uid, has)| (*uid, *has))
    }
}

fn forget(users: &mut BTreeMap<u32, Has>, gone: Option<(u32, u64)>) {
    let Some((uid, bytes)) = gone else { return };
    let Some(has) = users.get_mut(&uid) else {
        return;
    };
    has.files -= 1;
    has.bytes -= bytes;
    if has.files == 0 {
        users.remove(&uid);
    }
}

/// Bytes, for people.
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
